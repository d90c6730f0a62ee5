"""What every quantizer promises, whatever it does inside.

A subclass named Test... gives a fixture ``make``: a function from sizes and the keywords that all
quantizers share to a fresh module. N rows, D features, K codes, B batch.
"""

import copy
import gc
import inspect
import json
import pickle

import pytest
import torch
from torch import nn

from softvq import attach, quantize_mode
from softvq.nn import Quantizer
from softvq.nn.kinds import build, describe

SHAPES = {
    "rows": ("channels_last", (12, 8)),
    "batch": ("channels_last", (2, 6, 8)),
    "grid": ("channels_last", (2, 3, 4, 8)),
    "sequence-first": ("channels_first", (2, 8, 6)),
    "image": ("channels_first", (2, 8, 6, 10)),
    "ambiguous-last": ("channels_last", (8, 8, 8)),
    "ambiguous-first": ("channels_first", (8, 8, 8)),
    "ambiguous-image": ("channels_first", (8, 8, 8, 8)),
}
SHARED_STATS = {
    "ols",
    "separation",
    "use_hard_batch",
    "perplexity_hard_batch",
    "distinct_codes",
    "dead_codes",
}


def waves(*shape, phase=0.0, dtype=torch.float32):
    """Values without a pattern that a quantizer could use, from a formula: about -1.4 to 1.4."""
    count = torch.arange(torch.Size(shape).numel(), dtype=torch.float64)
    values = torch.sin(count * count * 0.37 + phase) + 0.4 * torch.cos(1.3 * count + 2 * phase)
    return values.reshape(shape).to(dtype)


def odd_layouts(z):
    """The values of an image batch (B, D, H, W) in every memory layout that people feed."""
    wide = torch.zeros(z.shape[0], 2 * z.shape[1], *z.shape[2:], dtype=z.dtype)
    wide[:, ::2] = z
    turned = z.transpose(2, 3).contiguous().transpose(2, 3)
    return {
        "channels_last": z.contiguous(memory_format=torch.channels_last),
        "strided": wide[:, ::2],
        "transposed": turned,
        "attached": (z.clone().requires_grad_() * 1),
    }


def snapshot(vq):
    return {name: held.clone() for name, held in vq.state_dict().items()}


def assert_same_state(vq, before):
    after = vq.state_dict()
    assert set(after) == set(before)
    changed = [
        k for k in before if not torch.equal(after[k].nan_to_num(7), before[k].nan_to_num(7))
    ]
    assert changed == []


def start_on(vq, z):
    """One training step without an optimizer, past any warm-up."""
    vq.train()
    vq(z)
    vq.update_()
    for part in vq.modules():
        if hasattr(part, "schedule"):
            part.schedule.warming.fill_(False)
    return vq


