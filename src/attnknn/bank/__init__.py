"""Vectors -> neighbors: the memory bank, its indexes, and the format on disk."""

from attnknn.bank.index import INDEXES
from attnknn.bank.memory import MAX_K, MemoryBank, checked_k
from attnknn.bank.neighbors import Id, Neighbors
from attnknn.ops.keys import MAX_NORM

__all__ = ["INDEXES", "MAX_K", "MAX_NORM", "Id", "MemoryBank", "Neighbors", "checked_k"]
