"""Give the VQModel of diffusers a soft codebook, train it, and ship it without softvq.

    python samples/swap_diffusers.py [--steps 300] [--source textures] [--out swapped]

Wants the extra `images`, diffusers and torchvision. Writes the model, as diffusers saves it, and
`swap_diffusers.png`: pictures, and what hard codes make of them before and after.
"""

import argparse
from pathlib import Path

import torch
from diffusers import VQModel
from torchvision.utils import make_grid, save_image

import softvq
from softvq.data import load_images, to_model_range

parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
parser.add_argument("--steps", type=int, default=300)
parser.add_argument("--source", default="cifar10", help="or textures, which need no download")
parser.add_argument("--out", type=Path, default=Path("swapped"))
args = parser.parse_args()


@torch.no_grad()
def look(model, pictures, name):
    """Print quality and use of hard codes; give the reconstructions."""
    decoded = model.eval()(pictures).sample.clamp(-1, 1)
    indices = model.quantize(model.encode(pictures).latents)[2][2]
    psnr = (10 * torch.log10(4 / (decoded - pictures).square().mean((1, 2, 3)))).mean()
    print(f"{name}: hard PSNR {psnr:.2f} dB, {indices.unique().numel()} of 256 codes used")
    return decoded


torch.manual_seed(0)
images = load_images(args.source, "train", num_images=10_000)
test = to_model_range(load_images(args.source, "test", num_images=64).batch(torch.arange(64)))
kinds = {"down_block_types": ["DownEncoderBlock2D"] * 3, "up_block_types": ["UpDecoderBlock2D"] * 3}
sizes = {"block_out_channels": (32, 32, 64), "num_vq_embeddings": 256, "latent_channels": 16}
model = VQModel(**kinds, **sizes, norm_num_groups=8, mid_block_add_attention=False)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
temperature = softvq.Temperature(anneal_steps=args.steps)
print(softvq.swap(model, codes="restart", temperature=temperature))  # a trained one keeps its own
softvq.attach(model, optimizer)
before = look(model, test, "before")
model.train()
for _ in range(args.steps):
    x = to_model_range(images.batch(torch.randint(len(images), (32,))))
    out = model(x)
    optimizer.zero_grad()
    ((out.sample - x).square().mean() + out.commit_loss).backward()
    optimizer.step()
after = look(model, test, "after")
softvq.restore(model)
model.save_pretrained(args.out / "model")
again = look(VQModel.from_pretrained(args.out / "model"), test, "loaded by diffusers alone")
assert torch.equal(again, after), "what ships must be what was measured"
rows = torch.stack([test[:8], before[:8], after[:8]]).flatten(0, 1)
save_image(make_grid(rows / 2 + 0.5, nrow=8, padding=1), args.out / "swap_diffusers.png")
