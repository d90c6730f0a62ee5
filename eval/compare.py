"""The comparison: the same net, data order and budget for every method, measured by hard codes."""

import dataclasses
import itertools
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eval.atlas import pick_codes
from eval.pictures import save_pictures
from eval.results import MethodResult, Results, SeedResult, save_results
from eval.runs import find_command, finish_run
from softvq.checks import check_count
from softvq.data import to_model_range
from softvq.models import save_model
from softvq.nn import Arrangement, Quantizer
from train.build import build_model
from train.checkpoint import read_state
from train.config import RunConfig
from train.evaluate import reconstruct
from train.images import ImagePair
from train.indices import first_codebook
from train.loop import CHECKPOINT
from train.methods import ADDITIONS, get_method
from train.patches import average_patches
from train.presets import make_preset
from train.provenance import find_commit, find_versions, name_device
from train.result import RunResult
from train.values import find_changes, override, to_json

NUM_PICTURES = 16
DEFAULT_METHODS = {
    "quick": ("softvq", "ste", "ema", "lucid-ema"),
    "smoke": ("softvq", "ema", "lucid-ema"),
}
ALL_METHODS = (
    "softvq",
    "softvq-hard",
    "ste",
    "ema",
    "rotation",
    "lucid-ema",
    "lucid-rotation",
    "lucid-simvq",
    "lucid-fsq",
    "lucid-lfq",
    "lucid-diveq",
    "lucid-cosine",
    "lucid-lowdim",
    "gumbel",
    "sq-vae",
    "ibq",
    "ddcl-literal",
    "softvq-residual",
    "lucid-residual",
)
GROUPS = {
    "all": ALL_METHODS,
    "rivals": tuple(name for name in ALL_METHODS if not name.startswith("softvq")),
    "ablation": (*ADDITIONS, "softvq"),
}
"""Names that stand for several methods."""


def choose_methods(names: str, preset: str) -> list[str]:
    """Methods of a comma-separated list; an empty one means the preset's own.

    Args:
        names: Such as "softvq,lucid-ema", or those of `GROUPS`: all, rivals, ablation.
        preset: Name of the preset.

    Returns:
        Names, each once, in the order given.

    Raises:
        ValueError: For an unknown name.

    Example:
        >>> choose_methods("", "quick")
        ['softvq', 'ste', 'ema', 'lucid-ema']
    """
    given = [name.strip() for name in names.split(",") if name.strip()]
    wanted = [name for part in given for name in GROUPS.get(part, (part,))]
    for name in wanted:
        get_method(name)
    return list(dict.fromkeys(wanted or DEFAULT_METHODS.get(preset, ALL_METHODS)))


def run_comparison(
    preset: str,
    overrides: tuple[str, ...],
    /,
    *,
    methods: str,
    seeds: int,
    folder: Path,
    fresh: bool,
) -> Results:
    """Train and measure what a command line asks for.

    Args:
        preset: Name of the preset.
        overrides: Changes to it.
        methods: As `choose_methods` takes them.
        seeds: How many.
        folder: For all files.
        fresh: Train again whatever is in the folder.

    Returns:
        The results, as in results.json.

    Raises:
        ValueError: For what cannot be; nothing is written then.
    """
    base = make_preset(preset)
    config = override(base, list(overrides))
    if (config.method.name, config.seed) != (base.method.name, base.seed):
        raise ValueError(
            "method.name and seed are what a comparison varies: give --methods and --seeds."
        )
    chosen = choose_methods(methods, preset)
    print(f"Reading {config.data.source}; what is not in the cache is fetched and verified.")
    if preset == "smoke":
        print("smoke only shows that everything runs, on drawn pictures: its figures mean nothing.")
    options: dict[str, Any] = {"seeds": seeds, "folder": folder, "fresh": fresh}
    return Comparison(config, chosen, command=find_command(), **options).run()


