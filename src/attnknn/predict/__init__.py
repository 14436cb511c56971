"""Neighbors and weights -> evidence and reasons."""

from attnknn.predict.explain import Explanation, Explanations, Reason
from attnknn.predict.plain import Answer, answer, answers

__all__ = ["Answer", "Explanation", "Explanations", "Reason", "answer", "answers"]
