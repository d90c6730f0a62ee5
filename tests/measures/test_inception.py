import math

import pytest
import torch
from torch_fidelity import feature_extractor_inceptionv3 as fidelity
from torchmetrics.image.fid import NoTrainInceptionV3

from softvq.measures.inception import INCEPTION_URL, InceptionFeatures


@pytest.fixture(scope="module")
def weights():
    """Of the right names and shapes: the network itself, as it is before it reads its file."""
    with pytest.MonkeyPatch.context() as patch:
        kind = fidelity.FeatureExtractorInceptionV3
        patch.setattr(fidelity, "load_state_dict_from_url", lambda *_, **__: None)
        patch.setattr(kind, "load_state_dict", lambda *_: None)
        state = kind("drawn", ["2048"]).state_dict()
    generator = torch.Generator().manual_seed(0)
    for name, each in state.items():  # as they are made, what passes through dies away
        if name.endswith("conv.weight"):
            torch.nn.init.kaiming_normal_(each, nonlinearity="relu", generator=generator)
    return state


def test_features_are_torchmetrics(weights, tmp_path):
    torch.save(weights, tmp_path / "weights.pth")
    # Its default resizes in another way than the network's authors did.
    path = str(tmp_path / "weights.pth")
    theirs = NoTrainInceptionV3("theirs", ["2048"], path, antialias=False).eval()
    features = InceptionFeatures(weights)
    pictures = (torch.arange(3 * 32 * 32) * 7 % 256).reshape(1, 3, 32, 32).to(torch.uint8)
    with torch.no_grad():
        expected = theirs._torch_fidelity_forward(pictures)[0].reshape(1, -1)
        found = features.extract(pictures / 255, low=0.0, high=1.0)
        bad = features.extract(torch.full((1, 1, 8, 8), math.nan), low=0.0, high=1.0)
    assert found.shape == (1, features.dim) == (1, 2048)
    assert expected.std() > 1e-2
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert not features.module.training
    assert bad.isnan().all()


def test_it_is_named_and_says_its_size():
    assert (InceptionFeatures.name, InceptionFeatures.resize) == ("FID", 299)
    assert INCEPTION_URL.endswith("-6726825d.pth")


def test_weights_of_another_network_are_refused():
    with pytest.raises(RuntimeError, match="Missing key"):
        InceptionFeatures({})