class QuantizerContract:
    @pytest.fixture(params=list(SHAPES))
    def shaped(self, request, make):
        """A quantizer that has started, and an input of one of the shapes."""
        layout, shape = SHAPES[request.param]
        z = waves(*shape)
        return start_on(make(16, 8, layout=layout), z), z

    @pytest.fixture
    def started(self, make):
        return start_on(make(16, 8), waves(64, 8))

    # Shapes, dtypes, layouts

    @pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
    def test_output_is_shaped_as_the_input(self, shaped, training):
        vq, z = shaped
        out = vq.train(training)(z)
        expected = list(z.shape)
        del expected[1 if vq.layout == "channels_first" else -1]
        assert out.quantized.shape == z.shape
        assert out.quantized.dtype == z.dtype
        assert list(out.indices.shape) == expected
        assert out.indices.dtype == torch.int64
        assert out.loss.shape == ()
        assert out.loss.dtype == torch.float32

    def test_codes_of_the_indices_are_what_eval_decodes(self, shaped):
        vq, z = shaped
        out = vq.eval()(z)
        assert torch.equal(vq.codes(out.indices), out.quantized)

    def test_the_layout_only_says_where_the_features_are(self, make):
        z = waves(2, 8, 6, 10)
        first = start_on(make(16, 8, layout="channels_first"), z)
        last = start_on(make(16, 8), z.movedim(1, -1))
        out, permuted = first(z), last(z.movedim(1, -1))
        assert torch.equal(out.indices, permuted.indices)
        assert torch.equal(out.quantized, permuted.quantized.movedim(-1, 1))
        torch.testing.assert_close(out.loss, permuted.loss)

    def test_indices_run_over_the_grid_row_by_row(self, make):
        vq = make(60, 8, layout="channels_first")
        place(vq, waves(60, 8))
        z = vq.codebook.detach().reshape(6, 10, 8).permute(2, 0, 1)[None]
        assert vq.eval()(z).indices.flatten().tolist() == list(range(60))

    @pytest.mark.parametrize("layout", ["channels_last", "strided", "transposed", "attached"])
    @pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
    @pytest.mark.filterwarnings("ignore:.*eval mode:UserWarning")
    def test_memory_layout_changes_nothing(self, make, layout, training):
        z = waves(2, 8, 6, 10)
        vq = start_on(make(16, 8, layout="channels_first"), z).train(training)
        mask = waves(2, 6, 10, phase=1.0) > -0.5
        odd = odd_layouts(z)[layout]
        expected, out = vq(z, mask=mask), vq(odd, mask=mask)
        assert torch.equal(out.indices, expected.indices)
        assert torch.equal(out.quantized, expected.quantized)
        torch.testing.assert_close(out.loss, expected.loss)
        assert torch.equal(odd, z), "the input was modified"

    def test_expanded_input_is_like_a_copy(self, started):
        z = waves(1, 8).expand(5, 8)
        assert torch.equal(started(z).quantized, started(z.contiguous()).quantized)

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
    def test_input_of_another_dtype_comes_back_in_it(self, started, dtype):
        z = waves(20, 8, dtype=dtype).requires_grad_()
        out = started(z)
        assert out.quantized.dtype == dtype
        assert out.loss.dtype == torch.promote_types(dtype, torch.float32)
        (out.quantized.sum() + out.loss).backward()
        assert z.grad is not None
        assert z.grad.dtype == dtype
        assert z.grad.isfinite().all()
        same = started.eval()(z.detach())
        assert torch.equal(started.codes(same.indices).to(dtype), same.quantized)

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
    def test_low_precision_module_counts_in_float32(self, make, dtype):
        vq = start_on(make(16, 8), waves(64, 8)).to(dtype)
        z = waves(64, 8, dtype=dtype).requires_grad_()
        out = vq(z)
        (out.quantized.float().square().sum() + out.loss).backward()
        vq.update_()
        assert out.quantized.dtype == dtype
        assert out.loss.dtype == torch.float32
        counters = {k: v.dtype for k, v in vq.named_buffers() if v.is_floating_point()}
        assert set(counters.values()) <= {torch.float32}
        assert vq.updates.item() == 2

    def test_casting_back_and_forth_loses_no_digit_of_the_counters(self, make):
        vq = start_on(make(16, 8), waves(64, 8))
        before = {k: v.clone() for k, v in vq.named_buffers()}
        vq.half().float()
        changed = [k for k, v in vq.named_buffers() if not torch.equal(v, before[k])]
        assert changed == []

    # Values

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
    def test_hard_training_decodes_exactly_the_code(self, started, dtype):
        z = waves(40, 8, phase=2.0, dtype=dtype).requires_grad_()
        with quantize_mode(started, "hard"):
            out = started(z)
        assert torch.equal(out.quantized, started.codes(out.indices).to(dtype))

    def test_nearest_code_wins(self, started):
        z = waves(40, 8, phase=2.0).double()
        distances = (z[:, None] - started.codebook.detach().double()).square().sum(-1)
        assert torch.equal(started.eval()(z).indices, distances.argmin(-1))

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
    def test_autocast_is_of_no_consequence(self, started, dtype):
        z = waves(200, 8, phase=2.0)
        expected = started(z)
        with torch.autocast("cpu", dtype):
            out = started(z)
        assert torch.equal(out.indices, expected.indices)
        torch.testing.assert_close(out.quantized, expected.quantized)
        torch.testing.assert_close(out.loss, expected.loss)

    @pytest.mark.parametrize("way", ["half", "autocast-float16", "autocast-bfloat16"])
    def test_large_close_codes_are_told_apart(self, make, way):
        vq = make(8, 64)
        place(vq, (300.0 + torch.arange(8.0))[:, None].expand(8, 64))
        z = torch.full((5, 64), 303.0, dtype=torch.float16 if way == "half" else torch.float32)
        z.requires_grad_()
        dtype = torch.bfloat16 if way == "autocast-bfloat16" else torch.float16
        with torch.autocast("cpu", dtype, enabled=way != "half"):
            out = vq.train()(z)
        (out.quantized.float().sum() + out.loss).backward()
        assert out.indices.tolist() == [3] * 5
        assert torch.equal(out.quantized, torch.full_like(z, 303.0))
        assert out.stats["ols"].item() == 0
        assert z.grad is not None
        assert z.grad.isfinite().all()

    def test_far_offset_costs_no_digit(self, make):
        vq = make(64, 4)
        place(vq, (1e4 + 0.5 * torch.arange(64.0))[:, None].expand(64, 4))
        assert vq.eval()(vq.codebook.detach()).indices.tolist() == list(range(64))

    # State

    @pytest.mark.filterwarnings("ignore:.*eval mode:UserWarning")
    @pytest.mark.parametrize("is_started", [True, False], ids=["started", "fresh"])
    def test_eval_changes_nothing(self, make, is_started):
        vq = make(16, 8)
        if is_started:
            start_on(vq, waves(64, 8))
        before, rng = snapshot(vq), torch.get_rng_state()
        for _ in range(3):
            out = vq.eval()(waves(20, 8).requires_grad_())
            vq.codes(out.indices)
            vq.update_()
        assert_same_state(vq, before)
        assert torch.equal(torch.get_rng_state(), rng)
        assert vq.is_started is is_started

    def test_training_forward_changes_nothing_but_the_tally(self, started):
        before, rng = snapshot(started), torch.get_rng_state()
        (started(waves(20, 8).requires_grad_()).quantized.sum()).backward()
        assert_same_state(started, before)
        assert torch.equal(torch.get_rng_state(), rng)
        started.discard_()
        assert started.update_() is None
        assert_same_state(started, before)

    def test_start_and_update_leave_the_global_generator_alone(self, make):
        rng = torch.get_rng_state()
        start_on(make(16, 8), waves(64, 8))
        assert torch.equal(torch.get_rng_state(), rng)

    def test_training_forward_without_grad_counts_all_the_same(self, started):
        with torch.no_grad():
            started(waves(20, 8))
        started.update_()
        assert started.updates.item() == 2

    def test_two_passes_of_a_step_add_up(self, make):
        z = waves(64, 8)
        once, twice = (start_on(make(16, 8), z) for _ in range(2))
        once(z)
        twice(z[:40])
        twice(z[40:])
        once.update_()
        twice.update_()
        assert twice.updates.item() == 2
        torch.testing.assert_close(once.hits, twice.hits)
        if once.codebook.requires_grad:
            return
        torch.testing.assert_close(once.codebook, twice.codebook)

    def test_update_without_a_pass_does_nothing(self, started):
        before = snapshot(started)
        assert started.update_() is None
        assert_same_state(started, before)

    def test_state_round_trip_never_starts_again(self, make):
        z = waves(64, 8)
        vq = start_on(make(16, 8), z)
        fresh = make(16, 8)
        assert set(fresh.state_dict()) == set(vq.state_dict())
        fresh.load_state_dict(vq.state_dict())
        assert_same_state(fresh, snapshot(vq))
        before = fresh.codebook.detach().clone()
        fresh.train()(waves(64, 8, phase=5.0))
        assert fresh.is_started
        assert torch.equal(fresh.codebook, before)

    def test_loading_forgets_passes_of_before(self, make):
        vq = start_on(make(16, 8), waves(64, 8))
        state = snapshot(vq)
        vq(waves(64, 8, phase=3.0))
        vq.load_state_dict(state)
        assert vq.update_() is None
        assert_same_state(vq, state)

    @pytest.mark.filterwarnings("ignore:The temperature hit a bound:UserWarning")
    def test_resumed_run_goes_on_as_the_unbroken_one(self, make):
        unbroken, half, resumed = (make(16, 8) for _ in range(3))
        assert train_some(unbroken, range(0, 30)) > 0, "no code was revived: this shows too little"
        train_some(half, range(0, 15))
        resumed.load_state_dict(half.state_dict())
        train_some(resumed, range(15, 30))
        assert_same_state(resumed, snapshot(unbroken))

    @pytest.mark.parametrize("sizes", [(8, 8), (16, 4)], ids=["K", "D"])
    def test_checkpoint_of_another_size_is_refused_by_name(self, make, sizes):
        vq = make(16, 8)
        before = snapshot(vq)
        other = nn.ModuleDict({"vq": make(*sizes)}).state_dict()
        with pytest.raises(RuntimeError, match=rf"vq\.codebook .*\({sizes[0]}, {sizes[1]}\).*num_"):
            nn.ModuleDict({"vq": vq}).load_state_dict(other, strict=False)
        assert torch.equal(vq.codebook, before["codebook"])

    def test_checkpoint_without_a_codebook_is_told_once_it_is_used(self, make):
        vq = make(16, 8).eval()
        nn.ModuleDict({"vq": vq}).load_state_dict({}, strict=False)
        with pytest.warns(UserWarning, match=r"holds no vq\.codebook.*random"):
            vq(waves(5, 8))
        vq(waves(5, 8))

    def test_checkpoint_without_a_codebook_is_an_error_where_strict(self, make):
        with pytest.raises(RuntimeError, match=r"Missing key.*vq\.codebook"):
            nn.ModuleDict({"vq": make(16, 8)}).load_state_dict({})

    def test_a_start_on_data_makes_up_for_a_checkpoint_without_a_codebook(self, make):
        """As after a swap into a model whose own weights are loaded with strict=False."""
        vq = make(16, 8)
        nn.ModuleDict({"vq": vq}).load_state_dict({}, strict=False)
        vq.train()(waves(64, 8))
        vq.eval()(waves(5, 8))

    def test_config_builds_the_same_module(self, make):
        vq = make(16, 8, layout="channels_first", seed=3)
        again = type(vq).from_config(json.loads(json.dumps(vq.config())))
        assert again.config() == vq.config()
        assert_same_state(again, snapshot(vq))

    def test_deep_copy_shares_no_storage(self, started):
        started(waves(20, 8))
        twin = copy.deepcopy(started)
        assert_same_state(twin, snapshot(started))
        assert twin.is_started
        owned = {each.untyped_storage().data_ptr() for each in tensors_of(started)}
        shared = [each.shape for each in tensors_of(twin) if data_of(each) in owned]
        assert shared == []
        twin.update_()
        assert started.updates.item() == 1

    def test_moving_to_another_device_leaves_nothing_behind(self, started):
        started(waves(20, 8))
        started.to("meta")
        assert {each.device.type for each in tensors_of(started)} == {"meta"}
        out = started.eval()(torch.empty(2, 5, 8, device="meta"))
        assert out.quantized.shape == (2, 5, 8)
        assert started.codes(out.indices).shape == (2, 5, 8)

    def test_can_be_made_without_memory_and_filled_later(self, make):
        vq = start_on(make(16, 8), waves(64, 8))
        with torch.device("meta"):
            empty = make(16, 8)
        empty.to_empty(device="cpu").load_state_dict(vq.state_dict())
        assert torch.equal(empty(waves(9, 8)).indices, vq(waves(9, 8)).indices)

    # Masks

    @pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
    def test_masked_positions_are_zero_and_minus_one(self, started, training):
        z, mask = waves(2, 10, 8), torch.arange(20).reshape(2, 10) % 3 > 0
        out = started.train(training)(z, mask=mask)
        assert torch.equal(out.indices == -1, ~mask)
        assert torch.equal(out.quantized[~mask], torch.zeros(7, 8))
        assert torch.equal(started.codes(out.indices, mask=mask)[~mask], torch.zeros(7, 8))
        alone = started(z[mask])
        assert torch.equal(out.quantized[mask], alone.quantized)
        torch.testing.assert_close(out.loss, alone.loss)
        torch.testing.assert_close(dict(out.stats), dict(alone.stats))

    @pytest.mark.parametrize("junk", [-7.0, 1e30, torch.inf, torch.nan], ids=str)
    def test_what_is_masked_reaches_nothing(self, make, junk):
        clean, dirty = make(16, 8), make(16, 8)
        z, mask = waves(40, 8), torch.arange(40) % 4 > 0
        spoilt = torch.where(mask[:, None], z, junk)
        results = []
        for vq, rows in ((clean, z), (dirty, spoilt)):
            rows = rows.clone().requires_grad_()
            out = vq.train()(rows, mask=mask)
            (out.loss + out.quantized.square().sum()).backward()
            vq.update_()
            results.append((out, rows.grad))
        (expected, grad), (out, spoilt_grad) = results
        torch.testing.assert_close(out.loss, expected.loss, rtol=0, atol=0)
        assert torch.equal(out.quantized, expected.quantized)
        assert torch.equal(spoilt_grad, grad)
        assert not spoilt_grad[~mask].any()
        torch.testing.assert_close(dict(out.stats), dict(expected.stats), rtol=0, atol=0)
        assert_same_state(dirty, snapshot(clean))

    @pytest.mark.parametrize("kind", ["all-masked", "no-rows", "no-batch"])
    @pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
    @pytest.mark.filterwarnings("ignore:.*eval mode:UserWarning")
    def test_nothing_to_quantize_is_no_fault(self, started, kind, training):
        shape = {"all-masked": (2, 3, 8), "no-rows": (2, 0, 8), "no-batch": (0, 3, 8)}[kind]
        mask = torch.zeros(shape[:-1], dtype=torch.bool) if kind == "all-masked" else None
        before = snapshot(started)
        z = waves(*shape).requires_grad_()
        out = started.train(training)(z, mask=mask)
        assert out.loss.item() == 0
        assert out.quantized.shape == shape
        assert not out.quantized.any()
        assert all(value.isfinite() for value in out.stats.values())
        (out.loss + out.quantized.sum()).backward()
        assert z.grad is not None
        assert not z.grad.any()
        started.update_()
        assert_same_state(started, before)

    def test_an_empty_first_batch_does_not_start(self, make):
        vq = make(16, 8).train()
        assert vq(waves(0, 8)).loss.item() == 0
        assert not vq.is_started

    def test_codes_wants_a_mask_where_an_index_is_minus_one(self, started):
        mask = torch.tensor([True, False])
        assert started.codes(torch.tensor([2, -1]), mask=mask).shape == (2, 8)
        with pytest.raises(ValueError, match=r"indices must lie in \[0, 16\).*from -1 to 2.*mask="):
            started.codes(torch.tensor([2, -1]))

    # Gradients

    @pytest.mark.parametrize("spot", ["on a code", "zero", "tiny", "antiparallel"])
    def test_gradients_are_finite_in_odd_places(self, make, spot):
        vq = make(2, 2)
        place(vq, torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
        value = {"on a code": [1.0, 2.0], "zero": [0.0, 0.0], "tiny": [1e-20, 1e-20]}
        z = torch.tensor([value.get(spot, [-1.0, -2.0])], requires_grad=True)
        out = vq.train()(z)
        (out.loss + out.quantized.sum()).backward()
        assert z.grad is not None
        assert z.grad.isfinite().all()
        assert z.grad.abs().max() < 1e4
        grads = [each.grad for each in vq.parameters() if each.grad is not None]
        assert all(grad.isfinite().all() for grad in grads)

    def test_every_learned_code_gets_a_gradient_tensor(self, started):
        """Else DistributedDataParallel finds unused parameters."""
        out = started(waves(3, 8).requires_grad_())
        (out.loss + out.quantized.sum()).backward()
        assert [k for k, each in started.named_parameters() if each.grad is None] == []

    def test_accumulated_gradients_are_those_of_the_whole(self, started):
        encoder = nn.Linear(8, 8)
        z, parameters = waves(32, 8), [*encoder.parameters()]

        def gradients(parts):
            encoder.zero_grad()
            for part in parts:
                out = started(encoder(part))
                (out.quantized.square().mean() / len(parts)).backward()
            return [each.grad.clone() for each in parameters if each.grad is not None]

        torch.testing.assert_close(gradients(z.chunk(2)), gradients([z]))

    # Stats

    def test_stats_are_plain_numbers(self, started):
        out = started(waves(20, 8).requires_grad_())
        assert set(out.stats) == self.stats_keys
        assert {tuple(each.shape) for each in out.stats.values()} == {()}
        assert not any(each.requires_grad for each in out.stats.values())
        assert all(each.isfinite() for each in out.stats.values())

    def test_stats_of_the_batch_are_what_their_names_say(self, make):
        vq = make(8, 1, revival=None)
        place(vq, torch.arange(8.0)[:, None])
        out = vq.eval()(torch.tensor([0.0] * 6 + [1.0] * 2)[:, None])
        assert out.stats["use_hard_batch"].item() == 2 / 8
        assert out.stats["perplexity_hard_batch"].item() == pytest.approx(1.7548, abs=1e-4)
        assert out.stats["dead_codes"].item() == 0
        assert out.stats["distinct_codes"].item() == 8

    # Long runs

    def test_memory_does_not_creep(self, make):
        vq, encoder = make(16, 8), nn.Linear(8, 8)
        optimizer = torch.optim.SGD([*encoder.parameters(), *vq.parameters()], lr=1e-3)
        attach(vq, optimizer)
        counts = [self._live_tensors_after(encoder, vq, optimizer, steps) for steps in (10, 60)]
        assert counts[1] <= counts[0]  # fewer, where tests before this one left tensors to collect
        assert [k for k, v in vq.named_buffers() if v.grad_fn is not None] == []

    def _live_tensors_after(self, encoder, vq, optimizer, steps):
        for step in range(steps):
            out = vq(encoder(waves(16, 8, phase=float(step % 5))))
            (out.quantized.square().mean() + out.loss).backward()
            optimizer.step()
            optimizer.zero_grad()
        del out
        gc.collect()
        return sum(issubclass(type(each), torch.Tensor) for each in gc.get_objects())

    @pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
    def test_training_is_sound_at_any_scale(self, make, scale):
        vq, z = make(16, 8), scale * waves(64, 8)
        encoder = nn.Linear(8, 8, bias=False)
        optimizer = torch.optim.Adam([*encoder.parameters(), *vq.parameters()], lr=1e-3)
        attach(nn.ModuleList([encoder, vq]), optimizer, codebook_lr=1e-2 * scale)
        for _ in range(30):
            optimizer.zero_grad()
            out = vq(encoder(z))
            ((out.quantized - z).square().mean() + out.loss).backward()
            optimizer.step()
        assert all(each.isfinite().all() for each in vq.state_dict().values())
        assert out.loss.isfinite()

    def test_a_model_under_activation_checkpointing_counts_once(self, make, use_reentrant):
        vq, encoder = make(16, 8), nn.Linear(8, 8)

        def body(x):
            return vq(encoder(x)).quantized

        z = waves(64, 8).requires_grad_()
        checkpointed = torch.utils.checkpoint.checkpoint(body, z, use_reentrant=use_reentrant)
        counted = vq._tally.counts.clone()
        checkpointed.square().sum().backward()
        assert counted.sum() == 64
        assert torch.equal(vq._tally.counts, counted)

    @pytest.fixture(params=[True, False], ids=["reentrant", "not-reentrant"])
    def use_reentrant(self, request):
        return request.param

    # Bad input

    @pytest.mark.bad_input
    @pytest.mark.parametrize(
        ("z", "match"),
        [
            (torch.zeros(3, 5), r"z must have 8 features on axis -1; got 5 in shape \(3, 5\)"),
            (torch.zeros(8, 5), r"z must have 8 features.*Axis 0 has 8: is the layout right\?"),
            (torch.zeros(3, 0), r"z must have 8 features.*got 0"),
            (torch.zeros(3, 8, dtype=torch.int64), r"z must be a floating.*int64.*z\.float\(\)"),
            (torch.zeros(3, 8, dtype=torch.complex64), r"z must be a floating.*complex64"),
            (torch.tensor(1.0), r"z needs at least 1 axes"),
        ],
        ids=["features", "layout", "no features", "integer", "complex", "number"],
    )
    @pytest.mark.parametrize("call", ["forward", "start_"])
    def test_bad_rows_are_refused(self, make, z, match, call):
        vq = make(16, 8)
        before = snapshot(vq)
        with pytest.raises(ValueError, match=match):
            getattr(vq, call)(z)
        assert_same_state(vq, before)

    @pytest.mark.bad_input
    @pytest.mark.parametrize(
        ("mask", "match"),
        [
            (torch.ones(4, dtype=torch.bool), r"mask must have shape \(3,\).*got \(4,\)"),
            (torch.ones(3, 8, dtype=torch.bool), r"mask must have shape \(3,\).*got \(3, 8\)"),
            (torch.ones(3), r"mask must be a bool tensor, True.*float32"),
            (torch.ones(3, dtype=torch.int64), r"mask must be a bool tensor.*int64"),
            ([True, True, True], r"mask must be a bool tensor.*list"),
        ],
        ids=["length", "features", "float", "int", "list"],
    )
    @pytest.mark.parametrize("call", ["forward", "start_"])
    def test_bad_masks_are_refused(self, make, mask, match, call):
        vq = make(16, 8)
        before = snapshot(vq)
        with pytest.raises(ValueError, match=match):
            getattr(vq, call)(torch.zeros(3, 8), mask=mask)
        assert_same_state(vq, before)

    @pytest.mark.bad_input
    @pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf], ids=str)
    @pytest.mark.parametrize("call", ["forward", "start_"])
    def test_a_start_on_values_that_are_no_numbers_is_refused(self, make, value, call):
        vq, z = make(16, 8), waves(20, 8)
        z[3, 5] = value
        before = snapshot(vq)
        with pytest.raises(ValueError, match=r"z holds 1 of 160 entries.*NaN or infinite.*mask"):
            getattr(vq, call)(z)
        assert_same_state(vq, before)
        assert not vq.is_started

    @pytest.mark.bad_input
    def test_a_start_without_a_valid_row_is_refused(self, make):
        vq = make(16, 8)
        mask = torch.zeros(20, dtype=torch.bool)
        with pytest.raises(ValueError, match=r"no row to start from: shape \(20, 8\).*valid row"):
            vq.train()(waves(20, 8), mask=mask)
        with pytest.raises(ValueError, match=r"no row to start from: shape \(0, 8\)"):
            vq.start_(waves(0, 8))
        assert not vq.is_started

    @pytest.mark.bad_input
    @pytest.mark.parametrize(
        ("indices", "match"),
        [
            (torch.tensor([0, 16]), r"indices must lie in \[0, 16\).*from 0 to 16.*special tokens"),
            (torch.tensor([-1, 3]), r"indices must lie in \[0, 16\).*from -1 to 3"),
            (torch.tensor([0.0]), r"indices must be whole numbers; got torch\.float32"),
            (torch.tensor([True]), r"indices must be whole numbers; got torch\.bool"),
        ],
        ids=["high", "negative", "float", "bool"],
    )
    def test_bad_indices_are_refused(self, make, indices, match):
        with pytest.raises(ValueError, match=match):
            make(16, 8).codes(indices)

    @pytest.mark.bad_input
    @pytest.mark.parametrize(
        ("sizes", "match"),
        [
            ((0, 8), "num_codes must be a whole number of at least 1; got 0"),
            ((-3, 8), "num_codes must be .* got -3"),
            ((16, 0), "dim must be a whole number of at least 1; got 0"),
            ((16.0, 8), r"num_codes must be .* got 16\.0"),
            ((True, 8), "num_codes must be .* got True"),
        ],
        ids=["K=0", "K<0", "D=0", "K float", "K bool"],
    )
    def test_bad_sizes_are_refused(self, make, sizes, match):
        with pytest.raises(ValueError, match=match):
            make(*sizes)

    @pytest.mark.bad_input
    @pytest.mark.parametrize(
        ("option", "match"),
        [
            (
                {"layout": "channel_first"},
                "layout is 'channel_first'; valid.*mean 'channels_first'",
            ),
            ({"seed": -1}, "seed must be a whole number of at least 0; got -1"),
        ],
        ids=["layout", "seed"],
    )
    def test_bad_options_are_refused(self, make, option, match):
        with pytest.raises(ValueError, match=match):
            make(16, 8, **option)


