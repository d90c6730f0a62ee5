"""Small quantizers of each kind, and a loop that trains a model of one.

B batch, D = 4 features, K = 8 codes.
"""

from dataclasses import replace

import torch
from torch import nn

from softvq import HardVQ, SoftVQ, attach
from tests.contracts.quantizer import waves
from tests.nn.members import COOL

KINDS = {
    "soft": lambda: SoftVQ(8, 4, temperature=COOL),
    "warming": lambda: SoftVQ(8, 4, temperature=replace(COOL, warmup_share=0.04)),  # two steps
    "averages": lambda: HardVQ(8, 4),
    "gradient": lambda: HardVQ(8, 4, codebook="gradient"),
}


def train_on(model, optimizer, *, steps=1):
    for step in range(steps):
        x = waves(64, 4, phase=float(step))
        out = model(x)
        optimizer.zero_grad()
        ((out.quantized - x).square().mean() + out.loss).backward()
        optimizer.step()


def make_attached(kind):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), KINDS[kind]())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    attach(model, optimizer)
    return model, optimizer
