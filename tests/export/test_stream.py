import json

import numpy as np
import pytest
import torch

from softvq.export import Sharding, export_tokens, load_tokens, write_stream
from tests.export.test_writer import Table


def test_numpy_reads_the_tokens_row_by_row(tokens, tmp_path):
    stream = write_stream(tokens, tmp_path / "train.bin")
    got = np.memmap(stream.path, dtype=stream.dtype, mode="r")
    expected = tokens.batch(torch.arange(10)).tokens.flatten()
    assert (stream.dtype, stream.length, stream.item_length) == ("uint16", 90, 9)
    assert got.tolist() == expected.tolist()


def test_a_start_token_begins_every_item(tokens, tmp_path):
    stream = write_stream(tokens, tmp_path / "train.bin", start="bos")
    got = np.fromfile(stream.path, dtype="<u2").reshape(10, 10)
    assert got[:, 0].tolist() == [16] * 10
    assert got[:, 1:].tolist() == tokens.batch(torch.arange(10)).tokens.flatten(1).tolist()


def test_a_wide_vocabulary_takes_four_bytes(waves, tmp_path):
    model = Table(65536).eval()
    sharding = Sharding(shard_size=4)
    export_tokens(model, waves, tmp_path / "t", specials=["bos"], sharding=sharding)
    stream = write_stream(load_tokens(tmp_path / "t"), tmp_path / "train.bin", start="bos")
    got = np.fromfile(stream.path, dtype="<u4").reshape(10, 4)
    assert stream.dtype == "uint32"
    assert got[9].tolist() == [65536, 0, 65535, 1]


def test_the_file_beside_it_tells_how_to_read_it(tokens, tmp_path):
    write_stream(tokens, tmp_path / "train.bin", start="mask")
    told = json.loads((tmp_path / "train.bin.json").read_text())
    assert (told["format"], told["dtype"], told["start"]) == ("softvq-stream", "uint16", "mask")
    assert (told["vocab_size"], told["length"], told["item_length"]) == (18, 100, 10)
    assert (told["grid"], told["specials"]) == ([3, 3], {"bos": 16, "mask": 17})


@pytest.mark.bad_input
def test_an_unknown_start_token_is_refused(tokens, model, waves, tmp_path):
    with pytest.raises(ValueError, match="start is 'sos'; valid are: bos, mask"):
        write_stream(tokens, tmp_path / "train.bin", start="sos")
    export_tokens(model, waves, tmp_path / "none")
    with pytest.raises(ValueError, match="the set has no special tokens"):
        write_stream(load_tokens(tmp_path / "none"), tmp_path / "train.bin", start="bos")
    assert not (tmp_path / "train.bin").exists()
