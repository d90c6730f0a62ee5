import re

import pytest
import torch
from PIL import Image

from softvq.cli import main
from softvq.data import from_model_range
from softvq.export import load_tokens
from softvq.export.hub import PretrainedVQVAE
from softvq.export.parquet import read_parquet
from softvq.models import load_model, save_model
from tests.export.graphs import make_images, make_model


@pytest.fixture
def saved(tmp_path):
    return save_model(make_model(), tmp_path / "model.safetensors")


@pytest.fixture
def photos(tmp_path):
    """A folder of five pictures of 9 x 9, two of them below."""
    folder = tmp_path / "photos"
    (folder / "sub").mkdir(parents=True)
    pictures = from_model_range(make_images((5, 3, 9, 9)))
    for i, picture in enumerate(pictures):
        name = folder / ("sub" if i > 2 else "") / f"{i}.png"
        Image.fromarray(picture.permute(1, 2, 0).numpy()).save(name)
    return folder


def read_pictures(folder):
    paths = sorted(folder.glob("*.png"))
    opened = [
        torch.frombuffer(bytearray(Image.open(p).tobytes()), dtype=torch.uint8) for p in paths
    ]
    return [path.name for path in paths], torch.stack(opened).reshape(-1, 9, 9, 3)


def test_encode_and_decode_give_the_hard_reconstruction(saved, photos, tmp_path, capsys):
    main(["encode", str(saved), str(photos), str(tmp_path / "t"), "--size", "9"])
    assert capsys.readouterr().out.endswith("t (1 shards written, 0 kept; whole)\n")
    tokens = load_tokens(tmp_path / "t")
    assert tokens.keys == ["0.png", "1.png", "2.png", "sub/3.png", "sub/4.png"]
    main(["decode", str(saved), str(tmp_path / "t"), str(tmp_path / "out")])
    assert capsys.readouterr().out.endswith("out (000000.png to 000004.png)\n")
    names, pictures = read_pictures(tmp_path / "out")
    assert names == [f"{i:06d}.png" for i in range(5)]
    images = from_model_range(make_images((5, 3, 9, 9))).float() / 127.5 - 1
    with torch.no_grad():
        expected = from_model_range(load_model(saved).eval()(images).reconstruction)
    assert torch.equal(pictures, expected.permute(0, 2, 3, 1))


def test_decode_takes_some_of_the_items(saved, photos, tmp_path):
    main(["encode", str(saved), str(photos), str(tmp_path / "t"), "--size", "9"])
    words = ["decode", str(saved), str(tmp_path / "t"), str(tmp_path / "out")]
    main([*words, "--first", "3", "--count", "2"])
    assert read_pictures(tmp_path / "out")[0] == ["000003.png", "000004.png"]
    with pytest.raises(SystemExit, match="error: --first 3 and --count 3 must name some of the 5"):
        main([*words, "--first", "3", "--count", "3"])


def test_a_model_goes_out_for_the_hub(saved, tmp_path, capsys):
    main(["export", "model", str(saved), str(tmp_path / "hub")])
    assert capsys.readouterr().out.endswith("hub (model.safetensors, for from_pretrained)\n")
    images = make_images((2, 3, 9, 9))
    loaded = PretrainedVQVAE.from_pretrained(tmp_path / "hub")
    assert torch.equal(loaded.encode(images), make_model().encode(images))


@pytest.mark.compiled
@pytest.mark.parametrize(("to", "end"), [("onnx", "onnx"), ("torch", "pt2")])
def test_a_model_goes_out_as_graphs(saved, tmp_path, capsys, to, end):
    main(["export", "model", str(saved), str(tmp_path / "out"), "--to", to])
    assert capsys.readouterr().out.endswith(f"out (encode.{end}, decode.{end})\n")
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == [f"decode.{end}", f"encode.{end}"]


