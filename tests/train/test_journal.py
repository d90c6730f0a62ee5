import csv
import io

import numpy as np
import pytest
import torch
from google.protobuf import text_format
from PIL import Image
from rich.console import Console
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar.layout_pb2 import Layout
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
from tensorboard.plugins.projector.projector_config_pb2 import ProjectorConfig

from train.board import METRICS, OVERVIEW, SPRITE, place_in_group
from train.build import build_model
from train.evaluate import Evaluation, Pictures
from train.journal import Journal
from train.loop import Run
from train.patches import average_patches
from train.values import to_json

MEASURES = {"psnr_hard": 20.5, "psnr_soft": 21.5, "use_hard": 0.75, "perplexity_hard": 12.0}


def read_events(folder):
    events = EventAccumulator(str(folder))
    events.Reload()
    return events


@pytest.fixture
def make_journal(tmp_path):
    def make(folder=tmp_path, *, terminal=False, settings=None):
        text = io.StringIO()
        console = Console(file=text, width=200, force_terminal=terminal, color_system=None)
        journal = Journal(
            "softvq seed 0", total=10, folder=folder, settings=settings, console=console
        )
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
    measures = {"quality/psnr_hard", "quality/psnr_hard_of_mean"}
    measures |= {"use/use_hard", "use/perplexity_hard", "use/distinct_codes"}
    if method == "softvq":
        stats |= {"spread", "distortion", "entropy", "temperature", "temperature_ratio"}
        stats |= {"perplexity_soft_batch", "prototype_temperature", "prototype_entropy"}
        measures |= {"quality/psnr_soft", "quality/psnr_soft_of_mean", "use/use_soft"}
        measures |= {"use/perplexity_soft", "weights/entropy", "weights/spread_share"}
        measures |= {"weights/temperature", "weights/temperature_ratio"}
    stats.add("dead_codes")
    assert {tag for tag in tags if tag.startswith("codebook/")} == {f"codebook/{s}" for s in stats}
    found = {tag for tag in tags if tag.startswith(("quality/", "use/", "weights/"))}
    assert measures <= found
    assert (method == "softvq") == any(tag.startswith("weights/") for tag in found)
    assert [each.step for each in events.Scalars("loss/total")] == [1, 2, 4]
    assert [each.step for each in events.Scalars("quality/psnr_hard")] == [0, 1, 2, 4]
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
    hard = [each.value for each in events.Scalars("quality/psnr_hard")]
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


def draw(journal):
    """The bar and the table as text: the names of the columns, and the values under them."""
    console = Console(file=io.StringIO(), width=200, color_system=None)
    console.print(journal.terminal.draw())
    bar, names, values = console.file.getvalue().splitlines()
    return bar, names, values


def test_the_table_shows_the_newest_values(make_journal):
    journal, _ = make_journal(None)
    assert draw(journal)[2].strip() == ""
    values = {"loss/total": torch.tensor(0.5), "codebook/dead_codes": 3.0}
    journal.scalars(1, {**values, "codebook/temperature_ratio": torch.tensor(0.0123)})
    journal.evaluation(2, Evaluation(MEASURES, torch.ones(1)), rate=2.0, left=4.0)
    journal.step(4, rate=2.0)
    bar, names, values = draw(journal)
    assert names.split() == [
        "loss",
        "PSNR",
        "hard",
        "PSNR",
        "soft",
        "use",
        "dead",
        "codes",
        "T",
        "/",
        "T_c",
        "rate",
        "left",
    ]
    shown = "0.5000 20.50 dB 21.50 dB 75.0 % 3 0.0123 2.0 steps/s 0:03"
    assert values.split() == shown.split()
    assert "softvq seed 0" in bar
    assert "4/10" in bar
    journal.scalars(5, {"loss/total": 0.25})
    assert draw(journal)[2].split()[0] == "0.2500"


def test_a_terminal_has_the_table_while_the_run_goes_and_the_lines_for_good(make_journal):
    journal, text = make_journal(None, terminal=True)
    with journal:
        journal.step(4, rate=2.0)
        journal.terminal._live.refresh()
        journal.evaluation(4, Evaluation(MEASURES, torch.ones(1)), rate=2.0, left=3.0)
        assert "dead codes" in text.getvalue()
    assert "hard 20.50 dB" in text.getvalue()
    # The last that is written takes the table away: up and erase, line by line.
    assert text.getvalue().rstrip("\n").endswith("\x1b[2K")


def test_without_a_terminal_there_are_lines_alone(make_journal):
    journal, text = make_journal(None)
    with journal:
        journal.step(4, rate=2.0)
        journal.evaluation(4, Evaluation(MEASURES, torch.ones(1)), rate=2.0, left=3.0)
    assert "\x1b" not in text.getvalue()
    assert len(text.getvalue().splitlines()) == 1


