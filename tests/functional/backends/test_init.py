import pytest

from softvq.functional.backends import DENSE_LIMIT, choose_backend

SMALL = {"num_rows": 8, "num_codes": 8}


@pytest.mark.parametrize(
    ("num_rows", "num_codes", "name"),
    [(0, 5, "reference"), (DENSE_LIMIT, 1, "reference"), (DENSE_LIMIT + 1, 1, "chunked")],
)
def test_the_choice_goes_by_size_and_gives_its_reason(num_rows, num_codes, name):
    choice = choose_backend("auto", num_rows=num_rows, num_codes=num_codes)
    assert choice.name == name
    assert len(choice.reason) > 20


@pytest.mark.parametrize("name", ["reference", "chunked"])
def test_a_name_is_taken_at_its_word(name):
    assert choose_backend(name, num_rows=10**6, num_codes=10**6).name == name


def test_attention_gives_means_alone():
    assert choose_backend("sdpa", **SMALL, mean_only=True).name == "sdpa"
    with pytest.raises(ValueError, match=r"backend='sdpa' gives mean and spread alone.*chunked"):
        choose_backend("sdpa", **SMALL)


def test_an_unknown_name_is_met_with_the_valid_ones():
    with pytest.raises(ValueError, match=r"backend is 'refrence'; valid are: .*'reference'\?"):
        choose_backend("refrence", **SMALL)
