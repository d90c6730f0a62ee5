import pytest
import torch
from torchvision.models import vgg16

from softvq.measures.vgg import make_vgg_features
from tests.weights import drawn_weights


def test_vgg_features_are_the_mean_of_its_last_convolution():
    with torch.device("meta"):
        layers = vgg16(weights=None).features
    drawn = {key.removeprefix("features."): value for key, value in drawn_weights("vgg").items()}
    layers.load_state_dict(drawn, assign=True)
    images = torch.sin(torch.arange(2.0 * 3 * 4 * 4)).reshape(2, 3, 4, 4).abs()
    mean = torch.tensor([0.485, 0.456, 0.406]).reshape(3, 1, 1)
    deviation = torch.tensor([0.229, 0.224, 0.225]).reshape(3, 1, 1)
    large = torch.nn.functional.interpolate(images, size=(32, 32), mode="bilinear")
    with torch.no_grad():
        expected = layers((large - mean) / deviation).mean((2, 3))
        features = make_vgg_features(drawn_weights("vgg"), resize=32)
        found = features.extract(images, low=0.0, high=1.0)
    assert found.shape == (2, features.dim) == (2, 512)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
    assert features.name == "FD-VGG16"


@pytest.mark.bad_input
def test_a_size_that_leaves_nothing_is_refused():
    with pytest.raises(ValueError, match="resize must be a whole number of at least 32; got 31"):
        make_vgg_features(drawn_weights("vgg"), resize=31)
