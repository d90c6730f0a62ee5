"""The kernels, run by Triton's interpreter: TRITON_INTERPRET=1 pytest -m triton THIS_FILE."""

import os

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from softvq.functional.backends import reference
from tests import oracles
from tests.contracts.backend import OUTPUTS, assert_matches, draw, leaf, problem, views
from tests.tolerances import EXACT, ORACLE_FLOAT32, SAME_FLOAT32

triton = pytest.importorskip("triton", reason="triton is not installed")

from softvq.functional.backends import triton as backend  # noqa: E402 - only where it is installed

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
pytestmark = [
    pytest.mark.triton,
    pytest.mark.skipif(not INTERPRETED, reason="wants TRITON_INTERPRET=1 from the start"),
]

# (N, K, D): one block, several, odd edges, one of each, more features than a step takes.
SIZES = [(1, 1, 1), (5, 7, 3), (1, 40, 2), (20, 1, 3), (17, 33, 5), (34, 19, 20)]
LEVELS = {"one": [0.7], "two": [0.3, 1.5], "three": [0.05, 0.7, 20.0]}
CUTS = [dict(t) for t in (backend.FORWARD_BLOCKS, backend.ROW_BLOCKS, backend.CODE_BLOCKS)]
SMALL = backend.Blocks(rows=16, codes=16, chunk=16, warps=4, stages=2)


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    """Blocks so small that few rows and codes are several of each, and spans of rows too."""
    for table in (backend.FORWARD_BLOCKS, backend.ROW_BLOCKS, backend.CODE_BLOCKS):
        for padded in table:
            monkeypatch.setitem(table, padded, SMALL)
    monkeypatch.setattr(backend, "INTERPRETED_PROCESSORS", 2)


