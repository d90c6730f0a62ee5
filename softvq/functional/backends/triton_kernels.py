# ruff: noqa: ANN001, ANN201 - tensors have no annotation in this language
# pyright: reportArgumentType=false, reportPossiblyUnboundVariable=false
# pyright: reportAssignmentType=false
"""What the Triton kernels of the assignment share: legend, loads, scores, weights.

The formulas are in `reference`; the kernels in `triton_forward` and `triton_backward`; `triton`
launches them.

Shape letters: N rows, D features (DIM; PADDED to a power of two), K codes, S temperatures (LEVELS,
at most two in a launch). A program owns a block of ROWS rows, or of CODES codes, and walks over the
other; nothing of size N x K leaves it, and no sum depends on the order in which programs run.

All tensors are contiguous float32 but ``best`` (int64), the lowest of the nearest codes. ``sides``
(2, K) holds -|p|^2, or -1e30 for a code that is dropped, and |p|^2. ``ledger`` (S, SLOTS, N) holds
what the backward pass knows of each row at each temperature.

Helpers take what belongs together as tuples, which the compiler takes apart: ``operands`` is (z,
codebook, sides, num_rows, num_codes), ``grads`` is (temperature, use, pull, pulls, ledger) and
``SIZES`` is (DIM, ROWS, CODES, CHUNK). A kernel itself takes more arguments than a function
elsewhere here, since a launch has no other way to hand them over.
"""

import triton
import triton.language as tl

FLOOR = tl.constexpr(-200.0)  # of a logit: its weight is zero in float32, and 0 x inf never happens
WEIGHT_FLOOR = tl.constexpr(
    2e-22
)  # below it a weight is zero in the backward pass, as in `chunked`

NUM_RESULTS = tl.constexpr(4)  # a row and temperature: spread, free energy, entropy, log-partition
TOP, KEEP, LOG_TOTAL = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
FREE, SPREAD, ENTROPY = tl.constexpr(3), tl.constexpr(4), tl.constexpr(5)
PIVOT, DELTA, CROSS = tl.constexpr(6), tl.constexpr(7), tl.constexpr(8)
SLOTS = tl.constexpr(9)


@triton.jit
def load_tile(values, places, count, DIM: tl.constexpr, PADDED: tl.constexpr):
    """Whole rows of a matrix, zeros beyond its edges."""
    features = tl.arange(0, PADDED)
    inside = (places < count)[:, None] & (features < DIM)[None, :]
    at = places.to(tl.int64)[:, None] * DIM + features[None, :]
    return tl.load(values + at, mask=inside, other=0.0)


@triton.jit
def multiply(left, right, rows, cols, counts, SIZES: tl.constexpr, PRECISION: tl.constexpr):
    """Inner products of rows of two matrices, CHUNK features at a time.

    Every kernel takes scores from here, added up in this order. What may still differ in the last
    bit, since matrix units differ by the size of a block, is held in check by `log_weights`.
    """
    num_rows, num_cols = counts
    DIM: tl.constexpr = SIZES[0]
    CHUNK: tl.constexpr = SIZES[3]
    total = tl.zeros((rows.shape[0], cols.shape[0]), dtype=tl.float32)
    for begin in range(0, DIM, CHUNK):
        features = begin + tl.arange(0, CHUNK)
        left_at = rows.to(tl.int64)[:, None] * DIM + features[None, :]
        right_at = cols.to(tl.int64)[None, :] * DIM + features[:, None]
        left_inside = (rows < num_rows)[:, None] & (features < DIM)[None, :]
        right_inside = (cols < num_cols)[None, :] & (features < DIM)[:, None]
        left_part = tl.load(left + left_at, mask=left_inside, other=0.0)
        right_part = tl.load(right + right_at, mask=right_inside, other=0.0)
        total = tl.dot(left_part, right_part, total, input_precision=PRECISION)
    return total


@triton.jit
def score(operands, rows, cols, SIZES: tl.constexpr, PRECISION: tl.constexpr):
    """2 z . p - |p|^2 of a block; minus infinity beyond the last code."""
    z, codebook, sides, num_rows, num_codes = operands
    counts = (num_rows, num_codes)
    products = multiply(z, codebook, rows, cols, counts, SIZES, PRECISION)
    negative = tl.load(sides + cols, mask=cols < num_codes, other=float("-inf"))
    return 2 * products + negative[None, :]


@triton.jit
def log_weights(scores, top, log_total, best, cols, temperature):
    """Logarithms of the weights; the best code lies at the top by definition, not by rounding."""
    drop = tl.minimum(scores - top[:, None], 0.0)
    drop = tl.where(cols[None, :] == best[:, None], 0.0, drop)
    logits = tl.maximum(drop, temperature * FLOOR) * (1.0 / temperature)
    return logits - log_total[:, None]
