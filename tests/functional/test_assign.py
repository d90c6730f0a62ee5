import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from softvq.functional import (
    count_codes,
    decompose,
    nearest_code,
    soft_assign,
    soft_assign_and_use,
    soft_mean,
    sum_by_code,
    summarize,
)
from tests import oracles
from tests.contracts.backend import OUTPUTS, assert_matches, draw, leaf, problem
from tests.tolerances import EXACT, ORACLE_FLOAT64, SAME_FLOAT64

SIZE = st.integers(1, 12)
TEMPERATURE = st.floats(-3, 3).map(lambda power: 10.0**power)
BACKEND = st.sampled_from(["reference", "chunked"])


@st.composite
def problems(draw_from):
    """Rows, codes and a temperature at any size, from a drawn seed."""
    num_rows, num_codes, dim = (draw_from(SIZE) for _ in range(3))
    seed = draw_from(st.integers(0, 2**20))
    z, codebook = draw(num_rows, dim, seed=seed), draw(num_codes, dim, seed=seed + 1)
    return z, codebook, draw_from(TEMPERATURE), draw_from(BACKEND)


def everything(z, codebook, temperature, backend):
    codes, use = soft_assign_and_use(z, codebook, temperature=temperature, backend=backend)
    return {**codes._asdict(), "use": use}


class TestProperties:
    @given(problems())
    def test_use_is_a_share(self, drawn):
        use = everything(*drawn)["use"]
        assert (use >= 0).all()
        assert_matches(use.sum(), 1.0, **SAME_FLOAT64)

    @given(problems(), st.randoms(use_true_random=False))
    def test_the_order_of_codes_does_not_matter(self, drawn, random):
        z, codebook, temperature, backend = drawn
        order = torch.tensor(random.sample(range(len(codebook)), len(codebook)))
        here, there = (
            everything(z, codes, temperature, backend) for codes in (codebook, codebook[order])
        )
        assert_close(there["use"], here["use"][order], **ORACLE_FLOAT64)
        assert_close(order[there["indices"]], here["indices"])
        assert_close(there["mean"], here["mean"], **ORACLE_FLOAT64)
        assert_close(there["free_energy"], here["free_energy"], **ORACLE_FLOAT64)

    @given(problems(), st.floats(-100, 100))
    def test_a_shift_of_everything_moves_the_mean_alone(self, drawn, shift):
        z, codebook, temperature, backend = drawn
        here = everything(z, codebook, temperature, backend)
        there = everything(z + shift, codebook + shift, temperature, backend)
        there["mean"] = there["mean"] - shift
        assert_close(there, here, rtol=1e-8, atol=1e-8)

    @given(problems(), st.floats(-4, 4).map(lambda power: 10.0**power))
    def test_temperature_has_the_unit_of_a_squared_distance(self, drawn, scale):
        z, codebook, temperature, backend = drawn
        here = everything(z, codebook, temperature, backend)
        there = everything(scale * z, scale * codebook, scale**2 * temperature, backend)
        there["mean"] = there["mean"] / scale
        there["spread"] = there["spread"] / scale**2
        there["free_energy"] = there["free_energy"] / scale**2
        assert_close(there, here, rtol=1e-8, atol=1e-8)

    @given(problems())
    def test_the_limit_of_small_temperatures_is_hard(self, drawn):
        z, codebook, _, backend = drawn
        result = everything(z, codebook, 1e-12, backend)
        nearest = nearest_code(z, codebook, backend=backend)
        assert_close(result["indices"], nearest)
        assert_close(result["mean"], codebook[nearest], rtol=0, atol=1e-9)
        shares = torch.bincount(nearest, minlength=len(codebook)).double() / len(z)
        assert_close(result["use"], shares, rtol=0, atol=1e-9)

    @given(problems())
    def test_distortion_is_residual_plus_spread(self, drawn):
        z, codebook, temperature, backend = drawn
        split = decompose(z, soft_assign(z, codebook, temperature=temperature, backend=backend))
        expected = oracles.assign(z.numpy(), codebook.numpy(), temperature)
        assert_close(split.ols + split.spread, split.distortion, **EXACT)
        assert_matches(split.distortion, expected.distortion, **ORACLE_FLOAT64)

    @given(problems())
    def test_free_energy_is_distortion_less_temperature_times_entropy(self, drawn):
        z, codebook, temperature, backend = drawn
        codes = soft_assign(z, codebook, temperature=temperature, backend=backend)
        distortion = decompose(z, codes).distortion
        limits = {"rtol": 1e-10, "atol": 1e-10 * max(1.0, temperature)}
        assert_close(codes.free_energy, distortion - temperature * codes.entropy, **limits)

    @given(problems())
    def test_rows_do_not_see_each_other(self, drawn):
        z, codebook, temperature, backend = drawn
        together = soft_assign(z, codebook, temperature=temperature, backend=backend)
        alone = soft_assign(z[-1:], codebook, temperature=temperature, backend=backend)
        assert_close([part[-1:] for part in together], list(alone), **ORACLE_FLOAT64)


