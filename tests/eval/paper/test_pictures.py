import torch

from eval.paper.pictures import METHODS, Classifier, find_patches, to_blocks
from softvq.data.images import TensorImages


def test_four_patches_in_a_row_are_neighbours():
    """Each patch holds its own row and column; a window of four is a block of 2 x 2."""
    rows = torch.arange(32.0)[:, None].expand(32, 32) // 4
    columns = rows.T
    patches = to_blocks(torch.stack([rows, columns, rows])[None])
    where = patches.reshape(64, 3, 16)[:, :2, 0]
    assert where[:4].tolist() == [[0, 0], [0, 1], [1, 0], [1, 1]]
    assert where[4:8].tolist() == [[0, 2], [0, 3], [1, 2], [1, 3]]
    assert len(where.unique(dim=0)) == 64


def test_the_stack_leaves_four_tokens():
    torch.manual_seed(0)
    model = Classifier(METHODS[1], steps=2, seed=0)
    pictures = torch.sin(torch.arange(8 * 3 * 32 * 32.0)).reshape(8, 3, 32, 32)
    logits, loss, splits = model(pictures)
    assert logits.shape == (8, 10)
    assert loss.isfinite()
    assert len(splits) == 2
    assert model.body(pictures).tokens.shape == (8, 4, 64)


def test_the_patches_of_a_prototype_are_cut_from_the_pictures():
    """Pictures of one colour each: a patch has one too, and it is among theirs."""
    torch.manual_seed(0)
    model = Classifier(METHODS[1], steps=2, seed=0)
    colours = torch.arange(0, 240, 30, dtype=torch.uint8)
    images = TensorImages(
        colours[:, None, None, None].expand(8, 3, 32, 32).contiguous(), name="plain"
    )
    model(images.batch(torch.arange(8)).float() / 127.5 - 1)
    for patches in find_patches(model, images, num=3):
        assert [tuple(patch.shape) for patch in patches] == [(3, 4, 4)] * 3
        assert all(len(patch.unique()) == 1 and patch[0, 0, 0] in colours for patch in patches)
