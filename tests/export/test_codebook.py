import json
import math

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from softvq.export import Codebook, load_codebook
from softvq.export.codebook import save_codebook
from softvq.models.io import read_tensors, write_tensors

TABLE = torch.sin(torch.arange(24.0)).reshape(8, 3)
FULL = {
    "counts": (torch.arange(8),),
    "specials": {"bos": 8, "mask": 9},
    "metric": "cosine",
    "grid": (4, 6),
    "downsampling": 4,
    "image_range": (-1.0, 1.0),
    "dataset": "cifar10 train",
    "step": 70,
    "source_digest": "ab12",
}


@pytest.fixture
def path(tmp_path):
    return save_codebook(Codebook(codebooks=(TABLE,), **FULL), tmp_path / "c.safetensors")


def test_everything_comes_back(path):
    loaded = load_codebook(path)
    assert torch.equal(loaded.codebook, TABLE)
    assert torch.equal(loaded.counts[0], torch.arange(8))
    assert {name: getattr(loaded, name) for name in FULL if name != "counts"} == {
        name: value for name, value in FULL.items() if name != "counts"
    }
    assert (loaded.num_codes, loaded.vocab_size, loaded.normalized) == (8, 10, False)


def test_safetensors_alone_reads_it(path):
    with safe_open(path, framework="pt") as file:
        told = json.loads(file.metadata()["softvq"])
        assert torch.equal(file.get_tensor("codebook"), TABLE)
        assert torch.equal(file.get_tensor("counts"), torch.arange(8))
    assert (told["format"], told["version"]) == ("softvq-codebook", 1)
    assert (told["num_codes"], told["dim"], told["vocab_size"]) == (8, 3, 10)
    assert told["codebooks"] == [[8, 3]]


def test_two_writings_give_the_same_bytes(path, tmp_path):
    again = save_codebook(load_codebook(path), tmp_path / "again.safetensors")
    assert again.read_bytes() == path.read_bytes()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_the_type_is_kept(dtype, tmp_path):
    saved = Codebook(codebooks=(TABLE.to(dtype),))
    loaded = load_codebook(save_codebook(saved, tmp_path / "c.safetensors"))
    assert loaded.codebook.dtype == dtype
    assert torch.equal(loaded.codebook, TABLE.to(dtype))


def test_several_codebooks_keep_their_order(tmp_path):
    stages = tuple(TABLE + i for i in range(11))
    counts = tuple(torch.full((8,), i) for i in range(11))
    saved = Codebook(codebooks=stages, counts=counts)
    loaded = load_codebook(save_codebook(saved, tmp_path / "c.safetensors"))
    assert torch.equal(torch.stack(loaded.codebooks), torch.stack(stages))
    assert torch.equal(torch.stack(loaded.counts), torch.stack(counts))
    assert "codebook.10" in read_tensors(tmp_path / "c.safetensors")[1]


def test_a_slice_and_a_turned_table_are_written_small(tmp_path):
    wide = torch.randn(65536, 64, generator=torch.Generator().manual_seed(0))
    for name, table in {"slice": wide[:4], "turned": wide[:4].mT}.items():
        path = save_codebook(Codebook(codebooks=(table,)), tmp_path / name)
        assert path.stat().st_size < 3000
        assert torch.equal(load_codebook(path).codebook, table)


def test_unit_codes_are_told():
    unit = TABLE / TABLE.norm(dim=1, keepdim=True)
    assert Codebook(codebooks=(unit,)).normalized


def test_an_embedding_has_a_row_for_every_number(path):
    embedding = load_codebook(path).to_embedding()
    assert embedding.weight.shape == (10, 3)
    assert embedding.weight.requires_grad
    assert torch.equal(embedding(torch.tensor([0, 7])), TABLE[[0, 7]])
    torch.testing.assert_close(embedding.weight[8:], TABLE.mean(0).expand(2, 3))
    with torch.no_grad():
        embedding.weight.add_(1)
    assert torch.equal(load_codebook(path).codebook, TABLE)
    assert not load_codebook(path).to_embedding(freeze=True).weight.requires_grad


def test_the_vocabulary_at_65536_codes_holds_both_ends():
    wide = Codebook(codebooks=(torch.ones(65536, 2),), specials={"bos": 65536, "mask": 65537})
    assert wide.vocab_size == 65538
    ends = torch.tensor([0, 65535, 65536, 65537])
    assert wide.to_embedding()(ends).shape == (4, 2)


