import pytest
import torch
from torch import nn

from softvq import HardVQ, SoftVQ
from softvq.nn import ResidualVQ, sample_codes
from tests.contracts.quantizer import start_on, waves
from tests.nn.members import COOL


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def vq():
    stages = [SoftVQ(16, 4, seed=i, forward_value="hard", temperature=COOL) for i in range(2)]
    return start_on(ResidualVQ(stages), waves(64, 4))


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_codes_are_drawn_inside_and_nearest_outside(vq, training):
    vq.train(training)
    z = waves(100, 4, phase=1.0)
    nearest = vq(z)
    with sample_codes(vq, seeded()):
        drawn = vq(z)
    assert (drawn.indices != nearest.indices).any(0).all()
    assert torch.equal(vq.codes(drawn.indices), drawn.quantized)
    assert torch.equal(vq(z).indices, nearest.indices)
    with sample_codes(vq, seeded()):
        assert torch.equal(vq(z).indices, drawn.indices)


def test_the_global_generator_is_left_alone_and_errors_end_it(vq):
    before = torch.get_rng_state()
    with pytest.raises(ValueError, match="z must have 4"), sample_codes(vq, seeded()):
        vq(waves(9, 5))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(each.sampler is None for each in vq.codebooks())


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("model", "generator", "match"),
    [
        (HardVQ(4, 2), seeded(), r"model \(HardVQ\) holds no SoftVQ"),
        (nn.Identity(), seeded(), r"model \(Identity\) holds no SoftVQ"),
        (SoftVQ(4, 2), 7, "generator must be a torch.Generator; got int"),
        (SoftVQ(4, 2).to("meta"), seeded(), "generator is on cpu, the codes of model on meta"),
    ],
    ids=["hard", "none", "number", "device"],
)
def test_what_can_not_be_drawn_from_is_refused(model, generator, match):
    with pytest.raises(ValueError, match=match), sample_codes(model, generator):
        pass
