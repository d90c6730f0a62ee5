import math
import re

import pytest
import torch

from softvq.functional.assign import soft_assign_and_use
from softvq.measures import CodebookUse, DistinctCodes
from softvq.measures.codebook import entropy_of


def use_of(*batches, num_codes):
    measure = CodebookUse(num_codes)
    for indices in batches:
        measure.update(torch.tensor(indices, dtype=torch.int64))
    return measure.compute()


def make_rows(count=300, dim=3):
    return torch.sin(torch.arange(float(count * dim)) * 0.7).reshape(count, dim)


def soft_use_of(rows, codebook, *, temperature, sizes):
    """Report over batches of rows of these sizes."""
    measure = CodebookUse(len(codebook))
    for batch in rows.split(sizes):
        codes, use = soft_assign_and_use(batch, codebook, temperature=temperature)
        measure.update(codes.indices, use)
    return measure.compute()


def test_perplexity_is_of_all_rows_and_no_mean_over_batches():
    report = use_of([0] * 6, [1] * 2, num_codes=8)
    entropy = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    assert report.perplexity_hard == pytest.approx(math.exp(entropy), rel=1e-6)
    assert report.perplexity_hard == pytest.approx(1.7548, abs=5e-5)
    assert report.use_hard == 2 / 8
    assert report.counts.tolist() == [6, 2, 0, 0, 0, 0, 0, 0]
    assert report.rows == 8


@pytest.mark.parametrize("num_codes", [1, 2, 512])
def test_one_code_has_perplexity_one(num_codes):
    report = use_of([num_codes - 1] * 5, num_codes=num_codes)
    assert report.perplexity_hard == 1.0
    assert report.use_hard == 1 / num_codes


def test_even_use_of_many_codes():
    report = use_of(range(65536), num_codes=65536)
    assert report.perplexity_hard == pytest.approx(65536, rel=1e-3)
    assert report.use_hard == 1.0


def test_masked_rows_count_nowhere():
    assert use_of([0, -1, 0, -1, 3], num_codes=4)[:2] == use_of([0, 0, 3], num_codes=4)[:2]
    assert use_of([0, -1, 0, -1, 3], num_codes=4).counts.tolist() == [2, 0, 0, 1]


def test_indices_have_any_shape():
    grid = torch.tensor([[[0, 1], [2, 2]]])
    measure = CodebookUse(3)
    measure.update(grid)
    assert measure.compute().counts.tolist() == [1, 1, 2]


def test_hard_figures_alone_leave_the_soft_ones_out():
    report = use_of([0, 1], num_codes=2)
    assert report.use_soft is None
    assert report.perplexity_soft is None


def test_soft_figures_are_their_formula():
    rows, codebook = make_rows(), make_rows(7) * 0.5
    temperature = 0.05
    distances = (rows[:, None].double() - codebook.double()).square().sum(-1)
    mean = torch.softmax(-distances / temperature, dim=-1).mean(0)
    report = soft_use_of(rows, codebook, temperature=temperature, sizes=300)
    expected = math.exp(-(mean * mean.log()).sum().item())
    assert report.perplexity_soft == pytest.approx(expected, rel=1e-5)
    assert report.use_soft == (mean > 0.1 / 7).double().mean().item()
    assert report.counts.tolist() == distances.argmin(-1).bincount(minlength=7).tolist()


@pytest.mark.parametrize("sizes", [100, 7, [1, 200, 99]], ids=str)
def test_batches_do_not_matter(sizes):
    rows, codebook = make_rows(), make_rows(7) * 0.5
    whole = soft_use_of(rows, codebook, temperature=0.05, sizes=300)
    parts = soft_use_of(rows, codebook, temperature=0.05, sizes=sizes)
    assert parts.perplexity_soft == pytest.approx(whole.perplexity_soft, rel=1e-6)
    assert parts.use_soft == whole.use_soft
    assert parts[:2] == whole[:2]
    assert torch.equal(parts.counts, whole.counts)


def test_masked_rows_have_no_soft_weight_either():
    """The mean weight of a batch is over its kept rows, so it counts for them alone."""
    measure = CodebookUse(2)
    measure.update(torch.tensor([0, -1, -1, -1]), torch.tensor([1.0, 0.0]))
    measure.update(torch.tensor([1, 1, 1]), torch.tensor([0.0, 1.0]))
    entropy = -(0.25 * math.log(0.25) + 0.75 * math.log(0.75))
    assert measure.compute().perplexity_soft == pytest.approx(math.exp(entropy), rel=1e-6)


def test_a_collapsed_codebook_shows_in_the_hard_figures_alone():
    """All codes equal: soft use 100 % and perplexity K, hard use 1 / K and perplexity 1."""
    report = soft_use_of(make_rows(), torch.zeros(16, 3), temperature=1.0, sizes=100)
    assert report.use_soft == 1.0
    assert report.perplexity_soft == pytest.approx(16, rel=1e-5)
    assert report.use_hard == 1 / 16
    assert report.perplexity_hard == 1.0


@pytest.mark.parametrize(("weight", "used"), [(0.011, 1.0), (0.009, 0.9)])
def test_soft_use_wants_a_tenth_of_an_even_share(weight, used):
    weights = torch.full((10,), (1 - weight) / 9)
    weights[0] = weight
    measure = CodebookUse(10)
    measure.update(torch.arange(10), weights)
    assert measure.compute().use_soft == pytest.approx(used)


