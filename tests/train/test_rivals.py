import math

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from train.rivals import GumbelVQ, IndexVQ, StochasticVQ, draw_gumbel, straight_through

KINDS = {"gumbel": GumbelVQ, "sq-vae": StochasticVQ, "ibq": IndexVQ}
K, D, N = 5, 3, 8


def waves(*shape, phase=0.0):
    count = torch.Size(shape).numel()
    return torch.sin(torch.arange(float(count), dtype=torch.float64) * 0.7 + phase).reshape(shape)


def place(make, *, log_variance=0.5, **options):
    """In float64, on codes and weights that a formula gives."""
    vq = make(K, D, steps=10, **options).double()
    with torch.no_grad():
        for place, parameter in enumerate(vq.parameters()):
            if parameter.ndim:
                parameter.copy_(waves(*parameter.shape, phase=place + 1.0))
        if hasattr(vq, "log_variance"):
            vq.log_variance.fill_(log_variance)
    vq.started.fill_(True)
    return vq


def as_map(rows):
    """Rows (N, D) as a map (1, D, N, 1)."""
    return rows.T[None, :, :, None]


def as_rows(latents):
    return latents[0, :, :, 0].T


def softmax(scores):
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def scores_of(vq, rows):
    """From the papers' formulas, in numpy."""
    rows, codes = rows.detach().numpy(), vq.codebook.detach().numpy()
    if isinstance(vq, GumbelVQ):
        return rows @ vq.logits.weight.detach().numpy().T + vq.logits.bias.detach().numpy()
    if isinstance(vq, IndexVQ):
        return rows @ codes.T
    distances = np.array([[sum((r - c) ** 2) for c in codes] for r in rows])
    return -distances / (2 * math.exp(vq.log_variance.item()))


@pytest.fixture(params=KINDS)
def vq(request):
    return place(KINDS[request.param])


def test_eval_decodes_the_code_of_the_highest_score(vq):
    rows = waves(N, D)
    out = vq.eval()(as_map(rows))
    expected = torch.from_numpy(scores_of(vq, rows).argmax(-1))
    assert torch.equal(out.indices[0, :, 0], expected)
    assert torch.equal(as_rows(out.quantized), vq.codebook[expected])
    assert torch.equal(vq.codes(out.indices), out.quantized)
    assert out.loss == 0


def test_passes_that_train_count_and_no_others(vq):
    z = as_map(waves(N, D)).requires_grad_()
    for _ in range(3):
        vq(z)
    with torch.no_grad():
        vq(z)
    vq.eval()(z)
    assert vq.passes == 3


@pytest.mark.parametrize("make", [GumbelVQ, StochasticVQ])
def test_temperature_walks_a_geometric_path_and_stays(make):
    vq = make(K, D, steps=4, temperature_start=1.0, temperature_end=1 / 16)
    found = []
    for _ in range(6):
        found.append(vq.temperature)
        vq(torch.zeros(1, D, 2, 2, requires_grad=True))
    assert found == pytest.approx([1, 1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 16])


def test_gumbel_numbers_choose_as_often_as_the_weights_say():
    torch.manual_seed(0)
    scores = torch.tensor([0.0, 1.0, 2.0, -1.0]).expand(40_000, 4)
    chosen = (scores + draw_gumbel(scores)).argmax(-1)
    share = chosen.bincount(minlength=4) / len(chosen)
    assert_close(share, scores[0].softmax(-1), rtol=0, atol=0.01)  # four deviations


def test_straight_through_is_the_one_hot_vector_with_the_soft_gradient():
    soft = waves(N, K).requires_grad_()
    hard = straight_through(soft, torch.arange(N) % K)
    assert torch.equal(hard, torch.eye(K, dtype=torch.float64)[torch.arange(N) % K])
    (hard * waves(N, K, phase=2.0)).sum().backward()
    assert_close(soft.grad, waves(N, K, phase=2.0), rtol=0, atol=1e-14)


# What training decodes, and its gradient


def test_gumbel_decodes_codes_with_the_gradient_of_the_relaxed_ones():
    vq, rows, upstream = place(GumbelVQ), waves(N, D).requires_grad_(), waves(N, D, phase=2.0)
    vq.passes.fill_(5)
    torch.manual_seed(3)
    noise = draw_gumbel(torch.zeros(N, K, dtype=torch.float64)).numpy()
    torch.manual_seed(3)
    out = vq(as_map(rows))
    scores, codes = scores_of(vq, rows), vq.codebook.detach().numpy()
    temperature = 1.0 * (1 / 16) ** 0.5
    soft = softmax((scores + noise) / temperature)
    assert_close(as_rows(out.quantized), vq.codebook[torch.from_numpy(soft.argmax(-1))])
    (as_rows(out.quantized) * upstream).sum().backward()
    pull = upstream.numpy() @ codes.T
    to_scores = soft * (pull - (soft * pull).sum(-1, keepdims=True)) / temperature
    expected = to_scores @ vq.logits.weight.detach().numpy()
    assert_close(rows.grad, torch.from_numpy(expected), rtol=1e-9, atol=1e-12)


