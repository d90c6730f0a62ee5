"""Part 2: quantizers in any order of train, eval, save, load, freeze, exchange, cast and skip."""

from functools import partial

import pytest
from hypothesis import settings

from softvq import HardVQ, Revival, SoftVQ, Temperature
from tests.cases.machine import DIM, NUM_CODES, QuantizerMachine

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
# A run is many steps: fewer of them than of single examples.
FUZZING = settings.get_current_profile_name() == "fuzz"
RUNS = settings(max_examples=settings().max_examples, stateful_step_count=50 if FUZZING else 20)


@pytest.mark.hypothesis
@pytest.mark.parametrize("name", list(KINDS))
def test_any_order_of_calls_keeps_the_account(name):
    class Machine(QuantizerMachine):
        make = staticmethod(KINDS[name])
        compiles = FUZZING

    case = Machine.TestCase()
    case.settings = RUNS
    case.runTest()
