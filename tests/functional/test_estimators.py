import numpy as np
import pytest
import torch
from torch.testing import assert_close

from softvq.functional.estimators import blur_code, draw_normal, draw_uniform
from tests.contracts.backend import draw, leaf

SHAPE = (7, 5)


def given(**changes):
    z, code, noise = (draw(*SHAPE, seed=seed) for seed in range(3))
    return {"z": z, "code": code, "draw": noise, "noise": 0.7, **changes}


def blur(**changes):
    parts = given(**changes)
    return blur_code(parts.pop("z"), parts.pop("code"), **parts)


def unit(vector):
    return vector / np.sqrt((vector**2).sum())


@pytest.mark.parametrize("noise", [0.0, 0.1, 5.0])
def test_the_value_is_the_formulas(noise):
    parts = given(noise=noise)
    result = blur(noise=noise)
    for n in range(SHAPE[0]):
        z, code, xi = (parts[name][n].numpy() for name in ("z", "code", "draw"))
        direction = unit(unit(code - z) + noise * xi / np.sqrt(SHAPE[1]))
        expected = z + np.sqrt(((code - z) ** 2).sum()) * direction
        assert_close(result[n], torch.from_numpy(expected), rtol=1e-12, atol=1e-12)


def test_without_noise_it_is_the_code_bit_for_bit():
    code = draw(*SHAPE, seed=1, dtype=torch.float32) * 1e-3
    z = draw(*SHAPE, seed=0, dtype=torch.float32) * 1e3
    result = blur_code(z, code, noise=torch.tensor(0.0), draw=draw(*SHAPE).float())
    assert torch.equal(result, code)


def test_it_lies_as_far_from_the_row_as_the_code():
    parts = given()
    distance = (blur() - parts["z"]).square().sum(-1)
    assert_close(distance, (parts["code"] - parts["z"]).square().sum(-1))


def test_the_gradient_holds_the_direction_fixed():
    """By the projection itself: g - e (u . g) to the row, e (u . g) to the code."""
    z, code, weight = leaf(given()["z"]), leaf(given()["code"]), draw(*SHAPE, seed=9)
    result = blur(z=z, code=code)
    (result * weight).sum().backward()
    error = (code - z).detach()
    length = error.norm(dim=-1, keepdim=True)
    u = (result.detach() - z.detach()) / length
    along = (u * weight).sum(-1, keepdim=True) * error / length
    assert_close(code.grad, along)
    assert_close(z.grad, weight - along)


def test_a_row_on_its_code_gives_the_code_and_a_finite_gradient():
    z, code = leaf(draw(*SHAPE)), leaf(draw(*SHAPE))
    result = blur(z=z, code=code)
    result.sum().backward()
    assert_close(result.detach(), z.detach())
    assert torch.isfinite(z.grad).all()
    assert torch.isfinite(code.grad).all()


class TestDrawNormal:
    def draw(self, key, *, rows=2000, dim=50, dtype=torch.float64):
        return draw_normal(torch.zeros(rows, dim, dtype=dtype), key=torch.tensor(key))

    @pytest.mark.parametrize("key", [0, 1, 7, (3 << 32) + 5])
    def test_moments_and_tails_are_normal(self, key):
        numbers = self.draw(key)
        assert abs(numbers.mean().item()) < 4 / 100_000**0.5
        assert abs(numbers.var().item() - 1) < 4 * (2 / 100_000) ** 0.5
        assert abs((numbers**4).mean().item() - 3) < 4 * (96 / 100_000) ** 0.5
        for bound, share in [(1.0, 0.3173), (2.0, 0.0455), (3.0, 0.0027)]:
            found = (numbers.abs() > bound).double().mean().item()
            assert abs(found - share) < 4 * (share / 100_000) ** 0.5

    def test_rows_features_and_keys_are_unrelated(self):
        here, there = self.draw(4), self.draw(5)
        limit = 4.5 / 2000**0.5
        between = torch.corrcoef(here.mT) - torch.eye(50, dtype=torch.float64)
        assert between.abs().max() < limit
        assert abs((here * there).mean().item()) < 4 / 100_000**0.5
        assert abs((here[1:] * here[:-1]).mean().item()) < 4 / 100_000**0.5

    def test_a_row_has_the_same_numbers_whatever_follows_and_in_every_dtype(self):
        many, few = self.draw(4), self.draw(4, rows=10, dtype=torch.float32)
        assert_close(many[:10].float(), few, rtol=0, atol=0)

    @pytest.mark.parametrize("dim", [1, 4, 5])
    def test_a_part_has_the_numbers_of_its_place_in_the_whole(self, dim):
        whole = self.draw(4, rows=30, dim=dim)
        like, key = torch.zeros(20, dim, dtype=torch.float64), torch.tensor(4)
        assert_close(draw_normal(like, key=key, first_row=10), whole[10:], rtol=0, atol=0)


def test_uniform_numbers_are_even_and_follow_bits_and_seed():
    like = draw(*SHAPE, seed=0)
    first = draw_uniform(like, num=20_000, seed=0)
    counts = (first * 10).long().bincount(minlength=10) / 20_000
    assert_close(counts, torch.full((10,), 0.1), rtol=0, atol=0.01)
    assert torch.equal(draw_uniform(like.clone(), num=20_000, seed=0), first)
    for other in (
        draw_uniform(like, num=20_000, seed=1),
        draw_uniform(like + 1, num=20_000, seed=0),
    ):
        assert abs(torch.corrcoef(torch.stack([first, other]))[0, 1]) < 0.03


def test_uniform_numbers_of_nothing():
    assert draw_uniform(torch.empty(0, 3), num=4, seed=0).shape == (4,)
