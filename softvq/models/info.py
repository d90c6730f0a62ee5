"""What a file of a model or a training run tells about itself, without building the model."""

import math
from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from softvq.functional.diagnostics import DISTINCT_SHARE, distinct_codes
from softvq.nn import OneIndex
from softvq.nn.accounting import entropy_bits, measure_bits
from softvq.nn.kinds import build
from softvq.nn.parts import books_of

IMAGE_SIDE = 32  # of the item for which bits are told; CIFAR-10's

Facts = dict[str, str | int | float | None]
"""Name and value, in the order to be read; None where a file does not say."""


def describe_model(config: dict[str, Any], tensors: dict[str, Tensor]) -> Facts:
    """Facts of a file that `softvq.models.save_model` wrote.

    Args:
        config: Of the file's metadata.
        tensors: Of the file.

    Returns:
        Kind of quantizer, sizes, options, state of the codebook.

    Example:
        >>> from softvq import HardVQ
        >>> vq = HardVQ(2, 4)
        >>> config = {"quantizer": {"kind": "HardVQ", **vq.config()}, "model": {"downsampling": 4}}
        >>> tensors = {f"quantizer.{name}": each for name, each in vq.state_dict().items()}
        >>> facts = describe_model(config, tensors)
        >>> facts["codes (K)"], facts["bits per token"], facts["started"]
        (2, 1.0, 'no: its codes are random')
    """
    quantizer, net = config["quantizer"], config["model"]
    parts = _under(tensors, "quantizer.")
    if "codebook" in parts or quantizer["kind"] in ("SoftVQ", "HardVQ"):
        sizes = {**describe_codebook(parts["codebook"]), **_describe_state(parts)}
    else:
        sizes = describe_parts(quantizer, parts)
    bits = float(str(sizes["bits per token"]))
    side = math.ceil(IMAGE_SIDE / net["downsampling"])
    entropies = _find_entropies(quantizer, parts)
    return {
        "quantizer": quantizer["kind"],
        **sizes,
        f"bits per item ({IMAGE_SIDE} x {IMAGE_SIDE} pixels)": bits * side**2,
        "bits per pixel": bits / net["downsampling"] ** 2,
        **_describe_entropies(entropies, tokens=side**2),
        "pixels to a token": f"{net['downsampling']} x {net['downsampling']}",
        "values of weights and state": sum(tensor.numel() for tensor in tensors.values()),
        "net": _join(net),
        "options": _join({k: v for k, v in quantizer.items() if k != "kind"}),
    }


def describe_checkpoint(config: dict[str, Any], tensors: dict[str, Tensor]) -> Facts:
    """Facts of a checkpoint of a training run.

    Args:
        config: Of the file's metadata: the run's state.
        tensors: Of the file: model, optimizer, random state.

    Returns:
        Method, steps, data, sizes, last measures, state of the codebook, where it came from.

    Example:
        >>> run = {"method": {"name": "ste"}, "net": {"num_codes": 8, "dim": 4}, "seed": 0}
        >>> run |= {"optim": {"steps": 9}, "preset": "quick", "data": {"source": "textures"}}
        >>> facts = describe_checkpoint({"config": run, "step": 3, "counts": [3, 1]}, {})
        >>> facts["step"], facts["bits per token"], round(facts["entropy bits"], 3)
        ('3 of 9', 3.0, 0.811)
    """
    run, parts = config["config"], _under(tensors, "model.quantizer.")
    net, evals = run["net"], config.get("evals") or [{}]
    if "codebook" in parts:
        codebook = describe_codebook(parts["codebook"])
    else:  # a peer's quantizer holds its codes as it likes
        codebook = _describe_sizes(net["num_codes"], net["dim"])
        codebook["distinct codes"] = evals[-1].get("distinct_codes")
        # Of several stages, all of them: the config alone does not say how many.
        codebook["bits per token"] = evals[-1].get("bits_per_token", codebook["bits per token"])
        codebook |= _describe_hits(parts)
    weights = _under(tensors, "model.")
    return {
        "method": run["method"]["name"],
        "step": f"{config['step']} of {run['optim']['steps']}",
        "preset": run["preset"],
        "seed": run["seed"],
        "data": run["data"]["source"],
        **codebook,
        **describe_counts(torch.tensor(config.get("counts") or [0])),
        **_describe_state(parts),
        "hard PSNR, last measured (dB)": evals[-1].get("psnr_hard"),
        "soft PSNR, last measured (dB)": evals[-1].get("psnr_soft"),
        "values of weights and state": sum(tensor.numel() for tensor in weights.values()),
        "warnings": len(config.get("warnings", [])),
        "commit": config.get("commit"),
        "versions": _join(config.get("versions", {})),
    }


