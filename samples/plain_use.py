"""A soft codebook on points of the plane: where its codes go, and what it says of them.

    python samples/plain_use.py [--steps 300] [--out .]

Wants matplotlib (extra `eval`). Writes `plain_use.png`: points, codes at the start and at the end.
"""

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import torch

import softvq

parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
parser.add_argument("--steps", type=int, default=300)
parser.add_argument("--out", type=Path, default=Path())
args = parser.parse_args()

torch.manual_seed(0)


def spiral(num):
    """Points of two arms, in different number."""
    angle = 9 * torch.rand(num).sqrt()
    turned = angle + torch.pi * (torch.rand(num) < 0.3)
    return torch.stack([angle * turned.cos(), angle * turned.sin()], 1) + 0.2 * torch.randn(num, 2)


schedule = softvq.Temperature(anneal_steps=args.steps, warmup_share=0)
vq = softvq.SoftVQ(num_codes=64, dim=2, temperature=schedule)
optimizer = torch.optim.Adam(vq.parameters(), lr=1e-3)
softvq.attach(vq, optimizer)  # the codes learn at ten times that rate
vq.start_(spiral(64))  # from few points, so that there is something to do
first = vq.codebook.detach().clone()
for step in range(args.steps):
    out = vq(spiral(1024))
    optimizer.zero_grad()
    out.loss.backward()
    optimizer.step()
    if step % 100 == 99 or step == args.steps - 1:
        named = ("distortion", "spread", "prototype_entropy", "perplexity_hard_batch", "dead_codes")
        print(f"step {step + 1}: " + ", ".join(f"{key} {out.stats[key]:.3g}" for key in named))

vq.eval()
test = spiral(4000)
found = vq(test)
assert torch.equal(vq.codes(found.indices), found.quantized)
error = (found.quantized - test).square().sum(1).mean()
print(f"hard codes on new points: error {error:.3f}, {found.indices.unique().numel()} of 64 used")

figure, axes = plt.subplots(1, 2, figsize=(7, 3.5), layout="constrained")
for axis, codes, title in zip(axes, (first, vq.codebook.detach()), ("start", "end"), strict=True):
    colours = torch.cdist(test, codes).argmin(1) * 37 % 20
    axis.scatter(*test.T, c=colours, cmap="tab20", s=1, alpha=0.5)
    axis.scatter(*codes.T, c="black", s=10)
    axis.set(title=f"codes at the {title}", xticks=[], yticks=[], aspect="equal")
args.out.mkdir(parents=True, exist_ok=True)
figure.savefig(args.out / "plain_use.png", dpi=80)
