"""Triton kernels of token attention: scores go by in tiles, nothing quadratic in the tokens is written.

They go by twice: the maxima of groups of keys say what the best must reach, then what does is written down and put
in order. Where too much does, or where that does not pay, they go by once, and the best stay in registers. Ties go
to the lower index, as in :mod:`attnknn.ops.tokens`.

Names in capitals are fixed when a kernel is compiled, sizes among them are powers of 2.
"""

from __future__ import annotations

import triton
import triton.language as tl

from attnknn.ops.triton_lists import DEAD, LAST, column_of, listed, of_rank, pack, score_of, write

OWN = tl.constexpr(2**63 - 1)  # above every key: the query itself
_NEAR = tl.constexpr(1e-8)  # added to a distance before it is inverted


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
def at_rank(values, ranks, rank):
    """Column ``rank`` of (rows, ranks)."""
    return tl.sum(tl.where(ranks[None, :] == rank, values, 0), axis=1)


@triton.jit
def rows_at(base, rows, stride, columns, there, width):
    """Rows of a table, (rows, columns), as float32; 0 where there is none."""
    where = base + rows[:, None].to(tl.int64) * stride + columns[None, :]
    return tl.load(where, mask=there[:, None] & (columns < width)[None, :], other=0.0).to(tl.float32)


@triton.jit
def _searched(
    asked,
    own_k,
    k_row,
    padding,
    candidates,
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
    asked,
    own_k,
    k_row,
    padding,
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
def _listed(
    asked,
    own_k,
    k_row,
    padding,
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
            asked,
            own_k,
            k_row,
            padding,
            rows,
            start,
            keys,
            dim,
            DIM,
            COLUMNS,
            True,
            EVEN,
            HAS_PADDING,
            CAUSAL,
            PRECISION,
        )
        most = tl.maximum(most, scores)
    if whole < stop:
        scores = _tile(
            asked,
            own_k,
            k_row,
            padding,
            rows,
            whole,
            keys,
            dim,
            DIM,
            COLUMNS,
            False,
            EVEN,
            HAS_PADDING,
            CAUSAL,
            PRECISION,
        )
        most = tl.maximum(most, scores)
    floor = tl.where(asking, of_rank(most, KEPT, INTERPRETED), float("inf"))
    count = tl.zeros((ROWS,), tl.int32)
    for start in range(0, whole, COLUMNS):
        scores = _tile(
            asked,
            own_k,
            k_row,
            padding,
            rows,
            start,
            keys,
            dim,
            DIM,
            COLUMNS,
            True,
            EVEN,
            HAS_PADDING,
            CAUSAL,
            PRECISION,
        )
        count = write(scores, start, floor, lists, count, RANKS, INTERPRETED)
    if whole < stop:
        scores = _tile(
            asked,
            own_k,
            k_row,
            padding,
            rows,
            whole,
            keys,
            dim,
            DIM,
            COLUMNS,
            False,
            EVEN,
            HAS_PADDING,
            CAUSAL,
            PRECISION,
        )
        count = write(scores, whole, floor, lists, count, RANKS, INTERPRETED)
    tl.store(lists, count.to(tl.int64), mask=asking)
    tl.debug_barrier()
    best, count = listed(lists, asking, RANKS, 1)
    return tl.where((tl.arange(0, RANKS) < KEPT)[None, :], best, DEAD), count


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
        best, running = _listed(
            asked,
            own_k,
            k_row,
            hidden,
            rows,
            asking,
            own_list,
            keys,
            stop,
            dim,
            KEPT,
            RANKS,
            DIM,
            ROWS,
            COLUMNS,
            EVEN,
            HAS_PADDING,
            CAUSAL,
            PRECISION,
            INTERPRETED,
        )
        if tl.max(running, axis=0) >= RANKS:
            best = _searched(
                asked,
                own_k,
                k_row,
                hidden,
                candidates,
                rows,
                asking,
                keys,
                tokens,
                stop,
                dim,
                KEPT,
                RANKS,
                DIM,
                ROWS,
                COLUMNS,
                HAS_PADDING,
                HAS_CANDIDATES,
                CAUSAL,
                EUCLIDEAN,
                PRECISION,
            )
    else:
        best = _searched(
            asked,
            own_k,
            k_row,
            hidden,
            candidates,
            rows,
            asking,
            keys,
            tokens,
            stop,
            dim,
            KEPT,
            RANKS,
            DIM,
            ROWS,
            COLUMNS,
            HAS_PADDING,
            HAS_CANDIDATES,
            CAUSAL,
            EUCLIDEAN,
            PRECISION,
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
            near *= tl.load(factors + rank * width + channels, mask=channels < width, other=0.0)[None, :]
        mixed += passed[:, None] * near
    to = out + batch * out_batch + head * out_head + rows[:, None].to(tl.int64) * out_row + channels[None, :]
    tl.store(to, mixed.to(out.dtype.element_ty), mask=asking[:, None] & (channels < width)[None, :])