@pytest.fixture(autouse=True)
def _poisoned_memory():
    """New tensors hold NaN, so that what a kernel forgets to write is seen."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(before)


def run(module, operands, dtype, *, names=OUTPUTS, keep=None, usable=None):
    """Outputs by name, and the gradients of a drawn sum of those named, in float64."""
    z, codebook, temperature = (leaf(part.to(dtype)) for part in operands)
    kept = None if keep is None else keep.to(dtype)
    if module is reference:
        assigned = dense(z, codebook, temperature, kept, usable)
    else:
        assigned = module.soft_assign(z, codebook, temperature, kept, usable)
    outputs = assigned._asdict()
    total = sum(
        (outputs[name] * draw(*outputs[name].shape, seed=10 + OUTPUTS.index(name)).to(dtype)).sum()
        for name in names
    )
    gradients = torch.autograd.grad(total, (z, codebook, temperature), allow_unused=True)
    return outputs, gradients


def dense(z, codebook, temperature, keep, usable):
    """The reference; dropped codes are left out of it, and put back as zeros."""
    if usable is None:
        return reference.soft_assign(z, codebook, temperature, keep)
    some = reference.soft_assign(z, codebook[usable], temperature, keep)
    use = torch.zeros(len(temperature), len(codebook), dtype=z.dtype)
    places = usable.nonzero()[:, 0]
    return some._replace(indices=places[some.indices], use=use.index_copy(1, places, some.use))


def compare(operands, *, names=OUTPUTS, limits=None, **options):
    """Ours in float32 against the reference in float64: every output, all three gradients."""
    ours, our_gradients = run(backend, operands, torch.float32, names=names, **options)
    theirs, their_gradients = run(reference, operands, torch.float64, names=names, **options)
    assert_close(ours["indices"], theirs["indices"])
    for name in OUTPUTS:
        assert_close(ours[name].double(), theirs[name], **(limits or ORACLE_FLOAT32))
    for part, mine, right in zip(
        ("z", "codebook", "temperature"), our_gradients, their_gradients, strict=True
    ):
        wanted = torch.zeros_like(operands[0]) if right is None else right
        given = torch.zeros_like(wanted) if mine is None else mine.double()
        scale = max(1.0, wanted.abs().max().item())  # rounding is a share of the largest terms
        floor = 3 * ORACLE_FLOAT32["atol"] * scale
        limit = floor + ORACLE_FLOAT32["rtol"] * wanted.abs()
        assert ((given - wanted).abs() <= limit).all(), f"gradient to {part}"


def operands_of(size, levels):
    return (*problem(*size), torch.tensor(levels, dtype=torch.float64))


# Values and gradients


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("levels", LEVELS.values(), ids=LEVELS)
def test_outputs_and_gradients_are_the_references(size, levels):
    compare(operands_of(size, levels))


@pytest.mark.parametrize("size", [(5, 7, 3), (17, 33, 5)], ids=str)
@pytest.mark.parametrize("temperature", [0.05, 0.7, 20.0])
def test_outputs_are_the_oracles(size, temperature):
    z, codebook = problem(*size, dtype=torch.float32)
    result = backend.soft_assign(z, codebook, torch.tensor([temperature]))
    expected = oracles.assign(z.double().numpy(), codebook.double().numpy(), temperature)
    assert_matches(result.indices, expected.indices)
    for name in OUTPUTS:
        assert_matches(getattr(result, name)[0], getattr(expected, name), **ORACLE_FLOAT32)


@pytest.mark.parametrize("names", [[name] for name in OUTPUTS] + [["mean", "use"]], ids=str)
def test_the_gradient_of_each_output_alone(names):
    compare(operands_of((17, 20, 3), [0.3, 1.5]), names=names)


def test_a_level_without_gradient_of_its_mean():
    # As the default recipe: the mean of one level, the free energy of the other.
    z, codebook, temperature = operands_of((17, 20, 3), [1.5, 0.3])

    def gradients(module, dtype):
        parts = [leaf(part.to(dtype)) for part in (z, codebook, temperature)]
        result = module.soft_assign(*parts)
        total = (result.mean[0] * draw(17, 3, seed=5).to(dtype)).sum() + result.free_energy[1].sum()
        return [part.double() for part in torch.autograd.grad(total, parts)]

    assert_close(
        gradients(backend, torch.float32), gradients(reference, torch.float64), rtol=1e-4, atol=5e-5
    )


@pytest.mark.parametrize("levels", LEVELS.values(), ids=LEVELS)
def test_rows_that_do_not_count(levels):
    keep = (draw(17, seed=9) > 0).double()
    compare(operands_of((17, 20, 3), levels), keep=keep)


def test_no_row_counts():
    compare(operands_of((5, 7, 3), [0.7]), keep=torch.zeros(5, dtype=torch.float64))


@pytest.mark.parametrize("levels", LEVELS.values(), ids=LEVELS)
@pytest.mark.parametrize("first", [False, True], ids=["some", "but_the_last"])
def test_codes_that_are_dropped(levels, first):
    usable = torch.arange(35) == 34 if first else draw(35, seed=9) > 0
    operands = operands_of((17, 35, 3), levels)
    compare(operands, usable=usable, keep=(draw(17, seed=8) > 0).double())
    nearest = backend.nearest_code(operands[0].float(), operands[1].float(), usable)
    assert usable[nearest].all()


def test_all_codes_dropped_make_no_nan():
    z, codebook = (leaf(part.float()) for part in problem(5, 20, 3))
    result = backend.soft_assign(
        z, codebook, torch.tensor([0.5]), None, torch.zeros(20, dtype=torch.bool)
    )
    sum(getattr(result, name).sum() for name in OUTPUTS).backward()
    assert torch.isfinite(z.grad).all()
    assert torch.isfinite(codebook.grad).all()


def test_blocks_do_not_change_the_results(monkeypatch):
    operands = operands_of((40, 50, 20), [0.3, 1.5])
    small = run(backend, operands, torch.float32)
    monkeypatch.setitem(backend.CODE_BLOCKS, 32, SMALL._replace(levels=1))
    alone = run(backend, operands, torch.float32)
    for table in (backend.FORWARD_BLOCKS, backend.ROW_BLOCKS, backend.CODE_BLOCKS):
        monkeypatch.setitem(table, 32, backend.Blocks(32, 64, 32, 4, 2))
    large = run(backend, operands, torch.float32)
    assert_close(list(small[0].values()), list(large[0].values()), rtol=1e-5, atol=1e-5)
    assert_close(small[1], large[1], rtol=1e-4, atol=1e-4)
    assert_close(small[1], alone[1], **ORACLE_FLOAT32)


def test_the_most_features():
    compare(operands_of((3, 5, backend.MAX_DIM), [100.0]), limits={"rtol": 1e-4, "atol": 1e-3})


def test_twice_the_same_numbers():
    operands = operands_of((40, 33, 3), [0.3, 1.5])
    first, second = (run(backend, operands, torch.float32) for _ in range(2))
    assert_close(list(first[0].values()), list(second[0].values()), **EXACT)
    assert_close(first[1], second[1], **EXACT)


# Indices


@pytest.mark.parametrize("num_codes", [2, 9, 33])
@pytest.mark.parametrize("temperature", [1e-6, 0.5])
def test_equal_codes_share_their_weight_and_the_lowest_gets_the_index(num_codes, temperature):
    codebook = 3 + draw(num_codes, 7, dtype=torch.float32)
    codebook[-1] = codebook[0] = 0
    z = 0.01 * draw(5, 7, seed=4, dtype=torch.float32)
    result = backend.soft_assign(z, codebook, torch.tensor([temperature]))
    assert_matches(result.indices, np.zeros(5))
    assert_matches(backend.nearest_code(z, codebook), np.zeros(5))
    assert_close(result.use[0, 0], result.use[0, -1], rtol=1e-6, atol=0)


def test_nearest_codes():
    z, codebook = problem(100, 50, 6, dtype=torch.float32)
    nearest = backend.nearest_code(z, codebook)
    assert nearest.dtype == torch.int64
    assert_close(nearest, reference.nearest_code(z, codebook))
    assert_close(nearest, backend.soft_assign(z, codebook, torch.tensor([1.0])).indices)


# Places and temperatures that break formulas


@pytest.mark.parametrize("distance", [1e2, 1e4])
def test_rows_far_from_every_code(distance):
    z, codebook = problem(5, 20, 3, dtype=torch.float32)
    z = z * distance
    result = backend.soft_assign(z, codebook, torch.tensor([distance]))
    expected = oracles.assign(z.double().numpy(), codebook.double().numpy(), distance)
    for name in [*OUTPUTS, "indices"]:
        value = getattr(result, name)
        value = value if name == "indices" else value[0]
        assert_matches(value, getattr(expected, name), **ORACLE_FLOAT32)


@pytest.mark.parametrize("ratio", [1e-8, 1e-4, 1e-2, 1.0, 1e2, 1e4, 1e8])
@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_temperatures_far_from_the_datas_scale(ratio, scale):
    z, codebook = (scale * part for part in problem(7, 20, 5, dtype=torch.float32))
    temperature = np.float32(ratio * scale**2)
    result = backend.soft_assign(z, codebook, torch.tensor([temperature]))
    expected = oracles.assign(z.double().numpy(), codebook.double().numpy(), float(temperature))
    for name in OUTPUTS:
        # What rounding costs: a share of the size of the terms, not of a small result.
        size = {"mean": scale, "spread": scale**2, "free_energy": scale**2}.get(name, 1.0)
        limits = {"rtol": ORACLE_FLOAT32["rtol"], "atol": ORACLE_FLOAT32["atol"] * size}
        assert_matches(getattr(result, name)[0], getattr(expected, name), **limits)


@pytest.mark.parametrize("ratio", [1e-40, 1e-30, 1e-20, 1e-8, 1e-3, 1.0, 1e3, 1e8])
def test_gradients_at_every_temperature(ratio):
    least = torch.finfo(torch.float32).tiny  # as the public functions hold it
    z, codebook = (part.float() for part in problem(20, 33, 4))
    level = torch.tensor([max(ratio, least)])
    _, ours = run(backend, (z, codebook, level), torch.float32)
    assert all(torch.isfinite(part).all() for part in ours)
    if ratio >= 1e-8:
        names = ["mean", "spread", "free_energy"]
        _, ours = run(backend, (z, codebook, level), torch.float32, names=names)
        _, exact = run(reference, (z, codebook, level), torch.float64, names=names)
        assert_close([part.double() for part in ours[:2]], list(exact[:2]), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("temperature", [1e-8, 1e-20, 1.2e-38])
def test_at_tiny_temperatures_the_weights_do_not_move(temperature):
    operands = (*problem(17, 33, 5), torch.tensor([temperature]))
    outputs, gradients = run(backend, operands, torch.float32, names=["mean"])
    chosen = operands[1].float()[outputs["indices"]]
    assert_close(outputs["mean"][0], chosen, rtol=0, atol=1e-6)
    assert_matches(gradients[0], np.zeros((17, 5)), rtol=0, atol=1e-6)
    assert_matches(gradients[2], np.zeros(1), rtol=0, atol=1e-6)


def test_what_kernels_round_apart_moves_no_weight(monkeypatch):
    # Steps of other sizes add up in another order, as matrix units do for blocks of other sizes.
    wide = SMALL._replace(chunk=32)
    monkeypatch.setitem(backend.FORWARD_BLOCKS, 64, wide)
    monkeypatch.setitem(backend.CODE_BLOCKS, 64, wide)
    operands = (*problem(17, 33, 40, dtype=torch.float32), torch.tensor([1e-8]))
    names = ["mean", "free_energy"]
    _, ours = run(backend, operands, torch.float32, names=names)
    _, exact = run(reference, operands, torch.float64, names=names)
    assert_close([part.double() for part in ours], list(exact), **ORACLE_FLOAT32)


def test_a_row_on_its_code_has_no_gradient():
    z = leaf(torch.tensor([[1.0, 2.0]]))
    codebook = leaf(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    result = backend.soft_assign(z, codebook, torch.tensor([1e-3]))
    (result.free_energy + result.spread).sum().backward()
    assert_matches(z.grad, np.zeros((1, 2)), rtol=0, atol=1e-6)
    assert_matches(codebook.grad, np.zeros((2, 2)), rtol=0, atol=1e-6)


@pytest.mark.parametrize(("share", "limit"), [(1e-1, 1e-4), (1e-2, 1e-4), (1e-4, 1e-2)])
def test_spread_keeps_its_digits(share, limit):
    axis = torch.nn.functional.normalize(draw(6, 8), dim=-1)
    step = share**0.5 * torch.nn.functional.normalize(draw(6, 8, seed=5), dim=-1)
    codebook = torch.cat([axis - step, axis + step]).float()
    z = (axis + 0.1 * step * draw(6, 1, seed=6)).float()
    result = backend.soft_assign(z, codebook, torch.tensor([0.5 * share]))
    expected = oracles.assign(z.double().numpy(), codebook.double().numpy(), 0.5 * share)
    assert_matches(result.spread[0], expected.spread, rtol=limit, atol=0)


def test_no_rows():
    z, codebook = (leaf(part.float()) for part in problem(0, 4, 3))
    result = backend.soft_assign(z, codebook, torch.tensor([0.5, 1.0]))
    assert result.mean.shape == (2, 0, 3)
    assert result.indices.shape == (0,)
    assert_matches(result.use, np.zeros((2, 4)))
    (result.free_energy.sum() + result.use.sum()).backward()
    assert_matches(codebook.grad, np.zeros((4, 3)))
    assert backend.nearest_code(z, codebook).shape == (0,)


@pytest.mark.parametrize(
    "name", ["transposed", "features_first", "strided", "expanded", "zero_stride"]
)
def test_strides_change_neither_outputs_nor_gradients(name):
    z = views(draw(1, 18, 4).float())[name][0]
    codebook = views(draw(1, 20, 4, seed=3).float())["features_first"][0]
    level = torch.tensor([0.6])
    given, same = (leaf(z), leaf(codebook)), (leaf(z.contiguous()), leaf(codebook.contiguous()))
    weights = draw(18, 4, seed=5).float().mT.contiguous().mT
    found = []
    for rows, codes in (given, same):
        result = backend.soft_assign(rows, codes, level)
        total = (result.mean[0] * weights).sum() + result.spread.sum()
        found.append((list(result), torch.autograd.grad(total, (rows, codes))))
    assert_close(*found, **SAME_FLOAT32)


# As an operator


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_the_assignment_is_a_well_behaved_operator():
    z, codebook = (leaf(part.float()) for part in problem(3, 5, 2))
    keep = torch.tensor([1.0, 0.0, 1.0])
    usable = torch.tensor([True, False, True, True, True])
    operands = (z, codebook, leaf(torch.tensor([0.5, 1.0])), keep, usable)
    torch.library.opcheck(torch.ops.softvq.triton_soft_assign.default, operands)


def test_the_nearest_code_is_a_well_behaved_operator():
    operands = (*problem(3, 5, 2, dtype=torch.float32), None)
    torch.library.opcheck(torch.ops.softvq.triton_nearest_code.default, operands)


def test_compilers_see_one_node():
    z, codebook = (leaf(part.float()) for part in problem(5, 7, 3))
    level = torch.tensor([0.5])

    def loss(z, codebook):
        return backend.soft_assign(z, codebook, level).mean.square().sum()

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    ours = torch.autograd.grad(compiled(z, codebook), (z, codebook))
    plain = torch.autograd.grad(loss(z, codebook), (z, codebook))
    assert_close(ours, plain, **SAME_FLOAT32)


def test_a_second_derivative_is_refused():
    z, codebook = (leaf(part.float()) for part in problem(2, 3, 2))
    result = backend.soft_assign(z, codebook, torch.tensor([1.0]))
    (gradient,) = torch.autograd.grad(result.mean.sum(), z, create_graph=True)
    with pytest.raises(RuntimeError, match=r"softvq\.triton_soft_assign_backward"):
        gradient.sum().backward()


@pytest.mark.parametrize("padded", [16, 32, 64, 128, 256])
def test_the_kernels_add_up_a_score_in_one_order(padded):
    tables = (CUTS[0][padded], CUTS[1][padded], CUTS[2][padded])
    assert len({cut.chunk for cut in tables}) == 1
    assert all(16 <= size <= 64 for cut in tables for size in (cut.rows, cut.codes))
    assert all(cut.chunk <= padded for cut in tables)


# Where it cannot run


@pytest.mark.parametrize(
    ("dim", "dtype", "reason"),
    [
        (64, torch.float64, "computes in float32, and the dtype here is torch.float64"),
        (257, torch.float32, "at most 256 features, and D is 257"),
    ],
    ids=["float64", "features"],
)
def test_what_it_cannot_do_has_a_reason(dim, dtype, reason):
    assert reason in backend.unavailable(torch.device("cpu"), dim, dtype)


def test_without_the_interpreter_it_needs_a_device(monkeypatch):
    assert backend.unavailable(torch.device("cpu"), 256, torch.float32) is None
    monkeypatch.setattr(backend._kernels("forward"), "INTERPRETED", False)
    reason = backend.unavailable(torch.device("cpu"), 64, torch.float32)
    assert reason == "it needs a CUDA device, and the tensors are on cpu"


def test_without_triton_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(backend.importlib.util, "find_spec", lambda name: None)
    reason = backend.unavailable(torch.device("cuda"), 64, torch.float32)
    assert reason == "triton is not installed: pip install triton"
