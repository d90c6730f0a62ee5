import math
import re
import signal

import pytest
import torch

from softvq import Quantizer
from softvq.models.io import read_tensors, write_tensors
from train import loop
from train.config import OptimConfig, RunConfig
from train.images import ImagePair
from train.loop import CHECKPOINT, Run, learning_rate
from train.methods import get_method

RESUMED = ("softvq", "ema", "lucid-ema", "lucid-diveq")
SHORT = ("optim.steps=8", "checkpoint_every=4", "log_every=2")


@pytest.fixture
def make_run(make_config, images):
    def make(*changes, method="softvq", folder=None):
        config = make_config(*SHORT, *changes, method=method)
        return Run(config, images=images, folder=folder, quiet=True)

    return make


def state_of(run):
    """Everything that a run is, but for the clock, and for warnings, told once a process."""
    found = {f"model.{name}": each.clone() for name, each in run.result.model.state_dict().items()}
    held = getattr(run.optimizer, "optimizer", run.optimizer).state_dict()
    for index, values in held["state"].items():
        found |= {f"optimizer.{index}.{name}": value for name, value in values.items()}
    groups = [{k: v for k, v in group.items() if k != "betas"} for group in held["param_groups"]]
    result = run.result
    found["groups"] = [[*group["betas"]] for group in held["param_groups"]], groups
    found["evals"] = [{**each, "seconds": None} for each in result.evals]
    found["losses"] = list(result.losses)
    found["counts"], found["random"] = result.counts, torch.get_rng_state()
    found["done"] = run.done
    return found


def differences(one, two):
    """Names of what is not the same bit for bit."""

    def same(a, b):
        return torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b

    return sorted(one.keys() ^ two.keys()) + [
        name for name in one if name in two and not same(one[name], two[name])
    ]


@pytest.fixture(scope="module", params=RESUMED)
def method(request):
    return request.param


@pytest.fixture(scope="module")
def unbroken(make_config, images, method):
    """State of a run that nothing interrupted."""
    run = Run(make_config(*SHORT, method=method), images=images, quiet=True)
    run.train()
    return state_of(run)


def stop_in_step(monkeypatch, step):
    """Ctrl-C, as it were, when a step has changed everything but is not done."""
    original = Run._step

    def interrupted(run, number, journal):
        original(run, number, journal)
        if number == step:
            raise KeyboardInterrupt

    monkeypatch.setattr(Run, "_step", interrupted)


def stop_in_evaluation(monkeypatch, step):
    original = loop.evaluate

    def interrupted(model, images, **options):
        if model.quantizer.training and interrupted.left == 0:
            raise KeyboardInterrupt
        interrupted.left -= 1
        return original(model, images, **options)

    interrupted.left = step
    monkeypatch.setattr(loop, "evaluate", interrupted)


# A step after the checkpoint at half; and the fourth evaluation, at half, before its checkpoint.
@pytest.mark.parametrize(
    ("stop", "place", "every"),
    [(stop_in_step, 5, 4), (stop_in_evaluation, 3, 3)],
    ids=["in a step", "in an evaluation"],
)
def test_a_resumed_run_is_the_unbroken_one(
    make_run, method, unbroken, stop, place, every, tmp_path, monkeypatch
):
    changes = f"checkpoint_every={every}"
    with monkeypatch.context() as patch:
        stop(patch, place)
        with pytest.raises(KeyboardInterrupt):
            make_run(changes, method=method, folder=tmp_path).train()
    resumed = make_run(changes, method=method, folder=tmp_path)
    torch.manual_seed(1234)  # another process has another random state
    resumed.resume()
    assert resumed.done == every
    resumed.train()
    assert differences(state_of(resumed), unbroken) == []


@pytest.mark.parametrize("place", ["_batch", "_evaluate"])
def test_after_ctrl_c_the_step_is_done_and_saved(
    make_run, method, unbroken, place, tmp_path, monkeypatch
):
    original = getattr(Run, place)

    def interrupted(run, *arguments):
        if run.done == 2 and not interrupted.came:
            interrupted.came = True
            signal.raise_signal(signal.SIGINT)
        return original(run, *arguments)

    interrupted.came = False
    stopped = make_run(method=method, folder=tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Run, place, interrupted)
        with pytest.raises(KeyboardInterrupt):
            stopped.train()
    done = {"_batch": 3, "_evaluate": 2}[place]
    assert stopped.done == done
    resumed = make_run(method=method, folder=tmp_path)
    resumed.resume()
    assert resumed.done == done
    assert len(resumed.result.evals) == 3  # at 0, 1 and 2 of 8 steps
    resumed.train()
    assert differences(state_of(resumed), unbroken) == []


def test_a_second_ctrl_c_stops_at_once_and_saves_nothing(make_run, tmp_path, monkeypatch):
    def press(run, step):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    run = make_run(folder=tmp_path)
    run.start()
    monkeypatch.setattr(Run, "start", lambda run: None)
    monkeypatch.setattr(Run, "_batch", press)
    with pytest.raises(KeyboardInterrupt):
        run.train()
    assert run.done == 0
    assert not (tmp_path / CHECKPOINT).exists()


