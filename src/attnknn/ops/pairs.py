"""What must not be found: pairs of a query and a row that is left out for it."""

from __future__ import annotations

import torch
from torch import Tensor


def same_group(query_groups: Tensor, key_groups: Tensor) -> Tensor:
    """(pairs, 2) of every (query, row) whose groups are equal; a negative group is no group.

    Leave-out by id is the same thing with ids for groups.

    >>> same_group(torch.tensor([7, -1]), torch.tensor([7, 8, 7, -1])).tolist()
    [[0, 0], [0, 2]]
    """
    ranked, order = key_groups.sort(stable=True)
    first = torch.searchsorted(ranked, query_groups.contiguous())
    last = torch.searchsorted(ranked, query_groups.contiguous(), right=True)
    counts = torch.where(query_groups >= 0, last - first, 0)
    query = torch.repeat_interleave(torch.arange(len(counts), device=counts.device), counts)
    within = torch.arange(len(query), device=counts.device) - (counts.cumsum(0) - counts)[query]
    return torch.stack([query, order[first[query] + within]], dim=1)


def between(pairs: Tensor | None, axis: int, start: int, stop: int) -> Tensor | None:
    """The pairs whose query (axis 0) or row (axis 1) lies in a range, counted from its start."""
    if pairs is None:
        return None
    pairs = pairs.long()  # numbers of any kind
    inside = pairs[(pairs[:, axis] >= start) & (pairs[:, axis] < stop)]
    inside[:, axis] -= start
    return inside


def of_queries(pairs: Tensor | None, some: Tensor, queries: int) -> Tensor | None:
    """The pairs of some queries, counted anew."""
    if pairs is None:
        return None
    place = pairs.new_full((queries,), -1)
    place[some] = torch.arange(len(some), device=pairs.device)
    at = place[pairs[:, 0]]
    return torch.stack([at, pairs[:, 1]], dim=1)[at >= 0]


def among(rows: Tensor, pairs: Tensor) -> Tensor:
    """Where rows (q, m) of queries are those that the pairs name."""
    same = rows[pairs[:, 0]] == pairs[:, 1:]
    return torch.zeros_like(rows, dtype=torch.int32).index_add_(0, pairs[:, 0], same.int()) > 0


def most(pairs: Tensor | None) -> int:
    """How many pairs the query has that has most."""
    return 0 if pairs is None or not len(pairs) else int(pairs[:, 0].bincount().max())
