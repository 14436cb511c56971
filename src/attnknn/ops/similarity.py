"""How close two vectors are: Euclidean, cosine and inner product, as distances and as similarities."""

from __future__ import annotations

from typing import Final, Literal, get_args

import torch
from torch import Tensor

from attnknn.errors import InvalidInput

Metric = Literal["l2", "cosine", "ip"]
METRICS: Final[tuple[Metric, ...]] = get_args(Metric)
_USUAL: Final = 100  # of an exponent: such numbers float32 holds too
FLOATS: Final = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def checked_metric(metric: str) -> Metric:
    """``metric`` itself if it is one of ours.

    >>> checked_metric("l2")
    'l2'
    """
    if metric not in METRICS:
        raise InvalidInput(f"metric must be one of {', '.join(METRICS)}, got {metric!r}")
    return metric


def unit(vectors: Tensor) -> Tensor:
    """Vectors of length 1 along the last axis; a zero vector stays zero."""
    norms = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    return vectors / torch.where(norms > 0, norms, torch.ones_like(norms))


def of_usual_size(vectors: Tensor) -> Tensor:
    """Float64 vectors of another length, by powers of 2, so that squares of their squares are numbers too."""
    if vectors.dtype != torch.float64 or not vectors.shape[-1]:
        return vectors
    largest = vectors.abs().amax(dim=-1, keepdim=True)
    exponents = torch.frexp(largest).exponent.clamp(-1000, 1000)  # beyond that the power is none
    return vectors * torch.exp2(-exponents.where(exponents.abs() > _USUAL, 0).double())


def distances(queries: Tensor, keys: Tensor, metric: Metric = "l2") -> Tensor:
    """Distance of each query to each key beside it; the leading axes broadcast.

    Euclidean (by subtraction, never by expanding the square), 1 - cosine, or minus inner product.

    >>> distances(torch.tensor([[0.0, 0.0]]), torch.tensor([[3.0, 4.0]])).tolist()
    [5.0]
    """
    if metric == "cosine":
        queries, keys = of_usual_size(queries), of_usual_size(keys)
    return distances_as_given(queries, keys, metric)


def distances_as_given(queries: Tensor, keys: Tensor, metric: Metric) -> Tensor:
    """The same of vectors that :func:`of_usual_size` would not change, if they are to be compared by cosine."""
    if metric == "l2":
        gaps: Tensor = torch.linalg.vector_norm(queries - keys, dim=-1)
        return gaps
    if metric == "cosine":
        return 1 - _cosines(queries, keys)
    return -(queries * keys).sum(dim=-1)


def _cosines(queries: Tensor, keys: Tensor) -> Tensor:
    """Cosines of vectors that float32 can hold, in float64 by the squares of products and lengths.

    For whole numbers of a usual size those are exact, so that keys which are multiples of each other tie.
    """
    products = (queries * keys).sum(dim=-1)
    if products.dtype != torch.float64 or products.requires_grad:  # squares overflow, and have no slope at 0
        return (unit(queries) * unit(keys)).sum(dim=-1)
    squares = queries.square().sum(dim=-1) * keys.square().sum(dim=-1)
    return (products.square() / squares.where(squares > 0, 1.0)).sqrt().copysign(products)


def distance_matrix(queries: Tensor, keys: Tensor, metric: Metric = "l2") -> Tensor:
    """Distance of every query (q, d) to every key (n, d), as (q, n)."""
    if metric == "l2":
        return torch.cdist(queries, keys, compute_mode="donot_use_mm_for_euclid_dist")
    if metric == "cosine":
        return 1 - unit(queries) @ unit(keys).T
    return -(queries @ keys.T)


def similarity(gaps: Tensor, metric: Metric) -> Tensor:
    """Distances turned into similarities: the cosine itself for ``cosine``, minus the distance otherwise."""
    return 1 - gaps if metric == "cosine" else -gaps
