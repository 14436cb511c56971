"""Masks of token attention: what they may look like, and what they do to scores."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attnknn.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Masks:
    """What a query may not look at, and what is added to its scores; every part broadcasts over (b, h, q, n)."""

    allowed: tuple[Tensor, ...] = ()
    added: Tensor | None = None
    causal: bool = False

    def __bool__(self) -> bool:
        """Whether there is anything to hide or to add."""
        return bool(self.allowed) or self.added is not None or self.causal

    def apply(self, scores: Tensor, at: tuple[slice, slice, slice], columns: Tensor | None) -> Tensor:
        """Scores (b, h, rows, keys) of some batches, heads and rows, and of some columns where they are given."""
        if self.added is not None:
            scores = scores + _part(self.added, at, columns)
        for each in self.allowed:
            scores = scores.masked_fill(~_part(each, at, columns), -torch.inf)
        if self.causal:
            row = torch.arange(at[2].start, at[2].stop, device=scores.device)
            column = torch.arange(scores.shape[-1], device=scores.device) if columns is None else columns
            scores = scores.masked_fill(column > row[:, None], -torch.inf)
        return scores

    def allowed_at(self, indices: Tensor) -> Tensor:
        """Whether the queries of ``indices`` (b, h, q, k) may look at those keys."""
        seen = torch.ones_like(indices, dtype=torch.bool)
        for each in self.allowed:
            seen = seen & _entries(each, indices)
        if self.added is not None:
            seen = seen & (_entries(self.added.detach(), indices) > -torch.inf)
        if self.causal:
            seen = seen & (indices <= torch.arange(indices.shape[2], device=indices.device)[:, None])
        return seen

    def added_at(self, indices: Tensor) -> Tensor | None:
        """What is added to the scores of those keys; differentiable."""
        return None if self.added is None else _entries(self.added, indices)


def _part(mask: Tensor, at: tuple[slice, slice, slice], columns: Tensor | None) -> Tensor:
    for axis, where in enumerate(at):
        if mask.shape[axis] > 1:
            mask = mask.narrow(axis, where.start, where.stop - where.start)
    return mask if columns is None or mask.shape[-1] == 1 else mask.index_select(-1, columns)


def _entries(mask: Tensor, indices: Tensor) -> Tensor:
    return mask.expand(*indices.shape[:-1], mask.shape[-1]).gather(-1, indices.clamp(max=mask.shape[-1] - 1))


def masks_of(attn_mask: Tensor | None, key_padding_mask: Tensor | None, is_causal: bool) -> Masks:
    """What a caller gave, checked before, as parts that broadcast over (b, h, q, n)."""
    allowed: list[Tensor] = []
    added = None
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            allowed.append(of_four(attn_mask))
        else:
            added = of_four(attn_mask)
    if key_padding_mask is not None:
        allowed.append(~key_padding_mask[:, None, None])
    return Masks(tuple(allowed), added, is_causal)


def of_four(mask: Tensor) -> Tensor:
    """The same with four axes, those that it lacks before its own."""
    return mask[(None,) * (4 - mask.ndim)]


def check_masks(
    wanted: tuple[int, int, int, int], attn_mask: Tensor | None, key_padding_mask: Tensor | None
) -> None:
    """Refuse masks that do not fit scores (batch, heads, queries, keys), or whose meaning is open.

    Of a whole number it would be: a 1 may stand for a key that is seen, or be added to its score.
    """
    if attn_mask is not None:
        given = tuple(attn_mask.shape)
        fits = all(one in (1, whole) for one, whole in zip(given[::-1], wanted[::-1], strict=False))
        if not (fits and 1 <= len(given) <= 4):
            raise InvalidInput(f"attn_mask must broadcast to {wanted}, got {given}")
        if attn_mask.dtype != torch.bool and not attn_mask.is_floating_point():
            raise InvalidInput(
                "attn_mask must be boolean, True where a query may look, or floating, which is added, "
                f"got {attn_mask.dtype}"
            )
    check_padding((wanted[0], wanted[3]), key_padding_mask)


def check_padding(wanted: tuple[int, int], key_padding_mask: Tensor | None) -> None:
    """Refuse padding that is not told for each of (batch, keys), by True or False."""
    if key_padding_mask is None:
        return
    if tuple(key_padding_mask.shape) != wanted:
        raise InvalidInput(
            f"key_padding_mask must be ({wanted[0]}, {wanted[1]}), got {tuple(key_padding_mask.shape)}"
        )
    if key_padding_mask.dtype != torch.bool:
        raise InvalidInput(
            f"key_padding_mask must be boolean, True where a key is padding, got {key_padding_mask.dtype}"
        )
