"""The transformer, from `transformers`, its weights started at random: codes in, logits out.

Shape letters: B items, L positions, K codes.
"""

import inspect
from typing import Any, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from softvq.export import Codebook
from train.prior.config import PriorNetConfig
from train.prior.vocabulary import Vocabulary

try:
    import transformers
except ImportError:  # the extra `prior` is not installed; building a prior says so
    transformers = None

DEVIATION = 0.02
"""Of embeddings at the start, as GPT-2 has it."""


@final
class Prior(nn.Module):
    """GPT-2 of ``vocab_size`` inputs that answers with codes alone: specials have no logit.

    Args:
        vocabulary: Of the tokens.
        config: Sizes.
        drops_labels: Whether training shows items of a class without it now and then.

    Raises:
        ValueError: If transformers is not installed.

    Example:
        >>> vocabulary = Vocabulary(
        ...     num_codes=5, vocab_size=6, bos=5, classes=(), grid=(2, 2), codebook_digest=""
        ... )
        >>> prior = Prior(vocabulary, PriorNetConfig(layers=1, width=8, heads=2))
        >>> prior(torch.tensor([[5, 0, 3]])).shape
        torch.Size([1, 3, 5])
    """

    def __init__(
        self, vocabulary: Vocabulary, config: PriorNetConfig, *, drops_labels: bool = True
    ) -> None:
        super().__init__()
        if transformers is None:
            raise ValueError("the prior needs transformers: pip install 'softvq[prior]'.")
        self.vocabulary = vocabulary
        self.config = config
        self.knows_bos = drops_labels or not vocabulary.classes
        self.net: Any = transformers.GPT2LMHeadModel(
            transformers.GPT2Config(
                vocab_size=vocabulary.vocab_size,
                n_positions=vocabulary.length,
                n_embd=config.width,
                n_layer=config.layers,
                n_head=config.heads,
                resid_pdrop=config.dropout,
                embd_pdrop=config.dropout,
                attn_pdrop=config.dropout,
                initializer_range=DEVIATION,
                bos_token_id=vocabulary.bos,
                eos_token_id=None,
            )
        )

    def forward(self, inputs: Int[Tensor, "b l"]) -> Float[Tensor, "b l k"]:
        """Logits of the code behind each position."""
        return self.net(input_ids=inputs, use_cache=False).logits[..., : self.vocabulary.num_codes]

    def new_cache(self) -> Any:  # noqa: ANN401 - a class of transformers
        """Keys and values of no position yet, for `step`."""
        assert transformers is not None, "the constructor has refused"
        return transformers.DynamicCache()

    def step(self, inputs: Int[Tensor, "b l"], cache: Any) -> Float[Tensor, "b k"]:  # noqa: ANN401
        """Logits of the code behind the last of some new positions.

        Args:
            inputs: The new positions alone.
            cache: Of `new_cache` at an item's begin; keys and values of ``inputs`` are added.
        """
        known = {self._cache_name: cache}
        logits = self.net(input_ids=inputs, use_cache=True, **known).logits
        return logits[:, -1, : self.vocabulary.num_codes]

    @property
    def _cache_name(self) -> str:
        """The argument was renamed in transformers 5, where the old name warns."""
        names = inspect.signature(self.net.forward).parameters
        return "cache" if "cache" in names else "past_key_values"

    @property
    def num_parameters(self) -> int:
        """Trained numbers; the table of embeddings, which also makes the logits, counts once."""
        return sum(each.numel() for each in self.parameters())

    @torch.no_grad()
    def start_from_(self, codebook: Codebook, *, generator: torch.Generator) -> None:
        """Start the embeddings of codes as the codes themselves, mapped to the width.

        Codes that are near each other then begin alike, as inputs and as answers. The map is
        random, so it keeps angles and lengths up to a factor and a small error.

        Args:
            codebook: The tokens' own.
            generator: Of the map.

        Raises:
            ValueError: If it is another codebook.
        """
        if codebook.digest != self.vocabulary.codebook_digest:
            raise ValueError(
                f"codebook has digest {codebook.digest}; the tokens stand for codes of digest "
                f"{self.vocabulary.codebook_digest}. Use the codebook that they were made with."
            )
        codes = codebook.codebook.float()
        centred = codes - codes.mean(0)
        table = centred @ torch.randn(codes.shape[1], self.config.width, generator=generator)
        table = table * (DEVIATION / table.std().clamp_min(1e-12))
        self.net.transformer.wte.weight[: len(codes)] = table
