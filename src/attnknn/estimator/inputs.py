"""What users pass in -> what the embedders take: frames to tables, arrays to finite floats, labels to codes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, column_or_1d, validate_data

from attnknn.bank import MemoryBank
from attnknn.data import Column, Table, as_images, as_table, is_frame
from attnknn.errors import InvalidInput

Rows = Table | NDArray[Any]


def checked_rows(estimator: BaseEstimator, X: Any, *, reset: bool) -> Rows:
    """Rows of a frame as a table, images (n, h, w, c) as they are, anything else as a finite float array.

    Names and number of columns are checked as scikit-learn does (``reset`` remembers them).
    """
    if isinstance(X, np.ndarray) and X.dtype == np.uint8 and X.ndim in (3, 4):
        return _checked_images(estimator, X, reset=reset)
    if not reset and estimator.fitted_on_images_:
        raise InvalidInput(f"the model was fitted on images, got {type(X).__name__} of shape {np.shape(X)}")
    if is_frame(X):
        return _checked_frame(estimator, X, reset=reset)
    array: NDArray[Any] = validate_data(estimator, X, reset=reset, dtype=[np.float64, np.float32])
    if not reset and estimator.fitted_on_frame_:
        names = getattr(estimator, "feature_names_in_", range(array.shape[1]))  # a frame may number its columns
        columns = [Column(str(name), "numeric", array[:, at].astype(float)) for at, name in enumerate(names)]
        return Table(tuple(columns))
    return array


def _checked_images(estimator: BaseEstimator, X: NDArray[np.uint8], *, reset: bool) -> NDArray[np.uint8]:
    images = as_images(X)
    if reset:
        if not len(images):
            raise InvalidInput(f"Found array with 0 sample(s) (shape={X.shape}) while a minimum of 1 is required.")
        estimator.fitted_on_images_ = True
        estimator.n_features_in_ = int(np.prod(images.shape[1:]))
        if hasattr(estimator, "feature_names_in_"):
            del estimator.feature_names_in_
    elif not estimator.fitted_on_images_:
        raise InvalidInput(f"the model was fitted on rows of {estimator.n_features_in_} columns, got images")
    return images


def _checked_frame(estimator: BaseEstimator, frame: Any, *, reset: bool) -> Rows:
    table = as_table(frame)
    validate_data(estimator, frame, reset=reset, skip_check_array=True)
    if reset:
        estimator.fitted_on_frame_ = True
        if len(table) == 0:
            raise InvalidInput(
                f"Found array with 0 sample(s) (shape={frame.shape}) while a minimum of 1 is required."
            )
    elif not estimator.fitted_on_frame_:
        return _as_array(table)
    return table


def _as_array(table: Table) -> NDArray[np.float64]:
    """A frame for a model that was fitted on an array: numbers only, nothing missing."""
    for column in table.columns:
        if column.kind == "categorical" or column.missing.any():
            raise InvalidInput(
                f"the model was fitted on a numeric array; column {column.name!r} is not numeric or lacks values"
            )
    return np.column_stack([np.asarray(column.values, np.float64) for column in table.columns])


def checked_labels(y: Any) -> NDArray[Any]:
    """Labels (n,): integers, booleans or strings; nothing missing, nothing continuous."""
    if y is None:
        raise ValueError("requires y to be passed, but the target y is None")
    labels: NDArray[Any] = column_or_1d(y, warn=True)
    if labels.dtype.kind in "mM":
        raise InvalidInput(f"labels are integers, booleans or strings, got dtype {labels.dtype}")
    if labels.dtype.kind == "O":
        missing = [at for at, label in enumerate(labels) if _is_missing(label)]
        if missing:
            raise InvalidInput(f"{len(missing)} labels are missing, the first in row {missing[0]}")
        kinds = {str if isinstance(label, str) else type(label) for label in labels}
        if len(kinds) > 1:
            raise InvalidInput(f"labels mix types: {', '.join(sorted(kind.__name__ for kind in kinds))}")
    elif labels.dtype.kind == "f" and not np.isfinite(labels).all():
        raise InvalidInput("Input y contains NaN or infinity: a label is missing")
    check_classification_targets(labels)
    return labels


def _is_missing(label: Any) -> bool:
    try:
        return label is None or bool(label != label)
    except TypeError:  # pandas' NA will not say
        return True


def with_classes(known: NDArray[Any], more: Any) -> NDArray[Any]:
    """Known classes and more, sorted; refuses to mix strings with numbers."""
    if more is None:
        return known
    added = checked_labels(more)
    if (added.dtype.kind in "OU") != (known.dtype.kind in "OU"):
        raise InvalidInput(f"classes {added[:3].tolist()} are of another type than labels {known[:3].tolist()}")
    return np.union1d(known, added)


def numbered_groups(groups: Any) -> NDArray[Any]:
    """Groups as integers, whatever they are called; integers stay, -1 being no group."""
    given = np.asarray(groups)
    return given if given.dtype.kind in "iu" else np.unique(given, return_inverse=True)[1]


def class_weights(given: Any, classes: NDArray[Any], labels: NDArray[Any]) -> NDArray[np.float64]:
    """(classes,) factors: 1 for None, scikit-learn's for ``balanced``, those of a dict by label."""
    each = np.ones(len(classes))
    if given is None:
        return each
    present = np.unique(labels)
    each[codes_of(present, classes)] = compute_class_weight(given, classes=present, y=labels)
    if isinstance(given, dict):  # also for classes that were announced but not seen
        each = np.array([given.get(label, 1.0) for label in classes.tolist()], np.float64)
    if not np.isfinite(each).all() or (each < 0).any():
        raise InvalidInput(f"class_weight must be finite and not negative, got {given!r}")
    return each


