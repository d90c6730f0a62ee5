import pytest
import torch

from softvq import DDCLAttention, DDCLLevel, DDCLStack, Temperature
from tests.contracts.quantizer import waves

ABSOLUTE = Temperature(gradient=0.5, prototypes=0.3, unit="absolute")


def make_stack(*windows):
    torch.manual_seed(0)
    return DDCLStack(
        [DDCLLevel(DDCLAttention(8, 4, temperature=ABSOLUTE), window=size) for size in windows]
    )


def test_each_level_reads_what_the_one_before_it_left():
    stack = make_stack(2, 3)
    z = waves(2, 10, 8)
    stack(z)
    stack.eval()
    out = stack(z)
    first = stack.levels[0](z)
    second = stack.levels[1](first.tokens, mask=first.mask)
    assert torch.equal(out.levels[0].tokens, first.tokens)
    assert torch.equal(out.tokens, second.tokens)
    assert [level.tokens.shape[1] for level in out.levels] == [5, 2]
    torch.testing.assert_close(out.loss, first.loss + second.loss)


def test_each_level_has_its_own_split():
    stack = make_stack(2, 3)
    out = stack(waves(4, 10, 8))
    for level in out.levels:
        stats = level.stats
        torch.testing.assert_close(stats["ols"] + stats["spread"], stats["distortion"])
        assert stats["spread"] > 0
    assert out.levels[0].stats["ols"] != out.levels[1].stats["ols"]


def test_a_window_is_the_mean_of_the_layers_tokens():
    stack = make_stack(2)
    z = waves(2, 5, 8)
    stack(z)
    stack.eval()
    read = stack.levels[0].attention(z).tokens
    out = stack(z)
    torch.testing.assert_close(out.tokens[:, 0], read[:, :2].mean(1))
    torch.testing.assert_close(out.tokens[:, 2], read[:, 4])  # 5 is no multiple of 2
    assert out.mask.all()


def test_windows_that_a_short_sequence_does_not_reach_are_masked():
    stack = make_stack(2)
    mask = torch.arange(6).repeat(2, 1) < torch.tensor([[6], [3]])
    out = stack(waves(2, 6, 8), mask=mask)
    assert out.mask.tolist() == [[True, True, True], [True, True, False]]
    assert out.tokens[1, 2].abs().max() == 0
    torch.testing.assert_close(out.mean[1], out.tokens[1, :2].mean(0))


def test_no_window_makes_one_token_of_all():
    stack = make_stack(None)
    z = waves(2, 7, 8)
    stack(z)
    stack.eval()
    out = stack(z)
    torch.testing.assert_close(out.tokens[:, 0], stack.levels[0].attention(z).tokens.mean(1))
    assert out.tokens.shape == (2, 1, 8)


@pytest.mark.bad_input
def test_a_stack_without_levels_is_refused():
    with pytest.raises(ValueError, match="levels must hold at least one DDCLLevel"):
        DDCLStack([])


@pytest.mark.bad_input
def test_levels_of_different_sizes_are_refused():
    levels = [DDCLLevel(DDCLAttention(dim, 4), window=2) for dim in (8, 6)]
    with pytest.raises(ValueError, match=r"same number of features; got \[8, 6\]"):
        DDCLStack(levels)


@pytest.mark.bad_input
def test_a_window_of_none_is_refused():
    with pytest.raises(ValueError, match="window must be a whole number of at least 1; got 0"):
        DDCLLevel(DDCLAttention(8, 4), window=0)
