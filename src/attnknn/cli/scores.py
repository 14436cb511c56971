"""How good a model is on labelled rows, as the commands report it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attnknn.cli import model as models
from attnknn.cli import screen

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from attnknn.cli.rows import Rows
    from attnknn.estimator import AttnKNNClassifier
    from attnknn.metrics import Estimate

MOST_CLASSES = 12  # that a confusion table shows

_WORDS = {
    "accuracy": "accuracy",
    "f1_macro": "macro F1",
    "nll": "NLL",
    "brier": "Brier",
    "auc": "AUC",
    "aurc": "AURC",
    "ece": "ECE",
    "ece_floor": "  its floor",
    "ece_equal_mass": "ECE, equal mass",
    "ece_smooth": "ECE, smooth",
    "ece_classwise": "ECE, classwise",
}


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """Metrics of one model on some rows."""

    rows: int
    metrics: Mapping[str, Estimate]
    unknown: Mapping[str, int]  # labels that the model does not know, with their rows
    in_bank: int | None  # rows that equal an example; None where the metric cannot tell
    classes: list[Any]
    confusion: NDArray[np.int64]  # (classes + 1, classes): truth, the last unknown, by prediction

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "rows": self.rows,
            "metrics": self.metrics,
            "unknown_labels": self.unknown,
            "rows_in_bank": self.in_bank,
            "classes": self.classes,
            "confusion": self.confusion[:-1],
            "confusion_of_unknown": self.confusion[-1],
        }


def score(model: AttnKNNClassifier, rows: Rows, *, draws: int, seed: int = 0) -> tuple[Scores, list[str]]:
    """Metrics of a model on labelled rows, and the names of the columns it ignores."""
    import numpy as np

    from attnknn.metrics import evaluate

    X, ignored = models.features(model, rows)
    labels = np.asarray(rows.labels)
    codes = models.codes(labels, model)
    chances = model.predict_proba(X)
    count = len(model.classes_)
    confusion = np.zeros((count + 1, count), np.int64)
    np.add.at(confusion, (codes, chances.argmax(axis=1)), 1)  # -1 is the last
    unknown = Counter(str(label) for label in labels[codes < 0].tolist())
    metrics = evaluate(chances, codes, draws=draws, seed=seed)
    return Scores(len(rows), metrics, unknown, _in_bank(model, X), model.classes_.tolist(), confusion), ignored


def show(scores: Scores) -> None:
    """Tables for people, and notes on what they should know."""
    ordered = [name for name in _WORDS if name in scores.metrics]
    body = [(_WORDS[name], scores.metrics[name]) for name in ordered]
    screen.line(f"{scores.rows} rows, 95 % intervals over rows")
    screen.table(
        ["metric", "value", "interval"],
        [(word, screen.number(each.value), screen.interval(each.low, each.high)) for word, each in body],
    )
    if len(scores.classes) <= MOST_CLASSES:
        _show_confusion(scores)
    remark(scores)


def remark(scores: Scores) -> None:
    """What a reader of the metrics should know, on stderr."""
    if scores.unknown:
        rows = sum(scores.unknown.values())
        screen.note(
            f"{rows} rows carry labels that the model does not know ({models.some(scores.unknown)}): "
            "they count as wrong, and make the NLL infinite"
        )
    if scores.in_bank:
        screen.note(
            f"{scores.in_bank} of {scores.rows} rows equal an example in the bank, which flatters the model"
        )


def _show_confusion(scores: Scores) -> None:
    screen.line("rows of each class (down) by prediction (across)")
    names = [str(label) for label in scores.classes]
    body = [[name, *counts] for name, counts in zip([*names, "unknown"], scores.confusion.tolist(), strict=True)]
    screen.table(["", *names], body if scores.unknown else body[:-1])


def _in_bank(model: AttnKNNClassifier, X: Any) -> int | None:
    bank = model.bank_
    if model.fitted_on_images_:  # by their pixels: vectors of one image differ in the last digit
        known = {each.tobytes() for each in bank.features(bank.live)}
        return sum(image.tobytes() in known for image in X)
    if bank.metric == "ip" or not len(bank):
        return None
    distances, _ = model.kneighbors(X, 1)
    return int((distances[:, 0] <= 1e-12).sum())
