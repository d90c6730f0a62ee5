"""Train a small VQ-VAE, export its tokens, train a tiny generator on them, and draw pictures.

    python samples/export_and_prior.py [--steps 400] [--source cifar10] [--out .]

Wants the extra `images` and torchvision. Writes `tokens/` and `export_and_prior.png`: pictures that
the generator drew. `python -m train.prior` is the generator to take in earnest.
"""

import argparse
from pathlib import Path

import torch
from torchvision.utils import save_image

import softvq
from softvq.data import load_images, to_model_range
from softvq.models import VQVAE, VQVAEConfig

parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
parser.add_argument("--steps", type=int, default=400, help="of either net")
parser.add_argument("--source", default="textures", help="or cifar10")
parser.add_argument("--out", type=Path, default=Path())
args = parser.parse_args()
torch.manual_seed(0)
images = load_images(args.source, "train", num_images=2000)
schedule = softvq.Temperature(anneal_steps=args.steps)
vq = softvq.SoftVQ(num_codes=64, dim=32, layout="channels_first", temperature=schedule)
model = VQVAE(vq, VQVAEConfig(dim=32, hidden=32))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
softvq.attach(model, optimizer)
for _ in range(args.steps):
    x = to_model_range(images.batch(torch.randint(len(images), (32,))))
    out = model(x)
    optimizer.zero_grad()
    ((out.reconstruction - x).square().mean() + out.quantizer.loss).backward()
    optimizer.step()

softvq.export_tokens(model.eval(), images, args.out / "tokens", specials=["bos"])
tokens = softvq.load_tokens(args.out / "tokens")
start = torch.full((len(tokens), 1), tokens.specials["bos"])
texts = torch.cat([start, tokens.batch(torch.arange(len(tokens))).tokens.flatten(1)], 1)
embed, head = torch.nn.Embedding(tokens.vocab_size, 64), torch.nn.Linear(128, tokens.num_codes)
memory = torch.nn.GRU(64, 128, batch_first=True)
prior = torch.nn.ModuleList([embed, memory, head])
optimizer = torch.optim.Adam(prior.parameters(), lr=3e-3)
for _ in range(args.steps):
    text = texts[torch.randint(len(texts), (64,))]
    logits = head(memory(embed(text[:, :-1]))[0])
    nats = torch.nn.functional.cross_entropy(logits.mT, text[:, 1:])
    optimizer.zero_grad()
    nats.backward()
    optimizer.step()
print(f"{nats.item():.2f} nats a token; without a generator {torch.tensor(64.0).log():.2f}")
drawn, state = start[:16], None
with torch.no_grad():
    for _ in range(texts.shape[1] - 1):
        found, state = memory(embed(drawn[:, -1:]), state)
        drawn = torch.cat([drawn, torch.multinomial(head(found[:, 0]).softmax(1), 1)], 1)
    pictures = tokens.decode(drawn[:, 1:].view(-1, *tokens.grid), model)
save_image(pictures / 2 + 0.5, args.out / "export_and_prior.png", nrow=8)
