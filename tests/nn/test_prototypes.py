import pytest
import torch

from softvq import Temperature, quantize_mode
from softvq.nn.prototypes import PrototypeHeads
from tests.contracts.quantizer import waves

ABSOLUTE = Temperature(gradient=0.5, prototypes=0.5, unit="absolute")


@pytest.fixture
def heads():
    made = PrototypeHeads(8, 4, heads=2, temperature=ABSOLUTE)
    made(waves(4, 12, 8))
    return made


def test_heads_see_their_own_features_alone(heads):
    heads.eval()
    z = waves(2, 5, 8, phase=1.0)
    other = z.clone()
    other[..., 4:] += 1
    before, after = heads(z), heads(other)
    assert torch.equal(before.mean[..., :4], after.mean[..., :4])
    assert torch.equal(before.assignment[:, 0], after.assignment[:, 0])
    assert not torch.allclose(before.assignment[:, 1], after.assignment[:, 1])


@pytest.mark.parametrize("training", [True, False])
def test_means_are_soft_in_training_and_in_eval(heads, training):
    out = heads.train(training)(waves(2, 5, 8, phase=1.0))
    for place, head in enumerate(heads.heads):
        part = out.mean[..., 4 * place : 4 * place + 4]
        torch.testing.assert_close(out.assignment[:, place] @ head.codebook, part)
        assert (out.assignment[:, place].amax(-1) < 0.999).any()


@pytest.mark.parametrize("training", [True, False])
def test_hard_mode_gives_codes_and_one_hot_weights(heads, training):
    heads.train(training)
    z, mask = waves(2, 5, 8, phase=1.0), torch.arange(5).repeat(2, 1) < 3
    with quantize_mode(heads, "hard"):
        out = heads(z, mask=mask)
    assert set(out.assignment.unique().tolist()) == {0.0, 1.0}
    assert torch.equal(out.assignment.sum(-1), mask[:, None].expand(2, 2, 5).float())
    for place, head in enumerate(heads.heads):
        part = out.mean[..., 4 * place : 4 * place + 4]
        torch.testing.assert_close(out.assignment[:, place] @ head.codebook, part)
    assert [head.mode for head in heads.heads] == ["soft", "soft"]


def test_residual_and_spread_split_the_distance_in_all_features(heads):
    heads.eval()
    z = waves(2, 5, 8, phase=1.0)
    out = heads(z)
    distances = 0.0
    for place, head in enumerate(heads.heads):
        part = z[..., 4 * place : 4 * place + 4]
        squared = (part[:, :, None] - head.codebook).square().sum(-1)
        distances += (out.assignment[:, place] * squared).sum(-1).mean()
    torch.testing.assert_close(out.stats["distortion"], distances)
    split = out.stats["ols"] + out.stats["spread"]
    torch.testing.assert_close(out.stats["distortion"], split)
    torch.testing.assert_close(out.stats["ols"], (z - out.mean).square().sum(-1).mean())


def test_the_loss_is_the_mean_of_the_heads(heads):
    z = waves(2, 5, 8, phase=1.0)
    each = [head(z[..., 4 * place : 4 * place + 4]).loss for place, head in enumerate(heads.heads)]
    torch.testing.assert_close(heads(z).loss, sum(each) / 2)


def test_there_is_no_warm_up_whatever_the_temperature_says():
    """SoftVQ's would give the tokens themselves at first, and place the prototypes twice."""
    options = Temperature(gradient=0.5, prototypes=0.3, unit="absolute", anneal_steps=10)
    assert options.warmup_steps > 0
    heads = PrototypeHeads(8, 4, temperature=options)
    z = waves(4, 12, 8)
    for _ in range(3):
        out = heads(z)
        assert out.loss != 0
        before = heads.quantizers[0].codebook.clone()
        heads.quantizers[0].update_()
        assert torch.equal(heads.quantizers[0].codebook, before)
    torch.testing.assert_close(out.assignment[:, 0] @ before, out.mean)


def test_heads_start_on_their_own_parts_of_the_tokens(heads):
    first, second = (head.codebook for head in heads.heads)
    assert not torch.equal(first, second)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("sizes", "match"),
    [
        ({"dim": 10, "heads": 4}, "heads must divide dim; got heads=4 for dim=10.*1, 2, 5, 10"),
        ({"dim": 0}, "dim must be a whole number of at least 1; got 0"),
        ({"num_prototypes": 0}, "num_prototypes must be .* at least 1; got 0"),
        ({"heads": 1.5}, r"heads must be .* at least 1; got 1\.5"),
    ],
    ids=["heads", "dim", "prototypes", "fraction"],
)
def test_sizes_that_do_not_fit_are_refused(sizes, match):
    sizes = {"dim": 8, "num_prototypes": 4, "heads": 2} | sizes
    with pytest.raises(ValueError, match=match):
        PrototypeHeads(sizes["dim"], sizes["num_prototypes"], heads=sizes["heads"])


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("tokens", "mask", "match"),
    [
        (torch.zeros(5, 8), None, r"tokens must be \(B, N, 8\)"),
        (torch.zeros(2, 5, 7), None, "tokens must have 8 features"),
        (torch.zeros(2, 5, 8, dtype=torch.int64), None, "tokens must be a floating-point"),
        (torch.zeros(2, 5, 8), torch.ones(2, 4, dtype=torch.bool), r"mask must have shape \(2, 5"),
        (torch.zeros(2, 5, 8), torch.ones(2, 5), "mask must be a bool tensor"),
        (torch.zeros(2, 5, 8), torch.ones(2, 5, dtype=torch.int64), "mask must be a bool tensor"),
    ],
    ids=["ndim", "features", "dtype", "mask shape", "mask float", "mask int"],
)
def test_tokens_and_masks_that_do_not_fit_are_refused(tokens, mask, match):
    with pytest.raises(ValueError, match=match):
        PrototypeHeads(8, 4)(tokens, mask=mask)
