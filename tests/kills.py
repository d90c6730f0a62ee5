"""What is written over and over by a process that is killed meanwhile, and how it is read again.

Every kind writes a number, a larger one each time, and reads it from all places of its file: a
file of two states would tell two numbers.
"""

import os
import signal
import sys

import torch
from torch import nn

from eval import report
from eval.pictures import load_pictures, save_pictures
from eval.results import load_results, save_results
from softvq import HardVQ, export_codebook, export_tokens, load_tokens
from softvq.export import Sharding, load_codebook
from softvq.models import VQVAE, VQVAEConfig, load_model, save_model
from tests.eval.stored import make_results
from tests.export.workers import CONTEXT
from train.checkpoint import load_checkpoint, save_checkpoint

CONTEXT.set_forkserver_preload(["tests.export.workers", "tests.kills"])
WIDTH = 300
SHARDS = 4


def only(values):
    """The one number that a tensor holds."""
    (value,) = values.unique().tolist()
    return int(value)


class Checkpoint:
    """Half a megabyte of weights and moments."""

    def parts(self, number):
        model = nn.Linear(WIDTH, WIDTH)
        nn.init.constant_(model.weight, number)
        optimizer = torch.optim.Adam(model.parameters())
        for each in model.parameters():
            moments = {name: torch.full_like(each, number) for name in ("exp_avg", "exp_avg_sq")}
            optimizer.state[each] = {"step": torch.tensor(float(number)), **moments}
        return model, optimizer

    def write(self, folder, number):
        state = {"step": number, "losses": [number] * 100}
        save_checkpoint(folder / "c.safetensors", *self.parts(number), state=state)

    def read(self, folder):
        model, optimizer = self.parts(0)
        state = load_checkpoint(folder / "c.safetensors", model, optimizer)
        moments = [held["exp_avg_sq"] for held in optimizer.state_dict()["state"].values()]
        values = torch.cat([model.weight.flatten(), *(each.flatten() for each in moments)])
        assert {state["step"], *state["losses"]} == {only(values)}
        return state["step"]


class CodebookFile:
    def write(self, folder, number):
        vq = HardVQ(WIDTH, 64)
        vq.start_(torch.randn(2, 64))
        with torch.no_grad():
            vq.codebook.fill_(number)
        export_codebook(vq, folder / "codebook.safetensors", dataset=str(number))

    def read(self, folder):
        held = load_codebook(folder / "codebook.safetensors")
        assert held.dataset == str(only(held.codebook))
        return only(held.codebook)


class Model:
    def write(self, folder, number):
        model = VQVAE(HardVQ(8, 16, layout="channels_first"), VQVAEConfig(hidden=16, dim=16))
        with torch.no_grad():
            for each in model.parameters():
                each.fill_(number)
        save_model(model, folder / "model.safetensors")

    def read(self, folder):
        model = load_model(folder / "model.safetensors")
        return only(torch.cat([each.flatten() for each in model.parameters()]))


class Tokens:
    """One export into one folder, which goes on: its number is that of its whole shards."""

    def write(self, folder, number):
        torch.manual_seed(0)
        model = VQVAE(HardVQ(8, 16, layout="channels_first"), VQVAEConfig(hidden=16, dim=16))
        images = torch.linspace(-1, 1, 2 * SHARDS * 3 * 64).reshape(2 * SHARDS, 3, 8, 8)
        model.quantizer.start_(model.latents(images))
        export_tokens(model.eval(), images, folder / "t", sharding=Sharding(shard_size=2))

    def read(self, folder):
        try:
            return 1 + len(load_tokens(folder / "t"))
        except (FileNotFoundError, ValueError) as error:
            assert "no manifest.json" in str(error)  # noqa: PT017 - it says that it is not whole
            return sum(1 for _ in (folder / "t").glob("tokens-*"))


class Report:
    """The page, the figures behind it and the pictures; what it looks like is left out."""

    def write(self, folder, number):
        save_results(folder, {**make_results(), "device": str(number)})
        save_pictures(folder, {"inputs": torch.full((9, 3, 64, 64), number % 256).byte()})
        report.save_figures = lambda *_: None
        report.render_page = lambda results, _: f"{results['device']}\n" * 100_000
        report.write_report(folder)

    def read(self, folder):
        only(load_pictures(folder)["inputs"])
        known = int(load_results(folder)["device"])
        lines = (folder / report.REPORT_FILE).read_text(encoding="utf-8").split("\n")
        assert len(lines) == 100_001
        assert {*lines[:-1]} <= {str(known), str(known - 1)}  # each file is whole, if not of one go
        return int(lines[0])


KINDS = {
    "checkpoint": Checkpoint(),
    "codebook": CodebookFile(),
    "model": Model(),
    "tokens": Tokens(),
    "report": Report(),
}


def write_on(kind, folder, first, last, event):
    """Write one number after the other; ``event`` counts the file operations until the end.

    What has been written is told by a file outside of the folder, made after the call has returned.
    """
    torch.set_num_threads(1)
    left = [event]

    def count(name, _):
        if name.startswith(("open", "os.", "shutil.", "fcntl.")) and started:
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    started = []
    if event is not None:
        sys.addaudithook(count)
    for number in range(first, last + 1):
        started.append(number)
        KINDS[kind].write(folder, number)
        started.clear()
        told = os.open(folder.parent / f"{kind}.told", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        os.write(told, f"{number}\n".encode())
        os.close(told)
