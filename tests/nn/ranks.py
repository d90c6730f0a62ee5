"""Two real processes with a gloo group, kept for a module of tests, and their tasks."""

import queue
import traceback

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from softvq import HardVQ, Revival, SoftVQ, Temperature, attach
from softvq.nn import Learning
from softvq.nn.processes import from_first_process, gather_rows, sum_over_processes
from tests.contracts.quantizer import place, waves

LIMIT = 60


class Pair:
    """Runs a function of this file, by name, on both ranks at once."""

    def __init__(self, folder):
        context = mp.get_context("spawn")
        self.results = context.Queue()
        self.orders = [context.Queue() for _ in range(2)]
        self.workers = [
            context.Process(target=serve, args=(rank, folder, order, self.results), daemon=True)
            for rank, order in enumerate(self.orders)
        ]
        for worker in self.workers:
            worker.start()

    def run(self, name, *args):
        """What each rank returned, rank 0 first; a hang is a failure after a minute."""
        for order in self.orders:
            order.put((name, args))
        answers = {}
        for _ in range(2):
            try:
                rank, answer, error = self.results.get(timeout=LIMIT)
            except queue.Empty:
                raise TimeoutError(f"{name}: no answer, {sorted(answers)} only") from None
            assert error is None, f"rank {rank}:\n{error}"
            answers[rank] = answer
        return [answers[rank] for rank in range(2)]

    def stop(self):
        for order in self.orders:
            order.put(None)
        for worker in self.workers:
            worker.join(timeout=10)
            if worker.is_alive():
                worker.kill()


def serve(rank, folder, orders, results):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=2)
    while (order := orders.get()) is not None:
        name, args = order
        try:
            results.put((rank, globals()[name](rank, *args), None))
        except Exception:  # whatever it is, the test raises it
            results.put((rank, None, traceback.format_exc()))
    dist.destroy_process_group()


def state_of(vq):
    return {name: held.clone() for name, held in vq.state_dict().items()}


def helpers(rank):
    rows = torch.full((2 + rank, 2), float(rank))
    return (
        gather_rows(rows).tolist(),
        gather_rows(rows[: 2 * rank]).tolist(),
        sum_over_processes(torch.tensor([1 + rank])).tolist(),
        from_first_process(torch.tensor([5.0 + rank])).tolist(),
    )


def averages(rank, wrapped, broadcast_buffers):
    """Case 2: unequal rows; one step."""
    vq = HardVQ(2, 1, codebook="ema", learning=Learning(decay=0.5), revival=None)
    model = nn.Sequential(nn.Linear(1, 1), vq)
    place(vq, torch.tensor([[-1.0], [1.0]]))
    with torch.no_grad():
        model[0].weight.fill_(1.0)
        model[0].bias.zero_()
    z = torch.tensor([[-2.0]] * 3 if rank == 0 else [[3.0]] * 4 + [[-4.0]])
    outer = (
        DistributedDataParallel(model, broadcast_buffers=broadcast_buffers) if wrapped else model
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    attach(outer, optimizer)
    outer(z).loss.backward()
    optimizer.step()
    return state_of(vq)


def start(rank, kind, lengths):
    """The first pass on unequal rows."""
    vq = {"soft": SoftVQ, "hard": HardVQ}[kind](4, 3).train()
    vq(waves(9, 3, phase=float(rank))[: lengths[rank]])
    return state_of(vq), vq.is_started


def start_on_rubbish(rank):
    """Only rank 1 has a value that is no number: neither may wait for the other."""
    z = waves(9, 3)
    if rank == 1:
        z[0] = torch.nan
    vq = SoftVQ(4, 3)
    try:
        vq.start_(z)
    except ValueError as error:
        return str(error), vq.is_started
    return None, vq.is_started


def revive(rank, kind):
    """Rank 0 has masked all its rows; only rank 1 can tell what a dead code should become."""
    options = {"revival": Revival(noise=0.1)}
    codes = torch.tensor([[-1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [90.0, 90.0]])
    vq = place(
        SoftVQ(4, 2, temperature=Temperature(gradient=0.3), **options)
        if kind == "soft"
        else HardVQ(4, 2, **options),
        codes,
    )
    vq.updates.fill_(20)
    vq.hits.copy_(torch.tensor([1.3, 1.3, 1.3, 0.0]))
    vq.train()(waves(30, 2), mask=torch.full((30,), rank == 1))
    revived = vq.update_()
    return state_of(vq), [] if revived is None else revived.codes.tolist()


KINDS = {
    "soft": lambda: SoftVQ(16, 4),
    "soft mean": lambda: SoftVQ(16, 4, forward_value="soft"),
    "hard gradient": lambda: HardVQ(16, 4, codebook="gradient"),
    "hard ema": lambda: HardVQ(16, 4, codebook="ema", estimator="rotation"),
}


def train(rank, kind, broadcast_buffers, passes):
    """Three steps with the default flags of DDP: an unused parameter would raise in the second."""
    torch.manual_seed(rank)  # DDP is to make the encoders equal, and nobody the codebooks
    model = nn.Sequential(nn.Linear(4, 4), KINDS[kind]())
    outer = DistributedDataParallel(model, broadcast_buffers=broadcast_buffers)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    attach(outer, optimizer)
    for step in range(3):
        optimizer.zero_grad()
        outs = [
            outer(waves(20 + 4 * rank, 4, phase=step + 0.1 * rank + 7.0 * each))
            for each in range(passes)
        ]
        sum(out.quantized.square().mean() + out.loss for out in outs).backward()
        optimizer.step()
    return state_of(model[1])


def evaluate_alone(rank):
    """Rank 0 encodes while rank 1 waits at a barrier: a collective inside would never return."""
    vq = place(SoftVQ(4, 2), waves(4, 2)).eval()
    shape = None
    if rank == 0:
        shape = tuple(vq.codes(vq(waves(9, 2)).indices).shape)
        vq.update_()
    dist.barrier()
    return shape
