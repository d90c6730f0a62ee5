import subprocess
import sys

import pytest
import torch
from torch.testing import assert_close

from softvq.functional import nearest_code, soft_assign, soft_assign_and_use
from softvq.functional.backends import blocks
from tests.contracts.backend import OUTPUTS, BackendContract, draw, leaf, problem
from tests.tolerances import SAME_FLOAT32, SAME_FLOAT64

SIZES = [(1, 1, 1), (2, 3, 1), (7, 5, 3), (33, 17, 5), (65, 129, 8)]


@pytest.fixture
def block(monkeypatch, request):
    monkeypatch.setitem(blocks.BLOCK_ELEMENTS, "cpu", request.param)


def everything(backend, size, levels, mask, names):
    """Outputs, and the gradients of a random sum of those named."""
    z, codebook = (leaf(part) for part in problem(*size))
    temperature = leaf(torch.tensor(levels, dtype=torch.float64))
    codes, use = soft_assign_and_use(
        z, codebook, temperature=temperature, mask=mask, backend=backend
    )
    outputs = {**codes._asdict(), "use": use}
    total = sum(
        (outputs[name] * draw(*outputs[name].shape, seed=10 + OUTPUTS.index(name))).sum()
        for name in names
    )
    gradients = torch.autograd.grad(total, (z, codebook, temperature), allow_unused=True)
    zero = torch.zeros(())
    return list(outputs.values()), [zero if g is None else g for g in gradients]


class TestChunked(BackendContract):
    backend = "chunked"


@pytest.mark.parametrize("block", [1, 40, 1000, 10**9], indirect=True)
class TestAgainstReference:
    @pytest.mark.parametrize("size", SIZES, ids=str)
    @pytest.mark.parametrize("levels", [0.3, [0.05, 4.0]], ids=["one", "two"])
    @pytest.mark.parametrize("masked", [False, True], ids=["all", "masked"])
    def test_all_outputs_and_gradients(self, block, size, levels, masked):
        mask = draw(size[0], seed=9) > 0 if masked else None
        ours, theirs = (
            everything(name, size, levels, mask, OUTPUTS) for name in ("chunked", "reference")
        )
        assert_close(ours, theirs, **SAME_FLOAT64)

    @pytest.mark.parametrize("names", [[name] for name in OUTPUTS] + [["mean", "use"]], ids=str)
    def test_the_gradient_of_each_output_alone(self, block, names):
        mask = draw(13, seed=9) > 0
        ours, theirs = (
            everything(name, (13, 11, 3), [0.2, 1.0], mask, names)
            for name in ("chunked", "reference")
        )
        # A temperature that an output does not depend on may come back as zeros or as nothing.
        assert_close(ours, theirs, **SAME_FLOAT64)

    def test_nearest_codes(self, block):
        z, codebook = problem(256, 33, 6)
        assert_close(
            nearest_code(z, codebook, backend="chunked"),
            nearest_code(z, codebook, backend="reference"),
        )


@pytest.mark.parametrize("temperature", [1e-8, 1e-3, 1.0, 1e3, 1e8])
def test_float32_gradients_at_every_temperature(temperature):
    def gradients(backend, dtype):
        z, codebook = (leaf(part.to(dtype)) for part in problem(40, 60, 4, dtype=torch.float32))
        codes = soft_assign(z, codebook, temperature=temperature, backend=backend)
        weights = draw(40, 4, seed=3, dtype=dtype)
        total = (codes.mean * weights).sum() + codes.free_energy.sum() + codes.spread.sum()
        return [g.double() for g in torch.autograd.grad(total, (z, codebook))]

    exact = gradients("reference", torch.float64)
    limits = {"rtol": 1e-3, "atol": 1e-3}
    assert_close(gradients("chunked", torch.float32), exact, **limits)
    assert_close(gradients("reference", torch.float32), exact, **limits)


