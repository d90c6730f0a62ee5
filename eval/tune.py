"""A method's rate and weights, one factor at a time, on images held out: `python -m eval tune`."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eval.runs import Word, Words, finish_run, save_study
from eval.seeds import find_mean
from eval.terminal import print_rows
from softvq.checks import check_count
from train.config import MethodConfig, RunConfig
from train.images import ImagePair
from train.loop import Run
from train.methods import get_method
from train.presets import make_preset
from train.values import override

HELD_OUT = 2000
MOST_STEPS = 400
TUNED_FILE = "tuned.json"
RATE = "lr"

Settings = dict[str, float]


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One value of one factor, the others as they were best so far; means over seeds.

    Attributes:
        factor: "lr", or an option of the method.
        value: What was tried.
        settings: All factors of the trial.
        psnr_hard: On the images held out, in dB.
        use_hard: Share of codes in use there.
        perplexity_hard: Of their hard codes.
        seconds: Of training.
    """

    factor: str
    value: float
    settings: Settings
    psnr_hard: float
    use_hard: float
    perplexity_hard: float
    seconds: float


def tune(
    method: Word,
    preset: Word = "quick",
    overrides: Words = (),
    /,
    *,
    out: Path | None = None,
    seeds: int = 1,
    fresh: bool = False,
) -> None:
    """Tune a method, one factor at a time, on training images that are held out, the last 2,000.

    Args:
        method: A name as in --methods of compare.
        preset: quick, reference, public, full or smoke; at most 400 steps of it are taken.
        overrides: Changes such as net.num_codes=8192 net.dim=8; method.lr= is the middle rate.
        out: Folder for tuned.json and runs; runs/tune-METHOD-PRESET by default.
        seeds: Runs of each trial.
        fresh: Train again what the folder holds already.
    """
    folder = out or Path("runs") / f"tune-{method}-{preset}"
    config = override(make_preset(preset), list(overrides))
    Tuning(method, config, seeds=seeds, folder=folder, fresh=fresh).run()


def hold_out(config: RunConfig) -> RunConfig:
    """The run measured once, at its end, on training images that it does not see."""
    data = dataclasses.replace(
        config.data, held_out=HELD_OUT, num_lpips=0, num_frechet=0, num_fid=0
    )
    return dataclasses.replace(config, data=data, eval_at=(1.0,))


class Tuning:
    """Trials of one method into one folder.

    Args:
        method: Its name.
        config: The budget; its rate, if it has one, is the middle of those tried.
        seeds: How many runs a trial.
        folder: For tuned.json and runs.
        fresh: Train again whatever is in the folder.

    Raises:
        ValueError: For an unknown name, or overrides of what is tuned.
    """

    def __init__(
        self,
        method: str,
        config: RunConfig,
        *,
        seeds: int,
        folder: Path,
        fresh: bool = False,
    ) -> None:
        self.method = get_method(method).at(config.net.num_codes, config.net.dim)
        self.seeds = range(check_count("seeds", seeds))
        self.folder, self.fresh = folder, fresh
        if config.method.options or config.method.name not in (method, "softvq"):
            raise ValueError(
                "method.options and method.name are what tuning sets: give the method first, and "
                "only method.lr= to move the middle of its rates."
            )
        optim = dataclasses.replace(config.optim, steps=min(config.optim.steps, MOST_STEPS))
        rate = config.method.lr or self.method.lr
        config = dataclasses.replace(config, method=MethodConfig(name=method), optim=optim)
        self.config = hold_out(config)
        self.images = ImagePair(self.config)
        self.factors = {RATE: (rate, rate / 2, 2 * rate), **self.method.tuned}
        self.trials: list[Trial] = []
        self._known: dict[tuple, Trial] = {}
        self._last: Run | None = None

    def run(self) -> Settings:
        """Try all, write tuned.json after each trial, print the table.

        Returns:
            The best settings.
        """
        best = {factor: values[0] for factor, values in self.factors.items()}
        for factor, values in self.factors.items():
            tried = []
            for value in sorted(values):
                trial = self._try(factor, value, {**best, factor: value})
                tried.append(trial)
                self.trials.append(trial)
                self._save(best)
            # NaN, of a run that diverged, is never the best.
            found = max(
                tried, key=lambda trial: (trial.psnr_hard == trial.psnr_hard, trial.psnr_hard)
            )
            best[factor] = found.value
        self._save(best)
        self._print(best)
        return best

    def _try(self, factor: str, value: float, settings: Settings) -> Trial:
        key = tuple(settings.items())
        if key not in self._known:
            self._known[key] = self._measure(settings)
        return dataclasses.replace(self._known[key], factor=factor, value=value)

    def _measure(self, settings: Settings) -> Trial:
        words = ",".join(f"{name}={value:g}" for name, value in settings.items())
        options: dict[str, float | int | str | bool] = {
            name: value for name, value in settings.items() if name != RATE
        }
        method = dataclasses.replace(self.config.method, lr=settings[RATE], options=options)
        finals = []
        for seed in self.seeds:
            config = dataclasses.replace(self.config, method=method, seed=seed)
            folder = self.folder / "runs" / f"{words}-seed{seed}"
            self._last = finish_run(config, images=self.images, folder=folder, fresh=self.fresh)
            finals.append(self._last.result.evals[-1])
        means: dict[str, Any] = {
            name: find_mean([final[name] for final in finals])
            for name in ("psnr_hard", "use_hard", "perplexity_hard", "seconds")
        }
        return Trial(factor="", value=0.0, settings=dict(settings), **means)

    def _save(self, best: Settings) -> None:
        if self._last is None:
            raise RuntimeError("a trial is saved after it was run")
        content = {
            "method": self.config.method.name,
            "seeds": len(self.seeds),
            "trials": [dataclasses.asdict(trial) for trial in self.trials],
            "best": best,
        }
        save_study(self.folder / TUNED_FILE, content, run=self._last)

    def _print(self, best: Settings) -> None:
        rows = []
        for trial in self.trials:
            mark = " *" if best[trial.factor] == trial.value else "  "
            cells = [trial.factor, f"{trial.value:g}{mark}", f"{trial.psnr_hard:.2f}"]
            rows.append([*cells, f"{100 * trial.use_hard:.1f}", f"{trial.perplexity_hard:.1f}"])
        title = f"{self.method.label}, {self.config.optim.steps} steps, {self.images.test.name}"
        print_rows(title, ["Factor", "Value", "Hard PSNR dB", "Use %", "Perplexity"], rows)
        rates = sorted(self.factors[RATE])
        if best[RATE] in (rates[0], rates[-1]):
            print(f"The best rate is the last of those tried: try method.lr={best[RATE]:g} too.")
        print("Best: " + ", ".join(f"{name}={value:g}" for name, value in best.items()))
        print(f"Written: {self.folder / TUNED_FILE}")
