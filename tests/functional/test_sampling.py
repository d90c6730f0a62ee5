import pytest
import torch

from softvq.functional import sampling
from softvq.functional.sampling import draw_codes
from tests.contracts.quantizer import waves


def draw(z, codes, *, seed=0, **options):
    generator = torch.Generator().manual_seed(seed)
    return draw_codes(z, codes, temperature=3.0, generator=generator, **options)


def test_codes_are_drawn_with_their_weights():
    codes, row = waves(5, 2), waves(1, 2, phase=1.0)
    drawn = draw(row.expand(40_000, 2), codes)
    shares = drawn.bincount(minlength=5) / 40_000
    distances = (row.double() - codes.double()).square().sum(-1)
    expected = torch.softmax(-distances / 3.0, -1).float()
    assert expected.min() > 0.01
    torch.testing.assert_close(shares, expected, rtol=0, atol=0.01)


def test_a_seed_draws_the_same_and_blocks_are_of_no_consequence(monkeypatch):
    z, codes = waves(50, 3), waves(7, 3, phase=1.0)
    whole = draw(z, codes)
    assert torch.equal(draw(z, codes), whole)
    assert not torch.equal(draw(z, codes, seed=1), whole)
    monkeypatch.setattr(sampling, "BLOCK", 7 * 9)
    shares = draw(z.repeat(400, 1), codes).bincount(minlength=7) / 20_000
    monkeypatch.undo()
    expected = draw(z.repeat(400, 1), codes, seed=2).bincount(minlength=7) / 20_000
    torch.testing.assert_close(shares, expected, rtol=0, atol=0.015)


def test_masked_rows_get_none():
    assert draw(waves(3, 2), waves(4, 2), mask=torch.tensor([True, False, True]))[1] == -1
    assert draw(waves(0, 2), waves(4, 2)).shape == (0,)


@pytest.mark.bad_input
def test_a_generator_of_another_device_is_refused():
    with pytest.raises(ValueError, match=r"generator is on cpu, z on meta: .*'meta'"):
        draw(waves(3, 2).to("meta"), waves(4, 2).to("meta"))
