"""The layers against loops over NumPy float64, and what must not change them: the padding."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from softvq import (
    DDCLAttention,
    DDCLLevel,
    DDCLReadout,
    DDCLStack,
    Loss,
    Temperature,
    attach,
    quantize_mode,
)
from tests import oracles
from tests.contracts.quantizer import waves
from tests.tolerances import ORACLE_FLOAT64, SAME_FLOAT32

ABSOLUTE = Temperature(gradient=0.5, prototypes=0.3, unit="absolute")
KINDS = {
    "attention": lambda: DDCLAttention(8, 4, heads=2, temperature=ABSOLUTE),
    "readout": lambda: DDCLReadout(8, 4, temperature=ABSOLUTE),
    "stack": lambda: DDCLStack(
        [
            DDCLLevel(DDCLAttention(8, 4, heads=2, temperature=ABSOLUTE), window=2),
            DDCLLevel(DDCLAttention(8, 3, temperature=ABSOLUTE), window=3),
        ]
    ),
}


@pytest.fixture(params=list(KINDS))
def layer(request):
    torch.manual_seed(0)
    made = KINDS[request.param]().double()
    with torch.no_grad():
        made(waves(4, 12, 8, dtype=torch.float64))
    return open_gates(made)


@torch.no_grad()
def open_gates(layer):
    """Let in what the prototypes add: at zero, where gates start, nothing of it could be wrong."""
    for module in layer.modules():
        if isinstance(module, DDCLAttention):
            module.gate.copy_(1 + 0.5 * waves(len(module.gate), phase=3.0))
    return layer


def vector(out):
    """One vector a sequence of any layer's answer."""
    return out.mean if hasattr(out, "mean") else out.tokens.sum(1)


def pad(z, *, left, right, value=math.nan):
    """Tokens between positions that a mask drops."""
    shape = (z.shape[0], left + z.shape[1] + right, z.shape[2])
    padded = torch.full(shape, value, dtype=z.dtype)
    padded[:, left : left + z.shape[1]] = z
    mask = torch.zeros(shape[:2], dtype=torch.bool)
    mask[:, left : left + z.shape[1]] = True
    return padded, mask


# Values


def layer_norm(row, weight, bias, eps=1e-5):
    mean = sum(row) / len(row)
    variance = sum((x - mean) ** 2 for x in row) / len(row)
    scaled = [(x - mean) / math.sqrt(variance + eps) for x in row]
    return [w * x + b for w, x, b in zip(weight, scaled, bias, strict=True)]


def test_attention_is_its_formula():
    torch.manual_seed(0)
    layer = DDCLAttention(6, 3, heads=2, temperature=ABSOLUTE).double()
    with torch.no_grad():
        layer(waves(3, 9, 6, dtype=torch.float64))
        open_gates(layer).norm.weight.copy_(waves(6) + 2)
        layer.norm.bias.copy_(waves(6, phase=1.0))
    z = waves(2, 4, 6, phase=1.0, dtype=torch.float64)
    out = layer.eval()(z)
    numbers = {name: held.detach().numpy() for name, held in layer.named_parameters()}
    for b in range(2):
        parts = []
        for h in range(2):
            codes = numbers[f"prototypes.heads.{h}.codebook"]
            level = float(layer.prototypes.heads[h].temperature)
            parts.append(oracles.assign(z[b, :, 3 * h : 3 * h + 3].numpy(), codes, level))
            np.testing.assert_allclose(
                out.assignment[b, h].detach().numpy(), parts[h].weights, **ORACLE_FLOAT64
            )
        for n in range(4):
            mean = np.concatenate([part.mean[n] for part in parts])
            added = numbers["output.weight"] @ mean + numbers["output.bias"]
            mixed = z[b, n].numpy() + numbers["gate"] * added
            expected = layer_norm(mixed, numbers["norm.weight"], numbers["norm.bias"])
            np.testing.assert_allclose(
                out.tokens[b, n].detach().numpy(), expected, rtol=1e-9, atol=1e-9
            )


def test_attention_begins_as_layer_norm_and_its_gate_learns_first():
    torch.manual_seed(0)
    layer = DDCLAttention(6, 3, heads=2, temperature=ABSOLUTE)
    z = waves(2, 4, 6)
    out = layer(z)
    torch.testing.assert_close(out.tokens, nn.functional.layer_norm(z, (6,)))
    out.tokens[..., 0].sum().backward()
    assert layer.gate.grad.abs().min() > 0
    assert layer.output.weight.grad.abs().max() == 0


