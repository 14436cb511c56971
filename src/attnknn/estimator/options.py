"""What the constructor's arguments mean: checked in ``fit``, as scikit-learn wants it."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from numbers import Real
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from attnknn.attend import KINDS, WeightingKind
from attnknn.bank import INDEXES, checked_k
from attnknn.embed import EMBEDDERS
from attnknn.errors import InvalidInput, MissingDevice
from attnknn.ops import METRICS

EXACT_BELOW = 100_000
"""Rows below which ``index="auto"`` searches exhaustively."""

CALIBRATIONS = ("auto", "density", "temperature", "isotonic", "prior", None)


@dataclass(frozen=True, slots=True)
class Options:
    """The arguments that mean more than their value."""

    k: int | None  # None: to be chosen
    weights: WeightingKind
    embedder: str


def check_options(model: Any) -> Options:
    """Refuse arguments that make no sense, or that nothing would read."""
    _one_of("weights", model.weights, KINDS)
    _one_of("embedder", model.embedder, tuple(EMBEDDERS))
    _one_of("metric", model.metric, ("auto", *METRICS))
    _one_of("index", model.index, ("auto", *INDEXES))
    _one_of("calibration", model.calibration, CALIBRATIONS)
    _one_of("device", str(model.device).split(":")[0], ("auto", "cpu", "cuda", "mps"))
    for name in ("attention", "training"):
        if getattr(model, name) is not None:
            raise InvalidInput(f"{name} options were given, but weights={model.weights!r} reads none")
    if model.n_estimators != 1:
        raise InvalidInput(
            f"n_estimators={model.n_estimators!r}: weights={model.weights!r} has nothing to average; use 1"
        )
    share = model.validation_fraction
    if isinstance(share, bool) or not isinstance(share, Real) or not 0 < float(share) < 1:
        raise InvalidInput(f"validation_fraction must be between 0 and 1, got {share!r}")
    if isinstance(model.n_neighbors, str):
        _one_of("n_neighbors", model.n_neighbors, ("auto",))
        return Options(None, model.weights, model.embedder)
    try:
        return Options(checked_k(model.n_neighbors), model.weights, model.embedder)
    except InvalidInput as problem:
        raise InvalidInput(f"n_neighbors: {problem}; or 'auto'") from problem


def search_device(device: str | torch.device) -> str:
    """The device that ``device`` means on this machine."""
    device = str(device)
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if device == "auto":
        return next(name for name in ("cuda", "mps", "cpu") if there[name])
    if not there.get(device.split(":")[0], False):
        raise MissingDevice(f"this machine has no device {device!r}; use device='cpu' or 'auto'")
    return device


def search_index(index: str, rows: int) -> str:
    """The index that ``index`` means for so many rows."""
    if index != "auto":
        return index
    return "hnsw" if rows >= EXACT_BELOW and find_spec("faiss") is not None else "exact"


def search_metric(metric: str, embedder: str, vectors: NDArray[Any]) -> str:
    """The metric that ``metric`` means for these vectors: cosine where they are given with length 1."""
    if metric != "auto":
        return metric
    if embedder != "identity" or vectors.shape[1] < 2:
        return "l2"
    norms = np.linalg.norm(vectors.astype(np.float64), axis=1)
    return "cosine" if np.abs(norms - 1).max() < 1e-4 else "l2"


def _one_of(name: str, value: Any, allowed: tuple[Any, ...]) -> None:
    if not isinstance(value, str | None) or value not in allowed:
        choices = ", ".join(repr(choice) for choice in allowed)
        raise InvalidInput(f"{name} must be one of {choices}, got {value!r}")
