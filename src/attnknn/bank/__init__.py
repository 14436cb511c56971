"""Vectors -> neighbors: the memory bank, its indexes, and the format on disk."""

from attnknn.bank.memory import INDEXES, MAX_K, MemoryBank, checked_k
from attnknn.bank.neighbors import Id, Neighbors
from attnknn.bank.store import MAX_NORM

__all__ = ["INDEXES", "MAX_K", "MAX_NORM", "Id", "MemoryBank", "Neighbors", "checked_k"]
