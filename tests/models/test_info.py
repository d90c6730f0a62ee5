import math

import pytest
import torch

from softvq import HardVQ, SoftVQ
from softvq.models import VQVAE, VQVAEConfig, save_model
from softvq.models.info import describe_checkpoint, describe_codebook, describe_model
from softvq.models.io import read_tensors
from softvq.nn import (
    GroupedVQ,
    MultiHeadVQ,
    OneIndex,
    Projected,
    ResidualVQ,
    Scaled,
    SoftFSQ,
    measure_bits,
)

NET = VQVAEConfig(dim=8, hidden=8, residual_hidden=4, blocks=1)


def make_checkpoint(*, counts, codebook=None):
    run = {
        "method": {"name": "softvq"},
        "net": {"num_codes": 8, "dim": 4},
        "seed": 3,
        "optim": {"steps": 90},
        "preset": "quick",
        "data": {"source": "cifar10"},
    }
    evals = [{"psnr_hard": 1.0}, {"psnr_hard": 20.25, "psnr_soft": None, "distinct_codes": 7.0}]
    config = {"config": run, "step": 30, "counts": counts, "evals": evals, "warnings": ["a", "b"]}
    tensors = {"model.decoder.weight": torch.zeros(5), "optimizer.0.exp_avg": torch.zeros(99)}
    if codebook is not None:
        tensors["model.quantizer.codebook"] = codebook
    return describe_checkpoint(config, tensors)


def count_distinct(codes, radius):
    """Codes that lie farther than the radius from all that were kept before."""
    kept = []
    for code in codes.double().tolist():
        if all(math.dist(code, other) > radius for other in kept):
            kept.append(code)
    return len(kept)


def test_distinct_codes_are_those_of_a_plain_loop():
    codes = torch.sin(torch.arange(24.0) * 12.9898).reshape(12, 2)
    codes[5], codes[9] = codes[2], codes[2] + 1e-5
    deviation = math.sqrt(codes.double().var(0, unbiased=False).sum())
    assert describe_codebook(codes)["distinct codes"] == count_distinct(codes, 1e-3 * deviation)
    assert describe_codebook(codes)["distinct codes"] == 10


def test_codes_that_are_not_finite_are_counted():
    codes = torch.zeros(4, 2)
    codes[1, 0], codes[3] = math.nan, math.inf
    found = describe_codebook(codes)["distinct codes"]
    assert found == "unknown: 2 codes hold values that are not finite"


@pytest.mark.parametrize("kind", [SoftVQ, HardVQ])
@pytest.mark.parametrize("started", [False, True])
def test_a_model_tells_its_sizes_and_whether_it_has_started(tmp_path, kind, started):
    model = VQVAE(kind(32, 8, layout="channels_first"), NET)
    if started:
        model(torch.linspace(-1, 1, 2 * 3 * 16 * 16).reshape(2, 3, 16, 16))
    facts = describe_model(*read_tensors(save_model(model, tmp_path / "m.safetensors")))
    assert facts["quantizer"] == kind.__name__
    assert (facts["codes (K)"], facts["features (D)"], facts["bits per token"]) == (32, 8, 5)
    assert facts["started"].startswith("yes" if started else "no")
    assert facts["pixels to a token"] == "4 x 4"
    stored = model.state_dict().values()
    assert facts["values of weights and state"] == sum(each.numel() for each in stored)
    assert ("T / T_c" in facts) == (kind is SoftVQ)
    assert "hidden=8" in facts["net"]


def test_a_checkpoint_tells_its_step_and_the_entropy_of_its_codes():
    facts = make_checkpoint(counts=[4, 2, 2, 0, 0, 0, 0, 0], codebook=torch.eye(8, 4))
    assert (facts["method"], facts["step"], facts["seed"]) == ("softvq", "30 of 90", 3)
    assert facts["entropy bits"] == pytest.approx(1.5)  # 1/2 + 1/4 2 + 1/4 2
    assert facts["codes in hard use"] == 3
    assert facts["distinct codes"] == 5  # four rows of eye(8, 4) are zero
    assert facts["hard PSNR, last measured (dB)"] == 20.25
    assert (facts["warnings"], facts["values of weights and state"]) == (2, 13 + 24)


