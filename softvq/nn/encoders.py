"""A readout behind somebody else's encoder, whatever form its tokens and masks come in.

B batch, N tokens, D features.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from softvq.nn.readout import DDCLAttention, DDCLReadout
from softvq.nn.stack import DDCLStack
from softvq.types import DDCLOutput, ReadoutOutput, StackOutput


class EncoderWithReadout(nn.Module):
    """An encoder and the readout behind it, see `with_readout`.

    Attributes:
        encoder: As it was given.
        readout: The layer behind it.
    """

    def __init__(
        self, encoder: nn.Module, readout: DDCLReadout | DDCLAttention | DDCLStack
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.readout = readout

    def forward(
        self,
        *inputs: Any,  # noqa: ANN401 - what other people's encoders take is anything
        mask: Tensor | None = None,
        **options: Any,  # noqa: ANN401 - the same
    ) -> ReadoutOutput | DDCLOutput | StackOutput:
        """Encode, and read out the tokens.

        Args:
            *inputs: For the encoder.
            mask: (B, N), True keeps a token. If not given it is taken from the encoder's own
                ``attention_mask`` (1 keeps) or ``src_key_padding_mask`` (True drops).
            **options: For the encoder, by its own names.

        Returns:
            What the readout gives.

        Raises:
            ValueError: If the encoder gives no (B, N, D) tokens, or the mask does not fit them.
        """
        tokens = find_tokens(self._encode(inputs, options))
        if _is_sequence_first(self.encoder):
            tokens = tokens.transpose(0, 1)
        prefix = _count_prefix(self.encoder)
        if mask is None:
            mask = find_mask(options)
        if mask is not None:
            mask = mask[:, prefix:] if mask.shape[-1] == tokens.shape[1] else mask
        return self.readout(tokens[:, prefix:], mask=mask)

    def _encode(self, inputs: tuple, options: dict[str, Any]) -> Any:  # noqa: ANN401
        features = getattr(self.encoder, "forward_features", None)
        encode = self.encoder if features is None else features
        return encode(*inputs, **options)


def with_readout(
    encoder: nn.Module, readout: DDCLReadout | DDCLAttention | DDCLStack
) -> EncoderWithReadout:
    """Put a readout behind an encoder, so that both are called, trained and saved as one.

    Known by what they give, not by name: ``nn.TransformerEncoder`` (with or without
    ``batch_first``), Hugging Face encoders (``last_hidden_state``, ``attention_mask``), timm's
    vision transformers (``forward_features``; class and register tokens stay out of the readout),
    and any module that returns (B, N, D), alone or first in a tuple.

    Args:
        encoder: Gives tokens.
        readout: Made for their number of features.

    Returns:
        A module that takes what the encoder takes, and ``mask=``.

    Example:
        >>> import torch
        >>> layer = nn.TransformerEncoderLayer(8, nhead=2, batch_first=True)
        >>> encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        >>> model = with_readout(encoder, DDCLReadout(dim=8, num_prototypes=4))
        >>> model(torch.sin(torch.arange(80.0)).reshape(2, 5, 8)).mean.shape
        torch.Size([2, 8])
    """
    return EncoderWithReadout(encoder, readout)


def find_tokens(answer: Any) -> Tensor:  # noqa: ANN401 - what an encoder returns is anything
    """The (B, N, D) tokens in what an encoder returned.

    Raises:
        ValueError: If there are none.

    Example:
        >>> import torch
        >>> find_tokens((torch.zeros(2, 3, 4), "more")).shape
        torch.Size([2, 3, 4])
    """
    found = getattr(answer, "last_hidden_state", answer)
    if isinstance(found, Mapping):
        found = found.get("last_hidden_state")
    if isinstance(found, tuple | list) and found:
        found = found[0]
    if not isinstance(found, Tensor) or found.ndim != 3:
        came = tuple(found.shape) if isinstance(found, Tensor) else type(answer).__name__
        raise ValueError(
            f"encoder must return tokens (B, N, D), alone, first in a tuple, or as "
            f".last_hidden_state; got {came}. Wrap it so that it does."
        )
    return found


def find_mask(options: Mapping[str, Any]) -> Tensor | None:
    """The mask, True keeps, that the encoder's own keywords hold.

    Raises:
        ValueError: For a mask that is not (B, N).

    Example:
        >>> import torch
        >>> find_mask({"attention_mask": torch.tensor([[1, 0]])}).tolist()
        [[True, False]]
    """
    for name, keeps in (("attention_mask", True), ("src_key_padding_mask", False)):
        mask = options.get(name)
        if mask is None:
            continue
        if not isinstance(mask, Tensor) or mask.ndim != 2:
            came = tuple(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__
            raise ValueError(
                f"{name} must be (B, N) for the readout to know its tokens; got {came}. Give the "
                "readout's own by mask= as well, True keeps."
            )
        if mask.is_floating_point():
            # Added to logits where it drops; a float of 1 and 0 is Hugging Face's other form.
            return (mask > 0) if keeps else (mask == 0)
        return mask.bool() if keeps else ~mask.bool()
    return None


def _is_sequence_first(encoder: nn.Module) -> bool:
    """Whether this is PyTorch's encoder in its (N, B, D) form."""
    if not isinstance(encoder, nn.TransformerEncoder) or not len(encoder.layers):
        return False
    attention = getattr(encoder.layers[0], "self_attn", None)
    return not getattr(attention, "batch_first", True)


def _count_prefix(encoder: nn.Module) -> int:
    """Tokens of a timm model before its patches: class and registers."""
    has_features = hasattr(encoder, "forward_features")
    return int(getattr(encoder, "num_prefix_tokens", 0)) if has_features else 0
