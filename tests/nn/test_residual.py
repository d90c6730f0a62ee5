import warnings

import pytest
import torch

from softvq import CodebookWarning, HardVQ, Loss, SoftVQ, Temperature
from softvq.nn import GroupedVQ, MultiHeadVQ, OneIndex, Projected, ResidualVQ, Scaled
from tests.contracts.quantizer import start_on, waves

TWO = Temperature(gradient=0.8, warmup_share=0.0, anneal_steps=50)


def stages(num=3, *, dim=4, **options):
    return [SoftVQ(16, dim, temperature=TWO, seed=seed, **options) for seed in range(num)]


def nearest(rest, codes):
    """Index of the nearest code by plain differences in float64, and that code."""
    found = (rest[:, None] - codes).square().sum(-1).argmin(-1)
    return found, codes[found]


@pytest.mark.parametrize("forward_value", ["hard", "soft", "blurred"])
def test_each_stage_takes_what_the_codes_before_it_leave(forward_value):
    """The raw code is subtracted, whatever value training decodes."""
    vq = start_on(ResidualVQ(stages(forward_value=forward_value)), waves(64, 4))
    z = waves(40, 4, phase=1.0)
    rest, total = z.double(), torch.zeros(40, 4, dtype=torch.float64)
    found = []
    for stage in vq.parts:
        index, code = nearest(rest, stage.codebook.detach().double())
        found.append(index)
        rest, total = rest - code, total + code
    for training in (True, False):
        assert torch.equal(vq.train(training)(z).indices, torch.stack(found, -1))
    torch.testing.assert_close(vq.eval()(z).quantized.double(), total, rtol=0, atol=1e-5)


@pytest.mark.parametrize("unit", ["variance", "absolute"])
def test_the_loss_of_every_stage_reaches_the_input_whole(unit):
    """In units of the variance each by its share of it, which gives all the first stage's unit."""
    vq = start_on(ResidualVQ(stages()), waves(64, 4)).double()
    for stage in vq.parts:
        stage.loss = Loss(weight=0.3, use_entropy=0.0, unit=unit)
    whole = vq.parts[0].schedule.variance.double()
    z = waves(40, 4, phase=1.0, dtype=torch.float64).requires_grad_()
    (grad,) = torch.autograd.grad(vq(z).loss, z)
    rest, expected = z.detach(), torch.zeros_like(grad)
    for stage in vq.parts:
        codes = stage.codebook.detach()
        level = stage.schedule.levels[-1].double()
        distances = (rest[:, None] - codes).square().sum(-1)
        mean = torch.softmax(-distances / level, -1) @ codes
        energy = -1.08 * level * torch.logsumexp(-distances / level, -1).mean()
        own = stage.schedule.variance.double()
        share = 0.25 if unit == "absolute" else own / whole / torch.maximum(own, energy)
        # dF/dz = 2 (z - mean), weighed by w beta / N.
        expected += 2 * (rest - mean) * 0.3 * 0.08 * share / 40
        rest = rest - codes[distances.argmin(-1)]
    # Running variances are float32.
    tolerance = {"rtol": 1e-9 if unit == "absolute" else 1e-5, "atol": 1e-12}
    torch.testing.assert_close(grad, expected, **tolerance)


@pytest.mark.parametrize("warming", [True, False])
def test_training_decodes_around_the_whole_with_the_last_stage_alone(warming):
    """Not a blur a stage: earlier ones would drown what later stages add."""
    schedule = Temperature(gradient=0.8, warmup_share=0.5 if warming else 0.0, anneal_steps=50)
    inner = [SoftVQ(16, 4, temperature=schedule, seed=i) for i in range(3)]
    vq = ResidualVQ(inner)
    vq(waves(64, 4))
    z = waves(40, 4, phase=1.0)
    out = vq(z)
    code = vq.codes(out.indices).detach()
    if warming:
        torch.testing.assert_close(out.quantized, z, rtol=0, atol=1e-5)
        return
    assert (out.quantized - code).abs().max() > 1e-3
    distances = [(each - z).norm(dim=-1) for each in (out.quantized.detach(), code)]
    torch.testing.assert_close(*distances, rtol=1e-3, atol=1e-5)


