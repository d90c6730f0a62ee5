"""What the files beside trained models tell about themselves: results, a prior, and others.

A comparison writes ``results.json``, the prior's training ``prior.safetensors``. Their keys are
read here and nothing that wrote them is imported.
"""

import json
import math
from pathlib import Path
from typing import Any

from torch import Tensor

from softvq.models.info import Facts

RESULTS_VERSION = 1
"""Newest ``format`` of ``results.json`` that is known."""
PRIOR_FORMAT = "softvq-prior-checkpoint"
PRIOR_VERSION = 1
TAKES = (
    "softvq info takes a model, a checkpoint, a codebook, a shard or a prior (safetensors), the "
    "folder of a token set, or results.json of a comparison."
)
_BEGINNING = 256
_MARKS = {
    b"PK\x03\x04": "a ZIP archive, as torch.save and torch.export write",
    b"\x80\x02": "a pickle, as an old torch.save writes",
    b"\x89PNG": "a PNG picture",
    b"\xff\xd8\xff": "a JPEG picture",
    b"\x1f\x8b": "a gzip archive",
    b"%PDF": "a PDF page",
    b"PAR1": "a parquet file",
    b"\x93NUMPY": "a NumPy array",
}
_WIDEST = 60


def describe_prior(config: dict[str, Any], tensors: dict[str, Tensor]) -> Facts:
    """Facts of a checkpoint of a prior, a transformer on exported tokens.

    Args:
        config: Of the file's metadata: the run's state.
        tensors: Of the file: net, optimizer, random state.

    Returns:
        Steps, net, vocabulary, last measures, and the command that reads it.

    Example:
        >>> vocabulary = {"num_codes": 8, "vocab_size": 9, "classes": [], "grid": [4, 4]}
        >>> run = {"net": {"layers": 2}, "optim": {"steps": 9}, "seed": 0}
        >>> config = {"config": run, "vocabulary": vocabulary | {"codebook_digest": "ab"}}
        >>> facts = describe_prior({**config, "step": 3}, {})
        >>> facts["step"], facts["net"], facts["vocabulary"]
        ('3 of 9', 'layers=2', '8 codes and 1 special tokens')
    """
    run, vocabulary = config["config"], config["vocabulary"]
    num_codes, classes = vocabulary["num_codes"], vocabulary["classes"]
    last = (config.get("evals") or [{}])[-1]
    return {
        "step": f"{config['step']} of {run['optim']['steps']}",
        "seed": run["seed"],
        "net": ", ".join(f"{name}={value}" for name, value in run["net"].items()),
        "codes (K)": num_codes,
        "vocabulary": f"{num_codes} codes and {vocabulary['vocab_size'] - num_codes} special "
        "tokens",
        "begins with": f"one of {len(classes)} classes, or bos" if classes else "bos",
        "grid": " x ".join(map(str, vocabulary["grid"])),
        "nats per token, last measured on unseen items": last.get("nats_per_token"),
        "values of weights": sum(
            each.numel() for name, each in tensors.items() if name.startswith("model.")
        ),
        "codebook digest": vocabulary["codebook_digest"],
        "commit": config.get("commit"),
        "read by": "python -m train.prior sample FILE --tokenizer MODEL, in the clone",
    }


def is_json(path: Path | str) -> bool:
    """Whether a file begins as a JSON object; a safetensors file begins with eight other bytes.

    Example:
        >>> is_json("no-such-file")
        False
    """
    beginning = _read_beginning(path)
    return beginning.lstrip().startswith(b"{") and b"\0" not in beginning


