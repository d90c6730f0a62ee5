"""A stack of prototypes behind a small vision transformer: CIFAR-10, patches of 4 x 4 pixels."""

from pathlib import Path

import torch
from einops import rearrange
from torch import Tensor, nn

from eval.paper.sizes import Sizes
from eval.paper.store import Store, draw_bars, make_table
from softvq import DDCLAttention, DDCLLevel, DDCLStack, Temperature, attach, with_readout
from softvq.data import load_images
from softvq.data.images import ImageSet, to_model_range
from softvq.explain import PrototypeNeighbours, explain_shares
from softvq.explain.page import PictureExample, PrototypeCard, write_page

DIM, DEPTH, HEADS, RATE, BATCH = 64, 2, 4, 1e-3, 50
PROTOTYPES = (16, 8)
METHODS = ("mean of patches", "DDCLStack, 64 -> 16 -> 4 tokens")
CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


class PatchEncoder(nn.Module):
    """Patches in blocks of 2 x 2, so that four in a row are neighbours; a transformer over them."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Linear(48, DIM)
        self.places = nn.Parameter(0.02 * torch.randn(64, DIM))
        layer = nn.TransformerEncoderLayer(
            DIM, HEADS, 2 * DIM, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, DEPTH, enable_nested_tensor=False)

    def forward(self, pictures: Tensor) -> Tensor:
        """(B, 3, 32, 32) to (B, 64, D)."""
        return self.layers(self.patches(to_blocks(pictures)) + self.places)


class Classifier(nn.Module):
    """The encoder, a stack or the mean behind it, and a line to the classes."""

    def __init__(self, method: str, *, steps: int, seed: int) -> None:
        super().__init__()
        options = Temperature(gradient=0.5, prototypes=(0.3, 0.1), anneal_steps=steps)
        levels = [
            DDCLLevel(
                DDCLAttention(DIM, num, heads=2, temperature=options, seed=10 * seed + place),
                window=4,
            )
            for place, num in enumerate(PROTOTYPES)
        ]
        self.stacked = method != METHODS[0]
        self.encoder, self.stack = PatchEncoder(), DDCLStack(levels)
        self.body = with_readout(self.encoder, self.stack) if self.stacked else self.encoder
        self.norm = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, 10)

    def forward(self, pictures: Tensor) -> tuple[Tensor, Tensor, list[dict[str, float]]]:
        """Logits, the stack's loss, and each level's split."""
        out = self.body(pictures)
        if not self.stacked:
            return self.head(self.norm(out.mean(1))), out.new_zeros(()), []
        splits = [
            {name: float(level.stats[name]) for name in ("ols", "spread", "distortion")}
            for level in out.levels
        ]
        return self.head(self.norm(out.mean)), out.loss, splits


def to_blocks(pictures: Tensor) -> Tensor:
    """Patches of 4 x 4 pixels as rows, those of a block of 2 x 2 after each other.

    Example:
        >>> to_blocks(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 64, 48])
    """
    return rearrange(
        pictures, "b c (y j h) (x i w) -> b (y x j i) (c h w)", j=2, i=2, h=4, w=4, y=4, x=4
    )


def run(sizes: Sizes, folder: Path) -> None:
    """Both methods; writes ``pictures.json``, ``.md``, ``.png`` and ``explain-pictures.html``."""
    store = Store(folder, "pictures", sizes=sizes.take("pictures", "picture_epochs"))
    train_set, test_set = load_images("cifar10", "train"), load_images("cifar10", "test")
    rows = []
    for method in METHODS:
        for seed in range(sizes.seeds):
            page = folder / "explain-pictures.html" if seed == 0 else None

            def make(method: str = method, seed: int = seed, page: Path | None = page) -> dict:
                return train(method, (train_set, test_set), sizes=sizes, seed=seed, page=page)

            rows.append(store.row({"set": "CIFAR-10", "method": method, "seed": seed}, make))
    store.write_table(
        [
            make_table(
                rows,
                title=f"CIFAR-10, {sizes.pictures[0]} pictures, {sizes.picture_epochs} epochs: "
                f"accuracy on {sizes.pictures[1]} unseen ones, and V / L_q of both levels",
                by=["method"],
                measures={"accuracy": ".3f", "V_share_level_1": ".3f", "V_share_level_2": ".3f"},
            )
        ]
    )
    store.write_figure(draw_bars(rows, group="set", by="method", measure="accuracy"))


def train(
    method: str,
    sets: tuple[ImageSet, ImageSet],
    *,
    sizes: Sizes,
    seed: int,
    page: Path | None,
) -> dict:
    """Train one classifier; the stack of seed 0 also leaves a page."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    (num_train, num_test), (train_set, test_set) = sizes.pictures, sets
    steps = sizes.picture_epochs * -(-num_train // BATCH)
    model = Classifier(method, steps=steps, seed=seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    if model.stacked:
        attach(model, optimizer)
    pictures, labels = take(train_set, num_train)
    for _ in range(sizes.picture_epochs):
        for part in torch.randperm(num_train, generator=generator).split(BATCH):
            logits, loss, _ = model.train()(pictures[part])
            optimizer.zero_grad()
            (nn.functional.cross_entropy(logits, labels[part]) + loss).backward()
            optimizer.step()
    pictures, labels = take(test_set, num_test)
    with torch.inference_mode():
        logits, _, splits = model.eval()(pictures)
    row = {"accuracy": float((logits.argmax(-1) == labels).float().mean())}
    for place, split in enumerate(splits, 1):
        row[f"V_share_level_{place}"] = split["spread"] / split["distortion"]
    if page is not None and model.stacked:
        write_explanations(model, test_set, page)
    return row


def take(images: ImageSet, num: int) -> tuple[Tensor, Tensor]:
    """The first pictures in [-1, 1], and their labels."""
    assert images.labels is not None, "CIFAR-10 has labels"
    return to_model_range(images.batch(torch.arange(num))), images.labels[:num]


@torch.inference_mode()
def find_patches(model: Classifier, images: ImageSet, *, num: int = 8) -> list[list[Tensor]]:
    """The patches nearest to each prototype of the lower level's first head, of 100 pictures."""
    bytes_ = images.batch(torch.arange(min(100, len(images))))
    head = model.stack.attentions[0].prototypes.quantizers[0]
    found = PrototypeNeighbours(head, num=num)
    found.update(model.encoder(to_model_range(bytes_))[..., : head.dim])
    patches = rearrange(to_blocks(bytes_), "b n (c h w) -> b n c h w", c=3, h=4)
    return [[patches[each.item, each.position] for each in near] for near in found.tokens()]


@torch.inference_mode()
def write_explanations(model: Classifier, images: ImageSet, path: Path) -> None:
    """Which prototype of the lower level owns which patch of a few test pictures."""
    bytes_ = images.batch(torch.arange(12))
    tokens = model.encoder(to_model_range(bytes_))
    shares = explain_shares(model.stack.attentions[0], tokens)
    rows = rearrange(shares.tokens[:, 0], "b (y x j i) k -> b (y j x i) k", y=4, x=4, j=2, i=2)
    labels = images.labels
    assert labels is not None, "CIFAR-10 has labels"
    examples = [
        PictureExample(
            title=f"{CLASSES[int(labels[place])]}, test picture {place}",
            picture=bytes_[place],
            grid=(8, 8),
            shares=rows[place],
        )
        for place in range(len(bytes_))
    ]
    use = shares.tokens[:, 0].mean((0, 1)).tolist()
    write_page(
        path,
        examples,
        prototypes=[
            PrototypeCard(share=share, patches=patches)
            for share, patches in zip(use, find_patches(model, images), strict=True)
        ],
        title="Which prototype owns which patch",
        note="A small vision transformer with a stack of two levels, trained on CIFAR-10; first "
        "head of the lower level; pictures that training never saw.",
    )
