"""Part 8: every public constructor, with what people hand it by mistake.

A message names the argument and shows what came, as ValueError; a warning comes once, in a category
of its own.
"""

import inspect
import math
import re
import warnings

import pytest
import torch

import softvq
from softvq import (
    Cosine,
    DDCLAttention,
    DDCLLevel,
    DDCLReadout,
    DDCLStack,
    GroupedVQ,
    HardVQ,
    ImplicitVQ,
    Learning,
    Loss,
    MultiHeadVQ,
    OneIndex,
    Projected,
    ResidualVQ,
    Revival,
    Scaled,
    SoftFSQ,
    SoftVQ,
    Temperature,
)
from softvq.models import VQVAE, VQVAEConfig
from tests.contracts.quantizer import place, start_on, waves

# What makes each public class; the walk changes one argument at a time.
VALID = {
    Cosine: lambda: {"vq": SoftVQ(8, 4)},
    DDCLAttention: lambda: {"dim": 4, "num_prototypes": 3},
    DDCLLevel: lambda: {"attention": DDCLAttention(4, 3), "window": 2},
    DDCLReadout: lambda: {"dim": 4, "num_prototypes": 3},
    DDCLStack: lambda: {"levels": [DDCLLevel(DDCLAttention(4, 3), window=2)]},
    GroupedVQ: lambda: {"quantizers": [SoftVQ(8, 4)]},
    HardVQ: lambda: {"num_codes": 8, "dim": 4},
    ImplicitVQ: lambda: {"num_codes": 8, "dim": 4},
    Learning: dict,
    Loss: dict,
    MultiHeadVQ: lambda: {"vq": SoftVQ(8, 4), "num_heads": 2},
    OneIndex: lambda: {"vq": GroupedVQ([SoftVQ(8, 4)])},
    Projected: lambda: {"vq": SoftVQ(8, 4), "dim": 8},
    ResidualVQ: lambda: {"quantizers": [SoftVQ(8, 4)]},
    Revival: dict,
    Scaled: lambda: {"vq": SoftVQ(8, 4)},
    SoftFSQ: lambda: {"levels": [3, 4]},
    SoftVQ: lambda: {"num_codes": 8, "dim": 4},
    Temperature: dict,
    VQVAEConfig: dict,
}
MISTAKES = [-1, -1.0, math.nan, math.inf, "nonsense", [0], ("a", "b"), (math.nan, 1.0), object()]
WALK = [(each, name) for each in VALID for name in inspect.signature(each).parameters]
# Made by functions or by the library, or hold no options of their own.
NOT_WALKED = {
    "Arrangement",
    "Bits",
    "Codebook",
    "CodebookWarning",
    "DDCLOutput",
    "HealthMonitor",
    "Quantizer",
    "QuantizerOutput",
    "ReadoutOutput",
    "StackOutput",
    "TokenDataset",
    "Updates",
}


def test_every_public_class_is_walked():
    public = {name for name in softvq.__all__ if inspect.isclass(getattr(softvq, name))}
    assert public - {each.__name__ for each in VALID} == NOT_WALKED


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("kind", "name"), WALK, ids=[f"{kind.__name__}-{name}" for kind, name in WALK]
)
def test_a_mistake_is_told_by_the_name_of_the_argument(kind, name):
    """A list of one code is no list of quantizers, NaN no temperature, True no number of codes."""
    for mistake in MISTAKES:
        with pytest.raises(ValueError, match=rf"\b{name}\b") as told:
            kind(**{**VALID[kind](), name: mistake})
        shown = mistake[0] if isinstance(mistake, list | tuple) else mistake
        came = (
            repr(mistake),
            repr(shown),
            str(shown),
            type(shown).__name__,
            type(mistake).__name__,
        )
        assert any(each in str(told.value) for each in came), str(told.value)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        (
            {"temperature": 0.5},
            r"temperature must be a Temperature; got 0\.5\. Write Temperature\(",
        ),
        ({"revival": True}, r"revival must be a Revival; got True\. Write Revival\("),
        ({"loss": 0}, r"loss must be a Loss; got 0\. Write Loss\("),
        ({"num_codes": 10**19}, r"num_codes must be a whole number below 2\^63; got 1"),
    ],
    ids=["temperature", "revival", "loss", "huge"],
)
def test_what_would_work_is_said(options, remedy):
    with pytest.raises(ValueError, match=remedy):
        SoftVQ(**{"num_codes": 8, "dim": 4, **options})


# Warnings: each has a way to make it come


def in_eval_mode():
    start_on(SoftVQ(8, 4), waves(32, 4)).eval()(waves(5, 4).requires_grad_())


def on_rubbish():
    vq = start_on(SoftVQ(8, 4), waves(32, 4))
    vq.train()(torch.full((5, 4), torch.nan))
    vq.update_()


def never_updated():
    vq = start_on(HardVQ(4, 2), waves(16, 2))
    vq._unanswered = 500
    vq(waves(16, 2))


def without_codes():
    vq = SoftVQ(8, 4).eval()
    vq.load_state_dict({}, strict=False)
    vq(waves(5, 4))


def at_a_bound():
    vq = SoftVQ(2, 4, temperature=Temperature(gradient=50.0))
    place(vq, torch.zeros(2, 4))
    vq.train()(waves(32, 4))
    vq.update_()


WAYS = {
    "eval": (in_eval_mode, r"Call train\(\)"),
    "finite": (on_rubbish, "Look at the encoder's loss and learning rate"),
    "update": (never_updated, r"Call softvq\.attach\(model, optimizer\)"),
    "load": (without_codes, "holds no codebook"),
    "bound": (at_a_bound, r"ask for less by Temperature\(gradient=\.\.\.\)"),
}


@pytest.mark.parametrize("name", list(WAYS))
def test_a_warning_says_what_to_do_and_its_category_silences_it(name):
    way, remedy = WAYS[name]
    with pytest.warns(softvq.CodebookWarning, match=remedy):
        way()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", softvq.CodebookWarning)
        way()


@pytest.mark.bad_input
def test_names_that_are_wrong_get_the_nearest_right_one():
    with pytest.raises(ValueError, match=r"valid are: .*Did you mean 'blurred'\?"):
        SoftVQ(8, 4, forward_value="blured")
    with pytest.raises(TypeError, match=re.escape("unexpected keyword argument 'num_code'")):
        SoftVQ(num_code=8, dim=4)


@pytest.mark.bad_input
def test_a_model_around_a_quantizer_of_another_size_says_both():
    with pytest.raises(ValueError, match=r"dim=8, config has dim=64"):
        VQVAE(SoftVQ(16, 8, layout="channels_first"))
