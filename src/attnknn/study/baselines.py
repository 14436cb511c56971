"""The methods that ours are compared with: scikit-learn's kNN, logistic regression and MLP, and boosted trees.

Settings, rounds and calibration are chosen on held-out rows; then the method is fitted on all training rows
with them, as our validation rows join the bank.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from sklearn.neighbors import KNeighborsClassifier
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # scikit-learn brings it

from attnknn.calibrate import Calibrator, fit_prior_mass
from attnknn.errors import MissingExtra
from attnknn.estimator.calibration import calibrated
from attnknn.metrics import nll
from attnknn.study.job import Fitted, Floats, Job, Predictions, Stopwatch
from attnknn.study.learners import HGB, MLP, Encoded, Learner, LightGBM, Logistic, Numbers, aligned, vectors_of
from attnknn.study.recipe import Rounds
from attnknn.study.splits import Rows

ONE_THREAD_BELOW = 10_000
"""Training rows below which a second thread costs more than it brings: ten times the time on a busy machine."""

Settings = Mapping[str, Any]
Make = Callable[[Job, Rows, Settings], Learner]


@dataclass(frozen=True, slots=True, eq=False)
class Trial:
    """One choice of settings on the held-out rows; ``nll`` is what remains after calibration."""

    settings: dict[str, Any]
    calibrator: Calibrator
    nll: float


def mlp(job: Job) -> Fitted:
    """scikit-learn's MLPClassifier."""
    return grown(job, MLP, job.recipe.mlp.settings(), job.recipe.mlp.rounds)


def hgb(job: Job) -> Fitted:
    """scikit-learn's HistGradientBoostingClassifier."""
    return grown(job, HGB, job.recipe.boosting.settings(), job.recipe.boosting.rounds)


def lightgbm(job: Job) -> Fitted:
    """LightGBM.

    Raises:
        MissingExtra: It is not installed.
    """
    from importlib.util import find_spec

    if find_spec("lightgbm") is None:
        raise MissingExtra("LightGBM is not installed: pip install 'attnknn[study]'")
    return grown(job, LightGBM, job.recipe.boosting.settings(), job.recipe.boosting.rounds)


def sklearn_knn(job: Job) -> Fitted:
    """scikit-learn's KNeighborsClassifier at its best k and weights; prior mass keeps its votes off 0."""
    watch = Stopwatch()
    labels, prior = _held_labels(job), np.vstack([_prior(job, fit, len(held)) for fit, held in job.parts.checks])
    best: Trial | None = None
    for (k, weights), votes in _knn_votes(job).items():
        mass = fit_prior_mass(votes, labels, prior)
        settings = {"k": k, "weights": weights, "prior_mass": mass}
        trial = _trial(job, settings, with_prior(votes, prior, mass), labels)
        best = trial if best is None or trial.nll < best.nll else best
    if best is None:
        raise ValueError(f"no k of {job.recipe.knn.k} fits {len(job.parts.train)} training rows")
    vectors = vectors_of(job.task, job.parts.train)
    model = KNeighborsClassifier(best.settings["k"], weights=best.settings["weights"])
    model.fit(vectors(job.parts.train), job.parts.labels[job.parts.train])
    return Fitted(_told(best), watch.seconds, lambda rows: _predict_knn(job, model, vectors, best, rows))


def logistic(job: Job) -> Fitted:
    """scikit-learn's LogisticRegression with the C of least NLL on held-out rows."""
    watch, labels = Stopwatch(), _held_labels(job)
    with _threads(job):
        said = _logistic_chances(job)
        best = min((_trial(job, {"C": C}, said[C], labels) for C in said), key=lambda trial: trial.nll)
        learner = Logistic(job, job.parts.train).at(best.settings["C"])
    return Fitted(_told(best), watch.seconds, partial(_predict, learner, best))


def with_prior(votes: Floats, prior: Floats, mass: float) -> Floats:
    """Votes with the prior counted ``mass`` times."""
    return np.asarray((votes + mass * prior) / (1 + mass))


def calibrated_on(job: Job, probabilities: Floats, labels: Rows) -> Calibrator:
    """The recipe's calibration, fitted as our classifier fits it: with one surprise more than was seen."""
    return calibrated(job.recipe.calibration, probabilities, labels, np.ones(len(labels)))


def knn_votes(
    model: KNeighborsClassifier, labels: Rows, queries: Numbers, ks: tuple[int, ...], classes: int
) -> dict[tuple[int, str], Floats]:
    """What ``predict_proba`` would say for each k and both kinds of weights, from one search.

    ``labels`` are those that the model was fitted on.
    """
    distances, near = model.kneighbors(queries, max(ks))
    found = {}
    for k in ks:
        each = labels[near[:, :k]]
        for kind in ("uniform", "distance"):
            weights = _knn_weights(distances[:, :k], kind)
            votes = np.stack([(weights * (each == c)).sum(axis=1) for c in range(classes)], axis=1)
            found[k, kind] = votes / votes.sum(axis=1, keepdims=True)
    return found


