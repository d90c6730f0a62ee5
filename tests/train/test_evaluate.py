import copy
import math

import pytest
import torch
from torch.testing import assert_close

from softvq import CodebookWarning, quantize_mode
from softvq.data import FirstImages, TensorImages, to_model_range
from softvq.measures import MsSsim, Ssim, psnr
from train import evaluate as evaluate_module
from train.evaluate import evaluate, reconstruct, split_rows, warn_of_gap
from train.loop import Run

METHODS = ("softvq", "ema", "lucid-ema")


@pytest.fixture(scope="module")
def models(make_config, images):
    """Each a few steps old."""
    return {
        name: Run(make_config("optim.steps=6", method=name), images=images, quiet=True)
        .train()
        .model
        for name in METHODS
    }


@pytest.fixture(params=METHODS)
def model(models, request):
    return models[request.param]


def all_images(images):
    return to_model_range(images.test.batch(torch.arange(len(images.test))))


def psnrs_of(images, reconstructions):
    """Mean over images and of the mean error, one image and pixel sum at a time."""
    errors = [
        float(((a.double() - b.double().clamp(-1, 1)) ** 2).mean())
        for a, b in zip(images, reconstructions, strict=True)
    ]
    each = [10 * math.log10(4 / error) for error in errors]
    return sum(each) / len(each), psnr(sum(errors) / len(errors), peak=2.0)


def perplexity_of(shares):
    shares = shares[shares > 0].double()
    return math.exp(-(shares * shares.log()).sum().item())


def test_hard_figures_are_those_of_the_whole_set_at_once(model, images, monkeypatch):
    monkeypatch.setattr(evaluate_module, "EVAL_BATCH", 10)  # 24 images: two whole ones and a rest
    found, counts, *_ = evaluate(model, images.test)
    pictures = all_images(images)
    with torch.no_grad():
        reconstruction, out = model.eval()(pictures)
        latents = model.latents(pictures).double()
    expected = out.indices.reshape(-1).bincount(minlength=32)
    assert counts.tolist() == expected.tolist()
    mean, of_mean = psnrs_of(pictures, reconstruction)
    assert found["psnr_hard"] == pytest.approx(mean, abs=1e-5)
    assert found["psnr_hard_of_mean"] == pytest.approx(of_mean, abs=1e-5)
    assert found["use_hard"] == len(out.indices.unique()) / 32
    assert found["perplexity_hard"] == pytest.approx(perplexity_of(expected / expected.sum()))
    variance = latents.movedim(1, -1).reshape(-1, 8).var(0, unbiased=False).sum()
    codes = model.quantizer.codebook.detach().double()
    near = (codes[:, None] - codes).square().sum(-1).sqrt() < 1e-3 * variance.sqrt()
    assert found["distinct_codes"] == 32 - near.triu(1).any(0).sum()


def test_soft_figures_are_those_of_the_whole_set_at_once(models, images, monkeypatch):
    monkeypatch.setattr(evaluate_module, "EVAL_BATCH", 10)
    model = models["softvq"].eval()
    found = evaluate(model, images.test).measures
    pictures = all_images(images)
    with torch.no_grad():
        rows = model.latents(pictures).movedim(1, -1).reshape(-1, 8).double()
        codes, level = model.quantizer.codebook.double(), model.quantizer.temperature.double()
        distances = (rows[:, None] - codes).square().sum(-1)
        weights = torch.softmax(-distances / level, -1)
        spread = (weights @ codes.square().sum(-1)) - (weights @ codes).square().sum(-1)
    mean = weights.mean(0)
    assert found["use_soft"] == (mean > 0.1 / 32).double().mean()
    assert found["perplexity_soft"] == pytest.approx(perplexity_of(mean), rel=1e-4)
    entropy = torch.special.entr(weights).sum(-1).mean()
    assert found["entropy"] == pytest.approx(entropy.item(), rel=1e-3)
    share = spread.sum() / (weights * distances).sum()
    assert found["spread_share"] == pytest.approx(share.item(), rel=1e-3)
    assert found["temperature"] == level.item()
    ratio = level.item() / model.quantizer.schedule.critical.item()
    assert found["temperature_ratio"] == pytest.approx(ratio, rel=1e-6)


def test_soft_psnr_is_that_of_the_soft_mode(models, images):
    model = copy.deepcopy(models["softvq"]).eval()
    model.quantizer.schedule.levels.mul_(100)  # so that the means are far from the codes
    found = evaluate(model, images.test).measures
    with torch.no_grad(), quantize_mode(model, "soft"):
        reconstruction = model(all_images(images)).reconstruction
    mean, of_mean = psnrs_of(all_images(images), reconstruction)
    assert found["psnr_soft"] == pytest.approx(mean, abs=1e-6)
    assert found["psnr_soft_of_mean"] == pytest.approx(of_mean, abs=1e-6)
    assert found["psnr_soft"] != pytest.approx(found["psnr_hard"], abs=1e-5)


