import pytest
import torch
from torch.testing import assert_close

from softvq.functional.start import deviation, kmeans, part_duplicates, sample_rows
from tests import oracles
from tests.contracts.backend import assert_matches, draw
from tests.tolerances import EXACT, SAME_FLOAT64


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def distinct(codes):
    return len(codes.unique(dim=0))


class TestSampleRows:
    def test_rows_are_drawn_without_replacement(self):
        rows = draw(20, 3)
        chosen = sample_rows(rows, 20, generator=seeded())
        assert_close(chosen.sort(0).values, rows.sort(0).values, **EXACT)

    def test_repeats_get_a_little_noise(self):
        rows = 5 + draw(3, 2)
        chosen = sample_rows(rows, 10, generator=seeded())
        assert distinct(chosen) == 10
        assert_close(chosen[:3].sort(0).values, rows.sort(0).values, **EXACT)
        gap = torch.cdist(chosen, rows).amin(-1)
        assert (gap[3:] > 0).all()
        assert (gap < 0.05 * rows.std()).all()

    def test_the_given_rows_are_left_as_they_were(self):
        rows = draw(2, 2)
        before = rows.clone()
        sample_rows(rows, 7, generator=seeded()).zero_()
        assert_close(rows, before, **EXACT)

    def test_no_row_is_refused(self):
        with pytest.raises(ValueError, match=r"rows must hold at least one row.*got none"):
            sample_rows(torch.zeros(0, 2), 3, generator=seeded())


class TestDeviation:
    def test_it_is_that_of_each_feature(self):
        rows = torch.tensor([[0.0, 10.0], [2.0, 30.0]])
        assert deviation(rows).tolist() == [1.0, 10.0]

    @pytest.mark.parametrize("value", [0.0, 1e-8, 3.0, 1e6])
    def test_it_is_never_zero(self, value):
        rows = torch.full((4, 2), value)
        assert (deviation(rows) > 0).all()
        assert (rows + deviation(rows) != rows).all()


class TestKmeans:
    def test_three_clusters_are_found(self):
        centres = torch.tensor([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0]])
        rows = (centres[:, None] + 0.1 * draw(3, 50, 2, dtype=torch.float32)).reshape(-1, 2)
        codes = kmeans(rows, 3, generator=seeded(3))
        found = codes[codes.sum(-1).argsort()][:, 0].sort().values
        assert_close(found, torch.tensor([0.0, 0.0, 10.0]), rtol=0, atol=0.1)

    @pytest.mark.parametrize("iterations", [0, 1, 3])
    def test_its_passes_are_lloyds(self, iterations):
        rows = draw(60, 3)
        codes = kmeans(rows, 4, generator=seeded(5), iterations=iterations)
        expected = sample_rows(rows, 4, generator=seeded(5)).numpy()
        for _ in range(iterations):
            expected = oracles.kmeans_step(rows.numpy(), expected)
        assert_matches(codes, expected, **SAME_FLOAT64)

    @pytest.mark.parametrize("num_rows", [1, 3, 8])
    def test_fewer_rows_than_codes(self, num_rows):
        rows = draw(num_rows, 2)
        codes = kmeans(rows, 8, generator=seeded())
        assert codes.shape == (8, 2)
        assert distinct(codes) == 8
        assert torch.cdist(rows, codes).amin(-1).max() == 0

    @pytest.mark.parametrize("num_rows", [3, 8, 100])
    @pytest.mark.parametrize("value", [0.0, 1.0, 1e4])
    def test_equal_rows_give_codes_that_can_part(self, num_rows, value):
        codes = kmeans(torch.full((num_rows, 3), value), 8, generator=seeded())
        assert torch.isfinite(codes).all()
        assert distinct(codes) == 8
        assert (codes - value).abs().max() <= 0.1 * max(value, 1.0)

    def test_an_empty_cell_takes_a_row(self):
        # Nine equal rows and one other: the first sample holds three equal codes, two of them idle.
        rows = torch.tensor([[0.0]] * 9 + [[10.0]])
        assert (sample_rows(rows, 3, generator=seeded(0)) == 0).all()
        codes = kmeans(rows, 3, generator=seeded(0), iterations=1)
        assert_close(codes[0], torch.tensor([1.0]))
        gap = (codes[1:] - rows.T).abs().amin(-1)
        assert (gap < 0.2).all()

    def test_the_seed_decides_and_nothing_else(self):
        rows = draw(50, 3)
        torch.manual_seed(1)
        before = torch.get_rng_state()
        first = kmeans(rows, 7, generator=seeded(2))
        assert_close(torch.get_rng_state(), before)
        torch.manual_seed(2)
        assert_close(kmeans(rows, 7, generator=seeded(2)), first, **EXACT)
        assert not torch.equal(kmeans(rows, 7, generator=seeded(3)), first)

    @pytest.mark.parametrize("num_rows", [4, 50])
    def test_low_precision_rows_give_float32_codes(self, num_rows):
        rows = draw(num_rows, 3, dtype=torch.bfloat16)
        assert kmeans(rows, 5, generator=seeded()).dtype == torch.float32

    def test_an_offset_does_not_spoil_the_clusters(self):
        rows = torch.tensor([[0.0], [0.25], [8.0], [8.25]]) + 1e5
        codes = kmeans(rows, 2, generator=seeded()).sort(0).values
        assert_close(codes - 1e5, torch.tensor([[0.125], [8.125]]), rtol=0, atol=0.02)

    def test_no_row_is_refused(self):
        with pytest.raises(ValueError, match="rows must hold at least one row"):
            kmeans(torch.zeros(0, 2), 3, generator=seeded())


def test_only_duplicates_move():
    codes = torch.tensor([[1.0, 1.0], [0.0, 0.0], [1.0, 1.0], [2.0, 0.0], [1.0, 1.0]])
    parted = part_duplicates(codes, draw(9, 2, dtype=torch.float32), generator=seeded())
    assert_close(parted[[0, 1, 3]], codes[[0, 1, 3]], **EXACT)
    assert distinct(parted) == 5
    assert (parted - codes).abs().max() < 0.1
