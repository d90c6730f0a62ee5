import json

import pytest

from eval.use import METHODS, SIZES, use


@pytest.fixture(scope="module")
def followed(tmp_path_factory):
    """The folder of a short run on drawn pictures, and its JSON."""
    folder = tmp_path_factory.mktemp("use")
    use(out=folder, epochs=2, num_test=8, source="textures")
    return folder, json.loads((folder / "use.json").read_text())


def test_all_methods_and_sizes_are_followed_from_image_0_on(followed):
    folder, written = followed
    assert list(written["sizes"]) == [str(size) for size in SIZES]
    for methods in written["sizes"].values():
        assert tuple(methods) == METHODS
        for method in methods.values():
            evals = method["seeds"][0]["evals"]
            assert evals[0]["images"] == 0
            assert evals[-1]["images"] == 2 * 256
    assert {path.name for path in folder.glob("*.png")} == {"use-64.png", "use-512.png"}


@pytest.mark.parametrize("size", SIZES)
def test_the_control_has_full_soft_use_and_one_code(followed, size):
    evals = followed[1]["sizes"][str(size)]["collapsed"]["seeds"][0]["evals"]
    assert {each["use_soft"] for each in evals} == {1.0}
    assert [each["perplexity_soft"] for each in evals] == pytest.approx(
        len(evals) * [size], rel=1e-3
    )
    assert {each["distinct_codes"] for each in evals} == {1.0}
    assert evals[0]["use_hard"] == 1 / size
    others = followed[1]["sizes"][str(size)]["softvq"]["seeds"][0]["evals"]
    assert min(each["distinct_codes"] for each in others) > 0.9 * size
