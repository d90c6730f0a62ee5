"""What `torchrun --nproc-per-node 2` runs for the tests, and one process alone on all data at once.

Every job gets the rank and the number of processes; its answer must be JSON. Two processes write
theirs to ``FOLDER/RANK.json``.
"""

import json
import sys
import traceback
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from softvq import HardVQ, Loss, Quantizer, Revival, SoftVQ, Temperature, attach
from softvq.measures import CodebookUse, Psnr
from softvq.nn import Learning
from tests.contracts.quantizer import place, waves
from tests.nn.members import MEMBERS

STEPS = 12
ROWS = 64
UNION = {
    # Without the entropy of the mean use, which is that of a process's own batch.
    "hard value": lambda: SoftVQ(8, 4, loss=Loss(use_entropy=0), forward_value="hard"),
    "soft value": lambda: SoftVQ(8, 4, loss=Loss(use_entropy=0), forward_value="soft"),
    "blurred": lambda: SoftVQ(
        8, 4, loss=Loss(use_entropy=0), temperature=Temperature(warmup_share=0.0, anneal_steps=50)
    ),
    "averages": lambda: HardVQ(8, 4, revival=Revival(noise=0.1)),
    "gradient": lambda: HardVQ(8, 4, codebook="gradient"),
}


def to_plain(module):
    return {name: held.tolist() for name, held in module.state_dict().items()}


def share(rows, rank, world, cut=None):
    """A process's rows, in rank order: halves, or what the cut says."""
    if world == 1:
        return rows
    cut = len(rows) // 2 if cut is None else cut
    return rows[:cut] if rank == 0 else rows[cut:]


def wrap(model, world, **options):
    return model if world == 1 else DistributedDataParallel(model, **options)


def union(rank, world, kind, broadcast_buffers):
    """Steps of a small net: start, gradients, temperatures, counts, revival."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), UNION[kind]())
    outer = wrap(model, world, broadcast_buffers=broadcast_buffers)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    attach(outer, optimizer)
    revived = 0
    for step in range(STEPS):
        if step == REVIVAL_STEP:  # where no row ever is
            with torch.no_grad():
                model[1].codebook[3] = 50.0
                model[1].hits[3] = 0.0
        x = share(waves(ROWS, 4, phase=float(step)), rank, world)
        out = outer(x)
        loss = (out.quantized - x).square().mean() + out.loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        revived += int(step == REVIVAL_STEP and model[1].codebook[3].max().item() < 10)
    return {"revived": revived, **to_plain(model)}


REVIVAL_STEP = STEPS - 1


def unequal(rank, world, kind, cut):
    """One step that moves nothing by gradient: what is left is statistics, which are exact."""
    torch.manual_seed(0)
    options = {"hard value": {}, "averages": {"learning": Learning(decay=0.5)}}[kind]
    vq = (SoftVQ if kind == "hard value" else HardVQ)(8, 4, **options)
    place(vq, waves(8, 4, phase=3.0))
    model = nn.Sequential(nn.Linear(4, 4), vq)
    outer = wrap(model, world)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    attach(outer, optimizer)
    for step in range(2):
        outer(share(waves(40, 4, phase=float(step)), rank, world, cut)).loss.backward()
        optimizer.step()
    return to_plain(vq)


def family(rank, world, name):
    """Three steps with the default flags of DDP: an unused parameter would raise in the second."""
    torch.manual_seed(rank)
    model = nn.Sequential(nn.Linear(8, 8), MEMBERS[name]())
    outer = wrap(model, world)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    if any(isinstance(each, Quantizer) for each in model.modules()):  # SoftFSQ learns no codes
        attach(outer, optimizer)
    for step in range(3):
        x = waves(6, 4 + rank, 8, phase=step + 0.1 * rank)
        out = outer(x)
        optimizer.zero_grad()
        ((out.quantized - x).square().mean() + out.loss).backward()
        optimizer.step()
    return to_plain(model[1])


def no_rows(rank, world, kind):
    """The second process has no row for two steps, then some."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), UNION[kind]())
    outer = wrap(model, world)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    attach(outer, optimizer)
    for step in range(3):
        x = waves(32, 4, phase=float(step))
        if rank == 1 and step < 2:
            x = x[:0]
        out = outer(x)
        optimizer.zero_grad()
        (out.quantized.square().sum() / 128 + out.loss).backward()
        optimizer.step()
    return to_plain(model)


