import pytest
import torch
from torch.testing import assert_close

from softvq.data import FirstImages, TensorImages, from_model_range, to_model_range
from softvq.data.images import check_indices


def ramp(count=5, channels=3):
    values = torch.arange(count * channels * 2 * 4, dtype=torch.uint8)
    return values.reshape(count, channels, 2, 4)


def test_tensor_images_say_what_they_are():
    images = TensorImages(ramp(), name="ramp", labels=torch.arange(5))
    assert (len(images), images.name, images.channels, images.size) == (5, "ramp", 3, (2, 4))
    assert images.keys == ("00000", "00001", "00002", "00003", "00004")


@pytest.mark.parametrize("indices", [[], [0], [4, 0, 4], [0, 1, 2, 3, 4]], ids=str)
def test_batch_is_in_the_asked_order(indices):
    images = TensorImages(ramp(), name="ramp")
    expected = torch.stack([ramp()[i] for i in indices]) if indices else ramp()[:0]
    assert_close(images.batch(torch.tensor(indices, dtype=torch.int64)), expected)


def test_batch_is_a_copy():
    images = TensorImages(ramp(), name="ramp")
    images.batch(torch.tensor([0, 1])).zero_()
    assert_close(images.images, ramp())


@pytest.mark.parametrize(
    "bad",
    [
        torch.zeros(2, 3, 4, 4),
        torch.zeros(2, 2, 4, 4, dtype=torch.uint8),
        torch.zeros(3, 4, 4, dtype=torch.uint8),
    ],
    ids=["float", "two channels", "three axes"],
)
def test_other_tensors_are_refused(bad):
    with pytest.raises(ValueError, match=r"images must be uint8 of shape \(N, 1 or 3, H, W\)"):
        TensorImages(bad, name="bad")


def test_no_pictures_are_refused():
    with pytest.raises(ValueError, match="images must hold a picture"):
        TensorImages(ramp()[:0], name="none")


@pytest.mark.parametrize("given", [{"keys": ["a"]}, {"labels": torch.arange(4)}], ids=str)
def test_keys_and_labels_are_one_a_picture(given):
    with pytest.raises(ValueError, match="must be 5, one a picture; got"):
        TensorImages(ramp(), name="ramp", **given)


def test_first_images_are_the_first_and_say_so():
    whole = TensorImages(ramp(), name="ramp", labels=torch.arange(5))
    first = FirstImages(whole, count=2)
    assert (len(first), first.name) == (2, "ramp (first 2 of 5)")
    assert first.keys == ("00000", "00001")
    assert_close(first.labels, torch.tensor([0, 1]))
    assert_close(first.batch(torch.tensor([1, 0])), ramp()[[1, 0]])
    with pytest.raises(ValueError, match=r"indices must be in \[0, 2\)"):
        first.batch(torch.tensor([2]))


def test_first_images_may_be_all_but_not_more():
    whole = TensorImages(ramp(), name="ramp")
    assert len(FirstImages(whole, count=5)) == 5
    with pytest.raises(ValueError, match="count must be at most 5"):
        FirstImages(whole, count=6)


@pytest.mark.parametrize(
    ("indices", "message"),
    [
        (torch.tensor([-1]), r"in \[0, 5\).*got -1 to -1"),
        (torch.tensor([0, 5]), r"in \[0, 5\).*got 0 to 5"),
        (torch.tensor([1.0]), "got torch.float32"),
        (torch.tensor([True]), "got torch.bool"),
        (torch.tensor([1], dtype=torch.uint8), "got torch.uint8"),
        (torch.tensor(1), r"of shape \(\)"),
    ],
    ids=["negative", "too large", "float", "bool", "uint8", "0-dim"],
)
def test_indices_that_do_not_fit_are_refused(indices, message):
    with pytest.raises(ValueError, match=message):
        check_indices(indices, count=5)


def test_model_range_values():
    got = to_model_range(torch.tensor([0, 128, 255], dtype=torch.uint8))
    assert_close(got, torch.tensor([-1.0, 128 / 127.5 - 1, 1.0]), rtol=0, atol=1e-7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_every_byte_survives_the_round_trip(dtype):
    every = torch.arange(256, dtype=torch.uint8)
    assert_close(from_model_range(to_model_range(every).to(dtype)), every)


@pytest.mark.parametrize(
    ("value", "byte"), [(-7.0, 0), (-1.0, 0), (-0.99, 1), (0.0, 128), (0.999, 255), (9.0, 255)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_from_model_range_rounds_and_clamps(value, byte, dtype):
    assert from_model_range(torch.tensor(value, dtype=dtype)).item() == byte


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_from_model_range_refuses_what_no_byte_stands_for(bad):
    with pytest.raises(ValueError, match="images holds 1 of 2 entries that are NaN or infinite"):
        from_model_range(torch.tensor([0.0, bad]))


def test_to_model_range_refuses_floats():
    with pytest.raises(ValueError, match=r"images must be uint8.*got torch.float32"):
        to_model_range(torch.zeros(2))
