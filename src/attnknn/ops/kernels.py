"""The heavy steps of a search: by NumPy on the CPU, by torch elsewhere.

NumPy's BLAS is the faster one on many processors, and its threads and torch's get into each other's way when
calls alternate: mixed, a search took twice as long as either alone. So on the CPU all heavy steps are NumPy's.
None of them is differentiable.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnknn.ops.similarity import Metric, distances_as_given, unit


def wide_float(device: torch.device) -> torch.dtype:
    """The widest float of a device: float64, but float32 on MPS, which has no other."""
    return torch.float32 if device.type == "mps" else torch.float64


def empty(*shape: int, device: torch.device) -> Tensor:
    """Uninitialized float32; NumPy asks for huge pages, which spares thousands of page faults."""
    if device.type == "cpu":
        return torch.from_numpy(np.empty(shape, np.float32))
    return torch.empty(shape, dtype=torch.float32, device=device)


def centered(vectors: Tensor, center: Tensor, metric: Metric) -> Tensor:
    """Vectors as scores see them: of length 1 for cosine, else relative to a center; in the widest float."""
    if vectors.device.type != "cpu":
        vectors = vectors.to(wide_float(vectors.device))
        return unit(vectors) if metric == "cosine" else vectors - center
    wide = _known(vectors).numpy().astype(np.float64)
    return torch.from_numpy(_unit(wide) if metric == "cosine" else wide - center.numpy())


def lengths(vectors: Tensor) -> Tensor:
    """Euclidean lengths along the last axis."""
    if vectors.device.type == "cpu":
        array = vectors.numpy()
        return torch.from_numpy(np.sqrt(np.einsum("...d,...d->...", array, array)))
    result: Tensor = torch.linalg.vector_norm(vectors, dim=-1)
    return result


def with_ones(vectors: Tensor) -> Tensor:
    """(q, d + 1) float32: the vectors, and a 1 that takes up the offset of a key."""
    asked = empty(len(vectors), vectors.shape[1] + 1, device=vectors.device)
    if vectors.device.type == "cpu":
        asked.numpy()[:, :-1] = vectors.numpy()
        asked.numpy()[:, -1] = 1
    else:
        asked[:, :-1] = vectors
        asked[:, -1] = 1
    return asked


def hide(scores: Tensor) -> None:
    """Set scores to minus infinity."""
    if scores.device.type == "cpu":
        scores.numpy().fill(-np.inf)
    else:
        scores.fill_(-torch.inf)


def members(group: Tensor, run: int, size: int) -> Tensor:
    """(q, size * m) columns of m groups: group g of block b has (b * size + r) * run + g for r = 0 .. size - 1."""
    if group.device.type == "cpu":
        array = group.numpy()
        first = array + array // run * (run * (size - 1))
        columns = first[:, None] + (run * np.arange(size))[:, None]
        return torch.from_numpy(columns.reshape(len(array), -1))
    first = group + group // run * (run * (size - 1))
    return (first[:, None] + run * torch.arange(size, device=group.device)[:, None]).flatten(1)


def product(left: Tensor, right: Tensor, out: Tensor) -> None:
    """The matrix product, written to ``out``."""
    if out.device.type == "cpu":
        with np.errstate(invalid="ignore"):  # hidden keys have an offset of minus infinity
            np.matmul(left.numpy(), right.numpy(), out=out.numpy())
    else:
        torch.mm(left, right, out=out)


def group_maxima(values: Tensor, out: Tensor) -> None:
    """Maxima over the middle axis of (q, groups, run), written to ``out`` (q, run)."""
    if out.device.type == "cpu":
        values.numpy().max(axis=1, out=out.numpy())
    else:
        torch.amax(values, dim=1, out=out)


def largest(values: Tensor, m: int) -> tuple[Tensor, Tensor]:
    """The m largest of each row, the least of them last, and their columns."""
    if values.device.type != "cpu":
        top, columns = values.topk(m)
        return top, columns
    array = values.numpy()
    at = np.argpartition(array, -m, axis=1)[:, : -m - 1 : -1].copy()
    return torch.from_numpy(np.take_along_axis(array, at, axis=1)), torch.from_numpy(at)


def take(values: Tensor, columns: Tensor) -> Tensor:
    """The values of each row at its columns."""
    if values.device.type == "cpu":
        return torch.from_numpy(np.take_along_axis(values.numpy(), columns.numpy(), axis=1))
    return values.gather(1, columns)


def most_above(values: Tensor, floor: Tensor) -> int:
    """How many values reach the floor of their row, in the row that has most."""
    if values.device.type == "cpu":
        return int(np.count_nonzero(values.numpy() >= floor.numpy()[:, None], axis=1).max())
    return int((values >= floor[:, None]).sum(dim=1).max())


def where_hidden(scores: Tensor, columns: Tensor, none: int) -> Tensor:
    """The columns, but ``none`` where the score is minus infinity."""
    if scores.device.type == "cpu":
        return torch.from_numpy(np.where(scores.numpy() == -np.inf, none, columns.numpy()))
    return columns.masked_fill(scores == -torch.inf, none)


def ascending(rows: Tensor) -> Tensor:
    """Each row's values in ascending order."""
    if rows.device.type == "cpu":
        return torch.from_numpy(np.sort(rows.numpy(), axis=1))
    return rows.sort(dim=1).values


