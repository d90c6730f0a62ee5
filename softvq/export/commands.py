"""`softvq export`, `encode` and `decode`: what a shell says, put into calls.

Each command is a function that takes the parsed words and returns the line to print.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from einops import rearrange
from torch import nn

from softvq.export import codebook
from softvq.export.extract import export_codebook
from softvq.export.peers import read_codebook
from softvq.export.programs import export_programs
from softvq.export.soft import SoftTargets
from softvq.export.stream import write_stream
from softvq.export.tokens import load_tokens
from softvq.export.writer import Sharding, export_tokens
from softvq.files import replacing
from softvq.models import Refined, io, load_model
from softvq.models.io import read_tensors

DATA = ("cifar10", "folder", "textures")


def add_commands(commands: Any) -> None:  # noqa: ANN401 - argparse keeps its class to itself
    """Add ``export``, ``encode`` and ``decode`` to a parser's commands.

    Args:
        commands: What ``add_subparsers`` gave.

    Example:
        >>> parser = argparse.ArgumentParser()
        >>> add_commands(parser.add_subparsers())
        >>> parser.parse_args(["export", "stream", "tokens", "train.bin"]).tokens.name
        'tokens'
    """
    export = commands.add_parser("export", help="write what a generator or another runtime reads")
    kinds = export.add_subparsers(title="what", required=True)
    _add_codebook(kinds.add_parser("codebook", help="the codes of a model, in one file"))
    _add_tokens(kinds.add_parser("tokens", help="a data set as tokens, in a folder"))
    _add_set(kinds.add_parser("stream", help="a token set as one flat file of numbers"), "stream")
    _add_set(kinds.add_parser("parquet", help="a token set for Hugging Face datasets"), "parquet")
    _add_model(kinds.add_parser("model", help="a whole model for the hub, ONNX or torch.export"))
    _add_encode(commands.add_parser("encode", help="a folder of pictures as tokens"))
    _add_decode(commands.add_parser("decode", help="tokens of a set as pictures"))


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
    parser.add_argument("--num-images", type=int, help="the first ones alone")
    _add_sizes(parser)
    parser.set_defaults(run=_export_tokens)


def _add_encode(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=Path, help="file of softvq.models.save_model")
    parser.add_argument("path", type=Path, help="folder of pictures; subfolders count")
    parser.add_argument("out", type=Path, help="folder to write; the same call goes on in it")
    _add_sizes(parser)
    parser.set_defaults(run=_export_tokens, data="folder", split="all", num_images=None)


def _add_sizes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--size", type=int, default=32, help="height and width in pixels")
    parser.add_argument("--specials", type=_split, default=[], help="special tokens: bos,mask")
    parser.add_argument("--soft-top", type=int, default=0, help="codes of a soft target")
    parser.add_argument("--temperature", type=float, help="of soft targets; the model's own")
    parser.add_argument(
        "--refine",
        type=int,
        default=0,
        metavar="SWEEPS",
        help="search for codes that decode better, each position so often; 1 is much of the gain",
    )
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--shard-size", type=int, default=16384)
    parser.add_argument("--process", help="2/8 is the third of eight that share the folder")
    parser.add_argument(
        "--trust-names",
        action="store_true",
        help="do not read pictures of finished shards again to see that none has changed",
    )


def _add_set(parser: argparse.ArgumentParser, kind: str) -> None:
    parser.add_argument("tokens", type=Path, help="folder of a token set")
    if kind == "parquet":
        parser.add_argument("out", type=Path, help="folder to write")
        parser.set_defaults(run=_export_parquet)
        return
    parser.add_argument("out", type=Path, help="file to write: train.bin")
    parser.add_argument("--start", help="special token that begins every item")
    parser.set_defaults(run=_export_stream)


def _add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=Path, help="file of softvq.models.save_model")
    parser.add_argument("out", type=Path, help="folder to write")
    parser.add_argument(
        "--to",
        choices=("pretrained", "onnx", "torch"),
        default="pretrained",
        help="folder for from_pretrained; encode.onnx and decode.onnx; encode.pt2 and decode.pt2",
    )
    parser.set_defaults(run=_export_model)


def _add_decode(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=Path, help="the model that made the tokens")
    parser.add_argument("tokens", type=Path, help="folder of a token set")
    parser.add_argument("out", type=Path, help="folder for 000000.png, 000001.png, ...")
    parser.add_argument("--first", type=int, default=0, help="item to begin with")
    parser.add_argument("--count", type=int, help="how many; all if not given")
    parser.set_defaults(run=_decode)


def _split(names: str) -> list[str]:
    return [name.strip() for name in names.split(",")]


def _export_codebook(parsed: argparse.Namespace) -> str:
    tokens = None if parsed.tokens is None else load_tokens(parsed.tokens)
    options = {"tokens": tokens, "specials": parsed.specials, "dataset": parsed.dataset}
    source = _open_codebook(parsed.source, key=parsed.key)
    path = export_codebook(source, parsed.out, **options)
    return f"Codebook: {path} ({path.stat().st_size:,} bytes)"


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
    if parsed.refine < 0:
        raise ValueError(f"--refine must be a count of sweeps, 0 for none; got {parsed.refine}.")
    if parsed.refine and soft is not None:
        raise ValueError("--refine has no soft targets, which are of nearest codes: leave one out.")
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
        Refined(model, sweeps=parsed.refine) if parsed.refine else model,
        images,
        parsed.out,
        specials=parsed.specials,
        soft=soft,
        sharding=sharding,
        reread=not parsed.trust_names,
        progress=_show_progress if sys.stderr.isatty() else None,
    )
    if not done.written + done.kept:
        return (
            f"Tokens: {done.folder} (nothing to do for this process, as there are fewer shards "
            f"than processes; {done.missing} shards of others to come)"
        )
    state = f"{done.missing} shards of others to come" if done.missing else "whole"
    return (
        f"Pictures: {images.name}, {len(images)} of them\n"
        f"Tokens: {done.folder} ({done.written} shards written, {done.kept} kept; {state})"
    )


def _load_images(parsed: argparse.Namespace, *, channels: int) -> Any:  # noqa: ANN401
    def load() -> tuple[Callable[..., Any], type[Exception]]:
        from softvq.data import load_images
        from softvq.data.fetch import FetchError

        return load_images, FetchError

    load_images, fetch_error = _need("images", load)
    options = {"path": parsed.path, "size": parsed.size, "channels": channels}
    try:
        return load_images(parsed.data, parsed.split, num_images=parsed.num_images, **options)
    except fetch_error as error:
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


def _export_parquet(parsed: argparse.Namespace) -> str:
    def load() -> Callable[..., Path]:
        from softvq.export.parquet import write_parquet

        return write_parquet

    tokens = load_tokens(parsed.tokens)
    folder = _need("datasets", load)(tokens, parsed.out)
    return f"Parquet: {folder} ({len(tokens):,} rows in {tokens.manifest.plan.num_shards} files)"


def _export_model(parsed: argparse.Namespace) -> str:
    model = load_model(parsed.model).eval()
    if parsed.to == "torch":
        export_programs(model, parsed.out)
        return f"Model: {parsed.out} (encode.pt2, decode.pt2)"
    if parsed.to == "onnx":

        def load_onnx() -> Callable[..., Path]:
            from softvq.export.onnx import export_onnx

            return export_onnx

        _need("onnx", load_onnx)(model, parsed.out)
        return f"Model: {parsed.out} (encode.onnx, decode.onnx)"

    def load_hub() -> Any:  # noqa: ANN401
        from softvq.export.hub import PretrainedVQVAE

        return PretrainedVQVAE

    _need("hub", load_hub).of(model).save_pretrained(parsed.out)
    return f"Model: {parsed.out} (model.safetensors, for from_pretrained)"


def _decode(parsed: argparse.Namespace) -> str:
    def load() -> tuple[Any, Callable[..., torch.Tensor]]:
        from PIL import Image

        from softvq.data import from_model_range

        return Image, from_model_range

    image, to_bytes = _need("images", load)
    model = load_model(parsed.model).eval()
    tokens = load_tokens(parsed.tokens, codebook=model)
    end = len(tokens) if parsed.count is None else parsed.first + parsed.count
    if not 0 <= parsed.first < end <= len(tokens):
        raise ValueError(
            f"--first {parsed.first} and --count {parsed.count} must name some of the "
            f"{len(tokens)} items."
        )
    for first in range(parsed.first, end, 64):
        items = torch.arange(first, min(first + 64, end))
        pictures = to_bytes(tokens.decode(tokens.batch(items).tokens, model))
        for item, picture in zip(items.tolist(), pictures, strict=True):
            whole = rearrange(picture, "c h w -> h w c").squeeze(-1)
            with replacing(parsed.out / f"{item:06d}.png") as beside:
                image.fromarray(whole.numpy()).save(beside, format="png")
    names = f"{parsed.first:06d}.png to {end - 1:06d}.png"
    return f"Pictures: {parsed.out} ({names})"


def _need(extra: str, load: Callable[[], Any]) -> Any:  # noqa: ANN401
    """What needs an optional package, imported by the command that uses it and by no other."""
    try:
        return load()
    except ModuleNotFoundError as error:
        raise ValueError(f"{error.name} is missing: pip install 'softvq[{extra}]'.") from error
