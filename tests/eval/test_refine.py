import json

import pytest
import torch

from eval import refine as refine_module
from eval.compare import Comparison
from eval.refine import COLUMNS, measure, refine
from softvq.data import TensorImages, to_model_range
from softvq.models import Refined, load_model
from tests.eval.test_compare import FEW
from train.perceptual import NotAvailableError
from train.presets import smoke
from train.values import override

METHODS = ("softvq", "lucid-ema", "softvq-residual")


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """Results and folder of a finished comparison."""
    folder = tmp_path_factory.mktemp("refine")
    config = override(smoke(), [*FEW])
    comparison = Comparison(
        config, list(METHODS), seeds=2, folder=folder, command="python -m eval compare smoke"
    )
    return comparison.run(), folder


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    """No net of hundreds of MiB is fetched for pictures that it could say nothing of."""

    def refuse(name):
        raise NotAvailableError(name)

    monkeypatch.setattr(refine_module, "get_net", refuse)
    monkeypatch.setattr(refine_module, "get_features", refuse)


def test_a_comparison_is_refined_whole(compared, capsys):
    results, folder = compared
    refine(folder, sweeps=2, num_test=1000)
    written = json.loads((folder / "refine.json").read_text())
    found = written["methods"]
    assert list(found) == ["softvq", "softvq+refined", "lucid-ema", "lucid-ema+refined"]
    assert (written["sweeps"], written["models"]) == (2, results["commit"])
    for name in ("softvq", "lucid-ema"):
        plain, refined = (
            [run["final"] for run in found[key]["seeds"]] for key in (name, f"{name}+refined")
        )
        ends = [run["final"] for run in results["methods"][name]["seeds"]]
        for own, before, after in zip(ends, plain, refined, strict=True):
            assert set(before) == {measure for measure, *_ in COLUMNS}
            assert before["psnr"] == pytest.approx(own["psnr_hard"], abs=1e-4)
            assert before["ssim"] == pytest.approx(own["ssim_hard"], abs=1e-5)
            assert before["perplexity"] == pytest.approx(own["perplexity_hard"], rel=1e-6)
            assert before["changed"] == 0
            assert after["psnr"] > before["psnr"]
            assert 0 < after["changed"] < 1
            assert after["milliseconds"] > before["milliseconds"]
            assert before["lpips_alex"] is before["fd_vgg16"] is None
    printed = capsys.readouterr().out
    assert "softvq-residual: left out, as a vector has several indices" in printed
    gain = [
        ours["final"]["psnr"] - theirs["final"]["psnr"]
        for ours, theirs in zip(
            *(found[f"{name}+refined"]["seeds"] for name in ("softvq", "lucid-ema")), strict=True
        )
    ]
    label = found["lucid-ema+refined"]["label"]
    assert f"SoftVQ, refined minus {label}: {sum(gain) / 2:+.2f} [" in printed
    assert f"SoftVQ minus {found['lucid-ema']['label']}: " in printed


def test_what_is_measured_is_what_the_indices_decode_to(compared):
    """By hand, in float64."""
    model = load_model(compared[1] / "runs" / "softvq-seed0" / "model.safetensors").eval()
    pictures = torch.randint(256, (6, 3, 32, 32), generator=torch.Generator().manual_seed(0))
    images = TensorImages(pictures.to(torch.uint8), name="noise")
    found = measure(model, Refined(model).encode, images, count=4)
    batch = to_model_range(images.batch(torch.arange(4)))
    indices = Refined(model).encode(batch)
    with torch.no_grad():
        made = model.decode(indices).clamp(-1, 1).double()
    error = (made - batch.double()).square().mean((1, 2, 3))
    assert found["psnr"] == pytest.approx((10 * torch.log10(4 / error)).mean().item(), abs=1e-5)
    assert found["changed"] == (indices != model.encode(batch)).double().mean().item()
    assert found["use"] == len(indices.unique()) / model.quantizer.num_codes


@pytest.mark.bad_input
def test_a_method_that_is_not_there_is_named(compared):
    with pytest.raises(ValueError, match=r"methods has ste; .* holds softvq, lucid-ema, softvq-re"):
        refine(compared[1], methods="softvq, ste")


@pytest.mark.bad_input
def test_a_folder_without_results_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"holds no results\.json"):
        refine(tmp_path)
