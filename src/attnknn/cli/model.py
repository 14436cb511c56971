"""A saved model as the commands see it: load, pick what it takes, read its labels and ids from text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnknn.errors import InvalidInput, UnknownId

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from numpy.typing import NDArray

    from attnknn.cli.pictures import Canvas
    from attnknn.cli.rows import Rows
    from attnknn.estimator import AttnKNNClassifier

_BOOLEANS = {"true": True, "false": False, "1": True, "0": False}
_SHOWN = 8


def load(folder: Path) -> AttnKNNClassifier:
    """The model in a folder, on the best device of this machine."""
    from attnknn.cli.screen import working

    with working(f"loading {folder}"):
        from attnknn.estimator import AttnKNNClassifier

        return AttnKNNClassifier.load(folder, device="auto")


def canvas(model: AttnKNNClassifier, data: str) -> Canvas | None:
    """What images of DATA are brought to for a model; None for one of tables.

    Raises:
        InvalidInput: DATA is a table and the model of images, or the other way round.
    """
    from attnknn.cli.pictures import Canvas
    from attnknn.cli.rows import holds_images

    pictured = holds_images(data)
    if pictured and not model.fitted_on_images_:
        raise InvalidInput(f"{data} holds images, but the model was fitted on a table")
    if not model.fitted_on_images_:
        return None
    encoder: Any = model.embedder_
    height, width, channels = encoder.shape
    if not pictured:
        raise InvalidInput(
            f"{data} is a table, but the model was fitted on images of {height} x {width} pixels; "
            "give an image, a folder of them, or a data set of images"
        )
    return Canvas((height, width), channels)


def features(model: AttnKNNClassifier, rows: Rows) -> tuple[Any, list[str]]:
    """What the model takes, columns picked by name, and the names of the columns that it does not."""
    if rows.are_images:
        return rows.X, []
    frame = rows.frame.set_axis([str(name) for name in rows.frame.columns], axis=1)
    names = _names(model, frame)
    missing = [name for name in names if name not in frame.columns]
    if missing:
        raise InvalidInput(
            f"{rows.source} lacks {some(missing)}, which the model needs; its columns are: {some(frame.columns)}"
        )
    ignored = [name for name in frame.columns if name not in set(names)]
    picked = frame[names]
    return (picked if model.fitted_on_frame_ else _array(picked)), ignored


def chosen(model: AttnKNNClassifier) -> dict[str, Any]:
    """What a fitted model consists of."""
    voter = model.voter_
    weighting, network = voter.weighting, voter.members[0].network
    return {
        "rows": len(voter.bank),
        "classes": len(model.classes_),
        "k": model.n_neighbors_,
        "weights": weighting.kind,
        "members": len(voter.members),
        "scale": None if weighting.kind in ("uniform", "distance") else weighting.scale,
        "trust": getattr(weighting, "trust", None) if weighting.kind == "reliability" else None,
        "prior_mass": voter.mass,
        "calibrator": voter.calibrator.kind,
        "embedder": network.kind if network is not None else str(model.embedder_.state()["kind"]),
        **_pictured(model),
        "index": voter.bank.index,
        "metric": voter.bank.metric,
        "dim": voter.bank.dim,
    }


def shown(choice: dict[str, Any]) -> dict[str, Any]:
    """The same for people: words instead of names, four digits, nothing that is not there."""
    return {name.replace("_", " "): _told(value) for name, value in choice.items() if value is not None}


def as_label(value: Any, classes: NDArray[Any]) -> Any:
    """A value of a file or the command line as a label of the model's type; None where it cannot be one."""
    kind = classes.dtype.kind
    if kind in "UO":
        return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
    if kind == "b":
        return _BOOLEANS.get(str(value).casefold())
    if isinstance(value, bool):
        return None
    try:
        real = float(value)
        whole = int(value) if isinstance(value, int | str) and kind != "f" else real
    except (ValueError, OverflowError):
        return None
    if kind == "f":
        return real
    return int(whole) if whole == int(real) or isinstance(whole, int) else None


