"""A fitted classifier as a folder, and back. No code is stored, none is run."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn import __version__ as sklearn_version

from attnknn.attend import KINDS, Weighting
from attnknn.bank import MemoryBank
from attnknn.bank.folder import parse_json, read_folder, write_folder
from attnknn.bank.lock import ReadersWriterLock
from attnknn.calibrate import calibrator_from_state
from attnknn.embed import embedder_from_state
from attnknn.errors import AttnKNNError, CorruptModel, MissingDevice, MissingExtra
from attnknn.estimator.voter import Voter
from attnknn.train import Tuning

KIND = "classifier"


def write(path: str | os.PathLike[str], model: Any) -> None:
    """Save a fitted classifier as a folder: whole, or not at all."""
    voter: Voter = model.voter_
    about = {
        "parameters": _plain_parameters(model.get_params(deep=False)),
        "classes": {"dtype": _dtype_name(model.classes_), "values": model.classes_.tolist()},
        "features": model.n_features_in_,
        "feature_names": list(model.feature_names_in_) if hasattr(model, "feature_names_in_") else None,
        "fitted_on_frame": model.fitted_on_frame_,
        "embedder": model.embedder_.state(),
        "weighting": voter.weighting.state(),
        "k": voter.k,
        "prior_mass": voter.mass,
        "curve": model.tuning_.curve,
        "class_weight": voter.class_weight.tolist(),
        "calibrator": voter.calibrator.state(),
        "scikit-learn": sklearn_version,
    }
    write_folder(path, KIND, {"model.json": json.dumps(about).encode(), **voter.bank.to_files()})


def read(path: str | os.PathLike[str], model_class: Any, device: str | None) -> Any:
    """The classifier that :func:`write` saved."""
    files = read_folder(path, KIND)
    try:
        return _built(files, model_class, device)
    except (MissingExtra, MissingDevice):
        raise
    except CorruptModel as problem:
        raise CorruptModel(f"{os.fspath(path)}: {problem}") from problem
    except (AttnKNNError, KeyError, TypeError, ValueError, AttributeError) as broken:
        raise CorruptModel(f"{os.fspath(path)}: model.json does not describe a classifier: {broken}") from broken


def _built(files: Mapping[str, bytes], model_class: Any, device: str | None) -> Any:
    about = parse_json(files["model.json"], "model.json")
    model = model_class(**about["parameters"])
    if device is not None:
        model.set_params(device=device)
    model.classes_ = _classes(about["classes"])
    model.n_features_in_ = int(about["features"])
    if about["feature_names"] is not None:
        model.feature_names_in_ = np.asarray(about["feature_names"], object)
    model.fitted_on_frame_ = bool(about["fitted_on_frame"])
    model.embedder_ = embedder_from_state(about["embedder"])
    model._guard = ReadersWriterLock()
    model.tuning_ = Tuning(
        int(about["k"]),
        Weighting(**about["weighting"]),
        float(about["prior_mass"]),
        tuple((int(k), float(nll), float(error)) for k, nll, error in about.get("curve", ())),
        np.empty(0, np.int64),
    )
    model.voter_ = Voter(
        bank=MemoryBank.from_files(files, device=model.search_device()),
        classes=len(model.classes_),
        class_weight=np.asarray(about["class_weight"], np.float64),
        weighting=Weighting(**about["weighting"]),
        k=int(about["k"]),
        mass=float(about["prior_mass"]),
        calibrator=calibrator_from_state(about["calibrator"]),
    )
    _check(model.voter_)
    if model.embedder_.dim != model.voter_.bank.dim or (model.classes_[:-1] >= model.classes_[1:]).any():
        raise CorruptModel("embedder, bank and classes do not fit together")
    return model


def _check(voter: Voter) -> None:
    """Refuse numbers that no fit produces."""
    labels = voter.bank.labels(voter.bank.live)
    if labels.size and labels.max() >= voter.classes:
        raise CorruptModel(f"rows carry label {labels.max()}, but there are {voter.classes} classes")
    if voter.weighting.kind not in KINDS or not 0 < voter.weighting.scale < np.inf:
        raise CorruptModel(f"no such weighting: {voter.weighting}")
    if voter.k < 1 or not 0 <= voter.mass < np.inf or len(voter.class_weight) != voter.classes:
        raise CorruptModel("k, prior mass or class weights make no sense")


def _plain_parameters(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Constructor arguments that JSON can hold; a random generator is not kept, it was used up by ``fit``."""
    plain = {**parameters, "device": str(parameters["device"])}  # a torch.device is as good as its name
    if not isinstance(plain["random_state"], int | type(None)):
        plain["random_state"] = None
    if isinstance(plain["class_weight"], Mapping):  # its effect is saved; JSON would turn its keys into strings
        plain["class_weight"] = None
    return {name: value.item() if isinstance(value, np.generic) else value for name, value in plain.items()}


def _dtype_name(classes: NDArray[Any]) -> str:
    return "object" if classes.dtype == object else classes.dtype.str


def _classes(saved: Mapping[str, Any]) -> NDArray[Any]:
    dtype = np.dtype(saved["dtype"])
    if dtype.kind not in "OUbiuf":
        raise CorruptModel(f"model.json: labels of type {dtype} are not ours")
    return np.asarray(saved["values"], dtype)
