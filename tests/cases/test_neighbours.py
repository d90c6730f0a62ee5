"""Part 2: the neighbours of the cases, over shapes, dtypes, layouts, masks, scales, T, K, settings.

B batch, N rows, D features, K codes. Values come from formulas or from seeds that the examples
hold, so that a failure is small and repeats. 200 examples a contract; `make fuzz` takes as many as
an hour allows.
"""

import copy
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from softvq import HardVQ, Loss, Revival, SoftVQ, Temperature
from softvq.functional import nearest_code, soft_assign
from softvq.functional.ema import CodebookAverages, codes_from_averages, update_averages
from softvq.functional.schedules import geometric_path
from softvq.measures import CodebookUse
from softvq.nn import Learning
from softvq.nn.revival import pick_replacements
from tests.contracts.quantizer import SHAPES, snapshot, waves
from tests.nn.members import MEMBERS

EXAMPLES = settings(max_examples=max(200, settings().max_examples))
FEWER = settings(max_examples=max(50, settings().max_examples))
pytestmark = [
    pytest.mark.filterwarnings("ignore:The temperature hit a bound:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*eval mode:UserWarning"),
    pytest.mark.filterwarnings("ignore::softvq.CodebookWarning"),
]

POWERS = st.floats(-4, 4).map(lambda power: 10.0**power)
DTYPES = st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16])
PHASES = st.integers(0, 1000).map(float)


def make_quantizer(draw, dim):
    """A fresh SoftVQ or HardVQ with settings of any kind.

    No strategy, in which the run-time shape checks would draw random numbers of their own.
    """
    num_codes, seed = draw(st.integers(1, 20)), draw(st.integers(0, 5))
    revival = draw(st.sampled_from([None, Revival(), Revival(threshold=0.999, noise=0.5)]))
    rest = {"revival": revival, "seed": seed, "layout": draw(st.sampled_from(LAYOUTS))}
    if draw(st.booleans()):
        learning = Learning(
            commitment=draw(st.sampled_from([0.0, 0.25, 2.0])),
            decay=draw(st.sampled_from([0.0, 0.9, 0.999])),
            start=draw(st.sampled_from(["kmeans", "uniform"])),
        )
        return HardVQ(
            num_codes,
            dim,
            estimator=draw(st.sampled_from(["ste", "rotation"])),
            codebook=draw(st.sampled_from(["gradient", "ema"])),
            learning=learning,
            **rest,
        )
    gradient = draw(st.sampled_from([None, 0.05, 0.5, 2.5, (3.0, 0.01)]))
    others = [0.1, (0.3, 0.1)] if gradient is None else [None, 0.1, (0.3, 0.1)]
    temperature = Temperature(
        gradient=gradient,
        prototypes=draw(st.sampled_from(others)),
        noise=draw(st.sampled_from([0, 0.5, (6.0, 0.5)])),
        anneal_steps=draw(st.integers(1, 20)),
        warmup_share=draw(st.sampled_from([0.0, 0.3])),
        unit=draw(st.sampled_from(["nats", "critical", "variance", "nearest", "absolute"])),
    )
    loss = Loss(
        use_entropy=draw(st.sampled_from([0.0, 0.1])),
        orthogonality=draw(st.sampled_from([0.0, 0.1])),
        assignment_grad=draw(st.sampled_from(["fixed", "full"])),
        unit=draw(st.sampled_from(["variance", "absolute"])),
    )
    value = draw(st.sampled_from(["blurred", "hard", "soft"]))
    return SoftVQ(num_codes, dim, temperature=temperature, loss=loss, forward_value=value, **rest)


LAYOUTS = ["channels_last", "channels_first"]


