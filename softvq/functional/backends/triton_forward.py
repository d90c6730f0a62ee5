# ruff: noqa: ANN001, ANN201, ANN202 - tensors have no annotation in this language
# pyright: reportArgumentType=false, reportPossiblyUnboundVariable=false
# pyright: reportAssignmentType=false
"""Triton kernels of the forward pass. Legend in `triton_kernels`."""

import triton
import triton.language as tl

from softvq.functional.backends.triton_kernels import (
    FLOOR,
    NUM_RESULTS,
    load_tile,
    log_weights,
    score,
)


@triton.jit
def _take_in(sums, scores, tops, codes, squared, temperature, PRECISION: tl.constexpr):
    """A block of codes into the running sums of one temperature, moved to the new maximum."""
    total, second, cross, first = sums
    old_top, top = tops
    inverse = 1.0 / temperature
    least = temperature * FLOOR
    move = tl.maximum(old_top - top, least) * inverse
    shrink = tl.exp(move)
    logits = tl.maximum(scores - top[:, None], least) * inverse
    weights = tl.exp(logits)
    cross = shrink * (cross + move * total) + tl.sum(weights * logits, 1)
    total = shrink * total + tl.sum(weights, 1)
    second = shrink * second + tl.sum(weights * squared[None, :], 1)
    first = tl.dot(weights, codes, first * shrink[:, None], input_precision=PRECISION)
    return total, second, cross, first


@triton.jit
def _finish(
    level: tl.constexpr, sums, outputs, norm, top, temperature, rows, num_rows, SIZES: tl.constexpr
):
    """Write what the sums of one temperature say: the mean, and four numbers a row."""
    total, second, cross, first = sums
    out_mean, out_rows = outputs
    DIM: tl.constexpr = SIZES[0]
    wide = num_rows.to(tl.int64)
    inside = rows < num_rows
    features = tl.arange(0, first.shape[1])
    mean = first / total[:, None]
    at = (level * wide + rows)[:, None] * DIM + features[None, :]
    tl.store(out_mean + at, mean, mask=inside[:, None] & (features < DIM)[None, :])
    log_total = tl.log(total)
    line = out_rows + level * NUM_RESULTS * wide + rows
    spread = tl.maximum(second / total - tl.sum(mean * mean, 1), 0.0)
    tl.store(line, spread, mask=inside)
    tl.store(line + wide, norm - top - temperature * log_total, mask=inside)
    tl.store(line + 2 * wide, tl.maximum(log_total - cross / total, 0.0), mask=inside)
    tl.store(line + 3 * wide, log_total, mask=inside)


