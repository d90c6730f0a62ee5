import json
import random
import re
import signal

import pytest
import safetensors.torch
import torch
from safetensors import safe_open
from torch import nn

from softvq import HardVQ, Loss, Revival, SoftVQ, Temperature, attach
from softvq.export.peers import load_plain_tensors
from softvq.models import VQVAE, VQVAEConfig, io, load_model, save_model
from softvq.models.io import check_format, load_strictly, read_tensors, write_tensors
from softvq.nn import Learning
from softvq.nn.kinds import KINDS
from softvq.types import QuantizerOutput
from tests.nn.members import MEMBERS

# Every option away from its default.
SOFT = {
    "temperature": Temperature(
        gradient=(2.0, 1.5), prototypes=None, anneal_steps=7, anneal_share=0.9, unit="nearest"
    ),
    "revival": None,
    "loss": Loss(weight=0.5, beta=0.1, use_entropy=0.0, assignment_grad="full"),
    "forward_value": "soft",
    "seed": 3,
}
HARD = {
    "estimator": "rotation",
    "codebook": "gradient",
    "learning": Learning(commitment=0.5, decay=0.7, start="uniform"),
    "revival": Revival(threshold=0.1, until=0.5, noise=0.02),
    "seed": 4,
}
pytestmark = pytest.mark.filterwarnings("ignore:The codes are in their warm-up")
OPTIONS = {
    "soft defaults": ("soft", {}),
    "soft": ("soft", SOFT),
    "hard defaults": ("hard", {}),
    "hard": ("hard", HARD),
}


