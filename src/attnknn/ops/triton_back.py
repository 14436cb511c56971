"""The backward pass of the kernels in :mod:`attnknn.ops.triton_tokens`.

Each query adds to the gradients of the keys it keeps, in whatever order. Where results must be the same on every
run, each key sums over the queries instead, which takes the longer the more tokens there are.
"""

from __future__ import annotations

import triton
import triton.language as tl

from attnknn.ops.triton_tokens import factors_at, rows_at


@triton.jit
def back_to_queries(
    q,
    k,
    v,
    factors,
    keep,
    indices,
    weights,
    grad,
    to_q,
    to_k,
    to_v,
    to_scores,
    to_factors,
    q_batch,
    q_head,
    q_row,
    k_batch,
    k_head,
    k_row,
    v_batch,
    v_head,
    v_row,
    g_batch,
    g_head,
    g_row,
    heads,
    queries,
    tokens,
    dim,
    width,
    f_channel,
    f_rank,
    parts,
    scale,
    KEPT: tl.constexpr,
    RANKS: tl.constexpr,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    HAS_FACTORS: tl.constexpr,
    HAS_KEEP: tl.constexpr,
    EUCLIDEAN: tl.constexpr,
    SOFTMAX: tl.constexpr,
    SCATTER: tl.constexpr,
):
    """Gradients of ROWS queries and of their scores; with SCATTER they also add to those of all else.

    The gradients of the factors are in several parts, so that few queries meet.

    Of a score that is a distance ``to_scores`` is twice the gradient of its square: what ``q - k`` is multiplied
    with. Gradients of queries, keys and values lie token by token, each with all its heads.
    """
    blocks = tl.cdiv(queries, ROWS)
    table = tl.program_id(0) // blocks
    batch, head = (table // heads).to(tl.int64), (table % heads).to(tl.int64)
    rows, ranks = (tl.program_id(0) % blocks) * ROWS + tl.arange(0, ROWS), tl.arange(0, RANKS)
    depth, channels = tl.arange(0, DIM), tl.arange(0, WIDTH)
    if SCATTER:  # what a thread reads is what it adds: four numbers, as many as it can add to at once
        depth, channels = tl.max_contiguous(depth, 4), tl.max_contiguous(channels, 4)
    asking = rows < queries
    own_k, own_v = k + batch * k_batch + head * k_head, v + batch * v_batch + head * v_head
    slopes = rows_at(grad + batch * g_batch + head * g_head, rows, g_row, channels, asking, width)
    # What a rank needs is read from memory: to pick it out of registers takes longer.
    linked = (table.to(tl.int64) * queries + rows) * KEPT
    for rank in range(KEPT):
        key = tl.maximum(tl.load(indices + linked + rank, mask=asking, other=0), 0)
        passed = tl.load(weights + linked + rank, mask=asking, other=0.0)
        if HAS_KEEP:
            passed *= tl.load(keep + linked + rank, mask=asking, other=0.0)
        turn, near = slopes, rows_at(own_v, key, v_row, channels, asking, width) * slopes
        if HAS_FACTORS:
            if SCATTER:
                part = to_factors + ((tl.program_id(0) % parts) * KEPT + rank).to(tl.int64) * width + channels
                gained = tl.sum(near * passed[:, None], axis=0)
                tl.atomic_add(part, gained, mask=channels < width, sem="relaxed")
            factor = factors_at(factors, rank, f_channel, f_rank, channels, width)
            turn, near = turn * factor[None, :], near * factor[None, :]
        tl.store(to_scores + linked + rank, tl.sum(near, axis=1), mask=asking)
        if SCATTER:
            to = to_v + ((batch * tokens + key) * heads + head)[:, None] * width + channels[None, :]
            there = asking[:, None] & (channels < width)[None, :]
            tl.atomic_add(to, turn * passed[:, None], mask=there, sem="relaxed")
    tl.debug_barrier()

    place = linked[:, None] + ranks[None, :]
    written = asking[:, None] & (ranks < KEPT)[None, :]
    share = tl.load(weights + place, mask=written, other=0.0)
    to_share = tl.load(to_scores + place, mask=written, other=0.0)
    if HAS_KEEP:
        to_share *= tl.load(keep + place, mask=written, other=0.0)
    to_share = tl.where(tl.load(indices + place, mask=written, other=-1) >= 0, to_share, 0.0)
    if SOFTMAX:
        to_share = share * (to_share - tl.sum(share * to_share, axis=1)[:, None]) * scale
    elif not EUCLIDEAN:
        to_share *= scale
    tl.store(to_scores + place, to_share, mask=written)
    tl.debug_barrier()

    turned = tl.zeros((ROWS, DIM), tl.float32)
    if EUCLIDEAN or SCATTER:
        asked = rows_at(q + batch * q_batch + head * q_head, rows, q_row, depth, asking, dim)
    for rank in range(KEPT):
        key = tl.maximum(tl.load(indices + linked + rank, mask=asking, other=0), 0)
        slope = tl.load(to_scores + linked + rank, mask=asking, other=0.0)
        beside = rows_at(own_k, key, k_row, depth, asking, dim)
        if EUCLIDEAN:
            beside = asked - beside
            gap = tl.sqrt(tl.sum(beside * beside, axis=1))
            # The square root has no finite slope at 0; there the distance is a constant.
            slope *= -tl.where(gap == 0, 0.0, 1 / tl.where(gap == 0, 1.0, gap))
            if not SOFTMAX:
                weight = tl.load(weights + linked + rank, mask=asking, other=0.0)
                slope *= weight * weight
            tl.store(to_scores + linked + rank, slope, mask=asking)
        turned += slope[:, None] * beside
        if SCATTER:
            to = to_k + ((batch * tokens + key) * heads + head)[:, None] * dim + depth[None, :]
            there = asking[:, None] & (depth < dim)[None, :]
            tl.atomic_add(to, slope[:, None] * (-beside if EUCLIDEAN else asked), mask=there, sem="relaxed")
    to = to_q + ((batch * queries + rows) * heads + head)[:, None] * dim + depth[None, :]
    tl.store(to, turned.to(to_q.dtype.element_ty), mask=asking[:, None] & (depth < dim)[None, :])


@triton.jit
def back_to_factors(
    v,
    keep,
    indices,
    weights,
    grad,
    to_factors,
    v_batch,
    v_head,
    v_row,
    g_batch,
    g_head,
    g_row,
    heads,
    queries,
    width,
    tables,
    KEPT: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    HAS_KEEP: tl.constexpr,
):
    """One part of the gradient of the factors of one rank: the sum over every so manieth ROWS queries."""
    rank, channels = tl.program_id(1), tl.arange(0, WIDTH)
    blocks, gained = tl.cdiv(queries, ROWS), tl.zeros((WIDTH,), tl.float32)
    for block in range(tl.program_id(0), tables * blocks, tl.num_programs(0)):
        table = block // blocks
        batch, head = (table // heads).to(tl.int64), (table % heads).to(tl.int64)
        rows = (block % blocks) * ROWS + tl.arange(0, ROWS)
        asking = rows < queries
        place = (table.to(tl.int64) * queries + rows) * KEPT + rank
        key = tl.maximum(tl.load(indices + place, mask=asking, other=0), 0)
        passed = tl.load(weights + place, mask=asking, other=0.0)
        if HAS_KEEP:
            passed *= tl.load(keep + place, mask=asking, other=0.0)
        slopes = rows_at(grad + batch * g_batch + head * g_head, rows, g_row, channels, asking, width)
        near = rows_at(v + batch * v_batch + head * v_head, key, v_row, channels, asking, width)
        gained += tl.sum(near * slopes * passed[:, None], axis=0)
    to = to_factors + (tl.program_id(0) * KEPT + rank).to(tl.int64) * width + channels
    tl.store(to, gained, mask=channels < width)


@triton.jit
def back_to_keys(
    q,
    k,
    factors,
    keep,
    indices,
    weights,
    to_scores,
    grad,
    to_k,
    to_v,
    q_batch,
    q_head,
    q_row,
    k_batch,
    k_head,
    k_row,
    g_batch,
    g_head,
    g_row,
    heads,
    queries,
    tokens,
    dim,
    width,
    f_channel,
    f_rank,
    KEPT: tl.constexpr,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    HAS_FACTORS: tl.constexpr,
    HAS_KEEP: tl.constexpr,
    CAUSAL: tl.constexpr,
    EUCLIDEAN: tl.constexpr,
    WIDE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Gradients of COLUMNS keys and their values: sums over all queries of the head, ROWS at a time."""
    blocks = tl.cdiv(tokens, COLUMNS)
    table = tl.program_id(0) // blocks
    batch, head = (table // heads).to(tl.int64), (table % heads).to(tl.int64)
    first = (tl.program_id(0) % blocks) * COLUMNS
    columns = first + tl.arange(0, COLUMNS)
    depth, channels = tl.arange(0, DIM), tl.arange(0, WIDTH)
    own_q, own_grad = q + batch * q_batch + head * q_head, grad + batch * g_batch + head * g_head
    near, mixed = tl.zeros((COLUMNS, DIM), tl.float32), tl.zeros((COLUMNS, WIDTH), tl.float32)
    total = tl.zeros((COLUMNS,), tl.float32)
    begin = (first // ROWS) * ROWS if CAUSAL else 0
    for start in range(begin, queries, ROWS):
        rows = start + tl.arange(0, ROWS)
        asking = rows < queries
        place = (table.to(tl.int64) * queries + rows) * KEPT
        slopes = tl.load(
            own_grad + rows[:, None].to(tl.int64) * g_row + channels[None, :],
            mask=asking[:, None] & (channels < width)[None, :],
            other=0.0,
        )
        asked = tl.load(
            own_q + rows[:, None].to(tl.int64) * q_row + depth[None, :],
            mask=asking[:, None] & (depth < dim)[None, :],
            other=0.0,
        )
        if WIDE:
            slopes, asked = slopes.to(tl.float32), asked.to(tl.float32)
        to_score = tl.zeros((COLUMNS, ROWS), tl.float32)
        shares = tl.zeros((COLUMNS, ROWS), tl.float32)
        for rank in range(KEPT):
            index = tl.load(indices + place + rank, mask=asking, other=-1)
            linked = index[None, :] == columns[:, None]
            slope = tl.load(to_scores + place + rank, mask=asking, other=0.0)
            share = tl.load(weights + place + rank, mask=asking, other=0.0)
            if HAS_KEEP:
                share *= tl.load(keep + place + rank, mask=asking, other=0.0)
            to_score += tl.where(linked, slope[None, :], 0.0)
            if HAS_FACTORS:
                factor = factors_at(factors, rank, f_channel, f_rank, channels, width)
                through = (slopes.to(tl.float32) * factor[None, :]).to(slopes.dtype)
                link = tl.where(linked, share[None, :], 0.0).to(slopes.dtype)
                mixed = tl.dot(link, through, acc=mixed, input_precision=PRECISION)
            else:
                shares += tl.where(linked, share[None, :], 0.0)
        if not HAS_FACTORS:
            mixed = tl.dot(shares.to(slopes.dtype), slopes, acc=mixed, input_precision=PRECISION)
        near = tl.dot(to_score.to(asked.dtype), asked, acc=near, input_precision=PRECISION)
        if EUCLIDEAN:
            total += tl.sum(to_score, axis=1)
    if EUCLIDEAN:
        own = rows_at(k + batch * k_batch + head * k_head, columns, k_row, depth, columns < tokens, dim)
        near = total[:, None] * own - near
    row = ((batch * tokens + columns) * heads + head)[:, None]
    known = (columns < tokens)[:, None]
    tl.store(
        to_k + row * dim + depth[None, :],
        near.to(to_k.dtype.element_ty),
        mask=known & (depth < dim)[None, :],
    )
    tl.store(
        to_v + row * width + channels[None, :],
        mixed.to(to_v.dtype.element_ty),
        mask=known & (channels < width)[None, :],
    )
