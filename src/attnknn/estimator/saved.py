"""A fitted classifier as a folder, and back. No code is stored, none is run."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from sklearn import __version__ as sklearn_version
from torch import nn

from attnknn.attend import KINDS, AttentionOptions, LearnedWeighting, Weighting
from attnknn.bank import MemoryBank
from attnknn.bank.folder import parse_json, read_folder, write_folder
from attnknn.bank.lock import ReadersWriterLock
from attnknn.calibrate import calibrator_from_state
from attnknn.embed import ImageEmbedder, embedder_from_state, network_from_state
from attnknn.errors import AttnKNNError, CorruptModel, MissingDevice, MissingExtra
from attnknn.estimator.image_benches import Suspect
from attnknn.estimator.voter import Member, Voter
from attnknn.predict import Lens, PredictionOptions, base_of, weigher_from_state
from attnknn.train import Tuning, training_from_state

KIND = "classifier"
_NOTHING = save_tensors({})


def write(path: str | os.PathLike[str], model: Any) -> None:
    """Save a fitted classifier as a folder: whole, or not at all."""
    voter: Voter = model.voter_
    about = {
        "parameters": _plain_parameters(model.get_params(deep=False)),
        "classes": {"dtype": _dtype_name(model.classes_), "values": model.classes_.tolist()},
        "features": model.n_features_in_,
        "feature_names": list(model.feature_names_in_) if hasattr(model, "feature_names_in_") else None,
        "fitted_on_frame": model.fitted_on_frame_,
        "fitted_on_images": model.fitted_on_images_,
        "embedder": model.embedder_.state(),
        "members": [_member_state(member) for member in voter.members],
        "prior_mass": voter.mass,
        "tuned_k": model.tuning_.k,
        "curve": model.tuning_.curve,
        "lens": voter.lens.state(),
        "class_weight": voter.class_weight.tolist(),
        "calibrator": voter.calibrator.state(),
        "suspects": [each.to_dict() for each in model.suspects_],
        "scikit-learn": sklearn_version,
    }
    files = {"model.json": json.dumps(about).encode()}
    for number, member in enumerate(voter.members):
        files |= {_prefix(number) + name: content for name, content in _member_files(member).items()}
    write_folder(path, KIND, files)


def _member_state(member: Member) -> dict[str, Any]:
    network = member.network
    return {
        "network": None if network is None else {"kind": network.kind, "shape": network.shape()},
        "weigher": member.weigher.state(),
        "k": member.k,
    }


def _member_files(member: Member) -> dict[str, bytes]:
    """The bank of a member, and the weights of what it learned."""
    files = member.bank.to_files()
    learned: dict[str, nn.Module | None] = {"network": member.network}
    weigher = base_of(member.weigher)
    if isinstance(weigher, LearnedWeighting):
        learned["attention"] = weigher.attention
    for name, module in learned.items():
        if module is not None:
            files[f"{name}.safetensors"] = save_tensors(
                {key: value.detach().cpu().contiguous() for key, value in module.state_dict().items()}
            )
    return files


def _prefix(member: int) -> str:
    """Before the names of a member's files; the first has none."""
    return f"member{member}_" if member else ""


def read(path: str | os.PathLike[str], model_class: Any, device: str | None) -> Any:
    """The classifier that :func:`write` saved."""
    files = read_folder(path, KIND)
    try:
        return _built(files, model_class, device)
    except (MissingExtra, MissingDevice):
        raise
    except CorruptModel as problem:
        raise CorruptModel(f"{os.fspath(path)}: {problem}") from problem
    except (AttnKNNError, SafetensorError, KeyError, TypeError, ValueError, AttributeError) as broken:
        raise CorruptModel(
            f"{os.fspath(path)}: its files do not describe a classifier (model.json): {broken}"
        ) from broken


def _built(files: Mapping[str, bytes], model_class: Any, device: str | None) -> Any:
    about = parse_json(files["model.json"], "model.json")
    model = model_class(**_parameters(about["parameters"]))
    if device is not None:
        model.set_params(device=device)
    model.classes_ = _classes(about["classes"])
    model.n_features_in_ = int(about["features"])
    if about["feature_names"] is not None:
        model.feature_names_in_ = np.asarray(about["feature_names"], object)
    model.fitted_on_frame_ = bool(about["fitted_on_frame"])
    model.fitted_on_images_ = bool(about.get("fitted_on_images", False))
    model.embedder_ = embedder_from_state(about["embedder"])
    model.suspects_ = tuple(Suspect.from_dict(each) for each in about.get("suspects", ()))
    model._guard = ReadersWriterLock()
    device = model.search_device()
    states = about.get("members") or [_format_1(about)]
    members = tuple(_member(state, files, number, device) for number, state in enumerate(states))
    first = base_of(members[0].weigher)
    curve = tuple((int(k), float(nll), float(error)) for k, nll, error in about.get("curve", ()))
    weighting = first if isinstance(first, Weighting) else Weighting("softmax", first.scale)
    k = int(about.get("tuned_k", members[0].k))
    model.tuning_ = Tuning(k, weighting, float(about["prior_mass"]), curve)
    model.voter_ = Voter(
        members,
        classes=len(model.classes_),
        class_weight=np.asarray(about["class_weight"], np.float64),
        mass=float(about["prior_mass"]),
        calibrator=calibrator_from_state(about["calibrator"]),
        lens=Lens.from_state(about["lens"]) if "lens" in about else Lens(),
    )
    _check(model.voter_, model.embedder_.dim)
    if (model.classes_[:-1] >= model.classes_[1:]).any():
        raise CorruptModel("the classes are not in order")
    return model


