"""Thirty seeded faults of the core: a sign, an axis, one too many, a state that has gone stale.

Each is a line as it is, what it becomes, and the tests that should notice.
`python -m tests.mutation.run` applies them one by one to a copy of the tree.
"""

from dataclasses import dataclass

NN, FUNCTIONAL, BACKENDS = "softvq/nn", "softvq/functional", "softvq/functional/backends"


@dataclass(frozen=True, kw_only=True)
class Fault:
    """``old``, which stands once in ``file``, becomes ``new``; ``tests`` are pytest's arguments."""

    name: str
    file: str
    old: str
    new: str
    tests: str


FAULTS = [
    # The state of a quantizer
    Fault(
        name="hits remember the share that they should forget",
        file=f"{NN}/upkeep.py",
        old="(self.num_codes / total.float()), 1 - HITS_MEMORY)",
        new="(self.num_codes / total.float()), HITS_MEMORY)",
        tests="tests/nn/test_base.py -k 'not pickles'",
    ),
    Fault(
        name="an update leaves the tally for the next one",
        file=f"{NN}/upkeep.py",
        old="        self._tally.clear()\n        if dropped:",
        new="        if dropped:",
        tests="tests/nn/test_base.py -k 'not pickles'",
    ),
    Fault(
        name="a load keeps passes of before",
        file=f"{NN}/starting.py",
        old="self._note_start(state_dict, prefix)\n        self._tally.clear()",
        new="self._note_start(state_dict, prefix)",
        tests="tests/nn/test_hard.py -k forgets_passes",
    ),
    Fault(
        name="a load does not tell that the codebook has not started",
        file=f"{NN}/starting.py",
        old='self._is_started = self.started.device.type != "meta" and bool(self.started)\n',
        new="self._is_started = self._is_started\n",
        tests="tests/cases/test_surroundings.py -k before_the_start",
    ),
    Fault(
        name="code 0 is taken for a masked position",
        file=f"{NN}/base.py",
        old="torch.where((flat >= 0)[:, None], rows, 0)",
        new="torch.where((flat > 0)[:, None], rows, 0)",
        tests="tests/nn/test_hard.py -k what_eval_decodes",
    ),
    Fault(
        name="looked-up codes have their features on the batch axis",
        file=f"{NN}/base.py",
        old="found.movedim(-1, 1)",
        new="found.movedim(-1, 0)",
        tests="tests/nn/test_base.py -k codes",
    ),
    Fault(
        name="frozen codes are revived",
        file=f"{NN}/upkeep.py",
        old="if self.revival is None or self.is_frozen:",
        new="if self.revival is None:",
        tests="tests/cases/test_frozen.py",
    ),
    Fault(
        name="of several passes a step only the last is counted",
        file=f"{NN}/tally.py",
        old="self.counts = counts if self.counts is None else self.counts + counts",
        new="self.counts = counts",
        tests="tests/nn/test_tally.py",
    ),
    Fault(
        name="a row with one number that is none is counted",
        file=f"{NN}/tally.py",
        old="squares = at_least_float32(rows).square().sum(-1)",
        new="squares = at_least_float32(rows).square()[:, 0]",
        tests="tests/nn/test_tally.py",
    ),
    Fault(
        name="a code at the threshold of revival is dead",
        file=f"{NN}/revival.py",
        old="dead = (hits < options.threshold)",
        new="dead = (hits <= options.threshold)",
        tests="tests/nn/test_revival.py",
    ),
    Fault(
        name="donors get the moments of the dead",
        file=f"{NN}/attach.py",
        old="moments[revived.codes] = moments[revived.donors]",
        new="moments[revived.donors] = moments[revived.codes]",
        tests="tests/nn/test_attach.py",
    ),
    Fault(
        name="a pass of a skipped step stays in the tally",
        file=f"{NN}/attach.py",
        old="if not self._stepped and _holds_gradients",
        new="if self._stepped and _holds_gradients",
        tests="tests/nn/test_attach.py",
    ),
    # What a quantizer computes
    Fault(
        name="the gradient of the soft mean has the wrong sign",
        file=f"{NN}/soft.py",
        old="return hard + (mean - mean.detach())",
        new="return hard - (mean - mean.detach())",
        tests="tests/nn/test_soft.py -k gradient",
    ),
    Fault(
        name="the entropy of use is lowered",
        file=f"{NN}/loss.py",
        old="loss = loss - options.use_entropy * trust * use_entropy(use)",
        new="loss = loss + options.use_entropy * trust * use_entropy(use)",
        tests="tests/nn/test_soft.py -k formula",
    ),
    Fault(
        name="codes settle at the temperature of the gradient path",
        file=f"{NN}/soft.py",
        old="decoded, settled = _at_level(codes, 0), _at_level(codes, -1)",
        new="decoded, settled = _at_level(codes, 0), _at_level(codes, 0)",
        tests="tests/nn/test_soft.py -k 'formula or temperature'",
    ),
    Fault(
        name="the warm-up ends a step late",
        file=f"{NN}/soft.py",
        old="int(self.updates) >= self.schedule.options.warmup_steps",
        new="int(self.updates) > self.schedule.options.warmup_steps",
        tests="tests/nn/test_soft.py -k warm_up",
    ),
    Fault(
        name="the row is turned the wrong way",
        file=f"{NN}/hard.py",
        old="reflected = rows - 2 * (rows * bisector)",
        new="reflected = rows + 2 * (rows * bisector)",
        tests="tests/nn/test_hard.py -k rotation",
    ),
    Fault(
        name="a stage gets what the codes before it give, not what they leave",
        file=f"{NN}/residual.py",
        old="total, rest = total + code, rest - code",
        new="total, rest = total + code, rest + code",
        tests="tests/nn/test_residual.py",
    ),
    Fault(
        name="the annealing goes on to the end of the run",
        file=f"{NN}/temperature.py",
        old="return updates / (self.anneal_steps * self.anneal_share)",
        new="return updates / self.anneal_steps",
        tests="tests/nn/test_temperature.py",
    ),
    Fault(
        name="an average of scales forgets the past",
        file=f"{NN}/schedule.py",
        old="buffer.lerp(new, 1 - past)",
        new="buffer.lerp(new, past)",
        tests="tests/nn/test_temperature.py",
    ),
    # The functions under it
    Fault(
        name="sums of rows decay by another share than their counts",
        file=f"{FUNCTIONAL}/ema.py",
        old="averages.sums.lerp(sums.to(averages.sums.dtype), 1 - decay)",
        new="averages.sums.lerp(sums.to(averages.sums.dtype), decay)",
        tests="tests/functional/test_ema.py",
    ),
    Fault(
        name="beta is one too large",
        file=f"{FUNCTIONAL}/losses.py",
        old="both = energy + (beta - 1) * (pull - pull.detach())",
        new="both = energy + beta * (pull - pull.detach())",
        tests="tests/functional/test_losses.py",
    ),
    Fault(
        name="the weight of the commitment is on the codes",
        file=f"{FUNCTIONAL}/losses.py",
        old="loss = commitment * (z - code.detach())",
        new="loss = commitment * (z.detach() - code)",
        tests="tests/functional/test_losses.py",
    ),
    Fault(
        name="codes in their second derivative push where they should pull",
        file=f"{BACKENDS}/chunked.py",
        old="d_codebook -= 2 * column[:, None] * codebook",
        new="d_codebook += 2 * column[:, None] * codebook",
        tests="tests/functional/backends/test_chunked.py -k 'AgainstReference'",
    ),
    # The compiled kernel
    Fault(
        name="C: a panel of codes is never the nearest",
        file=f"{BACKENDS}/native_tile.h",
        old="for (int64_t j = 1; j < panels; j++)\n        if (most[j] > most[best])",
        new="for (int64_t j = 2; j < panels; j++)\n        if (most[j] > most[best])",
        tests="tests/functional/backends/test_native.py",
    ),
    Fault(
        name="C: the free energy has the wrong sign before T log Z",
        file=f"{BACKENDS}/native_forward.h",
        old="norm - t->top[r] - p->temperature[s] * log_total",
        new="norm - t->top[r] + p->temperature[s] * log_total",
        tests="tests/functional/backends/test_native.py",
    ),
    Fault(
        name="C: use keeps the last row alone where few weights are left",
        file=f"{BACKENDS}/native_forward.h",
        old="use[t->places[i]] += t->picked[i] * share;",
        new="use[t->places[i]] = t->picked[i] * share;",
        tests="tests/functional/backends/test_native.py",
    ),
    Fault(
        name="C: the gradient of the spread has the wrong sign at the mean",
        file=f"{BACKENDS}/native_backward.h",
        old="pull[d] -= 2 * f.spread * p->mean[at + d];",
        new="pull[d] += 2 * f.spread * p->mean[at + d];",
        tests="tests/functional/backends/test_native.py",
    ),
    Fault(
        name="C: weights' gradients are not taken about their mean",
        file=f"{BACKENDS}/native_backward.h",
        old="vf part = weight * (load(flow + k) - (float)delta) * inverse;",
        new="vf part = weight * load(flow + k) * inverse;",
        tests="tests/functional/backends/test_native.py",
    ),
    Fault(
        name="C: scores of rows in a tile's last group are those of before",
        file=f"{BACKENDS}/native_tile.h",
        old="    int64_t rows = (t->count + GROUP - 1) / GROUP * GROUP;\n"
        "    for (int64_t j = 0; j < panels; j++) {",
        new="    int64_t rows = t->count / GROUP * GROUP;\n"
        "    for (int64_t j = 0; j < panels; j++) {",
        tests="tests/functional/backends/test_native.py",
    ),
]
