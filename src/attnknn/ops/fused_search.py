"""Exact search by the kernels of :mod:`attnknn.ops.triton_search`: first candidates, then their distances."""

from __future__ import annotations

from typing import Final, NamedTuple

import torch
from torch import Tensor

from attnknn.ops.fused_tokens import HAS_TRITON, power

MOST_CANDIDATES: Final = 256
FEWEST: Final = 64  # queries; fewer are read once by a plain product, which is bound by memory anyway
ROUNDOFF: Final = 2.0**-11
"""Relative error of a number once it has 16 bits; below 2^-14 of the longest key it is 2^-25 of that."""

_WIDEST: Final = 256  # dimensions of a product that is not cut
_BUSY: Final = 528  # programs that keep a large GPU busy
_DEAD: Final = -(2**63)


class Candidates(NamedTuple):
    """Keys of the largest scores, best first; minus infinity and row 0 where there are too few."""

    scores: Tensor  # (queries, m), float32
    rows: Tensor  # (queries, m), int64


def unfit(queries: Tensor, rows: int, k: int, left_out: int) -> str | None:
    """Why the kernels cannot serve, in words; None where they can."""
    if not HAS_TRITON:
        return "Triton is not installed"
    if len(queries) < FEWEST:
        return f"{len(queries)} queries are fewer than {FEWEST}"
    if width(k, left_out) > MOST_CANDIDATES or rows <= width(k, left_out):
        return f"k={k} and {left_out} keys to leave out ask for too many candidates"
    return None


def width(k: int, left_out: int) -> int:
    """Candidates for k neighbors: some to spare, so that rounding errors rarely ask for a second look."""
    return max(16, power(k + max(8, k // 8) + left_out))


def candidates(queries: Tensor, keys: Tensor, factors: Tensor, offsets: Tensor, count: int) -> Candidates:
    """The keys of the largest ``factor * q.x + offset``.

    Args:
        queries: (q, d), float16, bfloat16 or float32.
        keys: (n, d), of the same type.
        factors: (q,) float32.
        offsets: (n,) float32; minus infinity hides a key.
        count: How many; a power of 2.
    """
    packed = best_keys(queries, keys, factors, offsets, count)
    parts = packed.shape[1] // count
    if parts > 1:
        packed = packed.topk(count).values
    high = (packed >> 32).to(torch.int32)
    scores = (high ^ ((high >> 31) & 0x7FFFFFFF)).view(torch.float32)
    void = packed == _DEAD
    rows = (2**31 - 1) - (packed & 0x7FFFFFFF)
    return Candidates(scores.masked_fill(void, -torch.inf), rows.masked_fill(void, 0))


@torch.library.custom_op("attnknn::best_keys", mutates_args=())
def best_keys(queries: Tensor, keys: Tensor, factors: Tensor, offsets: Tensor, count: int) -> Tensor:
    """(q, parts * count) scores and rows of the best keys in each part of them, packed into integers."""
    from attnknn.ops import triton_search

    queries, keys = queries.contiguous(), keys.contiguous()
    asking, dim = queries.shape
    rows, columns, warps = _tile(count)
    blocks, parts = -(-asking // rows), _parts(asking, len(keys), rows)
    part = -(-len(keys) // (parts * columns)) * columns
    chunk = min(_WIDEST, max(16, power(dim))) if dim <= _WIDEST else 128
    found = torch.empty(parts, asking, count, dtype=torch.int64, device=queries.device)
    triton_search.best_keys[(blocks, parts)](
        *(queries, keys, factors, offsets, found),
        *(queries.stride(0), keys.stride(0), asking, len(keys), dim, part),
        RANKS=count,
        DIM=chunk,
        ROWS=rows,
        COLUMNS=columns,
        CHUNKED=dim > chunk,
        PRECISION="ieee",
        num_warps=warps,
    )
    return found.transpose(0, 1).reshape(asking, parts * count)


@best_keys.register_fake
def _best_keys_fake(queries: Tensor, keys: Tensor, factors: Tensor, offsets: Tensor, count: int) -> Tensor:
    parts = _parts(len(queries), len(keys), _tile(count)[0])
    return torch.empty(len(queries), parts * count, dtype=torch.int64, device=queries.device)


@torch.library.custom_op("attnknn::settle", mutates_args=())
def settle(
    queries: Tensor, vectors: Tensor, rows: Tensor, k: int, metric: str, none: int
) -> tuple[Tensor, Tensor]:
    """The k nearest among candidate rows (q, m), by float64 distances: rows and distances, ties by the lower row.

    ``none`` is no candidate; it stands where there are too few, at infinity.
    """
    from attnknn.ops import triton_search

    queries, vectors, rows = (each.contiguous() for each in (queries, vectors, rows))
    found, distances = _settle_fake(queries, vectors, rows, k, metric, none)
    triton_search.settle[(len(queries),)](
        *(queries, vectors, rows, found, distances),
        *(queries.stride(0), vectors.stride(0), queries.shape[1], k, none),
        CANDIDATES=rows.shape[1],
        DIM=max(16, min(64, power(queries.shape[1]))),
        METRIC=metric,
        num_warps=4,
    )
    return found, distances


@settle.register_fake
def _settle_fake(
    queries: Tensor, vectors: Tensor, rows: Tensor, k: int, metric: str, none: int
) -> tuple[Tensor, Tensor]:
    found = torch.empty(len(queries), k, dtype=torch.int64, device=queries.device)
    return found, torch.empty_like(found, dtype=torch.float64)


def _tile(count: int) -> tuple[int, int, int]:
    """Queries and keys at a time, and warps."""
    return (128, 64, 8) if count <= 32 else (32, 64, 2) if count <= 64 else (16, 64, 2)


def _parts(asking: int, keys: int, rows: int) -> int:
    """Parts that the keys are cut into, so that there is work for the whole GPU; but none of fewer than 16,384."""
    return max(1, min(_BUSY // max(1, -(-asking // rows)), keys // 16384))
