"""The command line: `softvq info`, `softvq export`, `softvq swap-report`.

argparse, since what `pip install softvq` gives must run with its four dependencies alone. A
subcommand is a function that takes the parsed arguments and returns the text to print; a file
format is an entry of `FORMATS`.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor, nn

from softvq.checks import choose
from softvq.export import (
    Sharding,
    SoftTargets,
    codebook,
    export_codebook,
    export_tokens,
    load_tokens,
    read_codebook,
    shards,
    write_stream,
)
from softvq.export.describe import (
    describe_codebook_file,
    describe_shard,
    describe_tokens,
    is_token_set,
)
from softvq.hosts import swap_report
from softvq.models import io, load_model
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
}
DATA = ("cifar10", "folder", "textures")


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
        print(parsed.run(parsed))
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")


def describe_file(path: Path | str) -> Facts:
    """What a file of softvq tells about itself.

    Args:
        path: Any file that softvq writes, or the folder of a token set.

    Returns:
        Facts by name, in the order to be read.

    Raises:
        ValueError: If it is cut short, not of softvq, of an unknown kind or a newer version.
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
        return describe_tokens(path)
    config, tensors = read_tensors(path)
    name = choose(f"format of {path}", str(config.get("format")), FORMATS)
    known = FORMATS[name]
    check_format(path, config, name=name, version=known.version)
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


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="softvq", description="Codebooks, tokens and their files."
    )
    commands = parser.add_subparsers(title="commands", required=True)
    info = commands.add_parser("info", help="tell what a file of softvq holds")
    info.add_argument("file", type=Path, help="a model, checkpoint, codebook, shard or token set")
    info.add_argument("--json", action="store_true", help="print JSON")
    info.set_defaults(run=_print_info)
    report = commands.add_parser("swap-report", help="tell what softvq.swap would find and do")
    report.add_argument("target", help="package.module:name or file.py:name of a model")
    report.set_defaults(run=lambda parsed: swap_report(parsed.target))
    export = commands.add_parser("export", help="write a codebook or tokens for a generator")
    kinds = export.add_subparsers(title="what", required=True)
    _add_codebook(kinds.add_parser("codebook", help="the codes of a model, in one file"))
    _add_tokens(kinds.add_parser("tokens", help="a data set as tokens, in a folder"))
    _add_stream(kinds.add_parser("stream", help="a token set as one flat file of numbers"))
    return parser


