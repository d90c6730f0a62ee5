import pytest
import torch
from torch.testing import assert_close

from softvq.functional import nearest_code, soft_assign_and_use
from softvq.functional.backends import native, native_build, reference
from softvq.functional.backends.operators import Gradients, Kept, Problem, Saved
from tests.compilers import needs_compiler
from tests.contracts.backend import OUTPUTS, BackendContract, draw, leaf, problem
from tests.tolerances import ORACLE_FLOAT32

pytestmark = needs_compiler

# (N, K, D): one of each, odd edges, whole panels and vectors, several tiles.
SIZES = [(1, 1, 1), (5, 7, 3), (130, 64, 16), (49, 200, 20), (97, 300, 70)]


class TestNative(BackendContract):
    backend = "native"
    widest = torch.float32


def everything(module, given, *, dtype=torch.float32, names=OUTPUTS, keep=None, usable=None):
    """Outputs by name and gradients of a drawn sum of those named, in float64."""
    leaves = [leaf(part.to(dtype)) for part in given]
    kept = None if keep is None else keep.to(dtype)
    outputs = module.soft_assign(*leaves, kept, usable)._asdict()
    total = sum(
        (outputs[name] * draw(*outputs[name].shape, seed=10 + OUTPUTS.index(name)).to(dtype)).sum()
        for name in names
    )
    gradients = torch.autograd.grad(total, leaves, allow_unused=True)
    zeros = [torch.zeros_like(part) for part in leaves]
    found = [z if g is None else g for z, g in zip(zeros, gradients, strict=True)]
    return outputs, [part.double() for part in found]


def compare(given, **options):
    """Each output and gradient: as near to float64 as twice the reference in float32 is."""
    ours, our_gradients = everything(native, given, **options)
    rough, rough_gradients = everything(reference, given, **options)
    exact, exact_gradients = everything(reference, given, dtype=torch.float64, **options)
    assert_close(ours["indices"], exact["indices"])
    by_name = [
        *((name, ours[name], rough[name], exact[name]) for name in OUTPUTS),
        *zip(
            ("z", "codebook", "temperature"),
            our_gradients,
            rough_gradients,
            exact_gradients,
            strict=True,
        ),
    ]
    for name, mine, roughly, right in by_name:
        floor = ORACLE_FLOAT32["atol"] * max(1.0, right.abs().max().item())
        limit = floor + 2 * (roughly.double() - right).abs().max().item()
        assert (mine.double() - right).abs().max().item() <= limit, name


def operands(size, levels):
    return (*problem(*size), torch.tensor(levels, dtype=torch.float64))


# 0: everything by dense products; 1: everything by picking.
@pytest.mark.parametrize("share", [0.0, 0.25, 1.0], ids=["dense", "mixed", "picked"])
class TestAgainstReference:
    @pytest.fixture(autouse=True)
    def _share(self, monkeypatch, share):
        monkeypatch.setattr(native, "SPARSE_SHARE", share)

    @pytest.mark.parametrize("size", SIZES, ids=str)
    @pytest.mark.parametrize("levels", [[0.7], [3.0, 0.2], [0.3, 20.0, 3.0]], ids=str)
    def test_all_outputs_and_gradients(self, size, levels):
        compare(operands(size, levels))

    @pytest.mark.parametrize("names", [[name] for name in OUTPUTS] + [["mean", "use"]], ids=str)
    def test_the_gradient_of_each_output_alone(self, names):
        compare(operands((49, 200, 20), [3.0, 0.3]), names=names)

    def test_masks(self):
        keep, usable = (draw(49, seed=8) > 0).double(), draw(200, seed=9) > 0
        compare(operands((49, 200, 20), [3.0, 0.3]), keep=keep, usable=usable)

    def test_the_mean_at_one_level_and_the_free_energy_at_another(self, share):
        given = operands((49, 200, 20), [3.0, 0.3])
        found = []
        for module, dtype in ((native, torch.float32), (reference, torch.float64)):
            leaves = [leaf(part.to(dtype)) for part in given]
            out = module.soft_assign(*leaves)
            total = (out.mean[0] * draw(49, 20, seed=5).to(dtype)).sum()
            total = total + out.free_energy[1].sum() + out.use[0].square().sum()
            found.append([part.double() for part in torch.autograd.grad(total, leaves)])
        assert_close(*found, rtol=1e-4, atol=1e-4)

    @pytest.mark.parametrize("threads", [2, 3])
    def test_threads_change_nothing_but_the_order_of_sums(self, monkeypatch, threads):
        monkeypatch.setattr(native, "ROWS_A_THREAD", 1)
        monkeypatch.setattr(native, "WORK_A_THREAD", 1)
        given = operands((97, 300, 70), [3.0, 0.3])
        alone, _ = everything(native, given)
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            together, first = everything(native, given)
            _, again = everything(native, given)
            compare(given)
        finally:
            torch.set_num_threads(before)
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
        for name in (*OUTPUTS[:-1], "indices"):
            assert torch.equal(together[name], alone[name])


