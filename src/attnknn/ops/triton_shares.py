"""Triton kernels of the softmax over all keys: what each class gets of it, and the gradient of that.

Nothing of the size queries x keys is written. As no score exceeds a bound that is known before, sums need no
maximum; they are kept in ranges of 80 nats, so that a class far away does not vanish from float32. Numbers of 32
bits are products of 16: a number is the sum of two such, and of four products the smallest is left out.

Names in capitals are fixed when a kernel is compiled, sizes among them are powers of 2.
"""

from __future__ import annotations

import triton
import triton.language as tl

RANGE = tl.constexpr(80.0)  # nats: the exponential of as many, and of minus as many, is a float32


@triton.jit
def _halved(values):
    """Two numbers of 16 bits whose sum is as good as one of 32."""
    coarse = values.to(tl.bfloat16)
    return coarse, (values - coarse.to(tl.float32)).to(tl.bfloat16)


@triton.jit
def _product(left, left_rest, right, right_rest, total, INTERPRETED: tl.constexpr):
    if INTERPRETED:  # which takes the bits of such numbers for whole numbers
        left, left_rest = left.to(tl.float32), left_rest.to(tl.float32)
        right, right_rest = right.to(tl.float32), right_rest.to(tl.float32)
    total = tl.dot(left, right_rest, acc=total)
    total = tl.dot(left_rest, right, acc=total)
    return tl.dot(left, right, acc=total)


@triton.jit
def _rows(table, rest, rows, count, columns, width):
    """Rows of a table of ``width``, and what they lack; 0 where there is none."""
    where = rows[:, None].to(tl.int64) * width + columns[None, :]
    there = (rows < count)[:, None] & (columns < width)[None, :]
    return tl.load(table + where, mask=there, other=0.0), tl.load(rest + where, mask=there, other=0.0)


@triton.jit
def _beneath(
    cosines, own, theirs, offsets, columns, there, rows, asking, groups, scale, top, GROUPS: tl.constexpr
):
    """How far each logit is beneath the bound: 0 or less; minus infinity where a query must not look."""
    known = columns < there
    offset = tl.load(offsets + columns, mask=known, other=float("-inf"))
    logits = scale * cosines + (offset - top)[None, :]
    logits = tl.where((offset == float("-inf"))[None, :], float("-inf"), logits)  # whatever the key holds
    group = tl.load(theirs + columns, mask=known, other=0)
    for at in tl.static_range(GROUPS):
        mine = tl.load(own + rows.to(tl.int64) * groups + at, mask=rows < asking, other=0)
        logits = tl.where(mine[:, None] == group[None, :], float("-inf"), logits)
    return logits


@triton.jit
def _masses(beneath, AT: tl.constexpr, LAST: tl.constexpr):
    """Exponentials of the logits in one range, in its unit; the LAST has all that is beneath it too."""
    if AT:
        beneath = tl.where(beneath < -RANGE * AT, beneath + RANGE * AT, float("-inf"))
    if not LAST:  # what is not a number must be seen
        beneath = tl.where(beneath < -RANGE, float("-inf"), beneath)
    return tl.exp(beneath)


@triton.jit
def class_sums(
    q,
    q_rest,
    k,
    k_rest,
    owners,
    owners_rest,
    offsets,
    own,
    theirs,
    scale,
    top,
    spread,
    sums,
    asking,
    there,
    dim,
    classes,
    groups,
    DIM: tl.constexpr,
    CLASSES: tl.constexpr,
    GROUPS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """What keys bring to each class, in three ranges. Of as many tiles as there are parts one takes each."""
    part, parts = tl.program_id(1), tl.num_programs(1)
    rows, depth = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, DIM)
    column, share = tl.arange(0, COLUMNS), tl.arange(0, CLASSES)
    asked, asked_rest = _rows(q, q_rest, rows, asking, depth, dim)
    factor, bound, far = tl.load(scale), tl.load(top), tl.load(spread) > RANGE
    near = tl.zeros((ROWS, CLASSES), tl.float32)
    beyond, farthest = near, near
    nothing = tl.zeros((ROWS, COLUMNS), tl.float32)
    for tile in range(part, tl.cdiv(there, COLUMNS), parts):
        columns = tile * COLUMNS + column
        key, key_rest = _rows(k, k_rest, columns, there, depth, dim)
        cosines = _product(asked, asked_rest, tl.trans(key), tl.trans(key_rest), nothing, INTERPRETED)
        beneath = _beneath(
            cosines, own, theirs, offsets, columns, there, rows, asking, groups, factor, bound, GROUPS
        )
        of, of_rest = _rows(owners, owners_rest, columns, there, share, classes)
        mass, mass_rest = _halved(_masses(beneath, 0, False))
        near = _product(mass, mass_rest, of, of_rest, near, INTERPRETED)
        if far:
            mass, mass_rest = _halved(_masses(beneath, 1, False))
            beyond = _product(mass, mass_rest, of, of_rest, beyond, INTERPRETED)
            mass, mass_rest = _halved(_masses(beneath, 2, True))
            farthest = _product(mass, mass_rest, of, of_rest, farthest, INTERPRETED)
    step = tl.cast(asking, tl.int64) * classes
    to = sums + part * 3 * step + rows[:, None].to(tl.int64) * classes + share[None, :]
    known = (rows < asking)[:, None] & (share < classes)[None, :]
    tl.store(to, near, mask=known)
    tl.store(to + step, beyond, mask=known)
    tl.store(to + 2 * step, farthest, mask=known)


