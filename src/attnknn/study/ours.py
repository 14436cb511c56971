"""Our methods in a study: one training for each seed, weighed in several ways.

All that a study knows of the classifier's inside is here, in ``trained``, ``reweighed`` and ``uncalibrated``, and
in ``decided``.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from attnknn.attend import AttentionOptions
from attnknn.calibrate import Identity
from attnknn.embed import LEARNED, Standardize
from attnknn.errors import NotApplicable
from attnknn.estimator import AttnKNNClassifier
from attnknn.estimator.options import TRAIN_FROM
from attnknn.predict import CELLS, Poll, PredictionOptions, answer
from attnknn.predict.several import nearest
from attnknn.study.audit import audit, changed
from attnknn.study.claims import claimed
from attnknn.study.decided import attention_of, told_of
from attnknn.study.decided import chosen as chosen
from attnknn.study.job import Fitted, Job, Predictions, Stopwatch
from attnknn.study.manners import around
from attnknn.study.recipe import ROBUST, Recipe
from attnknn.study.record import write_json
from attnknn.study.splits import Rows
from attnknn.train import TrainingOptions, training_from_state

_SEARCHED: Final = 20_000_000  # test rows x neighbors that are kept between methods
TRAINED = "attention"
"""The weights that are trained; others reuse the vectors that this training made."""


@dataclass(frozen=True, slots=True)
class Ours:
    """A method of ours.

    Args:
        weights: As in ``AttnKNNClassifier``.
        embedder: As in ``AttnKNNClassifier``; None is the recipe's, shared by all methods of a seed.
        ensemble: Whether the recipe's number of members is averaged.
        options: Further arguments of the classifier, over the recipe's; what has some is trained for itself.
        training: Options of the training that differ from the recipe's; what has some is trained for itself.
        attention: Parts of the attention, on the vectors that are shared; None is the usual ones.
        manner: How rows are answered, one of ``recipe.MANNERS`` or with the head's prior; None is plainly.
    """

    weights: str
    embedder: str | None = None
    ensemble: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)
    attention: AttentionOptions | None = None
    manner: str | None = None

    def __call__(self, job: Job) -> Fitted:
        """Fit on the training rows of a cell.

        Raises:
            NotApplicable: Nothing of the usual training is changed by it here.
        """
        if self.trained_alone and (reason := in_vain(job, self)) is not None:
            raise NotApplicable(reason)
        trained_alone = self.trained_alone and not is_usual(job, self)
        watch, earlier = Stopwatch(), 0.0
        if trained_alone:
            model = trained(job, self)
        else:
            model, earlier = shared_model(job)
            watch = Stopwatch()
            asked = robustly(job, self.attention)
            own = model.attention if asked is None and self.weights == TRAINED else asked
            if self.weights != TRAINED or asked is not None or job.point.k is not None:
                model, earlier = weighed_anew(job, self.weights, own)
                watch = Stopwatch()
            if self.manner is not None:
                asked_for = prediction_of(self.manner, ks_of(model, job.recipe))
                model = reweighed(model, self.weights, own, asked_for, job.point.k)
        seconds = earlier + watch.seconds
        if job.point.bank_only:
            model = changed(model, job)
        settings = {**chosen(model), **audit(model, job)}
        if differs := {**_against_noise(job, self), **(self.training if trained_alone else {})}:
            settings["changed"] = differs
        alone = trained_alone or self.manner is not None
        predict = partial(predicted, model, job, alone=alone)
        history = told_of(model) if self._tells(job, trained_alone) else None
        attention = attention_of(model) if self._attends(job) else None
        return Fitted(settings, seconds, predict, partial(_save, model), history=history, attention=attention)

    @property
    def trained_alone(self) -> bool:
        """Whether its vectors are not those that all others of a seed share."""
        return self.embedder is not None or self.ensemble or bool(self.options) or bool(self.training)

    def _tells(self, job: Job, trained_alone: bool) -> bool:
        """Whether its cell tells of the training: of one that methods share, plain attention does."""
        if trained_alone:
            return not self.ensemble  # whose first member is trained as plain attention is
        return self == Ours(TRAINED) and _in_full(job)

    def _attends(self, job: Job) -> bool:
        """Whether its cell tells of a training of the attention that no other cell tells of."""
        return self.weights == TRAINED and self.manner is None and not self.ensemble and _in_full(job)


def _in_full(job: Job) -> bool:
    """Whether a point has a training of its own, or is the last of those that share one."""
    return not job.point.bank_only and job.point.k in (None, job.point.widest)


def trained(job: Job, how: Ours) -> Any:
    """A classifier fitted on the training rows of a cell."""
    ours = job.recipe.ours
    further = {name: value for name, value in ours.options.items() if name != ROBUST}
    told_how = how.weights == TRAINED and (ROBUST in ours.options or ours.heads is not None)
    asked = robustly(job, AttentionOptions(heads=ours.heads)) if told_how else None
    learns = how.embedder is None or how.embedder in LEARNED
    arguments = {
        "n_neighbors": ours.n_neighbors,
        "weights": how.weights,
        "embedder": how.embedder or ours.embedder,
        "index": ours.index,
        "calibration": job.recipe.calibration,
        "n_estimators": job.recipe.members if how.ensemble else 1,
        "validation_fraction": ours.validation_fraction,
        "device": job.device,
        "random_state": job.seed,
        "attention": asked,
        "training": _training(job.recipe, how) if learns else None,
        **(further if how.embedder is None else {}),
        **how.options,
    }
    rows = job.parts.train
    model = AttnKNNClassifier(**arguments)
    return model.fit(job.task.take(rows), job.task.classes[job.parts.labels[rows]], classes=job.task.classes)


def _against_noise(job: Job, how: Ours) -> Mapping[str, Any]:
    """What a training on wrong labels has otherwise than the clean one; of tables only the attention has."""
    recipe = job.recipe
    touched = recipe.ours.images is not None or (how.weights == TRAINED and how.embedder in (None, *LEARNED))
    return recipe.ours.under_noise if recipe.noise.rate and touched else {}


def _training(recipe: Recipe, how: Ours) -> TrainingOptions | None:
    """As the recipe trains; an embedder that is named is trained however few the rows are."""
    usual = training_of(recipe, how.training)
    return TrainingOptions() if usual is None and how.embedder is not None else usual


def robustly(job: Job, attention: AttentionOptions | None) -> AttentionOptions | None:
    """The same parts, trained as robustly as the recipe says."""
    robust = job.recipe.ours.options.get(ROBUST, 0.0)
    return replace(attention, robust=robust) if robust and attention is not None and attention.parts else attention


def training_of(recipe: Recipe, changes: Mapping[str, Any] | None = None) -> TrainingOptions | None:
    """How a recipe trains, with some options changed; None is as usual, for tables."""
    state = recipe.ours.table if recipe.ours.images is None else recipe.ours.images
    usual = None if state is None else training_from_state(state)
    return replace(usual or TrainingOptions(), **changes) if changes else usual


def is_usual(job: Job, how: Ours) -> bool:
    """Whether the seed's shared model is what a method asks for: others are compared with such a one."""
    if how.weights != TRAINED or how.ensemble or how.options or how.training or how.embedder is None:
        return not how.trained_alone
    return usual_network(job).get("embedder") == how.embedder


