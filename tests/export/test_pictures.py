import pytest
import torch
from torch.utils.data import IterableDataset, Subset, TensorDataset
from torchvision.transforms import Compose, RandomHorizontalFlip

from softvq.data import TensorImages, to_model_range
from softvq.export.pictures import Pictures

BYTES = torch.arange(5 * 3 * 4 * 4).remainder(256).to(torch.uint8).reshape(5, 3, 4, 4)


def test_an_image_set_is_read_in_the_models_range():
    images = TensorImages(BYTES, name="bytes", labels=torch.arange(5))
    pictures = Pictures(images)
    got = pictures.read(1, 4)
    assert torch.equal(got.images, to_model_range(BYTES[1:4]))
    assert got.labels.tolist() == [1, 2, 3]
    assert (pictures.name, pictures.keys[4], len(pictures)) == ("bytes", "00004", 5)


def test_every_byte_is_what_to_model_range_makes_of_it():
    every = torch.arange(256).to(torch.uint8).reshape(1, 1, 16, 16)
    assert torch.equal(Pictures(every).read(0, 1).images, to_model_range(every))


def test_pairs_of_a_torch_data_set_give_labels():
    pairs = Subset(TensorDataset(BYTES, torch.tensor([4, 3, 2, 1, 0])), [3, 0])
    got = Pictures(pairs).read(0, 2)
    assert torch.equal(got.images, to_model_range(BYTES[[3, 0]]))
    assert got.labels.tolist() == [1, 4]
    assert Pictures(pairs).keys == ("0", "1")


def test_floats_stay_as_they_are():
    images = torch.linspace(-1, 1, 48).reshape(1, 3, 4, 4)
    got = Pictures(images).read(0, 1)
    assert torch.equal(got.images, images)
    assert got.labels is None


class Noise(torch.utils.data.Dataset):
    def __len__(self):
        return 3

    def __getitem__(self, index):
        return torch.rand(3, 4, 4)


class Flipped(Noise):
    transform = Compose([RandomHorizontalFlip()])

    def __getitem__(self, index):
        return BYTES[index]


class Stream(IterableDataset):
    def __iter__(self):
        return iter(BYTES)


class Doubled(Noise):
    keys = ("a", "b", "a")

    def __getitem__(self, index):
        return BYTES[index]


class Objects(Noise):
    def __getitem__(self, index):
        return "picture"


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (Noise(), "'Noise' gives another picture at a second reading"),
        (Flipped(), r"dataset.transform augments at random \(Compose\( RandomHorizontalFlip"),
        (Subset(Flipped(), [0]), "dataset.transform augments at random"),
        (Stream(), "must have a length and items by number; got Stream"),
        ([], r"dataset \(list\) is empty"),
        (Doubled(), "dataset.keys must be 3 different names; got 3, of which 2 differ"),
        (Objects(), "dataset must give tensors; got str"),
        (BYTES.long(), "got torch.int64"),
        (BYTES.float(), r"must lie in \[-1, 1\]; got 0 to 239"),
        (BYTES.float() * torch.nan, "got nan to nan"),
    ],
    ids=["noise", "flip", "subset", "stream", "empty", "keys", "objects", "long", "range", "nan"],
)
def test_what_gives_no_fixed_pictures_is_refused(dataset, message):
    with pytest.raises(ValueError, match=message):
        Pictures(dataset)
