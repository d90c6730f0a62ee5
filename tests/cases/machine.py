"""A quantizer in any order of what people do with it, beside a plain account of what should be.

K codes, D features. One machine serves every kind: a subclass says how one is made.
"""

import copy
import pickle
import warnings
from typing import ClassVar

import torch
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from torch import nn

from softvq import CodebookWarning, attach, quantize_mode
from softvq.nn.kinds import build, describe
from tests.contracts.quantizer import waves

NUM_CODES, DIM = 8, 4
ONE_OF = 50  # runs may compile, which takes longer than many of them
PHASES = st.integers(0, 30).map(float)
SCALES = st.sampled_from([1e-3, 0.3, 1.0, 30.0])
DTYPES = st.sampled_from([torch.float32, torch.bfloat16, torch.float16, torch.float64])


def rows(phase, scale, *, count=24):
    return scale * (waves(count, DIM, phase=phase) + 0.1 * phase)


class QuantizerMachine(RuleBasedStateMachine):
    make = None
    compiles: ClassVar[bool] = False

    @initialize(offset=st.sampled_from([0.0, 0.4]), chance=st.integers(1, ONE_OF))
    def build_it(self, offset, chance):
        self.offset, self.may_compile = offset, self.compiles and chance == ONE_OF
        self.quiet = warnings.catch_warnings()
        self.quiet.__enter__()
        warnings.filterwarnings("ignore", "The temperature hit a bound")
        warnings.filterwarnings("ignore", category=CodebookWarning)
        self.vq = type(self).make()
        self.updates, self.pending, self.frozen, self.saved = 0, False, None, None
        self.keys = set(self.vq.state_dict())
        self.attach_it()

    def teardown(self):
        if hasattr(self, "quiet"):
            self.quiet.__exit__(None, None, None)

    def attach_it(self):
        self.encoder = nn.Linear(DIM, DIM)
        nn.init.eye_(self.encoder.weight)
        nn.init.constant_(self.encoder.bias, self.offset)
        parameters = [*self.encoder.parameters(), *self.vq.parameters()]
        self.optimizer = torch.optim.SGD(parameters, lr=1e-3)
        attach(nn.ModuleList([self.encoder, self.vq]), self.optimizer)

    def forward(self, z, **options):
        z = self.encoder(z)
        return self.vq(z, **options)

    def state(self):
        return {name: each.clone() for name, each in self.vq.state_dict().items()}

    def assert_unchanged(self, before):
        after = self.vq.state_dict()
        assert [k for k in before if not torch.equal(after[k], before[k])] == []

    @rule(phase=PHASES, scale=SCALES, passes=st.integers(1, 3), masked=st.booleans())
    def train_a_step(self, phase, scale, passes, masked):
        """Accumulation is several passes before the step."""
        self.optimizer.zero_grad()
        # Of an offset of 0.4 a division by 1e-6 leaves gradients that float16 cannot hold.
        unit = 1.0 if self.vq.codebook.dtype == torch.float16 else scale
        for part in range(passes):
            z = rows(phase + part, scale)
            mask = torch.arange(len(z)) % 3 > 0 if masked else None
            out = self.vq.train()(self.encoder(z), mask=mask)
            loss = (out.quantized / unit).square().mean() + out.loss / unit**2
            (loss / passes).backward()
            assert loss.isfinite()
            assert ((out.indices >= 0) | ((out.indices == -1) & masked)).all()
            assert (out.indices < NUM_CODES).all()
            assert all(each.isfinite() for each in out.stats.values())
        learned = [*self.encoder.parameters(), *self.vq.parameters()]
        assert all(each.grad is None or each.grad.isfinite().all() for each in learned)
        torch.nn.utils.clip_grad_norm_(learned, 1.0)
        self.optimizer.step()
        self.updates += 1
        self.pending = False

    @rule(phase=PHASES, scale=SCALES)
    def evaluate(self, phase, scale):
        before, rng = self.state(), torch.get_rng_state()
        z = rows(phase, scale)
        with torch.no_grad():
            out = self.vq.eval()(z)
        assert torch.equal(self.vq.codes(out.indices).to(z.dtype), out.quantized)
        assert ((out.indices >= 0) & (out.indices < NUM_CODES)).all()
        self.assert_unchanged(before)
        assert torch.equal(torch.get_rng_state(), rng)

    @rule(phase=PHASES)
    def look_at_it_the_hard_way(self, phase):
        """Validation amid training, in training mode."""
        z = rows(phase, 1.0)
        with torch.no_grad(), quantize_mode(self.vq, "hard"):
            out = self.vq.eval()(z)
        assert torch.equal(self.vq.codes(out.indices).to(z.dtype), out.quantized)

    @precondition(lambda self: not self.vq.awaits_start)
    @rule(phase=PHASES)
    def skip_a_step(self, phase):
        """A scaler that found infinities: the pass is forgotten."""
        before = self.state()
        self.vq.train()(rows(phase, 1.0)).loss.detach()
        self.vq.discard_()
        assert self.vq.update_() is None
        self.assert_unchanged(before)
        self.pending = False

    @precondition(lambda self: not self.vq.awaits_start)
    @rule(phase=PHASES)
    def leave_a_pass_pending(self, phase):
        before = self.state()
        self.vq.train()(rows(phase, 1.0))
        self.assert_unchanged(before)
        self.pending = True

    @precondition(lambda self: self.vq.is_started)
    @rule()
    def feed_nothing(self):
        before = self.state()
        for z, mask in (
            (torch.zeros(0, DIM), None),
            (torch.full((3, DIM), torch.nan), torch.zeros(3, dtype=torch.bool)),
        ):
            out = self.vq.train()(z, mask=mask)
            assert out.loss.item() == 0
        if not self.pending:
            assert self.vq.update_() is None
        self.assert_unchanged(before)

    @rule()
    def save(self):
        self.saved = (copy.deepcopy(self.vq.state_dict()), self.updates, self.vq.is_started)

    @precondition(lambda self: self.saved is not None and self.frozen is None)
    @rule()
    def load(self):
        state, self.updates, is_started = self.saved
        self.vq.load_state_dict(state)
        assert self.vq.is_started is is_started
        assert self.vq.update_() is None, "passes of before the load were kept"
        self.pending = False
        for name, each in self.vq.state_dict().items():
            assert torch.equal(each, state[name].to(each.dtype)), name

    @rule()
    def freeze(self):
        self.vq.freeze_()
        self.frozen = self.vq.codebook.detach().clone()

    @precondition(lambda self: self.frozen is not None)
    @rule()
    def let_go(self):
        self.vq.freeze_(False)
        self.frozen = None

    @rule(how=st.sampled_from(["deepcopy", "pickle", "config"]))
    def exchange(self, how):
        """Another object takes its place."""
        before = self.state()
        if how == "config":
            fresh = build(describe(self.vq)).to(self.vq.codebook.dtype)
            fresh.load_state_dict(before)
            fresh.freeze_(self.frozen is not None)
            self.pending = False
        else:
            copied = copy.deepcopy(self.vq)
            fresh = copied if how == "deepcopy" else pickle.loads(pickle.dumps(self.vq))
        self.vq = fresh
        self.assert_unchanged(before)
        self.attach_it()

    @precondition(lambda self: self.frozen is None)
    @rule(dtype=DTYPES)
    def cast(self, dtype):
        buffers = {k: v.clone() for k, v in self.vq.named_buffers()}
        self.vq.to(dtype)
        changed = [k for k, v in self.vq.named_buffers() if not torch.equal(v, buffers[k])]
        assert changed == []

    @precondition(lambda self: self.may_compile and self.vq.is_started)
    @rule(phase=PHASES)
    def compile_it(self, phase):
        z = rows(phase, 1.0)
        torch.compiler.reset()  # each module that was exchanged counts towards a limit of eight
        with torch.no_grad():
            expected = self.vq.eval()(z)
            out = torch.compile(self.vq, backend="eager", fullgraph=True)(z)
        # Another order of sums may take the other of two codes that are equally near.
        assert torch.equal(self.vq.codes(out.indices).to(z.dtype), out.quantized)
        distances = torch.cdist(z.double(), self.vq.codebook.detach().double()).square()
        taken, nearest = (
            distances.gather(1, each.indices[:, None])[:, 0] for each in (out, expected)
        )
        torch.testing.assert_close(taken, nearest, rtol=0, atol=1e-6 * distances.max().item())

    @invariant()
    def counters_are_exact(self):
        if hasattr(self, "vq"):
            assert int(self.vq.updates) == self.updates
            assert self.vq.is_started is bool(self.vq.started)
            assert bool(self.vq._tally) is self.pending

    @invariant()
    def all_is_finite_and_in_its_dtype(self):
        if not hasattr(self, "vq"):
            return
        state = self.vq.state_dict()
        assert set(state) == self.keys
        for name, each in state.items():
            if each.is_floating_point() and (self.vq.is_started or "schedule" not in name):
                assert each.isfinite().all(), name
            if each.is_floating_point() and name != "codebook":
                assert each.dtype == torch.float32, name
        assert (self.vq.hits >= 0).all()
        if hasattr(self.vq, "schedule"):
            assert (self.vq.schedule.levels > 0).all()

    @invariant()
    def frozen_codes_stay(self):
        if hasattr(self, "vq") and self.frozen is not None:
            assert torch.equal(self.vq.codebook, self.frozen)
