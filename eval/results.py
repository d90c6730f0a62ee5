"""The measures that a comparison leaves in its folder: ``results.json``.

Written whole or not at all, and checked on the way in and on the way out, so that the table, the
figures and the page never meet half a result. `eval.pictures` does the same for the pictures.
"""

import json
from pathlib import Path
from typing import Any, TypedDict, TypeVar, cast

from eval.storage import (
    decode_number,
    find_file,
    is_stored_number,
    refuse,
    tell_remedy,
    write_json,
)

Kind = TypeVar("Kind")

FORMAT = 1
RESULTS_FILE = "results.json"

HARD_MEASURES = (
    "psnr_hard",
    "psnr_hard_of_mean",
    "use_hard",
    "perplexity_hard",
    "distinct_codes",
    "seconds",
)
"""Measures that every method has."""
SOFT_MEASURES = (
    "psnr_soft",
    "psnr_soft_of_mean",
    "use_soft",
    "perplexity_soft",
    "entropy",
    "spread_share",
)
"""Measures of the soft assignment: all None for a quantizer that has none."""

Evaluation = dict[str, float | None]
"""``images`` and ``step`` (whole numbers) and the measures taken there."""


class TrainCurve(TypedDict):
    """The training loss and the steps it was noted at."""

    loss: list[float]
    step: list[int]


class _SeedResult(TypedDict):
    seed: int
    evals: list[Evaluation]
    final: Evaluation
    warnings: list[str]


class SeedResult(_SeedResult, total=False):
    """One run of a method: its evaluations in order, the last one again, and what it warned of."""

    train: TrainCurve
    conditions: dict[str, dict[str, Any]]
    """By measure, what it was taken under: range, dtype, size, crop, resize, images, net."""
    missing: dict[str, str]
    """By measure, why it could not be taken."""


class MethodResult(TypedDict):
    """The runs of one method, its name for people, and one line on how it was set and measured."""

    seeds: list[SeedResult]
    label: str
    how: str


class _Results(TypedDict):
    methods: dict[str, MethodResult]
    config: dict[str, Any]
    versions: dict[str, str]
    device: str
    commit: str
    command: str
    data: str


class Results(_Results, total=False):
    """All that ``results.json`` holds."""

    format: int


def save_results(folder: Path | str, results: Results) -> Path:
    """Write ``results.json`` into ``folder``.

    NaN and infinities, which a diverged run has, are no JSON: they are written as the strings
    ``"nan"``, ``"inf"`` and ``"-inf"`` and come back as numbers.

    Args:
        folder: The output folder; made if missing.
        results: What to write; ``format`` is added.

    Returns:
        The file.

    Raises:
        ValueError: If an entry is missing or of the wrong kind; nothing is written then.

    Example:
        >>> save_results("runs", {"methods": {}})
        Traceback (most recent call last):
        ValueError: results.methods must be a dict that is not empty; got {}.
    """
    _check_results(results, remedy="")
    return write_json(Path(folder) / RESULTS_FILE, {**results, "format": FORMAT})


def load_results(folder: Path | str) -> Results:
    """Read and check ``results.json`` of ``folder``.

    Args:
        folder: The output folder of a comparison.

    Returns:
        The results, with ``format``.

    Raises:
        ValueError: If the file is missing, cut short, of another format version, or lacks an entry.

    Example:
        >>> load_results("no-such-folder")
        Traceback (most recent call last):
        ValueError: no-such-folder holds no results.json. Make it with: make compare \
OUT=no-such-folder
    """
    path, remedy = find_file(folder, RESULTS_FILE), tell_remedy(folder)
    try:
        results = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is cut short or damaged ({error}). {remedy}") from error
    version = results.get("format") if isinstance(results, dict) else None
    if version != FORMAT:
        raise ValueError(
            f"{path} has format {version!r}; this version reads format {FORMAT}. {remedy}"
        )
    _check_results(results, remedy=f" In {path}. {remedy}")
    _decode_measures(results)
    return cast(Results, results)


