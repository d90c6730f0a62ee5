import json

import pytest
import torch

from eval import public as module
from eval.public import METHODS, VARIANCE, find_variance, make_config, public
from softvq.data import to_model_range
from softvq.data.images import TensorImages
from train.build import build_for
from train.images import ImagePair
from train.methods import get_method
from train.presets import make_preset

SMALL = (
    "data=textures",
    "data.size=16",
    "data.num_train=64",
    "data.num_test=8",
    "optim.steps=6",
    "net.hidden=8",
    "net.dim=4",
    "net.num_codes=16",
    "eval_at=[1.0]",
)


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    folder = tmp_path_factory.mktemp("public")
    runs = {}
    with pytest.MonkeyPatch.context() as patch:
        finish = module.finish_run

        def keep(config, **rest):
            runs[config.method.name] = finish(config, **rest)
            return runs[config.method.name]

        patch.setattr(module, "finish_run", keep)
        public(SMALL, out=folder)
    return runs, json.loads((folder / "public.json").read_text())


@pytest.mark.parametrize("name", METHODS)
def test_the_error_is_that_of_hard_codes_on_training_pictures(done, name):
    runs, written = done
    run = runs[name]
    pixels = to_model_range(run.images.train.batch(torch.arange(64))).double()
    model = run.result.model.eval()
    with torch.no_grad():
        decoded = model.decode(model.encode(pixels.float())).double().clamp(-1, 1)
    expected = (decoded - pixels).square().mean() / pixels.var(unbiased=False)
    found = written["methods"][name][0]["error_of_variance"]
    assert found == pytest.approx(expected.item(), rel=1e-4)
    assert written["data"].count("train") == 2


def test_the_variance_is_over_pictures_and_channels():
    images = TensorImages(
        torch.tensor([0, 255, 255], dtype=torch.uint8).reshape(3, 1, 1, 1).expand(3, 1, 2, 2),
        name="three",
    )
    assert find_variance(images) == pytest.approx(8 / 9)  # of -1, 1, 1


def test_both_take_the_recipes_rate():
    base = make_preset("public")
    rates = {make_config(base, name, {}, seed=0).method.lr for name in METHODS}
    assert rates == {3e-4}


@pytest.mark.slow
def test_the_constant_is_cifar10s():
    assert find_variance(ImagePair(make_preset("public")).train) == pytest.approx(
        VARIANCE, abs=5e-5
    )


def test_the_recipe_says_all_of_ema_whatever_it_is_tuned_to_at_this_size():
    """Decay 0.99 and commitment 0.25 are the recipe's; nothing of `Method.sizes` is left."""
    config = make_config(make_preset("public"), "ema", METHODS["ema"], seed=0)
    quantizer = build_for(config, channels=3, size=(32, 32)).quantizer
    assert (quantizer.learning.decay, quantizer.revival.threshold) == (0.99, 0.2)
    assert quantizer.learning.commitment == pytest.approx(0.25 * VARIANCE)
    tuned = get_method("ema").sizes[config.net.num_codes, config.net.dim].options
    assert set(tuned) <= set(METHODS["ema"])
