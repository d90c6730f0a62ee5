import itertools
import math
from dataclasses import replace
from functools import partial

import pytest
import torch

from softvq import CodebookWarning, Loss, Revival, SoftVQ, Temperature, quantize_mode
from softvq.export.source import take_codebook
from softvq.models import VQVAE, VQVAEConfig, save_model
from tests.contracts.quantizer import SHARED_STATS, QuantizerContract, place, start_on, waves

# Without noise, so that two passes over the same rows can be compared; tests of the noise set it.
PLAIN = Temperature(gradient=1.0, noise=0.0, warmup_share=0.0, anneal_steps=50)
TWO = Temperature(gradient=2.5)
ONE = replace(PLAIN, gradient=0.8, prototypes=None)
TWO = PLAIN
KINDS = {
    f"{value}-{name}-{grad}": partial(
        SoftVQ, forward_value=value, temperature=temperature, loss=Loss(assignment_grad=grad)
    )
    for value, (name, temperature), grad in itertools.product(
        ("hard", "soft", "blurred"), (("one", ONE), ("two", TWO)), ("fixed", "full")
    )
}
KINDS["warming"] = partial(SoftVQ, temperature=replace(TWO, warmup_share=0.1))


class TestSoftVQ(QuantizerContract):
    stats_keys = SHARED_STATS | {
        "spread",
        "distortion",
        "entropy",
        "temperature",
        "temperature_ratio",
        "perplexity_soft_batch",
        "prototype_temperature",
        "prototype_entropy",
    }

    @pytest.fixture(params=list(KINDS))
    def make(self, request):
        return KINDS[request.param]


def soft_mean(z, codebook, temperature):
    """sum_k q_k p_k from the formula, in float64; and the weights."""
    distances = (z.double()[:, None] - codebook.double()).square().sum(-1)
    weights = torch.softmax(-distances / temperature.double(), -1)
    return weights @ codebook.double(), weights


def absolute(level, **options):
    options = {"warmup_share": 0.0, **options}
    return Temperature(gradient=level, prototypes=level, unit="absolute", **options)


# The forward value and its gradient


@pytest.mark.parametrize("forward_value", ["hard", "soft"])
def test_gradient_is_that_of_the_soft_mean(forward_value):
    options = {"forward_value": forward_value, "temperature": PLAIN}
    vq = start_on(SoftVQ(16, 4, **options), waves(64, 4)).double()
    z = waves(40, 4, phase=1.0, dtype=torch.float64).requires_grad_()
    weight = waves(40, 4, phase=2.0, dtype=torch.float64)
    out = vq(z)
    mean, _ = soft_mean(z, vq.codebook, vq.temperature)
    inputs = (z, vq.codebook)
    actual = torch.autograd.grad((out.quantized * weight).sum(), inputs)
    expected = torch.autograd.grad((mean * weight).sum(), inputs)
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-12)


def test_blurred_training_decodes_around_the_row_with_noise_that_fades():
    options = Temperature(noise=(4.0, 0.25), anneal_steps=8, anneal_share=0.5, warmup_share=0)
    vq = start_on(SoftVQ(16, 4, temperature=options), waves(64, 4))
    z = waves(40, 4, phase=1.0)
    for noise in (2.0, 1.0, 0.5, 0.25, 0.25):  # the start has made one update
        assert vq.schedule.noise.item() == pytest.approx(noise)
        out = vq(z)
        code = vq.codes(out.indices)
        assert (out.quantized - code).abs().max() > 0
        torch.testing.assert_close(
            (out.quantized - z).norm(dim=-1), (code - z).norm(dim=-1), rtol=1e-4, atol=1e-6
        )
        vq.update_()
    assert torch.equal(vq.eval()(z).quantized, vq.codes(vq(z).indices))


def test_blurred_gradient_reaches_rows_and_codes():
    vq = start_on(SoftVQ(16, 4, temperature=PLAIN), waves(64, 4))
    z = waves(40, 4, phase=1.0).requires_grad_()
    vq(z).quantized.square().sum().backward()
    assert z.grad.abs().sum() > 0
    assert vq.codebook.grad.abs().sum() > 0


