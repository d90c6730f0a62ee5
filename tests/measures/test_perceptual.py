import math
import re
from itertools import pairwise

import lpips
import pytest
import torch
import torch.nn.functional as F
from skimage import data
from torch import nn

from softvq.data import to_model_range
from softvq.measures.inputs import to_net_range
from softvq.measures.perceptual import Lpips, build_lpips
from tests.weights import drawn_weights, real_weights

POOLINGS = {"alex": {2: (3, 2), 5: (3, 2)}, "vgg": {4: (2, 2), 9: (2, 2), 16: (2, 2), 23: (2, 2)}}
STAGES = {"alex": (1, 4, 7, 9, 11), "vgg": (3, 8, 15, 22, 29)}
CONVOLUTIONS = {"alex": {0: (4, 2), 3: (1, 2)}, "vgg": {}}


def lpips_by_hand(images, made, *, net, weights, heads):
    """The paper's formula, from the kernels alone: in float64, one layer after another."""

    def stages(pictures):
        shift = torch.tensor([-0.030, -0.088, -0.188]).reshape(3, 1, 1).double()
        scale = torch.tensor([0.458, 0.448, 0.450]).reshape(3, 1, 1).double()
        x = (pictures.double() - shift) / scale
        for place in range(STAGES[net][-1] + 1):
            kernel = weights.get(f"features.{place}.weight")
            if kernel is not None:
                stride, padding = CONVOLUTIONS[net].get(place, (1, 1))
                bias = weights[f"features.{place}.bias"].double()
                x = F.conv2d(x, kernel.double(), bias, stride=stride, padding=padding)
            elif place in POOLINGS[net]:
                size, stride = POOLINGS[net][place]
                x = F.max_pool2d(x, size, stride)
            else:
                x = x.relu()
            if place in STAGES[net]:
                yield x / (x.square().sum(1, keepdim=True).sqrt() + 1e-10)

    total = torch.zeros(len(images)).double()
    for one, other, head in zip(stages(images), stages(made), heads, strict=True):
        total += (head.double() * (one - other).square()).sum(1).mean((1, 2))
    return total


def heads_of(module):
    return [each.model[-1].weight[0] for each in module.lins]


def make_pictures(count=5, *, size=32, channels=3):
    line = torch.arange(float(count * channels * size * size))
    images = 0.9 * torch.sin(line * 0.07).reshape(count, channels, size, size)
    noise = torch.cos(line * 1.3).reshape(images.shape)
    return images, (images + noise * torch.linspace(0.1, 0.9, count)[:, None, None, None])


def measure(net, images, made, *, cuts=(), **options):
    found = Lpips(build_lpips(drawn_weights(net), net=net), net=net, **options)
    for begin, end in pairwise([0, *cuts, len(images)]):
        found.update(images[begin:end], made[begin:end])
    return found.compute()


@pytest.mark.parametrize("net", ["alex", "vgg"])
def test_it_is_the_papers_formula(net):
    images, made = make_pictures(2)
    module = build_lpips(drawn_weights(net), net=net)
    expected = lpips_by_hand(
        images, made.clamp(-1, 1), net=net, weights=drawn_weights(net), heads=heads_of(module)
    )
    found = measure(net, images, made)
    assert found.mean_over_images == pytest.approx(expected.mean().item(), abs=1e-5)
    assert found.mean_over_images > 0.01


class Recorder(nn.Module):
    """Stands for the net, and notes what it is given."""

    def __init__(self):
        super().__init__()
        self.ends = []
        self.shapes = []

    def forward(self, one, other):
        self.ends += [(each.min().item(), each.max().item()) for each in (one, other)]
        self.shapes.append(tuple(one.shape))
        return (one - other).square().mean((1, 2, 3), keepdim=True)


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-1.0, 1.0), (0.0, 255.0)], ids=str)
def test_the_net_sees_minus_one_to_one_whatever_the_range(low, high):
    """Case 3: never -3, the value of scaling 0 twice."""
    net = Recorder()
    found = Lpips(net, net="alex", low=low, high=high)
    found.update(torch.full((1, 3, 32, 32), low), torch.full((1, 3, 32, 32), high + 5))
    assert net.ends == [(-1.0, -1.0), (1.0, 1.0)]
    assert found.compute().mean_over_images == 4.0


def test_grey_is_repeated_and_a_new_size_is_told():
    net = Recorder()
    found = Lpips(net, net="vgg", resize=64)
    found.update(torch.zeros(2, 1, 8, 8), torch.zeros(2, 1, 8, 8))
    assert net.shapes == [(2, 3, 64, 64)]
    conditions = found.compute().conditions
    assert conditions.resize == "64 x 64 bilinear"
    assert conditions.size == "8 x 8"
    assert conditions.net == "vgg, relu1 to relu5, heads v0.1"
    assert (conditions.images, conditions.dtype, conditions.crop) == (2, "float32", "none")


def test_large_batches_go_through_in_parts():
    net = Recorder()
    found = Lpips(net, net="alex")
    images = torch.zeros(5, 1, 400, 400)
    found.update(images, images)
    assert net.shapes == [(1, 3, 400, 400)] * 5
    assert found.compute()[:3] == (0.0, 5, 0)


