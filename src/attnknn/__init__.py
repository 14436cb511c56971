"""Attn-KNN: a classifier that answers with real examples."""
