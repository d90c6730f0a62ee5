"""A readout of prototypes behind a Hugging Face encoder: which prototype each word belongs to.

    python samples/readout_hugging_face.py [--steps 150] [--out .]

Wants transformers and matplotlib. Put your encoder and texts in the place of the toys.
"""

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from transformers import BertConfig, BertModel

import softvq
from softvq.explain import explain_shares

parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
parser.add_argument("--steps", type=int, default=150)
parser.add_argument("--out", type=Path, default=Path())
args = parser.parse_args()
WORDS = ["[pad]", "the", "a", "film", "plot", "scene", "was", "is", "quite", "really"]
WORDS += ["dull", "awful", "slow", "sad", "great", "lovely", "bright", "funny"]


def draw(num):
    """Sentences of 6 or 7 words, their mask and whether they praise."""
    labels, tokens = torch.randint(2, (num,)), torch.randint(1, 10, (num, 7))
    tokens[torch.arange(num), torch.randint(6, (num,))] = 10 + torch.randint(4, (num,)) + 4 * labels
    tokens[torch.rand(num) < 0.5, 6] = 0
    return tokens, (tokens > 0).long(), labels


torch.manual_seed(0)
encoder = BertModel(BertConfig(hidden_size=64, num_attention_heads=4, num_hidden_layers=2))
schedule = softvq.Temperature(anneal_steps=args.steps)
readout = softvq.DDCLReadout(dim=64, num_prototypes=8, temperature=schedule)
model = softvq.with_readout(encoder, readout)
head = torch.nn.Linear(64, 2)
optimizer = torch.optim.AdamW([*model.parameters(), *head.parameters()], lr=1e-3)
softvq.attach(model, optimizer)
for _ in range(args.steps):
    tokens, mask, labels = draw(64)
    out = model(input_ids=tokens, attention_mask=mask)  # padding is dropped from the readout, too
    optimizer.zero_grad()
    (torch.nn.functional.cross_entropy(head(out.mean), labels) + out.loss).backward()
    optimizer.step()
tokens, mask, labels = draw(200)
model.eval()
with torch.no_grad():
    right = head(model(input_ids=tokens, attention_mask=mask).mean).argmax(1) == labels
    words = encoder(input_ids=tokens, attention_mask=mask).last_hidden_state
print(f"{right.float().mean():.0%} right on new sentences; loss {out.loss:.3f}")
shares = explain_shares(readout, words, mask=mask.bool()).tokens[:, 0]  # (200, 7, 8)
figure, axes = plt.subplots(1, 4, figsize=(8, 2.6), layout="constrained")
for axis, sentence, share in zip(axes, tokens[:4], shares[:4], strict=True):
    axis.imshow(share.numpy(), vmin=0, vmax=1, cmap="Greens")
    axis.set_yticks(range(7), [WORDS[word] for word in sentence])
args.out.mkdir(parents=True, exist_ok=True)
figure.savefig(args.out / "readout_hugging_face.png", dpi=80)
