"""CNNClassifier: the head of the image network as a classifier, the mark that neighbors must reach."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from attnknn.calibrate import Calibrator, Identity
from attnknn.data import as_images
from attnknn.embed.images import embed_views
from attnknn.errors import InvalidInput
from attnknn.estimator.benches import held_out, twins
from attnknn.estimator.calibration import calibrated
from attnknn.estimator.image_benches import check_enough
from attnknn.estimator.inputs import checked_labels, codes_of, with_classes
from attnknn.estimator.options import check_fraction, training_device
from attnknn.train import ImageOptions, Rows, train_images
from attnknn.train.policies import chosen_policy

Floats = NDArray[np.float64]

CALIBRATIONS: Final = ("temperature", "isotonic", "matrix", None)


class CNNClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A convolutional network that answers by its head; it keeps no examples and explains nothing.

    Trained exactly as ``AttnKNNClassifier`` trains on images, but for one option: ``nca=0``. Same seed, same
    validation images, same views. So the difference between the two is what the neighbors cost or gain.

    Args:
        training: ``ImageOptions``, those of the classifier it is compared with; None is the usual ones.
        calibration: ``"temperature"``, ``"isotonic"``, ``"matrix"``, or None for the bare softmax; fitted on the
            validation images.
        views: Whether answers are averaged over the views of the augmentation, before calibration.
        validation_fraction: Share of the images that choose the best epoch and fit the calibration.
        device: ``"cpu"``, ``"cuda"``, ``"mps"``; ``"auto"`` is the best there is.
        random_state: Seed of what is drawn.
        verbose: Above 0, ``fit`` shows its progress.

    Attributes:
        options_: What it was trained with: ``training``, with ``nca=0``.
    """

    def __init__(
        self,
        *,
        training: ImageOptions | None = None,
        calibration: str | None = "temperature",
        views: bool = False,
        validation_fraction: float = 0.1,
        device: str = "auto",
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.training = training
        self.calibration = calibration
        self.views = views
        self.validation_fraction = validation_fraction
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any, *, classes: ArrayLike | None = None) -> Self:
        """Learn from labelled images.

        Args:
            X: uint8 (n, h, w) or (n, h, w, 1 or 3).
            y: Labels: integers, booleans or strings.
            classes: All labels there may ever be, when ``y`` does not show them all.
        """
        self._check()
        images, labels = as_images(X), checked_labels(y)
        if len(labels) != len(images):
            raise InvalidInput(f"inconsistent numbers of samples: {len(images)} images, {len(labels)} labels")
        self.classes_ = with_classes(np.unique(labels), classes)
        self.options_ = as_cnn(self.training or ImageOptions())
        groups = twins(images.reshape(len(images), int(np.prod(images.shape[1:]))))
        together = np.full(len(images), -1) if groups is None else groups
        rows = Rows(images, codes_of(labels, self.classes_), np.ones(len(images)), together)
        check_enough(rows)
        seed = int(check_random_state(self.random_state).randint(2**31))
        folder = self.options_.checkpoint
        learn, held = held_out(rows, self.validation_fraction, seed)
        done = train_images(
            *(rows.take(learn), rows.take(held)),
            classes=len(self.classes_),
            options=self.options_,
            seed=seed,
            device=training_device(self.device, None),
            checkpoint=None if folder is None else Path(folder) / "cnn.pt",
            progress="training cnn" if self.verbose else None,
        )
        self.network_, self.history_ = done.network, done.history
        self._policy = chosen_policy(self.options_.augmentation, images.shape[1:3])
        self._held = rows.take(held)
        self.calibrator_ = self._calibrated()
        return self

    def with_views(self) -> Self:
        """The same network, answering with views, calibrated for that on the same validation images."""
        check_is_fitted(self, "network_")
        other: Self = copy(self).set_params(views=True)
        other.calibrator_ = other._calibrated()
        return other

    def predict_proba(self, X: Any) -> Floats:
        """(images, classes) calibrated probabilities, in the order of ``classes_``."""
        check_is_fitted(self, "network_")
        bare = self.head_proba(X)
        return self.calibrator_.transform(bare) if len(bare) else bare

    def head_proba(self, X: Any) -> Floats:
        """(images, classes) probabilities before calibration."""
        check_is_fitted(self, "network_")
        views = self._policy.views if self.views else None
        _, chances = embed_views(self.network_, as_images(X), views, head=True)
        if chances is None:
            raise InvalidInput("the network has no head")
        return np.asarray(chances / chances.sum(axis=1, keepdims=True))

    def predict(self, X: Any) -> NDArray[Any]:
        """The most probable label of each image."""
        chances = self.predict_proba(X)
        found: NDArray[Any] = self.classes_[chances.argmax(axis=1)] if len(chances) else self.classes_[:0]
        return found

    def _calibrated(self) -> Calibrator:
        if self.calibration is None or len(self.classes_) < 2:
            return Identity()
        held = self._held
        return calibrated(self.calibration, self.head_proba(held.features), held.labels, held.weights)

    def _check(self) -> None:
        if self.calibration not in CALIBRATIONS:
            raise InvalidInput(f"calibration must be one of {CALIBRATIONS}, got {self.calibration!r}")
        if self.training is not None and not isinstance(self.training, ImageOptions):
            raise InvalidInput(f"training must be None or ImageOptions(...), got {self.training!r}")
        check_fraction(self.validation_fraction)


def as_cnn(options: ImageOptions) -> ImageOptions:
    """The same training without neighbors."""
    if options.frozen:
        raise InvalidInput("a frozen backbone has no head to answer by; frozen=False trains one")
    return replace(options, nca=0.0, hard=0.0, relabel=0)  # those are of neighbors too
