"""Triton kernels of exact search: which keys score best, and how far those really are.

The first goes over all keys by matrix products of 16-bit numbers, or of 32-bit ones, and keeps the best of each
query in registers; nothing of the size queries x keys is written. The second computes the distances of the few
that are left anew, in float64, and puts them in order: nearest first, ties by the lower row.

Names in capitals are fixed when a kernel is compiled, sizes among them are powers of 2.
"""

from __future__ import annotations

import triton
import triton.language as tl

from attnknn.ops.triton_tokens import DEAD, admitted, nothing_yet, pack


@triton.jit
def best_keys(
    queries,
    keys,
    factors,
    offsets,
    found,
    q_row,
    k_row,
    asking,
    there,
    dim,
    part,
    RANKS: tl.constexpr,
    DIM: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    CHUNKED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """The best keys of ROWS queries in one part of all keys, packed, best first: (parts, queries, RANKS).

    A score is the inner product, times the factor of the query, plus the offset of the key: minus infinity hides.
    """
    rows, ranks, depth = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, RANKS), tl.arange(0, DIM)
    known = rows < asking
    own = queries + rows[:, None].to(tl.int64) * q_row + depth[None, :]
    begin = tl.program_id(1) * part
    stop = tl.minimum(begin + part, there)
    best, beside = nothing_yet(ROWS, RANKS, RANKS)
    floor = tl.where(known, float("-inf"), float("inf"))
    factor = tl.load(factors + rows, mask=known, other=0.0)[:, None]
    asked = tl.load(own, mask=known[:, None] & (depth < dim)[None, :], other=0.0)
    for start in range(begin, stop, COLUMNS):
        columns = start + tl.arange(0, COLUMNS)
        inside = columns < stop
        near = keys + columns[None, :].to(tl.int64) * k_row + depth[:, None]
        right = tl.load(near, mask=inside[None, :] & (depth < dim)[:, None], other=0.0)
        scores = tl.dot(asked, right, input_precision=PRECISION)
        if CHUNKED:
            for at in range(DIM, dim, DIM):
                more = (depth < dim - at)[None, :]
                left = tl.load(own + at, mask=known[:, None] & more, other=0.0)
                right = tl.load(near + at, mask=inside[None, :] & (depth < dim - at)[:, None], other=0.0)
                scores = tl.dot(left, right, acc=scores, input_precision=PRECISION)
        scores = scores * factor + tl.load(offsets + columns, mask=inside, other=float("-inf"))[None, :]
        best, beside, floor = admitted(scores, columns, best, beside, floor)
    packed = tl.sort(tl.where(best > float("-inf"), pack(best, beside), DEAD), 1, descending=True)
    place = (tl.program_id(1).to(tl.int64) * asking + rows)[:, None] * RANKS + ranks[None, :]
    tl.store(found + place, packed, mask=known[:, None])


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
        length = tl.sqrt(own) * tl.sqrt(other)
        gap = 1 - product / tl.where(length > 0, length, 1.0)
    else:
        gap = -product
    gap = tl.where(there, gap, float("inf"))
    nearer = (gap[None, :] < gap[:, None]) | ((gap[None, :] == gap[:, None]) & (row[None, :] < row[:, None]))
    # Places without a row are alike; the first of them comes first.
    nearer |= (row[None, :] == row[:, None]) & (places[None, :] < places[:, None])
    rank = tl.sum(nearer.to(tl.int32), axis=1)
    to = query * kept + rank
    tl.store(found + to, row, mask=rank < kept)
    tl.store(distances + to, gap, mask=rank < kept)
