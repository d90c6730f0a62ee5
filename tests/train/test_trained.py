import pytest
import torch

from softvq.data import to_model_range
from softvq.export import Codebook, export_tokens, load_tokens
from softvq.export.codebook import save_codebook
from softvq.models import save_model
from train.loop import CHECKPOINT, Run
from train.trained import load_trained


@pytest.mark.parametrize("method", ["softvq", "lucid-ema"])
def test_a_checkpoint_gives_the_model_that_was_trained(make_config, images, tmp_path, method):
    config = make_config("optim.steps=2", "eval_at=[1.0]", method=method)
    model = Run(config, images=images, folder=tmp_path, quiet=True).train().model.eval()
    loaded = load_trained(tmp_path / CHECKPOINT)
    assert not loaded.training
    pictures = to_model_range(images.test.batch(torch.arange(4)))
    assert torch.equal(loaded.encode(pictures), model.encode(pictures))
    with torch.no_grad():
        assert torch.equal(loaded(pictures).reconstruction, model(pictures).reconstruction)


def test_tokens_of_a_peer_decode_to_its_hard_reconstruction(make_config, images, tmp_path):
    config = make_config("optim.steps=2", "eval_at=[1.0]", method="lucid-ema")
    Run(config, images=images, folder=tmp_path, quiet=True).train()
    model = load_trained(tmp_path / CHECKPOINT)
    done = export_tokens(model, images.test, tmp_path / "tokens")
    tokens = load_tokens(done.folder, codebook=model)
    pictures = to_model_range(images.test.batch(torch.arange(4)))
    got = tokens.decode(tokens.batch(torch.arange(4)).tokens, model)
    with torch.no_grad():
        torch.testing.assert_close(got, model(pictures).reconstruction, rtol=0, atol=1e-5)


def test_an_exported_model_is_read_too(make_config, images, tmp_path):
    config = make_config("optim.steps=1", "eval_at=[1.0]")
    model = Run(config, images=images, quiet=True).train().model.eval()
    loaded = load_trained(save_model(model, tmp_path / "m.safetensors"))
    pictures = to_model_range(images.test.batch(torch.arange(4)))
    assert torch.equal(loaded.encode(pictures), model.encode(pictures))
    assert not loaded.training


@pytest.mark.bad_input
def test_a_codebook_is_no_model(tmp_path):
    path = save_codebook(Codebook(codebooks=(torch.eye(3),)), tmp_path / "c.safetensors")
    with pytest.raises(ValueError, match="is a 'softvq-codebook' file; 'softvq-checkpoint' was"):
        load_trained(path)