class TestSums:
    def test_counts_leave_out_what_has_no_code(self):
        counts = count_codes(torch.tensor([[2, 0, -1], [2, 2, -1]]), num_codes=4)
        assert counts.dtype == torch.int64
        assert counts.tolist() == [1, 0, 3, 0]

    def test_counts_past_the_largest_half(self):
        assert count_codes(torch.zeros(70000, dtype=torch.int64), num_codes=1).tolist() == [70000]

    def test_sums_are_those_of_a_loop(self):
        z, _ = problem(20, 1, 3)
        indices = torch.arange(20) % 5 - 1
        expected = [[float(z[indices == k, d].sum()) for d in range(3)] for k in range(6)]
        assert_matches(sum_by_code(z, indices, num_codes=6), expected, **SAME_FLOAT64)

    def test_sums_leave_out_nan_without_a_code(self):
        z = torch.tensor([[1.0], [float("nan")], [3.0]], requires_grad=True)
        sums = sum_by_code(z, torch.tensor([1, -1, 1]), num_codes=2)
        assert sums.tolist() == [[0.0], [4.0]]
        assert not sums.requires_grad

    def test_sums_of_low_precision_are_float32(self):
        z = torch.full((600, 1), 1.0, dtype=torch.bfloat16)
        sums = sum_by_code(z, torch.zeros(600, dtype=torch.int64), num_codes=1)
        assert (sums.dtype, sums.item()) == (torch.float32, 600.0)

    def test_no_rows(self):
        empty = torch.zeros(0, dtype=torch.int64)
        assert count_codes(empty, num_codes=2).tolist() == [0, 0]
        assert sum_by_code(torch.zeros(0, 3), empty, num_codes=2).tolist() == [[0.0] * 3] * 2

    @pytest.mark.parametrize("backend", ["auto", "reference", "chunked"])
    def test_summary_is_the_oracles(self, backend):
        z, codebook = problem(11, 4, 3)
        mask = torch.arange(11) % 3 > 0
        result = summarize(z, codebook, temperature=0.4, mask=mask, backend=backend)
        expected = oracles.assign(z.numpy(), codebook.numpy(), 0.4, mask.numpy())
        owner = torch.where(mask, torch.from_numpy(expected.indices), -1)
        assert_matches(result.use, expected.use, **ORACLE_FLOAT64)
        assert result.counts.tolist() == [int((owner == k).sum()) for k in range(4)]
        sums = torch.stack([z[owner == k].sum(0) for k in range(4)])
        assert_close(result.sums, sums, **SAME_FLOAT64)


@pytest.mark.parametrize("backend", ["auto", "sdpa"])
def test_soft_mean_is_part_of_the_whole(backend):
    z, codebook = problem(9, 6, 4)
    part = soft_mean(z, codebook, temperature=0.3, backend=backend)
    whole = soft_assign(z, codebook, temperature=0.3)
    assert_close(part.mean, whole.mean, **SAME_FLOAT64)
    assert_close(part.spread, whole.spread, **SAME_FLOAT64)


def test_the_choice_of_back_end_changes_no_value():
    z, codebook = problem(300, 120, 4)  # over the limit for the dense formulas
    auto = everything(z, codebook, 0.3, "auto")
    assert_close(auto, everything(z, codebook, 0.3, "chunked"), **EXACT)
    assert_close(auto, everything(z, codebook, 0.3, "reference"), **SAME_FLOAT64)


@pytest.mark.parametrize("temperature", [1e-40, 1e-60, 1e60])
def test_a_temperature_outside_of_float32_is_held_inside(temperature):
    z, codebook = (leaf(part.float()) for part in problem(5, 4, 3))
    result = everything(z, codebook, temperature, "auto")
    result["mean"].sum().backward()
    expected = nearest_code(z, codebook) if temperature < 1 else None
    mean = codebook.mean(0).expand(5, 3) if expected is None else codebook[expected]
    assert_close(result["mean"], mean, rtol=1e-5, atol=1e-6)
    assert torch.isfinite(z.grad).all()


def test_nearest_code_takes_no_gradient():
    z, codebook = (leaf(part) for part in problem(5, 4, 3))
    assert not nearest_code(z, codebook).requires_grad


