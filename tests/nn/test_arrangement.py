import pickle
import subprocess
import sys

import pytest
import torch
from torch import nn

from softvq.nn import (
    Arrangement,
    Cosine,
    GroupedVQ,
    HardVQ,
    MultiHeadVQ,
    OneIndex,
    Projected,
    ResidualVQ,
    Scaled,
    SoftVQ,
)
from tests.contracts.quantizer import MemberContract, start_on, waves
from tests.nn.members import MEMBERS, soft

COMPILED = {
    "implicit",
    "cosine of averages",
    "fsq",
    "residual, mixed, dropout",
    "residual, scaled, soft",
    "residual of projected cosine",
    "grouped residual, dropout",
    "heads of residual",
    "product",
}
WORKER = """
import pickle, sys, torch
torch.set_num_threads(1)
members, z, expected = pickle.load(open(sys.argv[1], "rb"))
wrong = [name for name, vq in members.items() if not torch.equal(vq(z).indices, expected[name])]
assert not wrong, wrong
print(len(members))
"""


@pytest.mark.filterwarnings("ignore:The temperature hit a bound:UserWarning")
class TestFamily(MemberContract):
    @pytest.fixture(params=list(MEMBERS))
    def make(self, request):
        def make(layout="channels_last"):
            return MEMBERS[request.param](layout=layout)

        return make

    @pytest.fixture
    def compiles(self, request):
        return request.node.callspec.params["make"] in COMPILED


@pytest.mark.filterwarnings("ignore:The temperature hit a bound:UserWarning")
def test_every_member_goes_to_a_worker(tmp_path):
    z = waves(2, 24, 8)
    members = {name: start_on(make(), z).eval() for name, make in MEMBERS.items()}
    expected = {name: vq(z).indices for name, vq in members.items()}
    path = tmp_path / "members.pickle"
    path.write_bytes(pickle.dumps((members, z, expected)))
    done = subprocess.run(
        [sys.executable, "-c", WORKER, str(path)], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == str(len(MEMBERS)), done.stderr


def test_stats_say_whose_they_are():
    inner = [ResidualVQ([soft(4), soft(4, seed=1)]) for _ in range(2)]
    stats = start_on(GroupedVQ(inner), waves(4, 24, 8))(waves(4, 24, 8)).stats
    places = {name.rpartition(".")[0] for name in stats}
    assert places == {f"group{g}.stage{s}" for g in range(2) for s in range(2)}
    assert stats["group1.stage0.ols"] > stats["group1.stage1.ols"]


def test_a_start_is_that_of_the_first_training_pass():
    z, mask = waves(4, 24, 8), waves(4, 24, phase=3.0) > -0.5
    for name, make in MEMBERS.items():
        if "dropout" in name:
            continue  # there the first pass starts later stages on the items that keep them
        by_call, by_pass = make(), make()
        by_call.start_(z, mask=mask)
        by_pass.train()(z, mask=mask)
        assert by_call.is_started, name
        first, second = by_call.state_dict(), by_pass.state_dict()
        assert [k for k in first if not torch.equal(first[k], second[k])] == [], name


def test_an_empty_first_batch_does_not_start():
    vq = MEMBERS["residual, scaled, soft"]()
    vq(waves(0, 8))
    assert not vq.is_started


def test_the_outermost_part_updates_and_discards_all():
    vq = start_on(ResidualVQ([soft(), soft(seed=1)]), waves(4, 24, 8))
    assert [int(each.updates) for each in vq.codebooks()] == [1, 1]
    vq(waves(4, 24, 8))
    vq.discard_()
    vq.update_()
    assert [int(each.updates) for each in vq.codebooks()] == [1, 1]


def stages(dim):
    return ResidualVQ([HardVQ(16, dim, seed=0), HardVQ(8, dim, seed=1), HardVQ(4, dim, seed=2)])


@pytest.mark.parametrize(
    "build",
    [
        lambda: Projected(stages(4), 8),
        lambda: Scaled(stages(8)),
        lambda: GroupedVQ([stages(4), stages(4)]),
        lambda: MultiHeadVQ(stages(4), num_heads=2),
        lambda: Projected(GroupedVQ([stages(3), stages(2)]), 8),
    ],
    ids=["projected", "scaled", "groups", "heads", "projected groups"],
)
def test_the_first_stages_do_wherever_the_stack_is(build):
    """A prefix is what all stages with -1 behind it are, and is checked stage by stage."""
    vq = start_on(build(), waves(4, 24, 8)).eval()
    indices = vq(waves(4, 24, 8, phase=1.0)).indices
    for num in (1, 2):
        rest = torch.arange(3) < num
        expected = vq.codes(torch.where(rest, indices, -1))
        assert torch.equal(vq.codes(indices[..., :num]), expected)
    assert torch.equal(vq.codes(indices[..., :3]), vq.codes(indices))
    beyond = indices[..., :2].clone()
    beyond[..., 1] = 8
    with pytest.raises(ValueError, match=r"lie in \[-1, 8\).*8 to 8"):
        vq.codes(beyond)
    longer = torch.cat([indices, indices[..., :1]], -1)
    for wrong in (longer, indices[..., :0], indices[..., 0]):
        with pytest.raises(ValueError, match=r"indices must be \(\.\.\., .*got shape"):
            vq.codes(wrong)


def test_one_index_has_no_first_stages():
    vq = OneIndex(stages(8))
    assert vq.codes(torch.zeros(5, dtype=torch.int64)).shape == (5, 8)
    assert not vq.fits((1,))


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("build", "match"),
    [
        (lambda: ResidualVQ([]), "quantizers must hold at least one quantizer; got none"),
        (lambda: ResidualVQ(SoftVQ(4, 8)), r"quantizers must be a list.*SoftVQ.*\[vq\] \* 4"),
        (lambda: ResidualVQ([nn.Identity()]), r"quantizers\[0\] must be a quantizer.*Identity"),
        (
            lambda: ResidualVQ([SoftVQ(4, 8, layout="channels_first")]),
            r"quantizers\[0\] has layout='channels_first'.*outermost",
        ),
        (
            lambda: GroupedVQ([SoftVQ(4, 4), MultiHeadVQ(SoftVQ(4, 2), num_heads=2)]),
            r"quantizers must give indices of one shape.*\[\(\), \(2,\)\]",
        ),
        (
            lambda: ResidualVQ([Scaled(vq) for vq in [HardVQ(4, 8)] * 2]),
            r"quantizers\[0\] and quantizers\[1\] hold the same codebook in two",
        ),
        (
            lambda: GroupedVQ([HardVQ(4, 8), *[Scaled(vq) for vq in [HardVQ(4, 8)] * 2]]),
            r"quantizers\[1\] and quantizers\[2\] hold the same codebook in two",
        ),
        (lambda: MultiHeadVQ(3, num_heads=2), "vq must be a quantizer of softvq.*got int"),
        (lambda: Cosine(ResidualVQ([HardVQ(4, 8)])), "vq must be one codebook.*ResidualVQ"),
        (lambda: ResidualVQ([HardVQ(4, 8)], layout="bchw"), "layout is 'bchw'; valid are"),
    ],
    ids=[
        "none",
        "one",
        "no quantizer",
        "layout",
        "tails",
        "scaled",
        "groups",
        "number",
        "cosine",
        "own layout",
    ],
)
def test_parts_that_do_not_fit_are_refused(build, match):
    with pytest.raises(ValueError, match=match):
        build()


def test_an_arrangement_is_abstract():
    with pytest.raises(TypeError, match="abstract"):
        Arrangement(8, layout="channels_last")
