"""From members with vectors to a voter: k, weights, prior mass and calibration, by what the judges say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from attnknn.attend import AttentionOptions, LearnedWeighting, Weighting, WeightingKind
from attnknn.attend.self_attention import MOST_NEIGHBORS as SELF_ATTENTION_MOST
from attnknn.estimator.benches import Bench
from attnknn.estimator.calibration import fit_finish
from attnknn.estimator.jury import Heard, Jury, Polled, Rule, judges_heard, rules_of, widths
from attnknn.estimator.options import TRAIN_FROM, Options, augmentation_of, training_device
from attnknn.estimator.voter import Member, Voter
from attnknn.predict import Lens, PredictionOptions
from attnknn.train import Hearing, History, Judges, Tuning, choose_judges, train_attention, tune
from attnknn.train.attention import Lesson, Seen
from attnknn.train.policies import Augmentation
from attnknn.train.tune import MOST_NEIGHBORS

Floats = NDArray[np.float64]

_ROUNDING: Final = 1e-6
_MOST_CELLS: Final = 4_000_000  # judges x neighbors that decide on an attention


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
    prediction: PredictionOptions = field(default_factory=PredictionOptions)
    augmentation: Augmentation | None = None  # that makes views, where there are any

    @property
    def of_weights(self) -> tuple[Any, ...]:
        """What the weights depend on, whatever becomes of them in a prediction."""
        calibrated = self.calibration is not None
        return self.weights, self.k, self.attention, self.fraction, self.entropy, calibrated

    @property
    def looks_around(self) -> bool:
        """Whether neighbors look at each other."""
        return self.attention is not None and self.attention.self_attention

    @property
    def base(self) -> Weighting:
        """The weighting that is fitted first."""
        kind: WeightingKind = "softmax" if self.weights == "attention" else self.weights  # type: ignore[assignment]
        return Weighting(kind)


@dataclass(frozen=True, slots=True)
class Weighed:
    """What was fitted of a member's weights; other prediction options find it as it is."""

    tuning: Tuning
    weigher: Weighting | LearnedWeighting  # that is served
    judged: tuple[Weighting | LearnedWeighting, ...]  # those that its hearings are judged with
    history: History | None = None  # of the attention that was judged, whether it is served or not

    def again(self) -> Weighed:
        """The same for another model: what an attention remembers of its banks is its own."""
        return replace(self, weigher=_anew(self.weigher), judged=tuple(_anew(each) for each in self.judged))


@dataclass(frozen=True, slots=True)
class Fit:
    """A voter, and how it came about."""

    voter: Voter
    weighed: tuple[Weighed, ...]  # of each member
    asked: tuple[Any, ...]  # what the weights depend on; see ``Wish.of_weights``

    @property
    def tuning(self) -> Tuning:
        """Of the first member."""
        return self.weighed[0].tuning


def wished(model: Any, options: Options, class_weight: Floats, rows: int) -> Wish:
    """What a classifier with these arguments wants of so many rows."""
    given = model.attention is not None
    learns = options.weights == "attention" and (given or model.training is not None or rows >= TRAIN_FROM)
    folder = options.training.checkpoint
    prediction = model.prediction or PredictionOptions()
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
        prediction=prediction,
        augmentation=augmentation_of(model, model.embedder_.shape[:2]) if prediction.views else None,
    )


def has_free_parts(weights: str, k: int | None, calibration: str | None, fits_ks: bool) -> bool:
    """Whether anything is left to fit."""
    return k is None or calibration is not None or weights not in ("uniform", "distance") or fits_ks


def fit_voter(
    benches: Sequence[Bench],
    wish: Wish,
    classes: int,
    random: np.random.Generator,
    earlier: Sequence[Weighed] | None = None,
) -> Fit:
    """Fit what is free.

    Args:
        benches: Members with vectors.
        wish: What is to be fitted.
        classes: How many classes there are.
        random: Draws the rows that judge their own bank.
        earlier: Weights that were fitted on the same benches for the same wish, if they are known.
    """
    options = wish.prediction
    outputs = benches[0].outputs if options.prior == "head" else None
    lens = Lens(options.views, wish.augmentation, outputs)
    if wish.k is not None and not has_free_parts(wish.weights, wish.k, wish.calibration, options.fits_ks):
        tuning = Tuning(wish.k, wish.base, 0.0, ())
        weighed = tuple(Weighed(tuning, wish.base, (wish.base,) * max(1, len(each.hearings))) for each in benches)
        rules = rules_of(options, [widths(options, wish.k, len(bench.bank)) for bench in benches], None)
        return Fit(_voter(benches, weighed, rules, wish, lens, classes), weighed, wish.of_weights)
    hearings = [_hearings(bench, wish, random) for bench in benches]
    weighed = tuple(earlier or (_weighed(*each, wish) for each in zip(benches, hearings, strict=True)))
    ks = _widths(benches, hearings, weighed, wish)
    judged = wish.calibration is not None and any(len(hearing.judges) for hearing in hearings[0])
    jury = _jury(benches, hearings, weighed, ks, wish, lens) if judged or options.fits_ks else None
    rules = rules_of(options, ks, jury)
    voter = _voter(benches, weighed, rules, wish, lens, classes)
    if judged and jury is not None:
        voter = _finished(voter, jury.polled(rules), wish)
    return Fit(voter, weighed, wish.of_weights)


