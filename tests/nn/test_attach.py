import copy
import itertools
import warnings

import pytest
import torch
from accelerate import Accelerator
from torch import nn

from softvq import CodebookWarning, HardVQ, SoftVQ, Temperature, attach
from tests.contracts.quantizer import place, waves


def make_model(vq=None):
    return nn.Sequential(nn.Linear(4, 4), SoftVQ(16, 4) if vq is None else vq)


def make_adam(model, **options):
    return torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1, **options)


def backward(model, *, phase=0.0, factor=1.0):
    out = model(waves(64, 4, phase=phase))
    ((out.quantized.square().mean() + out.loss) * factor).backward()


def counted(vq):
    """Rows that the pending tally holds."""
    return int(vq._tally.counts.sum()) if vq._tally else 0


# The codebook's parameter group


def group_of(optimizer, parameter):
    return next(g for g in optimizer.param_groups if any(p is parameter for p in g["params"]))


@pytest.mark.filterwarnings("ignore::softvq.CodebookWarning")  # of "0.5x": codes are slower
@pytest.mark.parametrize(
    ("given", "rate"), [("10x", 1e-2), ("3x", 3e-3), ("0.5x", 5e-4), (0.02, 0.02), ("0.02", 0.02)]
)
def test_codebook_gets_a_rate_of_its_own(given, rate):
    model = make_model()
    optimizer = make_adam(model)
    attach(model, optimizer, codebook_lr=given)
    host, own = group_of(optimizer, model[0].weight), group_of(optimizer, model[1].codebook)
    assert len(own["params"]) == 1
    assert own["lr"] == pytest.approx(rate)
    assert own["weight_decay"] == 0
    assert (host["lr"], host["weight_decay"]) == (1e-3, 0.1)
    assert (own["betas"], own["eps"]) == (host["betas"], host["eps"])
    assert len(optimizer.param_groups) == 2


def test_ten_times_is_the_default():
    model = make_model()
    optimizer = make_adam(model)
    attach(model, optimizer)
    assert group_of(optimizer, model[1].codebook)["lr"] == pytest.approx(1e-2)


def test_keep_leaves_the_group_and_warns():
    model = make_model()
    optimizer = make_adam(model)
    with pytest.warns(UserWarning, match="codebook_lr='keep'.*host's rate.*10x"):
        attach(model, optimizer, codebook_lr="keep")
    assert len(optimizer.param_groups) == 1


def test_averaged_codebooks_need_no_group():
    model = make_model(HardVQ(16, 4, codebook="ema"))
    optimizer = make_adam(model)
    attach(model, optimizer, codebook_lr="keep")
    attach(model, optimizer)
    assert len(optimizer.param_groups) == 1


def test_unused_code_does_not_decay():
    """Case 21: under AdamW's decay an unused row goes from 4.0 to 3.96 in one step."""
    vq = place(
        HardVQ(2, 4, codebook="gradient", revival=None), torch.tensor([[0.0] * 4, [4.0] * 4])
    )
    model = make_model(vq)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.1)
    attach(model, optimizer)
    out = model(0.1 * waves(8, 4))
    out.loss.backward()
    optimizer.step()
    assert vq.codebook[1].tolist() == [4.0] * 4


def test_several_quantizers_and_groups():
    model = nn.ModuleList([make_model(), make_model()])
    groups = [{"params": model[0].parameters(), "lr": 1e-3}, {"params": model[1].parameters()}]
    optimizer = torch.optim.AdamW(groups, lr=1e-2)
    attach(model, optimizer)
    rates = [group_of(optimizer, each[1].codebook)["lr"] for each in model]
    assert rates == pytest.approx([1e-2, 1e-1])
    assert len(list(itertools.chain(*(g["params"] for g in optimizer.param_groups)))) == 6


def test_an_optimizer_of_the_codebook_alone_keeps_no_empty_group():
    vq = SoftVQ(16, 4)
    optimizer = torch.optim.SGD(vq.parameters(), lr=0.1)
    attach(vq, optimizer)
    assert [len(group["params"]) for group in optimizer.param_groups] == [1]


def test_names_of_parameters_move_along():
    model = make_model()
    optimizer = torch.optim.AdamW(model.named_parameters(), lr=1e-3)
    attach(model, optimizer)
    names = [group["param_names"] for group in optimizer.param_groups]
    assert names == [["0.weight", "0.bias"], ["1.codebook"]]


