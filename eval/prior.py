"""The same small generator on the tokens of several tokenizers: nats, codes emitted, FD-VGG16.

Nats of two tokenizers are of different texts: a tokenizer that keeps less of the picture is easier
to predict. They stand beside the PSNR of the hard reconstruction for that reason.
"""

import dataclasses
import json
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from eval.distances import Distances
from eval.prior_measures import Facts, count_codes, measure_real, measure_samples
from eval.prior_table import Block, write_blocks
from eval.storage import write_json
from softvq.checks import check_count
from softvq.data import CIFAR10_CLASSES, ImageSet, from_model_range
from softvq.export import TokenDataset, export_tokens, load_tokens
from softvq.models import VQVAE
from softvq.models.io import read_tensors, write_tensors
from train.checkpoint import read_state
from train.config import RunConfig
from train.images import ImagePair
from train.loop import CHECKPOINT, Run
from train.methods import get_method
from train.prior.config import PriorConfig, Sampling
from train.prior.pictures import decode
from train.prior.run import PriorRun
from train.prior.sampling import sample
from train.prior.vocabulary import NO_CLASS, name_specials
from train.provenance import find_commit, find_versions, name_device
from train.trained import load_trained
from train.values import to_json

RESULTS = "prior.json"
MEASURES = "measures.json"
SAMPLES = "samples.safetensors"
SAMPLES_FORMAT = "softvq-samples"
SAMPLE_BATCH = 100
SEED = 0
COLUMNS = 6


@dataclasses.dataclass(frozen=True, kw_only=True)
class Study:
    """What is compared.

    Attributes:
        methods: Tokenizers, by the names of `train.methods`.
        tokenizer: How each is trained, but for its method.
        prior: The generator, the same for all.
        sampling: How pictures are drawn from it.
        samples: How many; over 512 for FD-VGG16.
    """

    methods: tuple[str, ...]
    tokenizer: RunConfig
    prior: PriorConfig = dataclasses.field(default_factory=PriorConfig)
    sampling: Sampling = dataclasses.field(default_factory=Sampling)
    samples: int = 1000

    def __post_init__(self) -> None:
        check_count("samples", self.samples)
        if not self.methods:
            raise ValueError("methods must name a tokenizer at least, such as softvq.")
        for name in self.methods:
            get_method(name)


class Folders(NamedTuple):
    """Where the parts lie."""

    tokenizers: Path
    """Of a comparison, with ``runs/METHOD-seed0`` in it: its finished runs are taken."""
    out: Path
    """For everything else."""


class Drawn(NamedTuple):
    """Sampled codes (N, *grid) of one method, and the class of each."""

    tokens: Tensor
    labels: Tensor


