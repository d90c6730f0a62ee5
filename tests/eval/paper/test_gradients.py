import pytest
import torch

from eval.paper.gradients import RATIOS, compare_gradients, find_gradient, find_pushed
from tests.contracts.quantizer import waves


def test_the_statement_holds_with_weights_held_and_not_through_them():
    lines = compare_gradients(waves(80, 4), num=5)
    assert len(lines) == 2 * len(RATIOS)
    for line in lines:
        held = line["gradient"] == "weights held"
        assert (line["difference"] < 1e-9) == held
        assert (line["pushed"] == 0) == held


@pytest.mark.parametrize("grad", ["fixed", "full"])
def test_the_gradient_is_that_of_the_formula(grad):
    rows, centres = waves(7, 3, dtype=torch.float64), waves(4, 3, phase=1.0, dtype=torch.float64)
    leaf = rows.clone().requires_grad_()
    distances = (leaf[:, None] - centres).square().sum(-1)
    weights = (-distances / 0.3).softmax(-1)
    weights = weights.detach() if grad == "fixed" else weights
    (expected,) = torch.autograd.grad((weights * distances).sum(), leaf)
    actual = find_gradient(rows, centres, level=0.3, grad=grad)
    torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-8)


def test_a_single_prototype_is_never_pushed():
    rows, centres = waves(7, 3), torch.zeros(1, 3)
    assert find_pushed(rows, centres, torch.ones(7, 1), level=0.1) == 0
