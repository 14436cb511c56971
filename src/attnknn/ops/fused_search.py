"""Exact search by the kernels of :mod:`attnknn.ops.triton_search`: first candidates, then their distances."""

from __future__ import annotations

from typing import Final, NamedTuple

import torch
from torch import Tensor

from attnknn.ops.backends import HAS_TRITON, interpreted, launching_on, power

MOST_CANDIDATES: Final = 256
FEWEST: Final = 64  # queries; fewer are read once by a plain product, which is bound by memory anyway
ROUNDOFF: Final = 2.0**-11
"""Relative error of a number once it has 16 bits; below 2^-14 of the longest key it is 2^-25 of that."""

_WIDEST: Final = 256  # dimensions of a product that is not cut
_ROWS: Final = 128  # vectors are laid out in as many
_RANK: Final = 20  # of the keys in a sample: about 24 of them reach what it scores
_ROOM: Final = 64  # places of a list for those, times the step of the sample
_MANY: Final = 200_000  # keys, of which a smaller sample will do


class Candidates(NamedTuple):
    """Keys of the largest scores, best first; minus infinity and ``none`` where there are too few."""

    scores: Tensor  # (queries, m), float32
    rows: Tensor  # (queries, m), int64
    reach: Tensor  # (queries,), no key that is not among them scores higher


def unfit(rows: int, k: int, left_out: int) -> str | None:
    """Why the kernels cannot serve, in words; None where they can."""
    if not HAS_TRITON:
        return "Triton is not installed"
    if width(k, left_out) > MOST_CANDIDATES or rows <= width(k, left_out):
        return f"k={k} and {left_out} keys to leave out ask for too many candidates"
    return None


def slow(queries: Tensor) -> str | None:
    """Why a plain product is faster, in words; None where it is not."""
    return f"{len(queries)} queries are fewer than {FEWEST}" if len(queries) < FEWEST else None


