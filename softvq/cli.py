"""The command line: `softvq info`, `export`, `encode`, `decode`, `swap-report`.

argparse, since what `pip install softvq` gives must run with its five dependencies alone. A
subcommand is a function that takes the parsed arguments and returns the text to print; a file
format is an entry of `FORMATS`.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

import softvq
from softvq.checks import choose
from softvq.export import codebook, shards
from softvq.export.commands import add_commands
from softvq.export.describe import (
    describe_codebook_file,
    describe_shard,
    describe_tokens,
    is_token_set,
    show,
)
from softvq.files import blaming
from softvq.hosts import swap_report
from softvq.models import comparison, io
from softvq.models.info import Facts, describe_checkpoint, describe_model
from softvq.models.io import check_format, read_tensors


class Format(NamedTuple):
    """A kind of file: what it is for people, the newest version known, who describes it."""

    title: str
    version: int
    describe: Callable[[dict[str, Any], dict[str, Tensor]], Facts]


FORMATS = {
    io.FORMAT: Format("model", io.FORMAT_VERSION, describe_model),
    "softvq-checkpoint": Format("checkpoint of a training run", 1, describe_checkpoint),
    codebook.FORMAT: Format("codebook", codebook.FORMAT_VERSION, describe_codebook_file),
    shards.FORMAT: Format("shard of a token set", shards.FORMAT_VERSION, describe_shard),
    comparison.PRIOR_FORMAT: Format(
        "checkpoint of a prior", comparison.PRIOR_VERSION, comparison.describe_prior
    ),
}


INTERRUPTED = 130
"""Exit status of Ctrl-C, as shells have it."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; what a caller can cause ends in one line and exit status 1.

    Args:
        arguments: Words after ``softvq``; those of the process if None.

    Example:
        >>> main(["info", "no-such-file"])
        Traceback (most recent call last):
        SystemExit: error: path no-such-file is no file: nothing to load.
    """
    parsed = _build_parser().parse_args(arguments)
    try:
        print(parsed.run(parsed), flush=True)  # a full disk behind a pipe is told here, too
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        print(
            "\ninterrupted: whole files are kept, an export goes on by the same call",
            file=sys.stderr,
        )
        sys.exit(INTERRUPTED)


def describe_file(path: Path | str) -> Facts:
    """What a file of softvq tells about itself.

    Args:
        path: Any file that softvq writes, results of a comparison, or the folder of a token set.

    Returns:
        Facts by name, in the order to be read.

    Raises:
        ValueError: If it is cut short, not of softvq, of an unknown kind or a newer version. Of
            another file it says what that is, by its beginning.
        FileNotFoundError: If there is none.

    Example:
        >>> import tempfile
        >>> from softvq import SoftVQ
        >>> from softvq.models import VQVAE, save_model
        >>> model = VQVAE(SoftVQ(8, 64, layout="channels_first"))
        >>> facts = describe_file(save_model(model, f"{tempfile.mkdtemp()}/m.safetensors"))
        >>> facts["kind"], facts["codes (K)"], facts["bits per token"]
        ('model', 8, 3.0)
    """
    if is_token_set(path):
        with blaming(path):
            return describe_tokens(path)
    if comparison.is_json(path):
        return _describe_results(path)
    other = comparison.name_beginning(path)
    if other is not None:
        raise ValueError(f"path {path} is {other}. {comparison.TAKES}")
    config, tensors = read_tensors(path)
    name = choose(f"format of {path}", str(config.get("format")), FORMATS)
    known = FORMATS[name]
    check_format(path, config, name=name, version=known.version)
    with blaming(path):
        try:
            facts = known.describe(config, tensors)
        except KeyError as error:
            raise ValueError(
                f"path {path} is a {name} file that lacks {error}: it is damaged."
            ) from error
    size = Path(path).stat().st_size
    return {
        "kind": known.title,
        "format": f"{name} {config['version']}",
        "bytes": size,
        **facts,
    }


def _describe_results(path: Path | str) -> Facts:
    results = comparison.read_results(path)
    with blaming(path):
        facts = comparison.describe_results(results)
    return {
        "kind": "results of a comparison",
        "format": f"results.json {results['format']}",
        "bytes": Path(path).stat().st_size,
        **facts,
    }


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="softvq", description="Codebooks, tokens and their files."
    )
    parser.add_argument("--version", action="version", version=f"softvq {softvq.__version__}")
    commands = parser.add_subparsers(title="commands", required=True)
    info = commands.add_parser("info", help="tell what a file of softvq holds")
    info.add_argument(
        "file",
        type=Path,
        help="a model, checkpoint, codebook, shard, token set, prior or results.json",
    )
    info.add_argument("--json", action="store_true", help="print JSON")
    info.set_defaults(run=_print_info)
    report = commands.add_parser("swap-report", help="tell what softvq.swap would find and do")
    report.add_argument("target", help="package.module:name or file.py:name of a model")
    report.set_defaults(run=lambda parsed: swap_report(parsed.target))
    add_commands(commands)
    return parser


def _print_info(parsed: argparse.Namespace) -> str:
    facts = describe_file(parsed.file)
    if parsed.json:
        return json.dumps(facts, indent=1)
    wide = max(map(len, facts))
    return "\n".join(
        f"{name:<{wide}}  {show(value)}" for name, value in facts.items() if value is not None
    )


if __name__ == "__main__":
    main()