def place(vq, codes):
    """Put codes where a test wants them, as if they came from data."""
    state = vq.state_dict()
    state["codebook"] = codes.clone()
    state["started"] = torch.tensor(True)
    if "schedule.warming" in state:
        state["schedule.warming"] = torch.tensor(False)
    if "ema_sums" in state:
        state.update(ema_sums=codes.clone(), ema_counts=torch.ones(len(codes)))
    vq.load_state_dict(state)
    return vq


def train_some(vq, steps):
    """Steps without an optimizer on data that wanders off, so that codes are revived."""
    num_revived = 0
    for step in steps:
        vq.train()(waves(48, 8, phase=float(step)) + 0.3 * step)
        revived = vq.update_()
        num_revived += 0 if revived is None else len(revived.codes)
    return num_revived


def data_of(tensor):
    return tensor.untyped_storage().data_ptr()


def tensors_of(module):
    """Every tensor anywhere in a module tree, in lists, dicts and plain objects too."""
    found, seen, queue = [], set(), [module]
    while queue:
        held = queue.pop()
        if id(held) in seen:
            continue
        seen.add(id(held))
        if isinstance(held, torch.Tensor):
            found.append(held)
        elif isinstance(held, dict):
            queue.extend(held.values())
        elif isinstance(held, list | tuple | set):
            queue.extend(held)
        elif hasattr(held, "__dict__") and type(held).__module__.startswith(("softvq", "torch.nn")):
            queue.append(vars(held))
    return found