def _add_codebook(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", type=Path, help="safetensors: model, checkpoint, or a peer's")
    parser.add_argument("out", type=Path, help="file to write")
    parser.add_argument("--tokens", type=Path, help="token set: counts, specials, grid, data")
    parser.add_argument("--key", help="name of the codes in the file of another package")
    parser.add_argument("--specials", type=_split, help="names of special tokens: bos,mask")
    parser.add_argument("--dataset", help="what the codebook was trained on")
    parser.set_defaults(run=_export_codebook)


def _add_tokens(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=Path, help="file of softvq.models.save_model")
    parser.add_argument("out", type=Path, help="folder to write; the same call goes on in it")
    parser.add_argument("--data", choices=DATA, default="cifar10")
    parser.add_argument("--split", default="train", help="train, test; of a folder also all")
    parser.add_argument("--path", type=Path, help="the folder, with --data folder")
    parser.add_argument("--size", type=int, default=32, help="height and width in pixels")
    parser.add_argument("--num-images", type=int, help="the first ones alone")
    parser.add_argument("--specials", type=_split, default=[], help="special tokens: bos,mask")
    parser.add_argument("--soft-top", type=int, default=0, help="codes of a soft target")
    parser.add_argument("--temperature", type=float, help="of soft targets; the model's own")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--shard-size", type=int, default=16384)
    parser.add_argument("--process", help="2/8 is the third of eight that share the folder")
    parser.set_defaults(run=_export_tokens)


def _add_stream(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("tokens", type=Path, help="folder of a token set")
    parser.add_argument("out", type=Path, help="file to write: train.bin")
    parser.add_argument("--start", help="special token that begins every item")
    parser.set_defaults(run=_export_stream)


def _split(names: str) -> list[str]:
    return [name.strip() for name in names.split(",")]


def _export_codebook(parsed: argparse.Namespace) -> str:
    tokens = None if parsed.tokens is None else load_tokens(parsed.tokens)
    options = {"tokens": tokens, "specials": parsed.specials, "dataset": parsed.dataset}
    source = _open_codebook(parsed.source, key=parsed.key)
    path = export_codebook(source, parsed.out, **options)
    return f"Codebook: {path}"


def _open_codebook(path: Path, *, key: str | None) -> nn.Module | codebook.Codebook:
    """A model where it can be built: it tells more than its tensors do."""
    try:
        is_model = key is None and read_tensors(path)[0].get("format") == io.FORMAT
    except ValueError:  # no file of softvq; read_codebook says what else is wrong with it
        is_model = False
    return load_model(path) if is_model else read_codebook(path, key=key)


def _export_tokens(parsed: argparse.Namespace) -> str:
    soft = None
    if parsed.soft_top:
        soft = SoftTargets(top=parsed.soft_top, temperature=parsed.temperature)
    elif parsed.temperature is not None:
        raise ValueError("--temperature is of soft targets: give --soft-top, such as 8.")
    process, processes = _parse_process(parsed.process)
    sharding = Sharding(
        batch_size=parsed.batch_size,
        shard_size=parsed.shard_size,
        process=process,
        processes=processes,
    )
    model = load_model(parsed.model).eval()
    images = _load_images(parsed, channels=model.config.channels)
    done = export_tokens(
        model,
        images,
        parsed.out,
        specials=parsed.specials,
        soft=soft,
        sharding=sharding,
        progress=_show_progress if sys.stderr.isatty() else None,
    )
    state = f"{done.missing} shards of others to come" if done.missing else "whole"
    return f"Tokens: {done.folder} ({done.written} shards written, {done.kept} kept; {state})"


def _load_images(parsed: argparse.Namespace, *, channels: int) -> Any:  # noqa: ANN401
    # Here and not on top: pictures need the extra `images`, and no other command does.
    try:
        from softvq.data import load_images
        from softvq.data.fetch import FetchError
    except ModuleNotFoundError as error:
        raise ValueError(f"{error.name} is missing: pip install 'softvq[images]'.") from error
    options = {"path": parsed.path, "size": parsed.size, "channels": channels}
    try:
        return load_images(parsed.data, parsed.split, num_images=parsed.num_images, **options)
    except FetchError as error:
        raise ValueError(str(error)) from error


def _parse_process(text: str | None) -> tuple[int | None, int | None]:
    if text is None:
        return None, None
    parts = text.split("/")
    if len(parts) != 2 or not all(part.isdigit() for part in parts):
        raise ValueError(f"--process must be like 2/8, from 0/8 to 7/8; got {text!r}.")
    return int(parts[0]), int(parts[1])


def _show_progress(done: int, total: int) -> None:
    end = "\n" if done == total else ""
    print(f"\r{done:,} of {total:,} items", end=end, file=sys.stderr, flush=True)


def _export_stream(parsed: argparse.Namespace) -> str:
    stream = write_stream(load_tokens(parsed.tokens), parsed.out, start=parsed.start)
    return f"Stream: {stream.path} ({stream.length:,} x {stream.dtype})"


def _print_info(parsed: argparse.Namespace) -> str:
    facts = describe_file(parsed.file)
    if parsed.json:
        return json.dumps(facts, indent=1)
    wide = max(map(len, facts))
    return "\n".join(
        f"{name:<{wide}}  {_show(value)}" for name, value in facts.items() if value is not None
    )


def _show(value: str | float) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else value


if __name__ == "__main__":
    main()
