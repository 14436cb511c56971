"""Select among tokens: which keys each query keeps, best first, without holding all scores of a long sequence.

Scores are formed a bounded piece at a time and dropped once the best are known. A score and the index of its key
are packed into one integer, so that ties go to the lower index on every device, and no two keys compare as equal.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from attnknn.errors import InvalidInput
from attnknn.ops.masks import Masks

TokenSimilarity = Literal["matmul", "cosine", "euclidean"]
TOKEN_SIMILARITIES: Final[tuple[TokenSimilarity, ...]] = get_args(TokenSimilarity)

_PIECE = 2**18  # scores at a time on the CPU, so that they stay in cache
_LARGE_PIECE = 2**24  # and on other devices, where many small steps are slow
_LANES = 16  # columns of a matrix product that are surely added up alike
_RUN = 32  # neighboring scores of which only the best is looked at first
_FEWEST_RUNS = 4  # for each key that is kept, or looking at runs first does not pay


class Chosen(NamedTuple):
    """The keys each query keeps, best first; where there are too few, index 0 and a score of minus infinity."""

    indices: Tensor  # (batch, heads, queries, k), int64
    scores: Tensor  # the same shape, float32 or float64, before scale and mask


@torch.no_grad()
def select_tokens(
    q: Tensor,
    k: Tensor,
    count: int,
    *,
    euclidean: bool = False,
    scale: float | Tensor = 1.0,
    masks: Masks = Masks(),  # noqa: B008 - it is frozen
    candidates: Tensor | None = None,
) -> Chosen:
    """The ``count`` keys of the largest inner product, or of the smallest Euclidean distance; not differentiable.

    Args:
        q: (batch, heads, queries, dim).
        k: (batch, heads, keys, dim).
        count: Keys to keep; at most as many as there are.
        euclidean: Whether distance decides. The scores are then those it was decided by, not distances.
        scale: Factor of the scores before a mask is added; it matters only there.
        masks: What is hidden and what is added.
        candidates: (m,) ascending; only these keys are looked at, and the query itself comes first.

    >>> q = torch.ones(1, 1, 1, 1)
    >>> select_tokens(q, torch.tensor([1.0, 3.0, 3.0, 2.0]).view(1, 1, 4, 1), 3).indices.tolist()
    [[[[1, 2, 3]]]]
    """
    if torch.compiler.is_compiling() and (q.is_cpu or not _in_one_piece(q.shape, k.shape[2], q.device)):
        factor, learned = (scale, None) if isinstance(scale, float) else (1.0, scale)
        hidden = list(masks.allowed), masks.added, masks.causal
        return Chosen(*_selected(q, k, count, euclidean, factor, learned, *hidden, candidates))
    q, k = wide(q), wide(k)
    if euclidean:  # distances do not change with the origin, but their rounding errors do
        center = k.mean(dim=2, keepdim=True)
        q, k = q - center, k - center
    others = k if candidates is None else k.index_select(2, candidates)
    offset = -others.square().sum(dim=-1)[:, :, None] / 2 if euclidean else None
    best = count if candidates is None else count - 1
    # A matrix product may add up the last few columns in another order, and equal keys would differ by it.
    spare = pad(others, (0, 0, 0, -others.shape[2] % _LANES))
    search = _Search(q, spare, others.shape[2], offset, best, scale, masks, candidates)
    pieces = [search.best(at) for at in _pieces(q.shape, others.shape[2], q.device)] if best else []
    chosen = _joined(pieces, q, best)
    return chosen if candidates is None else _behind_itself(chosen, q, k, candidates, masks, euclidean)


@torch.library.custom_op("attnknn::select_tokens", mutates_args=())
def _selected(
    q: Tensor,
    k: Tensor,
    count: int,
    euclidean: bool,
    factor: float,
    learned: Tensor | None,
    allowed: list[Tensor],
    added: Tensor | None,
    causal: bool,
    candidates: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """:func:`select_tokens` by a name: a compiler that saw its pieces would make a graph for every length."""
    masks, scale = Masks(tuple(allowed), added, causal), factor if learned is None else learned
    return select_tokens(q, k, count, euclidean=euclidean, scale=scale, masks=masks, candidates=candidates)


@_selected.register_fake
def _selected_fake(q: Tensor, k: Tensor, count: int, *_: Any) -> tuple[Tensor, Tensor]:
    scores = wide(q).new_empty(*q.shape[:3], count)
    return torch.empty_like(scores, dtype=torch.int64), scores


def wide(values: Tensor) -> Tensor:
    """At least float32: in half precision most scores would tie."""
    return values if values.dtype in (torch.float32, torch.float64) else values.float()


@dataclass(frozen=True, slots=True)
class _Search:
    """What a search knows, whichever piece of it is under way."""

    q: Tensor
    keys: Tensor  # with some to spare behind the last
    total: int
    offset: Tensor | None
    count: int
    scale: float | Tensor
    masks: Masks
    candidates: Tensor | None

    def best(self, at: tuple[slice, slice, slice]) -> Chosen:
        """The best keys of some queries, as indices into the keys."""
        raw = self._raw(at)
        scores = self._scores(raw, at)
        indices = largest_tokens(scores, self.count)
        if scores is raw:
            return Chosen(indices, raw.gather(-1, indices))
        hidden = scores.gather(-1, indices) == -torch.inf
        kept = raw.gather(-1, indices).masked_fill(hidden, -torch.inf)
        return Chosen(indices.masked_fill(hidden, 0), kept)

    def _raw(self, at: tuple[slice, slice, slice]) -> Tensor:
        batch, head, _ = at
        raw = (self.q[at] @ self.keys[batch, head].transpose(-2, -1))[..., : self.total]
        return raw if self.offset is None else raw + self.offset[batch, head]

    def _scores(self, raw: Tensor, at: tuple[slice, slice, slice]) -> Tensor:
        """What decides: the products themselves, or what masks make of them."""
        scores, (_, head, rows) = raw, at
        if self.masks.added is not None:
            factor = self.scale if isinstance(self.scale, float) else self.scale[head]
            # For distances the product holds half a square; what is added is added to minus the distance.
            scores = factor * (raw if self.offset is None else -_distance(raw, self.q[at]))
        if self.masks:
            scores = self.masks.apply(scores, at, self.candidates)
        if self.candidates is not None:
            own = torch.arange(rows.start, rows.stop, device=raw.device)[:, None] == self.candidates
            scores = scores.masked_fill(own, -torch.inf)
        return scores


def _distance(raw: Tensor, q: Tensor) -> Tensor:
    return (q.square().sum(dim=-1, keepdim=True) - 2 * raw).clamp(min=0).sqrt()


def largest_tokens(scores: Tensor, count: int) -> Tensor:
    """Columns of the ``count`` largest scores of the last axis, largest first, ties by the lower column.

    >>> largest_tokens(torch.tensor([1.0, 5.0, 1.0, 5.0]), 3).tolist()
    [1, 3, 0]
    """
    if scores.dtype == torch.float64:  # too wide to be packed
        return torch.sort(scores, dim=-1, descending=True, stable=True).indices[..., :count].contiguous()
    columns = scores.shape[-1]
    if columns < _FEWEST_RUNS * _RUN * count:
        return _column(_largest_keys(packed(scores), count), columns)
    scores = pad(scores, (0, -columns % _RUN), value=-torch.inf)
    # The best keys lie in the runs with the best maxima, and a run that ties with another is the lower one.
    runs = largest_tokens(scores.view(*scores.shape[:-1], -1, _RUN).amax(dim=-1), count).sort(dim=-1).values
    inside = (runs[..., None] * _RUN + torch.arange(_RUN, device=scores.device)).flatten(-2)
    return inside.gather(-1, _column(_largest_keys(packed(scores.gather(-1, inside)), count), inside.shape[-1]))


def packed(scores: Tensor) -> Tensor:
    """int64 that compare as float32 scores do, and where these are equal, a lower column as the larger.

    What is not a number is above all, whatever its sign: on many processors infinity less itself has one.
    """
    wrong = scores != scores
    if not by_numpy(scores.device) or bool(wrong.any()):
        scores = scores.masked_fill(wrong, torch.nan)
    bits = (scores + 0.0).view(torch.int32)  # -0.0 becomes 0.0
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    columns = scores.shape[-1]
    return (ordered.long() << 32) | torch.arange(columns - 1, -1, -1, device=scores.device)


def _largest_keys(keys: Tensor, count: int) -> Tensor:
    """The ``count`` largest integers of the last axis, largest first."""
    if not by_numpy(keys.device):
        return keys.topk(count).values
    array = keys.numpy()
    top = np.partition(array, array.shape[-1] - count, axis=-1)[..., -count:]
    return torch.from_numpy(np.sort(top, axis=-1)[..., ::-1].copy())


def by_numpy(device: torch.device) -> bool:
    """Whether NumPy sorts: on the CPU it takes a third of torch's time, but a compiler cannot see through it."""
    return device.type == "cpu" and not torch.compiler.is_compiling()