def _format_1(about: Mapping[str, Any]) -> dict[str, Any]:
    """The one member of a model from before members were trained."""
    return {"network": None, "weigher": about["weighting"], "k": about["k"]}


def _member(state: Mapping[str, Any], files: Mapping[str, bytes], number: int, device: str) -> Member:
    prefix = _prefix(number)
    own = {name.removeprefix(prefix): content for name, content in files.items() if name.startswith(prefix)}
    tensors = {name: load_tensors(own.get(f"{name}.safetensors", _NOTHING)) for name in ("network", "attention")}
    network = None
    if state["network"] is not None:
        network = network_from_state(state["network"], tensors["network"])
        network.to(device)
    weigher = weigher_from_state(state["weigher"], tensors["attention"])
    base = base_of(weigher)
    if isinstance(base, LearnedWeighting):
        base.attention.to(device)
    return Member(network, MemoryBank.from_files(own, device=device), weigher, int(state["k"]))


def _check(voter: Voter, width: int) -> None:
    """Refuse numbers that no fit produces."""
    ids = voter.bank.ids
    for member in voter.members:
        bank, network = member.bank, member.network
        labels = bank.labels(bank.live)
        if labels.size and labels.max() >= voter.classes:
            raise CorruptModel(f"rows carry label {labels.max()}, but there are {voter.classes} classes")
        kind = base_of(member.weigher).kind
        if kind not in (*KINDS, LearnedWeighting.kind) or not 0 < member.weigher.scale < np.inf:
            raise CorruptModel(f"no such weighting: {kind}, scale {member.weigher.scale}")
        if (network.embed_dim if network is not None else width) != bank.dim or bank.ids != ids:
            raise CorruptModel("embedder, bank and members do not fit together")
        if member.k < 1:
            raise CorruptModel(f"k is {member.k}")
        outputs = voter.lens.outputs
        if outputs is not None and not _has_head(network, outputs, voter.classes):
            raise CorruptModel(f"no head has the outputs {outputs}")
    if not 0 <= voter.mass < np.inf or len(voter.class_weight) != voter.classes:
        raise CorruptModel("prior mass or class weights make no sense")


def _has_head(network: Any, outputs: tuple[int, ...], classes: int) -> bool:
    """Whether a network has a head with so many outputs, each for a class of its own."""
    fits = isinstance(network, ImageEmbedder) and network.classes == len(outputs) > 0
    return fits and len(set(outputs)) == len(outputs) and min(outputs) >= 0 and max(outputs) < classes


def _plain_parameters(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Constructor arguments that JSON can hold; a random generator is not kept, it was used up by ``fit``."""
    plain = {**parameters, "device": str(parameters["device"])}  # a torch.device is as good as its name
    if not isinstance(plain["random_state"], int | type(None)):
        plain["random_state"] = None
    if isinstance(plain["class_weight"], Mapping):  # its effect is saved; JSON would turn its keys into strings
        plain["class_weight"] = None
    for name in ("attention", "training", "prediction"):
        plain[name] = plain[name] and plain[name].state()
    return {name: value.item() if isinstance(value, np.generic) else value for name, value in plain.items()}


def _parameters(plain: Mapping[str, Any]) -> dict[str, Any]:
    """What :func:`_plain_parameters` wrote, as constructor arguments."""
    given = {**plain}
    if plain.get("attention") is not None:
        given["attention"] = AttentionOptions(**plain["attention"])
    if plain.get("training") is not None:
        given["training"] = training_from_state(plain["training"])
    if plain.get("prediction") is not None:
        given["prediction"] = PredictionOptions(**plain["prediction"])
    return given


def _dtype_name(classes: NDArray[Any]) -> str:
    return "object" if classes.dtype == object else classes.dtype.str


def _classes(saved: Mapping[str, Any]) -> NDArray[Any]:
    dtype = np.dtype(saved["dtype"])
    if dtype.kind not in "OUbiuf":
        raise CorruptModel(f"model.json: labels of type {dtype} are not ours")
    return np.asarray(saved["values"], dtype)
