import pytest
import torch

from softvq.export.hub import PretrainedVQVAE
from softvq.models import load_model


@pytest.mark.parametrize("kind", ["soft", "hard"])
def test_a_model_comes_back_with_the_same_answers(make_model, kind, tmp_path):
    model = make_model(kind)
    PretrainedVQVAE.of(model).save_pretrained(tmp_path / "m")
    loaded = PretrainedVQVAE.from_pretrained(tmp_path / "m")
    images = torch.sin(torch.arange(2 * 3 * 81.0)).reshape(2, 3, 9, 9)
    with torch.no_grad():
        assert torch.equal(loaded(images).reconstruction, model(images).reconstruction)
    assert not loaded.training
    assert loaded.quantizer.config() == model.quantizer.config()


def test_the_folder_holds_a_model_file_of_softvq_and_no_pickle(make_model, tmp_path):
    PretrainedVQVAE.of(make_model()).save_pretrained(tmp_path)
    PretrainedVQVAE.from_pretrained(tmp_path).save_pretrained(tmp_path / "again")
    names = {path.name for path in (tmp_path / "again").iterdir()}
    assert {"README.md", "model.safetensors"} <= names <= {*names, "config.json"}
    assert load_model(tmp_path / "again" / "model.safetensors").quantizer.num_codes == 16
    assert "library_name: softvq" in (tmp_path / "README.md").read_text()


def test_parts_are_shared_and_the_mode_is_kept(make_model):
    model = make_model().train()
    taken = PretrainedVQVAE.of(model)
    assert taken.training
    assert taken.encoder is model.encoder
    assert taken.quantizer is model.quantizer


@pytest.mark.bad_input
def test_options_beside_the_file_are_refused(make_model, tmp_path):
    PretrainedVQVAE.of(make_model()).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"from_pretrained takes no \['num_codes'\]"):
        PretrainedVQVAE.from_pretrained(tmp_path, num_codes=3)


@pytest.mark.bad_input
def test_a_folder_without_a_model_is_told(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"model.safetensors is no file"):
        PretrainedVQVAE.from_pretrained(tmp_path)