def readable(values: Tensor) -> bool:
    """Whether values may be looked at: a compiler and a CUDA graph that is recorded have none, nor has meta."""
    if torch.compiler.is_compiling() or values.is_meta:
        return False
    return not (values.is_cuda and torch.cuda.is_current_stream_capturing())


def _column(keys: Tensor, columns: int) -> Tensor:
    return (columns - 1) - (keys & 0xFFFFFFFF)


def _pieces(shape: torch.Size, keys: int, device: torch.device) -> Iterator[tuple[slice, slice, slice]]:
    """Batches, heads and rows whose scores are formed together: whole batches, or rows of one head."""
    batch, heads, rows = shape[:3]
    if _in_one_piece(shape, keys, device):
        yield slice(0, batch), slice(0, heads), slice(0, rows)
        return
    piece = _piece(device)
    several = piece // max(1, heads * rows * keys)
    if several:
        for first in range(0, batch, several):
            yield slice(first, min(first + several, batch)), slice(0, heads), slice(0, rows)
        return
    step = max(1, min(rows, piece // max(1, keys)))
    for at in range(batch * heads):
        one, head = divmod(at, heads)
        for first in range(0, rows, step):
            yield slice(one, one + 1), slice(head, head + 1), slice(first, min(first + step, rows))


def _in_one_piece(shape: torch.Size, keys: int, device: torch.device) -> bool:
    return math.prod(shape[:3]) * keys <= _piece(device)


def _piece(device: torch.device) -> int:
    return _PIECE if by_numpy(device) else _LARGE_PIECE


def _joined(pieces: list[Chosen], q: Tensor, count: int) -> Chosen:
    if len(pieces) == 1:
        return pieces[0]
    whole = (*q.shape[:3], count)
    if not pieces:
        return Chosen(q.new_empty(whole, dtype=torch.int64), q.new_empty(whole))
    return Chosen(
        *(torch.cat([each.flatten() for each in parts]).view(whole) for parts in zip(*pieces, strict=True))
    )


def _behind_itself(
    chosen: Chosen, q: Tensor, k: Tensor, candidates: Tensor, masks: Masks, euclidean: bool
) -> Chosen:
    """The chosen among candidates as indices of tokens, each query itself before them."""
    itself = torch.arange(q.shape[2], device=q.device)[:, None].expand(*q.shape[:3], 1)
    own = (q * k).sum(dim=-1, keepdim=True)
    if euclidean:
        own = own - k.square().sum(dim=-1, keepdim=True) / 2
    own = own.masked_fill(~masks.allowed_at(itself), -torch.inf) if masks else own
    void = chosen.scores == -torch.inf
    others = candidates[chosen.indices].masked_fill(void, 0)
    return Chosen(torch.cat([itself, others], dim=-1), torch.cat([own, chosen.scores], dim=-1))


def checked_similarity(similarity: str) -> TokenSimilarity:
    """``similarity`` itself if it is one of ours."""
    if similarity not in TOKEN_SIMILARITIES:
        raise InvalidInput(f"similarity must be one of {', '.join(TOKEN_SIMILARITIES)}, got {similarity!r}")
    return similarity
