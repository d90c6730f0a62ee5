"""A page of coloured text and pictures: which prototype owns which token, and what each one is.

Everything that comes from data is escaped. The page is one file without scripts. It needs the extra
``explain`` (jinja2, and pillow for pictures). N tokens, K prototypes.
"""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2
from jaxtyping import Float, UInt8
from PIL import Image
from torch import Tensor

from softvq.checks import check_count
from softvq.files import replacing

TEMPLATE = Path(__file__).with_name("page.html.j2")
GOLDEN = 137.508  # degrees: hues that follow each other are far apart, however many there are
LIGHTNESS = (50, 36, 66)  # of each eight prototypes; the ninth has nearly the hue of the first
FAINT, STRONG = 0.08, 0.62


@dataclass(frozen=True, kw_only=True)
class TextExample:
    """A text whose words are coloured.

    Attributes:
        title: Shown above it.
        words: One string a token, with the spaces that belong to it.
        shares: (N, K), of `softvq.explain.explain_shares`.
    """

    title: str
    words: Sequence[str]
    shares: Float[Tensor, "n k"]


@dataclass(frozen=True, kw_only=True)
class PictureExample:
    """A picture whose patches are coloured.

    Attributes:
        title: Shown above it.
        picture: (C, H, W) bytes, C of 1 or 3.
        grid: Patches down and across.
        shares: (N, K), patches row by row.
    """

    title: str
    picture: UInt8[Tensor, "c y x"]
    grid: tuple[int, int]
    shares: Float[Tensor, "n k"]


@dataclass(frozen=True, kw_only=True)
class PrototypeCard:
    """What is known of a prototype.

    Attributes:
        share: Its share of all tokens.
        tokens: Its nearest tokens, as text.
        patches: Its nearest tokens, as pictures: (C, H, W) bytes, C of 1 or 3.
        inputs: The inputs in which its share is largest, as text.
        note: A word of the reader's own, such as the class that it stands for.
    """

    share: float
    tokens: Sequence[str] = field(default_factory=list)
    patches: Sequence[UInt8[Tensor, "_c _y _x"]] = field(default_factory=list)
    inputs: Sequence[str] = field(default_factory=list)
    note: str = ""


def write_page(
    path: Path | str,
    examples: Sequence[TextExample | PictureExample],
    *,
    prototypes: Sequence[PrototypeCard],
    title: str,
    note: str = "",
) -> Path:
    """Write the page.

    Args:
        path: The file.
        examples: Texts and pictures in their order.
        prototypes: One card a prototype.
        title: Of the page.
        note: A sentence under the title: what model, what data.

    Returns:
        The path.

    Raises:
        ValueError: If an example's shares do not fit its tokens or the prototypes.

    Example:
        >>> import tempfile, torch
        >>> text = TextExample(title="<i>", words=["good "], shares=torch.tensor([[0.9, 0.1]]))
        >>> cards = [PrototypeCard(share=0.5)] * 2
        >>> file = Path(tempfile.mkdtemp()) / "page.html"
        >>> page = write_page(file, [text], prototypes=cards, title="One word").read_text()
        >>> "&lt;i&gt;" in page, "<i>" in page
        (True, False)
    """
    shown = [_show(example, num_prototypes=len(prototypes)) for example in examples]
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    html = template.render(
        title=title,
        note=note,
        examples=shown,
        cards=list(enumerate(prototypes)),
        colour=find_colour,
        encode=_encode,
    )
    with replacing(path) as beside:
        beside.write_text(html, encoding="utf-8")
    return Path(path)


def find_colour(prototype: int, share: float = 1.0) -> str:
    """The CSS colour of a prototype, as strong as its share.

    Example:
        >>> find_colour(0, 0.5)
        'hsl(210.0 85% 50% / 0.35)'
    """
    hue = (210 + GOLDEN * prototype) % 360
    strength = FAINT + (STRONG - FAINT) * min(max(share, 0.0), 1.0)
    lightness = LIGHTNESS[prototype // 8 % len(LIGHTNESS)]
    return f"hsl({hue:.1f} 85% {lightness}% / {strength:.2f})"


def _show(example: TextExample | PictureExample, *, num_prototypes: int) -> dict[str, Any]:
    """What the template needs of an example."""
    shares = example.shares.detach().float().cpu()
    rows, columns = 1, 1
    if isinstance(example, TextExample):
        num, kind = len(example.words), "words"
    else:
        rows, columns = (check_count("grid", size) for size in example.grid)
        num, kind = rows * columns, "patches"
    if tuple(shares.shape) != (num, num_prototypes):
        raise ValueError(
            f"shares of {example.title!r} must be ({num}, {num_prototypes}), its {kind} and the "
            f"prototypes; got {tuple(shares.shape)}."
        )
    tokens = [_describe(row) for row in shares]
    total = shares.mean(0).tolist() if num else [0.0] * num_prototypes
    shown = {"title": example.title, "total": list(enumerate(total)), "kind": kind}
    if isinstance(example, TextExample):
        pairs = zip(example.words, tokens, strict=True)
        return {**shown, "words": [{**_part(word), **token} for word, token in pairs]}
    patches = [tokens[start : start + columns] for start in range(0, num, columns)]
    return {**shown, "picture": _encode(example.picture), "patches": patches}


def _part(word: str) -> dict[str, str]:
    """The space before a word, which stays without colour, and the word."""
    text = word.lstrip()
    return {"before": word[: len(word) - len(text)], "text": text}


def _describe(row: Tensor) -> dict[str, Any]:
    """Colour, owner and full list of a token's shares; none for one that was masked."""
    if float(row.sum()) <= 0:
        return {"owner": None, "colour": "transparent", "hint": "not read"}
    ranked = row.sort(descending=True)
    pairs = list(zip(ranked.indices.tolist(), ranked.values.tolist(), strict=True))[:4]
    owner, share = pairs[0]
    hint = ", ".join(f"{place}: {value:.0%}" for place, value in pairs if value >= 0.005)
    return {"owner": owner, "colour": find_colour(owner, share), "hint": hint}


def _encode(picture: Tensor) -> str:
    """The picture as a PNG in an address."""
    if picture.ndim != 3 or picture.shape[0] not in (1, 3):
        raise ValueError(f"picture must be (1 or 3, H, W); got shape {tuple(picture.shape)}.")
    array = picture.cpu().expand(3, *picture.shape[1:]).permute(1, 2, 0).contiguous().numpy()
    held = io.BytesIO()
    Image.fromarray(array).save(held, format="PNG")
    return "data:image/png;base64," + base64.b64encode(held.getvalue()).decode("ascii")
