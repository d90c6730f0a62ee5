import itertools

import pytest
import torch

from softvq import quantize_mode
from softvq.nn import SoftFSQ
from tests.contracts.quantizer import waves


def test_it_rounds_each_bounded_feature():
    fsq = SoftFSQ([3, 4, 5]).eval()
    z = waves(50, 3)
    expected = torch.stack(
        [
            ((z[:, i].tanh() + 1) / 2 * (num - 1)).round() / (num - 1) * 2 - 1
            for i, num in enumerate((3, 4, 5))
        ],
        -1,
    )
    torch.testing.assert_close(fsq(z).quantized, expected)


def test_every_index_is_a_point_of_its_own():
    fsq = SoftFSQ([3, 4, 5])
    points = fsq.codes(torch.arange(60))
    grid = itertools.product(*(torch.linspace(-1, 1, n).tolist() for n in (3, 4, 5)))
    torch.testing.assert_close(points, torch.tensor(list(grid)))
    assert fsq.eval()(torch.atanh(points.clamp(-0.999, 0.999))).indices.tolist() == list(range(60))


def test_its_gradient_is_that_of_the_soft_mean():
    fsq = SoftFSQ([3, 5], temperature=0.5)
    z = waves(20, 2, dtype=torch.float64).requires_grad_()
    weight = waves(20, 2, phase=2.0, dtype=torch.float64)
    means = []
    for i, num in enumerate((3, 5)):
        levels = torch.linspace(-1, 1, num).double()
        apart = (z[:, i : i + 1].tanh() - levels) * (num - 1) / 2
        means.append((torch.softmax(-apart.square() / 0.5, -1) * levels).sum(-1))
    mean = torch.stack(means, -1)
    (expected,) = torch.autograd.grad((mean * weight).sum(), z)
    out = fsq(z)
    (actual,) = torch.autograd.grad((out.quantized * weight).sum(), z)
    torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-9)
    with quantize_mode(fsq, "soft"):
        torch.testing.assert_close(fsq(z).quantized, mean, rtol=1e-6, atol=1e-9)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("levels", "options", "match"),
    [
        ([], {}, "levels must name at least one feature"),
        ([8, 1], {}, "levels must be a whole number of at least 2; got 1"),
        ([8], {"temperature": 0.0}, r"temperature must be .* > 0; got 0\.0"),
        ([8], {"forward_value": "blurred"}, "forward_value is 'blurred'; valid are: hard, soft"),
    ],
    ids=["none", "one level", "temperature", "value"],
)
def test_a_grid_that_makes_no_sense_is_refused(levels, options, match):
    with pytest.raises(ValueError, match=match):
        SoftFSQ(levels, **options)