def _decode_measures(results: dict[str, Any]) -> None:
    """Turn strings back into numbers, in measures and losses alone: they hold no text."""
    for method in results["methods"].values():
        for run in method["seeds"]:
            for record in [*run["evals"], run["final"]]:
                record.update((key, decode_number(value)) for key, value in list(record.items()))
            if "train" in run:
                run["train"]["loss"] = [decode_number(loss) for loss in run["train"]["loss"]]


def _check_results(results: object, *, remedy: str) -> None:
    methods = _need(results, "methods", dict, "results", remedy)
    if not methods:
        refuse("results.methods must be a dict that is not empty; got {}.", remedy)
    for name, method in methods.items():
        _check_method(method, f"methods.{name}", remedy)
    for key in ("config", "versions"):
        _need(results, key, dict, "results", remedy)
    for key in ("device", "commit", "command", "data"):
        _need(results, key, str, "results", remedy)


def _check_method(method: object, where: str, remedy: str) -> None:
    for key in ("label", "how"):
        _need(method, key, str, where, remedy)
    runs = _need(method, "seeds", list, where, remedy)
    if not runs:
        refuse(f"{where}.seeds is empty; give at least one run.", remedy)
    for place, run in enumerate(runs):
        _check_run(run, f"{where}.seeds[{place}]", remedy)
    seeds = [run["seed"] for run in runs]
    if len(set(seeds)) < len(seeds):
        refuse(f"{where}.seeds holds a seed twice: {seeds}. Keep one run a seed.", remedy)


def _check_run(run: dict[str, Any], where: str, remedy: str) -> None:
    _need(run, "seed", int, where, remedy)
    _need(run, "warnings", list, where, remedy)
    evals = _need(run, "evals", list, where, remedy)
    if not evals:
        refuse(f"{where}.evals is empty; give at least one evaluation.", remedy)
    records = {f"{where}.evals[{place}]": record for place, record in enumerate(evals)}
    records[f"{where}.final"] = _need(run, "final", dict, where, remedy)
    for name, record in records.items():
        for key in ("images", "step"):
            _need(record, key, int, name, remedy)
        for key in (*HARD_MEASURES, *SOFT_MEASURES):
            if key not in record:
                refuse(f"{name} lacks {key!r}; give a number, or None where none is.", remedy)
        for key, value in record.items():
            if value is not None and not is_stored_number(value):
                refuse(f"{name}.{key} must be a number or None; got {value!r}.", remedy)
    _check_extras(run, where, remedy)


def _check_extras(run: dict[str, Any], where: str, remedy: str) -> None:
    if "conditions" in run:
        for measure in _need(run, "conditions", dict, where, remedy):
            _need(run["conditions"], measure, dict, f"{where}.conditions", remedy)
    if "missing" in run:
        for measure in _need(run, "missing", dict, where, remedy):
            _need(run["missing"], measure, str, f"{where}.missing", remedy)
    if "train" in run:
        where = f"{where}.train"
        train = _need(run, "train", dict, where, remedy)
        loss, step = (_need(train, key, list, where, remedy) for key in ("loss", "step"))
        if len(loss) != len(step) or not all(map(is_stored_number, [*loss, *step])):
            refuse(f"{where} must hold as many numbers in loss as in step.", remedy)


def _need(record: object, key: str, kind: type[Kind], where: str, remedy: str) -> Kind:
    """Return ``record[key]`` if it is there and of ``kind``."""
    if not isinstance(record, dict):
        refuse(f"{where} must be a dict; got {type(record).__name__}.", remedy)
    if key not in record:
        refuse(f"{where} lacks {key!r} ({kind.__name__}).", remedy)
    value = record[key]
    if isinstance(value, bool) or not isinstance(value, kind):
        refuse(f"{where}.{key} must be of type {kind.__name__}; got {value!r}.", remedy)
    return value
