"""Select: the exact k nearest keys of each query, by torch or by kernels, fast and within a memory budget."""

from __future__ import annotations

import logging
from dataclasses import replace
from numbers import Integral
from typing import Any, Final

import torch
from torch import Tensor

from attnknn.errors import InvalidInput
from attnknn.ops import fused_search, kernels, pairs
from attnknn.ops.backends import Backend, checked_backend, served
from attnknn.ops.keys import MAX_NORM, NO_ROW, Keys, TopK, prepare
from attnknn.ops.plain_search import MEMORY_BUDGET, by_torch, floor_of, nothing
from attnknn.ops.similarity import FLOATS, Metric, checked_metric, of_usual_size

_LOG: Final = logging.getLogger(__name__)


@torch.no_grad()
def exact_topk(
    queries: Tensor,
    keys: Keys | Tensor,
    k: int,
    *,
    metric: Metric = "l2",
    leave_out: Tensor | None = None,
    budget: int = MEMORY_BUDGET,
    backend: Backend = "auto",
) -> TopK:
    """The ``k`` nearest keys of each query by exhaustive search, ties broken by the lower row.

    Args:
        queries: (q, d).
        keys: (n, d), or what :func:`prepare` made of them (``metric`` is then the one they were made for).
        k: Neighbors per query; clamped to the number of keys.
        metric: ``l2``, ``cosine`` or ``ip``.
        leave_out: (pairs, 2) of (query, row) that must not be found; :func:`same_group` makes them.
        budget: Bytes that may be held beside keys and answer; a fused kernel also holds a 16-bit copy of the keys.
        backend: ``torch``, ``triton`` (fused kernels, on a GPU), or ``auto``: the kernels where they serve. The
            answer is the same.

    >>> exact_topk(torch.tensor([[0.0]]), torch.tensor([[2.0], [1.0], [1.0]]), 2).rows.tolist()
    [[1, 2]]
    """
    _check(queries, keys, k, leave_out)
    checked_metric(metric)
    checked_backend(backend)
    rows = keys.shape[0] if isinstance(keys, Tensor) else keys.rows
    if queries.shape[0] == 0 or rows == 0:
        return nothing(queries, min(k, rows))
    if torch.compiler.is_compiling() or queries.is_meta:  # a compiler would stop at the first number it is to see
        return TopK(*_named(queries, *_laid(keys, metric, k), leave_out, budget, backend))
    if not float(queries.abs().amax()) <= MAX_NORM:  # what is no number is not
        raise InvalidInput(f"queries must be finite and no longer than {MAX_NORM:g}")
    keys = prepare(keys, metric) if isinstance(keys, Tensor) else keys
    queries = of_usual_size(queries) if keys.metric == "cosine" else queries
    k, leave_out = min(int(k), rows), pairs.between(leave_out, 0, 0, len(queries))
    fused = backend == "triton" or (backend == "auto" and queries.device.type == "cuda")
    left_out = pairs.most(leave_out) if fused else 0
    reason, slow = fused_search.unfit(keys.rows, k, left_out), fused_search.slow(queries)
    if served(backend, queries.device, reason, "search", slow):
        return _by_kernels(queries, keys, k, leave_out, left_out, budget)
    return by_torch(queries, keys, k, leave_out, budget)


def _laid(keys: Keys | Tensor, metric: str, k: int) -> tuple[Tensor, Tensor | None, Tensor | None, str, int]:
    """Keys as the operation takes them, and how many it can find; their longest, a number, would be fixed."""
    if isinstance(keys, Tensor):
        return keys, None, None, metric, min(k, keys.shape[0])
    return keys.vectors, keys.table, keys.center, keys.metric, min(k, keys.rows)


@torch.library.custom_op("attnknn::exact_topk", mutates_args=())
def _named(
    queries: Tensor,
    vectors: Tensor,
    table: Tensor | None,
    center: Tensor | None,
    metric: str,
    k: int,
    leave_out: Tensor | None,
    budget: int,
    backend: str,
) -> tuple[Tensor, Tensor]:
    """:func:`exact_topk` by a name, as a compiler sees it: with keys as they are, or laid out in a table."""
    given: Any = metric, backend  # one of ours, or refused
    laid: Keys | Tensor = vectors
    if table is not None and center is not None:
        laid = Keys(vectors, table, center, 0.0, given[0])
        laid = replace(laid, longest=laid.longest_shown())
    return exact_topk(queries, laid, k, metric=given[0], leave_out=leave_out, budget=budget, backend=given[1])