def test_parquet_from_the_shell(saved, photos, tmp_path, capsys):
    main(["encode", str(saved), str(photos), str(tmp_path / "t"), "--size", "9"])
    main(["export", "parquet", str(tmp_path / "t"), str(tmp_path / "p")])
    assert capsys.readouterr().out.endswith("p (5 rows in 1 files)\n")
    rows = read_parquet(tmp_path / "p", cache_dir=tmp_path / "cache").rows
    assert rows["key"][4] == "sub/4.png"


@pytest.mark.bad_input
def test_a_changed_picture_is_found_by_the_same_call(saved, photos, tmp_path, capsys):
    words = ["encode", str(saved), str(photos), str(tmp_path / "t"), "--size", "9"]
    main(words)
    Image.new("RGB", (9, 9), "red").save(photos / "sub" / "3.png")
    with pytest.raises(SystemExit, match=r"^error: .*'sub/3.png' is another picture"):
        main(words)
    main([*words, "--trust-names"])
    assert capsys.readouterr().out.endswith("t (0 shards written, 1 kept; whole)\n")


@pytest.mark.bad_input
def test_a_broken_picture_is_named_before_anything_is_written(saved, photos, tmp_path):
    path = photos / "sub" / "3.png"
    path.write_bytes(path.read_bytes()[:40])
    words = ["encode", str(saved), str(photos), str(tmp_path / "t"), "--size", "9"]
    with pytest.raises(SystemExit, match=rf"^error: .*{re.escape(str(path))} cannot be read"):
        main(words)
    assert not (tmp_path / "t").exists()
    path.unlink()
    main(words)
    assert len(load_tokens(tmp_path / "t")) == 4


@pytest.mark.bad_input
def test_tokens_of_another_model_are_not_decoded(saved, photos, tmp_path):
    main(["encode", str(saved), str(photos), str(tmp_path / "t"), "--size", "9"])
    other = make_model()
    other.quantizer.codebook[3, 1] += 1
    save_model(other, saved)
    with pytest.raises(SystemExit, match="error: codebook has digest"):
        main(["decode", str(saved), str(tmp_path / "t"), str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()


def test_refined_tokens_decode_to_smaller_errors(saved, photos, tmp_path):
    images = from_model_range(make_images((5, 3, 9, 9))).float() / 127.5 - 1
    errors = {}
    for name, more in (("plain", []), ("refined", ["--refine", "2"])):
        main(["encode", str(saved), str(photos), str(tmp_path / name), "--size", "9", *more])
        tokens = load_tokens(tmp_path / name, codebook=load_model(saved))
        made = load_model(saved).eval().decode(tokens.batch(torch.arange(5)).tokens, size=(9, 9))
        errors[name] = (made - images).double().square().sum((1, 2, 3))
        assert tokens.codebook.downsampling == 4
        assert tokens.codebook.image_range == (-1.0, 1.0)
    assert (errors["refined"] <= errors["plain"] * (1 + 1e-5)).all()
    assert errors["refined"].sum() < errors["plain"].sum()


@pytest.mark.bad_input
def test_tokens_of_other_sweeps_are_not_mixed_in_a_folder(saved, photos, tmp_path):
    words = ["encode", str(saved), str(photos), str(tmp_path / "t"), "--size", "9"]
    main([*words, "--refine", "1"])
    for more in ([], ["--refine", "2"]):
        with pytest.raises(SystemExit, match="holds another export"):
            main([*words, *more])
    main([*words, "--refine", "1"])


@pytest.mark.bad_input
def test_sweeps_that_cannot_be_are_refused(saved, photos, tmp_path):
    words = ["encode", str(saved), str(photos), str(tmp_path / "t"), "--size", "9"]
    with pytest.raises(SystemExit, match="--refine must be a count of sweeps, 0 for none; got -1"):
        main([*words, "--refine", "-1"])
    with pytest.raises(SystemExit, match="--refine has no soft targets"):
        main([*words, "--refine", "1", "--soft-top", "3"])
    assert not (tmp_path / "t").exists()
