"""Neighbors -> weights."""

from attnknn.attend.attention import MultiHeadNeighborAttention, logit_size
from attnknn.attend.biases import prototype_alignment
from attnknn.attend.learned import LearnedWeighting, Weigher, weigher_from_state
from attnknn.attend.options import PARTS, AttentionOptions
from attnknn.attend.self_attention import NeighborSelfAttention
from attnknn.attend.weighting import KINDS, Weighting, WeightingKind, log_reliability, row_weights

__all__ = [
    "KINDS",
    "PARTS",
    "AttentionOptions",
    "LearnedWeighting",
    "MultiHeadNeighborAttention",
    "NeighborSelfAttention",
    "Weigher",
    "Weighting",
    "WeightingKind",
    "log_reliability",
    "logit_size",
    "prototype_alignment",
    "row_weights",
    "weigher_from_state",
]
