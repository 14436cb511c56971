"""Cells with the very same predictions: those that a recipe allows, with the reason, and all others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from attnknn.study.calibrations import KINDS
from attnknn.study.points import method_of
from attnknn.study.recipe import ALIKE, CORRECTED, PLAIN, TAUGHT, Recipe

_LEARNED: Final = "LearnedWeighting"
_DRAWLESS: Final = ("sklearn-knn", "logistic", "hgb", "lightgbm", "distance+raw")
_SOFTMAX: Final = ("distance", "attention", "attention-none")


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell as its rules look at it: ``way`` and ``manner`` are the parts of the method's name around a +."""

    name: str
    seed: int
    settings: Mapping[str, Any]
    unanimous: bool = False  # see ``unanimous``

    @property
    def method(self) -> str:
        """Without the place."""
        return method_of(self.name)

    @property
    def place(self) -> str:
        """On the axis of the study."""
        return self.name.partition("@")[2]

    @property
    def way(self) -> str:
        """How it weighs."""
        return self.method.partition("+")[0]

    @property
    def manner(self) -> str:
        """How it answers, or is corrected."""
        return self.method.partition("+")[2]

    @property
    def members(self) -> Sequence[Mapping[str, Any]]:
        """What it consists of; a baseline has none."""
        found: Sequence[Mapping[str, Any]] = self.settings.get("members", ())
        return found


def unanimous(said: NDArray[np.float32]) -> bool:
    """Whether probabilities tell no more of a row than its winner: all neighbors of each are of one class.

    Where all rows get the same, or each its own, nothing says so.

    >>> unanimous(np.array([[0.9, 0.1], [0.9, 0.1], [0.2, 0.8]])), unanimous(np.array([[0.9, 0.1], [0.8, 0.2]]))
    (True, False)
    >>> unanimous(np.array([[0.7, 0.3], [0.7, 0.3]])), unanimous(np.array([[0.7, 0.3], [0.4, 0.6]]))
    (False, False)
    """
    answers = len(np.unique(said, axis=0))
    return 1 < answers < len(said) and answers == len(np.unique(said.argmax(axis=1)))


Rule = Callable[[Cell, Cell, Recipe], bool]


def _same_place(one: Cell, other: Cell) -> bool:
    return (one.place, one.seed) == (other.place, other.seed)


def _parted(one: Cell, other: Cell, ways: Sequence[str]) -> bool:
    """Whether they differ only in how they weigh, and that is one of some ways."""
    return _same_place(one, other) and one.manner == other.manner and {one.way, other.way} <= {*ways}


def _unlearned(one: Cell, other: Cell, recipe: Recipe) -> bool:
    kept = any(each.get("weigher") == _LEARNED for cell in (one, other) for each in cell.members)
    return _parted(one, other, _SOFTMAX) and not kept


def _distrusting(one: Cell, other: Cell, recipe: Recipe) -> bool:
    trusts = any(cell.settings.get("trust") for cell in (one, other) if cell.way == "reliability")
    return _parted(one, other, ("distance", "reliability")) and not trusts


def _lone(one: Cell, other: Cell, recipe: Recipe) -> bool:
    ks = {cell.settings.get("k") for cell in (one, other)}
    ours = all(cell.way in (*PLAIN, "attention-none") or _on_parts(cell.way) for cell in (one, other))
    return _same_place(one, other) and one.manner == other.manner and ours and ks == {1}


def _on_parts(way: str) -> bool:
    """Whether a variant of an ablation has the vectors of the usual training."""
    return way.startswith("attention-all")


def _raw(one: Cell, other: Cell, recipe: Recipe) -> bool:
    names = {one.method, other.method}
    untrained = all(each.get("network") is None for cell in (one, other) for each in cell.members)
    return _same_place(one, other) and "distance+raw" in names and names <= {*PLAIN, "distance+raw"} and untrained


def _usual(one: Cell, other: Cell, recipe: Recipe) -> bool:
    networks = [[each.get("network") for each in cell.members] for cell in (one, other)]
    names = {one.method, other.method} == {"attention", "attention-periodic"}
    return _same_place(one, other) and names and networks[0] == networks[1]


def _beyond(one: Cell, other: Cell, recipe: Recipe) -> bool:
    ks = {cell.settings.get("k") for cell in (one, other)}
    along = all(cell.place.startswith("k-") for cell in (one, other))
    return along and (one.method, one.seed) == (other.method, other.seed) and len(ks - {None}) == 1 == len(ks)


def _calibrated(one: Cell, other: Cell, recipe: Recipe) -> bool:
    calibrators = [cell.settings.get("calibrator") for cell in (one, other)]
    kinds = all(cell.method.partition("-")[2] in KINDS for cell in (one, other))
    masses = {cell.settings.get("prior_mass") for cell in (one, other)}
    falls_back = {one.method, other.method} == {"attention-matrix", "attention-temperature"}
    same = falls_back or (calibrators[0] == calibrators[1] and len(masses) == 1)
    return _same_place(one, other) and kinds and same


def _one_k(one: Cell, other: Cell, recipe: Recipe) -> bool:
    manners = [{*cell.manner.split("+")} - {""} for cell in (one, other)]
    more = manners[0] ^ manners[1]
    return _same_place(one, other) and one.way == other.way and bool(more) and more <= {"k-ensemble", "adaptive-k"}


