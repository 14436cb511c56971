"""What the demo measures: the weightings beside scikit-learn, two answers explained, an edit, an abstention."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.neighbors import KNeighborsClassifier

from attnknn.bank import Id
from attnknn.data import duplicate_groups, load_named, split
from attnknn.estimator import AttnKNNClassifier
from attnknn.metrics import Estimate, evaluate
from attnknn.predict import Explanation

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

WEIGHTINGS = ("uniform", "distance", "softmax", "reliability")
PEER = "scikit-learn"
CLEAR = 0.6
"""Probability above which an answer is no toss-up."""
MAX_ERROR = 0.002
"""Share of wrong answers that the abstention example tolerates on the validation rows."""


@dataclass(frozen=True, slots=True, eq=False)
class Digits:
    """The digits in their parts; ``tune`` and ``validate`` share out the ``learn`` rows."""

    X: Floats  # (rows, 64), 0 to 16
    y: Ints
    learn: Ints
    test: Ints
    tune: Ints
    validate: Ints


@dataclass(frozen=True, slots=True, eq=False)
class Contender:
    """One method on the test rows."""

    name: str
    k: int
    chances: Floats  # (test rows, 10)
    metrics: dict[str, Estimate]
    milliseconds: float


@dataclass(frozen=True, slots=True)
class Gap:
    """Softmax minus scikit-learn in one metric, with a paired bootstrap interval."""

    metric: str
    mean: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        """What the interval allows to say."""
        if self.low <= 0 <= self.high:
            return "within the interval: this test shows no difference"
        better = (self.mean > 0) == (self.metric == "accuracy")
        return f"outside the interval: softmax is {'better' if better else 'worse'} here"


@dataclass(frozen=True, slots=True, eq=False)
class Explained:
    """A test row with the reasons for its answer."""

    row: int  # of the digits
    truth: int
    reasons: Explanation

    @property
    def confidence(self) -> float:
        """Probability of the answer."""
        return self.reasons.probabilities[self.reasons.prediction]


@dataclass(frozen=True, slots=True, eq=False)
class Edit:
    """One example changed, and the answer before and after."""

    before: Explained
    example: int
    label: int
    new_label: int
    relabelled: Explained
    relabel_ms: float
    removed: Explained
    remove_ms: float


@dataclass(frozen=True, slots=True, eq=False)
class Abstention:
    """What demanding confidence does."""

    threshold: float
    answered: int
    wrong_answered: int
    wrong_before: int
    rows: int
    example: Explained | None


@dataclass(frozen=True, slots=True, eq=False)
class DemoRun:
    """Everything that the demo shows."""

    seed: int
    digits: Digits
    contenders: list[Contender]
    peer_weights: str
    gaps: list[Gap]
    right: Explained | None
    wrong: Explained | None
    edit: Edit | None
    abstention: Abstention
    seconds: float

    def contender(self, name: str) -> Contender:
        """The method of that name."""
        return next(each for each in self.contenders if each.name == name)


def run(seed: int, progress: Callable[[str], None] = lambda text: None) -> DemoRun:
    """Measure it all; ``progress`` hears what is being done."""
    start = time.perf_counter()
    digits = parts(seed)
    contenders = []
    models = {}
    for name in WEIGHTINGS:
        progress(f"fitting {name} weights")
        models[name] = fitted(digits, digits.learn, name, seed)
        contenders.append(contend(name, models[name].n_neighbors_, models[name].predict_proba, digits, seed))
    progress("fitting scikit-learn's nearest neighbors")
    peer = best_peer(digits)
    contenders.append(contend(PEER, peer.n_neighbors, peer.predict_proba, digits, seed))
    progress("explaining, editing, abstaining")
    model = models["softmax"]
    softmax = next(each for each in contenders if each.name == "softmax")
    right, wrong = picked(softmax.chances, digits)
    return DemoRun(
        seed=seed,
        digits=digits,
        contenders=contenders,
        peer_weights=str(peer.weights),
        gaps=gaps(softmax.chances, contenders[-1].chances, digits.y[digits.test], seed),
        right=None if right is None else explained(model, digits, right),
        wrong=None if wrong is None else explained(model, digits, wrong),
        edit=edited(model, digits, softmax.chances),
        abstention=abstained(model, digits, softmax.chances, seed),
        seconds=time.perf_counter() - start,
    )


def parts(seed: int) -> Digits:
    """70 % to learn from, 30 % to test on; a fifth of the former chooses scikit-learn's k."""
    found = load_named("digits")
    X = np.asarray(found.X, np.float64)
    groups = duplicate_groups(X)
    learn, test = split(found.y, test=0.3, seed=seed, groups=groups)
    tune, validate = split(found.y[learn], test=0.2, seed=seed, groups=groups[learn])
    return Digits(X, found.y, learn, test, learn[tune], learn[validate])


def fitted(digits: Digits, rows: Ints, weights: str, seed: int) -> AttnKNNClassifier:
    """A model of some rows, on bare pixels as scikit-learn's; examples are named by their row."""
    model = AttnKNNClassifier(weights=weights, embedder="identity", device="cpu", random_state=seed)
    return model.fit(digits.X[rows], digits.y[rows], ids=rows.tolist())