def test_soft_training_decodes_the_soft_mean():
    vq = start_on(SoftVQ(16, 4, forward_value="soft", temperature=PLAIN), waves(64, 4))
    z = waves(40, 4, phase=1.0)
    mean, _ = soft_mean(z, vq.codebook, vq.temperature)
    torch.testing.assert_close(vq(z).quantized, mean.float())


def test_in_the_warm_up_rows_pass_as_they_are_and_nothing_is_asked_of_the_codes():
    vq = SoftVQ(16, 4, temperature=Temperature(anneal_steps=30))
    z = waves(40, 4, phase=1.0).requires_grad_()
    out = vq(z)
    assert torch.equal(out.quantized, z)
    assert out.loss.item() == 0
    weight = waves(40, 4, phase=2.0)
    ((out.quantized * weight).sum() + out.loss).backward()
    assert torch.equal(z.grad, weight)
    assert vq.codebook.grad is None or not vq.codebook.grad.any()
    nearest = torch.cdist(z.double(), vq.codebook.double()).argmin(-1)
    assert torch.equal(out.indices, nearest)
    assert torch.equal(vq.eval()(z.detach()).quantized, vq.codes(out.indices))


def test_after_the_warm_up_the_codes_are_placed_on_the_rows_of_the_next_pass():
    vq = SoftVQ(16, 4, temperature=Temperature(anneal_steps=30, warmup_share=0.1))
    for step in range(3):
        z = waves(64, 4, phase=float(step)) + 100 * step
        assert torch.equal(vq(z).quantized, z)
        assert vq.schedule.warming
        assert step == 0 or (vq.codebook < 100).all()
        assert not vq.awaits_start
        vq.update_()
    assert vq.awaits_start
    with pytest.warns(CodebookWarning, match="in their warm-up"):
        vq.eval()
    vq(z + 1000)
    assert vq.awaits_start
    z = z + 200
    vq.train()(z)
    assert not vq.awaits_start
    assert not vq.schedule.warming
    low, high = z.amin(0), z.amax(0)
    assert ((vq.codebook >= low) & (vq.codebook <= high)).all()
    assert (vq.hits == 1).all()
    out = vq(z)
    assert not torch.equal(out.quantized, z)
    assert out.loss.item() != 0


def warming_up(updates):
    options = Temperature(anneal_steps=10, warmup_share=0.5)
    vq = SoftVQ(16, 4, temperature=options, layout="channels_first")
    for _ in range(updates):
        vq(waves(2, 4, 8, 8))
        vq.update_()
    return vq


def look_at_hard_codes(vq, path):
    with quantize_mode(vq, "hard"):
        pass


@pytest.mark.parametrize(
    "use",
    [
        lambda vq, path: vq.eval(),
        lambda vq, path: torch.nn.Sequential(vq).eval(),
        look_at_hard_codes,
        lambda vq, path: take_codebook(vq),
        lambda vq, path: save_model(VQVAE(vq, VQVAEConfig(dim=4)), path / "m.safetensors"),
    ],
    ids=["eval", "eval of a model", "mode", "export", "save"],
)
def test_use_of_codes_in_the_warm_up_warns_once(use, tmp_path):
    vq = warming_up(3)
    with pytest.warns(CodebookWarning, match=r"update 3 of 5.*anneal_steps.*takes 50 %"):
        use(vq, tmp_path)
    use(vq, tmp_path)  # a second warning is an error


def test_codes_that_are_frozen_in_the_warm_up_are_not_in_it():
    vq = warming_up(3)
    vq.freeze_()
    vq.eval()


def test_a_config_of_before_there_was_a_unit_has_the_loss_of_then():
    config = SoftVQ(8, 4).config()
    del config["loss"]["unit"], config["loss"]["weight"]
    loss = SoftVQ.from_config(config).loss
    assert (loss.unit, loss.weight) == ("absolute", 0.25)


@pytest.mark.parametrize("updates", [0, 6])
def test_before_and_after_the_warm_up_nothing_warns(updates, tmp_path):
    vq = warming_up(updates)
    with quantize_mode(vq.eval(), "hard"):
        vq(waves(2, 4, 8, 8))
    save_model(VQVAE(vq, VQVAEConfig(dim=4)), tmp_path / "m.safetensors")


