"""Triton kernels of token attention: scores go by in tiles, nothing quadratic in the tokens is written.

Ties go to the lower index, as in :mod:`attnknn.ops.tokens`.

Names in capitals are fixed when a kernel is compiled, sizes among them are powers of 2.
"""

from __future__ import annotations

import triton
import triton.language as tl

from attnknn.ops.triton_lists import DEAD, column_of, score_of
from attnknn.ops.triton_nearest import OWN, looked_up, searched

_NEAR = tl.constexpr(1e-8)  # added to a distance before it is inverted


@triton.jit
def at_rank(values, ranks, rank):
    """Column ``rank`` of (rows, ranks)."""
    return tl.sum(tl.where(ranks[None, :] == rank, values, 0), axis=1)


@triton.jit
def rows_at(base, rows, stride, columns, there, width):
    """Rows of a table, (rows, columns), as float32; 0 where there is none."""
    where = base + rows[:, None].to(tl.int64) * stride + columns[None, :]
    return tl.load(where, mask=there[:, None] & (columns < width)[None, :], other=0.0).to(tl.float32)


@triton.jit
def factors_at(factors, rank, f_channel, f_rank, channels, width):
    """What values are multiplied with at a rank, as float32."""
    where = factors + channels * f_channel + rank * f_rank
    return tl.load(where, mask=channels < width, other=0.0).to(tl.float32)


@triton.jit
def _distances(asked, own_k, k_row, index, depth, asking, dim, KEPT: tl.constexpr, RANKS: tl.constexpr):
    """(rows, RANKS) by subtraction, so that equal vectors are at exactly 0."""
    ranks, apart = tl.arange(0, RANKS), tl.zeros(index.shape, tl.float32)
    for rank in range(KEPT):
        gap = asked.to(tl.float32) - rows_at(own_k, at_rank(index, ranks, rank), k_row, depth, asking, dim)
        apart = tl.where((ranks == rank)[None, :], tl.sqrt(tl.sum(gap * gap, axis=1))[:, None], apart)
    return apart


@triton.jit
def _shares(score, kept, scale, EUCLIDEAN: tl.constexpr, SOFTMAX: tl.constexpr):
    """Weights of the keys that are kept, by their scores or distances; 0 where there is none."""
    if SOFTMAX:
        raw = tl.where(kept, (-scale if EUCLIDEAN else scale) * score, float("-inf"))
        most = tl.max(raw, axis=1)
        share = tl.where(kept, tl.exp(raw - tl.where(most == float("-inf"), 0.0, most)[:, None]), 0.0)
        total = tl.sum(share, axis=1)
        share = share / tl.where(total == 0, 1.0, total)[:, None]
    elif EUCLIDEAN:
        share = tl.where(kept, 1 / (score + _NEAR), 0.0)
    else:
        share = tl.where(kept, scale * score, 0.0)
    return share


