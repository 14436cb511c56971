"""Neighbors and weights -> evidence and reasons."""

from attnknn.predict.explain import Explanation, Explanations, Reason
from attnknn.predict.options import PredictionOptions
from attnknn.predict.plain import CELLS, Answer, Poll, answer, mean_evidence
from attnknn.predict.views import Lens
from attnknn.predict.weighers import AnyWeigher, base_of, weigher_from_state

__all__ = [
    "CELLS",
    "Answer",
    "AnyWeigher",
    "Explanation",
    "Explanations",
    "Lens",
    "Poll",
    "PredictionOptions",
    "Reason",
    "answer",
    "base_of",
    "mean_evidence",
    "weigher_from_state",
]
