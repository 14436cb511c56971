"""Why one query is answered as it is, as a display in the manner of scikit-learn: its neighbors as bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np

from attnknn.data import is_frame
from attnknn.errors import InvalidInput
from attnknn.estimator import AttnKNNClassifier
from attnknn.predict import Explanation, Reason
from attnknn.study.rendered import INK, dress, need_matplotlib, plain, subplots, title
from attnknn.study.svg import COLORS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

_OTHERS: Final = "#9aa5b1"  # classes beyond those that have a color
_PICTURE: Final = 24  # points that the longer side of a neighbor's picture takes
_LEAST: Final = 0.0005  # probability that three digits show
_LONGEST: Final = 28  # letters of a name beside a bar


class NeighborsDisplay:
    """The neighbors of one query as bars: as long as their weights, colored by class, the heaviest first.

    Args:
        explanation: What ``explain`` says of the query.
        name: What the title calls it.

    Attributes:
        explanation: Everything that is known of the answer.
        ids: Of the neighbors, the heaviest first.
        labels: Their labels.
        weights: Their weights, (neighbors,).
        probabilities: By class, the most probable first.
        ax_: Axes with the bars, once drawn.
        figure_: Their figure.
    """

    ax_: Axes
    figure_: Figure | SubFigure

    def __init__(self, explanation: Explanation, *, name: str | None = None) -> None:
        self.explanation, self.name = explanation, name
        self.ids = [reason.id for reason in explanation.neighbors]
        self.labels = [reason.label for reason in explanation.neighbors]
        self.weights = np.array([reason.weight for reason in explanation.neighbors])
        self.probabilities = dict(sorted(explanation.probabilities.items(), key=lambda each: -each[1]))

    @classmethod
    def from_estimator(
        cls,
        estimator: AttnKNNClassifier,
        x: Any,
        *,
        most: int = 12,
        ax: Axes | None = None,
        name: str | None = None,
    ) -> Self:
        """Draw why a classifier answers as it does.

        Args:
            estimator: A fitted one.
            x: One row: a vector, an image, or a frame of one row.
            most: Neighbors to show.
            ax: Where to draw; None makes a figure.
            name: What the title calls the row.
        """
        need_matplotlib()
        images = of_ours(estimator).fitted_on_images_
        return cls(estimator.explain(_one_row(x, images))[0], name=name).plot(ax, most=most)

    def plot(self, ax: Axes | None = None, *, most: int = 12, name: str | None = None) -> Self:
        """Draw the heaviest neighbors, with their pictures where they have some.

        Args:
            ax: Where to draw; None makes a figure.
            most: Neighbors to show.
            name: What the title calls the row; None is the name already known.
        """
        shown = self.explanation.neighbors[:most]
        if ax is None:
            (ax,) = subplots(1, (6.4, 2.2 + 0.4 * len(shown)))
        dress(ax)
        ax.grid(visible=False, axis="y")
        colors = dict(zip(self.probabilities, COLORS, strict=False))
        for at, reason in enumerate(shown):
            ax.barh(at, reason.weight, height=0.6, color=colors.get(reason.label, _OTHERS))
            ax.annotate(f" {reason.weight:.3f}", (reason.weight, at), va="center", color=INK, fontsize=9)
        ax.set_xlim(0, 1.15 * max(self.weights, default=1.0) or 1.0)  # numbers stand behind the bars
        self._name(ax, shown, self.name if name is None else name)
        self._pictures(ax, shown)
        self._legend(ax, shown, colors)
        self.ax_, self.figure_ = ax, ax.figure
        return self

    def _name(self, axes: Axes, shown: Sequence[Reason], called: str | None) -> None:
        pictured = self.explanation.picture is not None
        names = [_short(f"{reason.label}  ({reason.id})") for reason in shown]
        axes.set_yticks(range(-pictured, len(shown)), [*["query"] * pictured, *names])
        axes.set_ylim(len(shown) - 0.4, -0.6 - pictured)
        rest = self.weights[len(shown) :]
        more = f"; {len(rest)} more weigh {rest.sum():.3f} together" if len(rest) else ""
        axes.set_xlabel(f"weight{more}")
        said = self.explanation.prediction
        answered = f"{said} with probability {self.probabilities[said]:.3f}"
        title(axes, answered if called is None else f"{called}: {answered}")

    def _pictures(self, axes: Axes, shown: Sequence[Reason]) -> None:
        """The query above the bars and each neighbor before its own; between them and the frame are the names."""
        from matplotlib.offsetbox import AnnotationBbox, OffsetImage

        if self.explanation.picture is None:
            return
        axes.tick_params(axis="y", pad=_PICTURE + 8)
        for at, picture in enumerate([self.explanation.picture, *(reason.picture for reason in shown)], -1):
            pixels = np.asarray(picture)
            image = OffsetImage(
                np.repeat(pixels, 3, axis=2) if pixels.shape[2] == 1 else pixels,
                zoom=_PICTURE / max(pixels.shape[:2]),
                interpolation="nearest",
            )
            where: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "boxcoords": "offset points"}
            box = AnnotationBbox(image, (0, at), (-4 - _PICTURE / 2, 0), frameon=False, pad=0, **where)
            axes.add_artist(box)

    def _legend(self, axes: Axes, shown: Sequence[Reason], colors: Mapping[Any, str]) -> None:
        """The probability of each class that has one worth telling or a neighbor, and of the others together."""
        from matplotlib.patches import Patch

        near = {reason.label for reason in shown}
        told = [label for label in colors if label in near or self.probabilities[label] >= _LEAST]
        rest = [chance for label, chance in self.probabilities.items() if label not in told]
        words = [f"{_short(str(label))}: probability {self.probabilities[label]:.3f}" for label in told]
        words += [f"{len(rest)} others: together {sum(rest):.3f}"] if rest else []
        keys = [Patch(color=colors[label]) for label in told] + [Patch(color=_OTHERS)] * bool(rest)
        axes.legend(keys, words, loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=9)


def of_ours(estimator: Any) -> AttnKNNClassifier:
    """Refuse what is no fitted classifier of ours."""
    if not isinstance(estimator, AttnKNNClassifier) or not hasattr(estimator, "voter_"):
        raise InvalidInput(f"estimator must be a fitted AttnKNNClassifier, got {estimator!r}")
    return estimator


def _one_row(x: Any, images: bool) -> Any:
    """A row as rows of which there is one."""
    rows = x
    if not is_frame(x):
        rows = np.asarray(x)
        single = rows.ndim == 1 or (images and (rows.ndim == 2 or (rows.ndim == 3 and len(rows) > 1)))
        rows = rows[None] if single else rows
    if len(rows) != 1:
        raise InvalidInput(f"one row has neighbors to show, got {len(rows)} rows")
    return rows


def _short(words: str) -> str:
    """Begin and end of what is too long: a label stands first, and paths differ at their ends."""
    return plain(words if len(words) <= _LONGEST else f"{words[: _LONGEST // 3]}...{words[-_LONGEST // 2 :]}")