def width(k: int, left_out: int) -> int:
    """Candidates for k neighbors: some to spare, so that rounding errors rarely ask for a second look."""
    return max(16, power(k + max(8, k // 8) + left_out))


def room_for(count: int, dim: int) -> tuple[int, int]:
    """Shape of so many vectors as the kernels read them: in whole tiles, with zeros behind what is there."""
    return -(-count // _ROWS) * _ROWS, max(16, power(dim)) if dim <= _WIDEST else -(-dim // 128) * 128


def candidates(
    queries: Tensor,
    keys: Tensor,
    factors: Tensor,
    offsets: Tensor,
    count: int,
    *,
    none: int,
    budget: int,
    even: bool = False,
) -> Candidates:
    """The keys of the largest ``factor * q.x + offset``.

    Args:
        queries: (q, d), float16, bfloat16 or float32.
        keys: Of the same type, in a table of the shape of :func:`room_for`.
        factors: (q,) float32, above 0.
        offsets: (n,) float32; minus infinity hides a key.
        count: How many; a power of 2.
        none: Stands where there is no row.
        budget: Bytes for the lists of keys, in which the candidates are.
        even: Whether all offsets are 0, which saves time.
    """
    step = 4 if count <= 32 and len(offsets) < _MANY else 16
    several = max(_ROWS, budget // (8 * _ROOM * step))
    parts = []
    for at in range(0, len(queries), several):
        some = queries[at : at + several]
        asked = some.new_zeros(room_for(*some.shape))
        asked[: len(some), : some.shape[1]] = some
        parts.append(best_keys(asked, keys, factors[at : at + several], offsets, count, step, none, even))
    return Candidates(*(parts[0] if len(parts) == 1 else map(torch.cat, zip(*parts, strict=True))))


@torch.library.custom_op("attnknn::best_keys", mutates_args=())
def best_keys(
    queries: Tensor, keys: Tensor, factors: Tensor, offsets: Tensor, count: int, step: int, none: int, even: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Scores and rows (q, count) of the best keys, and the score (q,) that no other exceeds; see Candidates.

    A sample of every ``step``-th tile of keys says what to look for: about 24 * ``step`` keys reach that.
    """
    from attnknn.ops import triton_search

    asking, there, width = len(factors), len(offsets), queries.shape[1]
    scores, found, reach = _best_keys_fake(queries, keys, factors, offsets, count, step, none, even)
    tile, sample = _tile(), _sample_tile()
    blocks = -(-asking // tile["ROWS"])
    parts = _parts(blocks, -(-there // tile["COLUMNS"]), queries.device)
    places = max(2 * count, power(_ROOM * step))
    room = places // parts
    floor = torch.full_like(factors, torch.finfo(torch.float32).min)
    lists = torch.empty(asking, parts, room, dtype=torch.int64, device=queries.device)
    given, sizes = (queries, keys, factors, offsets, floor), (asking, there, width)
    fixed = {
        "DIM": width if width <= _WIDEST else 128,
        "CHUNKED": width > _WIDEST,
        "OFFSETS": not even,
        "PRECISION": "ieee",
        "INTERPRETED": interpreted(),
    }
    at_once = max(1, 1024 // places)
    with launching_on(queries.device):
        if there >= room:
            triton_search.floors[(-(-asking // sample["ROWS"]),)](
                *given, *sizes, step, RANK=_RANK, **fixed, **sample
            )
        triton_search.above[(blocks, parts)](*given, lists, *sizes, ROOM=room, **fixed, **tile)
        triton_search.in_order[(-(-asking // at_once),)](
            *(lists, factors, floor, scores, found, reach, asking, none),
            ROOM=room,
            PARTS=parts,
            PLACES=places,
            KEPT=count,
            ROWS=at_once,
            OFFSETS=not even,
            num_warps=4,
        )
    return scores, found, reach


@best_keys.register_fake
def _best_keys_fake(
    queries: Tensor, keys: Tensor, factors: Tensor, offsets: Tensor, count: int, step: int, none: int, even: bool
) -> tuple[Tensor, Tensor, Tensor]:
    scores = torch.empty(len(factors), count, dtype=torch.float32, device=queries.device)
    return scores, torch.empty_like(scores, dtype=torch.int64), torch.empty_like(factors)


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
    with launching_on(queries.device):
        triton_search.settle[(len(queries),)](
            *(queries, vectors, rows, found, distances),
            *(queries.stride(0), vectors.stride(0), queries.shape[1], k, none),
            CANDIDATES=rows.shape[1],
            DIM=max(16, min(64, power(queries.shape[1]))),
            METRIC=metric,
            num_warps=4,
            enable_fp_fusion=False,  # threads that add each other's squares must come to the same sum
        )
    return found, distances


@settle.register_fake
def _settle_fake(
    queries: Tensor, vectors: Tensor, rows: Tensor, k: int, metric: str, none: int
) -> tuple[Tensor, Tensor]:
    found = torch.empty(len(queries), k, dtype=torch.int64, device=queries.device)
    return found, torch.empty_like(found, dtype=torch.float64)


def _tile() -> dict[str, int]:
    """How many queries and keys at a time, by how many warps, with how many tiles of keys under way."""
    return {"ROWS": 128, "COLUMNS": 64, "num_warps": 8, "num_stages": 3}


def _sample_tile() -> dict[str, int]:
    """The same for the sample."""
    return {"ROWS": 128, "COLUMNS": 64, "num_warps": 8, "num_stages": 3}


def _parts(blocks: int, tiles: int, device: torch.device) -> int:
    """Parts that the keys are cut into, so that all of the GPU has work, to the end."""
    if device.type != "cuda":
        return 1
    at_once: int = torch.cuda.get_device_properties(device).multi_processor_count

    def busy(parts: int) -> float:
        return blocks * parts / at_once / -(-blocks * parts // at_once)

    return max(range(1, 1 + max(1, min(10, tiles // 128))), key=lambda parts: (round(busy(parts), 1), -parts))