@st.composite
def inputs(draw, dim, layout, *, least=0, dtypes=DTYPES):
    """Rows in a layout of axes and of memory, and a mask or none."""
    positions = draw(st.lists(st.integers(least, 4), min_size=1, max_size=3))
    first = layout == "channels_first"
    shape = [positions[0], dim, *positions[1:]] if first else [*positions, dim]
    z = draw(st.sampled_from([1e-3, 1.0, 100.0])) * (
        waves(*shape, phase=draw(PHASES)) + draw(st.sampled_from([0.0, 5.0]))
    )
    z = z.to(draw(dtypes))
    how = draw(st.sampled_from(["plain", "turned", "wide", "channels last"]))
    if how == "turned":
        z = z.transpose(0, -1).contiguous().transpose(0, -1)
    elif how == "wide":
        z = torch.stack([z, torch.full_like(z, torch.nan)], -1)[..., 0]
    elif how == "channels last" and z.ndim == 4:
        z = z.contiguous(memory_format=torch.channels_last)
    if not draw(st.booleans()):
        return z, None
    count = math.prod(positions)
    kept = draw(st.lists(st.booleans(), min_size=count, max_size=count))
    return z, torch.tensor(kept, dtype=torch.bool).reshape(positions)


def dropped(values, mask, layout):
    """What lies at the masked positions, as rows."""
    moved = values.movedim(1, -1) if layout == "channels_first" else values
    return moved[~mask]


@EXAMPLES
@given(st.data())
def test_eval_gives_the_code_of_its_index_and_changes_nothing(data):
    """Kinds 1, 9, 10, 18, 26."""
    dim = data.draw(st.integers(1, 5))
    vq = make_quantizer(data.draw, dim).eval()
    z, mask = data.draw(inputs(dim, vq.layout))
    given_, before = z.clone(), snapshot(vq)
    out = vq(z, mask=mask)
    assert out.quantized.shape == z.shape
    assert out.quantized.dtype == z.dtype
    assert torch.equal(vq.codes(out.indices, mask=mask).to(z.dtype), out.quantized)
    assert out.loss.isfinite()
    assert torch.equal(z, given_)
    after = vq.state_dict()
    assert [
        k for k in before if not torch.equal(after[k].nan_to_num(7), before[k].nan_to_num(7))
    ] == []
    assert (out.indices < vq.num_codes).all()
    assert torch.equal(
        out.indices < 0, torch.zeros_like(out.indices, dtype=torch.bool) if mask is None else ~mask
    )


@EXAMPLES
@given(st.data())
def test_training_is_finite_and_masked_rows_are_nowhere(data):
    """Kinds 4, 15, 17, 18: two steps, the second with junk at the masked positions."""
    dim = data.draw(st.integers(1, 5))
    vq = make_quantizer(data.draw, dim)
    z, mask = data.draw(inputs(dim, vq.layout, least=1))
    if mask is None or not mask.any():
        mask = torch.ones_like(mask) if mask is not None else None
    twin = copy.deepcopy(vq)
    results = []
    for each, junk in ((vq, 0.0), (twin, data.draw(st.sampled_from([torch.nan, torch.inf, 1e4])))):
        fed = z
        if mask is not None:
            keep = mask.unsqueeze(1 if vq.layout == "channels_first" else -1)
            fed = torch.where(keep, z, torch.tensor(junk, dtype=z.dtype))
        for _ in range(2):
            leaf = fed.detach().clone().requires_grad_()
            each.zero_grad()
            out = each.train()(leaf, mask=mask)
            (out.quantized.float().square().mean() + out.loss).backward()
            each.update_()
        results.append((out, leaf.grad, snapshot(each)))
    (out, grad, state), (spoilt, spoilt_grad, spoilt_state) = results
    assert out.loss.isfinite()
    assert grad.isfinite().all()
    assert all(p.grad is None or p.grad.isfinite().all() for p in vq.parameters())
    assert all(value.isfinite() for value in out.stats.values())
    assert int(vq.updates) == 2
    assert torch.equal(spoilt.quantized, out.quantized)
    assert torch.equal(spoilt.loss, out.loss)
    assert torch.equal(spoilt_grad, grad)
    assert [k for k in state if not torch.equal(spoilt_state[k], state[k])] == []
    assert all(v.isfinite().all() for v in state.values())
    if mask is not None:
        assert not dropped(out.quantized, mask, vq.layout).any()
        assert not dropped(grad, mask, vq.layout).any()


