"""How queries are looked at: as they are, or several views of each image; and whether the head is asked too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from attnknn.embed import AnyNetwork, ImageEmbedder, embed
from attnknn.embed.images import embed_views
from attnknn.errors import InvalidInput
from attnknn.predict.options import Views
from attnknn.train.policies import Augmentation

Floats = NDArray[np.float64]

MOST_VIEWS: Final = 5
"""That a policy has of an image."""


@dataclass(frozen=True, slots=True)
class Asked:
    """Queries as a member sees them."""

    views: list[NDArray[Any]]  # (queries, dim) vectors of each view
    head: Floats | None  # (queries, outputs) probabilities of the network's head, where it was asked


@dataclass(frozen=True, slots=True)
class Lens:
    """Encoded rows -> the vectors that a member is asked about.

    Args:
        views: Whether the views of ``augmentation`` are asked about one by one (``"probabilities"``), or their
            mean (``"vectors"``); None asks about the rows as they are.
        augmentation: Makes the views.
        outputs: The class of each output of the network's head, where its probabilities are the prior.
    """

    views: Views | None = None
    augmentation: Augmentation | None = None
    outputs: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if (self.views is None) != (self.augmentation is None):
            raise InvalidInput(f"views come from an augmentation, got {self.views!r} and {self.augmentation!r}")

    @property
    def plain(self) -> bool:
        """Whether rows are seen as they are, and nothing else is asked."""
        return self.views is None and self.outputs is None

    @property
    def answers(self) -> int:
        """How many answers a member gives about each query, at most."""
        return MOST_VIEWS if self.views == "probabilities" else 1

    def __call__(self, network: AnyNetwork | None, features: NDArray[Any]) -> Asked:
        """Queries (n, ...) as the network of a member sees them; without one they are vectors already."""
        if network is None:
            return Asked([features], None)
        if self.plain or not isinstance(network, ImageEmbedder):
            return Asked([embed(network, features)], None)
        several = None if self.augmentation is None else self.augmentation.views
        vectors, head = embed_views(network, features, several, head=self.outputs is not None)
        if self.views == "vectors" and len(vectors) > 1:
            vectors = [_mean_direction(vectors)]
        return Asked([*vectors], head)

    def state(self) -> dict[str, Any]:
        """What describes it, for JSON."""
        return {
            "views": self.views,
            "augmentation": None if self.augmentation is None else self.augmentation.state(),
            "outputs": None if self.outputs is None else list(self.outputs),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Lens:
        """The lens whose :meth:`state` this is."""
        given, outputs = state["augmentation"], state["outputs"]
        return cls(
            state["views"],
            None if given is None else Augmentation(**given),
            None if outputs is None else tuple(int(each) for each in outputs),
        )


def _mean_direction(vectors: list[NDArray[np.float32]]) -> NDArray[np.float32]:
    """(n, dim) of unit length; where views cancel each other, the first of them."""
    mean = np.mean(vectors, axis=0, dtype=np.float64)
    length = np.linalg.norm(mean, axis=1, keepdims=True)
    unit = np.where(length > 1e-6, mean / np.maximum(length, 1e-6), vectors[0])
    return unit.astype(np.float32)