def _knn_weights(distances: Floats, kind: str) -> Floats:
    if kind == "uniform":
        return np.ones_like(distances)
    same = distances == 0  # as scikit-learn: where a neighbor is the query, only such neighbors count
    inverse = 1 / np.where(same, 1.0, distances)
    return np.where(same.any(axis=1, keepdims=True), same.astype(np.float64), inverse)


def _knn_votes(job: Job) -> dict[tuple[int, str], Floats]:
    """Votes on all held-out rows for every setting of the grid."""
    grid, classes = job.recipe.knn, len(job.task.classes)
    each: list[dict[tuple[int, str], Floats]] = []
    ks = tuple(k for k in grid.k if k <= min(len(fit) for fit, _ in job.parts.checks))
    if not ks:
        return {}
    for fit, held in job.parts.checks:
        vectors, labels = vectors_of(job.task, fit), job.parts.labels[fit]
        model = KNeighborsClassifier().fit(vectors(fit), labels)
        each.append(knn_votes(model, labels, vectors(held), ks, classes))
    return {key: np.vstack([votes[key] for votes in each]) for key in each[0] if key[1] in grid.weights}


def _logistic_chances(job: Job) -> dict[float, Floats]:
    """What is said of all held-out rows for every C; one learner at a time, as each holds its rows as numbers."""
    each: list[dict[float, Floats]] = []
    for fit, held in job.parts.checks:
        learner = Logistic(job, fit)
        each.append({C: learner.at(C).predict(held) for C in job.recipe.logistic.C})
    return {C: np.vstack([said[C] for said in each]) for C in job.recipe.logistic.C}


def _predict_knn(
    job: Job, model: KNeighborsClassifier, vectors: Encoded[Any], best: Trial, rows: Rows
) -> Predictions:
    watch = Stopwatch()
    votes = aligned(model.classes_, model.predict_proba(vectors(rows)), len(job.task.classes))
    prior = _prior(job, job.parts.train, len(rows))
    calibrated = best.calibrator.transform(with_prior(votes, prior, best.settings["prior_mass"]))
    seconds = watch.seconds
    return Predictions(calibrated, with_prior(votes, prior, 1 / best.settings["k"]), seconds)


def grown(job: Job, make: Make, grid: list[dict[str, Any]], rounds: Rounds) -> Fitted:
    """A learner that grows by rounds, with the settings and rounds of least NLL on held-out rows."""
    watch = Stopwatch()
    with _threads(job):
        best = min((_tried(job, make, settings, rounds) for settings in grid), key=lambda trial: trial.nll)
        learner = make(job, job.parts.train, best.settings)
        learner.grow(best.settings["rounds"])
    return Fitted(_told(best), watch.seconds, partial(_predict, learner, best))


def _predict(learner: Learner | Logistic, best: Trial, rows: Rows) -> Predictions:
    watch = Stopwatch()
    bare = learner.predict(rows)
    calibrated = best.calibrator.transform(bare)
    return Predictions(calibrated, bare, watch.seconds)


def _tried(job: Job, make: Make, settings: dict[str, Any], rounds: Rounds) -> Trial:
    """Grow a learner for each check side by side, until their common NLL stops falling."""
    learners = [make(job, fit, settings) for fit, _ in job.parts.checks]
    labels = _held_labels(job)
    least, best_rounds, best = np.inf, 0, np.empty(0)
    for grown in range(rounds.step, rounds.most + 1, rounds.step):
        for learner in learners:
            learner.grow(rounds.step)
        held = zip(learners, job.parts.checks, strict=True)
        now = np.vstack([learner.predict(rows) for learner, (_, rows) in held])
        loss = nll(now, labels)
        if loss < least or not best_rounds:
            least, best_rounds, best = loss, grown, now
        elif grown - best_rounds >= rounds.patience * rounds.step:
            break
    return _trial(job, {**settings, "rounds": best_rounds}, best, labels)


def _threads(job: Job) -> AbstractContextManager[Any]:
    found: AbstractContextManager[Any] = threadpool_limits(1 if len(job.parts.train) < ONE_THREAD_BELOW else None)
    return found


def _trial(job: Job, settings: dict[str, Any], probabilities: Floats, labels: Rows) -> Trial:
    calibrator = calibrated_on(job, probabilities, labels)
    return Trial(settings, calibrator, nll(calibrator.transform(probabilities), labels))


def _told(best: Trial) -> dict[str, Any]:
    return {**best.settings, "calibrator": best.calibrator.state(), "validation_nll": best.nll}


def _held_labels(job: Job) -> Rows:
    return np.concatenate([job.parts.labels[held] for _, held in job.parts.checks])


def _prior(job: Job, fit: Rows, rows: int) -> Floats:
    counts = np.bincount(job.parts.labels[fit], minlength=len(job.task.classes))
    return np.tile(counts / counts.sum(), (rows, 1))
