import pytest

from softvq.cli import describe_file
from softvq.export import SoftTargets, export_codebook, export_tokens
from softvq.export.describe import describe_tokens, is_token_set

HELD = "labels, source_digests, tokens"


def test_a_codebook_tells_its_use(model, tokens, tmp_path):
    export_codebook(model, tmp_path / "c.safetensors", tokens=tokens)
    facts = describe_file(tmp_path / "c.safetensors")
    used = int((tokens.codebook.counts[0] > 0).sum())
    assert (facts["kind"], facts["codes (K)"], facts["vocabulary"]) == ("codebook", 16, 18)
    assert (facts["codes in hard use"], facts["grid"]) == (used, "3, 3")
    assert facts["specials"] == "bos = 16, mask = 17"
    assert facts["codebook digest"] == tokens.manifest.plan.codebook_digest


def test_a_shard_tells_its_items(exported):
    facts = describe_file(exported / "tokens-00002.safetensors")
    assert (facts["kind"], facts["items"]) == ("shard of a token set", "8 to 9")
    assert (facts["grid"], facts["type"], facts["holds"]) == ("3 x 3", "uint8", HELD)


@pytest.mark.parametrize("name", ["", "manifest.json"], ids=["folder", "manifest"])
def test_a_set_is_told_by_folder_and_by_manifest(exported, name):
    assert is_token_set(exported / name)
    facts = describe_file(exported / name)
    assert (facts["kind"], facts["format"], facts["items"]) == ("token set", "softvq-tokens 1", 10)
    assert (facts["vocabulary"], facts["classes"], facts["soft targets"]) == (18, 4, None)


def test_soft_targets_are_told(model, waves, tmp_path):
    export_tokens(model, waves, tmp_path, soft=SoftTargets(top=2, temperature=0.5))
    assert describe_tokens(tmp_path)["soft targets"] == "2 codes a token at T = 0.5"


def test_other_folders_are_no_set(tmp_path):
    assert not is_token_set(tmp_path)
