from dataclasses import replace

import pytest

from eval.paper.codebook import MEASURES, draw, find_label, make_config, train
from eval.paper.sizes import Sizes
from eval.use import CONTROL
from train.images import ImagePair

SIZES = Sizes(codebook_steps=2, codebook_test=8)


@pytest.mark.parametrize("name", ["softvq", CONTROL])
def test_use_is_followed_from_the_first_image_to_the_end(name, tmp_path):
    config = make_config(name, SIZES, seed=0)
    data = replace(config.data, source="textures", num_train=128)
    config = replace(config, data=data, eval_at=(0.0, 1.0))
    curve = train(config, name, images=ImagePair(config), folder=tmp_path)["curve"]
    assert [each["images"] for each in curve] == [0, 128]
    assert all(each[key] > 0 for each in curve for key in MEASURES)
    if name == CONTROL:  # soft use is whole where hard use is a code or two
        assert curve[-1]["use_soft"] == 1.0
        assert curve[-1]["use_hard"] < 0.2


def test_the_control_is_named_as_one():
    assert "control" in find_label(CONTROL)
    assert find_label("softvq") == "SoftVQ"


def test_a_method_without_soft_use_is_drawn_by_its_hard_use():
    rows = [
        {"method": method, "images": images, "use_hard": 0.5, "use_soft": soft}
        for method, soft in (("hard", None), ("soft", 1.0))
        for images in (0, 64)
    ]
    hard, soft = draw(rows).axes
    assert [list(line.get_ydata()) for line in hard.lines] == [[0.5, 0.5]] * 2
    assert list(soft.lines[1].get_ydata()) == [1.0, 1.0]
