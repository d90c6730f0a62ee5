import pytest
import torch

from softvq.export import export_codebook, load_codebook, read_codebook


@pytest.fixture
def path(tmp_path):
    return tmp_path / "new" / "codebook.safetensors"


def test_a_model_and_its_quantizer_give_the_same_codes(model, path, tmp_path):
    whole = load_codebook(export_codebook(model, path))
    alone = load_codebook(export_codebook(model.quantizer, tmp_path / "alone.safetensors"))
    assert torch.equal(whole.codebook, model.quantizer.codebook)
    assert whole.digest == alone.digest
    assert (whole.downsampling, alone.downsampling) == (4, None)


def test_what_the_caller_knows_is_written(model, path):
    counts = torch.arange(16)
    export_codebook(
        model, path, counts=counts, specials=["bos"], grid=(8, 8), dataset="cifar10 train"
    )
    loaded = load_codebook(path)
    assert torch.equal(loaded.counts[0], counts)
    assert (loaded.specials, loaded.vocab_size) == ({"bos": 16}, 17)
    assert (loaded.grid, loaded.dataset) == ((8, 8), "cifar10 train")


def test_a_peers_codebook_goes_through(path):
    table = torch.sin(torch.arange(12.0)).reshape(4, 3)
    export_codebook(read_codebook({"quantize.embedding.weight": table}), path)
    assert torch.equal(load_codebook(path).codebook, table)


@pytest.mark.bad_input
def test_tokens_of_another_codebook_are_refused(make_model, tokens, path):
    other = make_model(seed=1, num_codes=17)
    with pytest.raises(ValueError, match="stand for codes of digest"):
        export_codebook(other, path, tokens=tokens)
    assert not path.exists()


@pytest.mark.bad_input
def test_counts_that_do_not_fit_are_refused(model, path):
    with pytest.raises(ValueError, match=r"counts must be int64, .*\[\(16,\)\]"):
        export_codebook(model, path, counts=torch.arange(15))