def _one_view(one: Cell, other: Cell, recipe: Recipe) -> bool:
    manners = [{*cell.manner.split("+")} - {""} for cell in (one, other)]
    plain = (recipe.ours.images or {}).get("augmentation") == "none"
    return _same_place(one, other) and one.way == other.way and manners[0] ^ manners[1] == {"tta"} and plain


def _one_member(one: Cell, other: Cell, recipe: Recipe) -> bool:
    names = {one.method, other.method}
    return _same_place(one, other) and names == {"attention", "attention+ensemble"} and recipe.members == 1


def _same_factors(one: Cell, other: Cell, recipe: Recipe) -> bool:
    factors = {*(one.settings.get("prior_factors") or other.settings.get("prior_factors") or ())}
    names = {cell.method.removesuffix(CORRECTED) for cell in (one, other)}
    return _same_place(one, other) and len(names) == 1 and len(factors) == 1


def _same_examples(one: Cell, other: Cell, recipe: Recipe) -> bool:
    counts = {cell.settings.get("examples") for cell in (one, other)}
    known = len(counts) == 1 and None not in counts
    return _same_place(one, other) and {one.method, other.method} <= {*TAUGHT} and known


def _agreeing(one: Cell, other: Cell, recipe: Recipe) -> bool:
    ours = all(cell.members for cell in (one, other))
    return _same_place(one, other) and ours and one.unanimous and other.unanimous


def _official(one: Cell, other: Cell, recipe: Recipe) -> bool:
    drawless = one.method.removesuffix(CORRECTED) in _DRAWLESS or one.method.startswith("hgb-")
    return one.name == other.name and recipe.train_rows is not None and drawless


RULES: dict[str, Rule] = {
    "no-learned-part": _unlearned,
    "no-trust": _distrusting,
    "one-neighbor": _lone,
    "nothing-trained": _raw,
    "usual-embedder": _usual,
    "k-beyond-the-bank": _beyond,
    "same-calibrator": _calibrated,
    "one-k": _one_k,
    "one-view": _one_view,
    "one-member": _one_member,
    "same-prior": _same_factors,
    "same-examples": _same_examples,
    "all-agree": _agreeing,
    "official-split": _official,
}
"""When each of ``recipe.ALIKE`` lets two cells coincide, judged by what the cells tell."""


def told_apart(groups: Sequence[Sequence[Cell]], recipe: Recipe) -> tuple[list[dict[str, Any]], list[list[str]]]:
    """Groups of cells with the same predictions: those that the recipe allows, with reasons, and all others.

    A group is allowed where its cells hang together by pairs that are.
    """
    allowed, unexpected = [], []
    for group in groups:
        names = [f"{cell.name}-{cell.seed}" for cell in group]
        reasons = _reasons(group, recipe)
        if reasons is None:
            unexpected.append(names)
        else:
            allowed.append({"cells": names, "why": [ALIKE[reason] for reason in reasons]})
    return allowed, unexpected


def _reasons(group: Sequence[Cell], recipe: Recipe) -> list[str] | None:
    """Why the cells of a group may coincide; None where they may not."""
    part, found = list(range(len(group))), dict[str, None]()
    for one, other in combinations(range(len(group)), 2):
        if part[one] == part[other]:
            continue
        reason = _reason(group[one], group[other], recipe)
        if reason is not None:
            found[reason] = None
            part = [part[one] if each == part[other] else each for each in part]
    return list(found) if len(set(part)) == 1 else None


def _reason(one: Cell, other: Cell, recipe: Recipe) -> str | None:
    return next((name for name in recipe.may_coincide if RULES[name](one, other, recipe)), None)


def sentences(allowed: Sequence[Mapping[str, Any]], unexpected: Sequence[Sequence[str]]) -> list[str]:
    """Notes, a line for the same methods: on what may not coincide, then on what may.

    >>> sentences([{"cells": ["attention-0", "distance-0"], "why": ["nothing was learned"]}], [["a-0", "b-0"]])[0]
    'unexpected: a, b gave identical predictions, in 1 case such as a-0, b-0'
    """
    cases: dict[tuple[str, str], list[Sequence[str]]] = {}
    for cells in unexpected:
        cases.setdefault((_methods(cells), ""), []).append(cells)
    for group in allowed:
        cases.setdefault((_methods(group["cells"]), "; ".join(group["why"])), []).append(group["cells"])
    return [_sentence(methods, why, some) for (methods, why), some in cases.items()]


def _sentence(methods: str, why: str, cases: Sequence[Sequence[str]]) -> str:
    count = f"{len(cases)} case{'s' * (len(cases) != 1)}"
    if why:
        return f"identical predictions of {methods} in {count}: {why}"
    return f"unexpected: {methods} gave identical predictions, in {count} such as {', '.join(cases[0])}"


def _methods(cells: Sequence[str]) -> str:
    names = list(dict.fromkeys(method_of(cell.rpartition("-")[0]) for cell in cells))
    return f"{names[0]} at several places or seeds" if len(names) == 1 else ", ".join(names)
