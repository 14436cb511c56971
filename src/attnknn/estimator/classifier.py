"""AttnKNNClassifier: embed, search, weigh, vote and calibrate behind scikit-learn's face."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import replace
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from attnknn.attend import AttentionOptions
from attnknn.bank import Id, MemoryBank
from attnknn.bank.lock import ReadersWriterLock
from attnknn.embed import Embedder
from attnknn.errors import InvalidInput
from attnknn.estimator import saved
from attnknn.estimator.benches import lessons_of, make_benches, renumbered, school_of
from attnknn.estimator.fitting import Fit, Wish, fit_voter, has_free_parts, wished
from attnknn.estimator.image_benches import Suspect, image_members
from attnknn.estimator.inputs import (
    balancing_weights,
    checked_labels,
    checked_rows,
    checked_weights,
    class_weights,
    codes_of,
    with_classes,
)
from attnknn.estimator.options import check_options, check_prediction, image_options, search_device
from attnknn.estimator.reasons import explained, with_pictures
from attnknn.estimator.voter import Floats
from attnknn.predict import Explanation, Explanations, PredictionOptions
from attnknn.predict.abstain import abstained, threshold
from attnknn.train import TrainingOptions


class AttnKNNClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Nearest neighbors that weigh, vote with calibrated probabilities, explain themselves and can be edited.

    Args:
        n_neighbors: Neighbors per prediction; ``"auto"`` takes the smallest of 1, 2, 4, ..., all (4,096 of more)
            whose NLL on the rows that judge is within one standard error of the best (``n_neighbors_``).
        weights: ``"attention"`` (learned; softmax weighting wherever the learned parts do not help);
            ``"uniform"``; ``"distance"`` (1 / distance, as scikit-learn); ``"softmax"`` (of a fitted scale
            times the similarity); ``"reliability"`` (softmax that trusts neighbors whose own neighbors agree).
        embedder: Trained: ``"periodic"`` (tables), ``"tabular"`` (a perceptron), ``"linear"`` (vectors of another
            model). Not trained: ``"standardize"`` (scaled numbers, one-hot categories, missing values),
            ``"identity"``. ``"auto"`` is periodic with attention, else standardize; rows of length 1 count as
            given vectors (identity), and so do more than 256 numeric columns with attention (linear). Of fewer
            columns, all numbers, periodic and linear are both tried: the validation NLL decides.
        metric: ``"l2"``, ``"cosine"``, ``"ip"``; ``"auto"`` is cosine for given vectors of length 1, else l2.
        index: ``"exact"``, ``"flat"``, ``"hnsw"``, ``"ivf"``; ``"auto"`` is exact below 100,000 rows, from there
            on HNSW where FAISS is installed.
        calibration: ``"density"``, ``"temperature"``, ``"isotonic"``, ``"matrix"``, ``"prior"`` (prior mass
            alone), or None for the bare vote; ``"auto"`` is density from 200 rows on, below that temperature.
        n_estimators: Trained members to average. They share examples and labels; each has its own vectors.
        class_weight: None, ``"balanced"``, or a dict of label to factor.
        attention: ``AttentionOptions``: which parts the attention has; None is the usual ones.
        training: ``TrainingOptions``; None is the usual ones, and trains nothing below 500 rows.
        prediction: ``PredictionOptions``: views of images, several k, a k for each row, the head's prior; None is
            the plain vote of the k nearest.
        validation_fraction: Share of the rows that stop the training and fit k, weights and calibration: held out
            where an embedder is trained (never fewer than 1,000 rows, or a fifth; below 2,000 rows five folds
            take turns), else each leaving itself out (never fewer than 2,000 rows, or all).
        device: Where training and exact search run: ``"cpu"``, ``"cuda"``, ``"mps"``; ``"auto"`` is the best.
        random_state: Seed of what is drawn.
        verbose: Above 0, ``fit`` shows its progress and prints what it chose.

    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> model = AttnKNNClassifier(random_state=0).fit(X, y)
    >>> int(model.predict(X[:1])[0])
    0
    >>> int(model.explain(X[:1])[0].neighbors[0].label)
    0
    """

    def __init__(
        self,
        n_neighbors: int | str = "auto",
        *,
        weights: str = "attention",
        embedder: str = "auto",
        metric: str = "auto",
        index: str = "auto",
        calibration: str | None = "auto",
        n_estimators: int = 1,
        class_weight: Any = None,
        attention: AttentionOptions | None = None,
        training: TrainingOptions | None = None,
        prediction: PredictionOptions | None = None,
        validation_fraction: float = 0.1,
        device: str = "auto",
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.n_neighbors = n_neighbors
        self.weights = weights
        self.embedder = embedder
        self.metric = metric
        self.index = index
        self.calibration = calibration
        self.n_estimators = n_estimators
        self.class_weight = class_weight
        self.attention = attention
        self.training = training
        self.prediction = prediction
        self.validation_fraction = validation_fraction
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: ArrayLike | None = None,
        *,
        ids: Sequence[Id] | None = None,
        groups: ArrayLike | None = None,
        classes: ArrayLike | None = None,
    ) -> Self:
        """Learn from labelled rows.

        Args:
            X: Frame (pandas or polars; any mix of columns, missing values allowed), numeric array, or images as
                uint8 (n, h, w) or (n, h, w, 1 or 3).
            y: Labels: integers, booleans or strings.
            sample_weight: How much each row counts.
            ids: Names for the rows, to edit and explain by; numbered from 0 when left out.
            groups: A number or name for each row: rows of one group do not judge each other when k, scale and
                calibration are fitted. When left out, exact duplicates form groups.
            classes: All labels there may ever be, when ``y`` does not show them all.
        """
        options = check_options(self)
        self._guard = ReadersWriterLock()  # edits wait for answers and happen alone
        self.fitted_on_frame_ = self.fitted_on_images_ = False
        rows = checked_rows(self, X, reset=True)
        labels = checked_labels(y)
        if len(labels) != len(rows):
            raise InvalidInput(f"inconsistent numbers of samples: {len(rows)} rows, {len(labels)} labels")
        self.classes_ = with_classes(np.unique(labels), classes)
        codes = codes_of(labels, self.classes_)
        factors = class_weights(self.class_weight, self.classes_, labels)
        weights = checked_weights(sample_weight, len(rows))
        self._seed = int(check_random_state(self.random_state).randint(2**31))
        ks = self.prediction is not None and self.prediction.fits_ks
        apart = has_free_parts(self.weights, options.k, self.calibration, ks)
        lessons = lessons_of(self, rows, codes, ids=ids, groups=groups, weights=weights, apart=apart)
        self.suspects_: tuple[Suspect, ...] = ()
        if lessons[0].kind == "image":
            done = image_members(lessons[0], school_of(self, None, options), image_options(self))
            taken, self._benches = done.lesson, done.benches
            self.suspects_ = done.suspects(codes, self.classes_)
        else:
            taken, self._benches = make_benches(self, lessons, options)
        self.embedder_: Embedder = taken.encoder
        self._fit_voter(wished(self, options, factors, len(rows)))
        return self

    def _fit_voter(self, wish: Wish, earlier: Fit | None = None) -> None:
        random = np.random.default_rng(self._seed)
        known = None
        if earlier is not None and earlier.asked == wish.of_weights:
            known = [each.again() for each in earlier.weighed]
        self._fit = fit_voter(self._benches, wish, len(self.classes_), random, known)
        self.voter_, self.tuning_ = self._fit.voter, self._fit.tuning
        if self.verbose:
            print(self._chosen())

    def with_weights(
        self,
        weights: str,
        attention: AttentionOptions | None = None,
        prediction: PredictionOptions | None = None,
        n_neighbors: int | str | None = None,
    ) -> Self:
        """The same examples and the same trained vectors under other weights, fitted on the same rows.

        The way to see what the attention adds: ``model.with_weights("softmax")``. Where weights and attention are
        those of the model, they are taken as they were fitted.

        Args:
            weights: As in the constructor.
            attention: As in the constructor.
            prediction: As in the constructor; None is the plain vote.
            n_neighbors: As in the constructor; None is that of the model.
        """
        check_is_fitted(self)
        if not getattr(self, "_benches", None):
            raise InvalidInput("a loaded model has no validation rows any more; fit it anew with other weights")
        asked = {"weights": weights, "attention": attention, "prediction": prediction}
        other: Self = copy(self).set_params(**asked, n_neighbors=n_neighbors or self.n_neighbors)
        options = check_options(clone(other).set_params(embedder="auto", training=None, n_estimators=1))
        check_prediction(other, "image" if self.fitted_on_images_ else self.embedder, self.voter_.bank.index)
        # A checkpoint is of the fit; other weights are another training.
        options = replace(options, training=replace(self.training or options.training, checkpoint=None))
        with self._guard.read():
            other._guard = ReadersWriterLock()
            other._benches = [replace(bench, bank=bench.bank.copy()) for bench in self._benches]
            factors, rows = self.voter_.class_weight, len(self.voter_.bank)
            other._fit_voter(wished(other, options, factors, rows), self._fit)
        return other

    def partial_fit(
        self, X: Any, y: Any, classes: ArrayLike | None = None, sample_weight: ArrayLike | None = None
    ) -> Self:
        """Fit on the first call; on later ones add the rows and keep everything that was fitted."""
        if not hasattr(self, "voter_"):
            return self.fit(X, y, sample_weight, classes=classes)
        self.add(X, y, classes=classes, sample_weight=sample_weight)
        return self

    def add(
        self,
        X: Any,
        y: Any,
        ids: Sequence[Id] | None = None,
        *,
        classes: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> list[Id]:
        """Teach new examples at once, without retraining; returns their ids.

        Args:
            X: Rows.
            y: Their labels. One that the model does not know is refused unless ``classes`` names it.
            ids: Their names, or None to number them.
            classes: New labels to allow.
            sample_weight: How much each counts; ``"balanced"`` lets those of a new class count together as much as
                a class does on average: without it a handful is outvoted where k is large.
        """
        check_is_fitted(self)
        rows = checked_rows(self, X, reset=False)
        labels = checked_labels(y)
        if len(labels) != len(rows):
            raise InvalidInput(f"{len(rows)} rows, but {len(labels)} labels")
        features = self.embedder_.transform(rows)
        balanced = isinstance(sample_weight, str) and sample_weight == "balanced"
        weights = None if balanced else checked_weights(sample_weight, len(rows))
        with self._guard.write():
            known = with_classes(self.classes_, classes)
            codes = codes_of(labels, known)
            if balanced:
                weights = balancing_weights(labels, self.classes_, self.voter_.bank)
            before = self.voter_.bank.ids if len(known) > len(self.classes_) else []
            added = self.voter_.add(features, codes, ids, weights)
            self._extend_classes(known, before)
        return added

    def remove(self, ids: Iterable[Id]) -> None:
        """Forget examples at once, without retraining."""
        check_is_fitted(self)
        with self._guard.write():
            self.voter_.remove(ids)

    def relabel(self, ids: Sequence[Id], y: Any) -> None:
        """Correct the labels of examples at once, without retraining."""
        check_is_fitted(self)
        labels = checked_labels(y)
        with self._guard.write():
            self.voter_.relabel(ids, codes_of(labels, self.classes_))

    def predict_proba(self, X: Any) -> Floats:
        """(rows, classes) calibrated probabilities, in the order of ``classes_``."""
        return self._chances(X)[0]

    def predict(self, X: Any, abstain_below: float | None = None, abstain_label: Any = None) -> NDArray[Any]:
        """The most probable label of each row.

        Args:
            X: Rows.
            abstain_below: Answer ``abstain_label`` where the highest probability is below this.
            abstain_label: What to answer then.
        """
        chances, classes = self._chances(X)
        predicted: NDArray[Any] = classes[chances.argmax(axis=1)]
        if abstain_below is None:
            return predicted
        return abstained(predicted, chances.max(axis=1, initial=0.0), abstain_below, abstain_label)

    def abstention_threshold(self, X: Any, y: Any, *, max_error: float) -> float:
        """The lowest confidence to demand so that, on these rows, at most ``max_error`` of the answers are wrong.

        Use it as ``predict(X, abstain_below=threshold)``. Infinite when even the surest answers are wrong too
        often: then abstain always. The rows must not be among the examples: those answer for themselves.
        """
        if not 0 <= max_error <= 1:
            raise InvalidInput(f"max_error must be from 0 to 1, got {max_error}")
        (chances, classes), labels = self._chances(X), checked_labels(y)
        if len(labels) != len(chances):
            raise InvalidInput(f"{len(chances)} rows, but {len(labels)} labels")
        return threshold(chances.max(axis=1), classes[chances.argmax(axis=1)] != labels, max_error)

    def kneighbors(
        self, X: Any = None, n_neighbors: int | None = None, return_distance: bool = True
    ) -> NDArray[np.int64] | tuple[Floats, NDArray[np.int64]]:
        """Distances and rows of the nearest examples, as scikit-learn's method; without ``X``, of the examples.

        Rows count the examples in the order they were added; they shift when examples are removed.
        """
        check_is_fitted(self)
        vectors = None if X is None else self.voter_.members[0].vectors(self._encoded(X))
        k = self.n_neighbors_ if n_neighbors is None else n_neighbors
        with self._guard.read():
            bank = self.voter_.bank
            if vectors is None:
                near = bank.search(bank.vectors(bank.live), k, exclude=bank.ids, by_group=False)
                if len(bank) <= near.k:  # an example has one neighbor fewer than there are examples
                    near = replace(near, rows=near.rows[:, :-1], distances=near.distances[:, :-1])
            else:
                near = bank.search(vectors, k)
            rows = np.searchsorted(bank.live, near.rows)
        return (near.distances, rows) if return_distance else rows

    def explain(self, X: Any) -> Explanations:
        """For each row the neighbors, their weights, and what each class got from them."""
        features = self._encoded(X)
        each: list[Explanation] = []
        with self._guard.read():
            for poll in self.voter_.polls(features):
                prior = self.voter_.prior_of(poll)
                each.extend(explained(poll, prior, self.voter_, self.embedder_, self.classes_))
        return Explanations(with_pictures(each, self.embedder_, features))

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write a folder that :meth:`load` reads: whole, or not at all."""
        check_is_fitted(self)
        with self._guard.write():  # saving compacts the bank
            saved.write(folder, self)

    @classmethod
    def load(cls, folder: str | os.PathLike[str], device: str | None = None) -> Self:
        """Read a folder that :meth:`save` wrote; runs no code from it.

        Args:
            folder: The folder.
            device: Where to search, when not where it was.
        """
        model: Self = saved.read(folder, cls, device)
        return model

    @property
    def n_neighbors_(self) -> int:
        """Neighbors per prediction, as chosen or given."""
        return min(self.voter_.k, max(1, len(self.voter_.bank)))

    @property
    def bank_(self) -> MemoryBank:
        """The examples."""
        return self.voter_.bank

    def search_device(self) -> str:
        """The device that ``device`` means on this machine."""
        return search_device(self.device)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "voter_")

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        return {name: value for name, value in state.items() if name not in ("_benches", "_fit")}

    def _chances(self, X: Any) -> tuple[Floats, NDArray[Any]]:
        """Probabilities, and the classes they are for, of one moment."""
        features = self._encoded(X)
        with self._guard.read():
            return self.voter_.probabilities(features), self.classes_

    def _encoded(self, X: Any) -> NDArray[Any]:
        check_is_fitted(self)
        features: NDArray[Any] = self.embedder_.transform(checked_rows(self, X, reset=False))
        return features

    def _extend_classes(self, known: NDArray[Any], ids: Sequence[Id]) -> None:
        """Renumber the labels of ``ids``, which were taught before ``known`` was."""
        if len(known) == len(self.classes_):
            return
        place = codes_of(self.classes_, known)
        bank = self.voter_.bank
        self.voter_.relabel(ids, place[bank.labels(bank.rows(ids))])
        self.voter_ = self.voter_.extended(place, len(known))
        self._benches = [renumbered(bench, place) for bench in getattr(self, "_benches", ())]
        self.classes_ = known

    def _chosen(self) -> str:
        voter = self.voter_
        return (
            f"{len(voter.bank)} examples, {len(self.classes_)} classes, {len(voter.members)} member(s): "
            f"{voter.weighting.kind} weights, k={self.n_neighbors_}, "
            f"scale={voter.weighting.scale:.4g}, prior mass={voter.mass:.3g}, "
            f"{voter.calibrator.kind} calibration, {voter.bank.index} {voter.bank.metric} search"
        )