class Comparison:
    """Runs of several methods and seeds into one folder.

    Every run keeps a checkpoint in ``folder/runs``: the same command goes on where it was stopped,
    and takes a finished run as it is, as long as config and commit are the same. Code that changed
    trains again and says so; other settings are refused.

    Args:
        config: Everything but method and seed.
        methods: Names.
        seeds: How many; 0, 1, ...
        folder: For results.json, pictures, runs.
        command: What was typed, for the report.
        fresh: Train again whatever is in the folder.

    Raises:
        ValueError: If a method cannot be built with the config's options, or the folder holds
            runs of other settings; nothing is written.
    """

    def __init__(
        self,
        config: RunConfig,
        methods: list[str],
        *,
        seeds: int,
        folder: Path,
        command: str,
        fresh: bool = False,
    ) -> None:
        check_count("seeds", seeds)
        self.config, self.methods, self.seeds = config, methods, range(seeds)
        self.folder, self.fresh = folder, fresh
        self.images = ImagePair(config)
        for name in methods:  # a method that cannot be built is told before the first is trained
            build_model(self._configure(name, self.seeds[0]), self.images.train)
        if not fresh:
            self._refuse_other_settings()
        self.commit = find_commit()
        self.pictures: dict[str, Tensor] = {}
        self.results: Results = {
            "methods": {},
            "config": to_json(config),
            "versions": find_versions(),
            "device": "",
            "commit": self.commit,
            "command": command,
            "data": f"{self.images.train.name}; {self.images.test.name}",
        }

    def run(self) -> Results:
        """Train and measure everything, writing what is known after each run.

        Returns:
            The results, as in results.json.
        """
        begin = time.perf_counter()
        runs = list(itertools.product(self.seeds, self.methods))
        for place, (seed, name) in enumerate(runs, start=1):
            print(f"Run {place} of {len(runs)}: {name}, seed {seed}", flush=True)
            result, device = self._train(name, seed)
            self.results["device"] = device
            self._add(name, seed, result)
            save_results(self.folder, self.results)
            save_pictures(self.folder, self.pictures)
        print(f"Trained and measured in {time.perf_counter() - begin:.0f} s.")
        return self.results

    def _train(self, name: str, seed: int) -> tuple[RunResult, str]:
        config = self._configure(name, seed)
        folder = self.folder / "runs" / f"{name}-seed{seed}"
        run = finish_run(config, images=self.images, folder=folder, fresh=self.fresh)
        model = run.result.model
        if isinstance(model.quantizer, Quantizer | Arrangement) and run.accelerator.is_main_process:
            save_model(model, folder / "model.safetensors")
        return run.result, name_device(run.accelerator.device)

    def _refuse_other_settings(self) -> None:
        """Raise if the folder holds a run of the same name with other settings: it may be long."""
        for seed, name in itertools.product(self.seeds, self.methods):
            path = self.folder / "runs" / f"{name}-seed{seed}" / CHECKPOINT
            if not path.exists():
                continue
            changes = find_changes(read_state(path)["config"], to_json(self._configure(name, seed)))
            if changes:
                raise ValueError(
                    f"out={self.folder} holds {name} seed {seed} of another run: "
                    f"{'; '.join(changes)}. Use another folder (OUT=), or --fresh (FRESH=1) to "
                    "train it again and lose the old one."
                )

    def _configure(self, name: str, seed: int) -> RunConfig:
        method = dataclasses.replace(self.config.method, name=name)
        return dataclasses.replace(self.config, method=method, seed=seed)

    def _add(self, name: str, seed: int, result: RunResult) -> None:
        net = self.config.net
        method = get_method(name).at(net.num_codes, net.dim)
        rate = self.config.method.lr or method.lr
        entry: MethodResult = self.results["methods"].setdefault(
            name,
            {"seeds": [], "label": method.label, "how": f"{method.how}; learning rate {rate:g}"},
        )
        entry["seeds"].append(self._seed_result(seed, result))
        if seed == self.seeds[0]:
            self._show(name, result)

    def _show(self, name: str, result: RunResult) -> None:
        """Keep what the page shows of a method: test pictures, counts, what its codes look like."""
        shown = torch.arange(min(NUM_PICTURES, len(self.images.test)))
        device = next(result.model.parameters()).device
        images = to_model_range(self.images.test.batch(shown)).to(device)
        pictures = reconstruct(result.model, images)
        self.pictures |= {
            "inputs": pictures.inputs,
            f"{name}/hard": pictures.hard,
            f"{name}/counts": result.counts,
        }
        if pictures.soft is not None:
            self.pictures[f"{name}/soft"] = pictures.soft
        patches = average_patches(result.model, self.images.test)
        atlas = pick_codes(patches, result.counts, first_codebook(result.model.quantizer))
        self.pictures |= {f"{name}/{part}": tensor for part, tensor in atlas.items()}

    def _seed_result(self, seed: int, result: RunResult) -> SeedResult:
        return {
            "seed": seed,
            "evals": [dict(each) for each in result.evals],
            "final": dict(result.evals[-1]),
            "train": {
                "loss": [each["loss"] for each in result.losses],
                "step": [int(each["step"]) for each in result.losses],
            },
            "warnings": result.warnings,
            "conditions": result.conditions,
            "missing": result.missing,
        }
