"""Neighbors and weights -> evidence and reasons."""

from attnknn.predict.explain import Explanation, Explanations, Reason
from attnknn.predict.plain import CELLS, Answer, Poll, answer

__all__ = ["CELLS", "Answer", "Explanation", "Explanations", "Poll", "Reason", "answer"]
