"""Triton functions that find the best keys of queries, tile by tile of scores.

They go by twice: the maxima of groups of keys say what the best must reach, then what does is written down and put
in order. Where too much does, or where that does not pay, they go by once, and the best stay in registers.
"""

from __future__ import annotations

import triton
import triton.language as tl

from attnknn.ops.triton_lists import DEAD, LAST, listed, of_rank, pack, write

OWN = tl.constexpr(2**63 - 1)  # above every key: the query itself


@triton.jit
def nothing_yet(ROWS: tl.constexpr, PLACES: tl.constexpr, RANKS: tl.constexpr):
    """Scores and columns (ROWS, RANKS) of the best before there are any; keys compete for the first PLACES."""
    ranks = tl.arange(0, RANKS)[None, :] + tl.zeros((ROWS, 1), tl.int32)
    return tl.where(ranks < PLACES, float("-inf"), float("inf")), -ranks + LAST


@triton.jit
def admitted(scores, columns, best, beside, floor):
    """The best scores and their columns, joined by those of a tile that exceed the least of them, and that least.

    Columns ascend from tile to tile, so a score that ties with the least comes too late; of several that are the
    least, the highest column leaves.
    """
    top = tl.max(scores, axis=1)
    while tl.max((top > floor).to(tl.int32), axis=0) > 0:
        column = tl.min(tl.where(scores == top[:, None], columns[None, :], LAST), axis=1)
        last = tl.max(tl.where(best == floor[:, None], beside, -1), axis=1)
        enters = (top > floor)[:, None] & (beside == last[:, None])
        best, beside = tl.where(enters, top[:, None], best), tl.where(enters, column[:, None], beside)
        floor = tl.where(top > floor, tl.min(best, axis=1), floor)  # a row without a query keeps its own
        scores = tl.where(columns[None, :] == column[:, None], float("-inf"), scores)
        top = tl.max(scores, axis=1)
    return best, beside, floor