def test_a_scheduler_made_afterwards_keeps_the_ratio():
    model = make_model()
    optimizer = make_adam(model)
    attach(model, optimizer)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    optimizer.step()
    scheduler.step()
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([5e-4, 5e-3])


def test_optimizer_state_loads_into_a_new_attachment():
    first, second = make_model(), make_model()
    optimizers = [make_adam(model) for model in (first, second)]
    for model, optimizer in zip((first, second), optimizers, strict=True):
        attach(model, optimizer)
    backward(first)
    optimizers[0].step()
    optimizers[1].load_state_dict(optimizers[0].state_dict())
    assert torch.equal(
        optimizers[1].state[second[1].codebook]["exp_avg"],
        optimizers[0].state[first[1].codebook]["exp_avg"],
    )


# Updating


@pytest.mark.parametrize("vq", [SoftVQ, HardVQ])
def test_every_step_is_an_update(vq):
    model = make_model(vq(16, 4))
    optimizer = make_adam(model)
    handle = attach(model, optimizer)
    for step in range(5):
        optimizer.zero_grad()
        backward(model, phase=float(step))
        optimizer.step()
    assert handle.quantizers == [model[1]]
    assert model[1].updates.item() == 5
    assert counted(model[1]) == 0


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("place_of_zero", ["first", "after the pass", "last", "twice"])
def test_no_loop_loses_the_tally(place_of_zero, set_to_none):
    model = make_model()
    optimizer = make_adam(model)
    attach(model, optimizer)
    seen = []
    for _ in range(4):
        if place_of_zero in ("first", "twice"):
            optimizer.zero_grad(set_to_none=set_to_none)
        out = model(waves(64, 4))
        if place_of_zero in ("after the pass", "twice"):
            optimizer.zero_grad(set_to_none=set_to_none)
        (out.quantized.square().mean() + out.loss).backward()
        seen.append(counted(model[1]))
        optimizer.step()
        if place_of_zero == "last":
            optimizer.zero_grad(set_to_none=set_to_none)
    assert seen == [64] * 4
    assert model[1].updates.item() == 4


def test_accumulated_passes_add_up():
    model = make_model()
    optimizer = make_adam(model)
    attach(model, optimizer)
    for _ in range(2):
        optimizer.zero_grad()
        for micro in range(3):
            backward(model, phase=float(micro))
        assert counted(model[1]) == 3 * 64
        optimizer.step()
    assert model[1].updates.item() == 2


def test_a_backward_pass_of_another_loss_does_not_lose_the_tally():
    """A GAN whose discriminator loss is not detached, before the generator's zero_grad."""
    model, critic = make_model(), nn.Linear(4, 1)
    optimizers = make_adam(model), make_adam(critic)
    attach(nn.ModuleList([model, critic]), optimizers[0])
    for _ in range(3):
        out = model(waves(64, 4))
        critic(out.quantized).mean().backward(retain_graph=True)
        optimizers[0].zero_grad()
        (out.quantized.square().mean() + out.loss).backward()
        optimizers[0].step()
    assert model[1].updates.item() == 3


def test_of_two_optimizers_the_one_with_the_codebook_counts():
    model, critic = make_model(), nn.Linear(4, 1)
    generator, discriminator = make_adam(model), make_adam(critic)
    attach(model, generator)
    for _ in range(3):
        out = model(waves(64, 4))
        generator.zero_grad()
        (out.loss - critic(out.quantized).mean()).backward()
        generator.step()
        discriminator.zero_grad()
        critic(out.quantized.detach()).mean().backward()
        discriminator.step()
    assert model[1].updates.item() == 3


@pytest.mark.parametrize("order", ["attach first", "prepare first"])
def test_an_optimizer_of_accelerate_is_unwrapped(order):
    accelerator, model = Accelerator(cpu=True), make_model()
    optimizer = make_adam(model)
    if order == "attach first":
        attach(model, optimizer)
        model, optimizer = accelerator.prepare(model, optimizer)
    else:
        model, optimizer = accelerator.prepare(model, optimizer)
        attach(model, optimizer)
    for _ in range(3):
        optimizer.zero_grad()
        out = model(waves(64, 4))
        accelerator.backward(out.quantized.square().mean() + out.loss)
        optimizer.step()
    assert accelerator.unwrap_model(model)[1].updates.item() == 3
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([1e-3, 1e-2])