@_named.register_fake
def _named_fake(queries: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    shape = queries.shape[0], rest[4]  # len would fix the number
    rows = queries.new_empty(shape, dtype=torch.int64)
    return rows, torch.empty_like(rows, dtype=kernels.wide_float(queries.device))


def _check(queries: Tensor, keys: Keys | Tensor, k: int, leave_out: Tensor | None) -> None:
    for name, each in (("queries", queries), ("keys", keys), ("leave_out", leave_out)):
        if each is not None and not isinstance(each, (Tensor, Keys) if name == "keys" else Tensor):
            raise InvalidInput(f"{name} must be a tensor, got {type(each).__name__}")
    given: Any = k  # whatever it was called with
    if isinstance(given, bool) or not isinstance(given, Integral | torch.SymInt) or given < 1:
        raise InvalidInput(f"k must be at least 1 and whole, got {k!r}")
    table, dim = (keys, 1) if isinstance(keys, Tensor) else (keys.table, 0)
    if table.ndim != 2:
        raise InvalidInput(f"keys must have shape (n, d), got {tuple(table.shape)}")
    width = table.shape[dim] - (1 - dim)  # a table has a row of offsets, too
    if queries.ndim != 2 or queries.shape[1] != width:
        raise InvalidInput(f"queries must have shape (n, {width}), got {tuple(queries.shape)}")
    if width == 0:
        raise InvalidInput("vectors must have at least one number")
    for name, given in (("queries", queries), ("keys", table)):
        if given.dtype not in FLOATS:
            raise InvalidInput(f"{name} must be real floating-point numbers of 16 to 64 bits, got {given.dtype}")
    if leave_out is not None:
        _check_pairs(leave_out)
    for name, one in (("keys", table), ("leave_out", leave_out)):
        if one is not None and one.device != queries.device:
            raise InvalidInput(f"queries are on {queries.device}, {name} on {one.device}")


def _check_pairs(leave_out: Tensor) -> None:
    if leave_out.ndim != 2 or leave_out.shape[1] != 2:
        raise InvalidInput(f"leave_out must have shape (pairs, 2), got {tuple(leave_out.shape)}")
    if leave_out.is_floating_point() or leave_out.is_complex() or leave_out.dtype == torch.bool:
        raise InvalidInput(f"leave_out must be whole numbers, got {leave_out.dtype}")


def _by_kernels(
    queries: Tensor,
    keys: Keys,
    k: int,
    leave_out: Tensor | None,
    left_out: int,
    budget: int,
    count: int | None = None,
) -> TopK:
    """Candidates by products of 16-bit numbers, then their distances; where too few were, more, or torch looks."""
    centered = keys.centered(queries)
    lengths = kernels.lengths(centered)
    # Lengths of at most 1 keep 16-bit numbers in range; the factor brings scores back to size.
    asked = (centered / lengths.clamp(min=torch.finfo(torch.float32).tiny)[:, None]).half()
    factors = (lengths * keys.scale).float()
    count = fused_search.width(k, left_out) if count is None else count
    table, even = keys.narrow()
    found = fused_search.candidates(
        asked, table, factors, keys.table[-1], count, none=NO_ROW, budget=budget // 2, even=even
    )
    rows = found.rows
    if leave_out is not None and left_out:
        rows = rows.masked_fill(pairs.among(rows, leave_out), NO_ROW)
    best = TopK(*fused_search.settle(queries, keys.vectors, rows, k, keys.metric, NO_ROW))
    floor = floor_of(centered, keys, best.distances[:, -1], torch.float32, inputs=fused_search.ROUNDOFF)
    lowest = torch.finfo(torch.float32).min  # nothing else was found, or is
    unsure = (~(found.reach < floor) & (found.reach > lowest)).nonzero().flatten()
    if len(unsure):
        _LOG.debug("%s of %s queries are looked at again", len(unsure), len(queries))
        left = pairs.of_queries(leave_out, unsure, len(queries))
        if len(unsure) >= fused_search.FEWEST and count < fused_search.MOST_CANDIDATES < keys.rows:
            again = _by_kernels(queries[unsure], keys, k, left, left_out, budget, fused_search.MOST_CANDIDATES)
        else:
            again = by_torch(queries[unsure], keys, k, left, budget)
        best.rows[unsure], best.distances[unsure] = again
    return best