def test_readout_is_the_mean_of_centroids_and_of_weights():
    layer = DDCLReadout(6, 3, temperature=ABSOLUTE).double()
    layer(waves(3, 9, 6, dtype=torch.float64))
    z, mask = waves(2, 4, 6, phase=1.0, dtype=torch.float64), torch.ones(2, 4, dtype=torch.bool)
    mask[1, 1:3] = False
    out = layer.eval()(z, mask=mask)
    head = layer.prototypes.heads[0]
    for b in range(2):
        rows = z[b][mask[b]].numpy()
        one = oracles.assign(rows, head.codebook.detach().numpy(), float(head.temperature))
        weights, mean = one.weights.mean(0), one.mean.mean(0)
        np.testing.assert_allclose(out.assignment[b].detach().numpy(), weights, **ORACLE_FLOAT64)
        np.testing.assert_allclose(out.mean[b].detach().numpy(), mean, **ORACLE_FLOAT64)
    torch.testing.assert_close(out.mean, out.assignment @ head.codebook)


def test_gradient_of_both_answers_is_checked_numerically():
    layer = DDCLReadout(4, 3, temperature=ABSOLUTE).double()
    layer(waves(3, 9, 4, dtype=torch.float64))
    layer.eval()
    z = waves(2, 3, 4, phase=1.0, dtype=torch.float64).requires_grad_()
    mask = torch.tensor([[True, True, False], [True, True, True]])
    assert torch.autograd.gradcheck(lambda x: layer(x, mask=mask)[:2], z)


# The padding


@pytest.mark.parametrize(("left", "right"), [(0, 5), (3, 0), (2, 4)], ids=["right", "left", "both"])
def test_padding_on_any_side_and_nan_in_it_change_nothing(layer, left, right):
    layer.eval()
    z = waves(3, 7, 8, phase=1.0, dtype=torch.float64)
    plain = layer(z)
    padded, mask = pad(z, left=left, right=right)
    out = layer(padded, mask=mask)
    torch.testing.assert_close(vector(out), vector(plain), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(out.loss, plain.loss, rtol=1e-10, atol=1e-10)


def test_a_sequence_alone_is_what_it_is_in_a_batch(layer):
    layer.eval()
    z, mask = waves(3, 7, 8, phase=1.0, dtype=torch.float64), torch.ones(3, 7, dtype=torch.bool)
    mask[1, 4:] = False
    whole = vector(layer(z, mask=mask))
    torch.testing.assert_close(vector(layer(z[1:2, :4])), whole[1:2], rtol=1e-10, atol=1e-10)


def test_training_is_the_same_however_the_batch_is_padded(layer):
    z = waves(3, 7, 8, phase=1.0, dtype=torch.float64)
    names = [name for name, _ in layer.named_parameters()]
    results = []
    for left, right in ((0, 0), (2, 3)):
        padded, mask = pad(z, left=left, right=right)
        out = layer(padded, mask=mask)
        loss = vector(out).square().sum() + out.loss
        results.append(torch.autograd.grad(loss, list(layer.parameters()), allow_unused=True))
    for name, first, second in zip(names, *results, strict=True):
        assert first is not None, name
        torch.testing.assert_close(first, second, rtol=1e-9, atol=1e-10)


def test_the_start_is_the_same_however_the_batch_is_padded():
    z = waves(3, 7, 8)
    made = []
    for left, right in ((0, 0), (4, 1)):
        layer = DDCLReadout(8, 4, temperature=ABSOLUTE)
        padded, mask = pad(z, left=left, right=right)
        layer(padded, mask=mask)
        made.append(layer.prototypes.heads[0].codebook)
    torch.testing.assert_close(made[0], made[1], **SAME_FLOAT32)


@pytest.mark.parametrize("training", [True, False])
def test_a_sequence_without_tokens_gives_zeros_and_finite_gradients(layer, training):
    layer.train(training)
    z = torch.full((2, 5, 8), math.nan, dtype=torch.float64)
    z[0] = waves(5, 8, dtype=torch.float64)
    mask = torch.tensor([[True] * 5, [False] * 5])
    leaf = z.requires_grad_()
    out = layer(leaf, mask=mask)
    (vector(out).square().sum() + out.loss).backward()
    assert vector(out)[1].abs().max() == 0
    assert leaf.grad.isfinite().all()
    assert leaf.grad[1].abs().max() == 0
    assert leaf.grad[0].abs().max() > 0


@pytest.mark.parametrize("shape", [(0, 5, 8), (2, 0, 8), (0, 0, 8)], ids=str)
def test_empty_batches_and_sequences_give_empty_answers(layer, shape):
    out = layer(torch.zeros(shape, dtype=torch.float64))
    assert vector(out).shape == (shape[0], 8)
    assert out.loss == 0
    assert vector(out).abs().sum() == 0


def test_all_masked_gives_zeros_and_no_loss(layer):
    z, mask = torch.full((2, 5, 8), math.nan).double(), torch.zeros(2, 5, dtype=torch.bool)
    out = layer(z, mask=mask)
    assert out.loss == 0
    assert vector(out).abs().sum() == 0


# Starts, precision, options


@pytest.mark.filterwarnings("ignore:The temperature hit a bound")
def test_more_prototypes_than_tokens_at_the_start():
    layer = DDCLReadout(8, 16)
    out = layer(waves(1, 5, 8))
    assert out.mean.isfinite().all()
    assert len(layer.prototypes.heads[0].codebook.unique(dim=0)) == 16


@pytest.mark.filterwarnings("ignore:The temperature hit a bound")
def test_with_two_prototypes_the_entropy_stays_below_log_2():
    layer = DDCLReadout(8, 2, temperature=Temperature(gradient=5.0, prototypes=None))
    for _ in range(3):
        out = layer(waves(4, 50, 8))
        layer.prototypes.heads[0].update_()
    assert out.stats["entropy"] <= 0.5 * math.log(2) * 1.02


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["half", "bfloat16"])
@pytest.mark.parametrize("cast", [True, False], ids=["module cast", "input alone"])
def test_low_precision_is_near_float32(dtype, cast):
    torch.manual_seed(0)
    layer = open_gates(DDCLAttention(8, 4, heads=2, temperature=ABSOLUTE))
    layer(waves(4, 12, 8))
    z = waves(2, 5, 8, phase=1.0).to(dtype)
    layer = (layer.to(dtype) if cast else layer).eval()
    out = layer(z)
    expected = layer.float()(z.float())
    assert out.tokens.dtype == dtype
    assert out.assignment.dtype == torch.float32
    torch.testing.assert_close(out.assignment, expected.assignment, rtol=1e-3, atol=1e-4)
    error = (out.tokens.float() - expected.tokens).abs().max()
    assert error < 8 * torch.finfo(dtype).eps * expected.tokens.abs().max()


