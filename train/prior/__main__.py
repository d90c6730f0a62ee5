"""`python -m train.prior train | sample`: learn from exported tokens, and draw pictures."""

import sys
from pathlib import Path
from typing import Annotated

import torch
import tyro

from softvq.checks import check_count
from softvq.data import from_model_range
from softvq.export import load_tokens
from train.checkpoint import read_state
from train.prior.config import PriorConfig, Sampling
from train.prior.pictures import check_tokenizer, decode, lay_out, write_png
from train.prior.run import CHECKPOINT, KIND, PriorRun, load_prior
from train.prior.sampling import sample
from train.prior.vocabulary import NO_CLASS
from train.trained import load_trained
from train.values import override

Place = Annotated[Path, tyro.conf.Positional]
Words = Annotated[tuple[str, ...], tyro.conf.Positional]


def train(
    tokens: Place,
    overrides: Words = (),
    /,
    *,
    test: Path,
    out: Path = Path("runs/prior"),
    resume: bool = False,
) -> None:
    """Train the prior on a token set, and measure it on another.

    Tokens with labels are exported with --specials bos,class/0,class/1,... (a token for each
    class). Tokens without labels are exported with --specials bos alone, and train with the
    override conditional=false: all items then begin with bos.

    Args:
        tokens: Folder of the training tokens; for what special tokens they need see above.
        overrides: Changes such as optim.steps=2000 net.layers=6 net.from_codebook=true;
            conditional=false for tokens without labels.
        test: Folder of held-out tokens of the same model.
        out: Folder for the checkpoint.
        resume: Go on from the folder's checkpoint.
    """
    config = override(PriorConfig(), list(overrides))
    if not resume and (out / CHECKPOINT).exists():
        raise ValueError(
            f"--out {out} holds a checkpoint already: add --resume to go on from it, or give "
            "another folder."
        )
    run = PriorRun(config, train=load_tokens(tokens), test=load_tokens(test), folder=out)
    if resume:
        run.resume()
    try:
        result = run.train()
    except KeyboardInterrupt:
        step = read_state(run.path, kind=KIND)["step"] if run.path.exists() else 0
        sys.exit(f"\nStopped; saved after step {step}. Go on with the same command and --resume.")
    last, unigram = result.evals[-1], result.unigram
    print(
        f"Unseen tokens: {last['nats_per_token']:.4f} nats a token, {last['nats_per_image']:.2f} "
        f"an image; unigram entropy {unigram.entropy:.4f}, unigram of the training tokens "
        f"{unigram.cross_entropy:.4f}."
    )
    print(f"Prior: {run.path}")


def draw(
    run: Place,
    /,
    *,
    tokenizer: Path,
    out: Path = Path("prior.png"),
    columns: int = 8,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float = 1.0,
    guidance: float = 1.0,
    seed: int = 0,
) -> None:
    """Draw pictures from a trained prior: a row for each class.

    Args:
        run: Folder of the run, or its checkpoint.
        tokenizer: model.safetensors or checkpoint.safetensors of the model that made the tokens.
        out: The PNG file.
        columns: Pictures in a row.
        temperature: Under 1 keeps to what is likely.
        top_k: Only the so many likeliest codes.
        top_p: Only the likeliest codes of this share.
        guidance: Above 1 leans to the class.
        seed: Of the draws.
    """
    check_count("columns", columns)
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, guidance=guidance)
    prior, model = load_prior(run), load_trained(tokenizer)
    check_tokenizer(prior.vocabulary, model)
    num = len(prior.vocabulary.classes)
    classes = torch.arange(num) if num else torch.full((columns,), NO_CLASS)
    labels = classes.repeat_interleave(columns)
    drawn = sample(prior, labels, sampling=sampling, generator=torch.Generator().manual_seed(seed))
    pictures = from_model_range(decode(drawn, model))
    print(f"Pictures: {write_png(lay_out(pictures, columns=columns), out)}")


if __name__ == "__main__":
    try:
        tyro.extras.subcommand_cli_from_dict(
            {"train": train, "sample": draw}, prog="python -m train.prior"
        )
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")
