import pytest
import torch

from softvq.export.vocabulary import check_tokens, narrowest_dtype, number_specials


@pytest.mark.parametrize("num_codes", [1, 256, 65536])
def test_specials_follow_the_codes(num_codes):
    numbers = number_specials(["bos", "mask"], num_codes=num_codes)
    assert numbers == {"bos": num_codes, "mask": num_codes + 1}


@pytest.mark.parametrize(
    ("size", "dtype"),
    [
        (1, "uint8"),
        (256, "uint8"),
        (257, "uint16"),
        (65536, "uint16"),
        (65537, "uint32"),
        (2**32, "uint32"),
    ],
    ids=str,
)
def test_the_narrowest_type_holds_the_last_number(size, dtype):
    assert narrowest_dtype(size) == dtype


@pytest.mark.parametrize(
    "dtype", [torch.uint8, torch.uint16, torch.uint32, torch.int32, torch.int64], ids=str
)
def test_codes_of_any_whole_type_pass(dtype):
    check_tokens("tokens", torch.tensor([0, 200, 255]).to(dtype), num_codes=256)
    check_tokens("tokens", torch.zeros(0, dtype=dtype), num_codes=256)


@pytest.mark.bad_input
def test_more_than_32_bits_are_refused():
    with pytest.raises(ValueError, match=f"vocab_size is {2**32 + 1}"):
        narrowest_dtype(2**32 + 1)


@pytest.mark.bad_input
@pytest.mark.parametrize("names", ["bos", ["a", "a"], [""], [3]], ids=str)
def test_names_that_are_no_list_of_names_are_refused(names):
    with pytest.raises(ValueError, match="specials must be"):
        number_specials(names, num_codes=4)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (torch.tensor([[0, 1], [-1, 2]]), r"got -1 at \[1, 0\], and 1 such in all. Take masked"),
        (torch.tensor([0, 9]), r"\[0, 8\); got 9, the special token 'mask' at \[1\]"),
        (torch.tensor([70, 8]), r"got 70 at \[0\], and 2 such in all. Take special tokens out"),
        (torch.tensor([0.0]), "whole numbers; got torch.float32"),
        (torch.tensor([True]), "whole numbers; got torch.bool"),
        ([1, 2], "got list"),
    ],
    ids=["negative", "special", "beyond", "float", "bool", "list"],
)
def test_what_is_no_code_is_named(tokens, message):
    with pytest.raises(ValueError, match=f"tokens must be .*{message}"):
        check_tokens("tokens", tokens, num_codes=8, specials={"bos": 8, "mask": 9})
