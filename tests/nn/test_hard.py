from functools import partial

import pytest
import torch

from softvq import HardVQ, Revival
from softvq.nn import Learning
from softvq.nn.hard import rotate
from tests.contracts.quantizer import SHARED_STATS, QuantizerContract, place, start_on, waves

KINDS = {
    f"{estimator}-{codebook}": partial(HardVQ, estimator=estimator, codebook=codebook)
    for estimator in ("ste", "rotation")
    for codebook in ("gradient", "ema")
}


class TestHardVQ(QuantizerContract):
    stats_keys = SHARED_STATS

    @pytest.fixture(params=list(KINDS))
    def make(self, request):
        return KINDS[request.param]


def test_commitment_pulls_the_rows_and_the_codebook_loss_the_codes():
    """Case 5: both terms are 1, so only gradients tell which weight is where."""
    vq = place(
        HardVQ(2, 1, codebook="gradient", learning=Learning(commitment=0.25)),
        torch.tensor([[0.0], [10.0]]),
    )
    z = torch.tensor([[1.0]], requires_grad=True)
    loss = vq(z).loss
    loss.backward()
    assert loss.item() == 1.25
    assert z.grad.item() == 0.5
    assert vq.codebook.grad.flatten().tolist() == [-2.0, 0.0]


def test_codebook_loss_gives_the_encoder_nothing():
    """Case 27f: without commitment no gradient of the loss reaches the rows."""
    vq = place(HardVQ(4, 3, codebook="gradient", learning=Learning(commitment=0.0)), waves(4, 3))
    z = waves(6, 3, phase=1.0).requires_grad_()
    vq(z).loss.backward()
    assert not z.grad.any()
    assert vq.codebook.grad.any()


@pytest.mark.parametrize("codebook", ["gradient", "ema"])
def test_straight_through_passes_the_gradient_unchanged(codebook):
    vq = place(HardVQ(4, 3, codebook=codebook), waves(4, 3))
    z, weight = waves(6, 3, phase=1.0).requires_grad_(), waves(6, 3, phase=2.0)
    (vq(z).quantized * weight).sum().backward()
    assert torch.equal(z.grad, weight)
    assert vq.codebook.grad is None


def test_every_code_that_was_chosen_moves():
    vq = start_on(HardVQ(4, 2, codebook="gradient", revival=None), waves(32, 2))
    optimizer = torch.optim.SGD(vq.parameters(), lr=0.1)
    before, z = vq.codebook.detach().clone(), waves(32, 2, phase=0.3)
    chosen = set()
    for _ in range(20):
        optimizer.zero_grad()
        out = vq(z)
        out.loss.backward()
        optimizer.step()
        chosen |= set(out.indices.tolist())
    moved = (vq.codebook.detach() - before).abs().amax(-1) > 0
    assert set(moved.nonzero().flatten().tolist()) == chosen


def test_averages_follow_the_formula():
    """Case 2 on one process: n <- g n + (1 - g) c, m <- g m + (1 - g) s, e = m / n."""
    vq = make_averages()
    vq(torch.tensor([[-2.0]] * 3 + [[3.0]] * 4 + [[-4.0]]))
    vq.update_()
    torch.testing.assert_close(vq.codebook.flatten(), torch.tensor([-2.2, 2.6]))


def make_averages():
    vq = HardVQ(2, 1, codebook="ema", learning=Learning(decay=0.5), revival=None)
    return place(vq, torch.tensor([[-1.0], [1.0]])).train()


def test_masked_rows_stay_out_of_the_averages():
    vq = HardVQ(1, 1, codebook="ema", learning=Learning(decay=0.5), revival=None)
    place(vq, torch.zeros(1, 1))
    out = vq.train()(
        torch.tensor([[1.0], [1.0], [1.0], [1e6]]), mask=torch.tensor([True] * 3 + [False])
    )
    vq.update_()
    assert out.stats["ols"].item() == 1.0
    assert vq.ema_counts.item() == 2.0  # of 1 and 3
    assert vq.codebook.item() == pytest.approx(1.5 / 2)


def test_averages_keep_small_steps_in_bfloat16():
    """Case 21: 300 steps of 0.001 towards 2; naive bfloat16 stays at 1."""
    vq = HardVQ(1, 1, codebook="ema", learning=Learning(decay=0.999), revival=None)
    place(vq, torch.ones(1, 1))
    vq.to(torch.bfloat16).train()
    z = torch.full((1, 1), 2.0, dtype=torch.bfloat16)
    for _ in range(300):
        vq(z)
        vq.update_()
    assert vq.codebook.item() == pytest.approx(2 - 0.999**300, abs=1e-4)


