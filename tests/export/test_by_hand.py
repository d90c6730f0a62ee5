"""Files that somebody has edited, cut or swapped: each is refused by name, or is whole.

Every value of every config is replaced by each of a list that fits nowhere, or left out. What comes
must be a ValueError that names the file; only some numbers are as good as others, and load.
"""

import json
import shutil
import signal
from contextlib import contextmanager

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from softvq import SoftVQ, export_codebook, export_tokens, load_tokens
from softvq.cli import describe_file
from softvq.export import Sharding, load_codebook
from softvq.models import VQVAE, VQVAEConfig, load_model, save_model
from tests.remains import hidden
from train.checkpoint import load_weights, read_state, save_checkpoint

UNFIT = [None, -1, "../../x", [[]], {}, True, 10**30, float("nan")]
GONE = object()


def make_model():
    torch.manual_seed(0)
    model = VQVAE(SoftVQ(8, 16, layout="channels_first"), VQVAEConfig(hidden=16, dim=16))
    model.quantizer.start_(model.latents(make_images()))
    return model.eval()


def make_images():
    return torch.sin(torch.arange(6 * 3 * 64) * 0.7).reshape(6, 3, 8, 8)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with one file of each kind, and a token set."""
    folder, model = tmp_path_factory.mktemp("by hand"), make_model()
    save_model(model, folder / "model")
    export_codebook(model, folder / "codebook", specials=["bos"], grid=(2, 2))
    export_tokens(
        model, make_images(), folder / "set", specials=["bos"], sharding=Sharding(shard_size=4)
    )
    optimizer = torch.optim.Adam(model.parameters())
    save_checkpoint(folder / "checkpoint", model, optimizer, state={"step": 3, "config": {"a": 1}})
    return folder


def load_checkpoint_weights(path):
    read_state(path)
    return load_weights(path, make_model())


LOADERS = {
    "model": load_model,
    "codebook": load_codebook,
    "checkpoint": load_checkpoint_weights,
    "manifest.json": lambda path: load_tokens(path.parent)[0],
}
# Values beside those that no digest and no weights speak for, and that are right in any case.
FREE = {
    "model": {"temperature", "revival", "loss", "seed", "layout", "forward_value", "model"},
    "codebook": {"normalized", "dataset", "step", "source_digest", "downsampling", "image_range"}
    | {"metric", "specials", "grid"},
    "checkpoint": {"groups", "config", "step"},
    "manifest.json": {"num_classes", "source_digest"},
}


def places(values, path=()):
    yield path
    if isinstance(values, dict | list):
        keys = values if isinstance(values, dict) else range(min(2, len(values)))
        for key in keys:
            yield from places(values[key], (*path, key))


def edits(config):
    """Each edit's place and value, and the config with it."""
    for path in places(config):
        for value in [*UNFIT, GONE]:
            if not path:
                if value is not GONE:
                    yield path, value, value
                continue
            edited = json.loads(json.dumps(config))
            inner = edited
            for key in path[:-1]:
                inner = inner[key]
            if value is inner[path[-1]]:
                continue  # it is so already
            if value is GONE:
                del inner[path[-1]]
            else:
                inner[path[-1]] = value
            yield path, value, edited


@contextmanager
def limit(seconds):
    def stop(*_):
        raise TimeoutError(f"more than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", list(LOADERS))
