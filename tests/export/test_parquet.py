import datasets
import pyarrow.parquet as pq
import pytest
import torch

from softvq.export import Sharding, SoftTargets, export_tokens, load_tokens
from softvq.export.parquet import read_parquet, write_parquet


@pytest.fixture
def soft_tokens(model, waves, tmp_path):
    sharding = Sharding(batch_size=3, shard_size=4)
    soft = SoftTargets(top=3, temperature=0.5)
    export_tokens(model, waves, tmp_path / "t", specials=["bos"], soft=soft, sharding=sharding)
    return load_tokens(tmp_path / "t")


@pytest.fixture
def folder(soft_tokens, tmp_path):
    return write_parquet(soft_tokens, tmp_path / "parquet")


def test_rows_are_the_items_of_the_set_in_order(soft_tokens, folder, tmp_path):
    rows, facts = read_parquet(folder, cache_dir=tmp_path / "cache")
    assert isinstance(rows, datasets.Dataset)
    assert rows["key"][:] == soft_tokens.keys
    got = rows.with_format("torch")[:]
    items = soft_tokens.batch(torch.arange(10))
    assert torch.equal(got["tokens"], items.tokens.flatten(1))
    assert torch.equal(got["label"], items.label)
    assert torch.equal(got["soft_indices"], items.soft_indices.flatten(1, 2))
    assert torch.equal(got["soft_weights"], items.soft_weights.flatten(1, 2))
    assert (facts["vocab_size"], facts["specials"], facts["grid"]) == (17, {"bos": 16}, [3, 3])
    assert facts["codebook_digest"] == soft_tokens.manifest.plan.codebook_digest


def test_datasets_reads_the_folder_by_itself(soft_tokens, folder, tmp_path):
    rows = datasets.load_dataset(str(folder), split="train", cache_dir=str(tmp_path / "cache"))
    assert rows.features["tokens"] == datasets.List(datasets.Value("uint8"), 9)
    assert torch.equal(
        rows.with_format("torch")[7]["tokens"], soft_tokens[7].tokens.flatten().to(torch.int64)
    )


def test_tokens_decode_to_the_hard_reconstruction(soft_tokens, folder, model, waves, tmp_path):
    rows, _ = read_parquet(folder, cache_dir=tmp_path / "cache")
    pictures = soft_tokens.decode(rows.with_format("torch")[:]["tokens"], model)
    with torch.no_grad():
        expected = model(waves.batch(torch.arange(10)) / 127.5 - 1).reconstruction
    assert torch.equal(pictures, expected)


def test_two_writings_are_byte_identical_and_without_labels_there_are_none(
    tokens, model, waves, tmp_path
):
    once, again = (write_parquet(tokens, tmp_path / name) for name in ("a", "b"))
    assert [path.read_bytes() for path in sorted(once.iterdir())] == [
        path.read_bytes() for path in sorted(again.iterdir())
    ]
    waves.labels = None
    export_tokens(model, waves, tmp_path / "t")
    plain = write_parquet(load_tokens(tmp_path / "t"), tmp_path / "c")
    assert pq.read_schema(next(plain.iterdir())).names == ["key", "tokens"]


@pytest.mark.bad_input
@pytest.mark.parametrize("verify", [True, False])
def test_a_missing_file_or_one_of_another_set_is_told(folder, tokens, tmp_path, verify):
    other = write_parquet(tokens, tmp_path / "other")
    path = folder / "tokens-00001-of-00003.parquet"
    whole = path.read_bytes()
    path.write_bytes((other / path.name).read_bytes())
    with pytest.raises(ValueError, match="should hold 3 files of one set"):
        read_parquet(folder, verify=verify)
    path.write_bytes(whole[:-1])
    with pytest.raises(ValueError, match=rf"{path.name} \({len(whole) - 1} bytes\) is damaged"):
        read_parquet(folder, verify=verify)
    path.unlink()
    with pytest.raises(ValueError, match="should hold 3 files of one set"):
        read_parquet(folder, verify=verify)


@pytest.mark.bad_input
def test_altered_rows_are_told_with_both_digests(folder):
    path = folder / "tokens-00002-of-00003.parquet"
    table = pq.read_table(path)
    metadata = table.schema.metadata
    turned = table.take([1, 0]).replace_schema_metadata(metadata)
    pq.write_table(turned, path)
    message = r"tokens-00002.* is damaged: its rows should have SHA-256 \w{64}, they have \w{64}"
    with pytest.raises(ValueError, match=message):
        read_parquet(folder)


@pytest.mark.bad_input
def test_folders_that_are_something_else_are_told(tokens, folder, tmp_path):
    with pytest.raises(FileNotFoundError, match="no token set"):
        read_parquet(tmp_path)
    (folder / "else.parquet").touch()
    with pytest.raises(ValueError, match=r"holds else\.parquet"):
        write_parquet(tokens, folder)
    pq.write_table(
        pq.read_table(folder / "tokens-00000-of-00003.parquet").replace_schema_metadata(),
        tmp_path / "tokens-00000-of-00001.parquet",
    )
    with pytest.raises(ValueError, match="was not written by softvq"):
        read_parquet(tmp_path)
