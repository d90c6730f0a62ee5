import pytest
import torch
from torch import nn

from softvq import HardVQ, SoftVQ, quantize_mode
from tests.contracts.quantizer import start_on, waves


@pytest.fixture
def model():
    vq = start_on(SoftVQ(16, 4), waves(64, 4))
    return nn.Sequential(nn.Identity(), vq).eval()


def decodes_codes(model):
    out = model(waves(9, 4, phase=1.0))
    return torch.equal(out.quantized, model[1].codes(out.indices))


def test_soft_inside_hard_outside(model):
    assert decodes_codes(model)
    with quantize_mode(model, "soft"):
        assert not decodes_codes(model)
    assert decodes_codes(model)


def test_the_inner_of_two_wins_and_the_outer_comes_back(model):
    with quantize_mode(model, "soft"):
        with quantize_mode(model, "hard"):
            assert decodes_codes(model)
        assert not decodes_codes(model)
    assert model[1].mode is None


def test_an_exception_leaves_the_mode_as_it_was(model):
    with pytest.raises(KeyError), quantize_mode(model, "soft"):
        raise KeyError
    assert model[1].mode is None
    assert decodes_codes(model)


def test_hard_quantizers_beside_soft_ones_stay_hard():
    hard = start_on(HardVQ(16, 4), waves(64, 4))
    pair = nn.ModuleList([SoftVQ(16, 4), hard]).eval()
    with quantize_mode(pair, "soft"):
        out = hard(waves(9, 4))
    assert torch.equal(out.quantized, hard.codes(out.indices))


def test_mode_is_not_in_the_state(model):
    names = set(model.state_dict())
    with quantize_mode(model, "soft"):
        assert set(model.state_dict()) == names


def test_soft_mode_in_eval_carries_gradients_and_does_not_warn(model):
    z = waves(9, 4).requires_grad_()
    with quantize_mode(model, "soft"):
        model(z).quantized.square().sum().backward()
    assert z.grad.any()


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("make", "mode", "match"),
    [
        (
            lambda: SoftVQ(4, 2),
            "sotf",
            "mode is 'sotf'; valid are: soft, hard. Did you mean 'soft'",
        ),
        (lambda: nn.Linear(2, 2), "soft", r"model \(Linear\) holds no quantizer of softvq"),
        (lambda: HardVQ(4, 2), "soft", "HardVQ has no soft assignment: use 'hard'"),
    ],
    ids=["mode", "no quantizer", "not soft"],
)
def test_bad_modes_are_refused(make, mode, match):
    with pytest.raises(ValueError, match=match), quantize_mode(make(), mode):
        pass