class MemberContract:
    """What every member of the family promises, one codebook or parts that hold many.

    A subclass gives a fixture ``make``: a function from ``layout`` to a fresh module on 8 features.
    """

    @pytest.fixture
    def vq(self, make):
        return start_on(make(), waves(4, 24, 8))

    @pytest.mark.parametrize("name", ["grid", "sequence-first"])
    def test_answers_are_shaped_by_input_and_tail(self, make, name):
        layout, shape = SHAPES[name]
        z = waves(*shape, dtype=torch.bfloat16)
        many = waves(4, 8, 24) if layout == "channels_first" else waves(4, 24, 8)
        vq = start_on(make(layout), many)
        positions = list(shape)
        del positions[1 if layout == "channels_first" else -1]
        out = vq(z)
        assert out.quantized.shape == z.shape
        assert out.quantized.dtype == z.dtype
        assert list(out.indices.shape) == [*positions, *vq.index_tail]
        assert out.indices.dtype == torch.int64
        assert out.loss.shape == ()
        assert out.loss.dtype == torch.float32
        assert {tuple(each.shape) for each in out.stats.values()} == {()}
        assert not any(each.requires_grad for each in out.stats.values())
        assert all(each.isfinite() for each in out.stats.values())

    @pytest.mark.parametrize("shape", [(2, 8, 7), (2, 8, 3, 4), (2, 8, 2, 3, 2)], ids=str)
    def test_codes_of_the_indices_are_what_eval_decodes(self, make, shape):
        vq = start_on(make("channels_first"), waves(4, 8, 24)).eval()
        out = vq(waves(*shape, phase=2.0))
        assert torch.equal(vq.codes(out.indices), out.quantized)

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
    def test_a_cast_module_still_makes_the_round_trip(self, vq, dtype):
        """Codes come in the dtype that they are stored in, and sums round once."""
        vq = vq.to(dtype).eval()
        for z in (waves(4, 24, 8, phase=1.0), waves(4, 24, 8, phase=1.0, dtype=dtype)):
            out = vq(z)
            codes = vq.codes(out.indices)
            assert torch.equal(codes.to(z.dtype), out.quantized.to(codes.dtype).to(z.dtype))

    @pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
    def test_one_vector_is_answered_as_a_batch_of_one(self, vq, training):
        z = waves(8, phase=1.0)
        out, expected = vq.train(training)(z), vq(z[None])
        assert out.indices.shape == vq.index_tail
        assert out.quantized.shape == (8,)
        if not any(getattr(each, "dropout", 0) for each in vq.modules()):
            assert torch.equal(out.indices, expected.indices[0])

    @pytest.mark.parametrize("value", [0.0, 3.7], ids=["zeros", "constant"])
    def test_rows_that_are_all_alike_give_finite_numbers(self, make, value):
        """A stage whose input the ones before it have met leaves nothing but zeros."""
        vq, z = make().train(), torch.full((2, 12, 8), value)
        for _ in range(3):
            leaf = z.clone().requires_grad_()
            out = vq(leaf)
            (out.quantized.square().mean() + out.loss).backward()
            assert [name for name, each in out.stats.items() if not each.isfinite()] == []
            assert leaf.grad is not None
            assert leaf.grad.isfinite().all()
            vq.update_()
        assert all(each.isfinite().all() for each in vq.state_dict().values())

    @pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.uint32, torch.int32])
    def test_indices_may_be_of_any_whole_type(self, vq, dtype):
        indices = vq.eval()(waves(4, 24, 8)).indices
        assert torch.equal(vq.codes(indices.to(dtype)), vq.codes(indices.to(dtype).long()))

    def test_the_layout_only_says_where_the_features_are(self, make):
        z = waves(2, 8, 6, 5)
        first, last = make("channels_first"), make()
        out, moved = start_on(first, z)(z), start_on(last, z.movedim(1, -1))(z.movedim(1, -1))
        assert torch.equal(out.indices, moved.indices)
        assert torch.equal(out.quantized, moved.quantized.movedim(-1, 1))

    def test_forward_changes_no_state(self, vq):
        before, rng = snapshot(vq), torch.get_rng_state()
        out = vq(waves(4, 24, 8, phase=1.0).requires_grad_())
        (out.quantized.square().sum() + out.loss).backward()
        vq.eval()(waves(4, 24, 8, phase=1.0))
        assert_same_state(vq, before)
        assert torch.equal(torch.get_rng_state(), rng)

    def test_a_pass_that_is_computed_again_is_the_same(self, vq):
        z = waves(4, 24, 8, phase=1.0)
        first, second = vq(z), vq(z)
        assert torch.equal(first.indices, second.indices)
        assert torch.equal(first.quantized, second.quantized)

    def test_state_round_trip_goes_on_where_it_was(self, make, vq):
        fresh = make()
        fresh.load_state_dict(snapshot(vq))
        assert fresh.is_started
        z = waves(4, 24, 8, phase=1.0)
        for each in (vq, fresh):
            each.train()(z)
            each.discard_()
        assert_same_state(fresh, snapshot(vq))
        assert torch.equal(fresh(z).quantized, vq(z).quantized)

    def test_config_builds_the_same_module(self, make):
        vq = make("channels_first")
        again = build(json.loads(json.dumps(describe(vq))))
        assert type(again) is type(vq)
        assert describe(again) == describe(vq)
        assert_same_state(again, snapshot(vq))

    def test_deep_copy_shares_no_storage(self, vq):
        vq(waves(4, 24, 8))
        twin = copy.deepcopy(vq)
        owned = {data_of(each) for each in tensors_of(vq) if each.numel()}
        assert [each.shape for each in tensors_of(twin) if data_of(each) in owned] == []
        z = waves(4, 24, 8, phase=1.0)
        assert torch.equal(twin.eval()(z).indices, vq.eval()(z).indices)

    def test_pickles_to_the_same_answers(self, vq):
        z = waves(4, 24, 8, phase=1.0)
        twin = pickle.loads(pickle.dumps(vq))
        assert torch.equal(twin.eval()(z).quantized, vq.eval()(z).quantized)

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
    def test_autocast_is_of_no_consequence(self, vq, dtype):
        z = waves(4, 24, 8, phase=2.0)
        expected = vq(z)
        with torch.autocast("cpu", dtype):
            out = vq(z)
        assert torch.equal(out.indices, expected.indices)
        torch.testing.assert_close(out.quantized, expected.quantized)

    def test_every_part_learns_and_the_input_with_it(self, vq):
        z = waves(4, 24, 8, phase=1.0).requires_grad_()
        out = vq(z)
        ((out.quantized - waves(4, 24, 8)).square().mean() + out.loss).backward()
        assert z.grad is not None
        assert z.grad.isfinite().all()
        assert z.grad.any()
        grads = {name: each.grad for name, each in vq.named_parameters()}
        assert [name for name, grad in grads.items() if grad is None] == []
        assert [name for name, grad in grads.items() if not grad.isfinite().all()] == []
        assert [name for name, grad in grads.items() if not grad.any()] == []

    @pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
    def test_masked_positions_are_zero_minus_one_and_reach_nothing(self, vq, training):
        z, keep = waves(4, 24, 8, phase=1.0), waves(4, 24, phase=3.0) > -0.5
        vq.train(training)
        # Junk in dropped places must not show; what is drawn for dropout sees zeros there.
        clean = vq(torch.where(keep[..., None], z, 0.0), mask=keep)
        out = vq(torch.where(keep[..., None], z, torch.nan), mask=keep)
        assert torch.equal(out.quantized, clean.quantized)
        assert torch.equal(out.loss, clean.loss)
        assert not out.quantized[~keep].any()
        assert (out.indices[~keep] == -1).all()
        first = out.indices.reshape(4, 24, -1)[..., 0]
        assert torch.equal(first >= 0, keep)
        assert not vq.codes(out.indices, mask=keep)[~keep].any()

    def test_lengths_are_a_mask(self, vq):
        z, lengths = waves(4, 24, 8, phase=1.0), torch.tensor([24, 0, 3, 11])
        out = vq.eval()(z, lengths=lengths)
        expected = vq(z, mask=torch.arange(24) < lengths[:, None])
        assert torch.equal(out.indices, expected.indices)
        assert torch.equal(out.quantized, expected.quantized)

    @pytest.mark.parametrize(
        ("shape", "training"), [((2, 0, 8), True), ((0, 3, 8), False)], ids=["train", "eval"]
    )
    def test_nothing_to_quantize_is_no_fault(self, vq, shape, training):
        before = snapshot(vq)
        out = vq.train(training)(waves(*shape))
        assert out.loss.item() == 0
        assert out.quantized.shape == shape
        assert out.indices.shape == (*shape[:-1], *vq.index_tail)
        assert all(each.isfinite() for each in out.stats.values())
        assert vq.codes(out.indices).shape == shape
        assert_same_state(vq, before)

    def test_attached_it_updates_once_a_step_and_stays_sound(self, make):
        torch.manual_seed(0)
        vq, encoder = make(), nn.Linear(8, 8)
        model = nn.ModuleList([encoder, vq])
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        held = [each for each in vq.modules() if isinstance(each, Quantizer)]
        if held:
            attach(model, optimizer)
        z = waves(4, 24, 8)
        for _ in range(12):
            optimizer.zero_grad()
            out = vq(encoder(z))
            ((out.quantized - z).square().mean() + out.loss).backward()
            optimizer.step()
        counted = [int(each.updates) for each in held]
        # With dropout a step may leave a late stage without an item: then it has nothing to count.
        dropped = any(getattr(each, "dropout", 0) for each in vq.modules())
        assert counted[:1] in ([], [12])
        assert dropped or set(counted) <= {12}
        assert all(each.isfinite().all() for each in vq.state_dict().values())
        own = {id(p) for g in optimizer.param_groups if g.get("softvq") for p in g["params"]}
        wanted = {id(each._parameters.get("codebook")) for each in held} - {id(None)}
        assert own == wanted

    def test_soft_mode_decodes_what_hard_mode_does_not(self, vq):
        if not any(getattr(each, "has_soft", False) for each in vq.modules()):
            with pytest.raises(ValueError, match="no soft assignment"), quantize_mode(vq, "soft"):
                pass
            return
        z = waves(4, 24, 8, phase=1.0)
        hard = vq.eval()(z).quantized
        with quantize_mode(vq, "soft"):
            soft = vq(z).quantized
        assert not torch.equal(soft, hard)
        with quantize_mode(vq.train(), "hard"):
            out = vq(z)
        if not (out.indices < 0).any():
            torch.testing.assert_close(out.quantized, hard, rtol=1e-5, atol=1e-5)

    def test_no_constructor_asks_for_more_than_eight(self, make):
        for each in make().modules():
            if type(each).__module__.startswith("softvq"):
                assert len(inspect.signature(type(each)).parameters) <= 8

    @pytest.mark.compiled
    def test_compiles_to_one_graph(self, vq, compiles):
        if not compiles:
            return  # made of parts that another member compiles
        z = waves(4, 24, 8, phase=1.0)
        expected = vq(z)
        torch._dynamo.reset()
        out = torch.compile(vq, backend="eager", fullgraph=True)(z)
        torch._dynamo.reset()
        assert torch.equal(out.indices, expected.indices)
        torch.testing.assert_close(out.quantized, expected.quantized)

    @pytest.mark.bad_input
    @pytest.mark.parametrize(
        "kind", ["features", "mask", "mask with tail", "both", "lengths", "list"]
    )
    def test_bad_input_is_refused(self, make, kind):
        vq, z = make(), waves(4, 24, 8)
        keep = torch.ones(4, 24, dtype=torch.bool)
        calls = {
            "features": ((waves(4, 24, 7),), {}, r"z must have 8 features on axis -1; got 7"),
            "mask": ((z,), {"mask": keep[:, :3]}, r"mask must have shape \(4, 24\).*\(4, 3\)"),
            "mask with tail": (
                (z,),
                {"mask": keep[..., None].expand(4, 24, 2)},
                r"mask must have shape \(4, 24\).*\(4, 24, 2\)",
            ),
            "both": ((z,), {"mask": keep, "lengths": torch.ones(4).long()}, "give one of them"),
            "lengths": ((z,), {"lengths": torch.tensor([1, 2, 3, 25])}, r"lie in \[0, 24\].*25"),
            "list": ((z,), {"lengths": [1, 2, 3, 4]}, r"lengths must be a tensor \(B,\); got list"),
        }
        args, options, match = calls[kind]
        with pytest.raises(ValueError, match=match):
            vq(*args, **options)

    @pytest.mark.bad_input
    @pytest.mark.parametrize("kind", ["list", "float", "high", "negative"])
    def test_bad_indices_are_refused(self, make, kind):
        vq = make()
        good = torch.zeros(5, *vq.index_tail, dtype=torch.int64)
        bad, match = {
            "list": (good.tolist(), "indices must be a tensor; got list"),
            "float": (good.float(), "indices must be whole numbers; got torch.float32"),
            "high": (good + vq.num_codes, r"indices must lie in \[.*from \d+ to \d+"),
            "negative": (good - 2, r"indices must lie in \[.*from -2 to -2"),
        }[kind]
        with pytest.raises(ValueError, match=match):
            vq.codes(bad)
