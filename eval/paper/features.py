"""Token features of a frozen MiniLM, kept on disk: what the readouts of the experiments read.

n texts, L tokens at most, D features.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Bool, Float, Int
from safetensors.torch import load_file, save
from torch import Tensor
from transformers import AutoModel, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from eval.paper.sources import find_source
from eval.paper.texts import TextSet
from softvq.data.fetch import cache_folder
from softvq.files import replacing

BATCH = 32


@dataclass(frozen=True, kw_only=True)
class TokenSet:
    """Features of all tokens of a text set, and what they belong to.

    Attributes:
        tokens: Half-precision features, zeros where there is no token.
        mask: True where there is a token.
        ids: The tokenizer's numbers.
        labels: Class of each text.
        classes: Names of the classes.
        num_train: Texts for training, which come first.
    """

    tokens: Float[Tensor, "n l d"]
    mask: Bool[Tensor, "n l"]
    ids: Int[Tensor, "n l"]
    labels: Int[Tensor, " n"]
    classes: tuple[str, ...]
    num_train: int


def load_encoder() -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """MiniLM (6 layers, 384 features) and its tokenizer, from the package that carries them."""
    folder = str(find_source("minilm"))
    encoder = AutoModel.from_pretrained(folder, local_files_only=True, use_safetensors=True)
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    return encoder.float(), tokenizer


def load_features(texts: TextSet, *, max_tokens: int, cache: Path | None = None) -> TokenSet:
    """Encode the texts, or read what an earlier call has kept.

    Args:
        texts: The set.
        max_tokens: L; longer texts are cut.
        cache: Folder of the cache; None means softvq's.

    Returns:
        The features.
    """
    key = json.dumps([texts.texts, max_tokens]).encode()
    name = f"{texts.name}-{hashlib.sha256(key).hexdigest()[:16]}.safetensors"
    path = cache_folder(cache) / "minilm" / name
    if not path.exists():
        print(f"Encoding {len(texts.texts)} texts of {texts.name} by MiniLM.", flush=True)
        encoder, tokenizer = load_encoder()
        encoded = encode(encoder, tokenizer, texts.texts, max_tokens=max_tokens)
        with replacing(path) as beside:
            beside.write_bytes(save(encoded))
    held = load_file(path)
    return TokenSet(
        tokens=held["tokens"],
        mask=held["mask"].bool(),
        ids=held["ids"],
        labels=torch.tensor(texts.labels),
        classes=texts.classes,
        num_train=texts.num_train,
    )


@torch.inference_mode()
def encode(
    encoder: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: tuple[str, ...],
    *,
    max_tokens: int,
) -> dict[str, Tensor]:
    """Features of all tokens, texts of like length together so that little is padding."""
    lists = tokenizer(list(texts), truncation=True, max_length=max_tokens)["input_ids"]
    order = sorted(range(len(texts)), key=lambda place: len(lists[place]))
    longest = max(len(each) for each in lists)
    ids = torch.zeros(len(texts), longest, dtype=torch.int64)
    mask = torch.zeros(len(texts), longest, dtype=torch.uint8)
    for place, each in enumerate(lists):
        ids[place, : len(each)] = torch.tensor(each)
        mask[place, : len(each)] = 1
    tokens = torch.zeros(len(texts), longest, encoder.config.hidden_size, dtype=torch.float16)
    for start in range(0, len(texts), BATCH):
        places = torch.tensor(order[start : start + BATCH])
        length = int(mask[places].sum(1).max())
        kept = mask[places, :length]
        out = encoder.eval()(input_ids=ids[places, :length], attention_mask=kept.long())
        tokens[places, :length] = (out.last_hidden_state * kept[..., None]).half()
    return {"tokens": tokens, "mask": mask, "ids": ids}
