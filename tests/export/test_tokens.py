import json
import pickle
import re

import pytest
import torch
from torch.utils.data import DataLoader

from softvq.export import SoftTargets, export_codebook, export_tokens, load_codebook, load_tokens
from softvq.export.codebook import save_codebook
from softvq.models.io import read_tensors, write_tensors


def read_images(waves):
    return waves.batch(torch.arange(len(waves))) / 127.5 - 1


def test_items_are_the_models_tokens_in_order(tokens, model, waves):
    expected = torch.cat([model.encode(part) for part in read_images(waves).split(3)])
    items = [tokens[i] for i in range(len(tokens))]
    assert torch.equal(torch.stack([item.tokens for item in items]), expected)
    assert [int(item.label) for item in items] == waves.labels.tolist()
    assert items[0].tokens.dtype == torch.int64
    assert items[0].soft_weights.shape == (3, 3, 0)


def test_the_set_tells_what_a_generator_needs(tokens, waves):
    assert (tokens.num_codes, tokens.vocab_size) == (16, 18)
    assert tokens.specials == {"bos": 16, "mask": 17}
    assert (tokens.num_classes, tokens.grid) == (4, (3, 3))
    assert tokens.keys == waves.keys
    assert torch.equal(tokens.labels, waves.labels)


def test_a_batch_is_its_items(tokens):
    order = torch.tensor([9, 0, 4, 4])
    got = tokens.batch(order)
    assert torch.equal(got.tokens, torch.stack([tokens[i].tokens for i in order.tolist()]))
    assert got.label.tolist() == [tokens[i].label for i in order.tolist()]
    assert tokens.batch(order[:0]).tokens.shape == (0, 3, 3)


@pytest.mark.parametrize("size", [(9, 12), (8, 8), (13, 4)], ids=str)
@pytest.mark.parametrize("kind", ["soft", "hard"])
def test_tokens_decode_to_the_very_hard_reconstruction(make_model, waves, kind, size, tmp_path):
    model = make_model(kind)
    waves.size = size
    export_tokens(model, waves, tmp_path / "t")
    loaded = load_tokens(tmp_path / "t", codebook=model)
    with torch.no_grad():
        expected = model(read_images(waves)).reconstruction
    got = loaded.batch(torch.arange(10)).tokens
    assert torch.equal(loaded.decode(got, model), expected)
    assert torch.equal(loaded.decode(got.flatten(1), model), expected)


def test_codes_of_the_set_are_those_of_the_model(tokens, model):
    book = tokens.codebook
    assert torch.equal(book.codebook, model.quantizer.codebook)
    counted = tokens.batch(torch.arange(10)).tokens.flatten().bincount(minlength=16)
    assert torch.equal(book.counts[0], counted)
    assert (book.grid, book.dataset, book.vocab_size) == ((3, 3), "waves (10)", 18)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_gives_batches(tokens, workers):
    loader = DataLoader(
        tokens,
        batch_size=4,
        num_workers=workers,
        multiprocessing_context="spawn" if workers else None,
    )
    got = torch.cat([batch.tokens for batch in loader])
    assert torch.equal(got, tokens.batch(torch.arange(10)).tokens)


def test_a_pickled_set_carries_no_tokens(make_model, waves, tmp_path):
    export_tokens(make_model(), waves, tmp_path / "t")
    loaded = load_tokens(tmp_path / "t")
    before = len(pickle.dumps(loaded))
    assert loaded[3].tokens.shape == (3, 3)
    assert len(pickle.dumps(loaded)) == before


def test_a_set_without_labels_says_so(model, waves, tmp_path):
    waves.labels = None
    export_tokens(model, waves, tmp_path / "t")
    loaded = load_tokens(tmp_path / "t")
    assert loaded.labels is None
    assert loaded.num_classes is None
    assert loaded[0].label == -1


def test_soft_targets_come_with_the_tokens(model, waves, tmp_path):
    export_tokens(model, waves, tmp_path / "t", soft=SoftTargets(top=3, temperature=0.5))
    loaded = load_tokens(tmp_path / "t")
    item = loaded.batch(torch.arange(10))
    assert item.soft_indices.shape == (10, 3, 3, 3)
    assert torch.equal(item.soft_indices[..., 0], item.tokens)
    assert (item.soft_weights.diff(dim=-1) <= 1e-6).all()
    assert (loaded.manifest.plan.soft_top, loaded.manifest.plan.soft_temperature) == (3, 0.5)


