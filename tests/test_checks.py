import numpy as np
import pytest
import torch

from softvq.checks import (
    check_count,
    check_features,
    check_finite,
    check_floating,
    check_mask,
    check_number,
    choose,
)

NAN, INF = float("nan"), float("inf")


def test_what_fits_comes_back():
    assert choose("layout", "b", ["a", "b"]) == "b"
    assert check_count("num_codes", 1) == 1
    assert check_count("least", 0, least=0) == 0
    assert check_number("beta", 0, least=0, most=1) == 0.0
    assert check_number("beta", 1, least=0, most=1) == 1.0


# These two run without the run-time checker, for which only Python's own numbers are numbers.
@pytest.mark.bad_input
@pytest.mark.parametrize("value", [np.int64(3), np.float32(0.5)], ids=["int64", "float32"])
def test_numpys_numbers_are_numbers(value):
    assert check_number("beta", value) == float(value)
    assert type(check_number("beta", value)) is float


@pytest.mark.bad_input
def test_numpys_whole_numbers_count():
    assert type(check_count("num_codes", np.int64(3))) is int


def test_tensors_that_fit_pass():
    z = torch.zeros(2, 3, 4, 4)
    check_floating("z", z.half())
    check_features("z", z, dim=3, axis=1)
    check_features("z", torch.zeros(3), dim=3, axis=-1)
    check_mask("mask", None, shape=(1,))
    check_mask("mask", torch.ones(2, 4, dtype=torch.bool), shape=(2, 4))
    check_finite("z", z, remedy="None is wanted.")
    check_finite("z", torch.zeros(0), remedy="None is wanted.")


MESSAGES = {
    "name": (
        lambda: choose("layout", "chanels_last", ["channels_last", "channels_first"]),
        r"^layout is 'chanels_last'; valid are: channels_last, channels_first\. "
        r"Did you mean 'channels_last'\?$",
    ),
    "name like no other": (
        lambda: choose("layout", "q", ["one", "two"]),
        r"valid are: one, two\.$",
    ),
    "no name": (lambda: choose("layout", None, ["one"]), "layout is None; valid are: one"),
    "count": (
        lambda: check_count("num_codes", 0),
        r"^num_codes must be a whole number of at least 1; got 0\.$",
    ),
    "count of two": (lambda: check_count("dim", 1, least=2), "dim must be.*at least 2; got 1"),
    "count with a fraction": (lambda: check_count("dim", 2.0), r"dim must be.*got 2\.0"),
    "count true": (lambda: check_count("dim", True), "dim must be.*got True"),
    "count word": (lambda: check_count("dim", "8"), "dim must be.*got '8'"),
    "number nan": (lambda: check_number("beta", NAN), r"^beta must be a finite number; got nan\.$"),
    "number infinite": (lambda: check_number("beta", INF, least=0), "finite number >= 0; got inf"),
    "number true": (lambda: check_number("beta", True), "beta must be.*got True"),
    "number none": (lambda: check_number("beta", None), "beta must be.*got None"),
    "number below": (
        lambda: check_number("beta", -1, least=0, most=1),
        r"^beta must be a finite number >= 0 and <= 1; got -1\.$",
    ),
    "number above": (lambda: check_number("beta", 2, least=0, most=1), "<= 1; got 2"),
    "number on the edge": (lambda: check_number("T", 0, above=0), "T must be.*> 0; got 0"),
    "number of a tensor": (lambda: check_number("T", torch.ones(())), r"T must be.*got tensor\(1"),
    "integer tensor": (
        lambda: check_floating("z", torch.zeros(2, dtype=torch.int64)),
        r"^z must be a floating-point tensor; got torch\.int64\. Convert it with z\.float\(\)\.$",
    ),
    "complex tensor": (lambda: check_floating("z", torch.zeros(2) + 0j), "z must be.*complex64"),
    "eight bits": (
        lambda: check_floating("z", torch.zeros(2).to(torch.float8_e4m3fn)),
        r"^z is torch\.float8_e4m3fn, with which nothing is computed.*z\.bfloat16\(\)\.$",
    ),
    "array": (lambda: check_floating("z", np.zeros(2)), r"^z must be a tensor; got ndarray\.$"),
    "features": (
        lambda: check_features("z", torch.zeros(5, 2), dim=3, axis=-1),
        r"^z must have 3 features on axis -1; got 2 in shape \(5, 2\)\.$",
    ),
    "features elsewhere": (
        lambda: check_features("z", torch.zeros(2, 3, 4), dim=3, axis=-1),
        r"got 4 in shape \(2, 3, 4\)\. Axis 1 has 3: is the layout right\?$",
    ),
    "integer features": (
        lambda: check_features("z", torch.zeros(5, 3).int(), dim=3, axis=-1),
        "z must be a floating-point tensor",
    ),
    "no axis": (
        lambda: check_features("z", torch.zeros(()), dim=3, axis=-1),
        r"^z needs at least 1 axes.*got shape \(\)\.$",
    ),
    "no channel axis": (
        lambda: check_features("z", torch.zeros(3), dim=3, axis=1),
        r"^z needs at least 2 axes.*got shape \(3,\)\.$",
    ),
    "mask dtype": (
        lambda: check_mask("mask", torch.ones(2), shape=(2,)),
        r"^mask must be a bool tensor, True where a row counts; got torch\.float32\.$",
    ),
    "mask list": (lambda: check_mask("mask", [True], shape=(1,)), "mask must be.*got list"),
    "mask shape": (
        lambda: check_mask("mask", torch.ones(2, 1, dtype=torch.bool), shape=(2,)),
        r"^mask must have shape \(2,\), the input's without its feature axis; got \(2, 1\)\.$",
    ),
    "not finite": (
        lambda: check_finite("z", torch.tensor([NAN, 1.0, INF, -INF]), remedy="Lower the rate."),
        r"^z holds 3 of 4 entries that are NaN or infinite\. Lower the rate\.$",
    ),
}


@pytest.mark.bad_input
@pytest.mark.parametrize("case", MESSAGES)
def test_messages_name_the_argument_the_value_and_the_remedy(case):
    call, message = MESSAGES[case]
    with pytest.raises(ValueError, match=message):
        call()