def test_ibq_gives_every_code_the_gradient_of_the_soft_mean():
    vq, rows, upstream = place(IndexVQ), waves(N, D), waves(N, D, phase=2.0)
    out = vq(as_map(rows))
    chosen = torch.from_numpy(scores_of(vq, rows).argmax(-1))
    assert_close(as_rows(out.quantized), vq.codebook[chosen])
    (as_rows(out.quantized) * upstream).sum().backward()
    codes, one_hot = vq.codebook.detach().numpy(), np.eye(K)[chosen.numpy()]
    soft = softmax(rows.numpy() @ codes.T)
    pull = upstream.numpy() @ codes.T
    to_scores = soft * (pull - (soft * pull).sum(-1, keepdims=True))
    expected = one_hot.T @ upstream.numpy() + to_scores.T @ rows.numpy()
    assert_close(vq.codebook.grad, torch.from_numpy(expected), rtol=1e-9, atol=1e-12)
    unchosen = [code for code in range(K) if code not in chosen]
    assert unchosen
    assert vq.codebook.grad[unchosen].abs().min() > 0


def test_sq_vae_decodes_a_relaxed_sample():
    vq, rows = place(StochasticVQ, log_variance=0.0), waves(N, D)
    torch.manual_seed(3)
    noise = draw_gumbel(torch.zeros(N, K, dtype=torch.float64)).numpy()
    torch.manual_seed(3)
    out = vq(as_map(rows))
    weights = softmax(scores_of(vq, rows) + noise)
    expected = torch.from_numpy(weights @ vq.codebook.detach().numpy())
    assert_close(as_rows(out.quantized), expected, rtol=1e-9, atol=1e-12)


# Losses


def test_gumbel_loss_is_the_divergence_from_even_use():
    vq, rows = place(GumbelVQ, kl_weight=0.3), waves(N, D)
    weights = softmax(scores_of(vq, rows))
    expected = 0.3 * np.mean([sum(q * math.log(q * K) for q in row) for row in weights])
    assert vq(as_map(rows)).loss.item() == pytest.approx(expected, rel=1e-9)


def test_sq_vae_loss_is_the_latent_part_of_the_bound():
    vq, rows = place(StochasticVQ, weight=0.3, log_variance=-0.5), waves(N, D)
    out = vq(as_map(rows))
    weights = softmax(scores_of(vq, rows))
    discrete = np.mean([sum(q * math.log(q) for q in row) for row in weights])
    error = (rows - as_rows(out.quantized).detach()).square().sum(-1).mean().item()
    expected = 0.3 * (discrete + error / (2 * math.exp(-0.5)))
    assert out.loss.item() == pytest.approx(expected, rel=1e-9)


def test_sq_vae_starts_on_the_rows_once():
    torch.manual_seed(0)
    vq, rows = StochasticVQ(K, D, steps=10).double(), 100 + 3 * waves(40, D)
    vq(as_map(rows))
    distances = (rows[:, None] - vq.codebook.detach()).square().sum(-1)
    nearest = distances.amin(-1).mean().item()
    assert nearest < 0.7 * rows.var(0).sum().item()
    assert 2 * math.exp(vq.log_variance.item()) == pytest.approx(nearest, rel=1e-6)
    before = vq.codebook.clone()
    vq(as_map(rows - 50))
    assert torch.equal(vq.codebook, before)


def test_sq_vae_learns_its_variance():
    def loss(log_variance):
        torch.manual_seed(3)
        vq = place(StochasticVQ, log_variance=log_variance)
        out = vq(as_map(waves(N, D)))
        return vq, out.loss + out.quantized.square().sum()

    vq, total = loss(0.4)
    total.backward()
    step = 1e-6
    slope = (loss(0.4 + step)[1] - loss(0.4 - step)[1]) / (2 * step)
    assert vq.log_variance.grad.item() == pytest.approx(slope.item(), rel=1e-6)
    assert abs(slope) > 0.01


def test_ibq_loss_is_the_papers():
    vq = place(IndexVQ, commitment=0.3, entropy_weight=0.7, entropy_temperature=0.2)
    rows = waves(N, D)
    scores, codes = scores_of(vq, rows), vq.codebook.detach().numpy()
    error = np.mean((codes[scores.argmax(-1)] - rows.numpy()) ** 2)
    sharp = softmax(scores / 0.2)
    of_a_row = np.mean([-sum(q * math.log(q) for q in row) for row in sharp])
    of_all = -sum(q * math.log(q) for q in sharp.mean(0))
    expected = (2 + 0.3) * error + 0.7 * (of_a_row - of_all)
    assert vq(as_map(rows)).loss.item() == pytest.approx(expected, rel=1e-9)


def test_ibq_stays_finite_where_weights_are_none():
    vq = place(IndexVQ)
    z = as_map(1e4 * waves(N, D)).requires_grad_()
    out = vq(z)
    (out.quantized.sum() + out.loss).backward()
    assert torch.isfinite(z.grad).all()
    assert torch.isfinite(vq.codebook.grad).all()


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (GumbelVQ, {"kl_weight": -1.0}, "kl_weight must be a finite number >= 0; got -1.0."),
        (GumbelVQ, {"temperature_end": 0.0}, "temperature_end must be a finite number > 0; got 0"),
        (StochasticVQ, {"weight": -1.0}, "weight must be a finite number >= 0; got -1.0."),
        (IndexVQ, {"entropy_temperature": 0.0}, "entropy_temperature must be a finite number > 0"),
        (IndexVQ, {"num_codes": 0}, "num_codes must be a whole number of at least 1; got 0."),
    ],
)
def test_what_cannot_be_is_refused(make, options, message):
    with pytest.raises(ValueError, match=message):
        make(**{"num_codes": K, "dim": D, "steps": 10, **options})
