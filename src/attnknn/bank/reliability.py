"""How far a stored label can be trusted: the share of a row's own neighbors that carry it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final, Self

import numpy as np
import torch
from numpy.typing import NDArray

from attnknn.ops.similarity import Metric, distance_matrix

NEIGHBORS: Final = 10
"""How many of its own nearest rows judge a row."""

_MANY = 1024  # new rows after which everybody is looked up again

Search = Callable[[NDArray[np.int64]], tuple[NDArray[np.int64], NDArray[np.float64]]]


class Reliability:
    """The nearest rows of each row, kept up to date: after an edit only the rows concerned are looked up again.

    Only who the neighbors are is stored. Labels are read when asked, so a relabeling needs no new search. Banks
    with the same rows share what one of them looks up, until one changes.
    """

    def __init__(self) -> None:
        self._near = np.empty((0, NEIGHBORS), np.int64)  # -1 where there are fewer
        self._radius = np.empty(0)
        self._fresh = np.empty(0, np.bool_)
        self._shared = False
        self._lock = threading.Lock()  # of those that share it

    def shared(self) -> Self:
        """The same, for a bank that has the same rows."""
        self._shared = True
        return self

    def apart(self) -> Reliability:
        """For a bank that is about to change: itself, or where others have it too, one of its own."""
        if not self._shared:
            return self
        other = Reliability()
        with self._lock:
            other._near, other._radius = self._near.copy(), self._radius.copy()
            other._fresh = self._fresh.copy()
        return other

    def appeared(self, rows: NDArray[np.int64], vectors: NDArray[Any], metric: Metric) -> None:
        """These rows are new or have moved: whoever is nearer to them than to its last neighbor is stale."""
        known = len(self._fresh)
        if not self._fresh.any():
            return
        self._fresh[rows[rows < known]] = False
        if len(rows) > _MANY:
            self._fresh[:] = False
            return
        kept = np.flatnonzero(self._fresh)
        for start in range(0, len(kept), 4096):
            part = kept[start : start + 4096]
            held = torch.from_numpy(vectors[part].astype(np.float64))
            gaps = distance_matrix(held, torch.from_numpy(vectors[rows].astype(np.float64)), metric)
            radius = self._radius[part]
            # A tie at the radius may differ by rounding from what the search found; to look again costs little.
            self._fresh[part[gaps.amin(dim=1).numpy() <= radius + 1e-9 * (1 + np.abs(radius))]] = False

    def vanished(self, rows: NDArray[np.int64]) -> None:
        """These rows are gone, or no longer where they were."""
        if self._fresh.any():
            self._fresh[np.isin(self._near, rows).any(axis=1)] = False

    def near(self, rows: NDArray[np.int64], capacity: int, search: Search) -> NDArray[np.int64]:
        """(rows, NEIGHBORS) of each row's nearest, -1 where there are fewer; searches only what is stale."""
        with self._lock:
            self._grow(capacity)
            stale = np.unique(rows[~self._fresh[rows]])
            if len(stale):
                self._look_up(stale, search)
            return self._near[rows]

    def _look_up(self, stale: NDArray[np.int64], search: Search) -> None:
        found, gaps = search(stale)
        width = found.shape[1]
        self._near[stale] = -1
        self._near[stale, :width] = found
        full = width == NEIGHBORS
        self._radius[stale] = np.where(found[:, -1] >= 0, gaps[:, -1], np.inf) if full else np.inf
        self._fresh[stale] = True

    def _grow(self, capacity: int) -> None:
        more = capacity - len(self._fresh)
        if more > 0:
            self._near = np.concatenate([self._near, np.full((more, NEIGHBORS), -1)])
            self._radius = np.concatenate([self._radius, np.full(more, np.inf)])
            self._fresh = np.concatenate([self._fresh, np.zeros(more, np.bool_)])


def judged(
    at: NDArray[np.int64],
    near: NDArray[np.int64],
    labels: NDArray[np.int64],
    groups: NDArray[np.int64],
    out: NDArray[np.int64] | None = None,
) -> NDArray[np.float64]:
    """(agreements + 1) / (judges + 2) of each row by those ``near`` it: never 0, so its logarithm is finite.

    ``out`` (..., 1) are rows whose votes, and those of their groups, do not count.
    """
    judges, agree = near >= 0, labels[near] == labels[at][..., None]
    if out is not None:
        judges &= (near != out) & ~((groups[near] == groups[out]) & (groups[out] >= 0))
    result: NDArray[np.float64] = ((agree & judges).sum(axis=-1) + 1.0) / (judges.sum(axis=-1) + 2.0)
    return result
