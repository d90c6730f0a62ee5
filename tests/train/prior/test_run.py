import signal

import pytest
import torch
from safetensors.torch import load_file

from tests.train.prior.conftest import make_sequences
from train.checkpoint import read_state
from train.prior import run as module
from train.prior.config import Sampling
from train.prior.run import CHECKPOINT, KIND, PriorRun, load_prior
from train.prior.sampling import sample


def weights_of(prior):
    return torch.cat([each.detach().flatten() for each in prior.parameters()])


def test_sequences_that_the_class_determines_are_learned(pair, make_prior_config):
    config = make_prior_config(
        "optim.steps=120", "optim.batch_size=12", "optim.lr=1e-2", "net.width=32"
    )
    result = PriorRun(config, **pair, quiet=True).train()
    assert result.evals[-1]["nats_per_token"] < 0.02
    assert result.evals[-1]["images"] == 9
    assert result.unigram.cross_entropy == pytest.approx(1.79, abs=0.01)
    drawn = sample(
        result.prior,
        torch.arange(3),
        sampling=Sampling(guidance=1.5),
        generator=torch.Generator().manual_seed(0),
    )
    assert torch.equal(drawn, make_sequences(3)[0])


def test_without_its_class_the_first_code_is_not_known(pair, make_prior_config):
    config = make_prior_config(
        "optim.steps=120",
        "optim.batch_size=12",
        "optim.lr=1e-2",
        "net.width=32",
        "conditional=false",
    )
    result = PriorRun(config, **pair, quiet=True).train()
    assert result.evals[-1]["nats_per_image"] == pytest.approx(1.0986, abs=0.1)  # log 3


@pytest.mark.parametrize("changes", [(), ("net.dropout=0.2", "net.from_codebook=true")])
def test_a_resumed_run_is_the_unbroken_one(pair, make_prior_config, tmp_path, changes, monkeypatch):
    config = make_prior_config(*changes)
    whole = PriorRun(config, **pair, quiet=True).train()
    broken = PriorRun(config, **pair, folder=tmp_path, quiet=True)
    step = broken._step

    def stop_at_seven(number, terminal):
        step(number, terminal)
        if number == 6:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(broken, "_step", stop_at_seven)
    with pytest.raises(KeyboardInterrupt):
        broken.train()
    assert read_state(tmp_path / CHECKPOINT, kind=KIND)["step"] == 7
    torch.manual_seed(99)
    again = PriorRun(config, **pair, folder=tmp_path, quiet=True)
    again.resume()
    result = again.train()
    assert torch.equal(weights_of(result.prior), weights_of(whole.prior))
    assert result.losses == whole.losses
    without_times = [{**each, "seconds": 0} for each in result.evals]
    assert without_times == [{**each, "seconds": 0} for each in whole.evals]


def test_a_finished_run_is_taken_as_it_is(pair, make_prior_config, tmp_path):
    PriorRun(make_prior_config(), **pair, folder=tmp_path, quiet=True).train()
    before = (tmp_path / CHECKPOINT).read_bytes()
    again = PriorRun(make_prior_config(), **pair, folder=tmp_path, quiet=True)
    again.resume()
    assert again.train().evals[-1]["step"] == 12
    assert (tmp_path / CHECKPOINT).read_bytes() == before


def test_the_checkpoint_gives_the_prior_back(pair, make_prior_config, tmp_path):
    result = PriorRun(make_prior_config(), **pair, folder=tmp_path, quiet=True).train()
    loaded = load_prior(tmp_path)
    assert torch.equal(weights_of(loaded), weights_of(result.prior))
    assert not loaded.training
    assert loaded.vocabulary == result.prior.vocabulary
    assert {name.split(".")[0] for name in load_file(tmp_path / CHECKPOINT)} == {
        "model",
        "optimizer",
        "random",
    }
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == [CHECKPOINT]