@pytest.mark.parametrize("layout", ["channels_last", "channels_first"])
def test_a_quantizer_of_ours_assigns_by_it(layout):
    vq = Codebook(codebooks=(TABLE,)).to_quantizer(layout=layout)
    assert vq.is_started
    assert not vq.training
    rows = TABLE.flip(0)
    z = rows.mT[None] if layout == "channels_first" else rows[None]
    out = vq(z)
    assert out.indices[0].tolist() == list(range(7, -1, -1))
    assert torch.equal(out.quantized, z)


def test_codes_are_looked_up_in_any_shape():
    book = Codebook(codebooks=(TABLE,))
    indices = torch.tensor([[0, 3], [7, 7]], dtype=torch.uint16)
    assert torch.equal(book.codes(indices), TABLE[indices.long()])


@pytest.mark.bad_input
@pytest.mark.parametrize("index", [-1, 8, 9], ids=str)
def test_an_index_that_is_no_code_is_refused(path, index):
    with pytest.raises(ValueError, match=rf"indices must be codes in \[0, 8\); got {index}"):
        load_codebook(path).codes(torch.tensor([0, index]))


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"codebooks": ()}, "at least one"),
        ({"codebooks": (TABLE[0],)}, r"got torch.float32 of shape \(3,\)"),
        ({"codebooks": (TABLE.long(),)}, "got torch.int64"),
        ({"codebooks": (TABLE[:0],)}, r"shape \(0, 3\)"),
        ({"codebooks": (TABLE * math.inf,)}, "codebook holds 24 of 24 entries"),
        ({"metric": "euclid"}, "metric is 'euclid'; valid are"),
        ({"specials": {"bos": 0}}, "specials must be numbered from K = 8 on"),
        ({"specials": {"bos": 8, "mask": 8}}, "specials must be numbered from K = 8 on"),
        ({"counts": (torch.ones(8),)}, "counts must be int64"),
        ({"counts": (torch.ones(7).long(),)}, r"of shapes \[\(8,\)\]"),
        ({"counts": (-torch.ones(8).long(),)}, "counts must be int64, at least 0"),
        ({"counts": (torch.ones(8).long(),) * 2}, "counts must be int64"),
    ],
)
def test_what_makes_no_codebook_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        Codebook(**({"codebooks": (TABLE,)} | change))


@pytest.mark.bad_input
def test_one_of_several_must_be_chosen():
    several = Codebook(codebooks=(TABLE, TABLE))
    with pytest.raises(ValueError, match="this holds 2 codebooks"):
        several.to_embedding()


@pytest.mark.bad_input
def test_a_cosine_codebook_makes_no_hard_vq(path):
    with pytest.raises(ValueError, match="metric is 'cosine'"):
        load_codebook(path).to_quantizer()


@pytest.mark.bad_input
def test_altered_codes_are_told(path):
    config, tensors = read_tensors(path)
    tensors["codebook"][3, 1] += 1e-6
    write_tensors(path, tensors, config)
    with pytest.raises(ValueError, match=r"c.safetensors was altered: .*SHA-256 \w{64}, they"):
        load_codebook(path)


@pytest.mark.bad_input
@pytest.mark.parametrize("lost", ["specials", "codebook_digest", "grid", "codebooks"])
def test_a_file_that_lacks_a_fact_is_damaged(path, lost):
    config, tensors = read_tensors(path)
    del config[lost]
    write_tensors(path, tensors, config)
    with pytest.raises(ValueError, match=f"lacks or garbles '{lost}'"):
        load_codebook(path)


@pytest.mark.bad_input
@pytest.mark.parametrize("share", [0.0, 0.3, 0.99], ids=str)
def test_a_file_cut_short_is_refused(path, share):
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(ValueError, match="no whole safetensors file"):
        load_codebook(path)


@pytest.mark.bad_input
def test_other_files_are_refused(path, tmp_path):
    save_file({"codebook": TABLE}, tmp_path / "plain")
    torch.save({"codebook": TABLE}, tmp_path / "pickle")
    config, tensors = read_tensors(path)
    write_tensors(tmp_path / "newer", tensors, config | {"version": 2})
    for name, message in {
        "plain": "no softvq config",
        "pickle": "no whole safetensors file",
        "newer": "softvq-codebook version 2; this softvq reads up to 1",
    }.items():
        with pytest.raises(ValueError, match=message):
            load_codebook(tmp_path / name)
    with pytest.raises(FileNotFoundError, match="is no file"):
        load_codebook(tmp_path / "none")
