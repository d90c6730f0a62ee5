import json

import pytest

from softvq.export.manifest import MANIFEST, read_manifest


@pytest.fixture
def manifest(exported):
    return read_manifest(exported)


def test_the_manifest_tells_the_set(manifest, model):
    plan = manifest.plan
    assert (plan.num_items, plan.grid, plan.image_size) == (10, (3, 3), (9, 12))
    assert (plan.num_codes, plan.vocab_size, plan.specials) == (16, 18, {"bos": 16, "mask": 17})
    assert (plan.dtype, plan.downsampling, plan.image_range) == ("uint8", 4, (-1.0, 1.0))
    assert (manifest.num_classes, plan.dataset) == (4, "waves (10)")
    assert [each.file for each in manifest.shards] == [f"tokens-0000{i}.safetensors" for i in "012"]


def test_the_file_says_order_and_offset(exported):
    told = json.loads((exported / MANIFEST).read_text())
    assert (told["format"], told["version"]) == ("softvq-tokens", 1)
    assert (told["order"], told["code_offset"]) == ("row-major", 0)


def test_shards_cover_the_items_once(manifest):
    plan = manifest.plan
    items = [item for index in range(plan.num_shards) for item in plan.shard_items(index)]
    assert items == list(range(10))


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vocab_size": 16}, "vocab_size should be 18; it is 16"),
        ({"num_codes": 20}, "vocab_size should be 22; it is 18"),
        ({"specials": {"bos": 0, "mask": 1}}, r"specials should be \[16, 17\]; it is \[0, 1\]"),
        ({"order": "column-major"}, "order should be row-major"),
        ({"code_offset": 1}, "code_offset should be 0; it is 1"),
        ({"shards": []}, "number of shards should be 3; it is 0"),
        ({"dtype": "int8"}, "dtype should be one of"),
        ({"version": 2}, "softvq-tokens version 2; this softvq reads up to 1"),
        ({"format": "x"}, "is a 'x' file; 'softvq-tokens' was expected"),
        ({"codebook": {"file": "../c", "bytes": 1, "sha256": ""}}, "names '../c', which is not in"),
        ({"keys": {"file": "keys.jsonl"}}, "lacks or garbles"),
        ({"keys": None}, "lacks or garbles"),
    ],
    ids=str,
)
def test_a_manifest_that_contradicts_itself_is_refused(exported, change, message):
    path = exported / MANIFEST
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ValueError, match=message):
        read_manifest(exported)


@pytest.mark.bad_input
@pytest.mark.parametrize("lost", ["grid", "shards", "codebook_digest", "order", "num_classes"])
def test_a_manifest_that_lacks_a_fact_is_refused(exported, lost):
    path = exported / MANIFEST
    told = json.loads(path.read_text())
    del told[lost]
    path.write_text(json.dumps(told))
    with pytest.raises(ValueError, match=rf"manifest.json lacks or garbles '{lost}'"):
        read_manifest(exported)


@pytest.mark.bad_input
@pytest.mark.parametrize("content", [b"", b'{"format', b"\xff\xfe"], ids=str)
def test_a_manifest_that_is_no_json_is_refused(exported, content):
    (exported / MANIFEST).write_bytes(content)
    with pytest.raises(ValueError, match="lacks or garbles"):
        read_manifest(exported)


@pytest.mark.bad_input
def test_an_export_that_was_not_finished_is_told(exported, tmp_path):
    (exported / MANIFEST).unlink()
    with pytest.raises(ValueError, match=r"holds 3 shards and no manifest.json.*Run it again"):
        read_manifest(exported)
    with pytest.raises(FileNotFoundError, match="it is no token set"):
        read_manifest(tmp_path)
