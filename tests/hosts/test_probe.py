import copy

import pytest
import torch
from torch import nn

from softvq.hosts.candidates import candidates, may_quantize
from softvq.hosts.probe import probe
from tests.hosts import kinds
from tests.hosts.kinds import D, K, make

AXES = {"four": 1, "channels last": -1, "in dict": 1, "one dict": -1, "loss tuple": 1}


@pytest.mark.parametrize("name", kinds.HOSTS)
def test_what_is_probed_stays_as_it_is(name):
    host = make(name).quantize
    before = copy.deepcopy(host.state_dict())
    assert probe(host).adapter is not None
    for key, each in host.state_dict().items():
        assert torch.equal(each, before[key])


@pytest.mark.parametrize(("name", "axis"), AXES.items())
def test_the_axis_of_the_features_is_found(name, axis):
    assert probe(make(name).quantize).adapter.geometry.axis == axis


@pytest.mark.parametrize(
    ("name", "key", "view"),
    [
        ("averages", "_embedding.weight", "rows"),
        ("channels last", "embed", "columns"),
        ("one dict", "codes", "rows"),
    ],
)
def test_the_codes_are_told_from_their_averages(name, key, view):
    (at,) = probe(make(name).quantize).adapter.codebooks()
    assert (at.key, at.view) == (key, view)


def test_the_axis_does_not_hang_on_equal_sizes():
    """As many codes as features: only values can tell rows from columns."""

    class Square(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Parameter(torch.randn(D, D))

        def forward(self, z):
            found = torch.cdist(z, self.embed.t()).argmin(-1)
            q = self.embed.t()[found]
            return z + (q - z).detach(), (q - z).square().mean(), found

    (at,) = probe(Square()).adapter.codebooks()
    assert at.view == "columns"


@pytest.mark.parametrize(
    ("name", "metric"), [("normalised", "normalised"), ("in dict", "euclidean")]
)
def test_the_metric_is_found(name, metric):
    assert probe(make(name).quantize).adapter.metric == metric


@pytest.mark.parametrize(("name", "averaged"), [("averages", True), ("four", False)])
def test_averages_are_told_from_gradients(name, averaged):
    assert probe(make(name).quantize).adapter.averaged == averaged


def test_weights_of_the_loss():
    assert probe(make("four").quantize).adapter.weights == (1.0, 4.0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_dtypes(dtype):
    assert probe(make("four").quantize.to(dtype)).adapter is not None


@pytest.mark.parametrize(
    ("module", "reason", "is_quantizer"),
    [
        (nn.Linear(2, 2), "holds no tensor that could be a codebook", False),
        (nn.Embedding(K, D), "runs on none of the layouts", False),
        (kinds.Projected(), "family F", True),
        (kinds.DotProduct(), "dot product", True),
    ],
    ids=["linear", "embedding", "projected", "dot"],
)
def test_what_is_none_says_why(module, reason, is_quantizer):
    said = probe(module)
    assert said.adapter is None
    assert reason in said.reason
    assert said.is_quantizer == is_quantizer


def test_a_network_is_no_candidate():
    layers = [nn.Embedding(4, 4) for _ in range(30)]
    assert not may_quantize(nn.ModuleList(layers))
    assert list(candidates(nn.Sequential(nn.Linear(3, 3), nn.GroupNorm(1, 3)))) == []
