from dataclasses import replace

import pytest

from softvq.export.manifest import read_manifest
from softvq.export.shards import check_entry, describe_entry, is_whole_shard, open_shard
from softvq.models.io import read_tensors, write_tensors

NAME = "tokens-00001.safetensors"


@pytest.fixture
def plan(exported):
    return read_manifest(exported).plan


def test_a_shard_that_was_written_is_whole(exported, plan):
    assert is_whole_shard(exported, plan, index=1)
    assert not is_whole_shard(exported, plan, index=3)


def test_a_shard_whose_tokens_differ_from_its_digest_is_not_whole(exported, plan):
    header, tensors = read_tensors(exported / NAME)
    tensors["tokens"] = tensors["tokens"].flip(0)
    write_tensors(exported / NAME, tensors, header)
    assert not is_whole_shard(exported, plan, index=1)


def test_what_a_shard_lacks_stands_for_none(exported, plan):
    tensors = open_shard(exported / NAME, plan=plan)
    assert tensors["tokens"].shape == (4, 3, 3)
    assert tensors["soft_indices"].shape == tensors["soft_weights"].shape == (4, 3, 3, 0)


def test_an_entry_is_that_of_the_manifest(exported):
    entry = describe_entry(exported / NAME)
    assert entry == read_manifest(exported).shards[1]
    check_entry(exported, entry, verify=True)


@pytest.mark.bad_input
def test_sizes_are_compared_without_reading(exported):
    entry = describe_entry(exported / NAME)
    check_entry(exported, replace(entry, sha256="0"), verify=False)
    with pytest.raises(ValueError, match=f"expected SHA-256 0, found {entry.sha256}"):
        check_entry(exported, replace(entry, sha256="0"), verify=True)
    with pytest.raises(ValueError, match=f"expected 1 bytes, found {entry.bytes}"):
        check_entry(exported, replace(entry, bytes=1), verify=False)


@pytest.mark.bad_input
def test_a_shard_of_another_export_is_refused(exported, plan):
    with pytest.raises(ValueError, match=rf"{NAME} belongs to another export"):
        is_whole_shard(exported, replace(plan, dataset="other"), index=1)