def in_vain(job: Job, how: Ours) -> str | None:
    """Why a method that is trained for itself would only repeat another one, in words; None where it does not."""
    if how.weights != TRAINED or how.options:
        return None
    if job.recipe.ours.images is not None:
        return _so_already(how.training, job.recipe.ours.images)
    if how.ensemble:  # whose own training need not wait for the usual one
        few = job.recipe.ours.table is None and len(job.parts.train) < TRAIN_FROM
        return f"{_untrained(job)}: members would be all alike" if few else None
    network = usual_network(job)
    if how.embedder is not None and how.embedder in LEARNED:
        return _so_already(how.training, _shape(job, network, how.embedder), f"the {how.embedder} embedder")
    if network:
        return _so_already(how.training, {**(job.recipe.ours.table or {}), **network})
    return f"{_untrained(job)}, as usual" if not how.training else f"{_untrained(job)}: no training to change"


def _untrained(job: Job) -> str:
    few = len(job.parts.train) < TRAIN_FROM
    return f"nothing is trained on fewer than {TRAIN_FROM} rows" if few else "nothing is trained on these rows"


def _so_already(
    changes: Mapping[str, Any], there: Mapping[str, Any], who: str = "the usual training"
) -> str | None:
    if not changes or not changes.items() <= there.items():
        return None
    return f"{who} has {', '.join(f'{name} {value}' for name, value in changes.items())} already"


def _shape(job: Job, network: Mapping[str, Any], embedder: str) -> Mapping[str, Any]:
    """What an embedder has unless told otherwise, as far as the rows decide it."""
    if network.get("embedder") == embedder:
        return network
    rows = job.parts.train
    encoder = Standardize().fit(job.task.table.take(rows))
    hidden = TrainingOptions().hidden(len(rows), mixed=len(encoder.numbers) < len(encoder.columns))
    return {"dropout": hidden}


def usual_network(job: Job) -> dict[str, Any]:
    """Embedder and shape of what the seed's shared model was trained to, nothing where it has no network.

    Of several runs one trains it, and the others wait for what it tells.
    """
    file = _told_network(job)
    if file is None or TRAINED in job.shared:
        return _network(shared_model(job)[0])
    with claimed(file.with_suffix(""), wait=True):
        if not file.exists():
            shared_model(job)
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def _told_network(job: Job) -> Path | None:
    """Where a run tells the others of the network."""
    if job.left is None:
        return None
    return job.left / "-".join(filter(None, ("network", job.point.training, f"{job.seed}.json")))