GOOD = {"z": torch.zeros(5, 3), "codebook": torch.ones(4, 3), "temperature": 1.0}
BAD = {
    "another feature size": ({"z": torch.zeros(5, 2)}, r"z must be \(\.\.\., N, 3\).*\(5, 2\)"),
    "one axis": ({"z": torch.zeros(3)}, r"z must be \(\.\.\., N, 3\).*got \(3,\)"),
    "integer z": ({"z": torch.zeros(5, 3).long()}, r"z must be.*int64.*z\.float\(\)"),
    "complex z": ({"z": torch.zeros(5, 3) + 0j}, r"z must be a floating-point.*complex64"),
    "z no tensor": ({"z": [[0.0]]}, "z must be a tensor; got list"),
    "integer codes": (
        {"codebook": torch.ones(4, 3).int()},
        r"codebook must be a floating.*int32.*codebook\.float\(\)",
    ),
    "no code": ({"codebook": torch.ones(0, 3)}, r"codebook must be \(K, D\).*\(0, 3\)"),
    "no feature": (
        {"z": torch.zeros(5, 0), "codebook": torch.ones(4, 0)},
        r"codebook must be \(K, D\) with K and D at least 1.*\(4, 0\)",
    ),
    "three axes of codes": ({"codebook": torch.ones(2, 4, 3)}, r"codebook must be \(K, D\)"),
    "codes elsewhere": (
        {"codebook": torch.ones(4, 3, device="meta")},
        "z is on cpu and codebook on meta",
    ),
    "mask of another shape": (
        {"mask": torch.ones(4, dtype=torch.bool)},
        r"mask must have shape \(5,\).*got \(4,\)",
    ),
    "mask of numbers": ({"mask": torch.ones(5)}, r"mask must be a bool tensor.*float32"),
    "mask no tensor": ({"mask": [True] * 5}, "mask must be a bool tensor.*list"),
    "code mask of another shape": (
        {"code_mask": torch.ones(5, dtype=torch.bool)},
        r"code_mask must have shape \(4,\).*got \(5,\)",
    ),
    "code mask of numbers": ({"code_mask": torch.ones(4)}, r"code_mask must be a bool.*float32"),
    "T zero": ({"temperature": 0.0}, r"temperature must be a finite number > 0; got 0\.0"),
    "T negative": ({"temperature": -1}, "temperature must be a finite number > 0; got -1"),
    "T nan": ({"temperature": float("nan")}, "temperature must be.*got nan"),
    "T infinite": ({"temperature": float("inf")}, "temperature must be.*got inf"),
    "T true": ({"temperature": True}, "temperature must be.*got True"),
    "T a word": ({"temperature": "hot"}, "temperature must be.*got 'hot'"),
    "T tensor zero": ({"temperature": torch.zeros(())}, "temperature must be.*got 0"),
    "one T of several": ({"temperature": torch.tensor([1.0, -2.0])}, "temperature.*got -2"),
    "T tensor nan": ({"temperature": torch.tensor(float("nan"))}, "temperature.*got nan"),
    "T integer": ({"temperature": torch.tensor(1)}, "temperature must be a floating.*int64"),
    "T of two axes": ({"temperature": torch.ones(2, 2)}, r"temperature must be 0-dim.*\(2, 2\)"),
    "T of no length": ({"temperature": torch.ones(0)}, r"temperature must be 0-dim.*\(0,\)"),
    "T elsewhere": ({"temperature": torch.ones((), device="meta")}, "temperature is on meta"),
    "back end unknown": (
        {"backend": "chunk"},
        "backend is 'chunk'; valid are: auto, reference, sdpa, chunked.*'chunked'",
    ),
    "back end of means": ({"backend": "sdpa"}, "backend='sdpa' gives mean and spread alone"),
}


@pytest.mark.bad_input
@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("function", [soft_assign, soft_assign_and_use, summarize])
def test_bad_arguments(function, case):
    change, message = BAD[case]
    given_ = {**GOOD, **change}
    with pytest.raises(ValueError, match=message):
        function(given_.pop("z"), given_.pop("codebook"), **given_)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    "case", [k for k, (change, _) in BAD.items() if "temperature" not in change]
)
def test_bad_arguments_of_nearest_code(case):
    change, message = BAD[case]
    given_ = {**GOOD, **change}
    del given_["temperature"]
    with pytest.raises(ValueError, match=message):
        nearest_code(given_.pop("z"), given_.pop("codebook"), **given_)


