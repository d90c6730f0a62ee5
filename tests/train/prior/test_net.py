import numpy as np
import pytest
import torch

from softvq.export import Codebook
from tests.train.prior.conftest import make_vocabulary
from train.prior.config import PriorNetConfig
from train.prior.net import Prior


def test_answers_are_codes_and_inputs_are_the_whole_vocabulary(make_small):
    prior = make_small()
    assert prior.net.get_input_embeddings().weight.shape == (9, 16)
    assert prior(torch.tensor([[8, 0, 4]])).shape == (1, 3, 5)


def test_65536_codes_have_rows_for_their_specials():
    vocabulary = make_vocabulary(num_codes=65536, num_classes=10)
    prior = Prior(vocabulary, PriorNetConfig(layers=1, width=2, heads=1))
    assert prior.net.get_input_embeddings().weight.shape == (65547, 2)
    assert prior(torch.tensor([[65546, 65535]])).shape == (1, 2, 65536)


def test_a_position_sees_nothing_behind_it(make_small):
    prior = make_small()
    one, two = prior(torch.tensor([[6, 0, 1, 2]])), prior(torch.tensor([[6, 0, 4, 3]]))
    torch.testing.assert_close(one[:, :2], two[:, :2], rtol=0, atol=1e-12)
    assert not torch.allclose(one[:, 2], two[:, 2])


def test_a_place_in_the_grid_matters(make_small):
    logits = make_small()(torch.tensor([[6, 6, 6]]))
    assert not torch.allclose(logits[0, 0], logits[0, 1])


def test_steps_with_a_cache_are_the_whole_pass(make_small):
    prior, inputs = make_small(), torch.tensor([[6, 0, 1, 2], [5, 4, 4, 0]])
    whole, cache = prior(inputs), prior.new_cache()
    first = prior.step(inputs[:, :2], cache)
    rest = [prior.step(inputs[:, i : i + 1], cache) for i in (2, 3)]
    torch.testing.assert_close(torch.stack([first, *rest], dim=1), whole[:, 1:], rtol=0, atol=1e-10)


def test_embeddings_start_as_a_linear_map_of_the_codes():
    codes = torch.sin(torch.arange(20.0)).reshape(5, 4) + 3
    codebook = Codebook(codebooks=(codes,))
    torch.manual_seed(0)
    prior = Prior(make_vocabulary(digest=codebook.digest), PriorNetConfig(width=16))
    before = prior.net.get_input_embeddings().weight.detach().clone()
    prior.start_from_(codebook, generator=torch.Generator().manual_seed(1))
    after = prior.net.get_input_embeddings().weight.detach()
    rows, centred = after[:5].double().numpy(), (codes - codes.mean(0)).double().numpy()
    solved = np.linalg.lstsq(centred, rows, rcond=None)[0]
    np.testing.assert_allclose(centred @ solved, rows, atol=1e-7)
    assert np.std(rows, ddof=1) == pytest.approx(0.02, rel=1e-4)
    assert torch.equal(after[5:], before[5:])
    assert torch.equal(prior.net.lm_head.weight[:5], after[:5])


def test_parameters_are_counted_once(make_small):
    width, layers, table = 16, 2, 9
    block = 12 * width**2 + 13 * width
    assert make_small().num_parameters == table * width + 4 * width + layers * block + 2 * width


@pytest.mark.bad_input
def test_another_codebook_is_refused(make_small):
    codebook = Codebook(codebooks=(torch.eye(5),))
    with pytest.raises(ValueError, match=r"has digest .* the tokens stand for codes of digest ab"):
        make_small().start_from_(codebook, generator=torch.Generator())


@pytest.mark.bad_input
def test_a_missing_package_is_named(monkeypatch, vocabulary):
    monkeypatch.setattr("train.prior.net.transformers", None)
    with pytest.raises(ValueError, match=r"pip install 'softvq\[prior\]'"):
        Prior(vocabulary, PriorNetConfig())
