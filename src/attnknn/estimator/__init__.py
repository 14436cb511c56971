"""The classifier, and the CNN that it is measured by on images."""

from attnknn.estimator.classifier import AttnKNNClassifier
from attnknn.estimator.cnn import CNNClassifier

__all__ = ["AttnKNNClassifier", "CNNClassifier"]