def describe_codebook(codebook: Float[Tensor, "k d"]) -> Facts:
    """Facts of a codebook.

    Args:
        codebook: Codes.

    Returns:
        K, D, bits per token, and how many codes are distinct.

    Example:
        >>> describe_codebook(torch.tensor([[0.0], [0.0], [1.0], [2.0]]))["distinct codes"]
        3
    """
    facts = _describe_sizes(*codebook.shape)
    if not codebook.isfinite().all():
        lost = int((~codebook.isfinite().all(1)).sum())
        return facts | {"distinct codes": f"unknown: {lost} codes hold values that are not finite"}
    variance = codebook.float().var(0, unbiased=False).sum()
    facts["distinct codes"] = int(distinct_codes(codebook, variance))
    facts["distinct means"] = f"farther apart than {DISTINCT_SHARE:g} of the codes' deviation"
    return facts


def describe_parts(config: dict[str, Any], tensors: dict[str, Tensor]) -> Facts:
    """Facts of a quantizer made of parts.

    Args:
        config: Kind, parts and options, as `softvq.nn.kinds.describe` gives them.
        tensors: Its state.

    Returns:
        Indices of a token and the codes of each, bits, the state of each codebook inside.

    Example:
        >>> from softvq import HardVQ
        >>> from softvq.nn import GroupedVQ
        >>> from softvq.nn.kinds import describe
        >>> vq = GroupedVQ([HardVQ(8, 4), HardVQ(4, 4)])
        >>> facts = describe_parts(describe(vq), vq.state_dict())
        >>> facts["codes of each index"], facts["bits per token"]
        ('8, 4', 5.0)
    """
    with torch.device("meta"):
        built = build(config)
    bits = measure_bits(built)
    started = [bool(each) for name, each in tensors.items() if name.endswith("started")]
    return {
        "indices per token": len(bits.codes),
        "codes of each index": ", ".join(map(str, bits.codes)),
        "features (D)": built.dim,
        "bits per token": bits.per_token,
        "bits of each index": ", ".join(f"{each:.4g}" for each in bits.per_index),
        "codebooks": len(started),
        "started": "yes" if all(started) else "no: its codes are random",
    }


def _find_entropies(config: dict[str, Any], parts: dict[str, Tensor]) -> list[float] | None:
    """Entropy of each index of a token at the running hits; None before training, or without hits.

    Of parts that answer with one number together, that of each part.
    """
    if "hits" in parts:  # one codebook, with nothing around it
        return [entropy_bits(parts["hits"])] if int(parts["updates"]) > 0 else None
    with torch.device("meta"):
        built = build(config)
    names = {id(module): name for name, module in built.named_modules()}
    books = books_of(built)
    while any(isinstance(each, OneIndex) for each in books):
        apart = [books_of(each.vq) if isinstance(each, OneIndex) else [each] for each in books]
        books = [book for each in apart for book in each]
    prefixes = [f"{names[id(each)]}.".lstrip(".") for each in books]
    hits = [parts.get(f"{prefix}hits") for prefix in prefixes]
    trained = all(int(parts.get(f"{prefix}updates", 0)) > 0 for prefix in prefixes)
    if not trained or any(each is None for each in hits):
        return None
    return [entropy_bits(each) for each in hits if each is not None]


def _describe_entropies(entropies: list[float] | None, *, tokens: int) -> Facts:
    if entropies is None:
        return {}
    total = math.fsum(entropies)
    facts: Facts = {
        "entropy bits per token, lately in training": total,
        "entropy bits per item, lately in training": total * tokens,
    }
    if len(entropies) > 1:
        each = ", ".join(f"{bits:.4g}" for bits in entropies)
        facts["entropy bits of each index, lately in training"] = each
    return facts


def _describe_hits(parts: dict[str, Tensor]) -> Facts:
    """Entropy at the running hits of each codebook, where it has been trained."""
    hits = {
        name: each
        for name, each in parts.items()
        if name.endswith("hits") and int(parts[f"{name.removesuffix('hits')}updates"]) > 0
    }
    if not hits:
        return {}
    bits = ", ".join(f"{entropy_bits(each):.4g}" for each in hits.values())
    return {"entropy bits of each codebook, lately in training": bits}


def _describe_sizes(num_codes: int, dim: int) -> Facts:
    return {"codes (K)": num_codes, "features (D)": dim, "bits per token": math.log2(num_codes)}


def describe_counts(counts: Shaped[Tensor, " k"]) -> Facts:
    """Use and entropy of the codes over a data set, where they were counted.

    Args:
        counts: How often each code was the nearest; all 0 where that is not known.

    Example:
        >>> describe_counts(torch.tensor([2, 0, 2]))
        {'entropy bits': 1.0, 'codes in hard use': 2}
    """
    if not counts.sum():
        return {}
    return {
        "entropy bits": entropy_bits(counts),
        "codes in hard use": int((counts > 0).sum()),
    }


def _describe_state(parts: dict[str, Tensor]) -> Facts:
    facts: Facts = {}
    if "started" in parts:
        facts["started"] = "yes" if parts["started"] else "no: its codes are random"
    if "updates" in parts:
        facts["updates"] = int(parts["updates"])
    if "schedule.levels" in parts:
        levels = parts["schedule.levels"] / parts["schedule.critical"]
        facts["T / T_c"] = ", ".join(f"{level:.4g}" for level in levels.tolist())
    return facts


def _under(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }


def _join(values: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items())
