"""Attn-KNN: a classifier that answers with real examples.

>>> import attnknn
>>> attnknn.AttnKNNClassifier().n_neighbors
'auto'
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attnknn.attend import AttentionOptions, MultiHeadNeighborAttention, NeighborSelfAttention
    from attnknn.bank import MemoryBank, Neighbors
    from attnknn.errors import (
        AnotherTraining,
        AttnKNNError,
        CorruptModel,
        InvalidInput,
        MissingData,
        MissingDevice,
        MissingExtra,
        NotApplicable,
        TrainingDiverged,
        UnknownId,
    )
    from attnknn.estimator import AttnKNNClassifier, CNNClassifier
    from attnknn.model import AttnKNN
    from attnknn.predict import Explanation, Explanations, PredictionOptions
    from attnknn.train import ImageOptions, TrainingOptions

__version__ = "0.1.0"

_ROOM = {
    "AttnKNNClassifier": "attnknn.estimator",
    "CNNClassifier": "attnknn.estimator",
    "AttentionOptions": "attnknn.attend",
    "MultiHeadNeighborAttention": "attnknn.attend",
    "NeighborSelfAttention": "attnknn.attend",
    "AttnKNN": "attnknn.model",
    "TrainingOptions": "attnknn.train",
    "ImageOptions": "attnknn.train",
    "MemoryBank": "attnknn.bank",
    "Neighbors": "attnknn.bank",
    "Explanation": "attnknn.predict",
    "Explanations": "attnknn.predict",
    "PredictionOptions": "attnknn.predict",
    "AnotherTraining": "attnknn.errors",
    "AttnKNNError": "attnknn.errors",
    "CorruptModel": "attnknn.errors",
    "InvalidInput": "attnknn.errors",
    "MissingData": "attnknn.errors",
    "MissingDevice": "attnknn.errors",
    "MissingExtra": "attnknn.errors",
    "NotApplicable": "attnknn.errors",
    "TrainingDiverged": "attnknn.errors",
    "UnknownId": "attnknn.errors",
}

__all__ = [
    "AnotherTraining",
    "AttentionOptions",
    "AttnKNN",
    "AttnKNNClassifier",
    "AttnKNNError",
    "CNNClassifier",
    "CorruptModel",
    "Explanation",
    "Explanations",
    "ImageOptions",
    "InvalidInput",
    "MemoryBank",
    "MissingData",
    "MissingDevice",
    "MissingExtra",
    "MultiHeadNeighborAttention",
    "NeighborSelfAttention",
    "Neighbors",
    "NotApplicable",
    "PredictionOptions",
    "TrainingDiverged",
    "TrainingOptions",
    "UnknownId",
]


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used, so that ``attnknn --help`` need not wait for torch."""
    if name not in _ROOM:
        raise AttributeError(f"module 'attnknn' has no attribute {name!r}")
    return getattr(import_module(_ROOM[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
