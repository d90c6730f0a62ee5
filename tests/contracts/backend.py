"""What every back end of the assignment promises, as suites to be inherited.

`MeanContract` is for back ends that give mean and spread; `BackendContract` for those that give
all. A test class names its back end and inherits; the public functions are what is called.
"""

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck
from torch.testing import assert_close

from softvq.functional import nearest_code, soft_assign, soft_assign_and_use, soft_mean
from softvq.functional.losses import distortion_loss, free_energy_loss
from softvq.types import SoftCodes
from tests import oracles
from tests.tolerances import (
    EXACT,
    FIVE_DECIMALS,
    ORACLE_FLOAT32,
    ORACLE_FLOAT64,
    SAME_FLOAT32,
    SAME_FLOAT64,
)

# (N, K, D): odd sizes, and one of each.
SHAPES = [(5, 7, 3), (1, 4, 2), (6, 1, 3), (9, 5, 1), (33, 17, 5)]
PAIR = torch.tensor([[-1.0], [1.0]])
OUTPUTS = ["mean", "spread", "free_energy", "entropy", "use"]
RATIOS = [1e-8, 1e-4, 1e-2, 1.0, 1e2, 1e4, 1e8]


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Normal numbers that are the same in every dtype."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def problem(
    num_rows: int, num_codes: int, dim: int, *, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor]:
    return draw(num_rows, dim, seed=1, dtype=dtype), draw(num_codes, dim, seed=2, dtype=dtype)


def leaf(tensor: Tensor) -> Tensor:
    return tensor.detach().clone().requires_grad_()


def assert_matches(actual: Tensor, expected: np.ndarray | float, **limits: float) -> None:
    """Compare in float64, after a look at the shape."""
    wanted = torch.as_tensor(np.asarray(expected), dtype=torch.float64)
    assert_close(actual.detach().double(), wanted, **limits)


def views(tensor: Tensor) -> dict[str, Tensor]:
    """The same (B, N, D) values under other strides."""
    batch, rows, dim = tensor.shape
    wide = tensor.new_full((batch, 2 * rows, dim), 7.0)
    wide[:, ::2] = tensor
    return {
        "transposed": tensor.transpose(0, 1).contiguous().transpose(0, 1),
        "features_first": tensor.movedim(-1, 1).contiguous().movedim(1, -1),
        "strided": wide[:, ::2],
        "expanded": tensor[:1].expand(batch, rows, dim),
        "zero_stride": tensor[:, :1, :1].expand(batch, rows, dim),
    }