def nearest_first(rows: Tensor, gaps: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k rows of the smallest gaps, and the gaps; equal ones keep their order."""
    if gaps.device.type == "cpu":
        near, far = _ranked(rows.numpy(), gaps.numpy(), k + 1, None)
        # The fast way to sort keeps no order. Where it matters, sort again; what is infinitely far is no row.
        again = ((far[:, 1:] == far[:, :-1]) & (far[:, 1:] < np.inf)).any(axis=1) | np.isnan(far).any(axis=1)
        if again.any():
            near[again], far[again] = _ranked(rows.numpy()[again], gaps.numpy()[again], k + 1, "stable")
        return torch.from_numpy(near[:, :k].copy()), torch.from_numpy(far[:, :k].copy())
    ranked, at = gaps.sort(dim=1, stable=True)
    return rows.gather(1, at)[:, :k].contiguous(), ranked[:, :k].contiguous()


def _ranked(
    rows: NDArray[np.int64], gaps: NDArray[Any], k: int, kind: Literal["stable"] | None
) -> tuple[NDArray[np.int64], NDArray[Any]]:
    order = np.argsort(gaps, axis=1, kind=kind)[:, :k]
    return np.take_along_axis(rows, order, axis=1), np.take_along_axis(gaps, order, axis=1)


def put(target: Tensor, where: tuple[slice, slice], values: Tensor) -> None:
    """Write values to a part of a matrix."""
    if target.device.type == "cpu":
        target.numpy()[where] = values.numpy()
    else:
        target[where] = values


def gaps(queries: Tensor, vectors: Tensor, rows: Tensor, metric: Metric) -> Tensor:
    """(q, m) distances of queries (q, d) to rows (q, m) of ``vectors``, in the precision of the queries.

    Infinite where a row is beyond the last: there is none.
    """
    none = rows >= len(vectors)
    found = _gaps(queries, vectors, torch.where(none, 0, rows) if none.any() else rows, metric)
    return found.masked_fill_(none, torch.inf)


def _gaps(queries: Tensor, vectors: Tensor, rows: Tensor, metric: Metric) -> Tensor:
    if queries.device.type != "cpu":
        held = vectors.index_select(0, rows.flatten()).to(queries.dtype)
        return distances_as_given(queries[:, None], held.view(*rows.shape, -1), metric)
    asked = queries.numpy()[:, None]
    keys = _picked(vectors, rows).astype(np.float64)
    if metric == "l2":
        keys -= asked
        return torch.from_numpy(np.sqrt(np.einsum("qmd,qmd->qm", keys, keys)))
    products = np.einsum("qd,qmd->qm", asked[:, 0], keys)
    if metric == "ip":
        return torch.from_numpy(-products)
    squares = np.einsum("qmd,qmd->qm", asked, asked) * np.einsum("qmd,qmd->qm", keys, keys)
    cosines = np.sqrt(np.square(products) / np.where(squares > 0, squares, 1.0))  # as similarity.distances does
    return torch.from_numpy(1 - np.copysign(cosines, products))


def _picked(vectors: Tensor, rows: Tensor) -> NDArray[Any]:
    """The vectors of rows. NumPy is faster, but would first copy all that does not lie row by row."""
    if vectors.dtype == torch.bfloat16 or not vectors.is_contiguous():
        return np.asarray(_known(vectors[rows]).numpy())
    return vectors.numpy().take(rows.numpy(), axis=0)


def _known(vectors: Tensor) -> Tensor:
    """The same in a type that NumPy knows: bfloat16 it does not."""
    return vectors.float() if vectors.dtype == torch.bfloat16 else vectors


def _unit(vectors: NDArray[Any]) -> NDArray[Any]:
    norms = np.sqrt(np.einsum("...d,...d->...", vectors, vectors))[..., None]
    return np.asarray(vectors / np.where(norms > 0, norms, 1.0))
