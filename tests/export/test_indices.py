"""Token sets of quantizers that give a vector several indices."""

import json
import math

import pytest
import torch
from einops import rearrange
from PIL import Image

from softvq import HardVQ, SoftVQ
from softvq.cli import describe_file, main
from softvq.export import Sharding, SoftTargets, export_tokens, load_codebook, load_tokens
from softvq.export.indices import lay_indices, table_of
from softvq.export.stream import write_stream
from softvq.models import VQVAE, VQVAEConfig, save_model
from softvq.nn import GroupedVQ, MultiHeadVQ, OneIndex, Projected, ResidualVQ, Scaled, SoftFSQ

FIRST = {"layout": "channels_first"}
# Tail of the indices, K of each, the codebook of each, and the sizes of the codebooks.
KINDS = {
    "residual": (
        lambda: ResidualVQ([Scaled(HardVQ(8, 4)), Scaled(HardVQ(4, 4))], **FIRST),
        ((2,), (8, 4), (0, 1), [(8, 4), (4, 4)]),
    ),
    "one codebook": (
        lambda: ResidualVQ([HardVQ(8, 4)] * 3, **FIRST),
        ((3,), (8, 8, 8), (0, 0, 0), [(8, 4)]),
    ),
    "groups": (
        lambda: GroupedVQ([HardVQ(16, 1), SoftVQ(8, 3)], **FIRST),
        ((2,), (16, 8), (0, 1), [(16, 1), (8, 3)]),
    ),
    "heads": (
        lambda: MultiHeadVQ(HardVQ(8, 2), num_heads=2, **FIRST),
        ((2,), (8, 8), (0, 0), [(8, 2)]),
    ),
    "groups of stages": (
        lambda: GroupedVQ(
            [ResidualVQ([HardVQ(8, 2), HardVQ(4, 2)]), ResidualVQ([HardVQ(6, 2)] * 2)], **FIRST
        ),
        ((2, 2), (8, 4, 6, 6), (0, 1, 2, 2), [(8, 2), (4, 2), (6, 2)]),
    ),
    "product": (
        lambda: OneIndex(GroupedVQ([HardVQ(8, 2), HardVQ(64, 2)]), **FIRST),
        ((), (512,), (0,), [(512, 4)]),
    ),
    "grid": (
        lambda: Projected(SoftFSQ([3, 5]), 4, **FIRST),
        ((), (15,), (0,), [(15, 2)]),
    ),
}


def make_model(name):
    torch.manual_seed(0)
    vq = KINDS[name][0]()
    model = VQVAE(vq, VQVAEConfig(dim=4, hidden=8, residual_hidden=4, blocks=1))
    images = torch.sin(torch.arange(float(10 * 3 * 9 * 12)) * 0.37).reshape(10, 3, 9, 12)
    with torch.no_grad():
        vq.start_(model.latents(images))
    return model.eval()


@pytest.fixture(params=list(KINDS))
def name(request):
    return request.param


def export(model, waves, folder):
    sharding = Sharding(batch_size=3, shard_size=4)
    return export_tokens(model, waves, folder, specials=["bos"], sharding=sharding)


def test_tokens_come_back_as_the_very_pictures(name, waves, tmp_path):
    model = make_model(name)
    export(model, waves, tmp_path)
    tokens = load_tokens(tmp_path, codebook=model)
    tail, codes, books, sizes = KINDS[name][1]
    assert tokens.grid == (3, 3, *tail)
    assert (tokens.index_tail, tokens.codes_per_index) == (tail, codes)
    assert tokens.manifest.plan.index_codebooks == books
    assert (tokens.num_codes, tokens.specials) == (max(codes), {"bos": max(codes)})
    assert [tuple(each.shape) for each in tokens.codebook.codebooks] == sizes
    images = waves.batch(torch.arange(10)) / 127.5 - 1
    stored = tokens.batch(torch.arange(10)).tokens
    with torch.no_grad():
        assert torch.equal(stored, model.encode(images))
        assert torch.equal(tokens.decode(stored, model), model(images).reconstruction)
        assert torch.equal(tokens.decode(stored.flatten(1), model), tokens.decode(stored, model))


def test_counts_are_of_each_codebook(name, waves, tmp_path):
    export(make_model(name), waves, tmp_path)
    tokens = load_tokens(tmp_path)
    _, codes, books, sizes = KINDS[name][1]
    flat = tokens.batch(torch.arange(10)).tokens.reshape(-1, len(codes))
    expected = [torch.zeros(size[0], dtype=torch.int64) for size in sizes]
    for vector in flat.tolist():
        for index, book in zip(vector, books, strict=True):
            expected[book][index] += 1
    for found, count in zip(tokens.codebook.counts, expected, strict=True):
        assert torch.equal(found, count)


def test_info_tells_bits_and_entropy(name, waves, tmp_path):
    export(make_model(name), waves, tmp_path)
    facts = describe_file(tmp_path)
    _, codes, books, _ = KINDS[name][1]
    bits = math.fsum(math.log2(num) for num in codes)
    assert (facts["indices per token"], facts["bits per token"]) == (
        len(codes),
        pytest.approx(bits),
    )
    assert facts["bits per item"] == pytest.approx(9 * bits)
    counts = load_codebook(tmp_path / "codebook.safetensors").counts
    shares = [counts[book].double() / counts[book].sum() for book in books]
    entropy = sum(float(torch.special.entr(each).sum()) for each in shares) / math.log(2)
    assert facts["entropy bits per token"] == pytest.approx(entropy)
    assert facts["entropy bits per item"] == pytest.approx(9 * entropy)
    told = describe_file(tmp_path / "codebook.safetensors")
    assert told["codebooks"] == len(counts)
    assert str(told["codes (K)"]) == ", ".join(str(len(each)) for each in counts)


