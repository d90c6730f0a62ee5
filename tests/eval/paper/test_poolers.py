import math

import pytest
import torch

from eval.paper.poolers import DIM, LINE, NAMES, NUM, budget, make_pooler
from softvq import Temperature
from tests.contracts.quantizer import waves

OPTIONS = Temperature(gradient=0.5, prototypes=0.3, unit="absolute")


def make(name, *, classes=5):
    torch.manual_seed(0)
    made = make_pooler(name, num_classes=classes, centres=waves(NUM, DIM), options=OPTIONS, seed=0)
    with torch.no_grad():
        made(waves(3, 9, DIM), torch.ones(3, 9, dtype=torch.bool))  # prototypes start
        for key, held in made.named_parameters():
            if key.endswith("gate"):
                held.fill_(1.0)
    return made.eval()


@pytest.mark.parametrize("classes", [2, 5])
@pytest.mark.parametrize("name", [name for name in NAMES if name != LINE])
def test_all_but_the_line_have_about_the_same_number_of_parameters(name, classes):
    count = sum(parameter.numel() for parameter in make(name, classes=classes).parameters())
    assert count == pytest.approx(budget(classes), rel=0.01)


@pytest.mark.parametrize("name", NAMES)
def test_padding_changes_no_logit(name):
    model, z = make(name), waves(2, 6, DIM, phase=1.0)
    padded = torch.cat([z, torch.full((2, 4, DIM), 7.0)], 1)
    mask = torch.arange(10).repeat(2, 1) < 6
    expected, _ = model(z, torch.ones(2, 6, dtype=torch.bool))
    logits, _ = model(padded, mask)
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_learns_from_the_classes(name):
    model = make(name).train()
    mask = torch.arange(9).repeat(3, 1) < 7
    logits, loss = model(waves(3, 9, DIM, phase=1.0), mask)
    (torch.nn.functional.cross_entropy(logits, torch.tensor([0, 1, 2])) + loss).backward()
    silent = [key for key, held in model.named_parameters() if held.grad is None]
    assert silent == []
    assert all(math.isfinite(float(held.grad.sum())) for held in model.parameters())
