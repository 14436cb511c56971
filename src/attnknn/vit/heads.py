"""What all layers share: tokens split into heads and merged again, and the masks of dense attention."""

from __future__ import annotations

from numbers import Real
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from attnknn.errors import InvalidInput
from attnknn.ops.masks import check_masks, of_four

_MOST: Final = 2**31 - 1
Whole: Final = (int, np.integer)
"""What counts may be given as; a bool, which is an int too, is refused."""

Flag: Final = (bool, np.bool_)
"""What may be on or off."""


def split_heads(x: Tensor, heads: int) -> Tensor:
    """(batch, tokens, dim) as (batch, heads, tokens, dim / heads), a view."""
    batch, tokens, dim = x.shape
    return x.view(batch, tokens, heads, dim // heads).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """(batch, heads, tokens, dim) as (batch, tokens, heads * dim): the inverse of :func:`split_heads`."""
    return x.transpose(1, 2).flatten(2)


def checked_heads(dim: int, num_heads: int) -> int:
    """The width of a head, if ``num_heads`` divides ``dim``.

    >>> checked_heads(192, 3)
    64
    """
    whole = isinstance(dim, Whole) and isinstance(num_heads, Whole)
    if whole and (dim < 1 or num_heads < 1 or dim % num_heads):
        raise InvalidInput(f"num_heads must divide dim, and both be at least 1, got {dim=}, {num_heads=}")
    if checked_count(dim, "dim") % checked_count(num_heads, "num_heads"):
        raise InvalidInput(f"num_heads must divide dim, got {dim=}, {num_heads=}")
    return int(dim) // int(num_heads)


def checked_count(value: int, name: str, least: int = 1) -> int:
    """``value`` itself if it is a whole number, not below ``least`` and not beyond what 32 bits hold."""
    given: Any = value  # whatever it was called with
    whole = isinstance(given, (*Whole, float)) and not isinstance(given, bool) and least <= given <= _MOST
    if not whole or int(given) != given:
        raise InvalidInput(f"{name} must be a whole number below 2^31 and of at least {least}, got {value!r}")
    return int(value)


def checked_flag(value: bool, name: str) -> bool:
    """``value`` itself if it is True or False, NumPy's included.

    >>> checked_flag(np.True_, "causal")
    True
    """
    given: Any = value  # whatever it was called with
    if not isinstance(given, Flag):
        raise InvalidInput(f"{name} must be True or False, got {value!r}")
    return bool(value)


def is_number(value: object) -> bool:
    """Whether ``value`` can be compared with numbers: one of Python's or NumPy's.

    >>> is_number(np.float32(0.5)), is_number("0.5"), is_number(None)
    (True, False, False)
    """
    return isinstance(value, Real)


def checked_rate(value: float, name: str) -> float:
    """``value`` itself if it is a rate of dropout: at least 0 and below 1."""
    if not is_number(value) or not 0 <= value < 1:
        raise InvalidInput(f"{name} must be at least 0 and below 1, got {value!r}")
    return value


def checked_scale(value: float | None, default: float) -> float:
    """``value``, or the default without one; a scale that is not above 0 would turn the order round."""
    if value is None:
        return default
    if not is_number(value) or not 0 < value < float("inf"):
        raise InvalidInput(f"qk_scale must be above 0, got {value!r}")
    return float(value)


def checked_tokens(x: Tensor, dim: int) -> Tensor:
    """``x`` itself if it is (batch, tokens, dim)."""
    if x.ndim != 3 or x.shape[2] != dim or x.shape[1] < 1:
        raise InvalidInput(f"expected (batch, tokens, {dim}) with at least one token, got {tuple(x.shape)}")
    return x


def dense_mask(
    x: Tensor, heads: int, attn_mask: Tensor | None, key_padding_mask: Tensor | None, is_causal: bool
) -> Tensor | None:
    """One mask of ``scaled_dot_product_attention`` for tokens ``x``, from the three that a layer is given.

    Args:
        x: (batch, tokens, dim).
        heads: Heads of the layer.
        attn_mask: Broadcasts as (batch, heads, queries, keys): True where a query may look, or what is added.
        key_padding_mask: (batch, keys), True where a key is padding.
        is_causal: Whether a query sees only keys up to its own index.
    """
    check_masks((x.shape[0], heads, x.shape[1], x.shape[1]), attn_mask, key_padding_mask)
    given = None if attn_mask is None else of_four(attn_mask)
    allowed = given if given is not None and given.dtype == torch.bool else None
    if key_padding_mask is not None:
        allowed = _both(allowed, ~key_padding_mask[:, None, None])
    if is_causal:
        tokens = torch.arange(x.shape[1], device=x.device)
        allowed = _both(allowed, tokens <= tokens[:, None])
    if given is None or given.dtype == torch.bool:
        return allowed
    added = given.to(x.dtype)
    return added if allowed is None else torch.where(allowed, added, -torch.inf)


def _both(first: Tensor | None, second: Tensor) -> Tensor:
    return second if first is None else first & second
