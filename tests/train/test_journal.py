import io

import pytest
import torch
from rich.console import Console
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from train.evaluate import Evaluation, Pictures
from train.journal import Journal
from train.loop import Run

MEASURES = {"psnr_hard": 20.5, "psnr_soft": 21.5, "use_hard": 0.75, "perplexity_hard": 12.0}


def read_events(folder):
    events = EventAccumulator(str(folder))
    events.Reload()
    return events


@pytest.fixture
def make_journal(tmp_path):
    def make(folder=tmp_path, *, terminal=False):
        journal = Journal("softvq seed 0", total=10, folder=folder)
        text = io.StringIO()
        journal.console = Console(file=text, width=200, force_terminal=terminal)
        return journal, text

    return make


@pytest.mark.parametrize("method", ["softvq", "ema"])
def test_a_run_leaves_all_its_curves(make_config, images, method, tmp_path):
    config = make_config("optim.steps=4", "log_every=2", method=method)
    Run(config, images=images, folder=tmp_path, quiet=True).train()
    events = read_events(tmp_path / "tensorboard")
    tags = set(events.Tags()["scalars"])
    assert {"loss/total", "loss/reconstruction", "loss/quantizer", "rate/learning_rate"} <= tags
    stats = {"ols", "separation", "use_hard_batch", "perplexity_hard_batch", "distinct_codes"}
    measures = {"psnr_hard", "psnr_hard_of_mean", "use_hard", "perplexity_hard", "distinct_codes"}
    if method == "softvq":
        stats |= {"spread", "distortion", "entropy", "temperature", "temperature_ratio"}
        stats |= {"perplexity_soft_batch", "prototype_temperature", "prototype_entropy"}
        measures |= {"psnr_soft", "psnr_soft_of_mean", "use_soft", "perplexity_soft", "entropy"}
        measures |= {"spread_share", "temperature", "temperature_ratio"}
    stats.add("dead_codes")
    assert {tag for tag in tags if tag.startswith("codebook/")} == {f"codebook/{s}" for s in stats}
    assert {tag for tag in tags if tag.startswith("test/")} == {f"test/{m}" for m in measures}
    assert [each.step for each in events.Scalars("loss/total")] == [1, 2, 4]
    assert [each.step for each in events.Scalars("test/psnr_hard")] == [0, 1, 2, 4]
    assert events.Tags()["images"] == ["pictures/input, hard, soft"]
    pictures = events.Images("pictures/input, hard, soft")
    assert [each.step for each in pictures] == [0, 1, 2, 4]
    rows = 3 if method == "softvq" else 2
    assert [(each.height, each.width) for each in pictures] == 4 * [(rows * 32, 16 * 32)]


def test_curves_hold_the_run_s_own_numbers(make_config, images, tmp_path):
    config = make_config("optim.steps=4", "log_every=2")
    result = Run(config, images=images, folder=tmp_path, quiet=True).train()
    events = read_events(tmp_path / "tensorboard")
    losses = [each.value for each in events.Scalars("loss/reconstruction")]
    assert losses == pytest.approx([each["loss"] for each in result.losses], rel=1e-6)
    hard = [each.value for each in events.Scalars("test/psnr_hard")]
    assert hard == pytest.approx([each["psnr_hard"] for each in result.evals], rel=1e-6)


def test_picture_rows_are_input_hard_soft(make_journal, tmp_path):
    journal, _ = make_journal()
    row = torch.zeros(2, 3, 4, 4, dtype=torch.uint8)
    with journal:
        journal.pictures(0, Pictures(row, row + 100, row + 200))
    image = read_events(tmp_path).Images("pictures/input, hard, soft")[0]
    assert (image.height, image.width) == (12, 8)


def test_an_evaluation_is_one_line(make_journal):
    journal, text = make_journal(None)
    measures = {**MEASURES, "entropy": None}
    journal.evaluation(40, Evaluation(measures, torch.ones(1)), rate=2.0, left=75.0)
    line = "hard 20.50 dB  soft 21.50 dB  use 75.0 %  perplexity 12  2.0 steps/s, 1:15 left"
    assert " ".join(text.getvalue().split()) == " ".join(f"softvq seed 0 step 40 {line}".split())


def test_an_evaluation_before_the_first_step_has_no_rate(make_journal):
    journal, text = make_journal(None)
    measures = {"psnr_hard": 20.5, "use_hard": 1.0, "perplexity_hard": 1.0, "psnr_soft": None}
    journal.evaluation(0, Evaluation(measures, torch.ones(1)), rate=0.0, left=float("inf"))
    assert "steps/s" not in text.getvalue()
    assert "soft 2" not in text.getvalue()


def test_what_is_said_is_no_markup(make_journal):
    journal, text = make_journal(None)
    journal.say("warning: [bold]x[/bold]")
    assert "[bold]x[/bold]" in text.getvalue()


def test_without_a_folder_nothing_is_written(make_journal, tmp_path):
    journal, _ = make_journal(None)
    with journal:
        journal.step(1, rate=1.0)
        journal.scalars(1, {"loss/total": torch.tensor(0.5)})
        journal.pictures(1, Pictures(*2 * [torch.zeros(1, 3, 4, 4, dtype=torch.uint8)], None))
    assert list(tmp_path.iterdir()) == []


def test_the_bar_shows_the_loss_without_a_folder_too(make_journal):
    journal, _ = make_journal(None)
    journal.scalars(1, {"loss/total": torch.tensor(0.5)})
    assert journal._progress.tasks[0].fields["loss"] == "loss 0.5000"
