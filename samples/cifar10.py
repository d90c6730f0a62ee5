"""The bundled VQ-VAE on CIFAR-10 in about three minutes of two CPU cores, measured by hard codes.

    python samples/cifar10.py [--steps 400] [--source textures] [--out .]

Wants the extra `images` and torchvision. Writes `model.safetensors` and `cifar10.png`: test
pictures, what hard codes make of them, and the difference, four times as strong.
"""

import argparse
from pathlib import Path

import torch
from torchvision.utils import make_grid, save_image

import softvq
from softvq.data import load_images, to_model_range
from softvq.measures import CodebookUse, Psnr
from softvq.models import VQVAE, VQVAEConfig, load_model, save_model

parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
parser.add_argument("--steps", type=int, default=400)
parser.add_argument("--source", default="cifar10", help="or textures, which need no download")
parser.add_argument("--out", type=Path, default=Path())
args = parser.parse_args()

torch.manual_seed(0)
train, test = load_images(args.source, "train"), load_images(args.source, "test")
schedule = softvq.Temperature(anneal_steps=args.steps)
vq = softvq.SoftVQ(num_codes=512, dim=64, layout="channels_first", temperature=schedule)
model = VQVAE(vq, VQVAEConfig(hidden=64))
optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
softvq.attach(model, optimizer)
decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps)
for step in range(args.steps):
    images = to_model_range(train.batch(torch.randint(len(train), (64,))))
    out = model(images)
    error = (out.reconstruction - images).square().mean()
    optimizer.zero_grad()
    (error + out.quantizer.loss).backward()
    optimizer.step()
    decay.step()
    if step % 50 == 0:
        print(
            f"step {step}: error {error:.4f}, {int(out.quantizer.stats['dead_codes'])} dead codes"
        )

args.out.mkdir(parents=True, exist_ok=True)
save_model(model, args.out / "model.safetensors")
model = load_model(args.out / "model.safetensors").eval()
quality, use = Psnr(), CodebookUse(512)
with torch.no_grad():
    for part in torch.arange(min(len(test), 1000)).split(100):
        images = to_model_range(test.batch(part))
        indices = model.encode(images)
        use.update(indices)
        quality.update(images, model.decode(indices).clamp(-1, 1))
    decoded = model.decode(indices).clamp(-1, 1)
print(f"hard PSNR {quality.compute().mean_over_images:.2f} dB, use {use.compute().use_hard:.0%}")
rows = torch.stack([images[:8], decoded[:8], 4 * (decoded - images)[:8]]).flatten(0, 1)
save_image(make_grid(rows.clamp(-1, 1) / 2 + 0.5, nrow=8, padding=1), args.out / "cifar10.png")