def test_a_share_of_labels_is_dropped_and_every_step_its_own(pair, make_prior_config):
    run = PriorRun(make_prior_config("drop_labels=0.3"), **pair, quiet=True)
    labels = torch.full((4000,), 2)
    one, again, other = (run._choose_labels(labels, step) for step in (5, 5, 6))
    assert set(one.tolist()) == {-1, 2}
    assert (one == -1).float().mean() == pytest.approx(0.3, abs=0.03)
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


@pytest.mark.parametrize(("share", "knows"), [("0", False), ("0.1", True)])
def test_a_prior_knows_whether_labels_were_dropped(pair, make_prior_config, tmp_path, share, knows):
    config = make_prior_config("optim.steps=1", f"drop_labels={share}")
    PriorRun(config, **pair, folder=tmp_path, quiet=True).train()
    assert load_prior(tmp_path).knows_bos is knows


def test_embeddings_can_start_from_the_codebook(pair, make_prior_config):
    table = []
    for value in ("false", "true"):
        run = PriorRun(make_prior_config(f"net.from_codebook={value}"), **pair, quiet=True)
        table.append(run.result.prior.net.get_input_embeddings().weight[:6].detach())
    # Levels of grey are one number: mapped to the width they lie on a line.
    ranks = [int(torch.linalg.matrix_rank(each, rtol=1e-3)) for each in table]
    assert ranks == [6, 1]


def test_only_matrices_decay(pair, make_prior_config):
    groups = PriorRun(make_prior_config(), **pair, quiet=True).optimizer.param_groups
    assert [group["weight_decay"] for group in groups] == [0.1, 0.0]
    assert len(groups[0]["params"]) == 2 * 4
    assert {each.ndim for each in groups[0]["params"]} == {2}


def test_progress_is_told(pair, make_prior_config, capsys):
    PriorRun(make_prior_config(), **pair, title="prior on x").train()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("prior on x")
    assert "24 items of 6 tokens; 0.01 million parameters" in lines[0]
    assert "nats a token on 9 unseen items (unigram 1.79" in lines[-1]
    assert len(lines) == 1 + 4


@pytest.mark.bad_input
@pytest.mark.parametrize("change", ["optim.lr=1e-4", "net.layers=1", "seed=1"])
def test_a_run_of_other_settings_is_not_resumed(pair, make_prior_config, tmp_path, change):
    PriorRun(make_prior_config(), **pair, folder=tmp_path, quiet=True).save()
    other = PriorRun(make_prior_config(change), **pair, folder=tmp_path, quiet=True)
    key = change.split("=")[0]
    with pytest.raises(ValueError, match=rf"is of another run: config\.{key} was .* and is"):
        other.resume()


@pytest.mark.bad_input
def test_a_run_on_other_tokens_is_not_resumed(pair, export, make_prior_config, tmp_path):
    PriorRun(make_prior_config(), **pair, folder=tmp_path, quiet=True).save()
    other = export(*make_sequences(12), name="other")
    run = PriorRun(make_prior_config(), train=other, test=pair["test"], folder=tmp_path, quiet=True)
    with pytest.raises(ValueError, match=r"is of another run: tokens\.train was "):
        run.resume()


@pytest.mark.bad_input
def test_a_test_set_of_another_vocabulary_is_refused(pair, export, make_prior_config):
    other = export(*make_sequences(3), num_codes=7, name="other")
    with pytest.raises(ValueError, match="must have the vocabulary that the prior learns"):
        PriorRun(make_prior_config(), train=pair["train"], test=other, quiet=True)


@pytest.mark.bad_input
def test_a_file_of_another_kind_is_no_prior(pair, make_prior_config, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "KIND", "softvq-checkpoint")
    PriorRun(make_prior_config(), **pair, folder=tmp_path, quiet=True).save()
    monkeypatch.undo()
    with pytest.raises(ValueError, match=f"is a 'softvq-checkpoint' file; '{KIND}' was expected"):
        load_prior(tmp_path)


@pytest.mark.bad_input
def test_without_a_checkpoint_there_is_nothing_to_resume(pair, make_prior_config, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"prior\.safetensors is no file"):
        PriorRun(make_prior_config(), **pair, folder=tmp_path, quiet=True).resume()
