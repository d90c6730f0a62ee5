import json
import threading
import time
from types import SimpleNamespace

import pytest
import torch

from eval import gpu_check, gpu_speed
from eval.bench import Problem

SMOKE = gpu_speed.make_plan(smoke=True)


def read(folder, name):
    return json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def smoked(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gpu") / "new"
    failed = gpu_check.run_sections(SMOKE, list(gpu_check.SECTIONS), folder=folder)
    return folder, failed


def test_a_smoke_run_passes_all_sections(smoked):
    folder, failed = smoked
    assert failed == []
    assert sorted(path.stem for path in folder.iterdir()) == sorted(gpu_check.SECTIONS)


@pytest.mark.parametrize("name", gpu_check.SECTIONS)
def test_every_result_says_where_it_comes_from(smoked, name):
    content = read(smoked[0], name)
    assert "error" not in content
    assert content["device"].startswith("CPU")
    assert content["versions"]["torch"] == torch.__version__.split("+")[0]
    assert content["seconds"] >= 0


def test_speed_compares_with_products_and_with_the_peer(smoked):
    result = read(smoked[0], "speed")["result"]
    assert set(result["product_tflops"]) == {"float32", "tf32", "bf16"}
    steps = [result[name]["step_s"] for name in ("softvq", "lucid-ema")]
    assert result["ratio_to_lucid_ema"] == pytest.approx(steps[0] / steps[1])
    work = 8 * 2 * 96 * 64 * 8 / 1e12
    rate = work / result["softvq"]["forward_backward_s"]
    share = result["share_of_limit"]["float32"]
    assert share == pytest.approx(rate / result["product_tflops"]["float32"])


def test_training_ends_on_test_images(smoked):
    result = read(smoked[0], "training")["result"]
    assert result["source"] == "textures"
    for name in ("softvq", "lucid-ema"):
        assert result[name]["steps"] == result[name]["of"] == SMOKE.train_steps
        assert result[name]["last_eval"]["psnr_hard"] > 0


# A section that fails


@pytest.mark.parametrize("name", ["mean", "use", "entropy"])
def test_a_wrong_output_is_named_and_the_next_section_runs(name, monkeypatch, tmp_path, capsys):
    right = gpu_speed.chunked.soft_assign

    def wrong(z, codebook, temperature):
        out = right(z, codebook, temperature)
        if z.dtype == torch.float64:
            return out
        return out._replace(**{name: getattr(out, name) * 1.001})

    monkeypatch.setitem(gpu_check.MODULES, "chunked", SimpleNamespace(soft_assign=wrong))
    failed = gpu_check.run_sections(SMOKE, ["correct", "indices"], folder=tmp_path)
    assert failed == ["correct"]
    assert f"chunked, N=96 K=64 D=8: {name} is off by 1.0e-03" in read(tmp_path, "correct")["error"]
    assert "error" not in read(tmp_path, "indices")
    assert name in capsys.readouterr().out


def test_nan_is_wrong(monkeypatch):
    right = gpu_speed.chunked.soft_assign

    def wrong(z, codebook, temperature):
        out = right(z, codebook, temperature)
        return out._replace(spread=out.spread * float("nan"))

    monkeypatch.setitem(gpu_check.MODULES, "chunked", SimpleNamespace(soft_assign=wrong))
    with pytest.raises(RuntimeError, match="spread is off by nan"):
        gpu_check.check_correct(SMOKE)


def test_wrong_gradients_are_seen(monkeypatch):
    right = gpu_speed.chunked.soft_assign

    def wrong(z, codebook, temperature):
        return right(z, 1.01 * codebook - 0.01 * codebook.detach(), temperature)

    monkeypatch.setitem(gpu_check.MODULES, "chunked", SimpleNamespace(soft_assign=wrong))
    with pytest.raises(RuntimeError, match="free energy to codebook is off by 1"):
        gpu_check.check_correct(SMOKE)


def test_wrong_indices_are_counted(monkeypatch):
    right = gpu_check.nearest_code

    def wrong(rows, codes):
        found = right(rows, codes)
        return found if rows.dtype == torch.float32 else (found + 1) % len(codes)

    monkeypatch.setattr(gpu_check, "nearest_code", wrong)
    with pytest.raises(RuntimeError, match="'wrong': 96, 'of': 96"):
        gpu_check.check_indices(SMOKE)


def test_a_device_without_memory_fails_one_section(monkeypatch, tmp_path):
    def starve(plan):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setitem(gpu_check.SECTIONS, "speed", starve)
    assert gpu_check.run_sections(SMOKE, ["speed"], folder=tmp_path) == ["speed"]
    assert read(tmp_path, "speed")["error"] == "OutOfMemoryError: CUDA out of memory"


def test_no_section_starts_late(tmp_path):
    failed = gpu_check.run_sections(SMOKE, ["indices"], folder=tmp_path, seconds=-1)
    assert failed == ["indices"]
    assert "not started" in read(tmp_path, "indices")["error"]


class Endless:
    """A run that stops by Ctrl-C alone."""

    def __init__(self, config, *, images, quiet):
        self.done, self.seconds = 3, 0.5
        self.result = SimpleNamespace(evals=[], losses=[], warnings=[])

    def train(self):
        for _ in range(1000):
            time.sleep(0.01)


def test_a_run_that_takes_too_long_is_cut(monkeypatch):
    monkeypatch.setattr(gpu_check, "Run", Endless)
    config = gpu_check.make_preset("smoke")
    found = gpu_check._train(config, None, seconds=0.05)
    assert (found["steps"], found["of"]) == (3, 16)
    assert threading.active_count() < 20


def test_ctrl_c_stops_the_check(monkeypatch):
    def interrupted(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(gpu_check, "Run", Endless)
    monkeypatch.setattr(Endless, "train", interrupted)
    with pytest.raises(KeyboardInterrupt):
        gpu_check._train(gpu_check.make_preset("smoke"), None, seconds=60)


# The command


def test_the_command_prints_what_passed(tmp_path, capsys):
    gpu_check.main(out=tmp_path, smoke=True, sections="correct, indices")
    shown = capsys.readouterr().out
    assert "All sections passed." in shown
    assert sorted(path.stem for path in tmp_path.iterdir()) == ["correct", "indices"]


def test_a_failure_is_in_the_exit_code(monkeypatch, tmp_path):
    def fail(plan):
        raise RuntimeError("no kernel")

    monkeypatch.setitem(gpu_check.SECTIONS, "correct", fail)
    with pytest.raises(SystemExit, match="failed: correct"):
        gpu_check.main(out=tmp_path, smoke=True, sections="correct")


def test_the_full_plan_is_the_one_that_was_asked_for(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    plan = gpu_speed.make_plan(smoke=False)
    assert plan.speed == Problem(num_rows=65_536, num_codes=16_384, dim=256)
    assert plan.train_steps == 5 * 390


@pytest.mark.bad_input
def test_an_unknown_section_is_met_with_the_valid_ones(tmp_path):
    with pytest.raises(ValueError, match=r"sections is 'sped'; valid are: .*'speed'\?"):
        gpu_check.run_sections(SMOKE, ["sped"], folder=tmp_path)


@pytest.mark.bad_input
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_device_the_command_says_what_would_work():
    with pytest.raises(ValueError, match="--smoke runs everything"):
        gpu_speed.make_plan(smoke=False)