@EXAMPLES
@given(
    st.integers(0, 12),
    st.integers(1, 40),
    st.integers(1, 6),
    st.floats(-37, 37),
    POWERS,
    POWERS,
    PHASES,
)
def test_assignment_keeps_its_bounds(num_rows, num_codes, dim, power, scale, offset, phase):
    """Kinds 4, 15, 16: any T that float32 holds, any scale, any offset that leaves digits."""
    temperature = 10.0**power
    offset = min(offset, 1e3 * scale)
    z = scale * waves(num_rows, dim, phase=phase) + offset
    codebook = scale * waves(num_codes, dim, phase=phase + 0.5) + offset
    out = soft_assign(z, codebook, temperature=temperature)
    assert all(
        each.isfinite().all() for each in (out.mean, out.spread, out.entropy, out.free_energy)
    )
    assert (out.spread >= 0).all()
    assert ((out.entropy >= 0) & (out.entropy <= math.log(num_codes) + 1e-4)).all()
    slack = 1e-5 * (scale + offset)
    low, high = codebook.min(0).values - slack, codebook.max(0).values + slack
    assert ((out.mean >= low) & (out.mean <= high)).all()
    distances = (z[:, None].double() - codebook.double()).square().sum(-1)
    chosen = distances.gather(1, out.indices[:, None])[:, 0]
    # The centred product rounds: of codes as near as rounding either will do.
    tolerance = 1e-5 * distances.amax() if num_rows else 0
    assert (chosen <= distances.amin(1) + tolerance).all()
    assert torch.equal(out.indices, nearest_code(z, codebook))


@EXAMPLES
@given(st.lists(st.lists(st.integers(0, 5), max_size=8), max_size=5), st.integers(6, 9))
def test_use_over_batches_is_that_of_the_whole(batches, num_codes):
    """Kind 6: against counting in NumPy."""
    use = CodebookUse(num_codes)
    for each in batches:
        use.update(torch.tensor(each, dtype=torch.int64))
    every = np.array([code for each in batches for code in each], dtype=np.int64)
    counts = np.bincount(every, minlength=num_codes)
    report = use.compute()
    if len(every) == 0:
        return
    shares = counts[counts > 0] / counts.sum()
    perplexity = np.exp(-(shares * np.log(shares)).sum())
    assert report.perplexity_hard == pytest.approx(perplexity, rel=1e-5)
    assert report.use_hard == pytest.approx((counts > 0).mean())


@EXAMPLES
@given(
    st.lists(st.tuples(st.integers(0, 9), st.floats(-9, 9)), min_size=1, max_size=30),
    st.sampled_from([0.0, 0.5, 0.9, 0.999]),
)
def test_averages_are_those_of_a_loop(steps, decay):
    """Kinds 2, 21: one code, any counts and values, in float64 beside it."""
    averages = CodebookAverages(torch.ones(1), torch.zeros(1, 1))
    n, m = 1.0, 0.0
    for count, value in steps:
        averages = update_averages(
            averages,
            counts=torch.tensor([float(count)]),
            sums=torch.tensor([[count * value]]),
            decay=decay,
        )
        after = decay * n + (1 - decay) * count
        if not (after < 1e-5 and count == 0):  # an idle code stays where it is
            n, m = after, decay * m + (1 - decay) * count * value
    assert codes_from_averages(averages).item() == pytest.approx(m / n, rel=1e-4, abs=1e-4)


@EXAMPLES
@given(POWERS, POWERS, st.floats(0, 3))
def test_a_path_stays_between_its_ends_and_ends_at_its_end(start, end, position):
    """Kind 15: exactly, past the end too."""
    value = geometric_path(start, end, position=position)
    slack = 1 + 1e-9
    assert min(start, end) / slack <= value <= max(start, end) * slack
    if position >= 1:
        assert value == end
    if position == 0:
        assert value == pytest.approx(start, rel=1e-12)


