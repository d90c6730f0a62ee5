"""A long run of a small model: what creeps, drifts or stops being exact shows here.

    python -m tests.cases.long_run --steps 20000

says what was found, and fails where it is not as it should be. A short form is among the tests.
"""

import argparse
import gc
import resource
import sys
import time
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from softvq import HardVQ, SoftVQ, Temperature, attach

FLOOR, NOISE_END = 0.05, 0.25
BATCH, DIM, NUM_CODES, NUM_BATCHES = 48, 4, 16, 17


@dataclass(frozen=True)
class Found:
    """What a run left behind: K codes, and counts of it."""

    updates: int
    temperatures: list[float]
    noise: float
    hits: float
    tally: bool
    tensors: list[int]
    resident: list[float]
    errors: list[float]
    seconds: float


def make_quantizer(kind: str, steps: int) -> nn.Module:
    """SoftVQ whose temperature is a number that ends at a floor, or HardVQ with averages."""
    if kind == "hard":
        return HardVQ(NUM_CODES, DIM)
    return SoftVQ(
        NUM_CODES,
        DIM,
        temperature=Temperature(
            gradient=(0.5, FLOOR),
            prototypes=(0.2, FLOOR),
            noise=(6.0, NOISE_END),
            unit="absolute",
            anneal_steps=steps,
        ),
    )


def batch(step: int) -> Tensor:
    """Rows of one of a few batches, from a formula."""
    count = torch.arange(BATCH * DIM, dtype=torch.float64) + BATCH * DIM * (step % NUM_BATCHES)
    return (torch.sin(count * count * 0.37) + 0.4 * torch.cos(1.3 * count)).float().view(BATCH, DIM)


def run(kind: str, *, steps: int, backend: str | None = None, looks: int = 10) -> Found:
    """Train; look from time to time at what there is in memory and how good the codes are.

    Args:
        kind: "soft" or "hard".
        steps: Steps of the optimizer.
        backend: Of torch.compile; None does not compile.
        looks: How often, at least three times.
    """
    torch.manual_seed(0)
    vq, encoder, decoder = make_quantizer(kind, steps), nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)
    model = nn.Sequential(encoder, vq, decoder)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    attach(model, optimizer)
    vq.start_(encoder(batch(0)))

    def loss_of(x: Tensor) -> Tensor:
        out = vq(encoder(x))
        return (decoder(out.quantized) - x).square().mean() + out.loss

    forward = loss_of if backend is None else torch.compile(loss_of, backend=backend)
    tensors, resident, errors, begun = [], [], [], time.perf_counter()
    for step in range(steps):
        optimizer.zero_grad()
        forward(batch(step)).backward()
        optimizer.step()
        if (step + 1) % (steps // looks) == 0:
            errors.append(measure(encoder, vq, decoder))
            gc.collect()
            tensors.append(sum(issubclass(type(each), Tensor) for each in gc.get_objects()))
            resident.append(read_resident())
    return Found(
        updates=int(vq.updates),
        temperatures=vq.schedule.levels.tolist() if kind == "soft" else [],
        noise=vq.schedule.noise.item() if kind == "soft" else 0.0,
        hits=vq.hits.mean().item(),
        tally=bool(vq._tally),
        tensors=tensors,
        resident=resident,
        errors=errors,
        seconds=time.perf_counter() - begun,
    )


@torch.no_grad()
def measure(encoder: nn.Module, vq: nn.Module, decoder: nn.Module) -> float:
    """Squared error of hard codes over all batches."""
    vq.eval()
    errors = [
        (decoder(vq(encoder(x)).quantized) - x).square().mean()
        for x in map(batch, range(NUM_BATCHES))
    ]
    vq.train()
    return torch.stack(errors).mean().item()


def read_resident() -> float:
    """MiB of this process, now where Linux tells it, else its peak."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * resource.getpagesize() / 2**20
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def faults(found: Found, *, kind: str, steps: int, creep: float = 8.0) -> list[str]:
    """What is not as it should be after a run.

    Args:
        found: What the run left.
        kind: As in `run`.
        steps: As in `run`.
        creep: MiB by which the second half of the run may grow.
    """
    told = []
    if found.updates != steps:
        told.append(f"{found.updates} updates were counted in {steps} steps")
    if found.tally:
        told.append("rows are left in the tally")
    floor, last_noise = torch.tensor([FLOOR, NOISE_END]).tolist()
    if kind == "soft" and found.temperatures != [floor, floor]:
        told.append(f"T ends at {found.temperatures}, not at its floor of {floor}")
    if kind == "soft" and found.noise != last_noise:
        told.append(f"the noise ends at {found.noise}, not at {last_noise}")
    if abs(found.hits - 1) > 0.2:
        told.append(f"hits have a mean of {found.hits}, which should be near 1")
    if max(found.tensors[1:]) > min(found.tensors[1:]):
        told.append(f"live tensors go {found.tensors}")
    if found.resident[-1] - found.resident[len(found.resident) // 2] > creep:
        told.append(f"resident memory goes {[round(each, 1) for each in found.resident]} MiB")
    if not found.errors[-1] < found.errors[0] * 1.05:
        told.append(f"the error of hard codes goes {found.errors}")
    return told


def main() -> int:
    """Run all, eager and compiled, and say what was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--kinds", nargs="+", default=["soft", "hard"])
    parser.add_argument("--backend", default="inductor", help="of torch.compile")
    options = parser.parse_args()
    torch.set_num_threads(1)
    bad = 0
    for kind in options.kinds:
        last = {}
        for backend in (None, options.backend):
            found = run(kind, steps=options.steps, backend=backend)
            told = faults(found, kind=kind, steps=options.steps)
            last[backend] = found.errors[-1]
            print(
                f"{kind}, {backend or 'eager'}: {found.updates} updates in {found.seconds:.0f} s; "
                f"T {found.temperatures}; live tensors {found.tensors[1]} to {found.tensors[-1]}; "
                f"resident {found.resident[4]:.1f} to {found.resident[-1]:.1f} MiB; error of hard "
                f"codes {found.errors[0]:.5f} to {found.errors[-1]:.5f}",
                *(f"\n  FAULT: {each}" for each in told),
                flush=True,
            )
            bad += len(told)
        first, second = last.values()
        apart = abs(first / second - 1)
        print(f"{kind}: eager and compiled errors are {100 * apart:.2f} % apart", flush=True)
        bad += apart > 0.1
    return min(bad, 1)


if __name__ == "__main__":
    sys.exit(main())
