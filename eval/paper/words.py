"""Word pieces as a reader sees them."""

from typing import Any

from torch import Tensor


def split_words(tokenizer: Any, ids: Tensor) -> list[str]:  # noqa: ANN401 - Hugging Face's
    """One string a token, with the space before it where a word begins.

    Args:
        tokenizer: WordPiece, whose inner pieces begin with ##.
        ids: The tokens of one text.

    Example:
        >>> class Pieces:
        ...     def convert_ids_to_tokens(self, ids):
        ...         return ["[CLS]", "soft", "##er"]
        >>> import torch
        >>> split_words(Pieces(), torch.tensor([0, 1, 2]))
        ['[CLS]', ' soft', 'er']
    """
    pieces = tokenizer.convert_ids_to_tokens(ids.tolist())
    texts = [piece[2:] if piece.startswith("##") else f" {piece}" for piece in pieces]
    return [texts[0].lstrip(), *texts[1:]] if texts else []
