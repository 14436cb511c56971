"""From members with vectors to a voter: k, weights, prior mass and calibration, by what the judges say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from attnknn.attend import AttentionOptions, LearnedWeighting, Weighting, WeightingKind
from attnknn.attend.self_attention import MOST_NEIGHBORS as SELF_ATTENTION_MOST
from attnknn.calibrate import Calibrator, Identity, Isotonic, fit_calibrator, fit_prior_mass
from attnknn.estimator.benches import Bench
from attnknn.estimator.options import TRAIN_FROM, Options, training_device
from attnknn.estimator.voter import AS_VOTED, Member, Voter
from attnknn.ops import vote
from attnknn.predict import Poll, answer
from attnknn.train import Hearing, History, Judges, Tuning, choose_judges, train_attention, tune
from attnknn.train.attention import Lesson, Seen
from attnknn.train.tune import MOST_NEIGHBORS

Floats = NDArray[np.float64]

DENSITY_FROM: Final = 200
"""Judges from which ``calibration="auto"`` fits a temperature that follows density."""

_ROUNDING: Final = 1e-6
_MOST_CELLS: Final = 4_000_000  # judges x neighbors that calibration looks at


@dataclass(frozen=True, slots=True)
class Wish:
    """What is to be fitted."""

    weights: str  # a kind of weighting, or "attention"
    k: int | None  # None: to be chosen
    calibration: str | None
    class_weight: Floats
    fraction: float  # of the rows that judge their own bank
    attention: AttentionOptions | None  # None: the learned parts stay off
    entropy: float = 0.0
    checkpoint: Path | None = None
    device: str = "cpu"
    progress: bool = False

    @property
    def base(self) -> Weighting:
        """The weighting that is fitted first."""
        kind: WeightingKind = "softmax" if self.weights == "attention" else self.weights  # type: ignore[assignment]
        return Weighting(kind)


@dataclass(frozen=True, slots=True)
class _Fitted:
    """A member with its weights, and those that its hearings are judged with."""

    member: Member
    tuning: Tuning
    hearings: tuple[Hearing, ...]
    weighers: tuple[Weighting | LearnedWeighting, ...]


def wished(model: Any, options: Options, class_weight: Floats, rows: int) -> Wish:
    """What a classifier with these arguments wants of so many rows."""
    given = model.attention is not None
    learns = options.weights == "attention" and (given or model.training is not None or rows >= TRAIN_FROM)
    folder = options.training.checkpoint
    return Wish(
        weights=options.weights,
        k=options.k,
        calibration=model.calibration,
        class_weight=class_weight,
        fraction=model.validation_fraction,
        attention=options.attention if learns else None,
        entropy=options.training.entropy,
        checkpoint=None if folder is None else Path(folder),
        device=training_device(model.device, rows),
        progress=bool(model.verbose),
    )


def has_free_parts(weights: str, k: int | None, calibration: str | None) -> bool:
    """Whether anything is left to fit."""
    return k is None or calibration is not None or weights not in ("uniform", "distance")


def fit_voter(
    benches: Sequence[Bench], wish: Wish, classes: int, random: np.random.Generator
) -> tuple[Voter, Tuning]:
    """Fit what is free.

    Args:
        benches: Members with vectors.
        wish: What is to be fitted.
        classes: How many classes there are.
        random: Draws the rows that judge their own bank.
    """
    if wish.k is not None and not has_free_parts(wish.weights, wish.k, wish.calibration):
        members = tuple(Member(bench.network, bench.bank, wish.base, wish.k) for bench in benches)
        return Voter(members, classes, wish.class_weight), Tuning(wish.k, wish.base, 0.0, ())
    fitted = [_weighed(bench, wish, random) for bench in benches]
    voter = Voter(tuple(each.member for each in fitted), classes, wish.class_weight, fitted[0].tuning.mass)
    judged = sum(len(hearing.judges) for hearing in fitted[0].hearings)
    if wish.calibration is None or judged == 0:
        return voter, fitted[0].tuning
    polled = _polled(fitted, wish, classes)
    if len(fitted) > 1 or isinstance(fitted[0].member.weigher, LearnedWeighting):
        voter = replace(voter, mass=_mass(polled))
    calibration = wish.calibration
    if calibration == "auto":
        calibration = "density" if judged >= DENSITY_FROM else "temperature"
    return replace(voter, calibrator=_calibrated(voter, calibration, polled)), fitted[0].tuning


def _weighed(bench: Bench, wish: Wish, random: np.random.Generator) -> _Fitted:
    hearings = bench.hearings
    if not hearings:
        rows = choose_judges(bench.bank, wish.fraction, random)
        hearings = (Hearing(bench.bank, Judges.of(bench.bank, rows)),)
    hearings = tuple(Hearing(each.bank, each.judges.able(each.bank, wish.class_weight)) for each in hearings)
    looks = wish.attention is not None and wish.attention.self_attention
    tuning = tune(
        hearings,
        wish.base,
        k=wish.k,
        class_weight=wish.class_weight,
        calibrated=wish.calibration is not None,
        most=SELF_ATTENTION_MOST if looks else MOST_NEIGHBORS,
    )
    weighers: tuple[Weighting | LearnedWeighting, ...] = (tuning.weighting,) * len(hearings)
    final: Weighting | LearnedWeighting = tuning.weighting
    if wish.attention is not None and wish.attention.parts and tuning.curve:
        learned = _attention(bench, hearings, tuning, wish, wish.attention)
        if learned is not None:
            final, weighers = learned
    return _Fitted(Member(bench.network, bench.bank, final, tuning.k), tuning, hearings, weighers)


def _attention(
    bench: Bench, hearings: tuple[Hearing, ...], tuning: Tuning, wish: Wish, parts: AttentionOptions
) -> tuple[LearnedWeighting, tuple[LearnedWeighting, ...]] | None:
    """The attention to serve and those to judge it by; None where it does not convince the judges."""
    dealt = [_dealt(hearing, wish, bench.seed) for hearing in hearings]
    lessons = [Lesson(hearing.bank, learn, held) for hearing, (learn, held) in zip(hearings, dealt, strict=True)]
    weighers, history = _train(lessons, tuning, wish, parts, bench.seed, f"attention-{bench.seed}")
    changes = [
        _change(Hearing(hearing.bank, held), weigher, tuning, wish, parts)
        for hearing, (_, held), weigher in zip(hearings, dealt, weighers, strict=True)
    ]
    gain, right, importance = (np.concatenate(column) for column in zip(*changes, strict=True))
    if not parts.always and not ships(gain, right, importance):
        return None
    served = weighers[0]
    if len(weighers) > 1:  # one more, that learns from all rows
        everyone = Judges.of(bench.bank, np.random.default_rng(bench.seed).permutation(bench.bank.live))
        last = [Lesson(bench.bank, everyone.able(bench.bank, wish.class_weight), None)]
        name, epochs = f"attention-{bench.seed}-served", max(1, history.best_epoch)
        (served,), _ = _train(last, tuning, wish, parts, bench.seed, name, epochs)
    return served, tuple(weighers)


def _change(
    hearing: Hearing, weigher: LearnedWeighting, tuning: Tuning, wish: Wish, parts: AttentionOptions
) -> tuple[Floats, Floats, Floats]:
    """What an attention does for each of its judges.

    Returns:
        By how much the loss sinks; 1 where it is right now and was not, -1 where it was; importance.
    """
    seen = Seen.by(hearing, tuning.k, wish.class_weight, _MOST_CELLS)
    before, after = (
        seen.votes(each, max(tuning.mass, 1e-4), wish.class_weight) for each in (tuning.weighting, weigher)
    )
    judges = seen.judges
    was, now = ((votes.argmax(axis=1) == judges.labels).astype(np.float64) for votes in (before, after))
    gain = seen.losses(before, parts.robust) - seen.losses(after, parts.robust)
    return gain, now - was, judges.weights * wish.class_weight[judges.labels]


def ships(gains: Floats, right: Floats, importance: Floats) -> bool:
    """Whether the loss sinks and no answer is lost on balance.

    Wrong labels can be predicted better at the cost of the right ones: the loss sinks, and so does accuracy.
    """
    return helps(gains, importance) and float(importance @ right) >= 0


def helps(gains: Floats, importance: Floats) -> bool:
    """Whether the mean gain is more than its standard error, and more than rounding."""
    if len(gains) < 2:
        return False
    share = importance / importance.sum()
    mean = float(share @ gains)
    return mean > max(_ROUNDING, float(np.sqrt(share**2 @ (gains - mean) ** 2)))


def _dealt(hearing: Hearing, wish: Wish, seed: int) -> tuple[Judges, Judges]:
    """Rows to learn from and rows to judge by. Judges that sit in the bank are dealt out: most of them learn."""
    bank, judges = hearing.bank, hearing.judges
    if judges.rows is not None:
        order = np.random.default_rng(seed).permutation(len(judges))
        cut = max(1, len(order) // 5)
        return judges.take(order[cut:]), judges.take(order[:cut])
    inside = Judges.of(bank, np.random.default_rng(seed).permutation(bank.live))
    return inside.able(bank, wish.class_weight), judges


def _train(
    lessons: Sequence[Lesson],
    tuning: Tuning,
    wish: Wish,
    parts: AttentionOptions,
    seed: int,
    name: str,
    epochs: int | None = None,
) -> tuple[list[LearnedWeighting], History]:
    return train_attention(
        lessons,
        tuning.weighting,
        parts,
        k=tuning.k,
        mass=max(tuning.mass, 1e-4),
        class_weight=wish.class_weight,
        entropy=wish.entropy,
        seed=seed,
        device=wish.device,
        epochs=epochs,
        checkpoint=None if wish.checkpoint is None else wish.checkpoint / f"{name}.pt",
        progress=f"training {name}" if wish.progress else None,
    )


_Polled = tuple[Floats, Floats, NDArray[np.int64], Floats, Floats]


def _polled(fitted: Sequence[_Fitted], wish: Wish, classes: int) -> _Polled:
    """Evidence, density, labels, prior and importance of the judges, all members averaged."""
    factor = wish.class_weight if (wish.class_weight != 1).any() else None
    widest = max(min(each.member.k, len(each.member.bank)) for each in fitted)
    most = max(256, _MOST_CELLS // widest) // len(fitted[0].hearings)
    parts: list[_Polled] = []
    for number, first in enumerate(fitted[0].hearings):
        said = []
        for each in fitted:
            hearing = each.hearings[number]
            judges = hearing.judges.take(slice(most))
            near = judges.neighbors(hearing.bank, each.member.k)
            weigher = each.weighers[number]
            said.append(answer(near, hearing.bank, judges.vectors, weigher, classes, factor, judges.rows))
        judges, poll = first.judges.take(slice(most)), Poll(said)
        importance = judges.weights * wish.class_weight[judges.labels]
        prior = judges.prior(first.bank, wish.class_weight)
        parts.append((poll.evidence.numpy(), poll.density, judges.labels, prior, importance))
    evidence, density, labels, prior, importance = (np.concatenate(column) for column in zip(*parts, strict=True))
    return evidence, density, labels, prior, importance


def _mass(polled: _Polled) -> float:
    """The prior mass of least NLL, for the judges and one more who finds none of its class."""
    evidence, _, labels, prior, importance = polled
    order = np.argsort(-evidence.mean(axis=0), kind="stable")
    surprise = np.zeros((1, evidence.shape[1]))
    surprise[0, order[0]] = 1.0
    return fit_prior_mass(
        np.vstack([evidence, surprise]),
        np.append(labels, order[1] if len(order) > 1 else order[0]),
        np.vstack([prior, prior.mean(axis=0)]),
        sample_weight=np.append(importance, importance.mean()),
    )


def _calibrated(voter: Voter, calibration: str, polled: _Polled) -> Calibrator:
    if calibration == "prior" or voter.classes < 2:
        return Identity()
    evidence, density, labels, prior, importance = polled
    votes = vote(torch.from_numpy(evidence), torch.from_numpy(prior), voter.mass).numpy()
    # One surprise more than was seen: n right answers in n do not prove certainty.
    surest = int(votes.max(axis=1).argmax())
    votes, density = np.vstack([votes, votes[surest]]), np.append(density, density[surest])
    labels = np.append(labels, np.argsort(-votes[surest], kind="stable")[1])
    importance = np.append(importance, importance.mean())
    fitted = fit_calibrator(calibration, votes, labels, density=density, sample_weight=importance)
    if isinstance(fitted, Isotonic):  # a class that no judge showed would get a curve of zeros
        shown = np.bincount(labels, minlength=voter.classes) > 0
        curves = zip(fitted.curves, shown, strict=True)
        fitted = replace(fitted, curves=tuple(curve if known else AS_VOTED for curve, known in curves))
    return fitted
