"""Arrays and tables to vectors, and vectors back to rows that a person can read."""

from __future__ import annotations

from typing import Any

from attnknn.embed.embedder import Embedder
from attnknn.embed.identity import Identity
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


__all__ = ["EMBEDDERS", "Embedder", "Identity", "Standardize", "embedder_from_state"]