def test_quiet_is_quiet_on_a_terminal_too(capsys):
    with Journal("a", total=1, folder=None, quiet=True) as journal:
        journal.step(1, rate=1.0)
        journal.say("b")
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("measure", "name"),
    [
        ("psnr_hard_of_mean", "quality/psnr_hard_of_mean"),
        ("lpips_alex_soft", "quality/lpips_alex_soft"),
        ("fd_vgg16_hard", "quality/fd_vgg16_hard"),
        ("ssim_hard", "quality/ssim_hard"),
        ("bits_per_token", "use/bits_per_token"),
        ("distinct_codes", "use/distinct_codes"),
        ("entropy_bits_hard", "use/entropy_bits_hard"),
        ("entropy", "weights/entropy"),
        ("temperature_ratio", "weights/temperature_ratio"),
    ],
)
def test_measures_that_are_read_together_are_in_one_group(measure, name):
    assert place_in_group(measure) == name


def read_settings(events):
    summaries = events.summary_metadata
    found = {}
    for tag in ("experiment", "session_start_info", "session_end_info"):
        name = f"_hparams_/{tag}"
        if name in summaries:
            data = HParamsPluginData.FromString(summaries[name].plugin_data.content)
            found[tag] = getattr(data, tag)
    return found


def test_settings_are_in_the_run_s_own_folder(make_journal, make_config, tmp_path):
    settings = to_json(make_config("optim.steps=4"))
    journal, _ = make_journal(settings=settings)
    with journal:
        journal.evaluation(4, Evaluation(MEASURES, torch.ones(1)), rate=2.0, left=0.0)
    assert [entry for entry in tmp_path.iterdir() if entry.is_dir()] == []
    events = read_events(tmp_path)
    found = read_settings(events)
    start = found["session_start_info"].hparams
    assert start["optim.steps"].number_value == 4
    assert start["method.name"].string_value == "softvq"
    metrics = [metric.name.tag for metric in found["experiment"].metric_infos]
    assert metrics == list(METRICS)
    assert set(metrics) <= set(events.Tags()["scalars"])
    assert found["session_end_info"].status == 1  # success


def test_a_run_that_failed_is_not_marked_as_finished(make_journal, tmp_path):
    journal, _ = make_journal(settings={"seed": 0})
    with pytest.raises(KeyboardInterrupt), journal:
        raise KeyboardInterrupt
    assert read_settings(read_events(tmp_path)).keys() == {"experiment", "session_start_info"}


def test_the_overview_draws_hard_and_soft_together(make_journal, tmp_path):
    journal, _ = make_journal()
    with journal:
        pass
    events = read_events(tmp_path)
    [tensor] = events.Tensors("custom_scalars__config__")
    layout = Layout.FromString(tensor.tensor_proto.string_val[0])
    charts = {chart.title: list(chart.multiline.tag) for chart in layout.category[0].chart}
    assert charts == {title: tags for title, (_, tags) in OVERVIEW.items()}


def test_the_projector_has_every_code_with_its_patch(make_journal, make_config, images, tmp_path):
    model = build_model(make_config("num_codes=8"), images.train)
    model.quantizer.start_(torch.sin(torch.arange(64.0 * 8) * 3).reshape(64, 8, 1, 1))
    journal, _ = make_journal()
    with journal:
        journal.codebook(4, model, images=images.test)
    config = text_format.Parse((tmp_path / "projector_config.pbtxt").read_text(), ProjectorConfig())
    [info] = config.embeddings
    vectors = np.loadtxt(tmp_path / info.tensor_path, delimiter="\t")
    np.testing.assert_allclose(vectors, model.quantizer.codebook.detach().numpy(), rtol=1e-6)
    patches = average_patches(model, images.test)
    with open(tmp_path / info.metadata_path, newline="") as file:
        names, *rows = csv.reader(file, delimiter="\t")
    assert names == ["code", f"tokens of {len(images.test)} test images"]
    assert [[int(word) for word in row] for row in rows] == [
        [code, tokens] for code, tokens in enumerate(patches.tokens.tolist())
    ]
    assert list(info.sprite.single_image_dim) == [SPRITE, SPRITE]
    with Image.open(tmp_path / info.sprite.image_path) as image:
        sheet = np.asarray(image)
    for code, mean in enumerate(patches.means.numpy()):
        row, column = divmod(code, 3)  # 8 codes on a sheet of 3 x 3
        cell = sheet[row * SPRITE :, column * SPRITE :][:SPRITE, :SPRITE]
        pixels = (mean.transpose(1, 2, 0) + 1) * 127.5
        np.testing.assert_allclose(cell[2::4, 2::4], pixels, atol=1)


def test_a_codebook_that_diverged_is_left_out(make_journal, make_config, images, tmp_path):
    model = build_model(make_config(), images.train)
    with torch.no_grad():
        model.quantizer.codebook.fill_(torch.nan)
    journal, _ = make_journal()
    with journal:
        journal.codebook(4, model, images=images.test)
    assert not (tmp_path / "projector_config.pbtxt").exists()


@pytest.mark.bad_input
def test_an_unknown_column_is_refused(make_journal):
    journal, _ = make_journal(None)
    with pytest.raises(ValueError, match=r"column is 'dead_codes'; valid are: .* 'dead codes'"):
        journal.terminal.show({"dead_codes": "3"})