class PriorStudy:
    """Tokenizers, tokens, priors, samples and their measures; each part is made once.

    A part that the folder holds is taken as it is, whatever commit made it: results name both.

    Args:
        study: What to compare.
        folders: Where to.
        images: Training and test pictures; read by the tokenizers' config if None.
        command: What was typed.
    """

    def __init__(
        self, study: Study, *, folders: Folders, images: ImagePair | None = None, command: str = ""
    ) -> None:
        self.study, self.folders = study, folders
        self.images = images or ImagePair(study.tokenizer)
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.distances = Distances(self.images, device=self.device)
        self.results: Facts = {
            "command": command,
            "commit": find_commit(),
            "versions": find_versions(),
            "device": name_device(self.device),
            "data": f"{self.images.train.name}; {self.images.test.name}",
            "study": {
                "tokenizer": to_json(study.tokenizer),
                "prior": to_json(study.prior),
                "sampling": dataclasses.asdict(study.sampling),
                "samples": study.samples,
            },
            "methods": {},
        }

    def run(self) -> Facts:
        """Make what is missing, method by method, writing what is known after each.

        Returns:
            What ``prior.json`` holds.
        """
        for name in self.study.methods:
            self.results["methods"][name] = self._run(name)
            self.results["fd_vgg16_real"] = measure_real(
                samples=self.study.samples,
                distances=self.distances,
                path=self.folders.out / MEASURES,
                data=self.results["data"],
            )
            write_json(self.folders.out / RESULTS, self.results)
        return self.results

    def draw(self, path: Path, *, columns: int = COLUMNS) -> Path:
        """Write a picture of samples: a row for each class, a block for each tokenizer.

        Args:
            path: The PNG file.
            columns: Pictures of a class and tokenizer.

        Returns:
            The path.
        """
        classes, blocks = [""], []
        for name in self.study.methods:
            drawn = self.load_samples(name)
            numbers = drawn.labels.unique().tolist()
            chosen = torch.cat([(drawn.labels == i).nonzero()[:columns, 0] for i in numbers])
            made = decode(
                drawn.tokens[chosen], self.load_tokenizer(name), size=self.images.test.size
            )
            blocks.append(Block(get_method(name).label, from_model_range(made)))
            if numbers != [NO_CLASS]:
                classes = [self._name_class(i) for i in numbers]
        return write_blocks(blocks, classes=classes, path=path)

    def _name_class(self, number: int) -> str:
        is_cifar = self.study.tokenizer.data.source == "cifar10"
        return CIFAR10_CLASSES[number] if is_cifar else str(number)

    def load_samples(self, name: str) -> Drawn:
        """Samples that `run` has drawn for a method."""
        _, tensors = read_tensors(self.folders.out / name / SAMPLES)
        return Drawn(tensors["tokens"], tensors["labels"])

    def load_tokenizer(self, name: str) -> VQVAE:
        """The tokenizer of a method, trained if it is not."""
        path = self.folders.tokenizers / "runs" / f"{name}-seed{SEED}" / CHECKPOINT
        config = self.study.tokenizer
        method = dataclasses.replace(config.method, name=name)
        config = dataclasses.replace(config, method=method, seed=SEED)
        step = read_state(path)["step"] if path.exists() else -1
        if step < config.optim.steps:
            run = Run(config, images=self.images, folder=path.parent)
            if step >= 0:
                run.resume()
            run.train()
        _check_settings(path, to_json(config))
        return load_trained(path).to(self.device)

    def _run(self, name: str) -> Facts:
        model = self.load_tokenizer(name)
        state = read_state(self.folders.tokenizers / "runs" / f"{name}-seed{SEED}" / CHECKPOINT)
        train, test = (self._export(name, model, split) for split in ("train", "test"))
        folder = self.folders.out / name
        run = PriorRun(
            self.study.prior, train=train, test=test, folder=folder, title=f"prior on {name}"
        )
        if run.path.exists():
            run.resume()
        result = run.train()
        drawn = self._sample(name, run)
        last = result.evals[-1]
        return {
            "label": get_method(name).label,
            "tokenizer_commit": state["commit"],
            "psnr_hard": state["evals"][-1]["psnr_hard"],
            "parameters": result.prior.num_parameters,
            "seconds": last["seconds"],
            "nats_per_token": last["nats_per_token"],
            "nats_per_image": last["nats_per_image"],
            "unigram_entropy": result.unigram.entropy,
            "unigram_cross_entropy": result.unigram.cross_entropy,
            "evals": result.evals,
            **count_codes(drawn.tokens, test),
            **self._measure(name, model, drawn, test),
        }

    def _export(self, name: str, model: VQVAE, split: str) -> TokenDataset:
        images: ImageSet = getattr(self.images, split)
        labels = self.images.train.labels
        num_classes = None if labels is None else int(labels.max()) + 1
        folder = self.folders.out / name / f"tokens-{split}"
        done = export_tokens(model, images, folder, specials=name_specials(num_classes))
        print(f"{name}: {len(images)} items of {images.name} in {done.folder}", flush=True)
        return load_tokens(folder, codebook=model)

    def _sample(self, name: str, run: PriorRun) -> Drawn:
        path = self.folders.out / name / SAMPLES
        asked = {
            "format": SAMPLES_FORMAT,
            "version": 1,
            "sampling": dataclasses.asdict(self.study.sampling),
            "samples": self.study.samples,
            "prior": to_json(run.config),
            "tokens": run.test.manifest.plan.job,
        }
        if path.exists() and read_tensors(path)[0] == json.loads(json.dumps(asked)):
            return self.load_samples(name)
        num = len(run.vocabulary.classes)
        labels = torch.arange(self.study.samples)
        labels = labels % num if num else torch.full_like(labels, NO_CLASS)
        generator = torch.Generator().manual_seed(self.study.prior.seed)
        parts = []
        for some in labels.split(SAMPLE_BATCH):
            parts.append(
                sample(run.result.prior, some, sampling=self.study.sampling, generator=generator)
            )
            print(f"{name}: {sum(map(len, parts))} of {len(labels)} samples", flush=True)
        drawn = Drawn(torch.cat(parts), labels)
        write_tensors(path, drawn._asdict(), asked)
        return drawn

    def _measure(self, name: str, model: VQVAE, drawn: Drawn, test: TokenDataset) -> Facts:
        asked = {
            "tokens": test.manifest.plan.job,
            "drawn": read_tensors(self.folders.out / name / SAMPLES)[0],
        }
        path = self.folders.out / name / MEASURES
        return measure_samples(
            drawn.tokens, model, distances=self.distances, path=path, asked=asked
        )


def _check_settings(path: Path, asked: Facts) -> None:
    """Raise unless a finished tokenizer is of the net, data and budget that are asked for."""
    saved = read_state(path)["config"]
    parts = ("data", "net", "method", "optim")
    names = ("source", "num_train", "num_test")
    for part in parts:
        for key in names if part == "data" else asked[part]:
            if saved[part].get(key) != asked[part][key]:
                raise ValueError(
                    f"path {path} was trained with {part}.{key} = {saved[part].get(key)!r}; "
                    f"{asked[part][key]!r} is asked for. Give its own preset, or another folder."
                )
