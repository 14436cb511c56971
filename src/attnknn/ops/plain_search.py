"""Exact search by torch and NumPy: the reference, and what serves where no kernel does.

The scores that pick candidates come from one float32 matrix product, so they carry a rounding error. That
error has a bound, and every key within the bound of the k-th score becomes a candidate; the distances of
the candidates are then computed anew in float64. So the answer is the exact one, whatever the batch, the
chunks or the device, and ties go to the lower row.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import torch
from torch import Tensor

from attnknn.ops import kernels, pairs
from attnknn.ops.keys import NO_ROW, SLICE, Keys, TopK
from attnknn.ops.similarity import Metric

MEMORY_BUDGET: Final = 256 * 2**20
"""Bytes that a search may hold beside the keys and its answer."""

_QUERIES = 1024  # queries per product at most
_FEWEST = 128  # and at least: fewer would make the product slow
_FEW = 16  # queries that are looked at without groups
_COLUMNS = 4096  # columns per product: larger ones spill out of the cache
_GROUP = 16  # scores per group; only the groups with the largest maxima are looked into
_SPARE = 4  # candidates beyond k, so that the error bound rarely asks for a second look
_SPARE_SHARE = 8  # or one for so many of k: the farther, the denser the keys lie
_RETRY = 512  # most candidates accepted on float32 evidence; beyond that, float64 scores decide
_CACHE = 2**20  # bytes of float64 candidates worked on at a time on the CPU, so that they stay in cache


def by_torch(queries: Tensor, keys: Keys, k: int, leave_out: Tensor | None, budget: int) -> TopK:
    """As :func:`exact_topk`, unchecked: a chunk of queries at a time."""
    parts = []
    for start, stop in _query_chunks(len(queries), keys.rows, k, budget):
        parts.append(_search(queries[start:stop], keys, k, pairs.between(leave_out, 0, start, stop), budget))
    if not parts or k == 0:
        return nothing(queries, k)
    return parts[0] if len(parts) == 1 else TopK(*(torch.cat(column) for column in zip(*parts, strict=True)))


def _query_chunks(queries: int, rows: int, k: int, budget: int) -> Iterator[tuple[int, int]]:
    """Chunks of even size, as large as half the budget holds scores against all keys, within reason."""
    most = min(max(budget // (8 * max(1, rows)), _FEWEST), _QUERIES)
    most = max(1, min(most, budget // (128 * (k + _SPARE))))  # the candidates and their copies
    chunks = -(-queries // most)
    for at in range(chunks):
        yield queries * at // chunks, queries * (at + 1) // chunks


def _search(queries: Tensor, keys: Keys, k: int, leave_out: Tensor | None, budget: int) -> TopK:
    # The scores take half of the budget; group maxima and float64 candidates share the rest.
    width = max(_GROUP, budget // (8 * len(queries)))
    best = nothing(queries, 0)
    for start in range(0, keys.rows, width):
        stop = min(start + width, keys.rows)
        block = keys.between(start, stop)
        found = _nearest(queries, block, min(k, block.rows), pairs.between(leave_out, 1, start, stop), budget)
        if start == 0:
            best = found
            continue
        shifted = torch.where(found.rows == NO_ROW, NO_ROW, found.rows + start)
        best = _merged(best, TopK(shifted, found.distances), k)
    return best


def _nearest(queries: Tensor, keys: Keys, k: int, leave_out: Tensor | None, budget: int) -> TopK:
    """The exact top k of one block of keys."""
    centered = keys.centered(queries)
    m = min(k + max(_SPARE, k // _SPARE_SHARE), keys.rows)
    scores, maxima = _scores(centered, keys, leave_out)
    top, columns = kernels.largest(scores, m) if len(queries) <= _FEW else _largest(scores, m, maxima)
    best = _settled(queries, keys, top, columns, k, budget)
    if m == keys.rows:
        return best
    # No other key scores above the last candidate; at -inf none may be found.
    reach, worst = top[:, -1], best.distances[:, -1]
    unsure = ((reach >= floor_of(centered, keys, worst, scores.dtype)) & (reach > -torch.inf)).nonzero().flatten()
    several = max(1, budget // (64 * keys.rows))
    for part in torch.split(unsure, several) if len(unsure) else ():
        found = _second_look(queries[part], keys, scores[part], worst[part], k, budget)
        best.rows[part], best.distances[part] = found
    return best


def _scores(centered: Tensor, keys: Keys, leave_out: Tensor | None) -> tuple[Tensor, Tensor]:
    """Scores (q, n rounded up to whole blocks) and the maxima of their groups, taken while still in cache.

    What must not be found scores minus infinity. A block holds ``_GROUP`` runs of columns; a group has the
    same place in each run.
    """
    device = centered.device
    asked = kernels.with_ones(centered)
    wide = _block_width(len(asked), keys.rows, device)
    blocks = -(-keys.rows // wide)
    scores = kernels.empty(len(asked), blocks, wide, device=device)
    maxima = kernels.empty(len(asked), blocks, wide // _GROUP, device=device)
    for at in range(blocks):
        table = keys.table[:, at * wide : (at + 1) * wide]
        kernels.hide(scores[:, at, table.shape[1] :])
        kernels.product(asked, table, out=scores[:, at, : table.shape[1]])
        hidden = pairs.between(leave_out, 1, at * wide, (at + 1) * wide)
        if hidden is not None:
            scores[hidden[:, 0], at, hidden[:, 1]] = -torch.inf
        if len(asked) > _FEW:
            kernels.group_maxima(scores[:, at].view(len(asked), _GROUP, -1), out=maxima[:, at])
    return scores.flatten(1), maxima


def _block_width(queries: int, rows: int, device: torch.device) -> int:
    """Columns per product: few queries take all at once, many a block that stays in cache."""
    most = _COLUMNS if queries > _FEW and device.type == "cpu" else 2**20
    return -(-min(rows, most) // _GROUP**2) * _GROUP**2


def floor_of(
    centered: Tensor, keys: Keys, worst: Tensor, dtype: torch.dtype, inputs: float | None = None
) -> Tensor:
    """(q,) the least score that a key may have been given that lies no farther than ``worst``.

    It is the score of that distance, less the rounding error: |fl(q.x) - q.x| <= terms * u * |q| |x| in whatever
    order the terms are added. No key within reach of a query is longer than |q| + worst. Where the vectors
    themselves were rounded to 16 bits, by ``inputs`` of each number, that adds (2 * inputs + inputs^2) |q| |x| and
    what is lost of numbers too small for it; sums of such products are cut, not rounded.
    """
    roundoff = torch.finfo(dtype).eps / 2
    plain = inputs is None and centered.device.type == "cuda"
    if plain and dtype == torch.float32 and _by_tensor_cores():
        roundoff = 2.0**-11
    asked = kernels.lengths(centered)
    if keys.metric == "l2":
        longest = (asked + worst).clamp(max=keys.longest)
        score, size = (asked.square() - worst.square()) / 2, asked * longest + longest.square() / 2
        own = asked.square() + worst.square()
    else:
        score, size = (1 - worst if keys.metric == "cosine" else -worst), asked * keys.longest
        own = score.abs()
    terms = centered.shape[1] + 32  # the sum itself, and the rounding of its inputs and of the floor
    lost = torch.finfo(dtype).tiny * (1 + asked + keys.longest)  # below the smallest normal number
    lost = lost + torch.finfo(centered.dtype).eps * own  # the floor is known no better than what it is made of
    floor: Tensor = score - terms * ((roundoff if inputs is None else 4 * roundoff) * size + lost)
    if inputs is not None:
        tiny = 2.0**-24 * keys.longest * centered.shape[1] ** 0.5
        floor = floor - asked * ((2 + inputs) * inputs * keys.longest + 2 * tiny)
    return floor


def _by_tensor_cores() -> bool:
    """Whether products of float32 may be rounded to 10 bits."""
    try:
        return bool(torch.backends.cuda.matmul.allow_tf32)
    except RuntimeError:  # it was set in the newer way
        return True


def _largest(scores: Tensor, m: int, maxima: Tensor) -> tuple[Tensor, Tensor]:
    """Values and columns of the m largest scores, which lie in the m groups with the largest maxima.

    ``maxima`` is (q, blocks, run); :func:`kernels.members` says which columns a group has.
    """
    run = maxima.shape[2]
    flat = maxima.flatten(1)
    if 4 * m > flat.shape[1]:
        return kernels.largest(scores, m)
    if flat.shape[1] % _GROUP:
        group = kernels.largest(flat, m)[1]
    else:
        coarse = kernels.empty(len(flat), 1, flat.shape[1] // _GROUP, device=flat.device)
        kernels.group_maxima(flat.view(len(flat), _GROUP, -1), out=coarse[:, 0])
        group = _largest(flat, m, coarse)[1]
    columns = kernels.members(group, run, _GROUP)
    top, at = kernels.largest(kernels.take(scores, columns), m)
    return top, kernels.take(columns, at)


def _second_look(queries: Tensor, keys: Keys, scores: Tensor, worst: Tensor, k: int, budget: int) -> TopK:
    """The k nearest among all keys that may lie no farther than ``worst``; at least k do."""
    centered = keys.centered(queries)
    many = kernels.most_above(scores, floor_of(centered, keys, worst, scores.dtype))
    if many > max(_RETRY, 4 * k) and kernels.wide_float(queries.device) != scores.dtype:
        scores = _wide_scores(queries, keys, scores)
        many = kernels.most_above(scores, floor_of(centered, keys, worst, scores.dtype))
    return _settled(queries, keys, *kernels.largest(scores, max(many, k)), k, budget)


def _wide_scores(queries: Tensor, keys: Keys, scores: Tensor) -> Tensor:
    """The scores in float64; what is hidden or left out stays so."""
    asked = keys.centered(queries)
    wide = torch.full(scores.shape, -torch.inf, dtype=asked.dtype, device=asked.device)
    for start in range(0, keys.rows, SLICE):
        block = keys.centered(keys.vectors[start : start + SLICE])
        offset = -block.square().sum(dim=1) / 2 if keys.metric == "l2" else 0.0
        wide[:, start : start + len(block)] = asked @ block.T + offset
    return wide.masked_fill_(scores == -torch.inf, -torch.inf)


def _settled(queries: Tensor, keys: Keys, scores: Tensor, columns: Tensor, k: int, budget: int) -> TopK:
    """The k nearest among candidate columns and their scores; those at minus infinity are none."""
    rows = kernels.where_hidden(scores, columns, NO_ROW)
    return nearest_of(queries, keys.vectors, rows, k, metric=keys.metric, budget=budget)


def nearest_of(
    queries: Tensor, vectors: Tensor, rows: Tensor, k: int, *, metric: Metric, budget: int = MEMORY_BUDGET
) -> TopK:
    """The k nearest among candidate rows (q, m), by distances computed anew; ``NO_ROW`` is no candidate."""
    rows = kernels.ascending(rows)  # a stable sort by distance then breaks ties by row
    gaps = _distances_at(queries, vectors, rows, metric, budget)
    return TopK(*kernels.nearest_first(rows, gaps, k))


def _distances_at(queries: Tensor, vectors: Tensor, rows: Tensor, metric: Metric, budget: int) -> Tensor:
    """(q, m) distances of each query to its rows, a bounded piece at a time."""
    queries = queries.to(kernels.wide_float(queries.device))
    piece = min(budget // 8, _CACHE) if queries.device.type == "cpu" else budget // 8
    several = max(1, piece // (8 * max(1, rows.shape[1]) * vectors.shape[1]))  # queries at a time
    some = max(1, piece // (8 * several * vectors.shape[1]))  # and candidates of each
    if several >= len(queries) and some >= rows.shape[1]:
        return kernels.gaps(queries, vectors, rows, metric)
    gaps = queries.new_empty(rows.shape)
    for at in range(0, len(queries), several):
        for first in range(0, rows.shape[1], some):
            where = slice(at, at + several), slice(first, first + some)
            kernels.put(gaps, where, kernels.gaps(queries[where[0]], vectors, rows[where], metric))
    return gaps


def _merged(first: TopK, second: TopK, k: int) -> TopK:
    """The k nearest of two answers, every row of ``first`` being lower than any of ``second``."""
    gaps, order = torch.cat([first.distances, second.distances], dim=1).sort(dim=1, stable=True)
    rows = torch.cat([first.rows, second.rows], dim=1).gather(1, order)
    return TopK(rows[:, :k].contiguous(), gaps[:, :k].contiguous())


def nothing(queries: Tensor, k: int) -> TopK:
    """Of no queries, or no keys."""
    empty = queries.new_zeros(len(queries), k, dtype=kernels.wide_float(queries.device))
    return TopK(empty.long(), empty)
