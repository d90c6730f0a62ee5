"""`python -m eval COMMAND`: the comparison and its page, times and memory, and the experiments.

A command is one module; an experiment's command line is its function of the same name.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

import torch
import tyro

from eval.ablation import ablation
from eval.assignment import assignment
from eval.bench import run as run_bench
from eval.bench_model import run as run_model_bench
from eval.bench_readout import run as run_readout_bench
from eval.compare import run_comparison
from eval.factors import factors
from eval.measure import describe_measured, measure_model, open_model
from eval.public import public
from eval.refine import refine
from eval.report import write_report
from eval.results import load_results
from eval.robust import robust
from eval.runs import Word, Words, find_command
from eval.scale import scale
from eval.terminal import print_table
from eval.theorems import theorems
from eval.tune import tune
from eval.use import use
from softvq.data import load_images
from softvq.data.fetch import FetchError
from train.presets import make_preset
from train.prior.config import PriorConfig, Sampling
from train.values import override


def compare(
    preset: Word = "quick",
    overrides: Words = (),
    /,
    *,
    out: Path | None = None,
    seeds: int = 1,
    methods: str = "",
    fresh: bool = False,
) -> None:
    """Train SoftVQ and its rivals, and compare their hard codes on the test set.

    Args:
        preset: quick, reference, public, full or smoke.
        overrides: Changes such as data=textures optim.steps=1000 net.num_codes=1024.
        out: Folder for results.json, report.html and pictures; runs/compare-PRESET by default.
        seeds: Runs of each method, paired over methods.
        methods: Comma-separated, or rivals, ablation, all; the preset's own if empty.
        fresh: Train again what the folder holds already.
    """
    folder = out or Path("runs") / f"compare-{preset}"
    results = run_comparison(
        preset, overrides, methods=methods, seeds=seeds, folder=folder, fresh=fresh
    )
    print_table(results)
    print(f"Report: {write_report(folder)}")


def report(folder: Annotated[Path, tyro.conf.Positional], /) -> None:
    """Print the table of a finished comparison and write its page again.

    Args:
        folder: Holds results.json and pictures.safetensors.
    """
    print_table(load_results(folder))
    print(f"Report: {write_report(folder)}")


def measure(
    file: Annotated[Path, tyro.conf.Positional],
    /,
    *,
    source: Literal["cifar10", "folder", "textures"] = "cifar10",
    path: Path | None = None,
    size: int = 32,
    channels: int = 3,
    num_images: int | None = None,
    threads: int | None = None,
) -> None:
    """Measure a checkpoint or a model on test pictures: all but what image nets say.

    Args:
        file: checkpoint.safetensors or model.safetensors of a run.
        source: Of the test pictures.
        path: The folder, for the source folder.
        size: Side of the pictures, for folder and textures.
        channels: 1 or 3.
        num_images: The first so many; all if not given.
        threads: For torch; its own choice if not given.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    options = {"path": path, "size": size, "channels": channels, "num_images": num_images}
    images = load_images(source, "test", **options)
    measured = measure_model(open_model(file, images), images)
    for line in describe_measured(measured, images=images):
        print(line)


def bench(
    problems: Word = "quick",
    /,
    *,
    names: str = "",
    repeats: int = 5,
    threads: int | None = None,
    out: Path = Path("runs/bench"),
) -> None:
    """Time quantizers side by side, after checking that ours is right.

    Args:
        problems: quick, growth or smoke; residual times stacks of four stages, readout
            DDCLAttention against self-attention, model a whole training step of the VQ-VAE.
        names: Comma-separated contenders, for model methods of compare; the usual ones if empty.
        repeats: Steps of each that count.
        threads: For torch; its own choice if not given.
        out: Folder for bench.json and bench.png.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    if problems == "readout":
        run_readout_bench(repeats=repeats, folder=out)
        return
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    if problems == "model":
        run_model_bench(names=wanted, repeats=repeats, folder=out)
        return
    run_bench(problems, names=wanted, repeats=repeats, folder=out)


def prior(
    overrides: Words = (),
    /,
    *,
    methods: str = "softvq,lucid-ema",
    preset: str = "quick",
    tokenizers: Path | None = None,
    samples: int = 1000,
    sampling: Sampling = Sampling(),  # noqa: B008 - frozen
    out: Path | None = None,
    picture: Path | None = None,
) -> None:
    """Train the same small generator on the tokens of several tokenizers, and compare.

    Args:
        overrides: Changes of the generator, such as optim.steps=2000 net.layers=6.
        methods: Tokenizers, comma-separated.
        preset: How they are trained.
        tokenizers: Folder of a comparison, whose finished runs are taken and in which the others
            are trained; runs/compare-PRESET by default.
        samples: Pictures to draw of each, over 512 for FD-VGG16.
        sampling: How they are drawn.
        out: Folder for tokens, generators, samples and prior.json; what is there is taken.
            runs/prior-PRESET by default.
        picture: PNG file to write; prior.png in the folder by default.
    """
    # Image nets and transformers take seconds to import, and no other command needs them.
    from eval.prior import RESULTS, Folders, PriorStudy, Study
    from eval.prior_table import print_study

    tokenizer = make_preset(preset)
    # Drawn pictures have no classes.
    first = ["conditional=false"] if tokenizer.data.source == "textures" else []
    study = Study(
        methods=tuple(dict.fromkeys(name.strip() for name in methods.split(",") if name.strip())),
        tokenizer=tokenizer,
        prior=override(PriorConfig(), [*first, *overrides]),
        sampling=sampling,
        samples=samples,
    )
    runs = Path("runs")
    folders = Folders(tokenizers or runs / f"compare-{preset}", out or runs / f"prior-{preset}")
    work = PriorStudy(study, folders=folders, command=find_command())
    print_study(work.run())
    drawn = work.draw(picture or folders.out / "prior.png")
    print(f"Figures: {folders.out / RESULTS}  Pictures: {drawn}")


def paper(
    experiments: Words = (),
    /,
    *,
    sizes: str = "full",
    threads: int | None = None,
    jobs: int = 1,
    out: Path = Path("runs/paper"),
    page: Path | None = None,
) -> None:
    """Do the experiments of the DDCL-Attention paper again; goes on from what is there.

    Args:
        experiments: readout, codebook, finetune, rates, pictures, clusters, stack, lengths; all if
            none is named.
        sizes: full, or smoke for a look at whether everything runs.
        threads: For torch; its own choice if not given.
        jobs: Experiments at a time, in processes of one thread; 2 suits two cores.
        out: Folder for tables, figures and pages.
        page: docs/paper.md, to put the tables and figures in anew.
    """
    # Here and not above: the extra `paper` is needed by this command alone.
    from eval.paper.run import run_experiments

    if threads is not None:
        torch.set_num_threads(threads)
    run_experiments(list(experiments), sizes=sizes, folder=out, page=page, jobs=jobs)


if __name__ == "__main__":
    try:
        commands: dict[str, Callable[..., object]] = {
            **{"compare": compare, "report": report, "measure": measure, "bench": bench},
            **{"prior": prior, "ablation": ablation, "factors": factors, "tune": tune},
            **{
                "robust": robust,
                "refine": refine,
                "scale": scale,
                "use": use,
                "theorems": theorems,
                "public": public,
            },
            **{"assignment": assignment, "paper": paper},
        }
        tyro.extras.subcommand_cli_from_dict(commands, prog="python -m eval")
    except (ValueError, OSError, FetchError) as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(
            "\nStopped. The same command goes on from what was saved, if the code is the same."
        )