def test_a_stream_has_the_indices_of_a_vector_behind_one_another(waves, tmp_path):
    export(make_model("residual"), waves, tmp_path / "t")
    tokens = load_tokens(tmp_path / "t")
    write_stream(tokens, tmp_path / "train.bin", start="bos")
    numbers = torch.frombuffer(bytearray((tmp_path / "train.bin").read_bytes()), dtype=torch.uint16)
    items = numbers.long().reshape(10, 19)
    assert torch.equal(items[:, 1:], tokens.batch(torch.arange(10)).tokens.flatten(1))
    told = json.loads((tmp_path / "train.bin.json").read_text())
    assert (told["grid"], told["codes_per_index"]) == ([3, 3, 2], [8, 4])


def test_the_command_line_goes_there_and_back(tmp_path, capsys):
    pytest.importorskip("datasets")
    model = make_model("residual")
    save_model(model, tmp_path / "m.safetensors")
    (tmp_path / "pictures").mkdir()
    for i in range(3):
        picture = (torch.arange(8 * 8 * 3).reshape(8, 8, 3) * (i + 1) % 256).to(torch.uint8)
        Image.fromarray(picture.numpy()).save(tmp_path / "pictures" / f"{i}.png")
    words = [str(tmp_path / each) for each in ("m.safetensors", "pictures", "t", "out", "rows")]
    main(["encode", words[0], words[1], words[2], "--size", "8"])
    main(["decode", words[0], words[2], words[3]])
    main(["info", words[2]])
    main(["info", words[0]])
    main(["export", "parquet", words[2], words[4]])
    said = capsys.readouterr().out
    assert "bits per token" in said
    assert "entropy bits per token" in said
    tokens = load_tokens(words[2])
    with torch.no_grad():
        pictures = tokens.decode(tokens.batch(torch.arange(3)).tokens, model)
    for i, picture in enumerate(pictures):
        found = torch.frombuffer(
            bytearray(Image.open(f"{words[3]}/{i:06d}.png").tobytes()), dtype=torch.uint8
        )
        expected = (picture.clamp(-1, 1) + 1) * 127.5
        near = found.reshape(8, 8, 3).float() - rearrange(expected, "c h w -> h w c")
        assert near.abs().max() < 1


def test_a_set_of_before_the_indices_were_told_is_read_and_goes_on(model, waves, tmp_path):
    export(model, waves, tmp_path)
    path = tmp_path / "manifest.json"
    content = json.loads(path.read_text())
    for name in ("index_axes", "codes_per_index", "index_codebooks"):
        del content[name]
    path.write_text(json.dumps(content))
    tokens = load_tokens(tmp_path)
    assert (tokens.index_tail, tokens.codes_per_index) == ((), (16,))
    assert "entropy bits per token" in describe_file(tmp_path)
    assert export(model, waves, tmp_path).kept == 3
    assert load_tokens(tmp_path).manifest.plan.codes_per_index == (16,)


def test_quantizers_of_a_model_are_not_their_parts():
    both = torch.nn.ModuleDict({"a": HardVQ(8, 4), "b": Scaled(HardVQ(4, 4))})
    assert lay_indices(both, [8, 4]) == ((2,), (8, 4), (0, 1))


@pytest.mark.bad_input
def test_an_index_is_looked_for_in_its_own_codebook(waves, tmp_path):
    model = make_model("residual")
    export(model, waves, tmp_path)
    tokens = load_tokens(tmp_path)
    stored = tokens.batch(torch.arange(2)).tokens
    stored[1, 2, 0, 1] = 4
    with pytest.raises(
        ValueError, match=r"index 1 of each vector, must be codes in \[0, 4\); got 4"
    ):
        tokens.decode(stored, model)


@pytest.mark.bad_input
def test_soft_targets_of_parts_are_refused(name, waves, tmp_path):
    with pytest.raises(ValueError, match="soft targets need distances to the codes themselves"):
        export_tokens(
            make_model(name), waves, tmp_path / "t", soft=SoftTargets(top=2, temperature=1.0)
        )
    assert not (tmp_path / "t").exists()


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("index_axes", 0),
        ("index_axes", 9),
        ("index_axes", "1"),
        ("codes_per_index", [8]),
        ("codes_per_index", [8, 0]),
        ("codes_per_index", [4, 4]),
        ("index_codebooks", [0]),
        ("index_codebooks", [0, -1]),
        ("index_codebooks", [0, 2]),
        ("index_codebooks", [1, 0]),
    ],
)
def test_a_manifest_whose_indices_do_not_fit_is_refused(waves, tmp_path, name, value):
    export(make_model("residual"), waves, tmp_path)
    path = tmp_path / "manifest.json"
    content = json.loads(path.read_text())
    content[name] = value
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"manifest: .*damaged"):
        load_tokens(tmp_path)


@pytest.mark.bad_input
def test_a_codebook_that_is_not_there_is_told_by_info(waves, tmp_path):
    export(make_model("residual"), waves, tmp_path)
    path = tmp_path / "manifest.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"index_codebooks": [0, 2]}))
    with pytest.raises(ValueError, match=r"index_codebooks names codebook 2.*holds 2"):
        describe_file(tmp_path)


@pytest.mark.bad_input
def test_a_table_that_would_be_too_large_is_refused():
    whole = OneIndex(GroupedVQ([HardVQ(2**14, 2), HardVQ(2**13, 2)]))
    with pytest.raises(ValueError, match=r"134,217,728 vectors of 4 features, too many"):
        table_of(whole)