@triton.jit
def select_weigh_combine(
    q,
    k,
    v,
    factors,
    padding,
    keep,
    candidates,
    lists,
    out,
    indices,
    weights,
    q_batch,
    q_head,
    q_row,
    k_batch,
    k_head,
    k_row,
    v_batch,
    v_head,
    v_row,
    out_batch,
    out_head,
    out_row,
    heads,
    queries,
    keys,
    tokens,
    dim,
    width,
    f_channel,
    f_rank,
    scale,
    KEPT: tl.constexpr,
    RANKS: tl.constexpr,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    HAS_FACTORS: tl.constexpr,
    HAS_PADDING: tl.constexpr,
    HAS_KEEP: tl.constexpr,
    HAS_CANDIDATES: tl.constexpr,
    CAUSAL: tl.constexpr,
    EUCLIDEAN: tl.constexpr,
    SOFTMAX: tl.constexpr,
    LISTED: tl.constexpr,
    EVEN: tl.constexpr,
    PRECISION: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """What ROWS queries of one head make of the keys they keep, which these are, and their weights."""
    blocks = tl.cdiv(queries, ROWS)
    table = tl.program_id(0) // blocks
    batch, head = (table // heads).to(tl.int64), (table % heads).to(tl.int64)
    first = (tl.program_id(0) % blocks) * ROWS
    rows, ranks = first + tl.arange(0, ROWS), tl.arange(0, RANKS)
    depth, channels = tl.arange(0, DIM), tl.arange(0, WIDTH)
    asking, inside = rows < queries, (depth < dim)[None, :]
    own_k, own_v = k + batch * k_batch + head * k_head, v + batch * v_batch + head * v_head
    own_q = q + batch * q_batch + head * q_head + rows[:, None].to(tl.int64) * q_row
    asked = tl.load(own_q + depth[None, :], mask=asking[:, None] & inside, other=0.0)
    hidden = padding + batch * tokens if HAS_PADDING else padding
    stop = tl.minimum(keys, first + ROWS) if CAUSAL and not HAS_CANDIDATES else keys
    if LISTED:
        own_list = lists + (table.to(tl.int64) * queries + rows) * RANKS
        best, running = looked_up(
            hidden,
            *(asked, own_k, k_row, rows, asking, own_list, keys, stop, dim),
            *(KEPT, RANKS, DIM, ROWS, COLUMNS, EVEN, HAS_PADDING, CAUSAL, PRECISION, INTERPRETED),
        )
        if tl.max(running, axis=0) >= RANKS:
            best = searched(
                hidden,
                candidates,
                *(asked, own_k, k_row, rows, asking, keys, tokens, stop, dim),
                *(KEPT, RANKS, DIM, ROWS, COLUMNS, HAS_PADDING, HAS_CANDIDATES, CAUSAL, EUCLIDEAN, PRECISION),
            )
    else:
        best = searched(
            hidden,
            candidates,
            *(asked, own_k, k_row, rows, asking, keys, tokens, stop, dim),
            *(KEPT, RANKS, DIM, ROWS, COLUMNS, HAS_PADDING, HAS_CANDIDATES, CAUSAL, EUCLIDEAN, PRECISION),
        )
    kept = best > DEAD
    index, score = tl.where(kept, column_of(best), 0), tl.where(kept, score_of(best), 0.0)
    if HAS_CANDIDATES:
        itself, visible = best == OWN, asking
        if HAS_PADDING:
            visible &= tl.load(hidden + rows, mask=asking, other=1) == 0
        own = tl.sum(asked.to(tl.float32) * rows_at(own_k, rows, k_row, depth, asking, dim), axis=1)
        index, score = tl.where(itself, rows[:, None], index), tl.where(itself, own[:, None], score)
        kept &= visible[:, None] | (best != OWN)
    if EUCLIDEAN:
        score = _distances(asked, own_k, k_row, index, depth, asking, dim, KEPT, RANKS)
    share = _shares(score, kept, scale, EUCLIDEAN, SOFTMAX)

    place = (table.to(tl.int64) * queries + rows)[:, None] * KEPT + ranks[None, :]
    written = asking[:, None] & (ranks < KEPT)[None, :]
    tl.store(indices + place, tl.where(kept, index, -1), mask=written)
    tl.store(weights + place, share, mask=written)
    # What a rank needs is read back from memory: to pick it out of registers takes longer.
    tl.debug_barrier()
    mixed, linked = tl.zeros((ROWS, WIDTH), tl.float32), (table.to(tl.int64) * queries + rows) * KEPT
    for rank in range(KEPT):
        key = tl.maximum(tl.load(indices + linked + rank, mask=asking, other=0), 0)
        passed = tl.load(weights + linked + rank, mask=asking, other=0.0)
        if HAS_KEEP:
            passed *= tl.load(keep + linked + rank, mask=asking, other=0.0)
        near = rows_at(own_v, key, v_row, channels, asking, width)
        if HAS_FACTORS:
            near *= factors_at(factors, rank, f_channel, f_rank, channels, width)[None, :]
        mixed += passed[:, None] * near
    to = out + batch * out_batch + head * out_head + rows[:, None].to(tl.int64) * out_row + channels[None, :]
    tl.store(to, mixed.to(out.dtype.element_ty), mask=asking[:, None] & (channels < width)[None, :])
