import pytest
import torch

from train.prior.vocabulary import (
    Vocabulary,
    check_same,
    flat_codes,
    name_specials,
    read_vocabulary,
    take_vocabulary,
)

TOKENS = torch.arange(12).reshape(2, 2, 3) % 6
LABELS = torch.tensor([1, 0])


def test_numbers_are_those_of_the_manifest(export):
    taken = take_vocabulary(export(TOKENS, LABELS, specials=["mask", "class/1", "bos", "class/0"]))
    assert taken.bos == 8
    assert taken.classes == (9, 7)
    assert (taken.num_codes, taken.vocab_size, taken.grid, taken.length) == (6, 10, (2, 3), 6)


def test_the_vocabulary_holds_codes_and_specials_at_65536_codes(export):
    taken = take_vocabulary(export(TOKENS, LABELS, num_codes=65536))
    assert taken.vocab_size == 65536 + 3
    assert (taken.bos, taken.classes) == (65536, (65537, 65538))


def test_without_classes_all_items_begin_alike(export):
    taken = take_vocabulary(export(TOKENS), conditional=False)
    assert taken.classes == ()
    assert taken.starts(torch.tensor([-1, -1])).tolist() == [6, 6]


def test_an_item_begins_with_its_class_or_bos(vocabulary):
    codes = torch.tensor([[0, 1, 2, 3], [4, 3, 2, 1], [0, 0, 0, 1]])
    inputs = vocabulary.inputs(codes, torch.tensor([2, -1, 0]))
    assert inputs.tolist() == [[8, 0, 1, 2], [5, 4, 3, 2], [6, 0, 0, 0]]


def test_codes_are_row_by_row():
    assert flat_codes(TOKENS)[1].tolist() == [0, 1, 2, 3, 4, 5]


def test_json_gives_the_same_back(vocabulary):
    assert read_vocabulary(vocabulary.to_json()) == vocabulary


def test_specials_are_named_by_number():
    assert name_specials(None) == ["bos"]
    assert name_specials(1) == ["bos", "class/0"]


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("specials", "message"),
    [
        ([], r"no special token 'bos'; their specials are none\. Export them with --specials bos,"),
        (["bos"], r"0 of the class tokens of 2 classes"),
        (
            ["bos", "class/0"],
            r"1 of the class tokens of 2 classes; their specials are bos, class/0",
        ),
        (["bos", "class/0", "class/2"], r"1 of the class tokens of 2 classes"),
    ],
)
def test_a_manifest_that_lacks_specials_is_refused(export, specials, message):
    tokens = export(TOKENS, LABELS, specials=specials)
    with pytest.raises(ValueError, match=message):
        take_vocabulary(tokens)


@pytest.mark.bad_input
def test_a_set_without_labels_is_refused(export):
    tokens = export(TOKENS, specials=name_specials(2))
    with pytest.raises(ValueError, match=r"have no labels: .* \(conditional=false\)"):
        take_vocabulary(tokens)


@pytest.mark.bad_input
@pytest.mark.parametrize("label", [3, -2])
def test_a_class_without_a_token_is_refused(vocabulary, label):
    with pytest.raises(ValueError, match=rf"in \[0, 3\), the class tokens .* got {label}"):
        vocabulary.starts(torch.tensor([0, label]))


@pytest.mark.bad_input
def test_another_vocabulary_is_refused_by_what_differs(vocabulary):
    values = {**vocabulary.to_json(), "codebook_digest": "cd", "bos": 9}
    message = "the test set must have .*: .*bos 9 instead of 5; codebook_digest cd instead of ab"
    with pytest.raises(ValueError, match=message.replace(".*: .*", ".*")):
        check_same(
            vocabulary,
            Vocabulary(**values | {"classes": (6, 7, 8), "grid": (2, 2)}),
            what="the test set",
        )
