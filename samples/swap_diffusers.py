"""Give the VQModel of diffusers a soft codebook, train it on CIFAR-10, and ship it without softvq.

    python samples/swap_diffusers.py [--steps 300] [--out swapped]

Wants the extra `images` and diffusers. Writes the model, as diffusers saves it, and `pictures.png`:
pictures, and what hard codes make of them before and after.
"""

import argparse
from pathlib import Path

import torch
from diffusers import VQModel
from PIL import Image
from torchvision.utils import make_grid

import softvq
from softvq.data import from_model_range, load_images, to_model_range


def build():
    """A small VQModel, 8 x 8 codes a picture, as anybody might have it."""
    return VQModel(
        block_out_channels=(32, 32, 64),
        down_block_types=("DownEncoderBlock2D",) * 3,
        up_block_types=("UpDecoderBlock2D",) * 3,
        norm_num_groups=8,
        num_vq_embeddings=256,
        latent_channels=16,
        mid_block_add_attention=False,
    )


@torch.no_grad()
def look(model, pictures, name):
    """Print quality and use of hard codes; give the reconstructions."""
    model.eval()
    decoded = model(pictures).sample.clamp(-1, 1)
    indices = model.quantize(model.encode(pictures).latents)[2][2]
    error = (decoded - pictures).square().mean((1, 2, 3))
    psnr = (10 * torch.log10(4 / error)).mean()
    print(f"{name}: hard PSNR {psnr:.2f} dB, {indices.unique().numel()} of 256 codes used")
    model.train()
    return decoded


def main():
    """Swap, train, restore, save, load."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--source", default="cifar10", help="or textures, which need no download")
    parser.add_argument("--out", type=Path, default=Path("swapped"))
    args = parser.parse_args()
    torch.manual_seed(0)
    images = load_images(args.source, "train", num_images=10_000)
    test = to_model_range(load_images(args.source, "test", num_images=64).batch(torch.arange(64)))

    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    temperature = softvq.Temperature(anneal_steps=args.steps)
    # The model is fresh: codes are placed on its first batch. A trained one keeps its own.
    print(softvq.swap(model, codes="restart", temperature=temperature))
    softvq.attach(model, optimizer)
    before = look(model, test, "before")
    for step in range(args.steps):
        x = to_model_range(images.batch(torch.randint(len(images), (32,))))
        out = model(x)
        loss = (out.sample - x).square().mean() + out.commit_loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.4f}")
    after = look(model, test, "after")

    softvq.restore(model)
    model.save_pretrained(args.out / "model")
    loaded = VQModel.from_pretrained(args.out / "model")
    again = look(loaded, test, f"loaded by diffusers, {type(loaded.quantize).__name__}")
    assert torch.equal(again, after), "what ships must be what was measured"
    rows = torch.stack([test[:8], before[:8], after[:8]]).flatten(0, 1)
    picture = from_model_range(make_grid(rows, nrow=8, padding=1))
    Image.fromarray(picture.movedim(0, -1).numpy()).save(args.out / "pictures.png")


if __name__ == "__main__":
    main()