def read_results(path: Path | str) -> dict[str, Any]:
    """What ``results.json`` of a comparison holds.

    Raises:
        ValueError: If it is another JSON file, none as a whole, or of a newer version.
    """
    try:
        results = json.loads(Path(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"path {path} begins as JSON and is none as a whole ({error}): it is cut short, or of "
            f"several texts. {TAKES}"
        ) from error
    if not {"methods", "commit", "format"} <= results.keys():
        keys = ", ".join(list(results)[:8]) or "none"
        raise ValueError(
            f"path {path} is a JSON file with the keys {keys:.200}: no results of a comparison. "
            f"{TAKES}"
        )
    version = results["format"]
    if type(version) is not int or not 1 <= version <= RESULTS_VERSION:
        raise ValueError(
            f"path {path} holds results of a comparison in format {version!r:.80}; this softvq "
            f"reads up to {RESULTS_VERSION}: update softvq, or compare anew."
        )
    return results


def describe_results(results: dict[str, Any]) -> Facts:
    """Facts of ``results.json``: what was compared, and what each method reached by hard codes.

    Args:
        results: As `read_results` gives them.

    Returns:
        Methods, seeds, where and how; then by method the mean over its seeds.

    Example:
        >>> final = {"step": 9, "psnr_hard": 20.0, "use_hard": 0.5, "perplexity_hard": 3.0}
        >>> run = {"seed": 0, "final": final}
        >>> facts = describe_results({"methods": {"ste": {"seeds": [run, run | {"seed": 1}]}}})
        >>> facts["seeds"], facts["ste"]
        ('0, 1', 'hard PSNR 20.00 dB, use 50.0 %, perplexity 3.0 (mean of 2)')
    """
    methods = {name: method["seeds"] for name, method in results["methods"].items()}
    runs = [run for each in methods.values() for run in each]
    return {
        "methods": ", ".join(methods),
        "seeds": _join(run["seed"] for run in runs),
        "steps": _join(run["final"]["step"] for run in runs),
        "data": results.get("data"),
        "device": results.get("device"),
        "command": results.get("command"),
        "commit": results.get("commit"),
        "warnings": sum(len(run.get("warnings", [])) for run in runs),
        **{
            name: _describe_method([run["final"] for run in each]) for name, each in methods.items()
        },
    }


def name_beginning(path: Path | str) -> str | None:
    """What a file is that is none of softvq's, by its first bytes; None where they do not say.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "report.html"
        >>> _ = path.write_text("<!DOCTYPE html><html></html>")
        >>> name_beginning(path)
        'an HTML page, for a browser'
    """
    beginning = _read_beginning(path)
    if beginning[4:9] == b"\0\0\0\0{":
        return None  # safetensors: the length of its header may look like any mark
    for mark, name in _MARKS.items():
        if beginning.startswith(mark):
            return name
    try:
        text = beginning.decode("utf-8").strip()
    except UnicodeDecodeError as error:
        if error.start < len(beginning) - 3:  # else a letter that the cut went through
            return None
        text = beginning[: error.start].decode("utf-8").strip()
    if not text or not all(each.isprintable() or each.isspace() for each in text):
        return None
    if text.lower().startswith(("<!doctype html", "<html")):
        return "an HTML page, for a browser"
    return f"a text file that begins {text.splitlines()[0][:_WIDEST]!r}"


def _read_beginning(path: Path | str) -> bytes:
    path = Path(path)
    if not path.is_file():
        return b""
    with path.open("rb") as file:
        return file.read(_BEGINNING)


def _describe_method(finals: list[dict[str, Any]]) -> str:
    psnr, use, perplexity = (
        _mean([final[name] for final in finals])
        for name in ("psnr_hard", "use_hard", "perplexity_hard")
    )
    seeds = f" (mean of {len(finals)})" if len(finals) > 1 else ""
    return f"hard PSNR {psnr:.2f} dB, use {100 * use:.1f} %, perplexity {perplexity:.1f}{seeds}"


def _mean(values: list[Any]) -> float:
    """NaN where one is missing; what is not finite stands in JSON as text."""
    numbers = [math.nan if value is None else float(value) for value in values]
    return math.fsum(numbers) / len(numbers)


def _join(values: Any) -> str:  # noqa: ANN401 - whatever is in the file
    return ", ".join(map(str, dict.fromkeys(values)))