def test_a_second_derivative_is_refused():
    z, codebook = (leaf(part) for part in problem(2, 3, 2))
    codes = soft_assign(z, codebook, temperature=1.0, backend="chunked")
    (gradient,) = torch.autograd.grad(codes.mean.sum(), z, create_graph=True)
    with pytest.raises(RuntimeError, match=r"softvq\.soft_assign_backward"):
        gradient.sum().backward()


# The warning is about a tensor of the checker's own.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("keep", [None, [1.0, 0.0, 1.0]], ids=["all", "masked"])
@pytest.mark.parametrize("usable", [None, [True, True, False, True, True]], ids=["full", "some"])
def test_the_assignment_is_a_well_behaved_operator(keep, usable):
    z, codebook = (leaf(part) for part in problem(3, 5, 2))
    temperature = leaf(torch.tensor([0.5, 1.0], dtype=torch.float64))
    mask = None if keep is None else torch.tensor(keep, dtype=torch.float64)
    usable = None if usable is None else torch.tensor(usable)
    arguments = (z, codebook, temperature, mask, usable)
    torch.library.opcheck(torch.ops.softvq.soft_assign.default, arguments)


def test_the_nearest_code_is_a_well_behaved_operator():
    torch.library.opcheck(torch.ops.softvq.nearest_code.default, (*problem(3, 5, 2), None))


@pytest.mark.parametrize("missing", [None, 0, 1, 2, 3, 4])
def test_the_backward_pass_is_a_well_behaved_operator(missing):
    z, codebook = problem(3, 5, 2)
    temperature = torch.tensor([0.5, 1.0], dtype=torch.float64)
    out = torch.ops.softvq.soft_assign(z, codebook, temperature, None, None)
    gradients = [torch.ones_like(out[i]) for i in (0, 1, 2, 3, 5)]
    if missing is not None:
        gradients[missing] = None
    torch.library.opcheck(
        torch.ops.softvq.soft_assign_backward.default,
        (
            *(z, codebook, temperature, None, None),
            *(out[0], out[3], out[4], out[6], out[7], out[8]),
            *(*gradients, True),
        ),
    )


# Peak memory is that of a process of its own, over what the process held before.
GROWTH = """
import torch
torch.set_num_threads(1)
from softvq.functional import nearest_code, soft_assign

def status(name):
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024

def work(rows, codes, dim):
    z, codebook = torch.randn(rows, dim), torch.randn(codes, dim)
    {setup}
    with open("/proc/self/clear_refs", "w") as reset:
        reset.write("5")
    before = status("VmRSS")
    {action}
    return status("VmHWM") - before

work(64, 4096, {dim})
print(work({rows}, {codes}, {dim}))
"""


def growth(**parts):
    """MiB by which a process grows at most in ``action``."""
    program = GROWTH.format(**parts)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return float(done.stdout)


def test_nearest_codes_need_no_matrix_of_rows_and_codes():
    # The matrix alone would be 4 GiB.
    action = "nearest_code(z, codebook)"
    assert growth(rows=16384, codes=65536, dim=8, setup="", action=action) < 1024


@pytest.mark.slow
def test_soft_assignment_forward_and_backward_in_linear_memory():
    setup = "z.requires_grad_(); codebook.requires_grad_()"
    action = (
        "codes = soft_assign(z, codebook, temperature=0.5);"
        " (codes.free_energy.mean() + codes.mean.square().mean()).backward()"
    )
    assert growth(rows=16384, codes=16384, dim=32, setup=setup, action=action) <= 100


def test_float32_agrees_with_reference_on_many_rows():
    z, codebook = problem(500, 300, 16, dtype=torch.float32)
    ours, theirs = (
        soft_assign(z, codebook, temperature=2.0, backend=name) for name in ("chunked", "reference")
    )
    assert_close(ours.mean, theirs.mean, **SAME_FLOAT32)
    assert_close(ours.entropy, theirs.entropy, rtol=1e-5, atol=1e-5)