def test_a_finished_run_resumes_to_its_result(make_run, method, unbroken, tmp_path):
    make_run(method=method, folder=tmp_path).train()
    before = (tmp_path / CHECKPOINT).read_bytes()
    resumed = make_run(method=method, folder=tmp_path)
    resumed.resume()
    resumed.train()
    assert differences(state_of(resumed), unbroken) == []
    assert (tmp_path / CHECKPOINT).read_bytes() == before


def test_writing_changes_nothing_of_the_run(make_run, method, unbroken, tmp_path):
    run = make_run("checkpoint_every=1", method=method, folder=tmp_path)
    run.train()
    assert differences(state_of(run), unbroken) == []


def test_evaluating_changes_nothing_of_the_training(make_run, method, unbroken):
    run = make_run("eval_at=[1.0]", method=method)
    run.train()
    found = differences(state_of(run), unbroken)
    assert found == ["evals"]
    assert run.result.evals[-1]["psnr_hard"] == unbroken["evals"][-1]["psnr_hard"]


def test_measures_are_taken_at_the_shares_of_the_run(make_run):
    result = make_run().train()
    assert [each["step"] for each in result.evals] == [0, 1, 2, 4, 8]
    assert [each["images"] for each in result.evals] == [0, 16, 32, 64, 128]
    assert [each["step"] for each in result.losses] == [1, 2, 4, 6, 8]
    seconds = [each["seconds"] for each in result.evals]
    assert seconds == sorted(seconds)
    assert seconds[0] == 0


def test_it_starts_on_training_images_before_the_test_set_is_seen(make_run, method, monkeypatch):
    seen = []
    evaluate, start = loop.evaluate, Run.start

    def watch_start(run):
        start(run)
        quantizer = run.result.model.quantizer
        seen.append(quantizer.codebook.detach().clone())

    def watch_evaluate(model, images, **options):
        seen.append(model.quantizer.codebook.detach().clone())
        return evaluate(model, images, **options)

    monkeypatch.setattr(Run, "start", watch_start)
    monkeypatch.setattr(loop, "evaluate", watch_evaluate)
    run = make_run("eval_at=[0.0,1.0]", method=method)
    fresh = run.result.model.quantizer.codebook.detach().clone()
    run.train()
    assert len(seen) == 3  # the start, step 0, the end
    assert torch.equal(seen[0], seen[1])
    assert not torch.equal(fresh, seen[0])
    assert run.result.evals[0]["use_hard"] > 0.3


@pytest.mark.parametrize("name", ["softvq", "ema"])
def test_the_first_codes_do_not_depend_on_the_test_set(make_config, images, name):
    """Started on the first training batch: other test images, the same codebook."""

    def start(config, pair):
        run = Run(config, images=pair, quiet=True)
        run.start()
        return run.result.model.quantizer

    one = start(make_config(method=name), images)
    config = make_config("data.num_test=5", method=name)
    two = start(config, ImagePair(config))
    assert isinstance(one, Quantizer)
    assert one.is_started
    assert torch.equal(one.codebook, two.codebook)


def test_a_run_learns(make_run):
    losses = [each["loss"] for each in make_run("optim.steps=60").train().losses]
    assert losses[-1] < 0.8 * losses[0]


def test_a_run_without_a_folder_writes_nothing(make_run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_run().train()
    assert list(tmp_path.iterdir()) == []


def test_a_warning_of_the_last_evaluation_is_kept(make_run, monkeypatch):
    original = loop.evaluate

    def warn(model, images, **options):
        if warn.left == 0:
            loop.warnings.warn("the end is near", stacklevel=1)
        warn.left -= 1
        return original(model, images, **options)

    warn.left = 4
    monkeypatch.setattr(loop, "evaluate", warn)
    assert "the end is near" in make_run().train().warnings


def test_the_seconds_of_a_resumed_run_go_on(make_run, tmp_path):
    make_run(folder=tmp_path).train()
    resumed = make_run(folder=tmp_path)
    resumed.resume()
    assert resumed.seconds == pytest.approx(resumed.result.evals[-1]["seconds"])
    assert resumed.seconds > 0


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (0, 0.25),
        (1, 0.5),
        (3, 1.0),
        (30, 1.0),
        (60, 1.0),
        (70, 0.5 * (1 + math.cos(math.pi / 4))),
        (80, 0.5),
        (100, 0.0),
    ],
)
def test_the_rate_climbs_stays_and_falls(step, expected):
    optim = OptimConfig(steps=100, warmup_steps=4, decay_from=0.6)
    config = RunConfig(preset="p", optim=optim)
    assert learning_rate(step, config) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("changes", "factors"),
    [
        ({"warmup_steps": 0, "decay_from": 1.0}, [1.0, 1.0, 1.0, 1.0]),
        ({"warmup_steps": 0, "decay_from": 0.0}, [1.0, 0.8535533, 0.5, 0.1464466]),
        ({"warmup_steps": 8, "decay_from": 1.0}, [0.125, 0.25, 0.375, 0.5]),
        ({"warmup_steps": 8, "decay_from": 0.0}, [0.125, 0.2133883, 0.1875, 0.0732233]),
    ],
    ids=["flat", "cosine", "climb", "both"],
)
def test_rates_at_the_ends_of_the_options(changes, factors):
    config = RunConfig(preset="p", optim=OptimConfig(steps=4, **changes))
    found = [learning_rate(step, config) for step in range(4)]
    assert found == pytest.approx(factors, abs=1e-6)