def test_after_a_warm_up_each_stage_starts_on_what_those_before_it_leave_then():
    """In the warm-up later stages get rows less codes of long ago, in units of long ago."""
    schedule = Temperature(anneal_steps=20, warmup_share=0.1)
    vq = ResidualVQ([Scaled(SoftVQ(16, 4, temperature=schedule, seed=i)) for i in range(3)])
    for step in range(2):
        vq(waves(64, 4, phase=float(step)))
        vq.update_()
    assert vq.awaits_start
    z = 30 * waves(64, 4, phase=2.0) + 100
    out = vq(z)
    assert not vq.awaits_start
    rest = z
    for stage, indices in zip(vq.parts, out.indices.unbind(-1), strict=True):
        torch.testing.assert_close(stage.scale, rest.var(0, unbiased=False).mean().sqrt())
        left = rest - stage.look_up(indices).detach()
        assert left.square().sum() < 0.5 * rest.square().sum()
        rest = left


def test_a_prefix_of_the_stages_is_a_coarser_vector():
    vq = start_on(ResidualVQ(stages(4), layout="channels_first"), waves(2, 4, 48)).eval()
    z = waves(2, 4, 48)
    indices = vq(z).indices
    errors = [(vq.codes(indices[..., :n]) - z).square().mean().item() for n in (1, 2, 3, 4)]
    assert errors == sorted(errors, reverse=True)
    by_hand = vq.parts[0].codes(indices[..., 0]) + vq.parts[1].codes(indices[..., 1])
    assert torch.equal(vq.codes(indices[..., :2]), by_hand.movedim(-1, 1))


def test_a_prefix_of_stages_of_groups():
    inner = [GroupedVQ([HardVQ(8, 2, seed=2 * i), HardVQ(8, 2, seed=i)]) for i in range(3)]
    vq = start_on(ResidualVQ(inner), waves(64, 4)).eval()
    indices = vq(waves(5, 4)).indices
    assert indices.shape == (5, 3, 2)
    assert torch.equal(vq.codes(indices[:, :1]), inner[0].codes(indices[:, 0]))


def test_dropout_leaves_out_the_last_stages_of_whole_items():
    inner = stages(4, forward_value="hard")
    vq = start_on(ResidualVQ(inner, dropout=0.5, seed=3), waves(64, 6, 4))
    z = waves(400, 6, 4, phase=1.0)
    out = vq(z)
    kept = (out.indices >= 0).sum(-1)
    assert torch.equal(kept, kept[:, :1].expand(400, 6)), "all positions of an item keep as many"
    absent = out.indices < 0
    assert not (absent[..., :-1] & ~absent[..., 1:]).any(), "a stage after one that was left out"
    shares = [(kept[:, 0] == n).float().mean().item() for n in (1, 2, 3, 4)]
    assert shares == pytest.approx([0.125, 0.125, 0.125, 0.625], abs=0.06)
    with torch.no_grad():
        torch.testing.assert_close(vq.codes(out.indices), out.quantized)
    assert (vq.eval()(z).indices >= 0).all()


@pytest.mark.parametrize("seed", range(4))
def test_every_stage_starts_on_the_first_batch_whatever_dropout_leaves_out(seed):
    """Of one item, or of few, the last stages would often get no row to start from."""
    vq = ResidualVQ(stages(4), dropout=1.0, seed=seed).train()
    out = vq(waves(1, 300, 4, phase=seed))
    assert vq.is_started
    assert out.indices.min() >= 0


def test_dropout_differs_between_batches_and_seeds():
    def depth(seed, phase):
        vq = start_on(ResidualVQ(stages(4), dropout=1.0, seed=seed), waves(64, 6, 4))
        return (vq(waves(50, 6, 4, phase=phase)).indices >= 0).sum(-1)[:, 0]

    first = depth(0, 1.0)
    assert torch.equal(first, depth(0, 1.0))
    assert not torch.equal(first, depth(1, 1.0))
    assert not torch.equal(first, depth(0, 2.0))


def test_a_shared_codebook_is_one_in_state_and_learns_from_all_stages():
    shared = SoftVQ(16, 4, temperature=TWO)
    vq = start_on(ResidualVQ([shared] * 3), waves(64, 4))
    assert len([name for name in vq.state_dict() if name.endswith("codebook")]) == 1
    vq(waves(40, 4, phase=1.0))
    assert shared._tally.totals()[0].sum() == 3 * 40
    assert shared._tally.sample().shape == (3 * 40, 4)
    vq.update_()
    assert int(shared.updates) == 2


