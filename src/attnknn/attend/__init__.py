"""Neighbors -> weights."""

from attnknn.attend.weighting import KINDS, Weighting, WeightingKind, log_reliability, row_weights

__all__ = ["KINDS", "Weighting", "WeightingKind", "log_reliability", "row_weights"]