def test_no_values_stop_a_run_where_its_warm_up_ends():
    vq = SoftVQ(16, 4, temperature=Temperature(anneal_steps=10, warmup_share=0.1))
    vq(waves(64, 4))
    vq.update_()
    bad = torch.full((64, 4), torch.nan)
    vq(bad)
    assert vq.awaits_start
    bad[:20] = waves(20, 4) + 50
    vq(bad)
    assert not vq.awaits_start
    assert not vq.schedule.warming
    assert (vq.codebook > 40).all()


def test_no_code_is_revived_in_the_warm_up():
    vq = SoftVQ(16, 4, temperature=Temperature(anneal_steps=1000))
    vq(waves(64, 4))
    before = vq.codebook.detach().clone()
    for step in range(30):
        vq(waves(64, 4) + 50 * step)
        assert vq.update_() is None
    assert torch.equal(vq.codebook, before)


def test_a_mode_that_is_asked_for_holds_in_the_warm_up_too():
    vq = SoftVQ(16, 4, temperature=Temperature(anneal_steps=30))
    z = waves(40, 4)
    vq(z)
    for mode in ("soft", "hard"):
        with quantize_mode(vq, mode):
            assert not torch.equal(vq(z).quantized, z)


@pytest.mark.parametrize("saved", [1, 2])
def test_a_warm_up_goes_on_where_a_saved_one_stood(saved):
    schedule = Temperature(anneal_steps=30, warmup_share=0.1)
    vq, other = (SoftVQ(16, 4, temperature=schedule) for _ in range(2))
    for step in range(4):
        vq(waves(64, 4, phase=float(step)))
        vq.update_()
        if step == saved:
            other.load_state_dict(vq.state_dict())
    for step in range(saved + 1, 4):
        assert other.awaits_start == (step == 3)
        other(waves(64, 4, phase=float(step)))
        other.update_()
    assert torch.equal(other.codebook, vq.codebook)


@pytest.mark.parametrize(
    ("level", "expected"), [(1.0, 0.19738), (0.5, 0.37995), (0.1, 0.96403), (0.01, 1.0)]
)
def test_soft_and_hard_values_at_known_temperatures(level, expected):
    """Case 7: two codes at -1 and 1, a row at 0.1."""
    vq = place(
        SoftVQ(2, 1, temperature=absolute(level), forward_value="soft"),
        torch.tensor([[-1.0], [1.0]]),
    ).train()
    z = torch.tensor([[0.1]])
    assert vq(z).quantized.item() == pytest.approx(expected, abs=1e-5)
    assert vq.eval()(z).quantized.item() == 1.0


def test_gradient_path_and_prototypes_have_their_own_temperature():
    vq = start_on(SoftVQ(32, 4, temperature=TWO), waves(512, 4))
    stats = vq(waves(200, 4, phase=1.0)).stats
    assert stats["temperature"] > 2 * stats["prototype_temperature"]
    assert stats["entropy"] > 2 * stats["prototype_entropy"]


def test_one_temperature_serves_both():
    vq = start_on(SoftVQ(32, 4, temperature=ONE), waves(512, 4))
    stats = vq(waves(200, 4, phase=1.0)).stats
    assert stats["temperature"] == stats["prototype_temperature"]
    assert stats["entropy"] == stats["prototype_entropy"]
    assert vq.schedule.levels.shape == (1,)


def test_the_gradient_of_the_soft_mean_has_a_higher_temperature_of_its_own_by_default():
    assert SoftVQ(32, 4, forward_value="hard").schedule.options.targets(0) == [2.5, 0.3]
    for value in ("blurred", "soft"):
        assert SoftVQ(32, 4, forward_value=value).schedule.options.targets(0) == [0.3]


# The loss


