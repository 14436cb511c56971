"""Displays in the manner of scikit-learn: numbers of an estimator or of predictions, and how they are drawn.

Their drawings need matplotlib, which the extra ``plots`` brings.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnknn.errors import InvalidInput
from attnknn.estimator import AttnKNNClassifier
from attnknn.estimator.voter import Voter
from attnknn.metrics import ReliabilityCurve, accuracy, ece, nll, reliability_curve
from attnknn.predict import CELLS, Poll, answer
from attnknn.predict.options import checked_ks
from attnknn.predict.several import nearest
from attnknn.study.figures import Reliability, tick_text
from attnknn.study.neighbors_display import NeighborsDisplay, of_ours
from attnknn.study.plots import SHOWN
from attnknn.study.rendered import (
    HEIGHTS,
    MARKERS,
    draw_reliability,
    dress,
    need_matplotlib,
    plain,
    subplots,
    title,
)
from attnknn.study.svg import COLORS, DASHES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

__all__ = ["KSweepDisplay", "NeighborsDisplay", "ReliabilityDisplay"]

KS: Final = (1, 3, 5, 10, 20, 50)
"""Numbers of neighbors that a sweep goes through unless told otherwise."""

_SCORES: Final = {"accuracy": accuracy, "nll": nll, "ece": ece}


class ReliabilityDisplay:
    """How often answers are right, by how sure they were, with the rows of each bin and 95 % intervals.

    Args:
        curve: As :func:`attnknn.metrics.reliability_curve` makes it.
        name: What the title calls the classifier.

    Attributes:
        edges: Where the bins of confidence end, (bins + 1,).
        count: Rows in each bin, (bins,).
        confidence: Their mean confidence, NaN where there are none.
        accuracy: Their share of right answers, likewise.
        low: Lower ends of Wilson's intervals on accuracy, likewise.
        high: Upper ends.
        ece: Expected calibration error over these bins.
        ax_: Axes with the accuracy, once drawn.
        counts_ax_: Axes below them with the counts.
        figure_: The figure of both.

    Example:
        >>> display = ReliabilityDisplay(reliability_curve([[0.25, 0.75]] * 4, [1, 1, 1, 0], bins=4))
        >>> display.count.tolist(), float(display.accuracy[2]), display.ece
        ([0, 0, 4, 0], 0.75, 0.0)
    """

    ax_: Axes
    counts_ax_: Axes
    figure_: Figure | SubFigure

    def __init__(self, curve: ReliabilityCurve, *, name: str | None = None) -> None:
        self.name = name
        self.edges, self.count = curve.edges, curve.count
        self.confidence, self.accuracy = curve.confidence, curve.accuracy
        self._drawn = Reliability.of(curve, "reliability")
        self.low, self.high = np.array(self._drawn.low), np.array(self._drawn.high)
        gaps = np.nan_to_num(np.abs(self.confidence - self.accuracy))
        self.ece = float(gaps @ self.count / self.count.sum())

    @classmethod
    def from_estimator(
        cls, estimator: Any, X: Any, y: Any, *, bins: int = 15, ax: Axes | None = None, name: str | None = None
    ) -> Self:
        """Draw what a classifier says of some rows.

        Args:
            estimator: Any fitted classifier with ``predict_proba`` and ``classes_``.
            X: Rows that it was not fitted on.
            y: Their labels; one that it does not know counts as answered wrongly.
            bins: Number of bins of equal width.
            ax: A subplot whose place both parts share; None makes a figure.
            name: Of the classifier; None is its class.
        """
        need_matplotlib()
        if not hasattr(estimator, "predict_proba") or not hasattr(estimator, "classes_"):
            raise InvalidInput(f"estimator must be fitted and have predict_proba and classes_, got {estimator!r}")
        said = np.asarray(estimator.predict_proba(X), np.float64)
        said = said / said.sum(axis=1, keepdims=True)  # in float32 their sums miss 1
        called = type(estimator).__name__ if name is None else name
        return cls.from_predictions(y, said, classes=estimator.classes_, bins=bins, ax=ax, name=called)

    @classmethod
    def from_predictions(
        cls,
        y_true: Any,
        y_prob: ArrayLike,
        *,
        classes: Any = None,
        bins: int = 15,
        ax: Axes | None = None,
        name: str | None = None,
    ) -> Self:
        """Draw predictions.

        Args:
            y_true: The true labels.
            y_prob: Probabilities (n, classes), or (n,) of the second of two classes.
            classes: The label of each column; None takes the labels of ``y_true`` in their order, or the numbers
                of the columns.
            bins: Number of bins of equal width.
            ax: A subplot whose place both parts share; None makes a figure.
            name: What made the predictions.
        """
        need_matplotlib()
        said = np.asarray(y_prob)
        said = np.column_stack([1 - said, said]) if said.ndim == 1 else said
        curve = reliability_curve(said, _codes(y_true, classes, said.shape[-1]), bins)
        return cls(curve, name=name).plot(ax)

    def plot(self, ax: Axes | None = None, *, name: str | None = None) -> Self:
        """Draw the diagram.

        Args:
            ax: A subplot whose place both parts share; None makes a figure.
            name: Of the classifier; None is the one already known.
        """
        if ax is None:
            (ax,) = subplots(1, (5.2, 6.6))
        grid = _place(ax).subgridspec(2, 1, height_ratios=HEIGHTS)
        ax.set_subplotspec(grid[0])
        lower = ax.figure.add_subplot(grid[1], sharex=ax)
        draw_reliability(self._drawn, ax, lower)
        ax.tick_params(labelbottom=False)
        ax.legend(loc="best", edgecolor="none", fontsize=9)
        called = self.name if name is None else name
        title(ax, f"ECE {self.ece:.4f}" if called is None else f"{called}: ECE {self.ece:.4f}")
        self.ax_, self.counts_ax_, self.figure_ = ax, lower, ax.figure
        return self


class KSweepDisplay:
    """Accuracy, NLL and ECE against the number of neighbors, each in a panel of its own.

    Args:
        ks: Numbers of neighbors, ascending.
        values: By metric, a value for each k.
        name: What the legend calls the line.

    Attributes:
        ks: Numbers of neighbors.
        values: By metric, a value for each of them.
        ax_: The axes of each metric, once drawn; given to ``plot`` of another sweep, they take its lines too.
        figure_: Their figure.

    Example:
        >>> KSweepDisplay((1, 5), {"accuracy": [0.5, 0.75]}).values
        {'accuracy': (0.5, 0.75)}
    """

    ax_: NDArray[np.object_]
    figure_: Figure | SubFigure

    def __init__(
        self, ks: Sequence[int], values: Mapping[str, Sequence[float]], *, name: str | None = None
    ) -> None:
        self.ks, self.name = checked_ks("ks", ks), name
        self.values = {metric: tuple(map(float, each)) for metric, each in values.items()}
        wrong = {metric: len(each) for metric, each in self.values.items() if len(each) != len(self.ks)}
        if wrong or not self.values:
            raise InvalidInput(f"values must hold metrics with {len(self.ks)} numbers each, got {wrong}")

    @classmethod
    def from_estimator(
        cls,
        estimator: AttnKNNClassifier,
        X: Any,
        y: Any,
        *,
        ks: Sequence[int] = KS,
        ax: Any = None,
        name: str | None = None,
    ) -> Self:
        """Draw what a fitted classifier would be with other numbers of neighbors.

        Vectors and neighbors are found once for all k; weights, scale and calibration are fitted for each, and the
        vote is the plain one.

        Args:
            estimator: As its ``fit`` left it: one that was loaded has nothing left to fit on.
            X: Rows that it was not fitted on.
            y: Their labels.
            ks: Numbers of neighbors, ascending.
            ax: Axes for each metric, or one subplot whose place they share; None makes a figure.
            name: What the legend calls the line; None is the kind of weights.
        """
        need_matplotlib()
        chosen = checked_ks("ks", ks)
        classes = of_ours(estimator).classes_
        labels = _codes(y, classes, len(classes))
        values: dict[str, list[float]] = {metric: [] for metric in _SCORES}
        for said in _swept(estimator, X, chosen):
            for metric, score in _SCORES.items():
                values[metric].append(score(said, labels))
        return cls(chosen, values, name=estimator.weights if name is None else name).plot(ax)

    def plot(self, ax: Any = None, *, name: str | None = None) -> Self:
        """Draw a line in the panel of each metric.

        Args:
            ax: Axes for each metric, or one subplot whose place they share; None makes a figure.
            name: What the legend calls the line; None is the one already known.
        """
        called = self.name if name is None else name
        self.ax_ = _panels(ax, len(self.values))
        self.figure_ = self.ax_[0].figure
        for axes, (metric, values) in zip(self.ax_, self.values.items(), strict=True):
            self._line(axes, values, called)
            title(axes, SHOWN.get(metric, metric))
        if called is not None:
            self.ax_[-1].legend(frameon=False, fontsize=9)
        return self

    def _line(self, axes: Axes, values: Sequence[float], called: str | None) -> None:
        at = len(axes.lines) % len(COLORS)
        look: dict[str, Any] = {"color": COLORS[at], "linestyle": (0, DASHES[at]) if DASHES[at] else "-"}
        known = [value if math.isfinite(value) else math.nan for value in values]  # k = 1 may be wrong and sure
        axes.plot(self.ks, known, marker=MARKERS[at], markersize=5, label=called and plain(called), **look)
        dress(axes)
        axes.set_xscale("log")
        axes.set_xticks(self.ks, [tick_text(k) for k in self.ks])
        axes.set_xticks([], minor=True)
        axes.set_xlabel("neighbors")


def _swept(estimator: AttnKNNClassifier, X: Any, ks: Sequence[int]) -> Iterator[NDArray[np.float64]]:
    """Probabilities with each k, from one embedding of the rows and one search for the largest."""
    features = estimator._encoded(X)
    seen = None
    for k in ks:
        voter = estimator.with_weights(estimator.weights, estimator.attention, None, k).voter_
        if seen is None:  # in a copy, as the rows of a bank that was removed from stand elsewhere
            vectors = [member.vectors(features) for member in voter.members]
            seen = [(own, m.bank.search(own, ks[-1])) for own, m in zip(vectors, voter.members, strict=True)]
        yield _finished(voter, seen)


def _finished(voter: Voter, seen: Sequence[tuple[NDArray[Any], Any]]) -> NDArray[np.float64]:
    weight = voter.class_weight if (voter.class_weight != 1).any() else None
    step = max(1, CELLS // max(1, voter.k))
    parts = []
    for start in range(0, len(seen[0][0]), step):
        part = slice(start, start + step)
        said = [
            answer(nearest(found.take(part), one.k), one.bank, vectors[part], one.weigher, voter.classes, weight)
            for (vectors, found), one in zip(seen, voter.members, strict=True)
        ]
        parts.append(voter.finished(Poll(said, None), voter.prior))
    return np.concatenate(parts) if parts else np.empty((0, voter.classes))


def _codes(labels: Any, classes: Any, columns: int) -> NDArray[np.int64]:
    """The column of each label, -1 where there is none."""
    given = np.asarray(labels)
    if given.ndim != 1:
        raise InvalidInput(f"labels must have shape (n,), got {given.shape}")
    known = np.unique(given).tolist() if classes is None else np.asarray(classes).tolist()
    if classes is None and len(known) != columns and set(known) <= set(range(columns)):
        known = list(range(columns))  # a class without rows
    if len(known) != columns:
        raise InvalidInput(f"{columns} columns of probabilities need as many classes, got {known}")
    place = {label: at for at, label in enumerate(known)}
    return np.array([place.get(label, -1) for label in given.tolist()], np.int64)


def _panels(given: Any, count: int) -> NDArray[np.object_]:
    """So many axes: those given, new ones in the place of one that is given, or in a new figure."""
    if given is None:
        return subplots(count, (1.0 + 3.2 * count, 3.4))
    axes = np.atleast_1d(np.asarray(given, object)).ravel()
    if len(axes) == 1 < count:
        grid = _place(axes[0]).subgridspec(1, count)
        sheet = axes[0].figure
        axes[0].remove()
        axes = np.array([sheet.add_subplot(grid[at]) for at in range(count)], object)
    if len(axes) != count:
        raise InvalidInput(f"ax must be one subplot or axes for each of {count} metrics, got {len(axes)}")
    return axes


def _place(axes: Axes) -> Any:
    found = axes.get_subplotspec()
    if found is None:
        raise InvalidInput(f"ax must be a subplot, as plt.subplots() makes them, got {axes!r}")
    return found
