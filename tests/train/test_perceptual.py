import math
from weakref import WeakKeyDictionary

import numpy as np
import pytest
import scipy.linalg
import torch

from softvq.data import TensorImages, to_model_range
from softvq.data.fetch import FetchError
from softvq.measures.frechet import Features
from softvq.measures.perceptual import Lpips, build_lpips
from tests.weights import drawn_weights, real_weights
from train import perceptual
from train.evaluate import PERCEPTUAL
from train.loop import Run
from train.perceptual import (
    Counts,
    NotAvailableError,
    PerceptualLoss,
    get_net,
    measure_perceptual,
)


@pytest.fixture(autouse=True)
def nets(monkeypatch):
    """Drawn weights in place of the real ones, and nothing kept from test to test."""
    monkeypatch.setattr(perceptual, "load_weights", drawn_weights)
    perceptual._try_net.cache_clear()
    yield monkeypatch
    perceptual._try_net.cache_clear()


@pytest.fixture
def no_weights(nets):
    asked = []

    def fail(net):
        asked.append(net)
        raise FetchError("Tried, in this order:\n- home: no network\nPut it there.")

    nets.setattr(perceptual, "load_weights", fail)
    return asked


def measure(run, **counts):
    return measure_perceptual(
        run.result.model,
        run.images.test,
        counts=Counts(**counts),
        training_images=run.images.train,
    )


@pytest.fixture(scope="module")
def run(make_config, images):
    made = Run(make_config("optim.steps=2"), images=images, quiet=True)
    made.train()
    return made


def test_lpips_is_of_the_first_pictures_and_says_so(run):
    found = measure(run, lpips=10)
    model = run.result.model.eval()
    inputs = to_model_range(run.images.test.batch(torch.arange(10)))
    with torch.no_grad():
        made = model(inputs).reconstruction
    expected = Lpips(build_lpips(drawn_weights("alex"), net="alex"), net="alex")
    expected.update(inputs, made)
    value = expected.compute().mean_over_images
    assert found.measures["lpips_alex_hard"] == pytest.approx(value, rel=1e-5)
    assert found.measures["lpips_alex_soft"] != pytest.approx(value, rel=1e-7)
    assert found.conditions["lpips_vgg_soft"]["images"] == 10
    assert found.conditions["lpips_vgg_soft"]["net"] == "vgg, relu1 to relu5, heads v0.1"
    assert found.measures["fd_vgg16_hard"] is None
    assert list(found.measures) == list(PERCEPTUAL)
    assert found.missing == {}


def test_the_frechet_distance_uses_what_it_knows_of_the_inputs(run, nets):
    nets.setattr(perceptual.VggFeatures, "dim", 4)

    def extract(self, images, *, low, high):
        seen.append(len(images))
        return torch.cat([images.mean((2, 3)), images.std((1, 2, 3))[:, None]], 1)

    seen = []
    nets.setattr(perceptual.VggFeatures, "extract", extract)
    first = measure(run, frechet=20)
    assert sum(seen) == 60  # inputs once, then hard and soft
    assert 0 < first.measures["fd_vgg16_hard"] < 1
    again = measure(run, frechet=20)
    assert sum(seen) == 100
    assert again.measures == first.measures
    assert first.conditions["fd_vgg16_soft"]["resize"] == "64 x 64 bilinear"
    assert measure(run, frechet=3).missing["fd_vgg16_hard"].startswith("3 pictures are too few")


class Means(Features):
    """Stands for Inception: four features, so that few pictures suffice."""

    name, net, dim, resize = "FID", "means and deviation", 4, 299

    def __init__(self, weights):
        self.seen = weights["seen"]

    def extract(self, images, *, low, high):
        self.seen.append(len(images))
        return torch.cat([images.mean((2, 3)), images.std((1, 2, 3))[:, None]], 1)


@pytest.fixture
def inception(nets):
    """What `Means` saw, batch by batch."""
    seen = []
    nets.setattr(perceptual, "InceptionFeatures", Means)
    nets.setitem(perceptual.FEATURES, "FID", Means)
    nets.setattr(perceptual, "load_published", lambda url: {"seen": seen, "url": url})
    nets.setattr(perceptual, "_REFERENCES", WeakKeyDictionary())
    return seen


def distance_by_scipy(one, other):
    def features(images):
        return torch.cat([images.mean((2, 3)), images.std((1, 2, 3))[:, None]], 1).double().numpy()

    one, other = features(one), features(other)
    first, second = np.cov(one.T), np.cov(other.T)
    root = scipy.linalg.sqrtm(first @ second).real
    return np.square(one.mean(0) - other.mean(0)).sum() + np.trace(first + second - 2 * root)


def test_rfid_is_from_the_inputs_and_fid_from_training_pictures(run, inception):
    found = measure(run, fid=20)
    inputs, trained = (
        to_model_range(each.batch(torch.arange(20))) for each in (run.images.test, run.images.train)
    )
    model = run.result.model.eval()
    with torch.no_grad():
        made = model(inputs).reconstruction.clamp(-1, 1)
    assert found.measures["rfid_hard"] == pytest.approx(distance_by_scipy(inputs, made), rel=1e-4)
    assert found.measures["fid_hard"] == pytest.approx(distance_by_scipy(trained, made), rel=1e-4)
    assert found.conditions["rfid_soft"]["against"] == "their inputs"
    assert found.conditions["fid_soft"]["against"] == "20 training pictures"
    assert found.conditions["fid_hard"]["images"] == 20
    assert found.conditions["fid_hard"]["resize"] == "299 x 299 bilinear"
    assert found.measures["fd_vgg16_hard"] is None
    assert found.missing == {}


