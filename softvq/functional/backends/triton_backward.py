# ruff: noqa: ANN001, ANN201, ANN202 - tensors have no annotation in this language
# pyright: reportArgumentType=false, reportPossiblyUnboundVariable=false
# pyright: reportAssignmentType=false
"""Triton kernels of the backward pass. Legend in `triton_kernels`, formulas in `chunked`."""

import triton
import triton.language as tl

from softvq.functional.backends.triton_kernels import (
    CROSS,
    DELTA,
    ENTROPY,
    FREE,
    KEEP,
    LOG_TOTAL,
    PIVOT,
    SLOTS,
    SPREAD,
    TOP,
    WEIGHT_FLOOR,
    load_tile,
    log_weights,
    multiply,
    score,
)


@triton.jit
def _read(ledger, level: tl.constexpr, slot: tl.constexpr, rows, num_rows):
    """One entry of the ledger for a block of rows; zeros beyond the last."""
    line = ledger + (level * SLOTS + slot) * num_rows.to(tl.int64)
    return tl.load(line + rows, mask=rows < num_rows, other=0.0)


@triton.jit
def _pull_codes(
    operands, grads, level: tl.constexpr, rows, cols, SIZES: tl.constexpr, PRECISION: tl.constexpr
):
    """Products of the mean's gradient with codes; skipped where all of that gradient is zero."""
    _, codebook, _, num_rows, num_codes = operands
    _, _, pull, pulls, _ = grads
    products = tl.zeros((rows.shape[0], cols.shape[0]), dtype=tl.float32)
    if tl.load(pulls + level) != 0:
        mine = pull + level * num_rows.to(tl.int64) * SIZES[0]
        counts = (num_rows, num_codes)
        products = multiply(mine, codebook, rows, cols, counts, SIZES, PRECISION)
    return products


@triton.jit
def _find_pivot(
    operands, grads, level: tl.constexpr, rows, best, SIZES: tl.constexpr, PRECISION: tl.constexpr
):
    """The gradient to the weight of each row's best code, from a product like the others'."""
    _, _, sides, num_rows, num_codes = operands
    _, use, _, _, ledger = grads
    products = _pull_codes(operands, grads, level, rows, best, SIZES, PRECISION)
    places = tl.arange(0, rows.shape[0])
    pulled = tl.sum(tl.where(places[:, None] == places[None, :], products, 0.0), 1)
    keep = _read(ledger, level, KEEP, rows, num_rows)
    spread = _read(ledger, level, SPREAD, rows, num_rows)
    entropy = _read(ledger, level, ENTROPY, rows, num_rows)
    log_total = _read(ledger, level, LOG_TOTAL, rows, num_rows)
    on_use = tl.load(use + level * num_codes + best)
    squared = tl.load(sides + num_codes + best)
    return pulled + on_use * keep + squared * spread + entropy * log_total


