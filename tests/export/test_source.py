import pytest
import torch
from diffusers.models.autoencoders.vq_model import VectorQuantizer
from torch import nn

import softvq
from softvq import SoftVQ
from softvq.export.source import check_eval, encode, find_device, give_grid, take_codebook
from softvq.models import VQVAE


def test_a_model_tells_of_itself(make_model):
    model = make_model("hard")
    model.quantizer.updates.fill_(70)
    book = take_codebook(model)
    assert torch.equal(book.codebook, model.quantizer.codebook)
    assert (book.downsampling, book.image_range, book.step) == (4, (-1.0, 1.0), 70)
    assert take_codebook(model.quantizer).digest == book.digest
    assert take_codebook(model.quantizer).downsampling is None


def test_the_source_digest_tells_models_apart(make_model):
    model, other = make_model(), make_model()
    assert take_codebook(model).source_digest == take_codebook(other).source_digest
    with torch.no_grad():
        other.encoder[0].weight[0, 0, 0, 0] += 1
    assert take_codebook(model).source_digest != take_codebook(other).source_digest
    assert take_codebook(model).digest == take_codebook(other).digest


def test_what_is_taken_is_a_copy(model):
    book = take_codebook(model)
    before = book.codebook.clone()
    with torch.no_grad():
        model.quantizer.codebook.zero_()
    assert torch.equal(book.codebook, before)


def test_a_hosts_codes_are_found_before_and_after_a_swap():
    model = nn.Sequential(nn.Conv2d(3, 4, 1), VectorQuantizer(8, 4, beta=0.25, legacy=False))
    table = model[1].embedding.weight.detach().clone()
    with pytest.raises(ValueError, match="state holds no codebook"):
        take_codebook(model)
    assert torch.equal(take_codebook(model[1]).codebook, table)
    softvq.swap(model)
    assert torch.equal(take_codebook(model).codebook, table)


def test_several_quantizers_are_taken_in_order():
    parts = [SoftVQ(4, 2, seed=i) for i in range(3)]
    for i, each in enumerate(parts):
        each.start_(torch.sin(torch.arange(20.0) + i).reshape(10, 2))
    found = take_codebook(nn.ModuleList(parts)).codebooks
    assert torch.equal(torch.stack(found), torch.stack([each.codebook for each in parts]))


def test_tokens_are_those_of_the_model(model, waves):
    images = waves.batch(torch.arange(3)) / 127.5 - 1
    got = encode(model, images, num_codes=16)
    assert torch.equal(got.tokens, model.encode(images))
    assert got.rows.shape == (3 * 9, 4)


@pytest.mark.parametrize("shape", [(2, 6), (2, 2, 3)], ids=str)
def test_a_grid_is_given_back_row_by_row(shape):
    flat = torch.arange(12).reshape(shape)
    assert torch.equal(give_grid(flat, grid=(2, 3)), torch.arange(12).reshape(2, 2, 3))


def test_a_model_without_weights_is_on_the_cpu():
    assert find_device(nn.Identity()) == torch.device("cpu")


@pytest.mark.bad_input
@pytest.mark.parametrize("shape", [(12,), (2, 5), (2, 3, 2), (1, 2, 2, 3)], ids=str)
def test_another_shape_is_refused(shape):
    with pytest.raises(ValueError, match=r"tokens must be \(B, 2, 3\) or \(B, 6\); got"):
        give_grid(torch.zeros(shape).long(), grid=(2, 3))


@pytest.mark.bad_input
def test_a_part_in_training_mode_is_named(model):
    model.decoder[1].train()
    with pytest.raises(ValueError, match=r"model.decoder.1 \(\w+\) is in training mode"):
        check_eval(model)
    with pytest.raises(ValueError, match=r"model \(VQVAE\) is in training mode"):
        check_eval(model.train())


@pytest.mark.bad_input
def test_codes_that_are_random_are_refused():
    with pytest.raises(ValueError, match="SoftVQ was never placed on data"):
        take_codebook(VQVAE(SoftVQ(8, 64, layout="channels_first")))


@pytest.mark.bad_input
@pytest.mark.filterwarnings("ignore")
def test_latents_that_are_not_finite_are_refused(model):
    with torch.no_grad():
        model.encoder[0].bias.fill_(torch.nan)
    with pytest.raises(ValueError, match=r"latents holds .* entries that are NaN"):
        encode(model, torch.zeros(1, 3, 8, 8), num_codes=16)


class Odd(nn.Module):
    def __init__(self, answer):
        super().__init__()
        self.answer = answer

    def encode(self, images):
        return self.answer


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((torch.zeros(1), 2), "must give one tensor of tokens, a row an image; got tuple"),
        (torch.zeros(3, 4).long(), "must give one tensor of tokens, a row an image"),
        (torch.zeros(1, 4), "tokens of the model must be whole numbers"),
        (torch.full((1, 4), -1), "tokens of the model must be codes .* got -1"),
        (torch.full((1, 4), 16), "tokens of the model must be codes .* got 16"),
    ],
    ids=["tuple", "rows", "float", "masked", "beyond"],
)
def test_an_answer_that_is_no_tokens_is_refused(answer, message):
    with pytest.raises(ValueError, match=message):
        encode(Odd(answer), torch.zeros(1, 3, 8, 8), num_codes=16)