def test_a_checkpoint_of_a_peer_takes_its_distinct_codes_from_the_last_measures():
    facts = make_checkpoint(counts=[1] * 8)
    assert (facts["codes (K)"], facts["distinct codes"]) == (8, 7.0)
    assert facts["entropy bits"] == pytest.approx(3)
    assert "started" not in facts


def test_a_checkpoint_before_the_first_evaluation_has_no_entropy():
    assert "entropy bits" not in make_checkpoint(counts=[], codebook=torch.eye(8, 4))


def test_a_model_of_parts_tells_its_bits(tmp_path):
    stages = [HardVQ(32, 8), Scaled(HardVQ(8, 8))]
    model = VQVAE(ResidualVQ(stages, layout="channels_first"), NET)
    path = save_model(model, tmp_path / "m.safetensors")
    assert describe_model(*read_tensors(path))["started"].startswith("no")
    model(torch.linspace(-1, 1, 2 * 3 * 32 * 32).reshape(2, 3, 32, 32))
    model.quantizer.update_()
    facts = describe_model(*read_tensors(save_model(model, path)))
    assert (facts["indices per token"], facts["codes of each index"]) == (2, "32, 8")
    assert (facts["bits per token"], facts["bits of each index"]) == (8, "5, 3")
    assert facts["bits per item (32 x 32 pixels)"] == 8 * 64
    assert facts["bits per pixel"] == 8 / 16
    assert (facts["codebooks"], facts["started"]) == (2, "yes")
    of_each = facts["entropy bits of each index, lately in training"].split(", ")
    assert len(of_each) == 2
    total = facts["entropy bits per token, lately in training"]
    assert total == pytest.approx(sum(map(float, of_each)), abs=1e-2)
    assert facts["entropy bits per item, lately in training"] == pytest.approx(64 * total)
    share = model.quantizer.parts[0].hits.double()
    share = share / share.sum()
    assert float(of_each[0]) == pytest.approx(-float((share * share.log2()).sum()), abs=1e-3)


@pytest.mark.parametrize(
    ("build", "num"),
    [
        (lambda: HardVQ(16, 8, layout="channels_first"), 1),
        (lambda: MultiHeadVQ(HardVQ(16, 4), num_heads=2, layout="channels_first"), 2),
        (lambda: ResidualVQ([HardVQ(16, 8)] * 3, layout="channels_first"), 3),
        (lambda: OneIndex(GroupedVQ([HardVQ(16, 2), HardVQ(4, 6)]), layout="channels_first"), 2),
        (lambda: Projected(SoftFSQ([4, 4]), 8, layout="channels_first"), 0),
    ],
    ids=["flat", "heads", "shared", "product", "fsq"],
)
def test_every_arrangement_tells_its_bits_and_entropy(tmp_path, build, num):
    model = VQVAE(build(), NET)
    model(torch.linspace(-1, 1, 2 * 3 * 32 * 32).reshape(2, 3, 32, 32))
    model.quantizer.update_()
    facts = describe_model(*read_tensors(save_model(model, tmp_path / "m.safetensors")))
    bits = measure_bits(model.quantizer, positions=64)
    assert facts["bits per token"] == pytest.approx(bits.per_token)
    assert facts["bits per item (32 x 32 pixels)"] == pytest.approx(bits.per_item)
    entropy = facts.get("entropy bits per token, lately in training")
    assert (entropy is None) == (num == 0)
    if num:
        assert 0 < entropy <= bits.per_token + 1e-6
        listed = facts.get("entropy bits of each index, lately in training", "one")
        assert len(listed.split(", ")) == num


def test_a_checkpoint_of_stages_takes_its_bits_from_the_last_measures():
    run = {"method": {"name": "r"}, "net": {"num_codes": 8, "dim": 4}, "seed": 0}
    run |= {"optim": {"steps": 9}, "preset": "quick", "data": {"source": "textures"}}
    config = {"config": run, "step": 3, "counts": [3, 1], "evals": [{"bits_per_token": 12.0}]}
    assert describe_checkpoint(config, {})["bits per token"] == 12
