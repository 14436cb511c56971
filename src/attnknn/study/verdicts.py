"""Sentences that intervals allow, and nothing more."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

JUDGED = {"accuracy": "accuracy", "nll": "NLL", "ece": "ECE", "auc": "AUC"}
"""Metrics that verdicts speak of, and how they are written."""

_SHARES: Final = (JUDGED["accuracy"], JUDGED["ece"], JUDGED["auc"])  # two of them differ by 1 at most

NOTHING: Final = "no difference found"
UNKNOWN: Final = "cannot be compared"
"""What is said where an interval holds 0, and where there is none."""

_ROUNDING = 1e-12
"""What the last digits of one model under two names may differ by."""


def verdicts(differences: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[str]:
    """A sentence for each pair of methods and each judged metric."""
    return [
        verdict(mine, other, JUDGED[metric], found)
        for mine, others in differences.items()
        for other, by_metric in others.items()
        for metric, found in by_metric.items()
        if metric in JUDGED
    ]


def verdict(mine: str, other: str, metric: str, found: Mapping[str, Any]) -> str:
    """What one difference allows to say.

    A difference is stated when the whole interval lies on one side of 0. It is for other seeds and test rows;
    where rows were not drawn it is for other seeds alone, and the sentence does not name rows.

    >>> verdict("a", "b", "accuracy", {"mean": 0.0031, "low": 0.0012, "high": 0.005, "seeds": [0, 1]})
    'a has higher accuracy than b: +.0031 [.0012, .0050] over 2 seeds'
    >>> verdict("a", "b", "NLL", {"mean": 0.01, "low": -0.01, "high": 0.03, "seeds": [0, 1]})
    'no difference found between a and b in NLL: +.0100 [-.0100, .0300] over 2 seeds'
    """
    word, seeds = judged(found), len(found["seeds"])
    if word.startswith(UNKNOWN):
        return f"{mine} and {other} {word.replace(UNKNOWN, f'{UNKNOWN} in {metric}')}"
    rows = " and their test rows" * ("over_rows" in found)
    numbers = f"{numbers_of(found, 1.0 if metric in _SHARES else math.inf)} over {seeds} seeds{rows}"
    if found.get("identical_seeds"):
        alike = len(found["identical_seeds"])
        numbers += f" (identical predictions in {alike} seed{'s' * (alike != 1)})"
    if word == NOTHING:
        return f"{NOTHING} between {mine} and {other} in {metric}: {numbers}"
    return f"{mine} has {word} {metric} than {other}: {numbers}"


def judged(found: Mapping[str, Any]) -> str:
    """What an interval says in a word: ``higher``, ``lower``, ``NOTHING``, or why it says nothing.

    >>> judged({"mean": 0.01, "low": 0.005, "high": 0.015, "seeds": [0, 1]})
    'higher'
    >>> judged({"mean": 0.01, "low": None, "high": None, "seeds": [0]})
    'cannot be compared: one seed has no interval'
    """
    seeds, (low, high) = len(found["seeds"]), ends_of(found)
    same = len(found.get("identical_seeds", ())) == seeds
    why = "they gave identical predictions" if same else _unknown(low, high, seeds)
    if why:
        return f"{UNKNOWN}: {why}"
    return "higher" if low > _ROUNDING else "lower" if high < -_ROUNDING else NOTHING


def numbers_of(found: Mapping[str, Any], most: float = 1.0) -> str:
    """A difference with its interval, which is shown no further than the metric can differ at ``most``.

    >>> numbers_of({"mean": 0.01, "low": 0.005, "high": 0.015})
    '+.0100 [.0050, .0150]'
    >>> numbers_of({"mean": 0.0, "low": -1.06, "high": 1.06})
    '+.0000 [-1.0000, 1.0000]'
    """
    mean, low, high = (round(each, 12) for each in (found["mean"], *ends_of(found)))  # beyond that is rounding
    return f"{fine(mean, sign=True)} [{fine(max(low, -most))}, {fine(min(high, most))}]"


def ends_of(found: Mapping[str, Any]) -> tuple[float, float]:
    """Both ends of an interval, NaN where one is unknown; reports of older versions have that over rows apart."""
    both = [found, *([found["over_rows"]] if "over_rows" in found else [])]
    ends = [[math.nan if each[end] is None else float(each[end]) for each in both] for end in ("low", "high")]
    if any(not math.isfinite(end) for some in ends for end in some):
        return math.nan, math.nan
    return min(ends[0]), max(ends[1])


def has_width(low: float, high: float) -> bool:
    """Whether an interval is one: seeds that agree have none, which would look like certainty."""
    return high - low >= _ROUNDING


def _unknown(low: float, high: float, seeds: int) -> str:
    """Why an interval says nothing; empty where it does."""
    if math.isnan(low):
        return "one seed has no interval" if seeds == 1 else "a value is not finite"
    agree = not has_width(low, high) and abs(low) > _ROUNDING
    return "seeds that agree by chance have no interval" if agree else ""


def of_leads(sentences: Sequence[str], leads: Sequence[str]) -> list[str]:
    """The sentences about methods that lead a study; all of them where none does."""
    begins = tuple(
        f"{start}{name}{end}"
        for name in leads
        for start, ends in (("", (" has ", " and ", "@")), ("no difference found between ", (" and ", "@")))
        for end in ends
    )
    return [each for each in sentences if each.startswith(begins)] or list(sentences)


def short(value: float, *, sign: bool = False) -> str:
    """Four decimals without the zero before the point.

    >>> short(-0.25), short(1.5), short(-0.00001, sign=True)
    ('-.2500', '1.5000', '+.0000')
    """
    value = round(value, 4) + 0.0  # no minus before zero
    text = f"{value:+.4f}" if sign else f"{value:.4f}"
    return text.replace("0.", ".", 1) if abs(value) < 1 else text


def fine(value: float, *, sign: bool = False) -> str:
    """As ``short``, but in powers of ten where four decimals would all be zeros.

    >>> fine(0.25), fine(0.0000321, sign=True), fine(-2e-17), fine(0.0)
    ('.2500', '+3.2e-05', '-2.0e-17', '.0000')
    """
    if not 0 < abs(value) < 5e-5:
        return short(value, sign=sign)
    return f"{value:+.1e}" if sign else f"{value:.1e}"
