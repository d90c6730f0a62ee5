"""Sums and samples over all processes of a run; with one process, the identity.

The process group is looked up at each call: a module may be older than its group.
"""

import torch
import torch.distributed as dist
from torch import Tensor


def num_processes() -> int:
    """Processes in the default group; 1 where there is none.

    Example:
        >>> num_processes()
        1
    """
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def process_index() -> int:
    """Place of this process in the default group; 0 where there is none.

    Example:
        >>> process_index()
        0
    """
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def sum_over_processes(tensor: Tensor) -> Tensor:
    """The sum of ``tensor`` over all processes; collective.

    Example:
        >>> sum_over_processes(torch.ones(2)).tolist()
        [1.0, 1.0]
    """
    if num_processes() == 1:
        return tensor
    total = tensor.clone()
    dist.all_reduce(total)
    return total


def from_first_process(tensor: Tensor) -> Tensor:
    """The first process's ``tensor``, on every process; collective.

    Example:
        >>> from_first_process(torch.ones(2)).tolist()
        [1.0, 1.0]
    """
    if num_processes() == 1:
        return tensor
    shared = tensor.contiguous().clone()
    dist.broadcast(shared, 0)
    return shared


def gather_rows(rows: Tensor) -> Tensor:
    """Rows (N, D) of all processes in rank order, N free to differ; collective.

    Example:
        >>> gather_rows(torch.ones(2, 3)).shape
        torch.Size([2, 3])
    """
    world = num_processes()
    if world == 1:
        return rows
    lengths = [torch.zeros(1, dtype=torch.int64, device=rows.device) for _ in range(world)]
    dist.all_gather(lengths, torch.tensor([len(rows)], device=rows.device))
    counts = [int(length) for length in lengths]
    padded = rows.new_zeros(max(counts), rows.shape[-1])
    padded[: len(rows)] = rows
    parts = [torch.empty_like(padded) for _ in range(world)]
    dist.all_gather(parts, padded)
    return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])


def anywhere(num: int, *, device: torch.device) -> bool:
    """Whether ``num`` is above 0 on any process: a start is collective, so all must agree.

    Example:
        >>> anywhere(0, device=torch.device("cpu"))
        False
    """
    if num_processes() == 1:
        return num > 0
    return bool(sum_over_processes(torch.tensor(num, device=device)))