@pytest.mark.parametrize("rows", [40, 64, 100])  # under, at and over four rows a code
@pytest.mark.parametrize("unit", ["variance", "absolute"])
@pytest.mark.parametrize("grad", ["fixed", "full"])
def test_loss_is_its_formula(grad, unit, rows):
    loss = Loss(weight=0.7, beta=0.3, use_entropy=0.05, assignment_grad=grad, unit=unit)
    vq = start_on(SoftVQ(16, 4, loss=loss, temperature=TWO), waves(64, 4)).double()
    z = waves(rows, 4, phase=1.0, dtype=torch.float64)
    gradient, prototypes = vq.schedule.levels
    distances = (z[:, None] - vq.codebook).square().sum(-1)
    free_energy = -prototypes * torch.logsumexp(-distances / prototypes, -1)
    _, settled = soft_mean(z, vq.codebook, prototypes)
    use = soft_mean(z, vq.codebook, gradient)[1].mean(0)
    energy = 1.3 * free_energy if grad == "fixed" else (settled * distances).sum(-1)
    evened = 0.05 * min(1, rows / 64) * torch.special.entr(use).sum()
    started = waves(64, 4).double()
    scale = 4 if unit == "absolute" else started.var(0, unbiased=False).sum()
    expected = 0.7 * energy.mean() / scale - evened
    # The running variance is float32.
    tolerance = {"rtol": 1e-10 if unit == "absolute" else 1e-6, "atol": 1e-12}
    torch.testing.assert_close(vq(z).loss, expected, **tolerance)
    padded, mask = torch.cat([z, z[:7]]), torch.arange(rows + 7) < rows
    torch.testing.assert_close(vq(padded, mask=mask).loss, expected, **tolerance)


@pytest.mark.parametrize("grad", ["fixed", "full"])
@pytest.mark.parametrize("scale", [1e-3, 1e3])
def test_vectors_of_any_scale_are_pulled_alike(scale, grad):
    """The loss is the same, and so its gradient but for the unit of the vectors."""

    def pulled(factor):
        vq = start_on(SoftVQ(16, 4, loss=Loss(assignment_grad=grad)), factor * waves(64, 4))
        z = (factor * waves(40, 4, phase=1.0)).requires_grad_()
        loss = vq(z).loss
        loss.backward()
        return loss, factor * z.grad, factor * vq.codebook.grad

    torch.testing.assert_close(pulled(scale), pulled(1.0), rtol=0.02, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.filterwarnings("ignore:The temperature hit a bound")
@pytest.mark.parametrize("level", [0.0, 0.37, 40.0])
@pytest.mark.parametrize("unit", ["nats", "variance", "nearest", "absolute"])
def test_rows_that_are_equal_pull_within_bounds(unit, level, dtype):
    """They have no variance, and what rounding makes of them is none."""
    z = (level * (1 + torch.arange(4.0)).expand(64, 4)).to(dtype)
    options = Temperature(prototypes=0.3, unit=unit, warmup_share=0.0)
    vq = SoftVQ(8, 4, temperature=options, revival=None).to(dtype)
    for rows in (z, z[:1]):
        rows = rows.clone().requires_grad_()
        out = vq(rows)
        out.loss.backward()
        assert out.loss.abs() <= 0.1
        for grad in (rows.grad, vq.codebook.grad):
            assert grad.isfinite().all()
            assert grad.abs().max() < 1e7  # whose square Adam holds
        vq.codebook.grad = None


def test_codes_far_from_all_rows_pull_no_more_than_the_weight():
    loss = Loss(weight=0.7, use_entropy=0.0)
    vq = start_on(SoftVQ(16, 4, loss=loss, temperature=PLAIN), waves(64, 4))
    z = (waves(40, 4) + 1e4).requires_grad_()
    out = vq(z)
    out.loss.backward()
    assert out.loss.item() == pytest.approx(0.7, rel=1e-5)
    assert z.grad.abs().max() < 1e-4


@pytest.mark.parametrize("grad", ["fixed", "full"])
def test_gradient_of_the_loss_holds_the_weights_or_goes_through_them(grad):
    """Theory 2: w [F(sg z, P) + beta F(z, sg P)] / D, or w L_q / D through the weights."""
    loss = Loss(weight=0.7, beta=0.3, use_entropy=0, assignment_grad=grad, unit="absolute")
    vq = start_on(SoftVQ(16, 4, loss=loss), waves(64, 4)).double()
    z = waves(40, 4, phase=1.0, dtype=torch.float64).requires_grad_()
    actual = torch.autograd.grad(vq(z).loss, (z, vq.codebook))
    mean, weights = soft_mean(z, vq.codebook, vq.schedule.levels[-1])
    distances = (z[:, None] - vq.codebook).square().sum(-1)
    if grad == "full":
        total = 0.7 * (weights * distances).sum(-1).mean() / 4
        expected = torch.autograd.grad(total, (z, vq.codebook))
    else:
        pull = 2 * (weights.sum(0)[:, None] * vq.codebook - weights.T @ z)
        expected = (0.7 * 0.3 * 2 * (z - mean) / 160, 0.7 * pull / 160)
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-12)