@pytest.mark.parametrize("size", [1, 7, 24, 250])
def test_batches_do_not_matter(model, images, monkeypatch, size):
    whole, counts, *_ = evaluate(model, images.test)
    monkeypatch.setattr(evaluate_module, "EVAL_BATCH", size)
    parts, counts_of_parts, *_ = evaluate(model, images.test)
    assert torch.equal(counts, counts_of_parts)
    assert [name for name in whole if (whole[name] is None) != (parts[name] is None)] == []
    numbers = {name: value for name, value in whole.items() if value is not None}
    assert {name: parts[name] for name in numbers} == pytest.approx(numbers, rel=1e-5)


def test_images_that_are_no_multiple_are_measured_as_they_are(make_config):
    run = Run(make_config("data.size=30", "optim.steps=1"), quiet=True)
    model = run.train().model.eval()
    found, counts, *_ = evaluate(model, run.images.test)
    pictures = all_images(run.images)
    assert pictures.shape == (24, 3, 30, 30)
    with torch.no_grad():
        mean, _ = psnrs_of(pictures, model(pictures).reconstruction)
    assert found["psnr_hard"] == pytest.approx(mean, abs=1e-5)
    assert counts.sum() == 24 * 64


@pytest.mark.parametrize("training", [True, False])
def test_the_model_is_left_as_it_was(model, images, training):
    model.train(training)
    before = {name: each.clone() for name, each in model.state_dict().items()}
    random = torch.get_rng_state()
    evaluate(model, images.test)
    reconstruct(model, all_images(images)[:4])
    after = model.state_dict()
    assert model.training is training
    assert model.quantizer.training is training
    assert getattr(model.quantizer, "mode", None) is None
    assert [name for name in before if not torch.equal(before[name], after[name])] == []
    assert torch.equal(torch.get_rng_state(), random)


def test_pictures_are_the_reconstructions_as_bytes(models, images):
    model = models["softvq"].eval()
    pictures = all_images(images)[:4]
    found = reconstruct(model, pictures)
    assert torch.equal(found.inputs, images.test.batch(torch.arange(4)))
    with torch.no_grad():
        hard = model(pictures).reconstruction
        with quantize_mode(model, "soft"):
            soft = model(pictures).reconstruction
    assert_close(found.hard.float() / 127.5 - 1, hard.clamp(-1, 1), rtol=0, atol=0.5 / 127.5 + 1e-6)
    assert_close(found.soft.float() / 127.5 - 1, soft.clamp(-1, 1), rtol=0, atol=0.5 / 127.5 + 1e-6)


@pytest.mark.parametrize("name", ["ema", "lucid-ema"])
def test_a_hard_method_has_no_soft_pictures(models, images, name):
    assert reconstruct(models[name], all_images(images)[:4]).soft is None


def test_a_run_that_diverged_says_so_and_goes_on(make_config, images):
    config = make_config("optim.steps=4", "method.lr=1e18", "optim.warmup_steps=0")
    run = Run(config, images=images, quiet=True)
    final = run.train().evals[-1]
    assert math.isnan(final["psnr_hard"])
    assert reconstruct(run.result.model, all_images(images)[:4]).hard.unique().tolist() == [128]


def test_latents_that_are_all_alike_have_a_ratio_without_end(make_config, images):
    run = Run(make_config(), images=images, quiet=True)
    run.start()
    run.result.model.quantizer.schedule.critical.zero_()
    assert evaluate(run.result.model, images.test).measures["temperature_ratio"] == math.inf


PIXELS = {"low": -1.0, "high": 1.0, "dtype": "float32", "resize": "none", "net": "none"}


def test_every_measure_says_what_it_was_taken_under(models, images):
    found = evaluate(models["softvq"], images.test)
    taken = {name for name, value in found.measures.items() if value is not None}
    assert found.conditions.keys() == taken
    pictures = {"size": "32 x 32", "crop": "none", "images": 24}
    for name in ("psnr_hard", "psnr_hard_of_mean", "psnr_soft", "not_finite_hard"):
        assert found.conditions[name] == {**PIXELS, **pictures}, name
    window = "Gaussian window 11, deviation 1.5"
    assert found.conditions["ssim_soft"] == {**PIXELS, **pictures, "net": window}
    assert found.conditions["use_hard"] == {"images": 24, "tokens": 24 * 64}


