import sys

import pytest
from torch import nn

from softvq import swap
from softvq.hosts import swap_report
from softvq.hosts.report import load_target
from softvq.hosts.swapping import restore
from tests.hosts import kinds
from tests.hosts.contract import COOL
from tests.hosts.kinds import make

FILE = """
from torch import nn
from tests.hosts.kinds import Autoencoder, DotProduct, Tutorial

def build():
    return nn.ModuleList([Autoencoder(Tutorial(), first=True), DotProduct()])

empty = nn.Linear(2, 2)
number = 3
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "somebodys_model.py"
    path.write_text(FILE)
    yield path
    sys.modules.pop("somebodys_model", None)


def test_a_report_names_all_that_a_user_asks():
    report = swap(make("channels last"), temperature=COOL)
    text = str(report)
    for words in (
        "quantize (ChannelsLast): family D",
        "K = 12, D = 4, codes in quantize.embed",
        "learned by averages",
        "channels last, euclidean, 1 head(s)",
        "now parameters: quantize.embed",
    ):
        assert words in text


def test_swap_report_changes_nothing_and_says_what_is_refused(script):
    text = swap_report(f"{script}:build")
    assert "0.quantize (Tutorial): family B" in text
    assert "refused: 1 (DotProduct): assigns by dot product" in text


def test_swap_report_where_nothing_is_found(script):
    assert swap_report(f"{script}:empty") == "no quantizer found in Linear"


@pytest.mark.parametrize("target", ["tests.hosts.kinds:InDict", "tests.hosts.kinds.InDict"])
def test_an_import_path_is_a_target(target):
    assert isinstance(load_target(target), kinds.InDict)


def test_the_weights_of_a_loss_are_seen():
    model = nn.ModuleList([make("four"), make("one dict")])
    report = swap(model, temperature=COOL)
    assert any("1 : 4;" in each for each in report.swapped[0].remarks)
    restore(model)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("target", "match"),
    [
        ("model", "target must be 'package.module:name' or 'file.py:name'; got 'model'"),
        ("nowhere.to.be:found", "cannot import nowhere"),
        ("nowhere.py:found", "no file nowhere.py"),
        ("torch.nn:Nothing", "torch.nn has no 'Nothing'"),
        ("math:pi", "math:pi is a float, not a torch.nn.Module"),
    ],
)
def test_targets_that_are_none(target, match):
    with pytest.raises(ValueError, match=match):
        swap_report(target)
