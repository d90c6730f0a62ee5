"""Every member of the family and the combinations that make sense, on 8 features."""

from softvq import HardVQ, SoftVQ, Temperature
from softvq.nn import (
    Cosine,
    GroupedVQ,
    ImplicitVQ,
    MultiHeadVQ,
    OneIndex,
    Projected,
    ResidualVQ,
    Scaled,
    SoftFSQ,
)

# Within reach of 16 codes, so that no solve hits a bound.
COOL = Temperature(gradient=0.8, warmup_share=0.0, anneal_steps=50)


def soft(dim=8, *, seed=0, **options):
    return SoftVQ(16, dim, temperature=COOL, seed=seed, **options)


def hard(dim=8, *, seed=0, **options):
    return HardVQ(16, dim, seed=seed, **options)


MEMBERS = {
    "soft": soft,
    "hard": hard,
    "implicit": lambda **o: ImplicitVQ(16, 8, temperature=COOL, **o),
    "cosine": lambda **o: Cosine(soft(), **o),
    "cosine of averages": lambda **o: Cosine(hard(), **o),
    "scaled": lambda **o: Scaled(soft(), **o),
    "projected": lambda **o: Projected(soft(4), 8, **o),
    "projected up": lambda **o: Projected(soft(12), 8, **o),
    "projected cosine": lambda **o: Projected(Cosine(soft(4)), 8, **o),
    "projected implicit": lambda **o: Projected(ImplicitVQ(16, 4, temperature=COOL), 8, **o),
    "fsq": lambda **o: Projected(SoftFSQ([3, 4, 5]), 8, **o),
    "residual": lambda **o: ResidualVQ([soft(seed=i) for i in range(3)], **o),
    "residual of averages": lambda **o: ResidualVQ([hard(seed=i) for i in range(3)], **o),
    "residual, one codebook": lambda **o: ResidualVQ([soft()] * 3, **o),
    "residual, mixed, dropout": lambda **o: ResidualVQ(
        [soft(), hard(codebook="gradient"), soft(seed=1)], dropout=0.5, **o
    ),
    "residual, scaled, soft": lambda **o: ResidualVQ(
        [Scaled(soft(seed=i, forward_value="soft")) for i in range(2)], **o
    ),
    "residual of projected cosine": lambda **o: ResidualVQ(
        [Projected(Cosine(soft(4, seed=i)), 8, seed=i) for i in range(2)], **o
    ),
    "grouped": lambda **o: GroupedVQ([soft(6), hard(2)], **o),
    "grouped, one codebook": lambda **o: GroupedVQ([soft(4)] * 2, **o),
    "grouped residual, dropout": lambda **o: GroupedVQ(
        [ResidualVQ([soft(4, seed=2 * g + i) for i in range(2)], dropout=0.5) for g in range(2)],
        **o,
    ),
    "residual of groups": lambda **o: ResidualVQ(
        [GroupedVQ([soft(4, seed=2 * i), hard(4, seed=i)]) for i in range(2)], **o
    ),
    "heads": lambda **o: MultiHeadVQ(soft(2), num_heads=4, **o),
    "heads of residual": lambda **o: MultiHeadVQ(
        ResidualVQ([soft(4, seed=i) for i in range(2)]), num_heads=2, **o
    ),
    "product": lambda **o: OneIndex(GroupedVQ([soft(4, seed=i) for i in range(2)]), **o),
    "one index of residual": lambda **o: OneIndex(
        ResidualVQ([soft(seed=i) for i in range(2)]), **o
    ),
}
