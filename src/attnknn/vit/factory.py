"""Layers by the names that the command line knows them by."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import Parameter, signature
from typing import Any, Final

from torch import nn

from attnknn.errors import InvalidInput
from attnknn.vit.attention import MultiHeadAttention
from attnknn.vit.branching import MultiHeadBranchingAttention, MultiHeadBranchingConv
from attnknn.vit.convnn import MultiHeadConvNNAttention
from attnknn.vit.kvt import MultiHeadKvtAttention
from attnknn.vit.local import MultiHeadLocalAttention
from attnknn.vit.neighborhood import NeighborhoodAttention1D, NeighborhoodAttention2D
from attnknn.vit.sparse import MultiHeadSparseAttention

LAYERS: Final[dict[str, type[nn.Module]]] = {
    "Attention": MultiHeadAttention,
    "ConvNNAttention": MultiHeadConvNNAttention,
    "KvtAttention": MultiHeadKvtAttention,
    "LocalAttention": MultiHeadLocalAttention,
    "NeighborhoodAttention": NeighborhoodAttention1D,
    "NeighborhoodAttention2D": NeighborhoodAttention2D,
    "SparseAttention": MultiHeadSparseAttention,
    "BranchConv": MultiHeadBranchingConv,
    "BranchAttention": MultiHeadBranchingAttention,
}
"""Every layer by its name; a dict, not a registry."""

SELECTING: Final = (
    MultiHeadConvNNAttention,
    MultiHeadKvtAttention,
    MultiHeadBranchingConv,
    MultiHeadBranchingAttention,
)
"""Layers that choose among tokens, and say which with ``return_indices=True``."""


def layer_options(layer: str) -> frozenset[str]:
    """The names of a layer's options, beside ``dim`` and ``num_heads``.

    >>> sorted(layer_options("SparseAttention"))
    ['attention_dropout', 'sparse_context_window', 'sparse_mode']
    """
    given = signature(_checked(layer)).parameters.values()
    names = {each.name for each in given if each.kind == Parameter.KEYWORD_ONLY}
    if any(each.kind == Parameter.VAR_KEYWORD for each in given):  # a branch passes the rest on
        names |= layer_options("ConvNNAttention")
    return frozenset(names)


def unread_options(layer: str | Sequence[str]) -> dict[str, Any]:
    """Options that none of these layers reads, with their defaults: models that differ in them are alike.

    >>> unread_options("SparseAttention")["K"], "K" in unread_options(["SparseAttention", "KvtAttention"])
    (9, False)
    """
    read = frozenset().union(*map(layer_options, {layer} if isinstance(layer, str) else set(layer)))
    every = {each.name: each.default for kind in LAYERS.values() for each in signature(kind).parameters.values()}
    known = frozenset().union(*map(layer_options, LAYERS))
    return {name: every[name] for name in sorted(known - read)}


def create_layer(layer: str, dim: int, num_heads: int = 3, **options: Any) -> nn.Module:
    """A layer by its name.

    Options of other layers are left out, so that one set of options serves several layers; a name that no layer
    knows is refused.

    Args:
        layer: A name in ``LAYERS``.
        dim: Width of the tokens.
        num_heads: Heads.
        options: Whatever the layers take.

    >>> create_layer("ConvNNAttention", dim=192, num_heads=3, K=9).K
    9
    """
    made = _checked(layer)
    known = frozenset().union(*map(layer_options, LAYERS))
    if strange := sorted(options.keys() - known):
        raise InvalidInput(f"no layer has an option {strange[0]!r}; there are {', '.join(sorted(known))}")
    own = layer_options(layer)
    return made(dim, num_heads, **{name: value for name, value in options.items() if name in own})


def _checked(layer: str) -> type[nn.Module]:
    if layer not in LAYERS:
        raise InvalidInput(f"layer must be one of {', '.join(LAYERS)}, got {layer!r}")
    return LAYERS[layer]
