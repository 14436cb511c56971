"""The settings of experiments that the source documents report, to be run by this package's code.

Of each the trunk, widths, losses, epochs, batches and numbers of neighbors are theirs. What was wrong in theirs
(validation on test images, neighbors that hold the query, losses that nothing read) is not repeated. Imports
nothing slow.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Source:
    """One experiment.

    Args:
        k: Neighbors.
        heads: Heads of the attention.
        images: Options of ``ImageOptions`` that differ from the usual ones.
        k_ensemble: The k of a k-ensemble.
    """

    k: int
    heads: int
    images: Mapping[str, Any]
    k_ensemble: tuple[int, ...] = (5, 10, 20, 50)


_ADAM: Final = {"optimizer": "adamw", "lr": 1e-3, "weight_decay": 1e-4}

SOURCES: Final[Mapping[str, Source]] = {
    "seed-exp3": Source(
        k=10,
        heads=1,
        images={**_ADAM, "backbone": "resnet18", "embed_dim": 128, "epochs": 30, "batch_size": 256},
    ),
    "seed-exp4": Source(
        k=10,
        heads=4,
        images={
            **_ADAM,
            "backbone": "resnet50",
            "embed_dim": 256,
            "epochs": 50,
            "batch_size": 256,
            "warmup": 0.1,
            "contrastive": 0.5,
            "margin": 0.5,
            "hard": 2.0,
        },
    ),
    "seed-exp5": Source(
        k=16,
        heads=4,
        images={
            **_ADAM,
            "backbone": "resnet18",
            "embed_dim": 256,
            "epochs": 20,
            "batch_size": 512,
            "warmup": 0.0,
            "mix": "mixup",
            "mix_alpha": 0.4,
            "label_smoothing": 0.1,
            "contrastive": 0.5,
            "entropy": 0.01,
        },
        k_ensemble=(5, 10, 20),
    ),
}
"""By name; all of them train from scratch."""
