"""Triton kernels of exact search: which keys score best, and how far those really are.

Nothing of the size queries x keys is written. A first kernel looks at some of the keys and finds a score that
enough of all keys reach; a second goes over all of them by matrix products and writes down those that reach it; a
third puts these in order. The last computes the distances of the few that are left anew, in float64: nearest
first, ties by the lower row.

Names in capitals are fixed when a kernel is compiled, sizes among them are powers of 2.
"""

from __future__ import annotations

import triton
import triton.language as tl

from attnknn.ops.triton_lists import DEAD, LOWEST, column_of, listed, of_rank, score_of, write


@triton.jit
def _scores(
    asked,
    own,
    keys,
    offsets,
    factor,
    start,
    there,
    width,
    DIM: tl.constexpr,
    COLUMNS: tl.constexpr,
    CHUNKED: tl.constexpr,
    OFFSETS: tl.constexpr,
    WHOLE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """(ROWS, COLUMNS) inner products; with OFFSETS times the factor of the query, plus the offset of the key.

    In a WHOLE tile all of the keys are there.
    """
    columns, depth = start + tl.arange(0, COLUMNS), tl.arange(0, DIM)
    near = keys + tl.cast(start, tl.int64) * width + (tl.arange(0, COLUMNS)[None, :] * width + depth[:, None])
    scores = tl.dot(asked, tl.load(near), input_precision=PRECISION)
    if CHUNKED:
        for at in range(DIM, width, DIM):
            scores = tl.dot(tl.load(own + at), tl.load(near + at), acc=scores, input_precision=PRECISION)
    if OFFSETS:
        scores = scores * factor + tl.load(offsets + columns, mask=columns < there, other=float("-inf"))[None, :]
    elif not WHOLE:
        scores = tl.where((columns < there)[None, :], scores, float("-inf"))
    return scores


@triton.jit
def floors(
    queries,
    keys,
    factors,
    offsets,
    found,
    asking,
    there,
    width,
    step,
    RANK: tl.constexpr,
    DIM: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    CHUNKED: tl.constexpr,
    OFFSETS: tl.constexpr,
    PRECISION: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """A score for each query that at least RANK of every ``step``-th tile of keys reach.

    It is the RANK-th of the maxima of COLUMNS groups: a group has the same place in each tile. Queries and keys
    are there in whole tiles, ``width`` numbers each.
    """
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    known = rows < asking
    own = queries + rows[:, None].to(tl.int64) * width + tl.arange(0, DIM)[None, :]
    factor = tl.load(factors + rows, mask=known, other=0.0)[:, None]
    asked, most = tl.load(own), tl.full((ROWS, COLUMNS), float("-inf"), tl.float32)
    for start in range(0, there // COLUMNS * COLUMNS, step * COLUMNS):
        most = tl.maximum(
            most,
            _scores(
                *(asked, own, keys, offsets, factor, start, there, width),
                *(DIM, COLUMNS, CHUNKED, OFFSETS, True, PRECISION),
            ),
        )
    tl.store(found + rows, of_rank(most, RANK, INTERPRETED), mask=known)


@triton.jit
def above(
    queries,
    keys,
    factors,
    offsets,
    floors,
    lists,
    asking,
    there,
    width,
    ROOM: tl.constexpr,
    DIM: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    CHUNKED: tl.constexpr,
    OFFSETS: tl.constexpr,
    PRECISION: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """Writes down which keys reach the floor of a query. Of as many tiles as there are parts one takes each."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    known = rows < asking
    own = queries + rows[:, None].to(tl.int64) * width + tl.arange(0, DIM)[None, :]
    factor = tl.load(factors + rows, mask=known, other=0.0)[:, None]
    floor = tl.load(floors + rows, mask=known, other=float("inf"))  # without a query nothing is
    asked, count = tl.load(own), tl.where(known, 0, ROOM)  # no list is there without a query
    own_list = lists + (rows.to(tl.int64) * tl.num_programs(1) + tl.program_id(1)) * ROOM
    part, parts, whole = tl.program_id(1), tl.num_programs(1), there // COLUMNS
    for tile in range(part, whole, parts):
        scores = _scores(
            *(asked, own, keys, offsets, factor, tile * COLUMNS, there, width),
            *(DIM, COLUMNS, CHUNKED, OFFSETS, True, PRECISION),
        )
        count = write(scores, tile * COLUMNS, floor, own_list, count, ROOM, INTERPRETED)
    if (whole * COLUMNS < there) & (whole % parts == part):
        scores = _scores(
            *(asked, own, keys, offsets, factor, whole * COLUMNS, there, width),
            *(DIM, COLUMNS, CHUNKED, OFFSETS, False, PRECISION),
        )
        count = write(scores, whole * COLUMNS, floor, own_list, count, ROOM, INTERPRETED)
    tl.store(own_list, count.to(tl.int64), mask=known)


@triton.jit
def in_order(
    lists,
    factors,
    floors,
    scores,
    columns,
    reach,
    asking,
    none,
    ROOM: tl.constexpr,
    PARTS: tl.constexpr,
    PLACES: tl.constexpr,
    KEPT: tl.constexpr,
    ROWS: tl.constexpr,
    OFFSETS: tl.constexpr,
):
    """The best KEPT of the lists of each query, best first, ties by the lower row; and what no other key exceeds.

    All keys that reach the floor are in the lists, but where one of these had no room for all.
    """
    rows, places = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, PLACES)
    known = rows < asking
    factor = tl.load(factors + rows, mask=known, other=1.0)
    best, longest = listed(lists + rows.to(tl.int64) * (ROOM * PARTS), known, ROOM, PARTS, PLACES)
    alive = best != DEAD
    score = tl.where(alive, score_of(best), float("-inf"))
    floor = tl.load(floors + rows, mask=known, other=0.0)
    last = tl.sum(tl.where((places == KEPT - 1)[None, :], score, 0.0), axis=1)
    last = tl.where(last == float("-inf"), floor, last)
    if not OFFSETS:
        score *= factor[:, None]
        scaled = last * factor
        scaled = tl.where(tl.abs(scaled) <= -LOWEST, scaled, float("inf"))  # too large a number tells nothing
        last = tl.where(last > LOWEST, scaled, last)
    to = rows[:, None].to(tl.int64) * KEPT + places[None, :]
    kept = known[:, None] & (places < KEPT)[None, :]
    tl.store(scores + to, score, mask=kept)
    tl.store(columns + to, tl.where(alive, column_of(best).to(tl.int64), none), mask=kept)
    tl.store(reach + rows, tl.where(longest >= ROOM, float("inf"), last), mask=known)


@triton.jit
def settle(
    queries,
    vectors,
    rows,
    found,
    distances,
    q_row,
    v_row,
    dim,
    kept,
    none,
    CANDIDATES: tl.constexpr,
    DIM: tl.constexpr,
    METRIC: tl.constexpr,
):
    """The nearest of the CANDIDATES rows of one query, by distances in float64; ``none`` stands for no row."""
    query, places, depth = tl.program_id(0).to(tl.int64), tl.arange(0, CANDIDATES), tl.arange(0, DIM)
    row = tl.load(rows + query * CANDIDATES + places)
    there = row != none
    product = tl.zeros((CANDIDATES,), tl.float64)
    own = tl.zeros((CANDIDATES,), tl.float64)
    other = tl.zeros((CANDIDATES,), tl.float64)
    for at in range(0, dim, DIM):
        inside = depth < dim - at
        asked = tl.load(queries + query * q_row + at + depth, mask=inside, other=0.0).to(tl.float64)
        near = vectors + row[:, None] * v_row + at + depth[None, :]
        key = tl.load(near, mask=there[:, None] & inside[None, :], other=0.0).to(tl.float64)
        if METRIC == "l2":
            key = tl.where(inside[None, :], asked[None, :] - key, 0.0)
            product += tl.sum(key * key, axis=1)
        else:
            product += tl.sum(key * asked[None, :], axis=1)
        if METRIC == "cosine":
            own += tl.sum(asked * asked, axis=0)
            other += tl.sum(key * key, axis=1)
    if METRIC == "l2":
        gap = tl.sqrt(product)
    elif METRIC == "cosine":
        squares = own * other
        cosine = tl.sqrt(product * product / tl.where(squares > 0, squares, 1.0))
        gap = 1 - tl.where(product < 0, -cosine, cosine)
    else:
        gap = -product
    gap = tl.where(there & (gap == gap), gap, float("inf"))  # what is no number would leave a place unwritten
    nearer = (gap[None, :] < gap[:, None]) | ((gap[None, :] == gap[:, None]) & (row[None, :] < row[:, None]))
    # Places without a row are alike; the first of them comes first.
    nearer |= (row[None, :] == row[:, None]) & (places[None, :] < places[:, None])
    rank = tl.sum(nearer.to(tl.int32), axis=1)
    to = query * kept + rank
    tl.store(found + to, row, mask=rank < kept)
    tl.store(distances + to, gap, mask=rank < kept)
