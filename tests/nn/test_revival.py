import pytest
import torch

from softvq.nn.revival import Revival, pick_replacements
from tests.contracts.quantizer import waves


def pick(hits, rows, *, seed=0, **options):
    codebook = waves(len(hits), rows.shape[-1])
    generator = torch.Generator().manual_seed(seed)
    return codebook, pick_replacements(
        codebook, torch.tensor(hits), rows, options=Revival(**options), generator=generator
    )


def test_codes_under_the_threshold_are_replaced_by_rows():
    rows = waves(20, 3, phase=1.0)
    _, revived = pick([1.0, 0.1, 1.0, 0.0], rows, noise=0.0)
    assert sorted(revived.codes.tolist()) == [1, 3]
    assert all((rows == row).all(-1).any() for row in revived.rows)


def test_two_codes_get_two_rows():
    _, revived = pick([1.0, 0.0, 0.0, 0.0], waves(20, 3, phase=1.0), noise=0.0)
    assert len(revived.rows.unique(dim=0)) == 3


def test_threshold_itself_is_alive():
    assert pick([1.0, 0.2], waves(5, 3), threshold=0.2)[1] is None


def test_noise_is_a_share_of_the_deviation():
    rows = torch.cat([waves(2000, 1), 100 * waves(2000, 1, phase=1.0)], -1)
    _, exact = pick([0.0] * 500 + [1.0], rows, noise=0.0)
    _, noisy = pick([0.0] * 500 + [1.0], rows, noise=0.05)
    share = (noisy.rows - exact.rows).std(0) / rows.std(0)
    torch.testing.assert_close(share, torch.full((2,), 0.05), rtol=0.15, atol=0)


def test_donor_is_the_nearest_live_code():
    codebook, revived = pick([1.0, 0.0, 1.0, 0.0, 1.0], waves(30, 3, phase=1.0))
    live = torch.tensor([0, 2, 4])
    nearest = live[torch.cdist(revived.rows, codebook[live]).argmin(-1)]
    assert revived.donors.tolist() == nearest.tolist()


def test_fewer_rows_than_dead_codes_revive_as_many_as_there_are():
    _, revived = pick([1.0, 0.0, 0.0, 0.0, 0.0], waves(2, 3))
    assert len(revived.codes) == len(revived.rows) == len(revived.donors) == 2
    assert len(set(revived.codes.tolist())) == 2


def test_all_dead_are_their_own_donors():
    _, revived = pick([0.0, 0.0], waves(5, 3))
    assert revived.donors.tolist() == revived.codes.tolist()


@pytest.mark.parametrize(
    ("hits", "num_rows"), [([1.0, 1.0], 5), ([0.0, 1.0], 0)], ids=["none dead", "no row"]
)
def test_nothing_to_do_is_none(hits, num_rows):
    assert pick(hits, waves(num_rows, 3))[1] is None


def test_the_generator_decides():
    hits, rows = [0.0] * 4 + [1.0] * 4, waves(50, 3)
    first, same, other = (pick(hits, rows, seed=seed)[1] for seed in (1, 1, 2))
    assert torch.equal(first.rows, same.rows)
    assert not torch.equal(first.rows, other.rows)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"threshold": 1.0}, r"Revival\.threshold must be .*>= 0 and <= 0\.999; got 1\.0"),
        ({"threshold": -0.1}, r"Revival\.threshold must be .* got -0\.1"),
        ({"until": float("nan")}, r"Revival\.until must be .* got nan"),
        ({"noise": -1}, r"Revival\.noise must be a finite number >= 0; got -1"),
    ],
    ids=["threshold-1", "threshold<0", "until", "noise"],
)
def test_bad_options_are_refused(options, match):
    with pytest.raises(ValueError, match=match):
        Revival(**options)