def checked_weights(sample_weight: Any, rows: int) -> NDArray[np.float64] | None:
    """(rows,) weights as given: not negative, with a finite sum above 0."""
    if sample_weight is None:
        return None
    weights: NDArray[np.float64] = _check_sample_weight(
        sample_weight, np.empty((rows, 1)), ensure_non_negative=True
    )
    with np.errstate(over="ignore"):
        total = float(weights.sum())
    if rows and not 0 < total < np.inf:
        raise InvalidInput(f"sample_weight must have a finite sum above 0, got {total:g}")
    return weights


def balancing_weights(labels: NDArray[Any], known: NDArray[Any], bank: MemoryBank) -> NDArray[np.float64]:
    """(rows,) weights by which the rows of each new label weigh together what a known class does on average.

    More rows of a known class weigh what its rows do on average.
    """
    totals = bank.label_weights(len(known))
    rows = np.bincount(bank.labels(bank.live), minlength=len(known))
    mean = totals[totals > 0].mean() if (totals > 0).any() else 1.0
    names, inverse, counts = np.unique(labels, return_inverse=True, return_counts=True)
    each = mean / counts
    for at, name in enumerate(names):
        place = np.flatnonzero(known == name)
        if len(place) and rows[place[0]]:
            each[at] = totals[place[0]] / rows[place[0]]
    return np.asarray(each[inverse])


def codes_of(labels: NDArray[Any], classes: NDArray[Any]) -> NDArray[np.int64]:
    """Labels as positions in ``classes`` (sorted); refuses one that is not there."""
    try:
        at = np.clip(np.searchsorted(classes, labels), 0, len(classes) - 1)
        known = classes[at] == labels
    except TypeError:  # strings among numbers
        known = np.zeros(len(labels), np.bool_)
    if not np.all(known):
        new = list(dict.fromkeys(labels[~np.asarray(known)].tolist()))[:5]
        raise InvalidInput(f"labels {new} are not among the classes of the model; add(..., classes=) allows more")
    return np.asarray(at, np.int64)
