import numpy as np
import pytest
import torch
from PIL import Image

from softvq.export import export_tokens, load_tokens
from tests.train.prior.conftest import make_images, make_vocabulary
from train.prior.pictures import check_tokenizer, decode, lay_out, write_png


@pytest.fixture
def tokens(tokenizer, tmp_path):
    return load_tokens(export_tokens(tokenizer, make_images(), tmp_path / "tokens").folder)


def test_decoded_tokens_are_the_hard_reconstruction(tokenizer, tokens, monkeypatch):
    monkeypatch.setattr("train.prior.pictures.BATCH", 5)
    codes = tokens.batch(torch.arange(12)).tokens
    got = decode(codes, tokenizer, size=(15, 16))
    assert got.shape == (12, 3, 15, 16)
    expected = tokens.decode(codes, tokenizer)[..., :15, :]
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-6)


def test_pictures_lie_row_by_row_on_white():
    pictures = torch.arange(3 * 3 * 2 * 2, dtype=torch.uint8).reshape(3, 3, 2, 2)
    got = lay_out(pictures, columns=2, scale=3)
    assert got.shape == (6 + 2 + 6, 6 + 2 + 6, 3)
    assert torch.equal(got[0:6:3, 0:6:3].permute(2, 0, 1), pictures[0])
    assert torch.equal(got[2:6:3, 10:14:3].permute(2, 0, 1), pictures[1])
    assert torch.equal(got[8::3, 0:6:3].permute(2, 0, 1), pictures[2])
    assert bool((got[8:, 8:] == 255).all())
    assert bool((got[6:8] == 255).all())


def test_grey_pictures_become_grey_colours():
    got = lay_out(torch.full((1, 1, 2, 2), 7, dtype=torch.uint8), columns=1, scale=1)
    assert got.tolist() == [[[7, 7, 7]] * 2] * 2


def test_a_written_picture_holds_its_pixels(tmp_path):
    pixels = torch.arange(4 * 5 * 3, dtype=torch.uint8).reshape(4, 5, 3)
    path = write_png(pixels, tmp_path / "new" / "p.png")
    with Image.open(path) as image:
        assert np.array_equal(np.asarray(image), pixels.numpy())
    assert [each.name for each in path.parent.iterdir()] == ["p.png"]


@pytest.mark.parametrize(
    "take", [lambda model, tokens: model, lambda model, tokens: tokens.codebook]
)
def test_the_own_tokenizer_is_taken(tokenizer, tokens, take):
    vocabulary = make_vocabulary(digest=tokens.codebook.digest)
    check_tokenizer(vocabulary, take(tokenizer, tokens))


@pytest.mark.bad_input
def test_another_tokenizer_is_refused(tokenizer):
    with pytest.raises(
        ValueError, match=r"tokenizer has codes of digest .* a codebook of digest ab"
    ):
        check_tokenizer(make_vocabulary(digest="ab"), tokenizer)