def train(model, make_images, *, steps=4):
    """A few real steps, so that every buffer has left its first value."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    updates = attach(model, optimizer)
    for step in range(steps):
        images = make_images(2, model.config.channels, 32, 48, phase=step)
        reconstruction, out = model(images)
        loss = (reconstruction - images).square().mean() + out.loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    updates.detach()
    return model


@pytest.fixture
def saved(make_model, tmp_path):
    return save_model(make_model(), tmp_path / "model.safetensors")


@pytest.fixture(params=OPTIONS, ids=str)
def trained(request, make_model, make_images):
    kind, options = OPTIONS[request.param]
    return train(make_model(kind, **options), make_images)


def test_a_model_comes_back_bit_for_bit(trained, tmp_path):
    path = save_model(trained, tmp_path / "new" / "model.safetensors")
    assert path == tmp_path / "new" / "model.safetensors"
    loaded = load_model(str(path))
    before, after = trained.state_dict(), loaded.state_dict()
    assert list(before) == list(after)
    assert [name for name in before if before[name].dtype != after[name].dtype] == []
    assert [name for name in before if not torch.equal(before[name], after[name])] == []
    assert loaded.config == trained.config
    assert type(loaded.quantizer) is type(trained.quantizer)
    assert loaded.quantizer.config() == trained.quantizer.config()


def test_a_loaded_model_gives_the_same_answers(trained, make_images, tmp_path):
    loaded = load_model(save_model(trained, tmp_path / "model.safetensors")).eval()
    trained.eval()
    images = make_images(2, 3, 30, 31, phase=9.0)
    with torch.no_grad():
        before, after = trained(images), loaded(images)
    assert torch.equal(after.reconstruction, before.reconstruction)
    assert torch.equal(after.quantizer.indices, before.quantizer.indices)
    assert torch.equal(after.quantizer.loss, before.quantizer.loss)


def test_a_loaded_model_does_not_start_again(trained, make_images, tmp_path):
    loaded = load_model(save_model(trained, tmp_path / "model.safetensors"))
    assert loaded.quantizer.is_started
    codebook = loaded.quantizer.codebook.detach().clone()
    loaded.train()
    loaded(10 * make_images(2, 3, 32, 32, phase=5.0))
    assert torch.equal(loaded.quantizer.codebook, codebook)


@pytest.mark.parametrize("kind", ["soft", "hard"])
def test_a_model_that_had_not_started_still_will(make_model, make_images, kind, tmp_path):
    loaded = load_model(save_model(make_model(kind), tmp_path / "model.safetensors"))
    assert not loaded.quantizer.is_started
    codebook = loaded.quantizer.codebook.detach().clone()
    loaded(make_images(2, 3, 32, 32))
    assert loaded.quantizer.is_started
    assert not torch.equal(loaded.quantizer.codebook, codebook)


def test_temperature_and_schedule_come_back(make_model, make_images, tmp_path):
    model = train(make_model(), make_images)
    loaded = load_model(save_model(model, tmp_path / "model.safetensors")).quantizer
    assert loaded.updates == 4
    assert torch.equal(loaded.schedule.levels, model.quantizer.schedule.levels)
    assert loaded.temperature != SoftVQ(64, 5).temperature


def test_a_loaded_model_trains_on_as_the_first_would(trained, make_images, tmp_path):
    loaded = load_model(save_model(trained, tmp_path / "model.safetensors"))
    train(trained, make_images, steps=2)
    train(loaded, make_images, steps=2)
    before, after = trained.state_dict(), loaded.state_dict()
    assert [name for name in before if not torch.equal(before[name], after[name])] == []


@pytest.mark.parametrize("channels", [1, 3])
def test_the_file_is_plain_safetensors(make_model, channels, tmp_path):
    model = make_model(channels=channels)
    path = save_model(model, tmp_path / "model.safetensors")
    tensors = safetensors.torch.load_file(path)
    state = model.state_dict()
    assert tensors.keys() == state.keys()
    assert [name for name in state if not torch.equal(state[name], tensors[name])] == []
    with safe_open(path, framework="pt") as file:
        config = json.loads(file.metadata()["softvq"])
    assert (config["format"], config["version"]) == ("softvq-model", 1)
    assert config["model"]["channels"] == channels
    assert config["quantizer"]["kind"] == "SoftVQ"
    assert config["quantizer"]["num_codes"] == 64


def test_a_model_in_bfloat16_comes_back_with_the_same_numbers(make_model, tmp_path):
    model = make_model().to(torch.bfloat16)
    loaded = load_model(save_model(model, tmp_path / "model.safetensors"))
    assert torch.equal(loaded.quantizer.codebook, model.quantizer.codebook.float())
    assert torch.equal(loaded.encoder[0].weight, model.encoder[0].weight.float())


@pytest.mark.compiled
def test_a_model_with_compiled_parts_is_saved_as_the_plain_one(make_model, tmp_path):
    model = make_model()
    plain = model.state_dict()
    model.encoder, model.decoder = torch.compile(model.encoder), torch.compile(model.decoder)
    loaded = load_model(save_model(model, tmp_path / "model.safetensors"))
    assert list(loaded.state_dict()) == list(plain)
    assert torch.equal(loaded.encoder[0].weight, plain["encoder.0.weight"])


def test_tied_sliced_and_turned_tensors_are_written_small(tmp_path):
    table = torch.arange(65536 * 16.0).reshape(65536, 16)
    tensors = {"tied": table[:4], "slice": table[:4], "turned": table[:4].mT}
    path = tmp_path / "t.safetensors"
    write_tensors(path, tensors, {})
    _, loaded = read_tensors(path)
    assert [name for name in tensors if not torch.equal(tensors[name], loaded[name])] == []
    assert path.stat().st_size < 2048


def test_a_failed_write_leaves_the_old_file_whole(saved, make_model, monkeypatch):
    before = saved.read_bytes()

    def fail(tensors, path, metadata):
        path.write_bytes(b"half")
        raise OSError("No space left on device")

    monkeypatch.setattr(io, "save_file", fail)
    with pytest.raises(OSError, match="No space left"):
        save_model(make_model("hard"), saved)
    assert saved.read_bytes() == before
    assert [entry.name for entry in saved.parent.iterdir()] == [saved.name]


def test_a_failed_first_write_leaves_nothing(make_model, monkeypatch, tmp_path):
    def interrupt(tensors, path, metadata):
        path.write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(io, "save_file", interrupt)
    with pytest.raises(KeyboardInterrupt):
        save_model(make_model(), tmp_path / "model.safetensors")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.bad_input
@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.999], ids=str)
def test_a_file_cut_short_is_refused(saved, share):
    whole = saved.read_bytes()
    saved.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(
        ValueError, match=r"model.safetensors \(\d+ bytes\) is no whole safetensors"
    ):
        load_model(saved)


@pytest.mark.bad_input
def test_a_file_of_other_bytes_is_refused(tmp_path):
    torch.save({"a": torch.ones(1)}, tmp_path / "model.pt")
    with pytest.raises(ValueError, match=r"model.pt \(\d+ bytes\) is no whole safetensors file"):
        load_model(tmp_path / "model.pt")


@pytest.mark.bad_input
@pytest.mark.parametrize("read", [read_tensors, load_plain_tensors])
def test_ctrl_c_amid_reading_is_no_damage(read, tmp_path):
    """Torch takes an interrupt inside its conversions for a failure of one of them."""
    path, chance, ends = tmp_path / "t.safetensors", random.Random(0), set()
    write_tensors(path, {name: torch.ones(3) for name in "abcdef"}, {"format": "x"})
    before = signal.signal(signal.SIGALRM, lambda number, frame: signal.raise_signal(signal.SIGINT))
    try:
        for _ in range(1000):
            try:
                signal.setitimer(signal.ITIMER_REAL, chance.uniform(2e-5, 4e-4))
                while True:
                    read(path)
            except (KeyboardInterrupt, ValueError) as error:
                ends.add(type(error))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert ends == {KeyboardInterrupt}


def test_safetensors_of_another_program_are_refused(tmp_path):
    path = tmp_path / "other.safetensors"
    safetensors.torch.save_file({"a": torch.ones(1)}, path)
    with pytest.raises(ValueError, match=r"other.safetensors holds tensors but no softvq config"):
        load_model(path)


@pytest.mark.bad_input
def test_a_damaged_config_is_refused(tmp_path):
    path = tmp_path / "model.safetensors"
    safetensors.torch.save_file({"a": torch.ones(1)}, path, metadata={"softvq": '{"format'})
    with pytest.raises(ValueError, match=r"model.safetensors has a softvq config that is damaged"):
        load_model(path)


@pytest.mark.bad_input
def test_another_kind_of_softvq_file_is_refused(tmp_path):
    path = tmp_path / "c.safetensors"
    write_tensors(path, {"a": torch.ones(1)}, {"format": "softvq-checkpoint", "version": 1})
    message = "c.safetensors is a 'softvq-checkpoint' file; 'softvq-model' was expected."
    with pytest.raises(ValueError, match=message):
        load_model(path)


@pytest.mark.bad_input
def test_a_newer_version_is_refused_by_name(saved):
    config, tensors = read_tensors(saved)
    write_tensors(saved, tensors, {**config, "version": 2})
    message = "model.safetensors is softvq-model version 2; this softvq reads up to 1: update"
    with pytest.raises(ValueError, match=message):
        load_model(saved)


@pytest.mark.bad_input
def test_an_unknown_quantizer_is_refused(saved):
    config, tensors = read_tensors(saved)
    config["quantizer"]["kind"] = "SoftVQs"
    write_tensors(saved, tensors, config)
    message = f"quantizer kind is 'SoftVQs'; valid are: {', '.join(KINDS)}. Did you mean 'SoftVQ'?"
    with pytest.raises(ValueError, match=re.escape(message)):
        load_model(saved)


@pytest.mark.bad_input
@pytest.mark.parametrize("name", ["missing.safetensors", ""], ids=["missing", "folder"])
def test_no_file_is_told(tmp_path, name):
    with pytest.raises(FileNotFoundError, match="is no file: nothing to load"):
        load_model(tmp_path / name)


@pytest.mark.bad_input
@pytest.mark.parametrize("kind", ["soft", "hard"])
@pytest.mark.parametrize(("num_codes", "dim"), [(256, 5), (64, 6)], ids=["K", "D"])
def test_a_file_of_another_codebook_is_refused(make_model, kind, num_codes, dim, tmp_path):
    path = save_model(make_model(kind, num_codes=64, dim=5), tmp_path / "model.safetensors")
    model = make_model(kind, num_codes=num_codes, dim=dim)
    with pytest.raises(ValueError, match="safetensors does not fit the model") as caught:
        load_strictly(model, read_tensors(path)[1], path=path)
    assert "quantizer.codebook in the checkpoint is (K, D) = (64, 5)" in str(caught.value)
    assert f"has ({num_codes}, {dim}). Build it with num_codes=64, dim=5." in str(caught.value)


@pytest.mark.bad_input
@pytest.mark.parametrize("lost", ["quantizer.codebook", "encoder.0.weight", "quantizer.started"])
def test_a_file_without_a_tensor_is_refused(saved, lost):
    config, tensors = read_tensors(saved)
    del tensors[lost]
    write_tensors(saved, tensors, config)
    with pytest.raises(ValueError, match=f"does not fit the model(.|\n)*Missing key.*{lost}"):
        load_model(saved)


@pytest.mark.bad_input
def test_a_file_with_a_tensor_too_many_is_refused(saved):
    config, tensors = read_tensors(saved)
    write_tensors(saved, {**tensors, "extra": torch.ones(1)}, config)
    with pytest.raises(ValueError, match=r'does not fit the model(.|\n)*Unexpected key.*"extra"'):
        load_model(saved)


class Foreign(nn.Module):
    def forward(self, z):
        indices = z[:, 0].long()
        return QuantizerOutput(z, indices, z.new_zeros(()), {})


@pytest.mark.bad_input
def test_a_quantizer_of_others_is_refused(tmp_path):
    model = VQVAE(Foreign(), VQVAEConfig(hidden=8, residual_hidden=4, blocks=1))
    message = "model.quantizer is Foreign; only SoftVQ, .* can be saved with their options."
    with pytest.raises(ValueError, match=message):
        save_model(model, tmp_path / "model.safetensors")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.bad_input
def test_a_wrapped_model_is_refused(make_model, tmp_path):
    wrapped = torch.compile(make_model())
    with pytest.raises(
        ValueError, match=r"model must be a VQVAE; got OptimizedModule. .*_orig_mod"
    ):
        save_model(wrapped, tmp_path / "model.safetensors")
    assert list(tmp_path.iterdir()) == []


def test_older_versions_are_read():
    check_format("m", {"format": "a", "version": 1}, name="a", version=3)


def test_a_hard_model_is_saved_as_what_it_is(make_model, tmp_path):
    loaded = load_model(save_model(make_model("hard"), tmp_path / "m.safetensors"))
    assert type(loaded.quantizer) is HardVQ


@pytest.mark.filterwarnings("ignore:The temperature hit a bound:UserWarning")
@pytest.mark.parametrize("name", MEMBERS)
def test_every_member_of_the_family_is_saved_with_its_model(name, tmp_path):
    config = VQVAEConfig(dim=8, hidden=8, residual_hidden=4, blocks=1)
    model = VQVAE(MEMBERS[name](layout="channels_first"), config)
    images = torch.linspace(-1, 1, 2 * 3 * 32 * 32).sin().reshape(2, 3, 32, 32)
    with torch.no_grad():
        model(images)
        loaded = load_model(save_model(model.eval(), tmp_path / "model.safetensors")).eval()
        tokens = model.encode(images)
        assert torch.equal(loaded.encode(images), tokens)
        assert torch.equal(loaded.decode(tokens), model(images).reconstruction)
