"""How good and how honest probabilities are: pure functions of NumPy arrays, with intervals.

Every function takes ``probabilities`` of shape ``(n, classes)`` and ``labels`` of shape ``(n,)`` with
values ``0 .. classes - 1``. Any other label means a class that the model does not know: it counts as
wrong, and its negative log likelihood is infinite.
"""

from attnknn.metrics.intervals import Estimate, bootstrap_interval, evaluate, seed_interval
from attnknn.metrics.reliability import ReliabilityCurve, ece, ece_floor, reliability_curve
from attnknn.metrics.scores import accuracy, auc, aurc, brier, f1_macro, nll

__all__ = [
    "Estimate",
    "ReliabilityCurve",
    "accuracy",
    "auc",
    "aurc",
    "bootstrap_interval",
    "brier",
    "ece",
    "ece_floor",
    "evaluate",
    "f1_macro",
    "nll",
    "reliability_curve",
    "seed_interval",
]
