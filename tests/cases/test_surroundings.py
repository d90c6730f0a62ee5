"""Quantizers where the process around them is not as usual.

Other default dtypes and devices, copies that follow a model by its tensors alone, loaders that
write tensors past `load_state_dict`.
"""

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from softvq import ImplicitVQ, SoftVQ
from tests.cases.kinds import KINDS, make_attached, train_on
from tests.contracts.quantizer import waves
from tests.nn.members import COOL, MEMBERS

pytestmark = [
    pytest.mark.filterwarnings("ignore:The temperature hit a bound:UserWarning"),
]
ONE = ("soft", "hard", "implicit")

# Defaults


@pytest.fixture
def default_dtype(request):
    before = torch.get_default_dtype()
    torch.set_default_dtype(request.param)
    yield request.param
    torch.set_default_dtype(before)


@pytest.mark.parametrize(
    ("default_dtype", "member"),
    [
        *((torch.bfloat16, member) for member in MEMBERS),
        *((dtype, name) for dtype in (torch.float16, torch.float64) for name in ONE),
    ],
    indirect=["default_dtype"],
    ids=str,
)
def test_under_another_default_dtype_statistics_are_float32(default_dtype, member):
    """transformers builds its models so; averages of bfloat16 would stand still."""
    vq = MEMBERS[member]()
    for step in range(12):  # past the first revival
        out = vq(waves(64, 8, phase=float(step), dtype=default_dtype))
        vq.update_()
    kept = {name: each.dtype for name, each in vq.named_buffers() if each.is_floating_point()}
    assert {name: held for name, held in kept.items() if held != torch.float32} == {}
    assert {each.dtype for each in vq.parameters()} <= {default_dtype}
    assert out.quantized.dtype == default_dtype
    assert out.loss.dtype == torch.promote_types(default_dtype, torch.float32)
    assert all(each.isfinite().all() for each in vq.state_dict().values())


@pytest.mark.parametrize(
    ("member", "num_rows"), [*((member, 64) for member in MEMBERS), *((name, 3) for name in ONE)]
)
def test_a_module_on_another_device_than_the_default_works(member, num_rows):
    """Meta tensors hold nothing: a constant that went to the default device would be found out."""
    vq = MEMBERS[member]()
    batches = [waves(num_rows, 8, phase=float(step)) for step in range(12)]
    with torch.device("meta"):
        for z in batches:
            out = vq(z)
            vq.update_()
        vq.eval()(batches[0])
        vq.codes(out.indices)
    assert {each.device.type for each in vq.state_dict().values()} == {"cpu"}


# Copies that follow a model by its tensors, and loaders that write past `load_state_dict`


AVERAGED = {
    "averaged": {},
    "moving average": {"multi_avg_fn": get_ema_multi_avg_fn(0.5), "use_buffers": True},
}


@pytest.mark.parametrize("options", list(AVERAGED.values()), ids=list(AVERAGED))
@pytest.mark.parametrize("kind", list(KINDS))
def test_an_averaged_copy_made_before_training_is_started_with_the_model(kind, options):
    model, optimizer = make_attached(kind)
    follower = AveragedModel(model, **options)
    for _ in range(4):
        train_on(model, optimizer)
        follower.update_parameters(model)
    copied = follower.module[1]
    assert copied.is_started
    before = copied.codebook.detach().clone()
    copied.train()(waves(32, 4, phase=9.0))
    assert torch.equal(copied.codebook, before), "the codes were placed anew"


def test_a_moving_average_of_buffers_ends_the_warm_up_with_the_model():
    vq = SoftVQ(8, 4, temperature=COOL)
    vq.schedule.warming.fill_(True)
    follower = AveragedModel(vq, multi_avg_fn=get_ema_multi_avg_fn(0.999), use_buffers=True)
    follower.update_parameters(vq)
    assert follower.module.schedule.warming
    vq.schedule.warming.fill_(False)
    follower.update_parameters(vq)
    assert not follower.module.schedule.warming


def write_tensors(vq, state):
    """As loaders do that know nothing of modules: tensors take the places of tensors."""
    for name, value in state.items():
        *path, last = name.split(".")
        part = vq.get_submodule(".".join(path))
        if last in part._parameters:
            part._parameters[last] = nn.Parameter(value.clone())
        else:
            part._buffers[last] = value.clone()


@pytest.mark.parametrize("how", ["written", "assigned"])
@pytest.mark.parametrize("kind", list(KINDS))
def test_a_file_of_bfloat16_is_no_start_and_no_loss_of_digits(kind, how):
    model, optimizer = make_attached(kind)
    train_on(model, optimizer, steps=4)  # past any warm-up, whose end is a start
    state = {
        name: each.bfloat16() if each.is_floating_point() else each
        for name, each in model[1].state_dict().items()
    }
    vq = KINDS[kind]()
    if how == "written":
        write_tensors(vq, state)
    else:
        vq.load_state_dict(state, assign=True)
    before = vq.codebook.detach().float().clone()
    vq.train()(waves(32, 4, phase=9.0))
    assert torch.equal(vq.codebook.float(), before), "the codes were placed anew"
    vq.update_()
    dtypes = {each.dtype for each in vq.buffers() if each.is_floating_point()}
    assert dtypes == {torch.float32}


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_state_of_before_the_start_takes_the_start_back(kind):
    vq, fresh = KINDS[kind](), KINDS[kind]()
    vq(waves(64, 4))
    vq.load_state_dict(fresh.state_dict())
    assert not vq.is_started
    vq(3 + waves(64, 4, phase=9.0))
    fresh(3 + waves(64, 4, phase=9.0))
    assert torch.equal(vq.codebook, fresh.codebook)


# Codes that come from elsewhere


@pytest.mark.parametrize(
    "make",
    [
        *KINDS.values(),
        lambda: ImplicitVQ(8, 4, temperature=COOL),
    ],
    ids=[*KINDS, "implicit"],
)
def test_codes_that_are_set_stay_where_training_goes_on(make):
    """Case 8: a start on data, the end of a warm-up and sums of averages would lose them."""
    vq, codes = make(), 5 + waves(8, 4)
    vq.set_codes_(codes)
    assert vq.is_started
    for step in range(3):
        out = vq(codes + 1e-3 * waves(8, 4, phase=float(step)))
        assert out.indices.tolist() == list(range(8))
        vq.update_()
    torch.testing.assert_close(vq.codebook, codes, rtol=0, atol=2e-3)
    assert all(each.isfinite().all() for each in vq.state_dict().values())


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("codes", "match"),
    [
        (torch.zeros(4, 8), r"codes must have 4 features on axis -1"),
        (torch.zeros(9, 4), r"codes must be \(K, D\) = \(8, 4\); got \(9, 4\)"),
        (torch.full((8, 4), torch.nan), "codes holds 32 of 32 entries that are NaN"),
    ],
    ids=["turned", "too many", "nan"],
)
def test_codes_that_do_not_fit_are_refused(codes, match):
    with pytest.raises(ValueError, match=match):
        SoftVQ(8, 4).set_codes_(codes)