def test_stats_are_their_formulas():
    vq = start_on(SoftVQ(16, 4, forward_value="soft", temperature=PLAIN), waves(64, 4))
    z = waves(40, 4, phase=1.0)
    stats = vq(z).stats
    mean, weights = soft_mean(z, vq.codebook, vq.temperature)
    distances = (z.double()[:, None] - vq.codebook.double()).square().sum(-1)
    use = weights.mean(0)
    expected = {
        "ols": (z.double() - mean).square().sum(-1).mean(),
        "distortion": (weights * distances).sum(-1).mean(),
        "entropy": torch.special.entr(weights).sum(-1).mean(),
        "perplexity_soft_batch": torch.special.entr(use).sum().exp(),
        "temperature_ratio": vq.temperature / vq.schedule.critical,
    }
    actual = {name: stats[name].double() for name in expected}
    torch.testing.assert_close(
        actual, {k: v.double() for k, v in expected.items()}, rtol=1e-5, atol=1e-6
    )
    torch.testing.assert_close(stats["ols"] + stats["spread"], stats["distortion"])


def test_identical_codes_look_full_to_the_soft_figure_alone():
    """Case 6 and the trap of theory 4: soft perplexity K, hard perplexity 1."""
    vq = place(SoftVQ(8, 2), torch.zeros(8, 2)).eval()
    stats = vq(waves(50, 2)).stats
    assert stats["perplexity_soft_batch"].item() == pytest.approx(8)
    assert stats["perplexity_hard_batch"].item() == pytest.approx(1)


# The start


@pytest.mark.parametrize("temperature", [ONE, TWO], ids=["one", "two"])
def test_start_meets_the_target_entropies(temperature):
    vq = SoftVQ(256, 4, temperature=temperature)
    z = waves(2048, 4)
    vq.start_(z)
    entropies = [
        torch.special.entr(soft_mean(z, vq.codebook.detach(), level)[1]).sum(-1).mean().item()
        for level in vq.schedule.levels
    ]
    assert entropies == pytest.approx(temperature.targets(0), rel=0.05)


def test_start_is_k_means():
    centres = 10 * waves(4, 3)
    z = (centres[:, None] + 0.1 * waves(4, 50, 3)).reshape(-1, 3)
    vq = SoftVQ(4, 3)
    vq.start_(z)
    cell = torch.cdist(z, vq.codebook.detach()).argmin(-1)
    means = torch.stack([z[cell == code].mean(0) for code in range(4)])
    torch.testing.assert_close(vq.codebook.detach(), means)


def test_first_training_pass_starts_by_itself():
    explicit, implicit = SoftVQ(16, 4), SoftVQ(16, 4)
    z = waves(64, 4)
    explicit.start_(z)
    implicit.train()(z)
    assert torch.equal(explicit.codebook, implicit.codebook)
    assert torch.equal(explicit.schedule.levels, implicit.schedule.levels)


def test_evaluation_first_changes_nothing_of_the_start():
    """Lightning's sanity check runs validation before training."""
    plain, checked = SoftVQ(16, 4), SoftVQ(16, 4)
    checked.eval()(waves(32, 4, phase=9.0))
    z = waves(64, 4)
    assert torch.equal(plain.train()(z).quantized, checked.train()(z).quantized)


def test_fewer_rows_than_codes_start_apart():
    vq = SoftVQ(16, 4)
    vq.start_(waves(5, 4))
    assert len(vq.codebook.detach().unique(dim=0)) == 16
    assert vq.train()(waves(5, 4)).loss.isfinite()