@triton.jit
def _steep(slopes, rows, asking, share, classes, AT: tl.constexpr):
    """How the loss changes with what keys in one range bring to each class."""
    where = slopes + (AT * tl.cast(asking, tl.int64) + rows[:, None]) * classes + share[None, :]
    return _halved(tl.load(where, mask=(rows < asking)[:, None] & (share < classes)[None, :], other=0.0))


@triton.jit
def back_to_queries(
    q,
    q_rest,
    k,
    k_rest,
    owners,
    owners_rest,
    offsets,
    own,
    theirs,
    scale,
    top,
    spread,
    slopes,
    to_q,
    to_scale,
    asking,
    there,
    dim,
    classes,
    groups,
    DIM: tl.constexpr,
    CLASSES: tl.constexpr,
    GROUPS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """Gradients of the queries, but for the scale, and those of the scale: of each part of the keys a sum."""
    part, parts = tl.program_id(1), tl.num_programs(1)
    rows, depth = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, DIM)
    column, share = tl.arange(0, COLUMNS), tl.arange(0, CLASSES)
    asked, asked_rest = _rows(q, q_rest, rows, asking, depth, dim)
    factor, bound, far = tl.load(scale), tl.load(top), tl.load(spread) > RANGE
    near, near_rest = _steep(slopes, rows, asking, share, classes, 0)
    turned, grown = tl.zeros((ROWS, DIM), tl.float32), tl.zeros((ROWS,), tl.float32)
    nothing = tl.zeros((ROWS, COLUMNS), tl.float32)
    for tile in range(part, tl.cdiv(there, COLUMNS), parts):
        columns = tile * COLUMNS + column
        key, key_rest = _rows(k, k_rest, columns, there, depth, dim)
        cosines = _product(asked, asked_rest, tl.trans(key), tl.trans(key_rest), nothing, INTERPRETED)
        beneath = _beneath(
            cosines, own, theirs, offsets, columns, there, rows, asking, groups, factor, bound, GROUPS
        )
        of, of_rest = _rows(owners, owners_rest, columns, there, share, classes)
        of, of_rest = tl.trans(of), tl.trans(of_rest)
        pull = _masses(beneath, 0, False) * _product(near, near_rest, of, of_rest, nothing, INTERPRETED)
        if far:
            slope, slope_rest = _steep(slopes, rows, asking, share, classes, 1)
            pull += _masses(beneath, 1, False) * _product(slope, slope_rest, of, of_rest, nothing, INTERPRETED)
            slope, slope_rest = _steep(slopes, rows, asking, share, classes, 2)
            pull += _masses(beneath, 2, True) * _product(slope, slope_rest, of, of_rest, nothing, INTERPRETED)
        grown += tl.sum(pull * cosines, axis=1)
        slope, slope_rest = _halved(pull)
        turned = _product(slope, slope_rest, key, key_rest, turned, INTERPRETED)
    row = part * tl.cast(asking, tl.int64) + rows
    tl.store(
        to_q + row[:, None] * dim + depth[None, :], turned, mask=(rows < asking)[:, None] & (depth < dim)[None, :]
    )
    tl.store(to_scale + row, grown, mask=rows < asking)