@triton.jit
def assign_rows(
    z,
    codebook,
    sides,
    temperature,
    out_mean,
    out_rows,
    out_top,
    out_best,
    num_rows,
    num_codes,
    LEVELS: tl.constexpr,
    PADDED: tl.constexpr,
    DIM: tl.constexpr,
    ROWS: tl.constexpr,
    CODES: tl.constexpr,
    CHUNK: tl.constexpr,
    SCORES: tl.constexpr,
    VALUES: tl.constexpr,
):
    """All outputs but the use, of a block of rows; with no LEVELS the nearest code alone."""
    SIZES: tl.constexpr = (DIM, ROWS, CODES, CHUNK)
    operands = (z, codebook, sides, num_rows, num_codes)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    top = tl.full((ROWS,), float("-inf"), dtype=tl.float32)
    best = tl.zeros((ROWS,), dtype=tl.int32)
    zeros = tl.zeros((ROWS,), dtype=tl.float32)
    if LEVELS > 0:
        sums = (zeros, zeros, zeros, tl.zeros((ROWS, PADDED), dtype=tl.float32))
        warmth = tl.load(temperature)
    if LEVELS > 1:
        more_sums = (zeros, zeros, zeros, tl.zeros((ROWS, PADDED), dtype=tl.float32))
        more_warmth = tl.load(temperature + 1)
    for begin in range(0, num_codes, CODES):
        cols = begin + tl.arange(0, CODES)
        scores = score(operands, rows, cols, SIZES, SCORES)
        ranked = tl.where(scores == scores, scores, float("-inf"))  # a NaN is nobody's nearest
        highest, place = tl.max(ranked, 1, return_indices=True)  # the lowest place of equals
        best = tl.where(highest > top, begin + place, best)
        tops = (top, tl.maximum(top, highest))
        if LEVELS > 0:
            codes = load_tile(codebook, cols, num_codes, DIM, PADDED)
            squared = tl.load(sides + num_codes + cols, mask=cols < num_codes, other=0.0)
            sums = _take_in(sums, scores, tops, codes, squared, warmth, VALUES)
        if LEVELS > 1:
            more_sums = _take_in(more_sums, scores, tops, codes, squared, more_warmth, VALUES)
        top = tl.maximum(top, highest)
    tl.store(out_best + rows, best.to(tl.int64), mask=rows < num_rows)
    if LEVELS > 0:
        tl.store(out_top + rows, top, mask=rows < num_rows)
        tile = load_tile(z, rows, num_rows, DIM, PADDED)
        norm = tl.sum(tile * tile, 1)
        outputs = (out_mean, out_rows)
        _finish(0, sums, outputs, norm, top, warmth, rows, num_rows, SIZES)
        if LEVELS > 1:
            _finish(1, more_sums, outputs, norm, top, more_warmth, rows, num_rows, SIZES)


@triton.jit
def sum_weights(
    z,
    codebook,
    sides,
    temperature,
    best,
    tops,
    keeps,
    by_row,
    out_use,
    num_rows,
    num_codes,
    span,
    LEVELS: tl.constexpr,
    DIM: tl.constexpr,
    ROWS: tl.constexpr,
    CODES: tl.constexpr,
    CHUNK: tl.constexpr,
    SCORES: tl.constexpr,
):
    """Sums over ``span`` rows of the weights of a block of codes: (splits, S, K)."""
    SIZES: tl.constexpr = (DIM, ROWS, CODES, CHUNK)
    operands = (z, codebook, sides, num_rows, num_codes)
    wide = num_rows.to(tl.int64)
    cols = tl.program_id(0) * CODES + tl.arange(0, CODES)
    split = tl.program_id(1)
    use = tl.zeros((CODES,), dtype=tl.float32)
    more_use = tl.zeros((CODES,), dtype=tl.float32)
    for begin in range(split * span, tl.minimum(split * span + span, num_rows), ROWS):
        rows = begin + tl.arange(0, ROWS)
        inside = rows < num_rows
        scores = score(operands, rows, cols, SIZES, SCORES)
        winner = tl.load(best + rows, mask=inside, other=0)
        top = tl.load(tops + rows, mask=inside, other=0.0)
        keep = tl.load(keeps + rows, mask=inside, other=0.0)
        line = by_row + (NUM_RESULTS - 1) * wide + rows
        log_total = tl.load(line, mask=inside, other=0.0)
        logs = log_weights(scores, top, log_total, winner, cols, tl.load(temperature))
        use += tl.sum(tl.exp(logs) * keep[:, None], 0)
        if LEVELS > 1:
            log_total = tl.load(line + NUM_RESULTS * wide, mask=inside, other=0.0)
            logs = log_weights(scores, top, log_total, winner, cols, tl.load(temperature + 1))
            more_use += tl.sum(tl.exp(logs) * keep[:, None], 0)
    line = out_use + split * LEVELS * num_codes + cols
    tl.store(line, use, mask=cols < num_codes)
    if LEVELS > 1:
        tl.store(line + num_codes, more_use, mask=cols < num_codes)


INTERPRETED = not isinstance(assign_rows, triton.JITFunction)
"""Whether Triton's interpreter runs these, on a CPU: TRITON_INTERPRET=1 before the import."""
