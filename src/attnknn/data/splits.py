"""Train and test rows: stratified, seeded, and with duplicate rows on one side."""

from __future__ import annotations

import math
import numbers
from collections.abc import Hashable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnknn.data.table import Table, as_table, is_frame
from attnknn.errors import InvalidInput

Rows = NDArray[np.int64]

_TRAIN_ONLY = -1  # the fold of a group that no test side may have


def duplicate_groups(X: Any) -> Rows:
    """Number the rows so that rows with the same content share a number.

    Numbers go by first appearance. 0.0 equals -0.0, and a missing value equals another.

    Args:
        X: An array of numbers or text with rows along the first axis, a ``Table`` or a frame.

    >>> duplicate_groups(np.array([[1.0, 0.0], [2.0, 2.0], [1.0, -0.0]])).tolist()
    [0, 1, 0]
    """
    cells = _cells(as_table(X) if is_frame(X) else X)
    seen: dict[bytes, int] = {}
    found = (seen.setdefault(row.tobytes(), len(seen)) for row in cells)
    return np.fromiter(found, np.int64, len(cells))


def split(
    labels: ArrayLike, *, test: float = 0.3, seed: int = 0, groups: ArrayLike | None = None
) -> tuple[Rows, Rows]:
    """Split rows into train and test, each in ascending order.

    Every class keeps its share within a row where rows stand alone, and at least one row in train;
    the test side is therefore empty when no class can spare a row.

    Args:
        labels: The class of each row.
        test: Share of the rows for the test side, between 0 and 1.
        seed: The same seed gives the same rows.
        groups: Rows of one group stay on one side; see ``duplicate_groups``.

    >>> train, held = split(["a"] * 7 + ["b"] * 3, test=0.3)
    >>> len(train), len(held)
    (7, 3)
    """
    share = _checked_share(test)
    codes, blocks = _checked(labels, groups)
    draw, sizes, fold_of, carry = _generator(seed), np.bincount(blocks), _nowhere(blocks), 0.0
    for members in _strata(codes, blocks):
        order = draw.permutation(members)
        want = share * int(sizes[order].sum()) + carry
        chosen = _fill(order, sizes, math.floor(want + 0.5))
        fold_of[chosen] = 0
        # What rounding left over passes on to the next class, so that the whole share holds too.
        carry = min(0.5, max(-0.5, want - int(sizes[chosen].sum())))
    _keep_every_class_in_train(fold_of, codes, blocks)
    return _sides(fold_of[blocks], 0)


def folds(labels: ArrayLike, n: int, *, seed: int = 0, groups: ArrayLike | None = None) -> list[tuple[Rows, Rows]]:
    """Cut rows into ``n`` folds and return (train, test) for each.

    Test sides never overlap. A row whose class would vanish from a train side is never tested.

    Args:
        labels: The class of each row.
        n: How many folds, at least 2.
        seed: The same seed gives the same rows.
        groups: Rows of one group stay on one side.
    """
    if isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 2:
        raise InvalidInput(f"n must be a whole number of at least 2, got {n=}")
    codes, blocks = _checked(labels, groups)
    draw, sizes, fold_of = _generator(seed), np.bincount(blocks), _nowhere(blocks)
    totals = [0] * int(n)
    for members in _strata(codes, blocks):
        order = draw.permutation(members)
        _deal(order[np.argsort(-sizes[order], kind="stable")], sizes, fold_of, totals)
    _keep_every_class_in_train(fold_of, codes, blocks)
    tested = len(set(fold_of.tolist()) - {_TRAIN_ONLY})
    if tested < n:
        raise InvalidInput(f"{n} folds need {n} groups of rows that can be tested, got {tested}")
    return [_sides(fold_of[blocks], fold) for fold in range(int(n))]


def _cells(X: Any) -> NDArray[Any]:
    """The content as one two-dimensional array in which equal rows have equal bytes."""
    if isinstance(X, Table):
        X = np.column_stack([_codes(c.values) if c.kind == "categorical" else c.values for c in X.columns])
    X = np.asarray(X)
    if X.ndim == 0 or X.dtype.kind not in "biufSU":
        raise InvalidInput(f"expected rows of numbers or text, got shape {X.shape} and dtype {X.dtype}")
    X = X.reshape(len(X), math.prod(X.shape[1:]))
    if X.dtype.kind == "f":
        X = X + X.dtype.type(0)  # turns -0.0 into 0.0, and copies
        X[np.isnan(X)] = np.nan  # NaN has many bit patterns
    return np.ascontiguousarray(X)


