"""The CNN that our image methods must match: the same training but for one option, answering by its head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from attnknn.estimator import CNNClassifier
from attnknn.study.history import told
from attnknn.study.job import Fitted, Job, Predictions, Stopwatch
from attnknn.study.ours import training_of
from attnknn.study.splits import Rows

if TYPE_CHECKING:
    from attnknn.train import ImageOptions


@dataclass(frozen=True, slots=True)
class CNN:
    """The method; ``views`` averages over the views of the augmentation."""

    views: bool = False

    def __call__(self, job: Job) -> Fitted:
        """Fit on the training rows of a cell; one training serves both."""
        model, earlier = job.once("cnn", lambda: _trained(job))
        watch = Stopwatch()
        if self.views:
            model = model.with_views()
        return Fitted(
            _told(model, job),
            earlier + watch.seconds,
            lambda rows: _predict(model, job, rows),
            history=None if self.views else told(model.history_),
        )


def _trained(job: Job) -> CNNClassifier:
    model = CNNClassifier(
        training=cast("ImageOptions | None", training_of(job.recipe)),
        calibration=job.recipe.calibration,
        validation_fraction=job.recipe.ours.validation_fraction,
        device=job.device,
        random_state=job.seed,
    )
    rows = job.parts.train
    return model.fit(job.task.take(rows), job.task.classes[job.parts.labels[rows]], classes=job.task.classes)


def _told(model: CNNClassifier, job: Job) -> dict[str, Any]:
    shared = job.recipe.ours.images or {}
    own = model.options_.state()
    differs = {
        name: {"attention": shared[name], "cnn": own[name]} for name in own if own[name] != shared.get(name)
    }
    wrong = job.recipe.ours.under_noise if job.recipe.noise.rate else {}
    changed = {name: own[name] for name, value in wrong.items() if own.get(name) == value}
    return {
        "differs": differs,
        **({"changed": changed} if changed else {}),
        "calibrator": model.calibrator_.state(),
        "views": model.views,
        "epochs": len(model.history_.epochs),
        "validation_nll": model.history_.best_nll,
    }


def _predict(model: CNNClassifier, job: Job, rows: Rows) -> Predictions:
    X, watch = job.task.take(rows), Stopwatch()
    bare = model.head_proba(X)
    calibrated = model.calibrator_.transform(bare)
    return Predictions(calibrated, bare, watch.seconds)