class MeanContract:
    """Mean and spread, from `soft_mean`."""

    backend: str
    widest = torch.float64
    """The widest dtype that the back end computes in; what is drawn here is no wider."""

    def working(self, dtype: torch.dtype) -> torch.dtype:
        return dtype if self.widest == torch.float64 else self.widest

    def draw(self, *shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
        return draw(*shape, seed=seed, dtype=self.working(dtype))

    def problem(
        self, num_rows: int, num_codes: int, dim: int, *, dtype: torch.dtype = torch.float64
    ) -> tuple[Tensor, Tensor]:
        return problem(num_rows, num_codes, dim, dtype=self.working(dtype))

    def tolerance(self, dtype: torch.dtype) -> dict[str, float]:
        return ORACLE_FLOAT64 if self.working(dtype) == torch.float64 else ORACLE_FLOAT32

    @property
    def same(self) -> dict[str, float]:
        """Two computations of one formula by this back end."""
        return SAME_FLOAT64 if self.widest == torch.float64 else SAME_FLOAT32

    def check_gradients(self, function, *given: Tensor) -> None:
        """Of a function of the back end's name and tensors: by differences, in float64.

        Without float64 a back end is held to the reference's gradients, which are held to those.
        """
        if self.widest == torch.float64:
            assert gradcheck(lambda *parts: function(self.backend, *parts), [*map(leaf, given)])
            return
        found = []
        for backend, dtype in ((self.backend, self.widest), ("reference", torch.float64)):
            leaves = [leaf(part.to(dtype)) for part in given]
            result = function(backend, *leaves)
            total = (result * draw(*result.shape, 1, seed=12)[..., 0]).sum()
            gradients = torch.autograd.grad(total, leaves, allow_unused=True)
            found.append([torch.zeros(()) if g is None else g.double() for g in gradients])
        for ours, theirs in zip(*found, strict=True):
            assert_close(ours, theirs.expand_as(ours), **ORACLE_FLOAT32)

    @pytest.mark.parametrize("shape", SHAPES, ids=str)
    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
    def test_mean_and_spread_are_the_oracles(self, shape, dtype):
        z, codebook = self.problem(*shape, dtype=dtype)
        result = soft_mean(z, codebook, temperature=0.7, backend=self.backend)
        expected = oracles.assign(z.double().numpy(), codebook.double().numpy(), 0.7)
        assert_matches(result.mean, expected.mean, **self.tolerance(dtype))
        assert_matches(result.spread, expected.spread, **self.tolerance(dtype))

    @pytest.mark.parametrize(
        ("temperature", "value"), [(1.0, 0.19738), (0.5, 0.37995), (0.1, 0.96403), (0.01, 1.0)]
    )
    def test_the_mean_of_a_pair_of_codes_is_known(self, temperature, value):
        result = soft_mean(
            torch.tensor([[0.1]]), PAIR, temperature=temperature, backend=self.backend
        )
        assert_matches(result.mean, [[value]], **FIVE_DECIMALS)
        assert_matches(result.spread, [1 - value**2], rtol=0, atol=2e-5)

    @pytest.mark.parametrize("part", ["mean", "spread"])
    def test_gradcheck_of_soft_mean(self, part):
        z, codebook = self.problem(3, 5, 2)

        def function(backend, z, codebook, temperature):
            result = soft_mean(z, codebook, temperature=temperature, backend=backend)
            return getattr(result, part)

        temperature = torch.tensor(0.8, dtype=torch.float64)
        self.check_gradients(function, z, codebook, temperature)

    @pytest.mark.parametrize("offset", [1e3, 1e4, 1e5])
    def test_an_offset_costs_no_digits(self, offset):
        # Whole numbers over 16 are exact at every offset here, so that only arithmetic can err.
        z, codebook = (((part * 64).round() / 64).float() for part in self.problem(9, 6, 3))
        moved = soft_mean(z + offset, codebook + offset, temperature=0.5, backend=self.backend)
        here = soft_mean(z, codebook, temperature=0.5, backend=self.backend)
        assert_close(moved.spread, here.spread, rtol=1e-4, atol=1e-5)
        assert_close(moved.mean - offset, here.mean, rtol=0, atol=2e-7 * offset)

    def test_no_rows_give_empty_results(self):
        z, codebook = self.problem(0, 4, 3)
        result = soft_mean(leaf(z), leaf(codebook), temperature=1.0, backend=self.backend)
        assert result.mean.shape == (0, 3)
        assert result.spread.shape == (0,)

    @pytest.mark.parametrize(
        "name", ["transposed", "features_first", "strided", "expanded", "zero_stride"]
    )
    def test_strides_of_rows_and_codes_do_not_matter_to_the_mean(self, name):
        z = views(self.draw(1, 6, 4))[name][0]
        codebook = views(self.draw(1, 5, 4, seed=3))[name][0]
        result = soft_mean(z, codebook, temperature=0.6, backend=self.backend)
        dense = soft_mean(
            z.contiguous(), codebook.contiguous(), temperature=0.6, backend=self.backend
        )
        assert_close(result, dense, **self.same)


class BackendContract(MeanContract):
    """All outputs of `soft_assign_and_use` and the indices of `nearest_code`."""

    def outputs(
        self, z: Tensor, codebook: Tensor, temperature: Tensor | float, mask=None, *, backend=None
    ):
        codes, use = soft_assign_and_use(
            z, codebook, temperature=temperature, mask=mask, backend=backend or self.backend
        )
        return {**codes._asdict(), "use": use}

    # Values

    @pytest.mark.parametrize("shape", SHAPES, ids=str)
    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
    @pytest.mark.parametrize("temperature", [0.05, 0.7, 20.0])
    @pytest.mark.parametrize("name", [*OUTPUTS, "indices"])
    def test_every_output_is_the_oracles(self, shape, dtype, temperature, name):
        z, codebook = self.problem(*shape, dtype=dtype)
        result = self.outputs(z, codebook, temperature)[name]
        expected = oracles.assign(z.double().numpy(), codebook.double().numpy(), temperature)
        assert_matches(result, getattr(expected, name), **self.tolerance(dtype))

    @pytest.mark.parametrize("name", OUTPUTS)
    def test_several_temperatures_are_each_alone(self, name):
        z, codebook = self.problem(6, 5, 3)
        levels = torch.tensor([0.3, 2.0, 0.01], dtype=torch.float64)
        together = self.outputs(z, codebook, levels)[name]
        alone = torch.stack([self.outputs(z, codebook, level)[name] for level in levels])
        assert_close(together, alone, **self.same)

    def test_one_temperature_in_an_axis_keeps_the_axis(self):
        z, codebook = self.problem(6, 5, 3)
        result = self.outputs(z, codebook, torch.tensor([0.3]))
        assert result["mean"].shape == (1, 6, 3)
        assert result["use"].shape == (1, 5)
        assert result["indices"].shape == (6,)

    def test_batch_axes_are_rows(self):
        z, codebook = self.draw(2, 3, 4, 5), self.draw(6, 5, seed=2)
        result = soft_assign(z, codebook, temperature=0.5, backend=self.backend)
        flat = soft_assign(z.reshape(-1, 5), codebook, temperature=0.5, backend=self.backend)
        assert result.mean.shape == (2, 3, 4, 5)
        assert_close(result.mean.reshape(-1, 5), flat.mean, **EXACT)
        assert_close(result.indices.reshape(-1), flat.indices)

    def test_nearest_code_is_the_index_of_the_soft_assignment(self):
        z, codebook = self.problem(200, 31, 6)
        nearest = nearest_code(z, codebook, backend=self.backend)
        assert nearest.dtype == torch.int64
        assert_close(nearest, self.outputs(z, codebook, 1.0)["indices"])
        assert_matches(
            nearest, oracles.assign(z.double().numpy(), codebook.double().numpy(), 1.0).indices
        )

    # Gradients

    @pytest.mark.parametrize("name", OUTPUTS)
    @pytest.mark.parametrize("levels", [0.8, [0.8], [0.4, 1.5]], ids=["scalar", "one", "two"])
    @pytest.mark.parametrize("masked", [False, True], ids=["all", "masked"])
    def test_gradcheck(self, name, levels, masked):
        z, codebook = self.problem(3, 5, 2)
        mask = torch.tensor([True, False, True]) if masked else None

        def function(backend, z, codebook, temperature):
            return self.outputs(z, codebook, temperature, mask, backend=backend)[name]

        temperature = torch.tensor(levels, dtype=torch.float64)
        self.check_gradients(function, z, codebook, temperature)

    @pytest.mark.parametrize("temperature", [0.02, 0.7, 30.0])
    @pytest.mark.parametrize("beta", [0.0, 0.08, 1.0])
    @pytest.mark.parametrize("masked", [False, True], ids=["all", "masked"])
    def test_the_free_energys_gradient_holds_the_weights_fixed(self, temperature, beta, masked):
        z, codebook = (leaf(part) for part in self.problem(5, 4, 3))
        level = leaf(torch.tensor(temperature, dtype=torch.float64))
        mask = torch.tensor([True, False, True, True, False]) if masked else None
        codes = soft_assign(z, codebook, temperature=level, mask=mask, backend=self.backend)
        free_energy_loss(z, codes, beta=beta, mask=mask).backward()
        expected = oracles.free_energy_gradients(
            z.detach().double().numpy(),
            codebook.detach().double().numpy(),
            temperature,
            beta=beta,
            keep=None if mask is None else mask.numpy(),
        )
        assert_matches(z.grad, expected.z, **self.tolerance(self.widest))
        assert_matches(codebook.grad, expected.codebook, **self.tolerance(self.widest))
        assert_matches(level.grad, expected.temperature, **self.tolerance(self.widest))

    @pytest.mark.parametrize("temperature", [0.02, 0.7, 30.0])
    @pytest.mark.parametrize("masked", [False, True], ids=["all", "masked"])
    def test_the_distortions_gradient_goes_through_the_weights(self, temperature, masked):
        z, codebook = (leaf(part) for part in self.problem(5, 4, 3))
        level = leaf(torch.tensor(temperature, dtype=torch.float64))
        mask = torch.tensor([True, False, True, True, False]) if masked else None
        codes = soft_assign(z, codebook, temperature=level, mask=mask, backend=self.backend)
        distortion_loss(z, codes, mask=mask).backward()
        expected = oracles.distortion_gradients(
            z.detach().double().numpy(),
            codebook.detach().double().numpy(),
            temperature,
            keep=None if mask is None else mask.numpy(),
        )
        assert_matches(z.grad, expected.z, **self.tolerance(self.widest))
        assert_matches(codebook.grad, expected.codebook, **self.tolerance(self.widest))
        assert_matches(level.grad, expected.temperature, **self.tolerance(self.widest))

    def test_gradcheck_of_the_distortion(self):
        z, codebook = self.problem(3, 5, 2)

        def function(backend, z, codebook, temperature):
            codes = soft_assign(z, codebook, temperature=temperature, backend=backend)
            return distortion_loss(z, codes)

        temperature = torch.tensor(0.8, dtype=torch.float64)
        self.check_gradients(function, z, codebook, temperature)

    def test_the_gradient_of_the_mean_is_the_covariance_of_the_codes(self):
        z, codebook = self.problem(1, 6, 3)
        jacobian = torch.autograd.functional.jacobian(
            lambda row: self.outputs(row, codebook, 0.7)["mean"][0], z
        )[:, 0]
        weights = torch.from_numpy(
            oracles.assign(z.double().numpy(), codebook.double().numpy(), 0.7).weights[0]
        )
        covariance = torch.cov(codebook.double().mT, correction=0, aweights=weights)
        assert_close(jacobian.double(), 2 / 0.7 * covariance, **self.tolerance(self.widest))

    # Sizes and places that break formulas

    def test_no_rows(self):
        z, codebook = (leaf(part) for part in self.problem(0, 4, 3))
        result = self.outputs(z, codebook, torch.tensor([0.5, 1.0]))
        assert result["mean"].shape == (2, 0, 3)
        assert result["entropy"].shape == (2, 0)
        assert result["indices"].shape == (0,)
        assert_matches(result["use"], np.zeros((2, 4)))
        codes = soft_assign(z, codebook, temperature=1.0, backend=self.backend)
        loss = free_energy_loss(z, codes, beta=0.1) + distortion_loss(z, codes)
        loss.backward()
        assert loss.item() == 0
        assert_matches(codebook.grad, np.zeros((4, 3)))
        assert nearest_code(z, codebook, backend=self.backend).shape == (0,)

    def test_one_code_takes_everything(self):
        z, codebook = self.problem(4, 1, 3)
        result = self.outputs(z, codebook, 0.5)
        assert_close(result["mean"], codebook.expand(4, 3))
        assert_matches(result["spread"], np.zeros(4))
        assert_matches(result["entropy"], np.zeros(4))
        assert_matches(result["use"], [1.0])
        assert_close(result["free_energy"], (z - codebook).square().sum(-1))

    @pytest.mark.parametrize("num_codes", [2, 9, 33, 130])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
    @pytest.mark.parametrize("temperature", [1e-6, 0.5])
    def test_equal_codes_share_their_weight_and_the_lowest_gets_the_index(
        self, num_codes, dtype, temperature
    ):
        # Copies at both ends: a product may round its last columns apart from its first.
        codebook = 3 + self.draw(num_codes, 7, dtype=dtype)
        codebook[-1] = codebook[0] = 0
        z = 0.01 * self.draw(5, 7, seed=4, dtype=dtype)
        result = self.outputs(z, codebook, temperature)
        assert_matches(result["indices"], np.zeros(5))
        assert_matches(nearest_code(z, codebook, backend=self.backend), np.zeros(5))
        if temperature < 0.5:
            assert_matches(result["use"][[0, -1]], [0.5, 0.5], rtol=0, atol=1e-6)
            assert_matches(result["entropy"], np.full(5, np.log(2)), rtol=0, atol=1e-6)
        assert_close(result["use"][0], result["use"][-1], rtol=1e-6, atol=0)

    def test_a_row_on_its_code_has_finite_gradients(self):
        z = leaf(torch.tensor([[1.0, 2.0]]))
        codebook = leaf(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
        codes = soft_assign(z, codebook, temperature=1e-3, backend=self.backend)
        (free_energy_loss(z, codes, beta=1.0) + distortion_loss(z, codes)).backward()
        assert_matches(z.grad, np.zeros((1, 2)), rtol=0, atol=1e-6)
        assert_matches(codebook.grad, np.zeros((2, 2)), rtol=0, atol=1e-6)

    @pytest.mark.parametrize("distance", [1e2, 1e4])
    @pytest.mark.parametrize("name", [*OUTPUTS, "indices"])
    def test_rows_far_from_every_code(self, distance, name):
        z, codebook = self.problem(5, 6, 3, dtype=torch.float32)
        z = z * distance
        temperature = distance
        expected = oracles.assign(z.double().numpy(), codebook.double().numpy(), temperature)
        result = self.outputs(z, codebook, temperature)[name]
        assert_matches(result, getattr(expected, name), **ORACLE_FLOAT32)

    @pytest.mark.parametrize("tiny", ["1e-20 * randn", "1e-30"])
    def test_denormal_squares_make_no_nan(self, tiny):
        rows = 1e-20 * self.draw(4, 3) if tiny != "1e-30" else torch.full((4, 3), 1e-30)
        z, codebook = leaf(rows.float()), leaf(self.draw(5, 3, dtype=torch.float32))
        codes = soft_assign(z, codebook, temperature=0.1, backend=self.backend)
        (free_energy_loss(z, codes, beta=1.0) + distortion_loss(z, codes)).backward()
        assert torch.isfinite(z.grad).all()
        assert torch.isfinite(codebook.grad).all()

    # Temperatures

    @pytest.mark.parametrize("ratio", RATIOS)
    @pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
    @pytest.mark.parametrize("name", [*OUTPUTS, "indices"])
    def test_temperatures_far_from_the_datas_scale(self, ratio, scale, name):
        z, codebook = (scale * part for part in self.problem(7, 9, 5, dtype=torch.float32))
        temperature = float(np.float32(ratio * scale**2))
        expected = getattr(
            oracles.assign(z.double().numpy(), codebook.double().numpy(), temperature), name
        )
        result = self.outputs(z, codebook, temperature)[name]
        # What rounding costs: a share of the size of the terms, not of a result that may be small.
        size = {"mean": scale, "spread": scale**2, "free_energy": scale**2}.get(name, 1.0)
        floor = ORACLE_FLOAT32["atol"] * size
        assert_matches(result, expected, rtol=ORACLE_FLOAT32["rtol"], atol=floor)

    @pytest.mark.parametrize("ratio", [*RATIOS, 1e-20, 1e-30, 1e-40])
    @pytest.mark.parametrize("name", OUTPUTS)
    def test_gradients_are_finite_at_every_temperature(self, ratio, name):
        z, codebook = (leaf(part.float()) for part in self.problem(7, 9, 5))
        temperature = leaf(torch.tensor([ratio, 2 * ratio]))
        result = self.outputs(z, codebook, temperature)[name]
        assert torch.isfinite(result).all()
        (result * self.draw(*result.shape, seed=8)).sum().backward()
        assert torch.isfinite(z.grad).all()
        assert torch.isfinite(codebook.grad).all()
        assert torch.isfinite(temperature.grad).all()

    @pytest.mark.parametrize("temperature", [1e-8, 1e-20, 1e-40])
    def test_at_tiny_temperatures_the_weights_do_not_move(self, temperature):
        z, codebook = (leaf(part.float()) for part in self.problem(7, 9, 5))
        level = leaf(torch.tensor(temperature))
        result = self.outputs(z, codebook, level)
        assert_close(result["mean"], codebook[result["indices"]].detach(), rtol=0, atol=1e-6)
        (result["mean"] * self.draw(7, 5, seed=8)).sum().backward()
        assert_matches(z.grad, np.zeros((7, 5)), rtol=0, atol=1e-6)
        assert_matches(level.grad, 0.0, rtol=0, atol=1e-6)

    def test_the_smallest_temperature_is_one_hot(self):
        codebook = torch.arange(4.0)[:, None].expand(4, 64)
        z = torch.full((1, 64), 10.0)
        result = self.outputs(z, codebook, 1e-40)
        assert_matches(result["use"], [0, 0, 0, 1], rtol=0, atol=1e-21)
        assert_matches(result["entropy"], [0.0], rtol=0, atol=1e-19)
        assert_matches(result["free_energy"], [3136.0], rtol=1e-6, atol=0)

    def test_the_argmax_of_the_weights_is_the_index(self):
        z, codebook = self.problem(300, 6, 2)
        nearest = nearest_code(z, codebook, backend=self.backend)
        soft = self.outputs(z, codebook, torch.tensor([1.0, 1e-3]))["indices"]
        assert_close(soft, nearest)

    # Precision

    @pytest.mark.parametrize(("share", "limit"), [(1e-1, 1e-4), (1e-2, 1e-4), (1e-4, 1e-2)])
    def test_spread_keeps_its_digits_in_float32(self, share, limit):
        # Pairs of codes whose distance is the share asked for, about a mean of norm 1; the rows
        # lie between the codes of a pair, and other pairs are too far to count.
        axis = torch.nn.functional.normalize(self.draw(6, 8), dim=-1)
        step = share**0.5 * torch.nn.functional.normalize(self.draw(6, 8, seed=5), dim=-1)
        codebook = torch.cat([axis - step, axis + step]).float()
        z = (axis + 0.1 * step * self.draw(6, 1, seed=6)).float()
        temperature = 0.5 * share
        result = self.outputs(z, codebook, temperature)["spread"]
        expected = oracles.assign(z.double().numpy(), codebook.double().numpy(), temperature)
        assert_matches(result, expected.spread, rtol=limit, atol=0)

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
    def test_low_precision_inputs_lose_nothing_more_than_their_rounding(self, dtype):
        z, codebook = (part.to(dtype) for part in self.problem(60, 40, 8))
        low = self.outputs(z, codebook, 0.5)
        full = self.outputs(z.float(), codebook.float(), 0.5)
        assert low["mean"].dtype == torch.float32
        assert_close(list(low.values()), list(full.values()), **EXACT)

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
    @pytest.mark.parametrize("autocast", [False, True], ids=["plain", "autocast"])
    def test_every_point_of_a_grid_finds_itself(self, dtype, autocast):
        axis = torch.arange(32.0)
        codebook = torch.cartesian_prod(axis, axis).to(dtype)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            nearest = nearest_code(codebook, codebook, backend=self.backend)
            soft = self.outputs(codebook, codebook, 1.0)["indices"]
        assert_close(nearest, torch.arange(1024))
        assert_close(soft, torch.arange(1024))

    @pytest.mark.parametrize("lower", [torch.bfloat16, torch.float16], ids=str)
    def test_autocast_changes_no_output_and_no_gradient(self, lower):
        z, codebook = (leaf(part.float()) for part in self.problem(9, 7, 5))
        plain = self.outputs(z, codebook, 0.5)
        with torch.autocast("cpu", dtype=lower):
            cast = self.outputs(z, codebook, 0.5)
        assert_close(list(cast.values()), list(plain.values()), **EXACT)
        gradients = [
            torch.autograd.grad(sum(result[name].sum() for name in OUTPUTS), (z, codebook))
            for result in (cast, plain)
        ]
        assert_close(*gradients, **EXACT)

    @pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
    def test_large_norms_in_half_precision(self, dtype):
        codebook = leaf((300 + torch.arange(8.0))[:, None].expand(8, 64).to(dtype))
        z = leaf(torch.full((1, 64), 303.0, dtype=dtype))
        with torch.autocast("cpu", dtype=torch.float16, enabled=dtype == torch.float32):
            codes, use = soft_assign_and_use(z, codebook, temperature=1.0, backend=self.backend)
        codes.mean.sum().backward()
        assert codes.indices.tolist() == [3]
        assert_matches(codes.mean, np.full((1, 64), 303.0))
        assert_matches(use[3], 1.0)
        assert torch.isfinite(z.grad).all()
        assert torch.isfinite(codebook.grad).all()

    @pytest.mark.parametrize("offset", [1e3, 1e4, 1e5])
    def test_codes_with_a_large_offset_find_themselves(self, offset):
        codebook = (offset + 0.5 * torch.arange(64.0))[:, None].expand(64, 4)
        assert_close(nearest_code(codebook, codebook, backend=self.backend), torch.arange(64))
        result = self.outputs(codebook, codebook, 0.25)
        here = self.outputs(codebook - offset, codebook - offset, 0.25)
        assert_close(result["indices"], torch.arange(64))
        assert_close(result["free_energy"], here["free_energy"], rtol=1e-5, atol=1e-4)
        assert_close(result["entropy"], here["entropy"], rtol=1e-4, atol=1e-5)

    def test_mixed_precision_takes_the_wider(self):
        z, codebook = self.problem(5, 4, 3)
        lower = codebook.to(torch.float32 if self.widest == torch.float64 else torch.bfloat16)
        result = self.outputs(z, lower, 0.1)
        expected = oracles.assign(z.double().numpy(), lower.double().numpy(), 0.1)
        assert result["mean"].dtype == self.widest
        assert_matches(result["mean"], expected.mean, **self.tolerance(self.widest))
        assert_matches(result["free_energy"], expected.free_energy, **self.tolerance(self.widest))

    # Masks

    @pytest.mark.parametrize("filler", [float("nan"), float("inf"), 1e30, -7.0])
    def test_what_a_dropped_row_holds_reaches_nothing(self, filler):
        rows, codes = self.problem(5, 4, 3)
        mask = torch.tensor([True, False, True, True, False])
        z, codebook = leaf(torch.where(mask[:, None], rows, filler)), leaf(codes)
        level = leaf(torch.tensor(0.5, dtype=torch.float64))
        kept, same = leaf(rows[mask]), leaf(codes)
        same_level = leaf(torch.tensor(0.5, dtype=torch.float64))
        result = self.outputs(z, codebook, level, mask)
        alone = self.outputs(kept, same, same_level)
        assert_close(result["mean"][mask], alone["mean"], **self.same)
        assert_close(result["free_energy"][mask], alone["free_energy"], **self.same)
        assert_close(result["entropy"][mask], alone["entropy"], **self.same)
        assert_close(result["use"], alone["use"], **self.same)
        assert result["indices"][~mask].tolist() == [-1, -1]
        assert_matches(result["mean"][~mask], np.zeros((2, 3)), **EXACT)
        assert_matches(result["spread"][~mask], np.zeros(2), **EXACT)
        self._losses(z, result, mask).backward()
        self._losses(kept, alone, None).backward()
        assert_close(z.grad[mask], kept.grad, **self.same)
        assert_matches(z.grad[~mask], np.zeros((2, 3)), **EXACT)
        assert_close(codebook.grad, same.grad, **self.same)
        assert_close(level.grad, same_level.grad, **self.same)

    @staticmethod
    def _losses(z, result, mask):
        codes = SoftCodes(**{name: result[name] for name in SoftCodes._fields})
        both = free_energy_loss(z, codes, beta=0.3, mask=mask) + distortion_loss(
            z, codes, mask=mask
        )
        return both + (result["use"] ** 2).sum()

    @pytest.mark.parametrize("value", [float("nan"), float("inf")])
    def test_what_is_not_finite_has_an_index_within_the_codebook(self, value):
        """As a gather takes it; a whole codebook of such codes, too."""
        z, codebook = self.draw(50, 4, seed=1), self.draw(33, 4, seed=2)
        z[3, 1] = value
        for codes, rows in ((codebook, [3]), (torch.full_like(codebook, value), slice(None))):
            for found in (
                soft_assign(z, codes, temperature=0.5, backend=self.backend).indices,
                nearest_code(z, codes, backend=self.backend),
            ):
                assert ((found[rows] >= 0) & (found[rows] < 33)).all()
        kept = [row for row in range(50) if row != 3]
        expected = nearest_code(z[kept], codebook, backend=self.backend)
        assert_close(nearest_code(z, codebook, backend=self.backend)[kept], expected)

    def test_all_rows_dropped(self):
        z, codebook = leaf(torch.full((2, 3, 4), float("nan"))), leaf(self.draw(5, 4).float())
        mask = torch.zeros(2, 3, dtype=torch.bool)
        result = self.outputs(z, codebook, torch.tensor(0.5), mask)
        loss = self._losses(z, result, mask)
        loss.backward()
        assert loss.item() == 0
        assert_matches(result["use"], np.zeros(5), **EXACT)
        assert (result["indices"] == -1).all()
        assert (nearest_code(z, codebook, mask=mask, backend=self.backend) == -1).all()
        assert_matches(z.grad, np.zeros((2, 3, 4)), **EXACT)
        assert_matches(codebook.grad, np.zeros((5, 4)), **EXACT)

    def test_image_masks_and_several_temperatures(self):
        z, codebook = self.draw(2, 3, 4, 5), self.draw(6, 5, seed=2)
        mask = self.draw(2, 3, 4, seed=3) > 0
        levels = torch.tensor([0.2, 2.0], dtype=torch.float64)
        result = self.outputs(z, codebook, levels, mask)
        alone = self.outputs(z[mask], codebook, levels)
        assert result["mean"].shape == (2, 2, 3, 4, 5)
        assert_close(result["mean"][:, mask], alone["mean"], **self.same)
        assert_close(result["spread"][:, mask], alone["spread"], **self.same)
        assert_close(result["indices"][mask], alone["indices"])
        assert_close(result["use"], alone["use"], **self.same)
        assert_close(nearest_code(z, codebook, mask=mask, backend=self.backend), result["indices"])

    # Masks over codes

    @pytest.mark.parametrize("masked", [False, True], ids=["all rows", "some rows"])
    def test_dropped_codes_are_as_if_they_were_not_there(self, masked):
        kept = torch.tensor([True, False, True, True, False, True, True])
        mask = self.draw(9, seed=5) > 0 if masked else None
        rows, codes = self.problem(9, 7, 3)
        codes = torch.where(kept[:, None], codes, float("nan"))
        levels = torch.tensor([0.1, 2.0], dtype=torch.float64)
        found = []
        for few in (False, True):
            z, codebook = leaf(rows), leaf(codes[kept] if few else codes)
            given = {"code_mask": None if few else kept, "mask": mask, "backend": self.backend}
            result, use = soft_assign_and_use(z, codebook, temperature=levels, **given)
            outputs = {**result._asdict(), "use": use}
            total = sum((outputs[name] * (1 + outputs[name].detach())).sum() for name in OUTPUTS)
            nearest = nearest_code(z, codebook, **given)
            found.append((outputs, torch.autograd.grad(total, (z, codebook)), nearest))
        (ours, our_grads, nearest), (theirs, their_grads, their_nearest) = found
        number = torch.cat([kept.nonzero()[:, 0], torch.tensor([-1])])  # the last for dropped rows
        for name in ("mean", "spread", "free_energy", "entropy"):
            assert_close(ours[name], theirs[name], **self.same)
        assert_close(ours["indices"], number[theirs["indices"]])
        assert_close(nearest, number[their_nearest])
        assert_close(ours["use"][:, kept], theirs["use"], **self.same)
        assert ours["use"][:, ~kept].max() < 1e-20
        assert_close(our_grads[0], their_grads[0], **self.same)
        assert_close(our_grads[1][kept], their_grads[1], **self.same)
        assert_close(our_grads[1][~kept], torch.zeros(2, 3, dtype=self.widest), **EXACT)

    def test_all_codes_dropped(self):
        z, codebook = leaf(self.draw(2, 3, 4).float()), leaf(torch.full((5, 4), float("nan")))
        given = {"code_mask": torch.zeros(5, dtype=torch.bool), "backend": self.backend}
        codes, use = soft_assign_and_use(z, codebook, temperature=0.5, **given)
        loss = self._losses(z, {**codes._asdict(), "use": use}, torch.zeros(2, 3).bool())
        loss.backward()
        assert loss.item() == 0
        assert_matches(codes.mean, np.zeros((2, 3, 4)), **EXACT)
        assert (codes.indices == -1).all()
        assert (nearest_code(z, codebook, **given) == -1).all()
        assert_matches(use, np.zeros(5), **EXACT)
        assert_matches(z.grad, np.zeros((2, 3, 4)), **EXACT)
        assert_matches(codebook.grad, np.zeros((5, 4)), **EXACT)

    # Heads

    def test_vmap_over_heads_is_a_loop_over_heads(self):
        z, codebook = self.draw(3, 8, 4, seed=1), self.draw(3, 6, 4, seed=2)
        levels = torch.tensor([0.2, 1.0, 5.0], dtype=torch.float64)

        def head(z, codebook, level):
            codes, use = soft_assign_and_use(z, codebook, temperature=level, backend=self.backend)
            return codes, use, nearest_code(z, codebook, backend=self.backend)

        def loss(z, codebook, level):
            codes, use, _ = head(z, codebook, level)
            return distortion_loss(z, codes) + codes.free_energy.mean() + (use**2).sum()

        given = [leaf(part) for part in (z, codebook, levels)]
        together = torch.func.vmap(head)(*given)
        gradients = torch.autograd.grad(torch.func.vmap(loss)(*given).sum(), given)
        for i in range(3):
            codes, use, nearest = head(z[i], codebook[i], levels[i])
            for name, part in codes._asdict().items():
                assert_close(getattr(together[0], name)[i], part, **self.same)
            assert_close(together[1][i], use, **self.same)
            assert_close(together[2][i], nearest)
            leaves = [leaf(part[i]) for part in (z, codebook, levels)]
            alone = torch.autograd.grad(loss(*leaves), leaves)
            assert_close([part[i] for part in gradients], list(alone), **self.same)

    # Strides

    @pytest.mark.parametrize(
        "name", ["transposed", "features_first", "strided", "expanded", "zero_stride"]
    )
    def test_strides_change_neither_outputs_nor_gradients(self, name):
        base = self.draw(3, 6, 4)
        given = leaf(base)
        z = views(given.clone())[name]
        dense = leaf(views(base)[name].contiguous())
        codebook = views(self.draw(1, 5, 4, seed=3))["features_first"][0]
        mask = torch.tensor([True, True, False]).reshape(3, 1).expand(3, 6)
        before = z.detach().clone()
        result, same = (self.outputs(part, codebook, 0.6, mask) for part in (z, dense))
        assert_close(list(result.values()), list(same.values()), **self.same)
        assert_close(z.detach(), before, **EXACT)
        assert_close(nearest_code(z, codebook, backend=self.backend)[mask], result["indices"][mask])
        z.retain_grad()
        self._losses(z, result, mask).backward()
        self._losses(dense, same, mask).backward()
        assert_close(z.grad, dense.grad, **self.same)
        assert torch.isfinite(given.grad).all()