def test_the_references_of_fid_are_measured_once(run, inception):
    first = measure(run, fid=20)
    assert sum(inception) == 80  # inputs and training pictures once, then hard and soft
    assert measure(run, fid=20).measures == first.measures
    assert sum(inception) == 120


def test_too_few_pictures_for_inception_are_a_reason(run, nets):
    asked = []
    nets.setattr(perceptual, "load_published", asked.append)
    found = measure(run, fid=2048)
    assert found.missing["rfid_hard"].startswith("24 pictures are too few for 2048 features")
    assert found.missing["fid_hard"] == found.missing["rfid_hard"]
    assert asked == []  # nothing is fetched in vain


def test_without_inception_the_run_goes_on_and_every_figure_says_why(
    make_config, images, nets, inception
):
    def fail(url):
        raise FetchError(f"{url.rsplit('/', 1)[-1]} could not be had.")

    nets.setattr(perceptual, "load_published", fail)
    config = make_config("optim.steps=2", "num_fid=20", "num_lpips=4", "eval_at=[1]")
    result = Run(config, images=images, quiet=True).train()
    names = ("rfid_hard", "fid_hard", "rfid_soft", "fid_soft")
    for name in names:
        assert result.evals[-1][name] is None
        assert "-6726825d.pth could not be had." in result.missing[name]
    assert result.evals[-1]["lpips_alex_hard"] > 0
    [text] = [text for text in result.warnings if text.startswith("not available: ")]
    assert text.startswith(f"not available: {', '.join(names)}: ")


def test_missing_weights_are_reasons_asked_for_once(run, no_weights):
    found = measure(run, lpips=4, frechet=4)
    again = measure(run, lpips=4)
    assert set(found.measures.values()) == {None}
    assert again.missing["lpips_alex_hard"] == (
        "Tried, in this order: - home: no network Put it there."
    )
    assert sorted(no_weights) == ["alex", "vgg"]


def test_pictures_too_small_for_a_net_are_a_reason(run):
    few = TensorImages(torch.zeros(4, 3, 12, 12, dtype=torch.uint8), name="small")
    found = measure_perceptual(run.result.model, few, counts=Counts(lpips=4))
    assert "images must have sides of at least 31 pixels" in found.missing["lpips_alex_hard"]


@pytest.mark.parametrize("training", [True, False])
def test_the_model_is_left_as_it_was(run, training):
    model = run.result.model.train(training)
    random = torch.get_rng_state()
    measure(run, lpips=2)
    assert model.training is training
    assert torch.equal(torch.get_rng_state(), random)


def test_a_run_without_weights_warns_and_goes_on(make_config, images, no_weights):
    config = make_config("optim.steps=2", "num_lpips=4", "eval_at=[0,1]")
    result = Run(config, images=images, quiet=True).train()
    assert result.evals[-1]["lpips_alex_hard"] is None
    assert [text for text in result.warnings if text.startswith("not available: lpips_alex_hard, ")]
    assert len(result.evals) == 2


def test_a_run_measures_at_its_end_alone(make_config, images, tmp_path):
    config = make_config("optim.steps=2", "num_lpips=4", "eval_at=[0,1]")
    run = Run(config, images=images, folder=tmp_path, quiet=True)
    result = run.train()
    assert result.evals[0]["lpips_alex_hard"] is None
    assert result.evals[-1]["lpips_alex_hard"] > 0
    assert result.evals[-1]["lpips_vgg_soft"] > 0
    assert result.conditions["lpips_alex_hard"]["images"] == 4
    again = Run(config, images=images, folder=tmp_path, quiet=True)
    again.resume()
    assert again.result.conditions == result.conditions


def test_the_loss_is_the_mean_and_has_a_gradient():
    images = torch.sin(torch.arange(2.0 * 3 * 32 * 32)).reshape(2, 3, 32, 32)
    made = (images * 0.5).requires_grad_()
    loss = PerceptualLoss("alex")(made, images)
    loss.backward()
    measured = Lpips(get_net("alex"), net="alex")
    measured.update(images, made.detach())
    assert loss.item() == pytest.approx(measured.compute().mean_over_images, rel=1e-5)
    assert made.grad.abs().sum() > 0


def test_a_loss_whose_weights_cannot_be_had_is_an_error(make_config, images, no_weights):
    with pytest.raises(NotAvailableError, match="no network"):
        Run(make_config("loss=mse+lpips"), images=images, quiet=True)


def train(make_config, images, *changes):
    config = make_config("optim.steps=150", "optim.warmup_steps=0", "eval_at=[1]", *changes)
    run = Run(config, images=images, quiet=True)
    run.train()
    return run


@pytest.mark.network
def test_training_on_lpips_looks_better_by_lpips(make_config, images, nets):
    """A real run on drawn pictures with the real net: the loss does what it is there for."""
    nets.setattr(perceptual, "load_weights", real_weights)
    changes = ["lpips_net=alex", "method.lr=3e-3", "data.num_lpips=24"]
    plain = train(make_config, images, *changes)
    seen = train(make_config, images, "loss=mse+lpips", "lpips_weight=1.0", *changes)
    without, with_it = (each.result.evals[-1]["lpips_alex_hard"] for each in (plain, seen))
    assert math.isfinite(with_it)
    assert with_it < 0.8 * without  # 0.089 against 0.157 where this was written