@pytest.mark.parametrize("filler", [float("nan"), float("inf"), -float("inf")])
def test_a_row_that_is_not_finite_spoils_itself_and_the_sums_over_rows(filler):
    z, codebook, levels = operands((9, 200, 20), [3.0, 0.3])
    spoilt = z.clone()
    spoilt[4, 3] = filler
    clean, _ = everything(native, (z, codebook, levels))
    outputs, (d_z, d_codebook, _) = everything(native, (spoilt, codebook, levels))
    others = torch.arange(9) != 4
    for name in OUTPUTS[:-1]:
        assert torch.equal(outputs[name][:, others], clean[name][:, others])
        assert outputs[name][:, 4].isnan().all()
    assert 0 <= outputs["indices"][4] < 200
    assert outputs["use"].isnan().all()
    assert d_z[4].isnan().all()
    assert d_z[others].isfinite().all()
    assert d_codebook.isnan().all()


def test_a_code_that_is_not_finite_spoils_all():
    z, codebook, levels = operands((9, 200, 20), [3.0, 0.3])
    codebook[7, 2] = float("nan")
    outputs, (d_z, d_codebook, _) = everything(native, (z, codebook, levels))
    assert all(outputs[name].isnan().all() for name in OUTPUTS)
    assert d_z.isnan().all()
    assert d_codebook.isnan().all()


def test_what_is_left_out_is_below_the_last_digit():
    # Codes on a line from a row outwards, whose weights pass the cut one by one.
    codebook = torch.linspace(0, 8, 4000)[:, None].double()
    z, levels = torch.zeros(3, 1, dtype=torch.float64), torch.tensor([1.0], dtype=torch.float64)
    weights = (-(codebook[:, 0] ** 2)).softmax(0)
    out = native.soft_assign(z.float(), codebook.float(), levels.float())
    dropped = out.use[0] == 0
    assert 100 < dropped.sum() < 3000
    assert weights[dropped].sum() < 2**-25
    assert -(weights * weights.log())[dropped].sum() < 2**-25


@pytest.mark.parametrize("backend", ["native", "auto"])
def test_indices_are_the_references_on_many_rows(backend):
    z, codebook = problem(3000, 700, 12, dtype=torch.float32)
    exact = nearest_code(z.double(), codebook.double(), backend="reference")
    assert_close(nearest_code(z, codebook, backend=backend), exact)


# (N, K, D), T of each level: few weights a row; more than are noted, on some rows or on all, and
# still picked; one level picked and one dense.
NOTED = [
    ((130, 300, 6), [0.02]),
    ((130, 400, 6), [0.15, 0.02]),
    ((200, 600, 4), [0.3]),
    ((97, 300, 6), [30.0, 0.02]),
]


@pytest.mark.parametrize(("size", "levels"), NOTED, ids=str)
def test_the_backward_pass_is_the_same_from_notes_as_from_scores(size, levels):
    z, codebook, temperature = (part.float() for part in operands(size, levels))
    given = Problem(z, codebook, temperature, None, None)
    saved = native._forward(given)
    kept = Kept(*(getattr(saved, name) for name in Kept._fields))
    flows = Gradients(
        draw(*saved.mean.shape, seed=1).float(),
        *(draw(*saved.spread.shape, seed=seed).float() for seed in (2, 3, 4)),
        draw(*saved.use.shape, seed=5).float(),
    )
    heads = kept.notes[: 3 * saved.spread.numel()].reshape(*saved.spread.shape, 3)
    assert ((heads[..., 2] >= 0).all(-1).sum() > 0) == (levels != [0.3])
    found = native._backward(given, kept, flows, True)
    unnoted = kept.notes.clone()
    unnoted[2 : heads.numel() : 3] = -1
    expected = native._backward(given, kept._replace(notes=unnoted), flows, True)
    for mine, right in zip(found, expected, strict=True):
        assert torch.equal(mine, right)


