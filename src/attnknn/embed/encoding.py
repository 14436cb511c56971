"""How one column becomes numbers in a vector, and how it is read back."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from attnknn.data.table import Column
from attnknn.embed.embedder import Vectors
from attnknn.errors import InvalidInput

MAX_CATEGORIES = 256
MAX_DEVIATIONS = 1e18  # beyond this a square no longer fits float32
OTHER = "(other)"

_EPS = float(np.finfo(np.float64).eps)
_TINY = float(np.finfo(np.float64).tiny)
_ONE_HOT = math.sqrt(0.5)  # two different categories then lie at distance 1


@dataclass(frozen=True, slots=True)
class NumberCode:
    """A numeric column: its standard score, and a flag for missing where fit saw missing values.

    Args:
        name: The column's name.
        mean: Mean at fit.
        scale: Standard deviation at fit, or 1 where the column was constant.
        integral: Whether every value at fit was a whole number.
        flagged: Whether fit saw missing values.
    """

    kind: ClassVar[str] = "number"
    name: str
    mean: float
    scale: float
    integral: bool
    flagged: bool

    @classmethod
    def learn(cls, column: Column) -> NumberCode:
        """Mean and scale of the values that are there."""
        present = column.values[~np.isnan(column.values)]
        mean, scale = _center_and_scale(present)
        integral = bool((present == np.rint(present)).all())
        return cls(column.name, mean, scale, integral, flagged=len(present) < len(column.values))

    @property
    def width(self) -> int:
        """How many numbers of the vector belong to this column."""
        return 1 + self.flagged

    def write(self, column: Column, out: NDArray[np.float32]) -> None:
        """Fill ``out``, of shape (rows, width)."""
        values = column.as_kind("numeric").values
        with np.errstate(over="ignore", under="ignore"):
            # Halves, because the difference of two values near the largest float overflows.
            scores = (values / 2 - self.mean / 2) / (self.scale / 2)
        absent = np.isnan(values)
        _refuse_remote(self.name, values, np.where(absent, 0.0, scores))
        with np.errstate(under="ignore"):
            out[:, 0] = np.where(absent, 0.0, scores)
        if self.flagged:
            out[:, 1] = absent

    def read(self, block: Vectors) -> list[object]:
        """The column's values that ``block`` stands for; None where they were missing."""
        absent = block[:, 1] > 0.5 if self.flagged else np.zeros(len(block), dtype=bool)
        scores = block[:, 0].astype(np.float64).tolist()
        return [None if gone else self._value(score) for score, gone in zip(scores, absent.tolist(), strict=True)]

    def _value(self, score: float) -> int | float:
        highest = float(np.finfo(np.float64).max)
        value = min(highest, max(-highest, self.mean + score * self.scale))
        doubt = abs(score) * 2.0**-22 * self.scale  # what float32 may have rounded away
        slack = max(doubt, 4 * _EPS * max(abs(value), abs(self.mean)))
        if self.integral and abs(value - round(value)) <= slack:
            return round(value)
        return _rounded(value, doubt)


