"""Arrays and tables to vectors, and vectors back to rows that a person can read.

An embedder is an encoding, fixed once fitted (``Identity``, ``Standardize``), and where it is learned a network
on top of it (``NETWORKS``).
"""

from __future__ import annotations

from typing import Any

from attnknn.embed.embedder import Embedder
from attnknn.embed.identity import Identity
from attnknn.embed.images import ImageEmbedder
from attnknn.embed.networks import (
    LEARNED,
    NETWORKS,
    AnyNetwork,
    LinearEmbedder,
    PeriodicEmbedder,
    TableNetwork,
    TabularEmbedder,
    embed,
    network_from_state,
)
from attnknn.embed.pictures import Pictures
from attnknn.embed.standardize import Standardize
from attnknn.errors import InvalidInput

EMBEDDERS: dict[str, type[Identity] | type[Standardize]] = {"identity": Identity, "standardize": Standardize}
"""Encoders of tables."""


def embedder_from_state(state: dict[str, Any]) -> Embedder:
    """The embedder whose ``state()`` this is.

    Raises:
        InvalidInput: The state names no embedder, or does not fit the one it names.
    """
    kind = state.get("kind") if isinstance(state, dict) else None
    if kind == Pictures.kind:
        return Pictures.from_state(state)
    if not isinstance(kind, str) or kind not in EMBEDDERS:
        raise InvalidInput(f"no embedder is called {kind!r}; try one of: {', '.join([*EMBEDDERS, Pictures.kind])}")
    return EMBEDDERS[kind].from_state(state)


__all__ = [
    "EMBEDDERS",
    "LEARNED",
    "NETWORKS",
    "AnyNetwork",
    "Embedder",
    "Identity",
    "ImageEmbedder",
    "LinearEmbedder",
    "PeriodicEmbedder",
    "Pictures",
    "Standardize",
    "TableNetwork",
    "TabularEmbedder",
    "embed",
    "embedder_from_state",
    "network_from_state",
]
