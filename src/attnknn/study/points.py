"""Places along the axis of a study, such as rates of wrong labels. Imports nothing slow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from attnknn.study.recipe import Noise

KS = (1, 3, 5, 10, 20, 50)
RATES = (0.1, 0.2, 0.3, 0.4)
RATIOS = (0.1, 0.01)
BANK = "bank"
"""Ends the name of a line whose changes reach the bank alone, under a model that was trained without them."""


CLEAN = Noise()


@dataclass(frozen=True, slots=True)
class Point:
    """What differs at one place from the recipe of the study.

    Args:
        name: Part of the names of cells; empty where nothing differs.
        at: The place on the axis.
        line: The line that it is a point of; points without one belong to every line.
        noise: Wrong labels.
        tail: Size of the rarest class over that of the most frequent.
        bank_only: Whether the bank alone is changed, after a training without.
        k: How many neighbors.
        widest: The largest k of the study, at which neighbors are searched once for all.
    """

    name: str = ""
    at: float = 0.0
    line: str = ""
    noise: Noise = CLEAN
    tail: float = 1.0
    bank_only: bool = False
    k: int | None = None
    widest: int | None = None

    @property
    def training(self) -> str:
        """Points with the same one share what is trained."""
        return "" if self.bank_only or self.k is not None else self.name


PLAIN_POINT = Point()


@dataclass(frozen=True, slots=True)
class Scope:
    """What a study compares: keys of ``METHODS``, and places along its axis."""

    methods: Sequence[str]
    points: Sequence[Point] = (PLAIN_POINT,)


def cell_name(method: str, point: Point) -> str:
    """The name of a method's cell at a point.

    >>> cell_name("attention", Point("k-5", 5, k=5))
    'attention@k-5'
    """
    return f"{method}@{point.name}" if point.name else method


def method_of(cell: str) -> str:
    """The method of a cell's name."""
    return cell.partition("@")[0]


def k_points(ks: Sequence[int] = KS) -> tuple[Point, ...]:
    """A point for each k."""
    return tuple(Point(f"k-{k}", k, "k", k=int(k), widest=int(max(ks))) for k in sorted(set(ks)))


def noise_points(rates: Sequence[float] = RATES) -> tuple[Point, ...]:
    """Clean labels, then both kinds of wrong ones at each rate: in all that is learned from, and in the bank."""
    kinds: tuple[Literal["symmetric", "asymmetric"], ...] = ("symmetric", "asymmetric")
    found = [
        Point(f"{kind}-{float(rate)!r}", rate, kind, noise=Noise(rate, kind))
        for kind in kinds
        for rate in sorted(set(rates))
        if rate > 0
    ]
    return (PLAIN_POINT, *found, *map(_in_the_bank, found))


def meant_points(points: Sequence[Point], classes: int) -> tuple[Point, ...]:
    """The points that differ: of two classes a wrong label is always the other one, of either kind."""
    return tuple(point for point in points if classes != 2 or point.noise.kind == CLEAN.kind)


def tail_points(ratios: Sequence[float] = RATIOS) -> tuple[Point, ...]:
    """Classes as they are, then long tails: in all that is learned from, and in the bank."""
    found = [
        Point(f"tail-{float(ratio)!r}", ratio, "tail", tail=ratio) for ratio in sorted(set(ratios), reverse=True)
    ]
    found = [point for point in found if point.tail < 1]
    return (replace(PLAIN_POINT, at=1.0), *found, *map(_in_the_bank, found))


POINTS: dict[str, Callable[..., tuple[Point, ...]]] = {
    "k-sweep": k_points,
    "noise": noise_points,
    "imbalance": tail_points,
}
"""The studies that have an axis, and what makes their points of other numbers than the usual ones."""


def points_of(study: str, along: Sequence[float] | None = None, *, quick: bool = False) -> tuple[Point, ...]:
    """The points of a study: one where it has no axis.

    Args:
        study: Its name.
        along: Places on the axis; None takes the usual ones.
        quick: Only the ends of each line.
    """
    if study not in POINTS:
        return (PLAIN_POINT,)
    points = POINTS[study]() if along is None else POINTS[study](along)
    return ends(points) if quick else points


def ends(points: Sequence[Point]) -> tuple[Point, ...]:
    """The ends of each line: its last point, and its first unless points of every line come before it."""
    lines: dict[str, list[Point]] = {}
    for point in points:
        lines.setdefault(point.line, []).append(point)
    shared = lines.pop("", [])
    firsts = [] if shared else [some[0] for some in lines.values()]
    return tuple(dict.fromkeys([*shared, *firsts, *(some[-1] for some in lines.values())]))


def _in_the_bank(point: Point) -> Point:
    return replace(point, name=f"{point.name}-{BANK}", line=f"{point.line}-{BANK}", bank_only=True)