def _codes(values: NDArray[Any]) -> NDArray[np.float64]:
    seen: dict[Hashable, int] = {}
    return np.fromiter((seen.setdefault(v, len(seen)) for v in values), np.float64, len(values))


def _checked_share(test: Any) -> float:
    if isinstance(test, bool) or not isinstance(test, numbers.Real) or not 0 < float(test) < 1:
        raise InvalidInput(f"test must lie between 0 and 1, got {test=}")
    return float(test)


def _checked(labels: ArrayLike, groups: ArrayLike | None) -> tuple[Rows, Rows]:
    codes = _numbered(labels, "labels")
    if not len(codes):
        raise InvalidInput("labels are empty: there is nothing to split")
    blocks = np.arange(len(codes)) if groups is None else _numbered(groups, "groups")
    if len(blocks) != len(codes):
        raise InvalidInput(f"groups must match labels, got {len(blocks)} groups for {len(codes)} labels")
    return codes, blocks


def _numbered(values: ArrayLike, what: str) -> Rows:
    array = np.asarray(values)
    if array.ndim != 1:
        raise InvalidInput(f"{what} must be one-dimensional, got shape {array.shape}")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise InvalidInput(f"{what} hold NaN or infinity")
    try:
        return np.unique(array, return_inverse=True)[1].astype(np.int64)
    except TypeError:
        raise InvalidInput(f"{what} must be all numbers or all text, got a mixture") from None


def _generator(seed: int) -> np.random.Generator:
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise InvalidInput(f"seed must be a whole number of at least 0, got {seed=}")
    return np.random.default_rng(int(seed))


def _nowhere(blocks: Rows) -> Rows:
    return np.full(int(blocks.max()) + 1, _TRAIN_ONLY, dtype=np.int64)


def _strata(codes: Rows, blocks: Rows) -> list[Rows]:
    """Groups by class; a group of several classes counts for its most frequent one."""
    pairs, counts = np.unique(np.column_stack([blocks, codes]), axis=0, return_counts=True)
    order = np.lexsort((pairs[:, 1], -counts, pairs[:, 0]))
    group, first = np.unique(pairs[order, 0], return_index=True)
    major = pairs[order[first], 1]
    by_class = np.argsort(major, kind="stable")
    ends = np.flatnonzero(np.diff(major[by_class])) + 1
    return np.split(group[by_class], ends)


def _fill(order: Rows, sizes: Rows, need: int) -> Rows:
    """Groups from the front of ``order`` that come closest to ``need`` rows, never all of them."""
    chosen: list[int] = []
    for group in order.tolist():
        if need < 1 or len(chosen) == len(order) - 1:
            break
        if sizes[group] < 2 * need:  # taking it overshoots by less than leaving it falls short
            chosen.append(group)
            need -= int(sizes[group])
    return np.array(chosen, dtype=np.int64)


def _deal(order: Rows, sizes: Rows, fold_of: Rows, totals: list[int]) -> None:
    """Give each group to the fold that has the fewest rows of this class, then the fewest at all."""
    here = [0] * len(totals)
    for group in order.tolist():
        fold = min(range(len(totals)), key=lambda at: (here[at], totals[at]))
        fold_of[group] = fold
        here[fold] += int(sizes[group])
        totals[fold] += int(sizes[group])


def _keep_every_class_in_train(fold_of: Rows, codes: Rows, blocks: Rows) -> None:
    sizes = np.bincount(blocks)
    rows = np.argsort(codes, kind="stable")
    for members in np.split(rows, np.flatnonzero(np.diff(codes[rows])) + 1):
        holders = np.unique(blocks[members])
        at = fold_of[holders]
        if at[0] != _TRAIN_ONLY and (at == at[0]).all():
            fold_of[holders[sizes[holders].argmin()]] = _TRAIN_ONLY


def _sides(fold_of_row: Rows, fold: int) -> tuple[Rows, Rows]:
    held = fold_of_row == fold
    return np.flatnonzero(~held).astype(np.int64), np.flatnonzero(held).astype(np.int64)