def test_averaged_codebook_is_no_parameter():
    assert list(HardVQ(4, 2, codebook="ema").parameters()) == []


def test_idle_code_keeps_its_place():
    vq = HardVQ(2, 1, codebook="ema", learning=Learning(decay=0.5), revival=None)
    place(vq, torch.tensor([[0.0], [50.0]]))
    for _ in range(10):
        vq.train()(torch.zeros(8, 1))
        vq.update_()
    assert vq.codebook.flatten().tolist() == [0.0, 50.0]


def test_uniform_start_is_where_it_was_published():
    vq = HardVQ(16, 8, learning=Learning(start="uniform"), codebook="gradient")
    before = vq.codebook.detach().clone()
    start_on(vq, waves(64, 8))
    assert torch.equal(vq.codebook, before)
    assert before.abs().max() <= 1 / 16
    assert vq.is_started


def test_revived_code_has_the_averages_of_one_row():
    vq = HardVQ(2, 1, codebook="ema", revival=Revival(noise=0.0))
    place(vq, torch.tensor([[0.0], [50.0]]))
    vq.updates.fill_(20)
    vq.hits.copy_(torch.tensor([2.0, 0.0]))
    vq.train()(torch.ones(8, 1))
    revived = vq.update_()
    assert revived is not None
    assert revived.codes.tolist() == [1]
    assert vq.codebook[1].item() == 1.0
    assert (vq.ema_counts[1].item(), vq.ema_sums[1].item()) == (1.0, 1.0)


@pytest.mark.parametrize(
    ("row", "code", "expected"),
    [([3.0, 0.0], [0.0, 1.0], [0.0, 1.0]), ([1.0, 0.0], [-1.0, 0.0], [-1.0, 0.0])],
    ids=["square", "antiparallel"],
)
def test_rotation_lands_on_the_code(row, code, expected):
    """Case 7: un-rescaled, the first would be [0, 3]."""
    z = torch.tensor([row], requires_grad=True)
    turned = rotate(z, torch.tensor([code]))
    turned.sum().backward()
    torch.testing.assert_close(turned[0], torch.tensor(expected))
    assert z.grad.isfinite().all()


def test_rotation_is_a_rotation_with_the_ratio_of_norms():
    """Its Jacobian R |p| / |z| times its transpose is the ratio squared; and it takes z to p."""
    row, code = waves(1, 5, dtype=torch.float64), waves(1, 5, phase=1.0, dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(lambda z: rotate(z, code)[0], row)[:, 0]
    ratio = (code.norm() / row.norm()).square()
    torch.testing.assert_close(jacobian @ jacobian.mT, ratio * torch.eye(5, dtype=torch.float64))
    torch.testing.assert_close(jacobian @ row[0], code[0])


@pytest.mark.parametrize(
    ("row", "code"),
    [([0.0, 0.0], [1.0, 2.0]), ([1e-20, 0.0], [1.0, 2.0]), ([1.0, 2.0], [0.0, 0.0])],
    ids=["zero row", "tiny row", "zero code"],
)
def test_rotation_without_a_direction_is_straight_through(row, code):
    z = torch.tensor([row], requires_grad=True)
    rotate(z, torch.tensor([code])).sum().backward()
    assert z.grad.tolist() == [[1.0, 1.0]]


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("options", "match"),
    [
        (
            {"estimator": "stee"},
            "estimator is 'stee'; valid are: ste, rotation. Did you mean 'ste'",
        ),
        ({"codebook": "emma"}, "codebook is 'emma'; valid are: gradient, ema. Did you mean 'ema'"),
    ],
    ids=["estimator", "codebook"],
)
def test_bad_options_of_hard_are_refused(options, match):
    with pytest.raises(ValueError, match=match):
        HardVQ(4, 2, **options)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"start": "k-means"}, r"Learning\.start is 'k-means'; valid are: kmeans, uniform"),
        ({"commitment": -1.0}, r"Learning\.commitment must be a finite number >= 0; got -1\.0"),
        ({"decay": 1.0}, r"Learning\.decay must be .* got 1\.0"),
        ({"decay": float("nan")}, r"Learning\.decay must be .* got nan"),
    ],
    ids=["start", "commitment", "decay", "decay-nan"],
)
def test_bad_learning_is_refused(options, match):
    with pytest.raises(ValueError, match=match):
        Learning(**options)


def test_a_config_from_before_learning_was_a_part_is_read():
    old = HardVQ(4, 2, learning=Learning(decay=0.5, start="uniform")).config()
    old |= old.pop("learning")
    assert HardVQ.from_config(old).learning == Learning(decay=0.5, start="uniform")
