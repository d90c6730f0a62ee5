"""What training decodes in place of a code, where the code itself would say too little.

N rows, D features.
"""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor


def blur_code(
    z: Float[Tensor, "*batch n d"],
    code: Float[Tensor, "*batch n d"],
    *,
    noise: Float[Tensor, ""] | float,
    draw: Float[Tensor, "*batch n d"],
) -> Float[Tensor, "*batch n d"]:
    """The code as seen through noise: as far from the row as the code is, in a turned direction.

    With u the unit vector along ``u0 + noise draw / sqrt(D)``, u0 that of ``code - z``, what is
    decoded is ``z + |code - z| u``: the code itself at noise 0, anywhere on a sphere about the row
    at large noise. The gradient holds u fixed: it reaches the row whole but for ``e (u . g)``, with
    e along the error, which goes to the code. The noise is that of "NSVQ: Noise Substitution in
    Vector Quantization" (Vali and Bäckström, 2022), the gradient that of "DiVeQ: Differentiable
    Vector Quantization Using the Reparameterization Trick" (2025).

    Args:
        z: Rows.
        code: The chosen code of each row.
        noise: Length of the noise against that of u0, at least 0.
        draw: Standard normal numbers.

    Returns:
        Values in the dtype of ``code``; the code bit for bit at noise 0.

    Example:
        >>> z, code = torch.tensor([[0.0, 0.0]]), torch.tensor([[3.0, 4.0]])
        >>> blur_code(z, code, noise=0.0, draw=torch.ones(1, 2)).tolist()
        [[3.0, 4.0]]
    """
    z = z.to(code.dtype)
    error = code - z
    towards = _unit(error.detach())
    length = (error * towards).sum(-1, keepdim=True)  # of the error, and so is its gradient
    noise = torch.as_tensor(noise, dtype=code.dtype, device=code.device)
    direction = _unit(towards + noise / z.shape[-1] ** 0.5 * draw)
    carried = z + length * direction
    value = torch.where(noise > 0, carried, code).detach()
    # Exactly the value, since x - x is 0 for finite x.
    return value + (carried - carried.detach())


def draw_normal(
    like: Float[Tensor, "n d"], *, key: Int[Tensor, ""], first_row: int = 0
) -> Float[Tensor, "n d"]:
    """Standard normal numbers that are a function of their place and a key, and of nothing else.

    A counter is scrambled (splitmix64) and made a pair of normal numbers (Box and Muller, 1958).
    So a pass that is computed again draws the same, a row's numbers do not hang on how many rows
    there are, no generator's state is touched, and compilers see plain arithmetic.

    Args:
        like: Shape, dtype and device.
        key: Another key gives other numbers.
        first_row: Place of the first row among all, where ``like`` holds a part of them.

    Returns:
        Numbers of mean 0 and deviation 1.

    Example:
        >>> a, b = (draw_normal(torch.zeros(500, 4), key=torch.tensor(k)) for k in (1, 1))
        >>> torch.equal(a, b), abs(a.mean().item()) < 0.1
        (True, True)
    """
    num_rows, dim = like.shape
    pairs = (dim + 1) // 2
    counter = (torch.arange(num_rows, device=like.device) + first_row)[:, None] * pairs
    counter = counter + torch.arange(pairs, device=like.device)
    bits = _scramble(counter + _scramble(key + 1))
    scale = 2.0**-24
    # The same bits in every dtype: 24 of them for the length, 24 others for the angle.
    length = ((bits >> 40 & 0xFFFFFF).to(torch.float32) + 0.5).mul_(scale).log_().mul_(-2).sqrt_()
    angle = (bits & 0xFFFFFF).to(torch.float32).mul_(2 * math.pi * scale)
    pair = torch.stack([length * angle.cos(), length * angle.sin()], -1)
    normal = pair.reshape(num_rows, 2 * pairs)[:, :dim]
    return normal.to(like.dtype)


def draw_uniform(like: Float[Tensor, "..."], *, num: int, seed: int) -> Float[Tensor, " num"]:
    """Even numbers in [0, 1) that are a function of what ``like`` holds and a seed.

    A batch that is computed again draws the same, another batch others, and no state is kept.

    Args:
        like: Any values; their bits are summed.
        num: How many are wanted.
        seed: Another seed gives other numbers.

    Returns:
        float32 numbers on the device of ``like``.

    Example:
        >>> draw = draw_uniform(torch.ones(3), num=1000, seed=0)
        >>> bool(draw.min() >= 0), bool(draw.max() < 1), abs(draw.mean().item() - 0.5) < 0.05
        (True, True, True)
    """
    bits = like.detach().to(torch.float32).contiguous().view(torch.int32).to(torch.int64).sum()
    key = _scramble(bits + (seed << 32) + 1)
    counter = torch.arange(num, device=like.device)
    return (_scramble(counter + key) & 0xFFFFFF).to(torch.float32) * 2.0**-24


def _scramble(bits: Tensor) -> Tensor:
    """The finalizer of splitmix64, on int64 that wraps; shifts are masked to be unsigned."""
    bits = bits * _signed(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> 30 & (1 << 34) - 1)) * _signed(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> 27 & (1 << 37) - 1)) * _signed(0x94D049BB133111EB)
    return bits ^ (bits >> 31 & (1 << 33) - 1)


def _signed(word: int) -> int:
    return word - (1 << 64)


def _unit(vectors: Tensor) -> Tensor:
    """Vectors of length one; zero stays zero."""
    length = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    return vectors / length.clamp_min(torch.finfo(vectors.dtype).tiny)
