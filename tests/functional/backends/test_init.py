import pytest
import torch

from softvq.functional.backends import DENSE_LIMIT, choose_backend, native_build
from tests.compilers import needs_compiler

SMALL = torch.zeros(8, 4)


def rows(num_rows, dtype=torch.float32):
    """Rows that take no memory."""
    return torch.zeros(1, 4, dtype=dtype).expand(num_rows, 4)


@pytest.fixture
def turned_off(monkeypatch):
    monkeypatch.setenv(native_build.SWITCH_VARIABLE, "0")
    native_build.load.cache_clear()
    yield
    native_build.load.cache_clear()


@pytest.mark.parametrize(
    ("num_rows", "num_codes", "name"),
    [(0, 5, "reference"), (DENSE_LIMIT, 1, "reference"), (DENSE_LIMIT + 1, 1, "chunked")],
)
def test_the_choice_goes_by_size_and_gives_its_reason(num_rows, num_codes, name):
    choice = choose_backend("auto", rows(num_rows, torch.float64), num_codes=num_codes)
    assert choice.name == name
    assert len(choice.reason) > 20


@needs_compiler
def test_float32_on_a_cpu_takes_the_fused_kernel():
    assert choose_backend("auto", rows(10**6), num_codes=100).name == "native"


def test_the_choice_says_why_the_fused_kernel_cannot_run():
    choice = choose_backend("auto", rows(10**6, torch.float64), num_codes=100)
    assert choice.name == "chunked"
    assert "native cannot run because it computes in float32" in choice.reason


def test_without_the_fused_kernel_blocks_of_rows_are_taken(turned_off):
    choice = choose_backend("auto", rows(10**6), num_codes=100)
    assert choice.name == "chunked"
    assert "turned off by the environment variable SOFTVQ_NATIVE" in choice.reason


def test_a_fused_kernel_asked_for_by_name_says_why_it_cannot_run(turned_off):
    with pytest.raises(ValueError, match=r"'native' cannot run because it is turned off.*'auto'"):
        choose_backend("native", SMALL, num_codes=8)
    with pytest.raises(ValueError, match=r"'native' cannot run because it computes in float32"):
        choose_backend("native", SMALL.double(), num_codes=8)


@pytest.mark.parametrize("name", ["reference", "chunked"])
def test_a_name_is_taken_at_its_word(name):
    assert choose_backend(name, rows(10**6), num_codes=10**6).name == name


def test_attention_gives_means_alone():
    assert choose_backend("sdpa", SMALL, num_codes=8, mean_only=True).name == "sdpa"
    with pytest.raises(ValueError, match=r"backend='sdpa' gives mean and spread alone.*chunked"):
        choose_backend("sdpa", SMALL, num_codes=8)


def test_an_unknown_name_is_met_with_the_valid_ones():
    with pytest.raises(ValueError, match=r"backend is 'refrence'; valid are: .*'reference'\?"):
        choose_backend("refrence", SMALL, num_codes=8)


def test_triton_says_why_it_cannot_run():
    wide = torch.zeros(8, 512)
    with pytest.raises(ValueError, match=r"'triton' cannot run because .*at most 256 features"):
        choose_backend("triton", wide, num_codes=8)
    with pytest.raises(ValueError, match=r"computes in float32.*float64.*'auto' or 'chunked'"):
        choose_backend("triton", SMALL.double(), num_codes=8)