def as_labels(values: Iterable[Any], classes: NDArray[Any]) -> NDArray[Any]:
    """Labels of the model's type; refuses what cannot be one."""
    import numpy as np

    given = list(values)
    labels = [as_label(value, classes) for value in given]
    if None in labels:
        wrong = given[labels.index(None)]
        raise InvalidInput(f"{wrong!r} cannot be a label of this model; its labels are like: {some(classes)}")
    return np.asarray(labels, object if classes.dtype.kind == "O" else None)


def known_labels(values: Iterable[Any], model: AttnKNNClassifier) -> NDArray[Any]:
    """Labels that are classes of the model; refuses others."""
    labels = as_labels(values, model.classes_)
    new = sorted(set(labels.tolist()) - set(model.classes_.tolist()))
    if new:
        raise InvalidInput(
            f"the model does not know the label {new[0]!r}; its classes are: {some(model.classes_)}"
        )
    return labels


def codes(values: NDArray[Any], model: AttnKNNClassifier) -> NDArray[np.int64]:
    """Labels as positions in the model's classes, -1 for what it does not know."""
    import numpy as np

    at = {label: code for code, label in enumerate(model.classes_.tolist())}
    found = (at.get(as_label(value, model.classes_), -1) for value in values.tolist())
    return np.fromiter(found, np.int64, len(values))


def known_id(text: str, model: AttnKNNClassifier) -> int | str:
    """An id of the bank: what looks like a whole number is tried as one first."""
    try:
        if int(text) in model.bank_:
            return int(text)
    except ValueError:
        pass
    # The bank compares composed forms; asking for the row does the same.
    model.bank_.rows([text])
    return text


def known_ids(texts: Sequence[str], model: AttnKNNClassifier) -> list[int | str]:
    """Ids of the bank; one that is unknown refuses them all."""
    found: list[int | str] = []
    unknown: list[str] = []
    for text in texts:
        try:
            found.append(known_id(text, model))
        except UnknownId:
            unknown.append(text)
    if unknown:
        raise UnknownId(f"the bank holds no id {some(unknown)}; nothing was changed")
    return found


def some(names: Iterable[Any]) -> str:
    """The first few of a list, quoted."""
    each = [repr(getattr(name, "item", lambda name=name: name)()) for name in names]
    return ", ".join(each[:_SHOWN]) + (f" and {len(each) - _SHOWN} more" if len(each) > _SHOWN else "")


def _pictured(model: AttnKNNClassifier) -> dict[str, Any]:
    """What only a model of images has."""
    if not model.fitted_on_images_:
        return {}
    network: Any = model.voter_.members[0].network
    encoder: Any = model.embedder_
    return {"backbone": network.backbone, "frozen": network.frozen, "image_size": list(encoder.shape)}


def _told(value: Any) -> Any:
    if isinstance(value, list):
        return " x ".join(map(str, value))
    return f"{value:.4g}" if isinstance(value, float) else value


def _names(model: AttnKNNClassifier, frame: pd.DataFrame) -> list[str]:
    if hasattr(model, "feature_names_in_"):
        return [str(name) for name in model.feature_names_in_]
    numbered = [f"x{at}" for at in range(model.n_features_in_)]
    if set(numbered) <= set(frame.columns) or len(frame.columns) != model.n_features_in_:
        return numbered
    return list(frame.columns)  # the model was fitted on an array: the order is all there is


def _array(frame: pd.DataFrame) -> NDArray[Any]:
    import numpy as np

    from attnknn.data import as_table

    for column in as_table(frame).columns:
        if column.kind == "categorical" or column.missing.any():
            raise InvalidInput(f"the model takes numbers only; column {column.name!r} has text or missing values")
    return frame.to_numpy(np.float64)