def _hearings(bench: Bench, wish: Wish, random: np.random.Generator) -> tuple[Hearing, ...]:
    """Banks and who is able to judge them; without others the rows of the bank itself."""
    hearings = bench.hearings
    if not hearings:
        rows = choose_judges(bench.bank, wish.fraction, random)
        hearings = (Hearing(bench.bank, Judges.of(bench.bank, rows)),)
    return tuple(each.able(wish.class_weight) for each in hearings)


def _widths(
    benches: Sequence[Bench], hearings: Sequence[tuple[Hearing, ...]], weighed: Sequence[Weighed], wish: Wish
) -> list[tuple[int, ...]]:
    """The numbers of neighbors that each member looks at."""
    sizes = [len(bench.bank) for bench in benches] + [len(each.bank) for some in hearings for each in some]
    most = min(*sizes, SELF_ATTENTION_MOST) if wish.looks_around else min(sizes)
    return [widths(wish.prediction, each.tuning.k, most) for each in weighed]


def _jury(
    benches: Sequence[Bench],
    hearings: Sequence[tuple[Hearing, ...]],
    weighed: Sequence[Weighed],
    ks: Sequence[tuple[int, ...]],
    wish: Wish,
    lens: Lens,
) -> Jury:
    """Who hears the answers."""
    widest = max(min(each[-1], len(bench.bank)) for each, bench in zip(ks, benches, strict=True))
    count = judges_heard(max(1, widest), len(hearings[0]))
    heard = [
        [
            Heard.by(lens, bench.network, hearing.bank, hearing.judges.take(slice(count)), weigher)
            for hearing, weigher in zip(some, each.judged, strict=True)
        ]
        for bench, some, each in zip(benches, hearings, weighed, strict=True)
    ]
    return Jury(heard, lens, wish.class_weight)


def _voter(
    benches: Sequence[Bench],
    weighed: Sequence[Weighed],
    rules: Sequence[tuple[int, Rule]],
    wish: Wish,
    lens: Lens,
    classes: int,
) -> Voter:
    members = tuple(
        Member(bench.network, bench.bank, rule(each.weigher), k)
        for bench, each, (k, rule) in zip(benches, weighed, rules, strict=True)
    )
    return Voter(members, classes, wish.class_weight, weighed[0].tuning.mass, lens=lens)


def _finished(voter: Voter, polled: Polled, wish: Wish) -> Voter:
    """With the prior mass and the calibration that suit what is polled."""
    plain = isinstance(voter.members[0].weigher, Weighting) and wish.prediction.plain
    known = plain and len(voter.members) == 1  # what tuned the weights has seen one plain member
    finish = fit_finish(str(wish.calibration), polled, voter.mass if known else None)
    return replace(voter, mass=finish.mass, calibrator=finish.calibrator)


def _weighed(bench: Bench, hearings: tuple[Hearing, ...], wish: Wish) -> Weighed:
    tuning = tune(
        hearings,
        wish.base,
        k=wish.k,
        class_weight=wish.class_weight,
        calibrated=wish.calibration is not None,
        most=SELF_ATTENTION_MOST if wish.looks_around else MOST_NEIGHBORS,
    )
    if wish.attention is not None and wish.attention.parts and tuning.curve:
        return _attention(bench, hearings, tuning, wish, wish.attention)
    return _plain(tuning, hearings)


def _plain(tuning: Tuning, hearings: Sequence[Hearing], history: History | None = None) -> Weighed:
    return Weighed(tuning, tuning.weighting, (tuning.weighting,) * len(hearings), history)


def _anew(weigher: Weighting | LearnedWeighting) -> Weighting | LearnedWeighting:
    return LearnedWeighting(weigher.attention) if isinstance(weigher, LearnedWeighting) else weigher


def _attention(
    bench: Bench, hearings: tuple[Hearing, ...], tuning: Tuning, wish: Wish, parts: AttentionOptions
) -> Weighed:
    """The attention to serve and those to judge it by; softmax weights where it does not convince the judges."""
    dealt = [_dealt(hearing, wish, bench.seed) for hearing in hearings]
    lessons = [Lesson(hearing.bank, learn, held) for hearing, (learn, held) in zip(hearings, dealt, strict=True)]
    weighers, history = _train(lessons, tuning, wish, parts, bench.seed, f"attention-{bench.seed}")
    changes = [
        _change(replace(hearing, judges=held), weigher, tuning, wish, parts)
        for hearing, (_, held), weigher in zip(hearings, dealt, weighers, strict=True)
    ]
    gain, right, importance = (np.concatenate(column) for column in zip(*changes, strict=True))
    if not parts.always and not ships(gain, right, importance):
        return _plain(tuning, hearings, history)
    served = weighers[0]
    if len(weighers) > 1:  # one more, that learns from all rows
        everyone = Judges.of(bench.bank, np.random.default_rng(bench.seed).permutation(bench.bank.live))
        last = [Lesson(bench.bank, everyone.able(bench.bank, wish.class_weight), None)]
        name, epochs = f"attention-{bench.seed}-served", max(1, history.best_epoch)
        (served,), _ = _train(last, tuning, wish, parts, bench.seed, name, epochs)
    return Weighed(tuning, served, tuple(weighers), history)


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
    """Rows to learn from and rows to judge by. Where the bank was taught nothing its judges are dealt out."""
    bank, judges, taught = hearing.bank, hearing.judges, hearing.taught
    if taught is None and judges.rows is not None:  # most of them learn
        order = np.random.default_rng(seed).permutation(len(judges))
        cut = max(1, len(order) // 5)
        return judges.take(order[cut:]), judges.take(order[:cut])
    inside = Judges.of(bank, np.random.default_rng(seed).permutation(bank.live if taught is None else taught))
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
