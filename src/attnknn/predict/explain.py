"""Why a prediction came out as it did: the neighbors, their weights, and what each class got from them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

from attnknn.bank import Id
from attnknn.data.images import Pixels
from attnknn.predict.page import STYLE, part

_LEAST, _LONGEST = 16, 40  # columns of a terminal that a name may take


@dataclass(frozen=True, slots=True)
class Reason:
    """One neighbor of an explained row."""

    id: Id
    label: Any
    distance: float
    weight: float
    row: Mapping[str, Any] | None  # the original row, where it can be had
    picture: Pixels | None = field(default=None, repr=False, compare=False)  # (h, w, c), where rows are images


@dataclass(frozen=True, slots=True)
class Explanation:
    """One prediction with its reasons, the heaviest first.

    ``evidence`` sums the weights of each class. The vote is ``(evidence + prior_mass * prior) / (1 + prior_mass)``
    (the prior alone where there is no neighbor), and ``probabilities`` is the vote after calibration: the vote
    to the power ``1 / temperature``, normalized, where a temperature is given. ``picture`` is the explained image,
    (height, width, channels), where rows are images.
    """

    prediction: Any
    probabilities: Mapping[Any, float]
    evidence: Mapping[Any, float]
    prior: Mapping[Any, float]
    prior_mass: float
    temperature: float | None
    neighbors: Sequence[Reason]
    picture: Pixels | None = field(default=None, repr=False, compare=False)

    @property
    def contributions(self) -> dict[Any, float]:
        """The part of the vote for each class that its neighbors gave; the rest is the prior's."""
        return {label: share / (1 + self.prior_mass) for label, share in self.evidence.items()}

    @property
    def from_prior(self) -> dict[Any, float]:
        """The part of the vote for each class that the prior gave: all of it where there is no neighbor."""
        share = self.prior_mass / (1 + self.prior_mass) if sum(self.evidence.values()) > 0 else 1.0
        return {label: share * prior for label, prior in self.prior.items()}

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON; labels become strings where they are keys. Pictures are left out."""
        return {
            "prediction": _plain(self.prediction),
            "probabilities": _keyed(self.probabilities),
            "evidence": _keyed(self.evidence),
            "contributions": _keyed(self.contributions),
            "prior": _keyed(self.prior),
            "prior_mass": self.prior_mass,
            "temperature": self.temperature,
            "neighbors": [
                {
                    "id": reason.id,
                    "label": _plain(reason.label),
                    "distance": reason.distance,
                    "weight": reason.weight,
                    "row": None if reason.row is None else dict(reason.row),
                }
                for reason in self.neighbors
            ],
        }

    def text(self, most: int = 10) -> str:
        """A few lines for a terminal; at most ``most`` neighbors and classes."""
        lines = [
            f"prediction {_one_line(self.prediction)}  (probability {self.probabilities[self.prediction]:.3f})"
        ]
        ranked = sorted(self.probabilities.items(), key=lambda item: -item[1])[:most]
        shown, given, prior = self.neighbors[:most], self.contributions, self.from_prior
        wide = _width([label for label, _ in ranked] + [reason.label for reason in shown])
        lines += ["", f"{'class':<{wide}}{'probability':>12}{'neighbors':>11}{'prior':>8}"]
        for label, chance in ranked:
            lines.append(f"{_cut(label, wide)}{chance:>12.3f}{given[label]:>11.3f}{prior[label]:>8.3f}")
        first = _width([reason.id for reason in shown])
        lines += ["", f"{'neighbor':<{first}}{'label':<{wide}}{'weight':>8}{'distance':>10}"]
        for reason in shown:
            head = (
                f"{_cut(reason.id, first)}{_cut(reason.label, wide)}{reason.weight:>8.3f}{reason.distance:>10.4g}"
            )
            lines.append(head + (f"  {_short(reason.row)}" if reason.row and reason.picture is None else ""))
        if len(self.neighbors) > most:
            rest = sum(reason.weight for reason in self.neighbors[most:])
            lines.append(f"and {len(self.neighbors) - most} more, together {rest:.3f}")
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.text()

    def _repr_html_(self, most: int = 20) -> str:
        return STYLE + part(self, most)


class Explanations(Sequence[Explanation]):
    """Explanations of several rows, in their order; prints and shows itself in a notebook."""

    def __init__(self, each: Sequence[Explanation]) -> None:
        self._each = list(each)

    def __len__(self) -> int:
        return len(self._each)

    @overload
    def __getitem__(self, at: int) -> Explanation: ...
    @overload
    def __getitem__(self, at: slice) -> Explanations: ...
    def __getitem__(self, at: int | slice) -> Explanation | Explanations:
        return Explanations(self._each[at]) if isinstance(at, slice) else self._each[at]

    def __iter__(self) -> Iterator[Explanation]:
        return iter(self._each)

    def __str__(self) -> str:
        return "\n\n".join(f"row {at}: {each}" for at, each in enumerate(self._each))

    def _repr_html_(self) -> str:
        return STYLE + "".join(part(each, 20) for each in self._each)


def _width(values: Sequence[Any]) -> int:
    """Columns for a list of names, with a gap behind the longest."""
    return min(_LONGEST, max(_LEAST, *(len(_one_line(value)) + 2 for value in values), 0))


def _one_line(value: Any) -> str:
    """Text without breaks, which a table has no room for."""
    return str(value).translate({ord("\n"): "\\n", ord("\r"): "\\r", ord("\t"): "\\t"})


def _cut(value: Any, width: int) -> str:
    """A name in so many columns; of one that is too long the end is kept, where paths differ."""
    text = _one_line(value)
    text = text if len(text) < width else f"...{text[5 - width :]}"
    return f"{text:<{width}}"


def _short(row: Mapping[str, Any], most: int = 5) -> str:
    shown = ", ".join(f"{name}={value}" for name, value in list(row.items())[:most])
    return shown + (" ..." if len(row) > most else "")


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value


def _keyed(values: Mapping[Any, float]) -> dict[str, float]:
    return {str(label): value for label, value in values.items()}
