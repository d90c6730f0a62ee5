"""The measures that a comparison leaves in its folder: ``results.json``.

Written whole or not at all, and checked on the way in and on the way out, so that the table, the
figures and the page never meet half a result. `eval.pictures` does the same for the pictures.
"""

import json
import math
from collections.abc import Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any, NoReturn, TypedDict, TypeVar, cast

from softvq.files import replacing

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

_NOT_FINITE = {text: float(text) for text in ("nan", "inf", "-inf")}

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


def write_json(path: Path, values: Mapping[str, Any]) -> Path:
    r"""Write plain values as JSON, whole or not at all; what is not finite as text.

    Args:
        path: The file; missing folders are made.
        values: Of JSON's kinds.

    Returns:
        The path.

    Raises:
        ValueError: For a value that JSON has no kind for; nothing is written then.

    Example:
        >>> import tempfile
        >>> write_json(Path(tempfile.mkdtemp()) / "a.json", {"loss": math.nan}).read_text()
        '{\n "loss": "nan"\n}\n'
    """
    try:
        text = json.dumps(_encode(values), indent=1, allow_nan=False)
    except TypeError as error:
        raise ValueError(
            f"results must hold plain JSON values only: {error}. Convert it to a str or float."
        ) from error
    with replacing(path) as beside:
        beside.write_text(text + "\n", encoding="utf-8")
    return path


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
    path = Path(folder) / RESULTS_FILE
    remedy = f"Make it again with: make compare OUT={folder}"
    if not path.is_file():
        raise ValueError(
            f"{folder} holds no {RESULTS_FILE}. Make it with: make compare OUT={folder}"
        )
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


def find_mean(values: Sequence[float]) -> float:
    """Return the mean; NaN and infinities are kept, not averaged away.

    Example:
        >>> find_mean([1.0, 2.0, 4.5])
        2.5
    """
    return sum(values) / len(values)


def find_deviation(values: Sequence[float]) -> float:
    """Return the sample standard deviation (divisor n - 1), NaN for one value.

    Example:
        >>> find_deviation([1.0, 3.0])
        1.4142135623730951
    """
    if len(values) < 2:
        return math.nan
    mean = find_mean(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))


def collect_final(method: MethodResult, measure: str) -> list[float] | None:
    """Return the measure at the end of every run, or None unless all runs have it.

    Example:
        >>> run = {"seed": 0, "evals": [], "final": {"entropy": 0.5}, "warnings": []}
        >>> collect_final({"seeds": [run], "label": "", "how": ""}, "entropy")
        [0.5]
    """
    found = [run["final"].get(measure) for run in method["seeds"]]
    values = [value for value in found if value is not None]
    return values if len(values) == len(found) else None


def _encode(value: object) -> object:
    """Turn what JSON cannot say (NaN, infinities) into strings, at any depth."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {key: _encode(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_encode(entry) for entry in value]
    return value


def _decode_measures(results: dict[str, Any]) -> None:
    """Turn the strings of ``_encode`` back, in measures and losses alone: they hold no text."""
    for method in results["methods"].values():
        for run in method["seeds"]:
            for record in [*run["evals"], run["final"]]:
                record.update((key, _NOT_FINITE.get(v, v)) for key, v in list(record.items()))
            if "train" in run:
                losses = run["train"]["loss"]
                run["train"]["loss"] = [_NOT_FINITE.get(loss, loss) for loss in losses]


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
            if value is not None and not _is_number(value):
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
        if len(loss) != len(step) or not all(map(_is_number, [*loss, *step])):
            refuse(f"{where} must hold as many numbers in loss as in step.", remedy)


def _is_number(value: object) -> bool:
    """Whether this is a number, or stands in JSON for one that is not finite."""
    if isinstance(value, str):
        return value in _NOT_FINITE
    return isinstance(value, Real) and not isinstance(value, bool)


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


def refuse(message: str, remedy: str) -> NoReturn:
    """Raise a ValueError of the message and of what to do.

    Example:
        >>> refuse("inputs are missing.", " Train again.")
        Traceback (most recent call last):
        ValueError: inputs are missing. Train again.
    """
    raise ValueError(message + remedy)