@EXAMPLES
@given(
    st.lists(st.floats(0, 3), min_size=1, max_size=12),
    st.integers(0, 10),
    st.floats(0.01, 0.999),
    st.integers(0, 99),
)
def test_revival_puts_dead_codes_and_no_others_among_the_rows(hits, num_rows, threshold, seed):
    """Kinds 2, 5: rows are used once, donors are alive, as many as there are."""
    hits = torch.tensor(hits, dtype=torch.float32)
    rows, codebook = waves(num_rows, 3, phase=seed), waves(len(hits), 3, phase=seed + 0.5)
    options = Revival(threshold=threshold, noise=0.0)
    generator = torch.Generator().manual_seed(seed)
    out = pick_replacements(codebook, hits, rows, options=options, generator=generator)
    dead = (hits < threshold).nonzero().flatten().tolist()
    if out is None:
        assert not dead or not num_rows
        return
    assert len(out.codes) == min(len(dead), num_rows)
    assert len(set(out.codes.tolist())) == len(out.codes)
    assert set(out.codes.tolist()) <= set(dead)
    taken = (out.rows[:, None] == rows).all(-1).nonzero()[:, 1].tolist()
    assert len(set(taken)) == len(out.codes)
    alive = set(range(len(hits))) - set(dead)
    assert set(out.donors.tolist()) <= (alive or set(dead))


@FEWER
@given(st.sampled_from(sorted(MEMBERS)), st.sampled_from(sorted(SHAPES)), PHASES, st.booleans())
def test_every_member_gives_the_code_of_its_indices(name, shape, phase, masked):
    """Kinds 1, 10, 18 for parts that hold many codebooks."""
    layout, sizes = SHAPES[shape]
    vq = MEMBERS[name](layout=layout)
    z = waves(*sizes, phase=phase)
    positions = list(sizes)
    del positions[1 if layout == "channels_first" else -1]
    mask = waves(*positions, phase=phase + 1) > -0.5 if masked else None
    if mask is None or mask.any():
        vq(z, mask=mask)
        vq.update_()
    out = vq.eval()(z, mask=mask)
    assert torch.equal(vq.codes(out.indices, mask=mask), out.quantized)
    assert out.quantized.isfinite().all()
    assert out.loss.isfinite()


# What examples found: kept.


@pytest.mark.parametrize("num_codes", [1, 2])
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_one_row_or_one_code_has_finite_stats(num_codes, training):
    """One row has no variance, one code none either: T / T_c was infinite, or NaN."""
    vq = SoftVQ(num_codes, 1, temperature=Temperature(warmup_share=0.0)).train(training)
    z = torch.tensor([[4e-4]])
    for _ in range(2):
        out = vq(z)
        vq.update_()
        assert {k: v.item() for k, v in out.stats.items() if not v.isfinite()} == {}


@pytest.mark.parametrize("scale", [4e-4, 1e-3, 1.0, 100.0])
def test_gradient_to_float16_is_finite_where_every_row_is_a_code(scale):
    """No spacing, T of 1e-31: the gradient of two codes in one place was infinite."""
    path = Temperature(gradient=2.5, prototypes=0.1, unit="nearest", warmup_share=0.0)
    vq = SoftVQ(9, 1, temperature=path, forward_value="hard", seed=1)
    z = (scale * torch.linspace(-1, 1, 5)[:, None]).half()
    for _ in range(3):
        leaf = z.clone().requires_grad_()
        out = vq(leaf)
        (out.quantized.float().square().mean() + out.loss).backward()
        vq.update_()
        assert leaf.grad.isfinite().all()


@pytest.mark.parametrize("num_rows", [1, 5])
def test_one_float16_row_at_a_temperature_of_its_own_has_a_finite_gradient(num_rows):
    """No variance, and a free energy below zero: the unit of the loss was next to nothing."""
    path = Temperature(prototypes=0.1, unit="absolute", noise=0.0, warmup_share=0.0)
    vq = SoftVQ(2, 1, temperature=path, loss=Loss(use_entropy=0.0))
    for _ in range(2):
        z = torch.full((num_rows, 1), 4e-4, dtype=torch.float16).requires_grad_()
        vq.zero_grad()
        out = vq(z)
        (out.quantized.float().square().mean() + out.loss).backward()
        vq.update_()
        assert z.grad.isfinite().all()
        assert vq.codebook.grad.isfinite().all()