# Steps that were skipped


def scaled_step(model, optimizer, scaler, *, overflow, zero):
    """One step of a mixed-precision loop, with an infinite loss where asked for."""
    if zero == "first":
        optimizer.zero_grad()
    out = model(waves(64, 4))
    if zero == "after the pass":
        optimizer.zero_grad()
    loss = out.quantized.square().mean() + out.loss
    scaler.scale(loss * (torch.inf if overflow else 1.0)).backward()
    scaler.step(optimizer)
    scaler.update()
    if zero == "last":
        optimizer.zero_grad()


@pytest.mark.parametrize("zero", ["first", "last"])
def test_a_step_that_the_scaler_skips_drops_the_tally(zero):
    model = make_model()
    optimizer, scaler = make_adam(model), torch.amp.GradScaler("cpu")
    attach(model, optimizer)
    history = []
    for overflow in (True, False, True, True, False):
        scaled_step(model, optimizer, scaler, overflow=overflow, zero=zero)
        if not overflow:
            history.append((model[1].updates.item(), counted(model[1])))
        else:
            assert counted(model[1]) == 64, "two passes added up over a skipped step"
    assert history == [(1, 0), (2, 0)]


def test_a_loop_with_zero_grad_amid_loses_no_pass_to_a_skipped_step():
    model = make_model()
    optimizer, scaler = make_adam(model), torch.amp.GradScaler("cpu")
    attach(model, optimizer)
    for overflow in (True, False, True, True, False):
        scaled_step(model, optimizer, scaler, overflow=overflow, zero="after the pass")
    assert model[1].updates.item() == 2


@pytest.mark.parametrize(("found", "updates"), [(0.0, 1), (1.0, 0)], ids=["sound", "overflow"])
def test_a_fused_step_that_found_infinities_is_none(found, updates):
    """A scaler hands fused optimizers ``found_inf`` and steps them all the same."""
    model = make_model()
    optimizer = make_adam(model, fused=True)
    attach(model, optimizer)
    backward(model)
    optimizer.found_inf = torch.tensor(found)
    optimizer.step()
    del optimizer.found_inf
    assert model[1].updates.item() == updates
    assert counted(model[1]) == 0


def test_a_fused_optimizer_under_a_scaler():
    model = make_model()
    optimizer, scaler = make_adam(model, fused=True), torch.amp.GradScaler("cpu")
    attach(model, optimizer)
    for overflow in (True, False, True, False):
        scaled_step(model, optimizer, scaler, overflow=overflow, zero="first")
    assert model[1].updates.item() == 2


# Revival and the optimizer's moments


def test_a_revived_code_takes_over_the_moments_of_its_neighbour():
    codes = torch.tensor([[-1.0, 0, 0, 0], [1.0, 0, 0, 0], [90.0] * 4])
    vq = place(SoftVQ(3, 4, temperature=Temperature(gradient=0.3)), codes)
    model = nn.Sequential(nn.Identity(), vq)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.0)
    attach(model, optimizer)
    backward(model)
    optimizer.step()
    vq.updates.fill_(20)
    vq.hits.copy_(torch.tensor([1.5, 1.5, 0.0]))
    optimizer.zero_grad()
    backward(model)
    optimizer.step()
    donor = int((vq.codebook[2] - vq.codebook[:2]).square().sum(-1).argmin())
    moments = optimizer.state[vq.codebook]
    assert vq.codebook[2].abs().max() < 3
    assert moments["exp_avg"][2].any()
    assert torch.equal(moments["exp_avg"][2], moments["exp_avg"][donor])
    assert torch.equal(moments["exp_avg_sq"][2], moments["exp_avg_sq"][donor])


# Ending it