@dataclass(frozen=True, slots=True)
class CategoryCode:
    """A column of categories, one-hot, so that two different categories lie at distance 1.

    A missing value is a category of its own where fit saw one. Whatever fit did not see is all
    zeros, except that a column cut down to its most frequent categories counts it as ``(other)``.

    Args:
        name: The column's name.
        boolean: Whether the categories are False and True.
        categories: The categories in order.
        missing: Whether missing has a place of its own.
        other: Whether rare categories share a place.
    """

    kind: ClassVar[str] = "category"
    name: str
    boolean: bool
    categories: tuple[str, ...]
    missing: bool
    other: bool

    @classmethod
    def learn(cls, column: Column) -> CategoryCode:
        """The categories in use, cut down to the most frequent ones above ``MAX_CATEGORIES``."""
        missing = bool(column.missing.any())
        if column.kind == "boolean":
            return cls(column.name, True, ("False", "True"), missing, other=False)
        counts = Counter(value for value in column.values if value is not None)
        other = len(counts) > MAX_CATEGORIES
        # Ties go by name: the order of the rows must not matter.
        ranked = sorted(counts, key=lambda value: (-counts[value], value))
        kept = ranked[: MAX_CATEGORIES - 1] if other else ranked
        return cls(column.name, False, tuple(sorted(kept)), missing, other)

    @property
    def width(self) -> int:
        """How many numbers of the vector belong to this column."""
        return len(self.categories) + self.missing + self.other

    def write(self, column: Column, out: NDArray[np.float32]) -> None:
        """Fill ``out``, of shape (rows, width)."""
        if self.boolean:
            column = column.as_kind("boolean")
        places = self._places()
        rest = self.width - 1 if self.other else -1
        text = column.as_kind("categorical").values
        at = np.fromiter((places.get(value, rest) for value in text), np.intp, len(text))
        known = np.flatnonzero(at >= 0)
        out[...] = 0.0
        out[known, at[known]] = _ONE_HOT

    def read(self, block: Vectors) -> list[object]:
        """The categories that ``block`` stands for; None where missing or not seen at fit."""
        labels: list[object] = [name == "True" if self.boolean else name for name in self.categories]
        labels += [None] * self.missing + [OTHER] * self.other
        at = block.argmax(axis=1)
        known = block[np.arange(len(block)), at] > _ONE_HOT / 2
        found = zip(at.tolist(), known.tolist(), strict=True)
        return [labels[place] if sure else None for place, sure in found]

    def _places(self) -> dict[str | None, int]:
        places: dict[str | None, int] = {name: at for at, name in enumerate(self.categories)}
        places[None] = len(self.categories) if self.missing else -1
        return places


Code = NumberCode | CategoryCode


def learn_code(column: Column) -> Code:
    """The encoding that suits the column's kind."""
    if column.missing.all():
        # Nothing is known of it, so any kind may come later: all are unseen categories.
        return CategoryCode(column.name, boolean=False, categories=(), missing=True, other=False)
    return NumberCode.learn(column) if column.kind == "numeric" else CategoryCode.learn(column)


def code_state(code: Code) -> dict[str, Any]:
    """The encoding as values that JSON holds exactly."""
    state = {"kind": code.kind, **asdict(code)}
    return {key: list(value) if isinstance(value, tuple) else value for key, value in state.items()}


def code_from_state(state: dict[str, Any]) -> Code:
    """The encoding that ``code_state`` wrote."""
    fields = dict(state)
    kind = fields.pop("kind")
    if kind == NumberCode.kind:
        return NumberCode(**{**fields, "mean": float(fields["mean"]), "scale": float(fields["scale"])})
    if kind == CategoryCode.kind:
        return CategoryCode(**{**fields, "categories": tuple(fields["categories"])})
    raise InvalidInput(f"no encoding is called {kind!r}")


def _center_and_scale(present: NDArray[np.float64]) -> tuple[float, float]:
    """Mean and standard deviation, the same for every order of the values, without overflow."""
    ordered = np.sort(present)  # a sum depends on its order
    largest = max(abs(float(ordered[0])), abs(float(ordered[-1])))
    # A spread that is nothing but rounding must not be blown up to 1.
    flat = max(1.0, _EPS * largest)
    if ordered[0] == ordered[-1]:
        return float(ordered[0]), flat
    with np.errstate(under="ignore"):
        shares = ordered / largest
        middle = float(shares.mean())
        middle += float((shares - middle).mean())
        spread = math.sqrt(float(np.square(shares - middle).mean()))
    scale = spread * largest
    return middle * largest, flat if spread < 16 * _EPS or scale < 4 * _TINY else scale


def _refuse_remote(name: str, values: NDArray[np.float64], scores: NDArray[np.float64]) -> None:
    remote = np.flatnonzero(np.abs(scores) > MAX_DEVIATIONS)
    if len(remote):
        raise InvalidInput(
            f"column {name!r}, row {remote[0]}: {values[remote[0]]:g} lies more than {MAX_DEVIATIONS:g} "
            f"standard deviations from the training mean ({len(remote)} such rows)"
        )


def _rounded(value: float, doubt: float) -> float:
    """Six significant digits, or fewer where rounding to float32 left fewer."""
    short = float(f"{value:.6g}")
    if 0.0 < doubt < math.inf:
        places = math.floor(-math.log10(doubt))
        if -300 < places < 300:
            short = round(short, places)
    return short + 0.0  # never -0.0