def evaluation_is_alone(rank, world):
    """Names of the collectives that a model in eval mode calls: none."""
    model = nn.Sequential(nn.Linear(8, 8), MEMBERS["residual, mixed, dropout"]())
    model(waves(8, 8, 8))
    model[1].update_()
    model.eval()
    called = []
    names = ("all_reduce", "broadcast", "all_gather", "barrier", "reduce", "gather", "scatter")
    originals = {name: getattr(dist, name) for name in names}
    for name in names:
        setattr(dist, name, lambda *_, name=name, **__: called.append(name))
    try:
        with torch.no_grad():
            out = model(waves(3, 3, 8))
            model[1].codes(out.indices)
            model[1].update_()
        use, psnr = CodebookUse(16), Psnr()
        use.update(out.indices[..., 0])
        use.compute()
        psnr.update(torch.zeros(1, 3, 4, 4), torch.zeros(1, 3, 4, 4))
        psnr.compute()
    finally:
        for name, original in originals.items():
            setattr(dist, name, original)
    return called


def sharded(rank, world, kind):
    """FSDP2 as docs/several-processes.md has it: the net sharded, the quantizer whole."""
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    net, vq = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4)), UNION[kind]()
    if world > 1:
        fully_shard(net)
        for each in vq.parameters():
            each.register_post_accumulate_grad_hook(average_gradient)
    model = nn.ModuleDict({"net": net, "vq": vq})
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    attach(model, optimizer)
    for step in range(4):
        x = share(waves(ROWS, 4, phase=float(step)), rank, world)
        out = vq(net(x))
        optimizer.zero_grad()
        ((out.quantized - x).square().mean() + out.loss).backward()
        optimizer.step()
    return to_plain(vq)


def average_gradient(parameter):
    dist.all_reduce(parameter.grad)
    parameter.grad /= dist.get_world_size()


def jobs():
    """Every job by the name that the tests give it."""
    made = {}
    for kind in UNION:
        for broadcast in (True, False):
            made[f"union, {kind}, {broadcast}"] = (union, kind, broadcast)
        made[f"no rows, {kind}"] = (no_rows, kind)
    for kind in ("hard value", "averages"):
        for cut in (3, 20, 40):
            made[f"unequal, {kind}, {cut}"] = (unequal, kind, cut)
    for name in MEMBERS:
        made[f"family, {name}"] = (family, name)
    for kind in ("hard value", "averages"):
        made[f"sharded, {kind}"] = (sharded, kind)
    made["evaluation"] = (evaluation_is_alone,)
    return made


def answer(rank, world, wanted):
    """Answers by name; an error is one, too, as the others must still be run on both sides."""
    found = {}
    for name, (job, *arguments) in jobs().items():
        if not name.startswith(wanted):
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found[name] = job(rank, world, *arguments)
        except Exception:  # whatever it is, the test shows it
            found[name] = traceback.format_exc()
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    early = SoftVQ(8, 4)  # older than the group, as in any script that builds its model first
    dist.init_process_group("gloo")
    me, everyone = dist.get_rank(), dist.get_world_size()
    early(share(waves(ROWS, 4), me, everyone))
    early.update_()
    told = {"early": to_plain(early), **answer(me, everyone, ("",))}
    (Path(sys.argv[1]) / f"{me}.json").write_text(json.dumps(told))
    dist.barrier()
    dist.destroy_process_group()