def test_autocast_changes_no_weight():
    torch.manual_seed(0)
    layer = DDCLAttention(8, 4, temperature=ABSOLUTE)
    layer(waves(4, 12, 8))
    z = waves(2, 5, 8, phase=1.0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = layer.eval()(z)
    assert out.tokens.dtype == torch.float32
    assert torch.equal(out.assignment, layer(z).assignment)


def test_state_comes_back_and_eval_needs_no_start(layer):
    layer.eval()
    kind = next(name for name, make in KINDS.items() if type(make()) is type(layer))
    fresh = KINDS[kind]().double()
    fresh.load_state_dict(layer.state_dict())
    z = waves(2, 5, 8, phase=1.0, dtype=torch.float64)
    assert torch.equal(vector(fresh.eval()(z)), vector(layer(z)))


def test_attach_moves_prototypes_to_their_own_rate_and_updates_them(layer):
    optimizer = torch.optim.Adam(layer.parameters(), lr=1e-3)
    updates = attach(layer, optimizer)
    heads = updates.quantizers
    rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    assert {rates[id(head.codebook)] for head in heads} == {1e-2}
    out = layer(waves(2, 5, 8, phase=1.0, dtype=torch.float64))
    (vector(out).square().sum() + out.loss).backward()
    optimizer.step()
    assert [int(head.updates) for head in heads] == [1] * len(heads)


def test_hard_mode_reads_codes():
    layer = DDCLReadout(8, 4, temperature=ABSOLUTE)
    layer(waves(4, 12, 8))
    layer.eval()
    z = waves(2, 5, 8, phase=1.0)
    with quantize_mode(layer, "hard"):
        out = layer(z)
    squared = (z[:, :, None] - layer.prototypes.heads[0].codebook).square().sum(-1)
    counts = nn.functional.one_hot(squared.argmin(-1), 4).float().mean(1)
    torch.testing.assert_close(out.assignment, counts)


# The encoder's gradient of L_q (theory.md, 2): what is true and what is not


@pytest.mark.parametrize("grad", ["fixed", "full"])
def test_the_encoders_gradient_is_that_of_the_centroids_error_with_weights_held_alone(grad):
    loss = Loss(weight=1.0, beta=1.0, use_entropy=0.0, assignment_grad=grad, unit="absolute")
    one = Temperature(gradient=0.5, prototypes=None, unit="absolute")
    layer = DDCLReadout(4, 3, temperature=one, loss=loss).double()
    layer(waves(3, 9, 4, dtype=torch.float64))
    z = waves(1, 6, 4, phase=1.0, dtype=torch.float64).requires_grad_()
    actual = torch.autograd.grad(layer(z).loss, z)[0] * 6 * 4
    with torch.no_grad():
        layer.eval()
        mean = layer.prototypes(z).mean
    centroid_error = 2 * (z - mean)
    same = torch.allclose(actual, centroid_error, rtol=1e-9, atol=1e-9)
    assert same == (grad == "fixed")