@pytest.mark.bad_input
@pytest.mark.parametrize("backend", ["auto", "sdpa"])
@pytest.mark.parametrize("case", [name for name, (change, _) in BAD.items() if len(change) == 1])
def test_bad_arguments_of_soft_mean(case, backend):
    change, message = BAD[case]
    if not change.keys() <= {"z", "codebook", "temperature"}:
        change, message = {"backend": "warp"}, "backend is 'warp'; valid are: auto"
    given_ = {**GOOD, "backend": backend, **change}
    with pytest.raises(ValueError, match=message):
        soft_mean(given_.pop("z"), given_.pop("codebook"), **given_)


@pytest.mark.compiled
class TestCompiled:
    def test_values_and_gradients_are_those_of_eager_code(self):
        def function(z, codebook, temperature, mask):
            codes, use = soft_assign_and_use(z, codebook, temperature=temperature, mask=mask)
            return *codes, use

        results = []
        for run in (function, torch.compile(function, fullgraph=True)):
            z, codebook = (leaf(part) for part in problem(40, 30, 4))
            temperature = leaf(torch.tensor([0.5, 2.0], dtype=torch.float64))
            outputs = run(z, codebook, temperature, torch.arange(40) % 4 > 0)
            total = sum(part.sum() for part in outputs if part.requires_grad)
            results.append([*outputs, *torch.autograd.grad(total, (z, codebook, temperature))])
        assert_close(*results, **SAME_FLOAT64)

    @pytest.mark.parametrize("backend", ["auto", "reference", "chunked"])
    def test_nothing_is_compiled_anew_when_temperature_or_rows_change(self, backend):
        torch._dynamo.reset()
        counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")

        def function(z, codebook, temperature):
            codes, use = soft_assign_and_use(z, codebook, temperature=temperature, backend=backend)
            nearest = nearest_code(z, codebook, backend=backend)
            return codes.free_energy.sum() + codes.mean.sum() + use.square().sum(), nearest

        compiled = torch.compile(function, fullgraph=True, backend=counter)
        # Across the size at which `auto` would change its mind, too.
        for step, num_rows in enumerate([8, 16, 24, 32, 3000]):
            z, codebook = (leaf(part) for part in problem(num_rows, 30, 4))
            torch._dynamo.mark_dynamic(z, 0)
            temperature = torch.tensor([0.5 + step, 2.0 / (1 + step)], dtype=torch.float64)
            loss, nearest = compiled(z, codebook, temperature)
            loss.backward()
            expected, same = function(z, codebook, temperature)
            assert_close((loss, nearest), (expected, same), **SAME_FLOAT64)
        assert counter.frame_count == 1

    def test_nearest_code_compiles_whole(self):
        z, codebook = problem(50, 20, 3)
        compiled = torch.compile(nearest_code, fullgraph=True, backend="aot_eager")
        assert_close(compiled(z, codebook), nearest_code(z, codebook))

    @pytest.mark.parametrize("num_rows", [1, 7, 100, 5000])
    def test_an_exported_program_takes_any_number_of_rows(self, num_rows):
        _, codebook = problem(1, 30, 4)

        class Encode(torch.nn.Module):
            def forward(self, z):
                return nearest_code(z, codebook)

        program = torch.export.export(
            Encode(), (draw(6, 4),), dynamic_shapes={"z": {0: torch.export.Dim("rows", min=1)}}
        )
        # Plain operators alone, in the body of the region without autocast too.
        graphs = [part.graph for part in program.graph_module.modules() if hasattr(part, "graph")]
        targets = {node.target for graph in graphs for node in graph.nodes}
        operators = {str(t) for t in targets if isinstance(t, torch._ops.OpOverload)}
        assert "aten.argmax.default" in operators
        assert all(name.startswith("aten.") and "cdist" not in name for name in operators)
        z = draw(num_rows, 4, seed=num_rows)
        assert_close(program.module()(z), nearest_code(z, codebook))


def test_outputs_are_named_as_the_contract_has_them():
    codes = soft_assign(GOOD["z"], GOOD["codebook"], temperature=1.0)
    assert [*codes._fields[:4], "use"] == OUTPUTS


def test_func_grad_within_vmap_takes_plain_operators():
    z, codebook = draw(3, 300, 4, seed=1), draw(3, 200, 4, seed=2)

    def loss(z, codebook):
        return soft_assign(z, codebook, temperature=0.5).mean.square().sum()

    gradients = torch.func.vmap(torch.func.grad(loss, argnums=(0, 1)))(z, codebook)
    for i in range(3):
        leaves = leaf(z[i]), leaf(codebook[i])
        alone = torch.autograd.grad(loss(*leaves), leaves)
        assert_close([part[i] for part in gradients], list(alone), **SAME_FLOAT64)
