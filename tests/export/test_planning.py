import json

import pytest

from softvq.export import SoftTargets
from softvq.export.pictures import Pictures
from softvq.export.planning import list_keys, make_plan, settle_temperature
from softvq.export.source import take_codebook


def test_any_key_is_one_line():
    keys = ["a/ü.png", "two\nlines", '"quoted"', "\u2028"]
    lines = list_keys(keys).splitlines()
    assert [json.loads(line) for line in lines] == keys


def test_a_temperature_that_is_given_stays(model):
    soft = SoftTargets(top=3, temperature=0.25)
    assert settle_temperature(model, soft) is soft
    assert settle_temperature(model, None) is None


@pytest.mark.parametrize(("names", "size"), [([], 16), (["bos", "mask", "class/0"], 19)], ids=str)
def test_the_vocabulary_is_codes_and_specials(model, waves, names, size):
    plan = make_plan(
        model,
        Pictures(waves),
        codebook=take_codebook(model),
        specials=names,
        soft=None,
        shard_size=3,
    )
    assert (plan.num_codes, plan.vocab_size, list(plan.specials)) == (16, size, names)
    assert (plan.grid, plan.num_shards, plan.has_labels) == ((3, 3), 4, True)