def test_whatever_is_edited_is_refused_by_name_or_does_no_harm(kind, made, tmp_path):
    wrong = []
    if kind == "manifest.json":
        shutil.copytree(made / "set", tmp_path / "set")
        path = tmp_path / "set" / kind
        config = json.loads(path.read_text())
        put = lambda edited: path.write_text(json.dumps(edited))  # noqa: E731
    else:
        path = tmp_path / kind
        with safe_open(made / kind, "pt") as file:
            config = json.loads(file.metadata()["softvq"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        put = lambda edited: save_file(tensors, path, {"softvq": json.dumps(edited)})  # noqa: E731
    for place, value, edited in edits(config):
        put(edited)
        found = "loads"
        try:
            with limit(20):
                LOADERS[kind](path)
        except ValueError as error:
            found = "named" if str(path.parent) in str(error) else f"unnamed: {error}"
        except Exception as error:  # that there is none is what is tested
            found = repr(error)
        if found != "named" and not (found == "loads" and FREE[kind] & {*place}):
            wrong.append((place, value, found))
    assert wrong == []


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["model", "codebook", "checkpoint", "manifest.json"])
def test_what_a_file_is_told_to_be_never_breaks_info(kind, made, tmp_path):
    """`softvq info` tells what the config says, or refuses the file."""
    path = tmp_path / kind
    if kind == "manifest.json":
        config = json.loads((made / "set" / kind).read_text())
        put = lambda edited: path.write_text(json.dumps(edited))  # noqa: E731
    else:
        with safe_open(made / kind, "pt") as file:
            config = json.loads(file.metadata()["softvq"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        put = lambda edited: save_file(tensors, path, {"softvq": json.dumps(edited)})  # noqa: E731
    wrong = []
    for place, value, edited in edits(config):
        put(edited)
        try:
            describe_file(path)
        except ValueError:
            continue
        except Exception as error:  # as above
            wrong.append((place, value, repr(error)))
    assert wrong == []


@pytest.mark.parametrize("kind", ["model", "codebook", "checkpoint"])
def test_a_file_cut_at_every_thousandth_byte_is_refused(kind, made, tmp_path):
    content, path, taken = (made / kind).read_bytes(), tmp_path / kind, []
    for length in [*range(20), *range(0, len(content), 1000), len(content) - 1]:
        path.write_bytes(content[:length])
        try:
            LOADERS[kind](path)
        except ValueError as error:
            assert str(path) in str(error)  # noqa: PT017 - of many, each
        else:
            taken.append(length)
    assert taken == []


@pytest.mark.parametrize("name", ["manifest.json", "keys.jsonl", "codebook.safetensors"])
def test_a_set_with_a_file_cut_anywhere_is_refused(name, made, tmp_path):
    shutil.copytree(made / "set", tmp_path / "set")
    path, taken = tmp_path / "set" / name, []
    content = path.read_bytes()
    for length in range(0, len(content) - 1, max(1, len(content) // 40)):
        path.write_bytes(content[:length])
        try:
            load_tokens(tmp_path / "set")
        except ValueError as error:
            assert str(path) in str(error)  # noqa: PT017 - of many, each
        else:
            taken.append(length)
    assert taken == []


def test_shards_of_two_exports_are_no_set(made, tmp_path):
    """As when two different exports were started into one folder at once."""
    shutil.copytree(made / "set", tmp_path / "mixed")
    export_tokens(
        make_model(),
        make_images(),
        tmp_path / "other",
        specials=["eos"],
        sharding=Sharding(shard_size=4),
    )
    name = "tokens-00001.safetensors"
    shutil.copy(tmp_path / "other" / name, tmp_path / "mixed" / name)
    with pytest.raises(ValueError, match=name):
        load_tokens(tmp_path / "mixed")
    unverified = load_tokens(tmp_path / "mixed", verify=False)  # sizes are equal, here
    with pytest.raises(ValueError, match=rf"{name} was not written for what the manifest says"):
        unverified[5]


def test_a_second_export_into_a_folder_in_use_is_refused_before_it_writes(made, tmp_path):
    """The first has not written the shard yet when the second looks, but has when it writes."""
    folder, images, sharding = tmp_path / "t", make_images(), Sharding(shard_size=6)

    def other(done, total):
        if not folder.joinpath("tokens-00000.safetensors").exists():
            export_tokens(make_model(), images, folder, sharding=sharding)

    with pytest.raises(ValueError, match="belongs to another export"):
        export_tokens(
            make_model(), images, folder, specials=["bos"], sharding=sharding, progress=other
        )
    assert len(load_tokens(folder)) == 6
    assert hidden(folder) == []


@pytest.mark.parametrize(
    "name", ["with spaces", "naïve 文件", "<script>", "new\nline", "[a]*?", "-o"]
)
def test_any_name_of_a_folder_is_written_to_and_read(made, tmp_path, name):
    folder = tmp_path / name / name
    export_tokens(make_model(), make_images(), folder / "t", sharding=Sharding(shard_size=4))
    assert len(load_tokens(folder / "t")) == 6
    path = save_model(make_model(), folder / f"{name}.safetensors")
    assert load_model(path).quantizer.num_codes == 8
    assert hidden(folder) == hidden(folder / "t") == []


def test_a_set_behind_a_link_is_read_and_gone_on_with(made, tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real", target_is_directory=True)
    for kept in (0, 2):
        done = export_tokens(
            make_model(), make_images(), tmp_path / "link", sharding=Sharding(shard_size=4)
        )
        assert done.kept == kept
    assert len(load_tokens(tmp_path / "link")) == len(load_tokens(tmp_path / "real")) == 6
