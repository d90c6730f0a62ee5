import json
import math

import pytest
import torch

from eval.robust import (
    RANGES,
    Point,
    build_scaled,
    configure,
    find_use,
    judge,
    make_points,
    robust,
)
from softvq.data import to_model_range
from softvq.nn.layout import to_rows
from train.images import ImagePair

POINT = Point(num_codes=64, dim=4, batch_size=16, scale=1.0)


@pytest.fixture(scope="module")
def images():
    return ImagePair(configure(POINT, "softvq", steps=1, source="textures"))


def test_points_are_a_latin_hypercube():
    points = make_points()
    assert len(points) == 24
    columns = zip(*((p.num_codes, p.dim, p.batch_size, p.scale) for p in points), strict=True)
    for column, (low, high) in zip(columns, RANGES, strict=True):
        assert low <= min(column) <= max(column) <= high
        shares = [math.log(value / low) / math.log(high / low) for value in column]
        # Whole numbers are cut down, so that one may slip under its cell's floor.
        cells = sorted(round(24 * share - 0.5) for share in shares)
        assert all(abs(cell - place) <= 2 for place, cell in enumerate(cells))
    assert sorted(math.floor(6 * math.log10(p.scale * 100)) for p in points) == list(range(24))
    assert make_points() == points


@pytest.mark.parametrize("scale", [0.01, 1.0, 100.0])
def test_the_quantizer_sees_the_scale_and_the_decoder_does_not(images, scale):
    config = configure(POINT, "softvq", steps=1, source="textures")
    model = build_scaled(config, images.train, scale=scale)
    batch = to_model_range(images.train.batch(torch.arange(64)))
    with torch.no_grad():
        latents = model.latents(batch)
        rows = to_rows(latents, layout="channels_first")
        assert rows.var(0, correction=0).mean().sqrt().item() == pytest.approx(scale, rel=1e-4)
        plain = build_scaled(config, images.train, scale=1.0)
        same = plain.decoder(plain.latents(batch))
        torch.testing.assert_close(model.decoder(latents), same, rtol=1e-4, atol=1e-5)


def test_use_is_that_of_the_first_images_that_fill_it(images):
    config = configure(POINT, "ema", steps=1, source="textures")
    model = build_scaled(config, images.train, scale=1.0)
    with torch.no_grad():
        model.train()(to_model_range(images.train.batch(torch.arange(16))))
        seen = model.eval().encode(to_model_range(images.train.batch(torch.arange(250))))
    assert find_use(model, images.train) == seen.unique().numel() / 64


@pytest.mark.parametrize(
    ("psnr", "use", "expected"),
    [
        (20.0, 1.0, "ok"),
        (19.81, 0.9, "ok"),
        (19.7, 1.0, "0.30 dB behind"),
        (20.0, 0.89, "use under 90 %"),
        (19.0, 0.5, "use under 90 %, 1.00 dB behind"),
        (math.nan, 1.0, "no number"),
    ],
)
def test_failures_are_those_of_the_task(psnr, use, expected):
    assert judge({"psnr_hard": psnr, "use": use}, {"psnr_hard": 20.0}) == expected


def test_the_command_writes_and_prints_what_it_did(tmp_path, capsys):
    place = min(range(24), key=lambda n: make_points()[n].num_codes * make_points()[n].batch_size)
    robust(out=tmp_path, only=str(place), steps=2, source="textures")
    written = json.loads((tmp_path / "robust.json").read_text())
    assert list(written["points"]) == [str(place)]
    found = written["points"][str(place)]
    assert found["num_codes"] == make_points()[place].num_codes
    assert 0 < found["softvq"]["use"] <= 1
    assert found["verdict"] == judge(found["softvq"], found["ema"])
    assert "of 1 points fail" in capsys.readouterr().out


@pytest.mark.bad_input
def test_a_point_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ValueError, match="only must name points from 0 to 1; got '2'"):
        robust(out=tmp_path, points=2, only="2")
