"""Part 2: quantizers in any order of train, eval, save, load, freeze, exchange, cast and skip."""

from functools import partial

import pytest
import torch
from hypothesis import settings

from softvq import HardVQ, Revival, SoftVQ, Temperature
from tests.cases.machine import DIM, NUM_CODES, ONE_OF, QuantizerMachine

KINDS = {
    "soft": partial(SoftVQ, NUM_CODES, DIM, temperature=Temperature(anneal_steps=20)),
    "soft, hard forward": partial(
        SoftVQ, NUM_CODES, DIM, forward_value="hard", temperature=Temperature(anneal_steps=8)
    ),
    "soft mean": partial(
        SoftVQ,
        NUM_CODES,
        DIM,
        forward_value="soft",
        temperature=Temperature(gradient=0.5, prototypes=None, anneal_steps=8, unit="nearest"),
        revival=None,
    ),
    "averages": partial(HardVQ, NUM_CODES, DIM, revival=Revival(threshold=0.9)),
    "gradient": partial(HardVQ, NUM_CODES, DIM, codebook="gradient", estimator="rotation"),
}
FUZZING = settings.get_current_profile_name() == "fuzz"
RUNS = settings(max_examples=settings().max_examples, stateful_step_count=20)


@pytest.mark.hypothesis
@pytest.mark.parametrize("name", list(KINDS))
def test_any_order_of_calls_keeps_the_account(name):
    class Machine(QuantizerMachine):
        make = staticmethod(KINDS[name])
        compiles = FUZZING

    case = Machine.TestCase()
    case.settings = RUNS
    case.runTest()


# What examples found: kept.


def make_machine(name, *, offset):
    class Machine(QuantizerMachine):
        make = staticmethod(KINDS[name])
        compiles = True

    machine = Machine()
    machine.build_it(offset=offset, chance=ONE_OF)
    return machine


@pytest.mark.parametrize("name", list(KINDS))
def test_steps_in_float16_on_small_rows_far_from_zero(name):
    machine = make_machine(name, offset=0.4)
    try:
        machine.cast(torch.float16)
        for _ in range(12):
            machine.train_a_step(phase=0.0, scale=1e-3, passes=1, masked=False)
            machine.counters_are_exact()
            machine.all_is_finite_and_in_its_dtype()
    finally:
        machine.teardown()


@pytest.mark.compiled
def test_compiled_and_plain_take_codes_that_are_equally_near():
    machine = make_machine("averages", offset=0.4)
    try:
        machine.train_a_step(phase=4.0, scale=1e-3, passes=2, masked=True)
        machine.train_a_step(phase=13.0, scale=30.0, passes=2, masked=False)
        machine.compile_it(phase=27.0)
    finally:
        machine.teardown()