@pytest.mark.parametrize("batch", [[], [-1, -1]], ids=["no row", "all masked"])
def test_no_rows(batch):
    report = use_of(batch, num_codes=4)
    assert report[:4] == (0.0, 0.0, None, None)
    assert report.rows == 0


def test_no_rows_with_weights():
    measure = CodebookUse(4)
    measure.update(torch.tensor([-1, -1]), torch.zeros(4))
    assert measure.compute()[:4] == (0.0, 0.0, None, None)


def test_reset_forgets_and_reports_stay():
    measure = CodebookUse(3)
    measure.update(torch.tensor([0, 1]), torch.tensor([0.5, 0.5, 0.0]))
    report = measure.compute()
    measure.reset()
    measure.update(torch.tensor([2]))
    assert report.counts.tolist() == [1, 1, 0]
    assert measure.compute().counts.tolist() == [0, 0, 1]
    assert measure.compute().use_soft is None


def test_entropy_is_that_of_all_rows_in_nats_and_bits():
    report = use_of([0] * 6, [1] * 2, num_codes=8)
    entropy = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    assert report.entropy_hard == pytest.approx(entropy, rel=1e-12)
    assert report.entropy_bits_hard == pytest.approx(0.8112781244591328, rel=1e-12)
    assert math.exp(report.entropy_hard) == pytest.approx(report.perplexity_hard, rel=1e-6)
    assert (report.entropy_soft, report.entropy_bits_soft, report.zipf_soft) == (None, None, None)


def test_a_token_costs_log2_of_the_codes_at_most():
    report = use_of(range(512), num_codes=512)
    assert report.bits_per_token == 9.0
    assert report.entropy_bits_hard == pytest.approx(9.0, rel=1e-12)
    assert report.codes_used == 512


def test_soft_entropy_and_zipf_are_of_the_mean_weights():
    measure = CodebookUse(3)
    measure.update(torch.tensor([0, 0]), torch.tensor([0.25, 0.5, 0.25]))
    measure.update(torch.tensor([0, 1]), torch.tensor([0.75, 0.0, 0.25]))
    report = measure.compute()
    assert report.entropy_bits_soft == pytest.approx(1.5, rel=1e-12)
    assert report.zipf_soft.tolist() == [0.5, 0.25, 0.25]
    assert report.zipf_hard.tolist() == [3, 1, 0]
    assert report.codes_used == 2


@pytest.mark.parametrize("cuts", [[10], [3, 7], [1] * 10, [0, 4, 0, 6]], ids=str)
def test_a_code_is_dead_since_its_last_row(cuts):
    rows = torch.tensor([3, 0, -1, 1, 0, 4, -1, 4, 1, 1])
    measure = CodebookUse(6)
    for batch in rows.split(cuts):
        measure.update(batch)
    kept = [row for row in rows.tolist() if row >= 0]
    expected = [len(kept)] * 6
    for place, code in enumerate(kept):
        expected[code] = len(kept) - 1 - place
    assert measure.compute().dead_since.tolist() == expected
    assert expected == [4, 0, 8, 7, 2, 8]


def test_no_rows_have_no_entropy():
    report = CodebookUse(4).compute()
    assert report.entropy_hard == 0.0
    assert report.dead_since.tolist() == [0] * 4
    assert entropy_of(torch.zeros(3)) == 0.0


def test_distinct_codes_by_the_variance_of_all_rows():
    rows = make_rows(50, 3) * 5
    codes = torch.cat([rows[:4], rows[:2], rows[:3] + 1e-5])
    measure = DistinctCodes(3)
    for batch in rows.split(7):
        measure.update(batch)
    assert measure.compute(codes) == 4
    assert DistinctCodes(3).compute(codes) == 7  # without rows, codes that are equal alone


@pytest.mark.bad_input
def test_rows_of_another_dimension_are_refused():
    with pytest.raises(ValueError, match=r"rows must have 3 features; got shape \(5, 2\)"):
        DistinctCodes(3).update(torch.zeros(5, 2))


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("index", "message"),
    [
        (4, "indices must lie in [0, 4), or be -1 where none counts; got values from 0 to 4."),
        (-2, "indices must lie in [0, 4), or be -1 where none counts; got values from -2 to 0."),
    ],
)
def test_indices_out_of_range_are_refused(index, message):
    measure = CodebookUse(4)
    with pytest.raises(ValueError, match=re.escape(message)):
        measure.update(torch.tensor([0, index]))
    assert measure.compute().rows == 0


@pytest.mark.bad_input
@pytest.mark.parametrize("shape", [(3,), (5,), (4, 1)], ids=str)
def test_weights_of_another_shape_are_refused_and_nothing_is_added(shape):
    measure = CodebookUse(4)
    message = f"mean_weights must have one entry for each of 4 codes; got shape {shape}."
    with pytest.raises(ValueError, match=re.escape(message)):
        measure.update(torch.tensor([0, 1]), torch.full(shape, 0.25))
    assert measure.compute().rows == 0


@pytest.mark.bad_input
@pytest.mark.parametrize("num_codes", [0, -1, 2.5, True], ids=str)
def test_a_codebook_of_no_codes_is_refused(num_codes):
    with pytest.raises(ValueError, match="num_codes must be a whole number of at least 1; got"):
        CodebookUse(num_codes)