def test_each_group_learns_at_its_own_rate(make_run):
    run = make_run("method.lr=0.001", "optim.warmup_steps=2", "log_every=1")
    seen = []
    step = run._step

    def watch(number, journal):
        step(number, journal)
        seen.append([group["lr"] for group in run.optimizer.param_groups])

    run._step = watch
    run.train()
    full = [group["full_lr"] for group in run.optimizer.param_groups]
    multiple = float(get_method("softvq").codebook_lr.removesuffix("x"))
    assert full == pytest.approx([0.001, 0.001 * multiple])
    assert seen[0] == pytest.approx([0.0005, 0.0005 * multiple])
    assert seen[2] == pytest.approx(full)
    assert 0 < seen[-1][0] < full[0]
    assert [codes / net for net, codes in seen] == pytest.approx(8 * [multiple])


@pytest.fixture
def finished(make_run, tmp_path):
    make_run("optim.steps=2", folder=tmp_path).train()
    return tmp_path / CHECKPOINT


@pytest.mark.parametrize(
    ("saved", "now", "expected"),
    [
        ("abc", "abc", True),
        ("abc", "abd", False),
        ("abc-dirty", "abc-dirty", False),
        ("unknown", "unknown", False),
    ],
)
def test_only_the_same_committed_code_is_the_same_run(
    make_run, tmp_path, monkeypatch, saved, now, expected
):
    monkeypatch.setattr(loop, "find_commit", lambda: saved)
    make_run("optim.steps=2", folder=tmp_path).train()
    monkeypatch.setattr(loop, "find_commit", lambda: now)
    run = make_run("optim.steps=2", folder=tmp_path)
    assert run.resume_if_same() is expected
    assert run.done == (2 if expected else 0)


def test_another_config_is_not_the_same_run(make_run, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "find_commit", lambda: "abc")
    make_run("optim.steps=2", folder=tmp_path).train()
    assert not make_run("optim.steps=2", "seed=1", folder=tmp_path).resume_if_same()


@pytest.mark.bad_input
def test_resuming_another_config_names_what_differs(make_run, finished):
    run = make_run("optim.steps=3", "method.options.beta=0.5", folder=finished.parent)
    message = (
        f"path {finished} is of another run: method.options.beta was None and is 0.5; "
        "optim.steps was 2 and is 3. Resume with the same settings, or use another folder."
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        run.resume()
    assert run.done == 0


@pytest.mark.bad_input
@pytest.mark.parametrize("share", [0.0, 0.3, 0.99])
@pytest.mark.parametrize("call", ["resume", "resume_if_same"])
def test_a_checkpoint_cut_short_is_refused(make_run, finished, share, call):
    whole = finished.read_bytes()
    finished.write_bytes(whole[: int(share * len(whole))])
    run = make_run("optim.steps=2", folder=finished.parent)
    with pytest.raises(ValueError, match=r"checkpoint.safetensors \(\d+ bytes\) is no whole"):
        getattr(run, call)()


@pytest.mark.bad_input
def test_a_model_is_no_checkpoint(make_run, finished):
    _, tensors = read_tensors(finished)
    write_tensors(finished, tensors, {"format": "softvq-model", "version": 1})
    message = "is a 'softvq-model' file; 'softvq-checkpoint' was expected."
    with pytest.raises(ValueError, match=message):
        make_run("optim.steps=2", folder=finished.parent).resume()


@pytest.mark.bad_input
def test_a_newer_checkpoint_is_refused(make_run, finished):
    config, tensors = read_tensors(finished)
    write_tensors(finished, tensors, {**config, "version": 2})
    with pytest.raises(ValueError, match="is softvq-checkpoint version 2; this softvq reads up to"):
        make_run("optim.steps=2", folder=finished.parent).resume()


@pytest.mark.bad_input
def test_no_checkpoint_is_told(make_run, tmp_path):
    with pytest.raises(FileNotFoundError, match=f"{CHECKPOINT} is no file: nothing to load"):
        make_run(folder=tmp_path).resume()


@pytest.mark.bad_input
def test_a_run_without_a_folder_cannot_resume(make_run):
    with pytest.raises(ValueError, match="folder is None: a run without a folder has no checkp"):
        make_run().resume()


@pytest.mark.bad_input
def test_a_batch_larger_than_the_set_is_refused(make_run, tmp_path):
    message = "batch_size is 65, but there are only 64 training images."
    with pytest.raises(ValueError, match=message):
        make_run("optim.batch_size=65", folder=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_codes_rate_is_the_configs_where_it_has_one(make_run):
    rates = [group["lr"] for group in make_run("method.codebook_lr=3x").optimizer.param_groups]
    assert max(rates) == pytest.approx(3 * min(rates))