@triton.jit
def _tilt(
    operands,
    grads,
    level: tl.constexpr,
    scores,
    pivot,
    places,
    SIZES: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Weights q, their logarithms, and q (a - a_best), of a block at one temperature.

    a is the gradient to the weights. Taken from that of the best code, which is then zero by
    definition, it leaves no rounding for 1 / T to magnify where one code has all the weight.
    """
    _, _, sides, num_rows, num_codes = operands
    temperature, use, _, _, ledger = grads
    rows, cols, best = places
    top = _read(ledger, level, TOP, rows, num_rows)
    log_total = _read(ledger, level, LOG_TOTAL, rows, num_rows)
    keep = _read(ledger, level, KEEP, rows, num_rows)
    spread = _read(ledger, level, SPREAD, rows, num_rows)
    entropy = _read(ledger, level, ENTROPY, rows, num_rows)
    logs = log_weights(scores, top, log_total, best, cols, tl.load(temperature + level))
    weights = tl.exp(logs)
    weights = tl.where(weights < WEIGHT_FLOOR, 0.0, weights)
    on_use = tl.load(use + level * num_codes + cols, mask=cols < num_codes, other=0.0)
    squared = tl.load(sides + num_codes + cols, mask=cols < num_codes, other=0.0)
    slope = _pull_codes(operands, grads, level, rows, cols, SIZES, PRECISION)
    slope += on_use[None, :] * keep[:, None] + squared[None, :] * spread[:, None]
    slope -= entropy[:, None] * logs + pivot[:, None]
    tilted = tl.where(cols[None, :] == best[:, None], 0.0, weights * slope)
    return weights, logs, tilted


@triton.jit
def _flow_of_rows(
    operands,
    grads,
    level: tl.constexpr,
    scores,
    state,
    places,
    SIZES: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Gradient to the scores of a block, but for the share of the row's mean; and sums for that."""
    temperature, _, _, _, ledger = grads
    pivot, delta, cross = state
    weights, logs, tilted = _tilt(operands, grads, level, scores, pivot, places, SIZES, PRECISION)
    free = _read(ledger, level, FREE, places[0], operands[3])
    flow = tilted * (1.0 / tl.load(temperature + level)) - weights * free[:, None]
    return flow, (pivot, delta + tl.sum(tilted, 1), cross + tl.sum(tilted * logs, 1))


@triton.jit
def _close_rows(
    grads,
    level: tl.constexpr,
    state,
    tile,
    mean,
    rows,
    num_rows,
    DIM: tl.constexpr,
    PADDED: tl.constexpr,
):
    """Each row's own part of half its gradient; notes in the ledger what the codes will need."""
    temperature, _, _, _, ledger = grads
    pivot, delta, cross = state
    wide = num_rows.to(tl.int64)
    line = ledger + level * SLOTS * wide + rows
    tl.store(line + PIVOT * wide, pivot, mask=rows < num_rows)
    tl.store(line + DELTA * wide, delta, mask=rows < num_rows)
    tl.store(line + CROSS * wide, cross, mask=rows < num_rows)
    means = load_tile(mean + level * wide * DIM, rows, num_rows, DIM, PADDED)
    free = _read(ledger, level, FREE, rows, num_rows)
    share = delta * (1.0 / tl.load(temperature + level))
    return tile * free[:, None] - means * share[:, None]


@triton.jit
def pull_rows(
    z,
    codebook,
    sides,
    temperature,
    use,
    pull,
    pulls,
    ledger,
    best,
    mean,
    out,
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
    """Gradient to a block of rows; fills the ledger's last slots."""
    SIZES: tl.constexpr = (DIM, ROWS, CODES, CHUNK)
    operands = (z, codebook, sides, num_rows, num_codes)
    grads = (temperature, use, pull, pulls, ledger)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    winner = tl.load(best + rows, mask=rows < num_rows, other=0)
    zeros = tl.zeros((ROWS,), dtype=tl.float32)
    total = tl.zeros((ROWS, PADDED), dtype=tl.float32)
    state = (_find_pivot(operands, grads, 0, rows, winner, SIZES, VALUES), zeros, zeros)
    if LEVELS > 1:
        pivot = _find_pivot(operands, grads, 1, rows, winner, SIZES, VALUES)
        more_state = (pivot, zeros, zeros)
    for begin in range(0, num_codes, CODES):
        cols = begin + tl.arange(0, CODES)
        places = (rows, cols, winner)
        scores = score(operands, rows, cols, SIZES, SCORES)
        flow, state = _flow_of_rows(operands, grads, 0, scores, state, places, SIZES, VALUES)
        if LEVELS > 1:
            more_flow, more_state = _flow_of_rows(
                operands, grads, 1, scores, more_state, places, SIZES, VALUES
            )
            flow += more_flow
        codes = load_tile(codebook, cols, num_codes, DIM, PADDED)
        total = tl.dot(flow, codes, total, input_precision=VALUES)
    tile = load_tile(z, rows, num_rows, DIM, PADDED)
    total += _close_rows(grads, 0, state, tile, mean, rows, num_rows, DIM, PADDED)
    if LEVELS > 1:
        total += _close_rows(grads, 1, more_state, tile, mean, rows, num_rows, DIM, PADDED)
    features = tl.arange(0, PADDED)
    at = rows.to(tl.int64)[:, None] * DIM + features[None, :]
    inside = (rows < num_rows)[:, None] & (features < DIM)[None, :]
    tl.store(out + at, 2 * total, mask=inside)


@triton.jit
def _flow_of_codes(
    operands,
    grads,
    level: tl.constexpr,
    scores,
    totals,
    places,
    SIZES: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Gradient to the scores of a block; what reaches the codes as values goes into the totals."""
    num_rows = operands[3]
    temperature, _, pull, pulls, ledger = grads
    total, column = totals
    rows = places[0]
    pivot = _read(ledger, level, PIVOT, rows, num_rows)
    weights, _, tilted = _tilt(operands, grads, level, scores, pivot, places, SIZES, PRECISION)
    delta = _read(ledger, level, DELTA, rows, num_rows)
    free = _read(ledger, level, FREE, rows, num_rows)
    spread = _read(ledger, level, SPREAD, rows, num_rows)
    inverse = 1.0 / tl.load(temperature + level)
    flow = (tilted - weights * delta[:, None]) * inverse - weights * free[:, None]
    column -= tl.sum(weights * spread[:, None], 0)
    if tl.load(pulls + level) != 0:
        mine = pull + level * num_rows.to(tl.int64) * SIZES[0]
        tile = load_tile(mine, rows, num_rows, SIZES[0], total.shape[1])
        total = tl.dot(tl.trans(weights), tile, total, input_precision=PRECISION)
    return flow, (total, column)


@triton.jit
def pull_codes(
    z,
    codebook,
    sides,
    temperature,
    use,
    pull,
    pulls,
    ledger,
    best,
    out,
    out_column,
    num_rows,
    num_codes,
    span,
    LEVELS: tl.constexpr,
    PADDED: tl.constexpr,
    DIM: tl.constexpr,
    ROWS: tl.constexpr,
    CODES: tl.constexpr,
    CHUNK: tl.constexpr,
    SCORES: tl.constexpr,
    VALUES: tl.constexpr,
):
    """Sums over ``span`` rows for a block of codes: the gradient but for the part of |p|^2.

    ``out`` (splits, K, D), and in ``out_column`` (splits, K) what multiplies -|p|^2.
    """
    SIZES: tl.constexpr = (DIM, ROWS, CODES, CHUNK)
    operands = (z, codebook, sides, num_rows, num_codes)
    grads = (temperature, use, pull, pulls, ledger)
    cols = tl.program_id(0) * CODES + tl.arange(0, CODES)
    split = tl.program_id(1)
    totals = (
        tl.zeros((CODES, PADDED), dtype=tl.float32),
        tl.zeros((CODES,), dtype=tl.float32),
    )
    for begin in range(split * span, tl.minimum(split * span + span, num_rows), ROWS):
        rows = begin + tl.arange(0, ROWS)
        winner = tl.load(best + rows, mask=rows < num_rows, other=0)
        places = (rows, cols, winner)
        scores = score(operands, rows, cols, SIZES, SCORES)
        flow, totals = _flow_of_codes(operands, grads, 0, scores, totals, places, SIZES, VALUES)
        if LEVELS > 1:
            more_flow, totals = _flow_of_codes(
                operands, grads, 1, scores, totals, places, SIZES, VALUES
            )
            flow += more_flow
        tile = load_tile(z, rows, num_rows, DIM, PADDED)
        total, column = totals
        total = tl.dot(tl.trans(2 * flow), tile, total, input_precision=VALUES)
        totals = (total, column + tl.sum(flow, 0))
    total, column = totals
    features = tl.arange(0, PADDED)
    at = (split.to(tl.int64) * num_codes + cols)[:, None] * DIM + features[None, :]
    tl.store(out + at, total, mask=(cols < num_codes)[:, None] & (features < DIM)[None, :])
    tl.store(out_column + split * num_codes + cols, column, mask=cols < num_codes)
