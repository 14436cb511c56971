"""Floors of every kind of calibration error at once, from one stream of random numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnknn.metrics.inputs import Floats, checked_probabilities
from attnknn.metrics.reliability import CELLS, Kind, equal_width
from attnknn.metrics.scores import confidence, members, settled
from attnknn.metrics.smooth import smooth_pool

Outcomes: TypeAlias = NDArray[np.bool_]  # (draws, n)
# -> error of each draw (draws,)
Reader: TypeAlias = Callable[[Outcomes], Floats]
# the first draw of the stream that is read and the one after the last, what reads them, and where to
Span: TypeAlias = tuple[int, int, Reader, list[Floats]]


def ece_floors(
    several: Sequence[ArrayLike], draws: Mapping[Kind, int], *, bins: int = 15, seed: int = 0
) -> list[dict[Kind, float]]:
    """What ``ece_floor`` gives for each kind, of several predictions of one shape, in a fraction of the time.

    Every kind reads the numbers that it would draw alone, so that all share one stream.

    Args:
        several: Predictions, each ``(n, classes)``.
        draws: How many for each kind.
        bins: As in ``ece_floor``.
        seed: As in ``ece_floor``.

    Example:
        >>> ece_floors([[[1.0, 0.0]] * 4], {"equal-width": 20, "classwise": 10})
        [{'equal-width': 0.0, 'classwise': 0.0}]
    """
    checked_p = [checked_probabilities(each) for each in several]
    found: list[dict[Kind, list[Floats]]] = [{kind: [] for kind in draws} for _ in several]
    claims = [claim for p, into in zip(checked_p, found, strict=True) for claim in _claims(p, draws, bins, into)]
    rows, end = len(checked_p[0]), max(last for _, spans in claims for _, last, _, _ in spans)
    rng, step = np.random.default_rng(seed), max(1, CELLS // rows)
    drawn = np.empty((step, rows))
    for start in range(0, end, step):
        rng.random(out=drawn)
        for stated, spans in claims:
            _read(drawn, start, stated, spans)
    return [{kind: float(np.concatenate(parts).mean()) for kind, parts in each.items()} for each in found]


def _read(drawn: Floats, start: int, stated: Floats, spans: Sequence[Span]) -> None:
    """Let each span read its part of the outcomes that numbers of the stream, from a draw on, decide."""
    parts = [slice(max(first - start, 0), max(last - start, 0)) for first, last, _, _ in spans]
    if not any(len(drawn[part]) for part in parts):
        return
    outcomes = drawn < stated
    for part, (_, _, reader, into) in zip(parts, spans, strict=True):
        if len(drawn[part]):
            into.append(reader(outcomes[part]))


def _claims(
    probabilities: Floats, draws: Mapping[Kind, int], bins: int, into: Mapping[Kind, list[Floats]]
) -> Iterator[tuple[Floats, list[Span]]]:
    """Each stated probability (n,), and what is read of its outcomes."""
    sure = confidence(probabilities)
    readers: dict[Kind, Callable[[], Reader]] = {
        "equal-width": lambda: _equal_width(sure, bins),
        "equal-mass": lambda: _binned(sure, _equal_mass(sure, bins)),
        "smooth": lambda: _smooth(sure),
    }
    yield sure, [(0, draws[kind], make(), into[kind]) for kind, make in readers.items() if kind in draws]
    count = draws.get("classwise", 0)
    for at, column in enumerate(probabilities.T if count else ()):
        stated = settled(column)
        yield stated, [(at * count, (at + 1) * count, _equal_width(stated, bins), into["classwise"])]


def _equal_width(stated: Floats, bins: int) -> Reader:
    return _binned(stated, members(equal_width(stated, bins), bins), whole=len(stated) < 2**24)


def _binned(stated: Floats, share: Floats, *, whole: bool = False) -> Reader:
    """Gaps within bins; ``share`` (n, bins) is how much of a row lies in each.

    Where they are ``whole``, and rows so few that float32 counts them exactly, it does so in half the time.
    """
    kind: type[np.floating[Any]] = np.float32 if whole else np.float64
    expected, counted = stated @ share, share.astype(kind)
    return lambda outcomes: np.abs(expected - outcomes.astype(kind) @ counted).sum(axis=1) / len(stated)


def _equal_mass(stated: Floats, bins: int) -> Floats:
    """(n, bins): rows of equal probability lie between the same two places in order, in equal shares."""
    _, group, count = np.unique(stated, return_inverse=True, return_counts=True)
    ends, cuts = np.cumsum(count), np.linspace(0, 1, bins + 1) * len(stated)
    inside = np.minimum(ends[:, None], cuts[1:]) - np.maximum((ends - count)[:, None], cuts[:-1])
    return np.asarray((np.maximum(inside, 0) / count[:, None])[group])


def _smooth(stated: Floats) -> Reader:
    pool = smooth_pool(stated)
    # of weights it takes the sum alone
    return lambda outcomes: pool(stated - outcomes, np.full((len(outcomes), 1), float(len(stated))))