def best_peer(digits: Digits) -> KNeighborsClassifier:
    """KNeighborsClassifier with the k and weights that do best on the validation rows."""
    best: tuple[tuple[float, float], Any] = (-1.0, 0.0), None
    truth = digits.y[digits.validate]
    for k in (1, 2, 3, 4, 5, 7, 9, 11, 15, 21, 31):
        for weights in ("uniform", "distance"):
            model = KNeighborsClassifier(k, weights=weights).fit(digits.X[digits.tune], digits.y[digits.tune])
            chances = model.predict_proba(digits.X[digits.validate])
            right = float((chances.argmax(axis=1) == truth).mean())
            merit = right, -float(_brier(chances, truth).mean())
            if merit > best[0]:
                best = merit, model
    return best[1].fit(digits.X[digits.learn], digits.y[digits.learn])


def contend(name: str, k: int, predict: Callable[[Floats], Floats], digits: Digits, seed: int) -> Contender:
    """Predict the test rows, score and time it (the median of five)."""
    X = digits.X[digits.test]
    times = []
    for _ in range(5):
        start = time.perf_counter()
        chances = predict(X)
        times.append(1000 * (time.perf_counter() - start))
    metrics = evaluate(chances, digits.y[digits.test], draws=1000, seed=seed)
    return Contender(name, int(k), chances, metrics, float(np.median(times)))


def gaps(ours: Floats, theirs: Floats, truth: Ints, seed: int, draws: int = 2000) -> list[Gap]:
    """Paired differences: both methods answer the same rows, so rows are drawn together."""
    hit = (ours.argmax(axis=1) == truth).astype(float) - (theirs.argmax(axis=1) == truth)
    brier = _brier(ours, truth) - _brier(theirs, truth)
    drawn = np.random.default_rng(seed).integers(len(truth), size=(draws, len(truth)))
    found = []
    for metric, each in (("accuracy", hit), ("Brier", brier)):
        low, high = np.percentile(each[drawn].mean(axis=1), [2.5, 97.5])
        found.append(Gap(metric, float(each.mean()), float(low), float(high)))
    return found


def picked(chances: Floats, digits: Digits) -> tuple[int | None, int | None]:
    """Test places of a right answer that was not easy, and of the surest wrong one."""
    right = chances.argmax(axis=1) == digits.y[digits.test]
    sure = chances.max(axis=1)
    doubted = np.flatnonzero(right & (sure > CLEAR))
    wrong = np.flatnonzero(~right)
    return (
        int(doubted[sure[doubted].argmin()]) if len(doubted) else None,
        int(wrong[sure[wrong].argmax()]) if len(wrong) else None,
    )


def explained(model: AttnKNNClassifier, digits: Digits, place: int) -> Explained:
    """The reasons for the answer at a place among the test rows."""
    row = int(digits.test[place])
    return Explained(row, int(digits.y[row]), model.explain(digits.X[row : row + 1])[0])


def edited(model: AttnKNNClassifier, digits: Digits, chances: Floats) -> Edit | None:
    """A close call in which one example decides: relabel it, then remove it instead. Works on copies."""
    margin = np.diff(np.sort(chances, axis=1)[:, -2:], axis=1)[:, 0]
    for place in np.argsort(margin, kind="stable")[:20].tolist():
        before = explained(model, digits, place)
        first = before.reasons.prediction
        second = sorted(before.reasons.probabilities, key=lambda label: -before.reasons.probabilities[label])[1]
        example = next((each for each in before.reasons.neighbors if each.label == first), None)
        if example is None:
            continue
        relabelled, relabel_ms = _after(model, digits, place, example.id, second)
        if relabelled.reasons.prediction == first:
            continue
        removed, remove_ms = _after(model, digits, place, example.id, None)
        return Edit(before, int(example.id), first, second, relabelled, relabel_ms, removed, remove_ms)
    return None


def abstained(model: AttnKNNClassifier, digits: Digits, chances: Floats, seed: int) -> Abstention:
    """Choose a threshold where the validation rows are not in the bank, then use it on the test rows."""
    judge = fitted(digits, digits.tune, "softmax", seed)
    threshold = judge.abstention_threshold(
        digits.X[digits.validate], digits.y[digits.validate], max_error=MAX_ERROR
    )
    sure = chances.max(axis=1)
    wrong = chances.argmax(axis=1) != digits.y[digits.test]
    answered = sure >= threshold
    unsure = np.flatnonzero(~answered)
    example = explained(model, digits, int(unsure[sure[unsure].argmin()])) if len(unsure) else None
    return Abstention(
        threshold, int(answered.sum()), int((wrong & answered).sum()), int(wrong.sum()), len(sure), example
    )


def _after(
    model: AttnKNNClassifier, digits: Digits, place: int, example: Id, label: int | None
) -> tuple[Explained, float]:
    """The answer at a place, and the time it took, once an example is relabelled or, without a label, removed."""
    copied = copy.deepcopy(model)
    row = int(digits.test[place])
    start = time.perf_counter()
    if label is None:
        copied.remove([example])
    else:
        copied.relabel([example], [label])
    copied.predict(digits.X[row : row + 1])
    milliseconds = 1000 * (time.perf_counter() - start)
    return explained(copied, digits, place), milliseconds


def _brier(chances: Floats, truth: Ints) -> Floats:
    return np.asarray(((chances - np.eye(chances.shape[1])[truth]) ** 2).sum(axis=1))