def test_the_quantizers_own_temperature_is_the_default(model, waves, tmp_path):
    export_tokens(model, waves, tmp_path / "t", soft=SoftTargets(top=2))
    plan = load_tokens(tmp_path / "t").manifest.plan
    assert plan.soft_temperature == float(model.quantizer.temperature)


def test_a_codebook_file_takes_what_the_set_knows(tokens, model, tmp_path):
    book = load_codebook(export_codebook(model, tmp_path / "c.safetensors", tokens=tokens))
    assert torch.equal(book.counts[0], tokens.codebook.counts[0])
    assert (book.grid, book.specials) == ((3, 3), tokens.specials)


@pytest.mark.bad_input
@pytest.mark.parametrize("index", [-1, 10], ids=str)
def test_an_item_that_is_not_there_is_an_index_error(tokens, index):
    with pytest.raises(IndexError, match=rf"index must be in \[0, 10\); got {index}"):
        tokens[index]
    with pytest.raises(ValueError, match=f"indices must be codes.*got {index}"):
        tokens.batch(torch.tensor([index]))


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("value", "message"),
    [
        (-1, "got -1 at"),
        (16, "got 16, the special token 'bos'"),
        (17, "got 17, the special token 'mask'"),
        (18, "got 18 at"),
        (1.0, "must be whole numbers; got torch.float32"),
    ],
    ids=str,
)
def test_sampled_tokens_that_are_no_codes_are_refused(tokens, model, value, message):
    sampled = torch.full((1, 3, 3), value)
    with pytest.raises(ValueError, match=message):
        tokens.decode(sampled, model)


@pytest.mark.bad_input
def test_another_codebook_is_refused_with_both_digests(exported, tokens, make_model):
    other = make_model()
    with torch.no_grad():
        other.quantizer.codebook[3, 1] += 1e-6
    digest = tokens.manifest.plan.codebook_digest
    message = rf"codebook has digest \w{{64}}; the tokens in .* codes of digest {digest}"
    with pytest.raises(ValueError, match=message):
        load_tokens(exported, codebook=other)
    with pytest.raises(ValueError, match=message):
        tokens.decode(torch.zeros(1, 3, 3).long(), other)


@pytest.mark.bad_input
def test_a_manifest_of_another_codebook_is_refused(exported):
    path = exported / "manifest.json"
    told = json.loads(path.read_text())
    path.write_text(json.dumps(told | {"codebook_digest": 64 * "0"}))
    with pytest.raises(ValueError, match=f"codes of digest {64 * '0'}"):
        load_tokens(exported)


@pytest.mark.bad_input
@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("name", ["tokens-00001.safetensors", "codebook.safetensors", "keys.jsonl"])
def test_a_file_cut_short_is_named_with_both_sizes(exported, name, verify):
    path = exported / name
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    message = f"{name} is truncated: expected {len(whole)} bytes, found {len(whole) - 1}"
    with pytest.raises(ValueError, match=re.escape(message)):
        load_tokens(exported, verify=verify)


@pytest.mark.bad_input
@pytest.mark.parametrize("name", ["tokens-00001.safetensors", "codebook.safetensors", "keys.jsonl"])
def test_an_altered_file_is_named_with_both_digests(exported, name):
    path = exported / name
    content = bytearray(path.read_bytes())
    content[-2] ^= 1
    path.write_bytes(content)
    message = rf"{name} was altered: expected SHA-256 \w{{64}}, found \w{{64}}\. Take another"
    with pytest.raises(ValueError, match=message):
        load_tokens(exported)


@pytest.mark.bad_input
def test_a_missing_or_longer_shard_is_named(exported):
    path = exported / "tokens-00002.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole + b"x")
    with pytest.raises(ValueError, match=r"tokens-00002.safetensors is too long: expected"):
        load_tokens(exported)
    path.unlink()
    with pytest.raises(ValueError, match=r"tokens-00002.safetensors is missing: expected"):
        load_tokens(exported)


@pytest.mark.bad_input
def test_an_exchanged_codebook_file_is_refused(exported, tokens):
    book = tokens.codebook
    config, tensors = read_tensors(exported / "codebook.safetensors")
    tensors["codebook"] = tensors["codebook"].flip(0)
    write_tensors(exported / "codebook.safetensors", tensors, config)
    with pytest.raises(ValueError, match=r"codebook.safetensors was altered"):
        load_tokens(exported)
    save_codebook(book, exported / "codebook.safetensors")
    assert load_tokens(exported).vocab_size == 18
