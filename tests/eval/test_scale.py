import json

import pytest
import torch

from eval.robust import Point, build_scaled, configure
from eval.scale import find_latent_deviation, scale
from train.images import ImagePair


def test_the_deviation_is_what_the_quantizer_sees():
    point = Point(num_codes=16, dim=4, batch_size=16, scale=3.0)
    images = ImagePair(configure(point, "softvq", steps=1, source="textures"))
    config = configure(point, "softvq", steps=1, source="textures")
    model = build_scaled(config, images.train, scale=3.0)
    assert find_latent_deviation(model, images.train) == pytest.approx(3.0, rel=0.2)


def test_soft_codes_bear_what_a_commitment_does_not(tmp_path, capsys):
    """The same net and budget; large latents leave nothing but the mean picture to the rival."""
    torch.manual_seed(0)
    options = {"num_codes": 64, "dim": 8, "steps": 60, "source": "textures", "out": tmp_path}
    scale(methods="softvq, ema", scales=(0.01, 100.0), **options)
    told = json.loads((tmp_path / "scale.json").read_text())
    ends = {key: {m: each[0] for m, each in found.items()} for key, found in told["scales"].items()}
    assert list(ends) == ["0.01", "100"]
    assert ends["100"]["softvq"]["use"] > 0.9
    assert abs(ends["100"]["softvq"]["psnr_hard"] - ends["0.01"]["softvq"]["psnr_hard"]) < 1.0
    assert ends["100"]["ema"]["psnr_hard"] < ends["100"]["softvq"]["psnr_hard"] - 1.0
    assert ends["100"]["ema"]["deviation"] != ends["0.01"]["ema"]["deviation"]
    assert "Written" in capsys.readouterr().out


@pytest.mark.bad_input
def test_a_scale_that_is_not_above_zero_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"scales must be a finite number > 0; got -1"):
        scale(scales=(1.0, -1.0), source="textures", out=tmp_path)