def test_the_backward_pass_needs_no_scores_where_all_was_noted():
    z, codebook, temperature = (part.float() for part in operands((130, 300, 6), [0.02]))
    given = Problem(z, codebook, temperature, None, None)
    saved = native._forward(given)
    kept = Kept(*(getattr(saved, name) for name in Kept._fields))
    flows = Gradients(None, None, torch.ones_like(saved.spread), None, None)
    d_z, _, _ = native._backward(given, kept, flows, True)
    # With notes that tell of other codes, the gradient is another: scores were not looked at.
    places = kept.notes[3 * 130 : 3 * 130 + 32 * 130]
    kept.notes[3 * 130 : 3 * 130 + 32 * 130] = (places + 1) % 300
    assert not torch.allclose(native._backward(given, kept, flows, True)[0], d_z)


def test_notes_hold_whatever_number_of_threads_reads_them():
    z, codebook, temperature = (part.float() for part in operands((900, 300, 16), [0.1]))
    given = Problem(z, codebook, temperature, None, None)
    threads = torch.get_num_threads()
    found = []
    try:
        for forward, backward in ((1, 1), (1, 3), (3, 1)):
            torch.set_num_threads(forward)
            saved = native._forward(given)
            kept = Kept(*(getattr(saved, name) for name in Kept._fields))
            torch.set_num_threads(backward)
            flows = Gradients(None, None, torch.ones_like(saved.spread), None, None)
            found.append(native._backward(given, kept, flows, True))
    finally:
        torch.set_num_threads(threads)
    for other in found[1:]:
        assert_close(other[0], found[0][0])
        assert_close(other[1], found[0][1])


def test_the_length_of_the_notes_is_the_kernels():
    assert native_build.load().library.softvq_notes() == native.NOTES_A_ROW


def test_saved_fields_are_those_of_the_contract():
    assert Saved._fields[:6] == ("mean", "spread", "free_energy", "entropy", "indices", "use")


def test_a_second_derivative_is_refused():
    z, codebook = (leaf(part) for part in problem(2, 3, 2, dtype=torch.float32))
    codes, _ = soft_assign_and_use(z, codebook, temperature=1.0, backend="native")
    (gradient,) = torch.autograd.grad(codes.mean.sum(), z, create_graph=True)
    with pytest.raises(RuntimeError, match=r"softvq\.native_soft_assign_backward"):
        gradient.sum().backward()


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("masked", [False, True])
def test_the_assignment_is_a_well_behaved_operator(masked):
    z, codebook = (leaf(part) for part in problem(3, 5, 2, dtype=torch.float32))
    keep = torch.tensor([1.0, 0.0, 1.0]) if masked else None
    usable = torch.tensor([True, True, False, True, True]) if masked else None
    given = (z, codebook, leaf(torch.tensor([0.5, 1.0])), keep, usable)
    torch.library.opcheck(torch.ops.softvq.native_soft_assign.default, given)


@pytest.mark.compiled
def test_it_compiles_whole_and_gives_the_same():
    z, codebook = (leaf(part) for part in problem(300, 200, 4, dtype=torch.float32))

    def function(z, codebook):
        codes, use = soft_assign_and_use(z, codebook, temperature=torch.tensor([2.0, 0.3]))
        loss = codes.free_energy.sum() + codes.mean.square().sum() + use.square().sum()
        return loss, nearest_code(z, codebook)

    found = []
    for run in (function, torch.compile(function, fullgraph=True, backend="aot_eager")):
        loss, nearest = run(z, codebook)
        found.append([loss.detach(), nearest, *torch.autograd.grad(loss, (z, codebook))])
    assert_close(*found, rtol=1e-5, atol=1e-5)
