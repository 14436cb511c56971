"""Arrays and tables to vectors, and vectors back to rows that a person can read.

An embedder is an encoding, fixed once fitted (``Identity``, ``Standardize``), and where it is learned a network
on top of it (``NETWORKS``).
"""

from __future__ import annotations

from typing import Any

from attnknn.embed.embedder import Embedder
from attnknn.embed.identity import Identity
from attnknn.embed.networks import (
    NETWORKS,
    AnyNetwork,
    LinearEmbedder,
    PeriodicEmbedder,
    TabularEmbedder,
    embed,
    network_from_state,
)
from attnknn.embed.standardize import Standardize
from attnknn.errors import InvalidInput

EMBEDDERS: dict[str, type[Identity] | type[Standardize]] = {"identity": Identity, "standardize": Standardize}


def embedder_from_state(state: dict[str, Any]) -> Embedder:
    """The embedder whose ``state()`` this is.

    Raises:
        InvalidInput: The state names no embedder, or does not fit the one it names.
    """
    kind = state.get("kind") if isinstance(state, dict) else None
    if not isinstance(kind, str) or kind not in EMBEDDERS:
        raise InvalidInput(f"no embedder is called {kind!r}; try one of: {', '.join(EMBEDDERS)}")
    return EMBEDDERS[kind].from_state(state)


__all__ = [
    "EMBEDDERS",
    "NETWORKS",
    "AnyNetwork",
    "Embedder",
    "Identity",
    "LinearEmbedder",
    "PeriodicEmbedder",
    "Standardize",
    "TabularEmbedder",
    "embed",
    "embedder_from_state",
    "network_from_state",
]
