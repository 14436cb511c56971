"""Why a prediction came out as it did: the neighbors, their weights, and what each class got from them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, overload

from attnknn.bank import Id


@dataclass(frozen=True, slots=True)
class Reason:
    """One neighbor of an explained row."""

    id: Id
    label: Any
    distance: float
    weight: float
    row: Mapping[str, Any] | None  # the original row, where it can be had


@dataclass(frozen=True, slots=True)
class Explanation:
    """One prediction with its reasons, the heaviest first.

    ``evidence`` sums the weights of each class. The vote is ``(evidence + prior_mass * prior) / (1 + prior_mass)``
    (the prior alone where there is no neighbor), and ``probabilities`` is the vote after calibration: the vote
    to the power ``1 / temperature``, normalized, where a temperature is given.
    """

    prediction: Any
    probabilities: Mapping[Any, float]
    evidence: Mapping[Any, float]
    prior: Mapping[Any, float]
    prior_mass: float
    temperature: float | None
    neighbors: Sequence[Reason]

    @property
    def contributions(self) -> dict[Any, float]:
        """The part of the vote for each class that its neighbors gave; the rest is the prior's."""
        return {label: share / (1 + self.prior_mass) for label, share in self.evidence.items()}

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON; labels become strings where they are keys."""
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
        lines = [f"prediction {self.prediction}  (probability {self.probabilities[self.prediction]:.3f})"]
        lines += ["", f"{'class':<16}{'probability':>12}{'neighbors':>11}{'prior':>8}"]
        given = self.contributions
        for label, chance in sorted(self.probabilities.items(), key=lambda item: -item[1])[:most]:
            prior = self.prior_mass * self.prior[label] / (1 + self.prior_mass)
            lines.append(f"{label!s:<16.16}{chance:>12.3f}{given[label]:>11.3f}{prior:>8.3f}")
        lines += ["", f"{'neighbor':<16}{'label':<16}{'weight':>8}{'distance':>10}"]
        for reason in self.neighbors[:most]:
            head = f"{reason.id!s:<16.16}{reason.label!s:<16.16}{reason.weight:>8.3f}{reason.distance:>10.4g}"
            lines.append(head + (f"  {_short(reason.row)}" if reason.row else ""))
        if len(self.neighbors) > most:
            rest = sum(reason.weight for reason in self.neighbors[most:])
            lines.append(f"and {len(self.neighbors) - most} more, together {rest:.3f}")
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.text()

    def _repr_html_(self, most: int = 20) -> str:
        columns = list(self.neighbors[0].row or ()) if self.neighbors else []
        shown = columns[:12]
        head = "".join(f"<th>{escape(str(name))}</th>" for name in ["id", "label", "weight", "distance", *shown])
        body = "".join(_html_row(reason, shown) for reason in self.neighbors[:most])
        chances = ", ".join(
            f"{escape(str(label))} {chance:.3f}"
            for label, chance in sorted(self.probabilities.items(), key=lambda item: -item[1])[:10]
        )
        return (
            f"<div><p><b>{escape(str(self.prediction))}</b> &mdash; {chances}</p>"
            f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
        )


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
        return "".join(each._repr_html_() for each in self._each)


def _html_row(reason: Reason, columns: Sequence[str]) -> str:
    row = reason.row or {}
    cells = [reason.id, reason.label, f"{reason.weight:.3f}", f"{reason.distance:.4g}"]
    cells += ["" if row.get(name) is None else row[name] for name in columns]
    return "<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in cells) + "</tr>"


def _short(row: Mapping[str, Any], most: int = 5) -> str:
    shown = ", ".join(f"{name}={value}" for name, value in list(row.items())[:most])
    return shown + (" ..." if len(row) > most else "")


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value


def _keyed(values: Mapping[Any, float]) -> dict[str, float]:
    return {str(label): value for label, value in values.items()}