def test_the_seed_decides_the_start():
    first, same, other = (SoftVQ(16, 4, seed=seed) for seed in (1, 1, 2))
    for vq in (first, same, other):
        vq.start_(waves(300, 4))
    assert torch.equal(first.codebook, same.codebook)
    assert not torch.equal(first.codebook, other.codebook)


@pytest.mark.filterwarnings("ignore:The temperature hit a bound:UserWarning")
@pytest.mark.parametrize("unit", ["nats", "critical", "nearest", "absolute"])
@pytest.mark.parametrize("value", [0.0, 1.0, 1e15], ids=["zeros", "equal rows", "huge"])
def test_rows_without_a_scale_give_a_temperature_all_the_same(unit, value):
    z = waves(20, 4) * value if value == 1e15 else torch.full((20, 4), value)
    vq = start_on(SoftVQ(4, 4, temperature=Temperature(unit=unit)), z)
    vq(z)
    assert vq.schedule.levels.isfinite().all()
    assert (vq.schedule.levels > 0).all()


# Few codes


@pytest.mark.parametrize("forward_value", ["hard", "soft"])
def test_a_single_code_trains(forward_value):
    vq = SoftVQ(1, 4, forward_value=forward_value)
    z = waves(30, 4).requires_grad_()
    for _ in range(3):
        out = vq(z)
        (out.loss + out.quantized.sum()).backward()
        vq.update_()
    assert out.indices.unique().tolist() == [0]
    assert out.stats["entropy"].item() == 0
    assert z.grad.isfinite().all()


def test_two_codes_get_half_of_their_entropy():
    """A target above 0.5 log K is held under it."""
    vq = SoftVQ(2, 4, temperature=TWO)
    z = waves(200, 4)
    vq.start_(z)
    assert vq.train()(z).stats["entropy"].item() == pytest.approx(0.5 * math.log(2), rel=0.03)


# Updates


def test_update_walks_the_schedule_and_stays_at_its_end():
    temperature = Temperature(
        gradient=(4.0, 1.0), prototypes=0.5, unit="absolute", anneal_steps=10, warmup_share=0.0
    )
    vq, levels = SoftVQ(8, 4, temperature=temperature, revival=None), []
    for _ in range(12):
        start_on(vq, waves(40, 4))
        levels.append(vq.temperature.item())
    assert levels == sorted(levels, reverse=True)
    assert levels[0] == pytest.approx(4 * 0.25 ** (1 / 7))
    assert levels[6:] == [1.0] * 6


def test_forward_passes_alone_leave_the_schedule():
    vq = start_on(SoftVQ(8, 4), waves(40, 4))
    for _ in range(5):
        vq(waves(40, 4))
    assert vq.updates.item() == 1


@pytest.mark.parametrize("unit", ["nats", "critical", "nearest"])
def test_temperature_follows_the_scale_of_the_data(unit):
    """(z, P, T) -> (a z, a P, a^2 T) changes nothing."""
    small, large = (
        start_on(
            SoftVQ(16, 4, temperature=Temperature(gradient=0.5, unit=unit)), scale * waves(300, 4)
        )
        for scale in (1.0, 100.0)
    )
    ratio = large.schedule.levels / small.schedule.levels
    torch.testing.assert_close(ratio, torch.full((2,), 1e4), rtol=1e-2, atol=0)


