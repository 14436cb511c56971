"""The classifier."""

from attnknn.estimator.classifier import AttnKNNClassifier

__all__ = ["AttnKNNClassifier"]