def test_what_is_too_small_for_five_scales_is_a_reason(models, images):
    found = evaluate(models["softvq"], images.test)
    reason = "it wants sides of at least 176 pixels"
    assert found.missing == {"ms_ssim_hard": reason, "ms_ssim_soft": reason}
    assert found.measures["ms_ssim_hard"] is None


def test_similarities_are_those_of_the_whole_set(models, images, monkeypatch):
    monkeypatch.setattr(evaluate_module, "EVAL_BATCH", 10)
    model = models["softvq"].eval()
    pictures = all_images(images)
    with torch.no_grad():
        made = model(pictures).reconstruction
    expected = Ssim()
    expected.update(pictures, made)
    found = evaluate(model, images.test).measures["ssim_hard"]
    assert found == pytest.approx(expected.compute().mean_over_images, abs=1e-6)


def test_large_pictures_have_five_scales_and_come_a_few_at_a_time(models, monkeypatch):
    waves = 127 + 120 * torch.sin(0.11 * torch.arange(2 * 3 * 176 * 180.0))
    images = TensorImages(waves.byte().reshape(2, 3, 176, 180), name="waves")
    assert [len(rows) for rows in split_rows(images, count=9)] == [2]
    monkeypatch.setattr(evaluate_module, "EVAL_BATCH", 60)  # as many pixels as 1.9 of these
    assert [len(rows) for rows in split_rows(images, count=9)] == [1, 1]
    model = models["softvq"].eval()
    found = evaluate(model, images)
    pictures = to_model_range(images.images)
    with torch.no_grad():
        made = model(pictures).reconstruction
    expected = MsSsim()
    expected.update(pictures, made)
    value = expected.compute().mean_over_images
    assert found.measures["ms_ssim_hard"] == pytest.approx(value, abs=1e-5)
    assert found.missing == {}


def test_one_picture_has_every_measure(model, images):
    one = FirstImages(images.test, count=1)
    found = evaluate(model, one)
    assert math.isfinite(found.measures["psnr_hard"])
    assert found.measures["psnr_hard"] == pytest.approx(found.measures["psnr_hard_of_mean"])
    assert found.conditions["ssim_hard"]["images"] == 1
    assert found.counts.sum() == 64


def test_the_rate_is_what_the_tokens_cost(model, images):
    found, counts, *_ = evaluate(model, images.test)
    shares = counts[counts > 0].double() / counts.sum()
    entropy = -(shares * shares.log2()).sum().item()
    assert found["bits_per_pixel"] == pytest.approx(math.log2(32) * 64 / 1024)
    assert found["entropy_bits_per_pixel"] == pytest.approx(entropy * 64 / 1024, rel=1e-9)


def test_reconstructions_that_are_no_number_are_counted_and_not_averaged_away(models, images):
    """A decoder that fails on bright pictures alone: the others must not hide it."""
    model = copy.deepcopy(models["softvq"])
    brightness = all_images(images).mean((1, 2, 3))
    bad = brightness > brightness.median()

    def spoil(module, arguments, output):  # whole sets in one batch: hard, then soft
        return torch.where(bad[:, None, None, None], math.nan, output)

    model.decoder.register_forward_hook(spoil)
    found = evaluate(model, images.test).measures
    assert found["not_finite_hard"] == found["not_finite_soft"] == bad.sum() == 12
    for name in ("psnr_hard", "psnr_hard_of_mean", "ssim_hard", "psnr_soft"):
        assert math.isnan(found[name]), name
    assert math.isfinite(found["perplexity_hard"])


@pytest.fixture(scope="module")
def trained_soft(make_config, images):
    """DDCL with a temperature that stays far too high for hard codes."""
    options = ("method.options.unit=critical", "method.options.gradient=0.6", "optim.steps=60")
    config = make_config(*options, "method.lr=4e-3", method="ddcl-literal")
    return Run(config, images=images, quiet=True).train()


def test_a_gap_between_soft_and_hard_is_told_at_the_end(trained_soft):
    final = trained_soft.evals[-1]
    gap = final["psnr_soft"] - final["psnr_hard"]
    assert gap > 0.1
    told = [text for text in trained_soft.warnings if "soft means" in text]
    assert len(told) == 1
    assert f"decode {gap:.2f} dB worse than the soft means" in told[0]
    assert "forward_value='hard'" in told[0]


def test_a_gap_is_no_fault_where_hard_codes_were_trained(trained_soft, images):
    model = trained_soft.model
    found = evaluate(model, images.test)
    with pytest.warns(CodebookWarning, match="soft means"):
        warn_of_gap(model, found)
    model.quantizer.forward_value = "hard"
    warn_of_gap(model, found)
    model.quantizer.forward_value = "soft"
    warn_of_gap(model, found._replace(measures={**found.measures, "psnr_soft": None}))