@pytest.mark.parametrize("cuts", [[2], [1, 2, 3], [0]], ids=str)
def test_batches_do_not_matter(cuts):
    images, made = make_pictures()
    whole, parts = measure("alex", images, made), measure("alex", images, made, cuts=cuts)
    assert parts.mean_over_images == pytest.approx(whole.mean_over_images, rel=1e-5)
    assert parts[1:] == whole[1:]


def test_merged_parts_are_the_whole():
    images, made = make_pictures()
    module = build_lpips(drawn_weights("alex"), net="alex")
    first, second = Lpips(module, net="alex"), Lpips(module, net="alex")
    first.update(images[:2], made[:2])
    second.update(images[2:], made[2:])
    first.merge(second)
    whole = measure("alex", images, made)
    assert first.compute().mean_over_images == pytest.approx(whole.mean_over_images, rel=1e-5)


@pytest.mark.parametrize("value", [math.nan, math.inf], ids=str)
def test_a_reconstruction_that_is_not_finite_is_counted_and_shown(value):
    images, made = make_pictures()
    made[1, 0, 31, 31] = value
    found = measure("alex", images, made)
    assert math.isnan(found.mean_over_images)
    assert (found.images, found.not_finite) == (5, 1)


def test_nothing_is_nan():
    found = Lpips(Recorder(), net="alex").compute()
    assert math.isnan(found.mean_over_images)
    assert found[1:3] == (0, 0)


def test_building_draws_nothing_and_trains_nothing():
    before = torch.get_rng_state()
    module = build_lpips(drawn_weights("alex"), net="alex")
    assert torch.equal(torch.get_rng_state(), before)
    assert not module.training
    assert not any(each.requires_grad for each in module.parameters())


def test_a_gradient_reaches_the_reconstruction():
    images, made = make_pictures(1)
    made = made.requires_grad_()
    module = build_lpips(drawn_weights("alex"), net="alex")
    module(to_net_range(made, low=-1.0, high=1.0), images).sum().backward()
    assert made.grad.abs().sum() > 0


@pytest.mark.network
@pytest.mark.parametrize("net", ["alex", "vgg"])
def test_with_the_real_weights_it_is_the_lpips_package(net):
    """The module as the package makes it, filled in its own way, against ours over batches."""
    pictures = [
        to_model_range(torch.from_numpy(each.copy())) for each in (data.cat(), data.coffee())
    ]
    images = torch.stack([each[:64, :64].movedim(-1, 0) for each in pictures])
    made = images * 0.7 + 0.1
    weights = real_weights(net)
    module = build_lpips(weights, net=net)
    theirs = lpips.LPIPS.forward(module, images, made).mean().item()
    expected = lpips_by_hand(images, made, net=net, weights=weights, heads=heads_of(module)).mean()
    found = Lpips(module, net=net)
    found.update(images[:1], made[:1])
    found.update(images[1:], made[1:])
    assert found.compute().mean_over_images == pytest.approx(theirs, abs=1e-4)
    assert found.compute().mean_over_images == pytest.approx(expected.item(), abs=1e-4)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("net", "size", "message"),
    [
        ("alex", 30, "images must have sides of at least 31 pixels for alex; got shape (1, 3, 30"),
        ("vgg", 15, "images must have sides of at least 16 pixels for vgg; got shape (1, 3, 15"),
    ],
)
def test_pictures_too_small_are_refused(net, size, message):
    images = torch.zeros(1, 3, size, size)
    with pytest.raises(ValueError, match=re.escape(message)):
        Lpips(Recorder(), net=net).update(images, images)


@pytest.mark.parametrize(("net", "size"), [("alex", 31), ("vgg", 16)])
def test_the_smallest_pictures_pass(net, size):
    images, _ = make_pictures(1, size=size)
    assert measure(net, images, images).mean_over_images == 0.0


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.full((1, 3, 32, 32), 9.0), "images must lie in [-1, 1]; got values from 9 to 9."),
        (torch.zeros(1, 2, 32, 32), "images must have 1 or 3 channels; got shape (1, 2, 32, 32)"),
        (torch.zeros(1, 3, 32, 32, dtype=torch.uint8), "images must be a floating-point tensor"),
    ],
    ids=["range", "channels", "bytes"],
)
def test_what_is_no_picture_is_refused(images, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Lpips(Recorder(), net="alex").update(images, images)


@pytest.mark.bad_input
def test_measures_of_another_net_or_size_do_not_merge():
    with pytest.raises(ValueError, match="other must be of alex at resize None; got vgg at None"):
        Lpips(Recorder(), net="alex").merge(Lpips(Recorder(), net="vgg"))
    with pytest.raises(ValueError, match="other must be of vgg at resize None; got vgg at 64"):
        Lpips(Recorder(), net="vgg").merge(Lpips(Recorder(), net="vgg", resize=64))


@pytest.mark.bad_input
def test_weights_of_another_net_are_refused():
    with pytest.raises(ValueError, match=r"weights must have features.2.weight for"):
        build_lpips(
            {"features.0.weight": torch.zeros(1), "features.0.bias": torch.zeros(1)}, net="vgg"
        )
    with pytest.raises(ValueError, match="net is 'squeeze'; valid are: alex, vgg"):
        build_lpips({}, net="squeeze")