def test_low_precision_loses_no_stage():
    """In bfloat16 the residual of a residual would be noise."""
    vq = start_on(ResidualVQ(stages(4)), waves(64, 4))
    z = waves(40, 4, phase=1.0, dtype=torch.bfloat16)
    assert torch.equal(vq.eval()(z).indices, vq(z.float()).indices)


@pytest.mark.bad_input
def test_a_shape_of_the_whole_that_makes_no_sense_is_refused():
    vq = ResidualVQ(stages(2))
    with pytest.raises(ValueError, match=r"\[4, 6\]\. Projected\(vq, dim\)"):
        ResidualVQ([SoftVQ(8, 4), SoftVQ(8, 6)])
    ResidualVQ([SoftVQ(8, 4), Projected(SoftVQ(8, 6), 4)])
    with pytest.raises(ValueError, match=r"dropout is 0\.5 with one stage"):
        ResidualVQ(stages(1), dropout=0.5)
    with pytest.raises(ValueError, match=r"dropout must be .* got 1\.5"):
        ResidualVQ(stages(2), dropout=1.5)
    longer = torch.zeros(5, 3, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"with 1 to 2 stages.*\(5, 3\)"):
        vq.codes(longer)
    with pytest.raises(ValueError, match=r"with 1 to 2 stages.*\(5, 0\)"):
        vq.codes(longer[:, :0])


@pytest.mark.bad_input
def test_an_index_is_looked_for_in_its_own_stage():
    vq = ResidualVQ([HardVQ(4, 2), HardVQ(8, 2)])
    assert vq.codes(torch.tensor([[3, 7], [3, -1]])).shape == (2, 2)
    with pytest.raises(ValueError, match=r"indices must lie in \[0, 4\).*4 to 4"):
        vq.codes(torch.tensor([[4, 7]]))
    with pytest.raises(ValueError, match=r"indices must lie in \[0, 4\).*-1 to -1"):
        vq.codes(torch.tensor([[-1, 7]]))
    with pytest.raises(ValueError, match=r"indices must lie in \[-1, 8\).*8 to 8"):
        vq.codes(torch.tensor([[3, 8]]))


def test_a_stage_with_a_code_for_every_row_is_told_of_when_the_next_are_placed():
    def make(num_codes):
        return ResidualVQ([Scaled(SoftVQ(num_codes, 4)), Scaled(SoftVQ(16, 4))])

    for place in (lambda vq: vq(waves(16, 4)), lambda vq: vq.start_(waves(16, 4))):
        with pytest.warns(CodebookWarning, match="placed on 16 rows, and one of them has 16 codes"):
            place(make(16))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CodebookWarning)
            warnings.filterwarnings("error", "The stages are placed", CodebookWarning)
            place(make(15))


def test_a_start_amid_the_warm_up_asks_for_no_codes():
    schedule = Temperature(anneal_steps=20, warmup_share=0.5)
    vq = ResidualVQ([SoftVQ(16, 4, temperature=schedule, seed=i) for i in range(2)])
    for _ in range(2):
        vq(waves(64, 4))
        for part in vq.parts:
            part.update_()
    vq.start_(waves(64, 4))
    with pytest.warns(CodebookWarning, match="in their warm-up"):
        vq.eval()


@pytest.mark.parametrize(
    "wrap",
    [
        lambda make: make(4),
        lambda make: Scaled(make(4)),
        lambda make: Projected(make(4), 4),
        lambda make: GroupedVQ([make(2), make(2)]),
        lambda make: MultiHeadVQ(make(2), num_heads=2),
        lambda make: OneIndex(GroupedVQ([make(2), make(2)])),
        lambda make: ResidualVQ([make(4)]),
    ],
    ids=["plain", "scaled", "projected", "grouped", "heads", "one", "nested"],
)
def test_late_stages_pull_the_encoder_no_harder(wrap):
    """Each in units of its own variance, they would pull by the inverse of their scale."""

    def pull(num):
        torch.manual_seed(0)
        parts = [
            wrap(lambda dim, seed=i: SoftVQ(16, dim, temperature=TWO, loss=quiet, seed=seed))
            for i in range(num)
        ]
        vq = start_on(ResidualVQ(parts), waves(256, 4))
        z = waves(256, 4, phase=1.0).requires_grad_()
        (grad,) = torch.autograd.grad(vq(z).loss, z)
        return grad.square().mean().sqrt()

    quiet = Loss(use_entropy=0.0)
    assert pull(4) < 2 * pull(1)
