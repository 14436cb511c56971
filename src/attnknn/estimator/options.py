"""What the constructor's arguments mean: checked in ``fit``, as scikit-learn wants it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from importlib.util import find_spec
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from attnknn.attend import KINDS, AttentionOptions
from attnknn.attend.self_attention import MOST_NEIGHBORS
from attnknn.bank import INDEXES, checked_k
from attnknn.data import Table
from attnknn.embed import LEARNED
from attnknn.errors import InvalidInput, MissingDevice
from attnknn.estimator.inputs import Rows
from attnknn.ops import METRICS
from attnknn.predict import PredictionOptions
from attnknn.predict.adaptive import EXACT
from attnknn.train import ImageOptions, TrainingOptions
from attnknn.train.policies import Augmentation, chosen_policy
from attnknn.train.threads import FEW_ROWS

EXACT_BELOW = 100_000
"""Rows below which ``index="auto"`` searches exhaustively."""

CALIBRATIONS = ("auto", "density", "temperature", "isotonic", "matrix", "prior", None)


WEIGHTS = ("attention", *KINDS)
EMBEDDERS = ("auto", *LEARNED, "standardize", "identity")
LINEAR_ABOVE = 256
"""Numeric columns above which ``embedder="auto"`` takes rows for vectors that another model made."""

TRAIN_FROM = 500
"""Rows from which the defaults train; fewer teach a network too little."""

_READ_BY_ATTENTION = ("entropy", "checkpoint")  # options of training that need no embedder to train


@dataclass(frozen=True, slots=True)
class Options:
    """The arguments that mean more than their value."""

    k: int | None  # None: to be chosen
    weights: str
    attention: AttentionOptions
    training: TrainingOptions


def check_options(model: Any) -> Options:
    """Refuse arguments that make no sense, or that nothing would read."""
    _one_of("weights", model.weights, WEIGHTS)
    _one_of("embedder", model.embedder, EMBEDDERS)
    _one_of("metric", model.metric, ("auto", *METRICS))
    _one_of("index", model.index, ("auto", *INDEXES))
    _one_of("calibration", model.calibration, CALIBRATIONS)
    _one_of("device", str(model.device).split(":")[0], ("auto", "cpu", "cuda", "mps"))
    check_that_all_is_read(model, model.embedder)
    check_fraction(model.validation_fraction)
    parts = model.attention or AttentionOptions()
    if parts.self_attention and not isinstance(model.n_neighbors, str) and model.n_neighbors > MOST_NEIGHBORS:
        raise InvalidInput(f"self_attention takes at most {MOST_NEIGHBORS} neighbors, got {model.n_neighbors}")
    rest = model.weights, parts, model.training or TrainingOptions()
    if isinstance(model.n_neighbors, str):
        _one_of("n_neighbors", model.n_neighbors, ("auto",))
        return Options(None, *rest)
    try:
        return Options(checked_k(model.n_neighbors), *rest)
    except InvalidInput as problem:
        raise InvalidInput(f"n_neighbors: {problem}; or 'auto'") from problem


def check_fraction(share: Any) -> None:
    """Refuse a share of rows to hold out that is none."""
    if isinstance(share, bool) or not isinstance(share, Real) or not 0 < float(share) < 1:
        raise InvalidInput(f"validation_fraction must be between 0 and 1, got {share!r}")


def check_that_all_is_read(model: Any, embedder: str) -> None:
    """Refuse options that nothing would read with this embedder; asked again once ``auto`` has been decided."""
    learned = embedder in LEARNED or (embedder == "auto" and model.weights == "attention")
    members = model.n_estimators
    if isinstance(members, bool) or not isinstance(members, Integral) or int(members) < 1:
        raise InvalidInput(f"n_estimators must be a whole number of at least 1, got {members!r}")
    if int(members) > 1 and not learned:
        raise InvalidInput(
            f"n_estimators={members}: embedder={embedder!r} with weights={model.weights!r} trains nothing, "
            "so there is nothing to average; use 1"
        )
    kinds = {"attention": AttentionOptions, "training": TrainingOptions, "prediction": PredictionOptions}
    for name, kind in kinds.items():
        given = getattr(model, name)
        if given is not None and not isinstance(given, kind):
            raise InvalidInput(f"{name} must be None or {kind.__name__}(...), got {given!r}")
    if model.attention is not None and model.weights != "attention":
        raise InvalidInput(f"attention options were given, but weights={model.weights!r} reads none")
    if isinstance(model.training, ImageOptions):
        if embedder not in ("auto", "image"):
            raise InvalidInput(f"training is ImageOptions(...), which embedder={embedder!r} does not read")
    elif model.training is not None:
        _check_training(model, embedder, learned)


def _check_training(model: Any, embedder: str, learned: bool) -> None:
    usual, training = TrainingOptions(), model.training
    if embedder == "image":
        raise InvalidInput("images are trained with ImageOptions(...), got TrainingOptions(...)")
    attends = model.weights == "attention" and bool((model.attention or AttentionOptions()).parts)
    if not learned and not attends:
        raise InvalidInput(
            f"training options were given, but embedder={embedder!r} with weights={model.weights!r} trains nothing"
        )
    for field in fields(TrainingOptions):
        name = field.name
        read = learned if name not in _READ_BY_ATTENTION else attends or (learned and name != "entropy")
        if name in ("blocks", "dropout"):
            read = read and embedder in ("auto", "periodic")
        if name == "embed_dim":
            read = read and embedder != "linear"
        if not read and getattr(training, name) != getattr(usual, name):
            raise InvalidInput(
                f"training option {name} was given, but embedder={embedder!r} with "
                f"weights={model.weights!r} does not read it"
            )


def check_prediction(model: Any, embedder: str, index: str) -> None:
    """Refuse prediction options that nothing would read, or that make no sense, with this embedder and index."""
    options = model.prediction or PredictionOptions()
    training = image_options(model)
    if options.views is not None and embedder != "image":
        raise InvalidInput(f"views={options.views!r} are of images, but embedder={embedder!r} reads none")
    if options.prior == "head":
        if embedder != "image":
            raise InvalidInput(f"prior='head' needs a network for images, but embedder={embedder!r} has no head")
        if training.frozen or not training.auxiliary:
            why = "frozen=True has none" if training.frozen else "auxiliary=0 never trains it"
            raise InvalidInput(f"prior='head' needs a trained head, but {why}")
        if model.calibration is None:
            raise InvalidInput("prior='head' is not read with calibration=None, where the prior has no mass")
    if options.adaptive_k == "entropy" and model.weights == "uniform":
        raise InvalidInput("adaptive_k='entropy' reads how the weights are spread, but weights='uniform' are even")
    if options.adaptive_k == "certificate":
        _check_certificate(model, index)
    ks = options.k_ensemble or options.tiers or (1,)
    if (model.attention or AttentionOptions()).self_attention and max(ks) > MOST_NEIGHBORS:
        raise InvalidInput(f"self_attention takes at most {MOST_NEIGHBORS} neighbors, got {max(ks)}")


def _check_certificate(model: Any, index: str) -> None:
    parts = (model.attention or AttentionOptions()).parts if model.weights == "attention" else ()
    if parts:
        raise InvalidInput(
            "adaptive_k='certificate' needs a bound on what is learned beside the scale, and none is known of "
            f"{', '.join(parts)}; use weights='softmax' or 'reliability'"
        )
    if model.weights in ("uniform", "distance"):
        raise InvalidInput(f"adaptive_k='certificate' is of softmax weights, but weights={model.weights!r}")
    if index not in EXACT:
        raise InvalidInput(f"adaptive_k='certificate' needs every neighbor, which index={index!r} may miss")


def augmentation_of(model: Any, sides: Sequence[int]) -> Augmentation:
    """The policy that a classifier is trained with, for images of height and width ``sides``."""
    return chosen_policy(image_options(model).augmentation, sides)


def image_options(model: Any) -> ImageOptions:
    """How a classifier trains on images, its own options or the usual ones."""
    return model.training if isinstance(model.training, ImageOptions) else ImageOptions()


def chosen_embedders(model: Any, rows: Rows) -> tuple[str, ...]:
    """The embedders that ``embedder`` may mean for these rows; of several, the validation rows choose.

    ``auto`` takes rows of length 1 for given vectors: identity, or, above 256 columns, a trained projection; so
    it does with more than 256 numeric columns and nothing else. Images have an embedder of their own. Everything
    else is a table: standardize where the weights are not learned, else a periodic embedder; where all columns
    are numbers they may share a unit, as pixels do, so a projection of them is tried as well.
    """
    pictures = not isinstance(rows, Table) and rows.ndim == 4
    if pictures and model.embedder in ("auto", "image"):
        return ("image",)
    if pictures or model.embedder == "image":
        got = "images" if pictures else "a table"
        raise InvalidInput(f"embedder={model.embedder!r} cannot read {got}; embedder='auto' can")
    if model.embedder != "auto":
        return (model.embedder,)
    numeric = _numeric(rows)
    learned = model.weights == "attention"
    if numeric is not None and learned and numeric.shape[1] > LINEAR_ABOVE:
        return ("linear",)
    if numeric is not None and has_unit_length(numeric):
        return ("identity",)
    if not learned:
        return ("standardize",)
    training = model.training or TrainingOptions()
    shaped = any(each is not None for each in (training.blocks, training.embed_dim, training.dropout))
    if numeric is None or shaped or numeric.shape[1] < 2:
        return ("periodic",)
    return ("periodic", "linear")


def _numeric(rows: Rows) -> NDArray[Any] | None:
    """The rows as an array where all columns are numbers and none lacks a value."""
    if not isinstance(rows, Table):
        return rows
    if any(column.kind != "numeric" or column.missing.any() for column in rows.columns):
        return None
    return np.column_stack([column.values for column in rows.columns]) if rows.columns else None


def has_unit_length(vectors: NDArray[Any]) -> bool:
    """Whether all rows have length 1, in two dimensions or more."""
    if len(vectors) == 0 or vectors.shape[1] < 2:
        return False
    with np.errstate(over="ignore"):
        norms = np.linalg.norm(vectors.astype(np.float64), axis=1)
    return bool(np.abs(norms - 1).max() < 1e-4)


def search_device(device: str | torch.device) -> str:
    """The device that ``device`` means on this machine."""
    device = str(device)
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if device == "auto":
        return next(name for name in ("cuda", "mps", "cpu") if there[name])
    if not there.get(device.split(":")[0], False):
        raise MissingDevice(f"this machine has no device {device!r}; use device='cpu' or 'auto'")
    return device


def training_device(device: str | torch.device, rows: int | None) -> str:
    """Where to train on so many rows: ``auto`` leaves few of them to the CPU, which then is faster.

    None stands for images, which a GPU trains faster in any number.
    """
    few = rows is not None and rows < FEW_ROWS
    return "cpu" if str(device) == "auto" and few else search_device(device)


def search_index(index: str, rows: int) -> str:
    """The index that ``index`` means for so many rows."""
    if index != "auto":
        return index
    return "hnsw" if rows >= EXACT_BELOW and find_spec("faiss") is not None else "exact"


def search_metric(metric: str, embedder: str, vectors: NDArray[Any]) -> str:
    """The metric that ``metric`` means for these vectors: cosine where they are given with length 1."""
    if metric != "auto":
        return metric
    if embedder in LEARNED:
        return str(LEARNED[embedder].metric)
    return "cosine" if embedder == "identity" and has_unit_length(vectors) else "l2"


def _one_of(name: str, value: Any, allowed: tuple[Any, ...]) -> None:
    if not isinstance(value, str | None) or value not in allowed:
        choices = ", ".join(repr(choice) for choice in allowed)
        raise InvalidInput(f"{name} must be one of {choices}, got {value!r}")
