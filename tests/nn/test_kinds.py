import pytest

from softvq import HardVQ
from softvq.nn import ResidualVQ
from softvq.nn.kinds import KINDS, build, describe


def test_every_kind_has_its_own_name():
    assert {name: kind.__name__ for name, kind in KINDS.items()} == {name: name for name in KINDS}
    assert {"SoftVQ", "HardVQ", "ImplicitVQ", "SoftFSQ", "ResidualVQ", "GroupedVQ"} <= set(KINDS)


def test_a_shared_codebook_is_shared_again():
    vq = ResidualVQ([HardVQ(8, 2)] * 3)
    again = build(describe(vq))
    assert again.parts[0] is again.parts[2]


@pytest.mark.bad_input
def test_an_unknown_kind_lists_the_valid_ones():
    with pytest.raises(ValueError, match=r"quantizer kind is 'SoftVq'; valid.*mean 'SoftVQ'"):
        build({"kind": "SoftVq"})
