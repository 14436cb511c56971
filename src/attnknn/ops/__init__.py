"""The one idea, as pure tensor functions: select -> weigh -> combine."""

from attnknn.ops.combine import evidence, vote
from attnknn.ops.keys import NO_ROW, Keys, TopK, prepare
from attnknn.ops.pairs import same_group
from attnknn.ops.plain_search import MEMORY_BUDGET
from attnknn.ops.select import exact_topk
from attnknn.ops.similarity import METRICS, Metric, distance_matrix, distances, similarity, unit
from attnknn.ops.weigh import inverse_distance, softmax, uniform

__all__ = [
    "MEMORY_BUDGET",
    "METRICS",
    "NO_ROW",
    "Keys",
    "Metric",
    "TopK",
    "distance_matrix",
    "distances",
    "evidence",
    "exact_topk",
    "inverse_distance",
    "prepare",
    "same_group",
    "similarity",
    "softmax",
    "uniform",
    "unit",
    "vote",
]