@triton.jit
def searched(
    padding,
    candidates,
    asked,
    own_k,
    k_row,
    rows,
    asking,
    keys,
    tokens,
    stop,
    dim,
    KEPT: tl.constexpr,
    RANKS: tl.constexpr,
    DIM: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    HAS_PADDING: tl.constexpr,
    HAS_CANDIDATES: tl.constexpr,
    CAUSAL: tl.constexpr,
    EUCLIDEAN: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """The best keys of each query, packed (ROWS, RANKS), best first; with candidates the query before them."""
    ranks, depth = tl.arange(0, RANKS), tl.arange(0, DIM)
    places: tl.constexpr = KEPT - 1 if HAS_CANDIDATES else KEPT
    best, beside = nothing_yet(ROWS, places, RANKS)
    floor = tl.where(asking, tl.min(best, axis=1), float("inf"))
    within = tl.arange(0, COLUMNS)[None, :] * k_row + depth[:, None]  # a tile, the same in each
    for start in range(0, stop, COLUMNS):
        columns = start + tl.arange(0, COLUMNS)
        there = columns < keys
        where = own_k + tl.cast(start, tl.int64) * k_row + within
        if HAS_CANDIDATES:
            columns = tl.load(candidates + columns, mask=there, other=0).to(tl.int32)
            there &= (columns >= 0) & (columns < tokens)
            where = own_k + columns[None, :].to(tl.int64) * k_row + depth[:, None]
        near = tl.load(where, mask=there[None, :] & (depth < dim)[:, None], other=0.0)
        scores = tl.dot(asked, near, input_precision=PRECISION)
        if EUCLIDEAN:
            wide = near.to(tl.float32)
            scores -= (tl.sum(wide * wide, axis=0) * 0.5)[None, :]
        if HAS_PADDING:
            there &= tl.load(padding + columns, mask=there, other=1) == 0
        scores = tl.where(scores == scores, scores, float("inf"))  # what is not a number must be seen
        scores = tl.where(there[None, :], scores, float("-inf"))
        if CAUSAL:
            scores = tl.where(columns[None, :] <= rows[:, None], scores, float("-inf"))
        if HAS_CANDIDATES:
            scores = tl.where(columns[None, :] != rows[:, None], scores, float("-inf"))
        best, beside, floor = admitted(scores, columns, best, beside, floor)
    packed = tl.where((ranks < places)[None, :] & (best > float("-inf")), pack(best, beside), DEAD)
    if HAS_CANDIDATES:
        packed = tl.where((ranks == places)[None, :], OWN, packed)
    return tl.sort(packed, 1, descending=True)


@triton.jit
def _tile(
    padding,
    asked,
    own_k,
    k_row,
    rows,
    start,
    keys,
    dim,
    DIM: tl.constexpr,
    COLUMNS: tl.constexpr,
    WHOLE: tl.constexpr,
    EVEN: tl.constexpr,
    HAS_PADDING: tl.constexpr,
    CAUSAL: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Scores of the keys from ``start`` on; in a WHOLE tile all of them are there, with EVEN all of each."""
    within, depth = tl.arange(0, COLUMNS), tl.arange(0, DIM)
    where = own_k + tl.cast(start, tl.int64) * k_row + (within[None, :] * k_row + depth[:, None])
    columns, there = start + within, start + within < keys
    if WHOLE and EVEN:
        near = tl.load(where)
    elif WHOLE:
        near = tl.load(where, mask=(depth < dim)[:, None] & (within >= 0)[None, :], other=0.0)
    else:
        near = tl.load(where, mask=there[None, :] & (depth < dim)[:, None], other=0.0)
    scores = tl.dot(asked, near, input_precision=PRECISION)
    if HAS_PADDING:
        there &= tl.load(padding + columns, mask=there, other=1) == 0
    if HAS_PADDING or not WHOLE:
        scores = tl.where(there[None, :], scores, float("-inf"))
    if CAUSAL:
        scores = tl.where(columns[None, :] <= rows[:, None], scores, float("-inf"))
    return scores


@triton.jit
def looked_up(
    padding,
    asked,
    own_k,
    k_row,
    rows,
    asking,
    lists,
    keys,
    stop,
    dim,
    KEPT: tl.constexpr,
    RANKS: tl.constexpr,
    DIM: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    EVEN: tl.constexpr,
    HAS_PADDING: tl.constexpr,
    CAUSAL: tl.constexpr,
    PRECISION: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """The best keys of each query, packed (ROWS, RANKS), best first, and how many keys were in the running."""
    whole = stop // COLUMNS * COLUMNS
    most = tl.full((ROWS, COLUMNS), float("-inf"), tl.float32)
    for start in range(0, whole, COLUMNS):
        scores = _tile(
            padding,
            *(asked, own_k, k_row, rows, start, keys, dim),
            *(DIM, COLUMNS, True, EVEN, HAS_PADDING, CAUSAL, PRECISION),
        )
        most = tl.maximum(most, scores)
    if whole < stop:
        scores = _tile(
            padding,
            *(asked, own_k, k_row, rows, whole, keys, dim),
            *(DIM, COLUMNS, False, EVEN, HAS_PADDING, CAUSAL, PRECISION),
        )
        most = tl.maximum(most, scores)
    floor = tl.where(asking, of_rank(most, KEPT, INTERPRETED), float("inf"))
    count = tl.where(asking, 0, RANKS)  # no list is there without a query
    for start in range(0, whole, COLUMNS):
        scores = _tile(
            padding,
            *(asked, own_k, k_row, rows, start, keys, dim),
            *(DIM, COLUMNS, True, EVEN, HAS_PADDING, CAUSAL, PRECISION),
        )
        count = write(scores, start, floor, lists, count, RANKS, INTERPRETED)
    if whole < stop:
        scores = _tile(
            padding,
            *(asked, own_k, k_row, rows, whole, keys, dim),
            *(DIM, COLUMNS, False, EVEN, HAS_PADDING, CAUSAL, PRECISION),
        )
        count = write(scores, whole, floor, lists, count, RANKS, INTERPRETED)
    tl.store(lists, count.to(tl.int64), mask=asking)
    tl.debug_barrier()
    best, count = listed(lists, asking, RANKS, 1, RANKS)
    return tl.where((tl.arange(0, RANKS) < KEPT)[None, :], best, DEAD), count