def test_a_loss_that_is_left_out_is_told_of_once():
    """Where codes have no other gradient; those of SoftVQ have the reconstruction's too."""
    model = nn.Sequential(nn.Linear(4, 4), HardVQ(8, 4, estimator="ste", codebook="gradient"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    attach(model, optimizer)

    def step(*, whole):
        out = model(waves(64, 4))
        loss = out.quantized.square().mean()
        optimizer.zero_grad()
        (loss + out.loss if whole else loss).backward()
        optimizer.step()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CodebookWarning)
        warnings.filterwarnings("error", "No gradient", CodebookWarning)
        for whole in (True, True, True, True, False, False, True, False, False):
            step(whole=whole)
        model[1].codebook.requires_grad_(False)
        step(whole=False)
        model[1].codebook.requires_grad_(True)
        step(whole=False)
        step(whole=False)
        with pytest.raises(CodebookWarning, match=r"add out\.loss to the model's"):
            step(whole=False)
        for _ in range(4):
            step(whole=False)


def test_detach_stops_everything():
    model = make_model()
    optimizer = make_adam(model)
    zero_grad = optimizer.zero_grad
    handle = attach(model, optimizer)
    assert optimizer.zero_grad != zero_grad
    handle.detach()
    assert optimizer.zero_grad == zero_grad
    backward(model)
    optimizer.step()
    assert model[1].updates.item() == 0
    assert counted(model[1]) == 64
    assert handle.quantizers == []
    handle.detach()


def test_detach_under_a_later_patch_of_zero_grad_goes_quiet():
    model = make_model()
    optimizer = make_adam(model)
    handle = attach(model, optimizer)
    inner = optimizer.zero_grad
    optimizer.zero_grad = lambda set_to_none=True: inner(set_to_none)
    handle.detach()
    for _ in range(2):
        backward(model)
        optimizer.zero_grad()
    assert model[0].weight.grad is None
    assert counted(model[1]) == 128


def test_attaching_again_does_not_update_twice():
    model = make_model()
    optimizer = make_adam(model)
    zero_grad = optimizer.zero_grad
    first = attach(model, optimizer)
    second = attach(model, optimizer)
    backward(model)
    optimizer.step()
    assert model[1].updates.item() == 1
    assert first.quantizers == []
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([1e-3, 1e-2])
    first.detach()
    second.detach()
    assert optimizer.zero_grad == zero_grad


def test_attaching_to_another_optimizer_moves_the_quantizer():
    """As for a second phase of training, where the handle of the first is long gone."""
    model = make_model(HardVQ(16, 4))
    old, new = make_adam(model), make_adam(model)
    attach(model, old)
    attach(model, new)
    backward(model)
    old.step()
    assert model[1].updates.item() == 0
    new.step()
    assert model[1].updates.item() == 1


def test_a_copy_of_an_attached_model_is_attached_to_nothing():
    model = make_model()
    optimizer = make_adam(model)
    attach(model, optimizer)
    twin = copy.deepcopy(model)
    assert twin[1]._updates is None, "the optimizer was copied along"
    fresh = make_adam(twin)
    attach(twin, fresh)
    for each in (model, twin):
        backward(each)
    optimizer.step()
    assert (model[1].updates.item(), twin[1].updates.item()) == (1, 0)
    fresh.step()
    assert (model[1].updates.item(), twin[1].updates.item()) == (1, 1)


# Bad input


def attach_after_a_scheduler():
    model = make_model()
    optimizer = make_adam(model)
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    attach(model, optimizer)


def attach_without_the_codebook():
    model = make_model()
    attach(model, torch.optim.Adam(model[0].parameters()))


def attach_without_a_quantizer():
    model = nn.Linear(2, 2)
    attach(model, make_adam(model))


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("call", "match"),
    [
        (attach_after_a_scheduler, "already has a scheduler.*attach.*first"),
        (attach_without_the_codebook, r"optimizer does not hold 1 of the model's 1 codebooks"),
        (attach_without_a_quantizer, r"model \(Linear\) holds no quantizer of softvq"),
        (lambda: attach(make_model(), object()), "optimizer must be a torch.optim.*got object"),
    ],
    ids=["scheduler", "codebook", "quantizer", "optimizer"],
)
def test_what_cannot_be_attached_is_refused(call, match):
    with pytest.raises(ValueError, match=match):
        call()


@pytest.mark.bad_input
@pytest.mark.parametrize(
    "rate", ["fast", "x", "10 times", 0, -1.0, "0x", "-2x", float("nan"), True]
)
def test_bad_rates_are_refused_before_anything_changes(rate):
    model = make_model()
    optimizer = make_adam(model)
    zero_grad = optimizer.zero_grad
    with pytest.raises(ValueError, match=r"codebook_lr must be .*; got"):
        attach(model, optimizer, codebook_lr=rate)
    assert len(optimizer.param_groups) == 1
    assert optimizer.zero_grad == zero_grad