def test_annealing_closes_the_gap_between_soft_and_hard():
    """Case 7: at the end the hard error is at most 1.05 of the soft one."""
    temperature = Temperature(gradient=(1.0, 0.02), prototypes=None, anneal_steps=60)
    vq, z = SoftVQ(16, 4, temperature=temperature, forward_value="soft"), waves(300, 4)
    optimizer = torch.optim.Adam(vq.parameters(), lr=1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        out = vq(z)
        ((out.quantized - z).square().mean() + out.loss).backward()
        optimizer.step()
        vq.update_()
    soft = (vq(z).quantized - z).square().mean()
    hard = (vq.eval()(z).quantized - z).square().mean()
    assert hard <= 1.05 * soft


# Revival


def make_dead(**options):
    """Four codes, the last of them far away from everything, and due for revival."""
    codes = torch.tensor([[-1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [90.0, 90.0]])
    options.setdefault("temperature", Temperature(gradient=0.3))
    vq = place(SoftVQ(4, 2, **options), codes).train()
    vq.updates.fill_(20)
    vq.hits.copy_(torch.tensor([1.3, 1.3, 1.3, 0.0]))
    return vq


def test_dead_code_is_put_among_the_rows():
    vq = make_dead(revival=Revival(noise=0.0))
    z = waves(60, 2)
    vq(z)
    revived = vq.update_()
    assert revived is not None
    assert revived.codes.tolist() == [3]
    assert (z == vq.codebook[3]).all(-1).any()
    assert vq.hits[3] > 0.2


@pytest.mark.parametrize(("updates", "is_revived"), [(44, True), (45, False)])
def test_revival_ends_before_the_run_does(updates, is_revived):
    """Of 50 steps 0.9 are 45."""
    vq = make_dead(temperature=Temperature(anneal_steps=50), revival=Revival(until=0.9))
    vq.updates.fill_(updates)
    vq(waves(60, 2))
    assert (vq.update_() is not None) is is_revived


@pytest.mark.parametrize("revival", [None, Revival(threshold=0.0)], ids=["none", "threshold-0"])
def test_no_revival_where_none_is_wanted(revival):
    vq = make_dead(revival=revival)
    vq(waves(60, 2))
    assert vq.update_() is None
    assert vq.codebook[3].tolist() == [90.0, 90.0]


def test_a_young_run_revives_nothing():
    vq = make_dead()
    vq.updates.fill_(9)
    vq(waves(60, 2))
    assert vq.update_() is None


def test_masked_rows_are_no_candidates():
    vq = make_dead(revival=Revival(noise=0.0))
    z, mask = waves(60, 2), torch.arange(60) < 3
    z[~mask] = 500.0
    vq(z, mask=mask)
    vq.update_()
    assert vq.codebook.abs().max() < 3


def test_the_seed_decides_revival():
    first, same, other = (make_dead(seed=seed) for seed in (1, 1, 2))
    for vq in (first, same, other):
        vq(waves(60, 2))
        vq.update_()
    assert torch.equal(first.codebook, same.codebook)
    assert not torch.equal(first.codebook[3], other.codebook[3])


def test_reviving_fills_the_codebook():
    """Codes start on one of two clouds; the other one appears later."""
    vq = SoftVQ(16, 2, temperature=Temperature(anneal_steps=100))
    near, far = 0.1 * waves(64, 2), 0.1 * waves(64, 2, phase=3.0) + 9
    start_on(vq, near)
    for _ in range(60):
        start_on(vq, torch.cat([near, far]))
    assert vq(torch.cat([near, far])).stats["use_hard_batch"] == 1


# Modes


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_mode_decides_what_is_decoded(training):
    vq = start_on(SoftVQ(16, 4), waves(64, 4)).train(training)
    z = waves(40, 4, phase=1.0)
    with quantize_mode(vq, "soft"):
        soft = vq(z).quantized
    with quantize_mode(vq, "hard"):
        hard = vq(z)
    torch.testing.assert_close(soft, soft_mean(z, vq.codebook, vq.temperature)[0].float())
    assert torch.equal(hard.quantized, vq.codes(hard.indices))


# Bad input


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("options", "match"),
    [
        (
            {"forward_value": "softt"},
            "forward_value is 'softt'; valid are: blurred, hard, soft. Did you mean",
        ),
        ({"layout": "last"}, "layout is 'last'; valid are: channels_last, channels_first"),
    ],
    ids=["forward_value", "layout"],
)
def test_bad_options_of_soft_are_refused(options, match):
    with pytest.raises(ValueError, match=match):
        SoftVQ(4, 2, **options)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"weight": -0.1}, r"Loss\.weight must be a finite number >= 0; got -0\.1"),
        ({"beta": math.nan}, r"Loss\.beta must be .* got nan"),
        ({"use_entropy": math.inf}, r"Loss\.use_entropy must be .* got inf"),
        ({"assignment_grad": "half"}, r"Loss\.assignment_grad is 'half'; valid are: fixed, full"),
    ],
    ids=["weight", "beta", "use_entropy", "assignment_grad"],
)
def test_bad_weights_of_the_loss_are_refused(options, match):
    with pytest.raises(ValueError, match=match):
        Loss(**options)
