import numpy as np
import pytest
import torch

from softvq.functional.windows import masked_mean, window_means
from tests.contracts.quantizer import waves


def loop_means(tokens, mask, window):
    """Windows of kept tokens, as loops over NumPy."""
    batch, length, dim = tokens.shape
    num = -(-length // window)
    means, kept = np.zeros((batch, num, dim)), np.zeros((batch, num), dtype=bool)
    for b in range(batch):
        row = [tokens[b, n] for n in range(length) if mask[b, n]]
        for m in range(num):
            mine = row[m * window : (m + 1) * window]
            if mine:
                means[b, m], kept[b, m] = sum(mine) / len(mine), True
    return means, kept


@pytest.mark.parametrize("window", [1, 2, 3, 7, 11])
def test_windows_are_those_of_the_loops(window):
    tokens, mask = waves(3, 7, 2, dtype=torch.float64), waves(3, 7, phase=1.0) > 0
    mask[1] = False
    means, kept = loop_means(tokens.numpy(), mask.numpy(), window)
    out = window_means(tokens, mask, window=window)
    np.testing.assert_allclose(out.means.numpy(), means, rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(out.mask.numpy(), kept)


def test_without_a_mask_all_tokens_are_kept():
    tokens = waves(2, 5, 3)
    expected = window_means(tokens, torch.ones(2, 5, dtype=torch.bool), window=2)
    out = window_means(tokens, None, window=2)
    assert torch.equal(out.means, expected.means)
    assert out.mask.all()


def test_no_tokens_give_no_windows():
    out = window_means(torch.zeros(2, 0, 3), None, window=4)
    assert out.means.shape == (2, 0, 3)
    assert out.mask.shape == (2, 0)


def test_gradient_of_windows():
    tokens = waves(2, 5, 2, dtype=torch.float64).requires_grad_()
    mask = waves(2, 5, phase=1.0) > -0.3
    assert torch.autograd.gradcheck(lambda z: window_means(z, mask, window=2).means, tokens)


def test_a_mean_skips_what_is_dropped_and_is_zero_where_nothing_is_kept():
    values = torch.tensor([[[1.0], [torch.nan], [4.0]], [[5.0], [6.0], [7.0]]])
    mask = torch.tensor([[True, False, True], [False, False, False]])
    assert masked_mean(values, mask).tolist() == [[2.5], [0.0]]
    assert masked_mean(values[1:], None).tolist() == [[6.0]]
    assert masked_mean(torch.zeros(2, 0, 3), None).tolist() == [[0.0] * 3] * 2


def test_a_long_mean_in_half_precision_does_not_overflow():
    values = torch.full((1, 4096, 1), 60.0, dtype=torch.float16)
    assert masked_mean(values, None).item() == 60.0