def _network(model: Any) -> dict[str, Any]:
    network = model.voter_.members[0].network
    return {} if network is None else {"embedder": network.kind, **network.shape()}


def ks_of(model: Any, recipe: Recipe) -> tuple[int, ...]:
    """The k of a k-ensemble: the recipe's of images, around the fitted one of tables."""
    if recipe.ours.images is not None:
        return recipe.ours.k_ensemble
    banks = [each.bank for bench in model._benches for each in (bench, *bench.hearings)]
    return around(model.n_neighbors_, min(map(len, banks)))


def prediction_of(manner: str | None, ks: tuple[int, ...]) -> PredictionOptions | None:
    """What a manner of answering means; ``ks`` are those of a k-ensemble.

    >>> prediction_of("tta+head-prior", (4, 16)).prior
    'head'
    """
    if manner is None:
        return None
    parts = manner.split("+")
    return PredictionOptions(
        views="probabilities" if "tta" in parts else None,
        k_ensemble=ks if "k-ensemble" in parts else None,
        adaptive_k="entropy" if "adaptive-k" in parts else None,
        prior="head" if "head-prior" in parts else "classes",
    )


def reweighed(
    model: Any,
    weights: str,
    attention: AttentionOptions | None = None,
    prediction: PredictionOptions | None = None,
    k: int | None = None,
) -> Any:
    """The same vectors with other weights, k, scale and calibration fitted for them, and other manners."""
    return model.with_weights(weights, attention, prediction, k)


def uncalibrated(model: Any) -> Any:
    """The same model without calibration: the vote with a prior mass of 1/k."""
    bare = copy.copy(model)
    bare.voter_ = replace(model.voter_, mass=1 / model.n_neighbors_, calibrator=Identity())
    return bare


def _save(model: Any, folder: Path) -> None:
    """As ``attnknn fit`` would: for any machine."""
    copy.copy(model).set_params(device="auto", verbose=0).save(folder)


def shared_model(job: Job) -> tuple[Any, float]:
    """The trained model and the seconds it took, fitted when the first method asks for it."""
    plain = replace(job.recipe, ours=replace(job.recipe.ours, n_neighbors="auto"))
    usual = job if job.point.k is None else replace(job, recipe=plain)
    return job.once(TRAINED, lambda: _trained_and_told(usual))


def _trained_and_told(job: Job) -> Any:
    file = None if job.recipe.ours.images is not None else _told_network(job)
    if file is None:
        return trained(job, Ours(TRAINED))
    with claimed(file.with_suffix("")):  # whoever needs the network alone waits; who needs the model does not
        model = trained(job, Ours(TRAINED))
        write_json(file, _network(model))
    return model


def weighed_anew(job: Job, weights: str, attention: AttentionOptions | None) -> tuple[Any, float]:
    """The seed's model under other weights, fitted once for all manners, and the seconds both took."""
    model, earlier = shared_model(job)
    key, k = f"{weights} {attention} {job.point.k}", job.point.k
    other, seconds = job.once(key, lambda: reweighed(model, weights, attention, k=k))
    return other, earlier + seconds


def _from_one_search(model: Any, job: Job, features: NDArray[Any]) -> Iterator[Poll]:
    """What a model with any k says, from neighbors that are searched once for all k and all ways of weighing."""
    voter, widest = model.voter_, job.point.widest or 1
    member = voter.members[0]
    if len(features) * min(widest, len(member.bank)) > _SEARCHED:
        yield from voter.polls(features)
        return
    vectors, _ = job.once("test vectors", lambda: member.vectors(features))
    found, _ = job.once("their neighbors", lambda: member.bank.search(vectors, widest))
    weight = voter.class_weight if (voter.class_weight != 1).any() else None
    step = max(1, CELLS // max(1, member.k))
    for at in range(0, len(vectors), step):
        part = slice(at, at + step)
        near = nearest(found.take(part), member.k)
        yield Poll([answer(near, member.bank, vectors[part], member.weigher, voter.classes, weight)], None)


def predicted(model: Any, job: Job, rows: Rows, *, alone: bool) -> Predictions:
    """Each row is searched for and weighed once; a model that is not alone shares its neighbors with others."""
    watch = Stopwatch()
    features, voters = model._encoded(job.task.take(rows)), (model.voter_, uncalibrated(model).voter_)
    one = job.point.widest is not None and not alone
    polls = _from_one_search(model, job, features) if one else model.voter_.polls(features)
    parts = [[voter.finished(poll, voter.prior_of(poll)) for voter in voters] for poll in polls]
    calibrated, bare = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Predictions(calibrated, bare, watch.seconds)
