"""Averages that a host keeps of its codes, brought to agree with codes that SoftVQ has trained."""

import torch
from torch import Tensor, nn

from softvq.hosts.held import HeldSoftVQ

COUNTS = ("cluster_size", "_ema_cluster_size", "ema_cluster_size", "cluster_size_ema")
SUMS = ("embed_avg", "_ema_w", "ema_w", "embed_ema")
STARTED = ("initted", "inited", "data_initialized")


@torch.no_grad()
def settle_averages(host: nn.Module, cores: list[HeldSoftVQ]) -> None:
    """Set counts and sums so that the host's next average gives the codes as they are now.

    Where nothing was trained they stay as they were.

    Args:
        host: The quantizer.
        cores: Its SoftVQ, one for each codebook.
    """
    trained = [core for core in cores if core.is_started]
    if not trained:
        return
    _mark_started(host)
    for core in trained:
        owner = host.get_submodule(core.at.owner)
        for part in (owner, host):
            counts = _first(part, COUNTS, shape=core.parameter.shape, per_code=True)
            sums = _first(part, SUMS, shape=core.parameter.shape)
            if sums is not None:
                _settle(core, counts, sums)
                break


def _settle(core: HeldSoftVQ, counts: Tensor | None, sums: Tensor) -> None:
    if counts is None:
        core.see(sums).copy_(core.held())
        return
    own = counts[core.at.head] if counts.ndim == 2 else counts
    total = own.sum().clamp_min(float(core.num_codes))
    share = core.hits.clamp_min(1e-3)
    own.copy_(share * (total / share.sum()))
    core.see(sums).copy_(core.held() * own[:, None])


def _first(
    part: nn.Module, names: tuple[str, ...], *, shape: torch.Size, per_code: bool = False
) -> Tensor | None:
    for name in names:
        found = getattr(part, name, None)
        if isinstance(found, Tensor) and (
            found.ndim < len(shape) if per_code else found.shape == shape
        ):
            return found
    return None


def _mark_started(host: nn.Module) -> None:
    for name, flag in host.named_buffers():
        if name.rsplit(".", 1)[-1] in STARTED:
            flag.fill_(1)
