import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR, StepLR

from softvq import SoftVQ
from softvq.callbacks.scheduled import attach_scheduled


@pytest.fixture
def model():
    return nn.Sequential(nn.Linear(4, 4), SoftVQ(8, 4), nn.Linear(4, 4))


def rates(model, optimizer):
    """Rate of each parameter, by name."""
    found = {id(p): g["lr"] for g in optimizer.param_groups for p in g["params"]}
    return {name: found[id(p)] for name, p in model.named_parameters()}


def test_the_codebooks_follow_the_curve_of_the_group_they_leave(model):
    slow, fast = list(model[0].parameters()), [*model[1].parameters(), *model[2].parameters()]
    optimizer = torch.optim.SGD([{"params": slow}, {"params": fast, "lr": 2.0}], lr=1.0)
    scheduler = LambdaLR(optimizer, [lambda step: 1.0, lambda step: 1 / (step + 1)])
    optimizer.step()
    scheduler.step()
    updates = attach_scheduled(model, optimizer, schedulers=[scheduler])
    expected = {"0.weight": 1.0, "0.bias": 1.0, "1.codebook": 10.0, "2.weight": 1.0, "2.bias": 1.0}
    assert rates(model, optimizer) == expected
    optimizer.step()
    scheduler.step()
    assert rates(model, optimizer)["1.codebook"] == pytest.approx(20 / 3)
    assert rates(model, optimizer)["0.weight"] == 1.0
    assert scheduler.get_last_lr() == [group["lr"] for group in optimizer.param_groups]
    assert updates.quantizers == [model[1]]


def test_a_group_of_codebooks_alone_is_replaced_in_the_scheduler_too(model):
    groups = [{"params": model[1].parameters()}, {"params": model[0].parameters()}]
    groups.append({"params": model[2].parameters()})
    optimizer = torch.optim.SGD(groups, lr=1.0)
    scheduler = LambdaLR(optimizer, [lambda step, k=k: 1 / (1 + k * step) for k in range(3)])
    attach_scheduled(model, optimizer, schedulers=[scheduler])
    optimizer.step()
    scheduler.step()
    found = rates(model, optimizer)
    assert (found["1.codebook"], found["0.weight"]) == (10.0, 0.5)
    assert found["2.weight"] == pytest.approx(1 / 3)


def test_without_a_scheduler_it_is_attach(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    attach_scheduled(model, optimizer, schedulers=[])
    assert rates(model, optimizer)["1.codebook"] == 10.0
    LambdaLR(optimizer, lambda step: 1.0)  # nothing is left behind that would confuse it
    assert {group["initial_lr"] for group in optimizer.param_groups} == {1.0, 10.0}


@pytest.mark.bad_input
def test_a_scheduler_of_another_kind_is_refused_and_nothing_has_changed(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = StepLR(optimizer, 2)
    with pytest.raises(ValueError, match=r"StepLR was made before.*softvq\.attach"):
        attach_scheduled(model, optimizer, schedulers=[scheduler])
    assert len(optimizer.param_groups) == 1


@pytest.mark.bad_input
def test_a_refusal_of_attach_leaves_the_groups_as_they_were():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = LambdaLR(optimizer, lambda step: 0.5)
    before = {k: v for k, v in optimizer.param_groups[0].items() if k != "params"}
    with pytest.raises(ValueError, match="holds no quantizer"):
        attach_scheduled(model, optimizer, schedulers=[scheduler])
    after = {k: v for k, v in optimizer.param_groups[0].items() if k != "params"}
    assert after == before
