import itertools

import pytest
import torch
from torch import nn

from softvq.export import Sharding, SoftTargets, export_tokens, load_tokens, shards
from softvq.export.digests import digest_tensors
from softvq.export.manifest import MANIFEST
from softvq.models import io
from tests.remains import leave_remains

SIZES = {"batch_size": 3, "shard_size": 4}


def read_folder(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def export(model, dataset, folder, **options):
    return export_tokens(
        model, dataset, folder, specials=["bos", "mask"], sharding=Sharding(**SIZES), **options
    )


def test_two_exports_are_byte_identical(model, waves, exported, tmp_path):
    assert export(model, waves, tmp_path / "again") == (tmp_path / "again", 3, 0, 0)
    assert read_folder(tmp_path / "again") == read_folder(exported)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
def test_processes_share_the_shards_without_duplicates(model, waves, exported, tmp_path, order):
    folder = tmp_path / "shared"
    done = []
    for process in order:
        sharding = Sharding(**SIZES, process=process, processes=3)
        done.append(
            export_tokens(model, waves, folder, specials=["bos", "mask"], sharding=sharding)
        )
        assert (folder / MANIFEST).exists() == (len(done) == 3)
    assert [each.written for each in done] == [1, 1, 1]
    assert [each.missing for each in done] == [2, 1, 0]
    assert read_folder(folder) == read_folder(exported)


def test_more_processes_than_shards_add_no_rows(model, waves, tmp_path):
    for process in range(5):
        sharding = Sharding(batch_size=2, shard_size=5, process=process, processes=5)
        export_tokens(model, waves, tmp_path / "t", sharding=sharding)
    assert load_tokens(tmp_path / "t").keys == waves.keys


def test_progress_counts_items_to_the_end(model, waves, tmp_path):
    told = []
    export(model, waves, tmp_path / "t", progress=lambda *pair: told.append(pair))
    assert told == [(3, 10), (4, 10), (7, 10), (8, 10), (10, 10)]


@pytest.mark.parametrize("reread", [True, False])
def test_a_second_call_keeps_what_is_whole(model, waves, exported, reread):
    before, told = read_folder(exported), []
    progress = lambda *pair: told.append(pair)  # noqa: E731
    done = export(model, waves, exported, reread=reread, progress=progress)
    assert done == (exported, 0, 3, 0)
    assert told[-1] == (10, 10)
    assert read_folder(exported) == before


def test_a_shard_of_before_there_were_digests_is_made_anew(model, waves, exported):
    before, path = read_folder(exported), exported / "tokens-00001.safetensors"
    header, tensors = io.read_tensors(path)
    del tensors["source_digests"]
    io.write_tensors(path, tensors, header | {"digest": digest_tensors(tensors)})
    assert export(model, waves, exported) == (exported, 1, 2, 0)
    assert read_folder(exported) == before


class StopError(Exception):
    pass


def test_an_export_goes_on_where_it_stopped(model, waves, exported, tmp_path):
    folder = tmp_path / "stopped"

    def stop(done, total):
        if done == 7:
            raise StopError

    with pytest.raises(StopError):
        export(model, waves, folder, progress=stop)
    assert list(read_folder(folder)) == ["tokens-00000.safetensors"]
    with pytest.raises(ValueError, match=r"holds 1 shards and no manifest.json"):
        load_tokens(folder)
    for name in ("tokens-00001.safetensors", "keys.jsonl", "codebook.safetensors", "manifest.json"):
        leave_remains(folder / name)
    assert export(model, waves, folder) == (folder, 2, 1, 0)
    assert read_folder(folder) == read_folder(exported)


@pytest.mark.parametrize("writes", [0, 1, 2, 3], ids=["first", "second", "third", "codebook"])
def test_a_full_disk_leaves_nothing_half_written(
    model, waves, exported, tmp_path, monkeypatch, writes
):
    folder, save, left = tmp_path / "full", io.save_file, [writes]

    def fail(tensors, path, metadata):
        if left[0] == 0:
            path.write_bytes(b"half")
            raise OSError("No space left on device")
        left[0] -= 1
        save(tensors, path, metadata=metadata)

    with monkeypatch.context() as patched:
        patched.setattr(io, "save_file", fail)
        with pytest.raises(OSError, match="No space left"):
            export(model, waves, folder)
    assert list(read_folder(folder)) == [f"tokens-0000{i}.safetensors" for i in range(writes)]
    assert export(model, waves, folder).written == 3 - writes
    assert read_folder(folder) == read_folder(exported)


@pytest.mark.parametrize("cut", [0, 40, -1], ids=str)
def test_a_damaged_shard_is_made_anew(model, waves, exported, cut):
    before = read_folder(exported)
    path = exported / "tokens-00001.safetensors"
    path.write_bytes(path.read_bytes()[:cut])
    assert export(model, waves, exported).written == 1
    assert read_folder(exported) == before


def test_an_altered_shard_is_made_anew(model, waves, exported):
    before = read_folder(exported)
    path = exported / "tokens-00001.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert export(model, waves, exported).written == 1
    assert read_folder(exported) == before


class Table(nn.Module):
    """Any module with one codebook and an ``encode``: 1-D tokens at the ends of a wide codebook."""

    def __init__(self, num_codes):
        super().__init__()
        self.embedding = nn.Embedding(num_codes, 2)

    def encode(self, images):
        ends = torch.tensor([0, self.embedding.num_embeddings - 1, 1])
        return ends.expand(len(images), -1)


@pytest.mark.parametrize(
    ("num_codes", "specials", "dtype"),
    [
        (256, [], torch.uint8),
        (256, ["bos"], torch.uint16),
        (65536, [], torch.uint16),
        (65536, ["bos", "mask"], torch.uint32),
    ],
    ids=str,
)
def test_the_vocabulary_is_codes_and_specials_at_any_size(
    waves, tmp_path, num_codes, specials, dtype
):
    model = Table(num_codes).eval()
    export_tokens(model, waves, tmp_path / "t", specials=specials)
    tokens = load_tokens(tmp_path / "t", codebook=model)
    assert tokens.vocab_size == num_codes + len(specials)
    assert tokens.shard_tokens(0).dtype == dtype
    assert tokens[9].tokens.tolist() == [0, num_codes - 1, 1]
    embedding = tokens.codebook.to_embedding()
    assert embedding.num_embeddings == tokens.vocab_size
    numbers = torch.tensor([*tokens[0].tokens, *tokens.specials.values()])
    assert embedding(numbers).shape == (3 + len(specials), 2)


class Stages(nn.Module):
    """Two codebooks, tokens of both on the last axis."""

    def __init__(self, axis=2):
        super().__init__()
        self.stages = nn.ModuleDict(
            {name: nn.ModuleDict({"quantize": nn.Embedding(4, 2)}) for name in "ab"}
        )
        self.axis = axis

    def state_dict(self, **options):
        return {f"{i}.codebook": torch.full((4, 2), i) + torch.eye(4, 2) for i in range(2)}

    def encode(self, images):
        return torch.tensor([[0, 3], [1, 3], [2, 3]])[:, : self.axis].expand(len(images), -1, -1)


def test_stages_are_counted_apart(waves, tmp_path):
    export_tokens(Stages().eval(), waves, tmp_path / "t")
    tokens = load_tokens(tmp_path / "t")
    assert tokens.grid == (3, 2)
    assert [each.tolist() for each in tokens.codebook.counts] == [[10, 10, 10, 0], [0, 0, 0, 30]]


@pytest.mark.bad_input
def test_stages_that_are_not_on_the_last_axis_are_refused(waves, tmp_path):
    with pytest.raises(ValueError, match=r"has 2 codebooks: .*got a grid of \(3, 1\)"):
        export_tokens(Stages(axis=1).eval(), waves, tmp_path / "t")


@pytest.mark.bad_input
def test_training_mode_is_refused_before_anything_is_written(model, waves, tmp_path):
    with pytest.raises(ValueError, match=r"is in training mode.*Call model.eval\(\) first"):
        export_tokens(model.train(), waves, tmp_path / "t")
    assert not (tmp_path / "t").exists()


@pytest.mark.bad_input
@pytest.mark.parametrize("change", ["specials", "soft", "model", "data", "shards"])
@pytest.mark.parametrize("finished", [True, False])
def test_another_export_is_not_mixed_in(model, waves, exported, make_model, change, finished):
    if not finished:
        (exported / MANIFEST).unlink()
    before = read_folder(exported)
    options = {"specials": ["bos", "mask"], "sharding": Sharding(**SIZES)}
    if change == "specials":
        options["specials"] = ["mask", "bos"]
    elif change == "soft":
        options["soft"] = SoftTargets(top=2)
    elif change == "shards":
        options["sharding"] = Sharding(batch_size=3, shard_size=5)
    elif change == "data":
        waves.keys[9] = "train/other"
    else:
        model = make_model(seed=1)
    with pytest.raises(ValueError, match="another export"):
        export_tokens(model, waves, exported, **options)
    assert read_folder(exported) == before


@pytest.mark.bad_input
def test_a_file_that_is_no_picture_is_told_and_what_was_whole_is_kept(model, waves, tmp_path):
    batch = waves.batch

    def read(indices):
        if 6 in indices.tolist():
            raise ValueError("train/006.png cannot be read")
        return batch(indices)

    waves.batch = lambda indices: batch(indices)  # the first reading finds nothing amiss
    folder = tmp_path / "t"

    def damage(done, total):
        waves.batch = read

    with pytest.raises(ValueError, match=r"train/006.png cannot be read"):
        export(model, waves, folder, progress=damage)
    assert list(read_folder(folder)) == ["tokens-00000.safetensors"]


@pytest.mark.bad_input
def test_latents_that_are_not_finite_name_the_items(model, waves, tmp_path):
    batch, calls = waves.batch, []

    def read(indices):
        calls.append(len(indices))
        if len(calls) > 3:
            with torch.no_grad():
                model.encoder[0].bias.fill_(torch.inf)
        return batch(indices)

    waves.batch = read
    with pytest.raises(ValueError, match=r"latents holds(.|\n)*In items train/000(.|\n)*train/002"):
        export(model, waves, tmp_path / "t")


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"soft": SoftTargets(top=17)}, "soft.top is 17; the codebook has 16 codes"),
        ({"specials": ["bos", "bos"]}, "specials must be different names"),
        ({"specials": "bos"}, "specials must be a list"),
    ],
    ids=str,
)
def test_options_that_do_not_fit_are_refused(model, waves, tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        export_tokens(model, waves, tmp_path / "t", **options)
    assert not (tmp_path / "t").exists()


@pytest.mark.bad_input
def test_soft_targets_need_a_temperature_and_latents(make_model, waves, tmp_path):
    with pytest.raises(ValueError, match="HardVQ has none of its own"):
        export_tokens(make_model("hard"), waves, tmp_path / "t", soft=SoftTargets())
    with pytest.raises(ValueError, match="Table gives indices alone"):
        export_tokens(Table(8).eval(), waves, tmp_path / "t", soft=SoftTargets())


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size must be"),
        ({"shard_size": 1.5}, "shard_size must be"),
        ({"process": 0}, "must both be given"),
        ({"process": 2, "processes": 2}, r"process must be in \[0, 2\), the processes; got 2"),
        ({"process": -1, "processes": 2}, "process must be"),
    ],
    ids=str,
)
def test_sharding_that_makes_no_sense_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Sharding(**options)


def test_the_header_of_a_shard_is_known(exported):
    header, tensors = io.read_tensors(exported / "tokens-00002.safetensors")
    assert (header["format"], header["version"]) == (shards.FORMAT, shards.FORMAT_VERSION)
    assert (header["shard"], header["first"], header["count"]) == (2, 8, 2)
    assert sorted(tensors) == ["labels", "source_digests", "tokens"]
