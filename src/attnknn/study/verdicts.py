"""Sentences that intervals allow, and nothing more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

JUDGED = {"accuracy": "accuracy", "nll": "NLL", "ece": "ECE", "auc": "AUC"}
"""Metrics that verdicts speak of, and how they are written."""


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

    A difference is stated when every interval that there is lies on one side of 0: the one over seeds, and the
    one over test rows where all seeds share them.

    >>> verdict("a", "b", "accuracy", {"mean": 0.0031, "low": 0.0012, "high": 0.005, "seeds": [0, 1]})
    'a has higher accuracy than b: +.0031 [.0012, .0050] over 2 seeds'
    >>> verdict("a", "b", "NLL", {"mean": 0.01, "low": -0.01, "high": 0.03, "seeds": [0, 1]})
    'no difference found between a and b in NLL: +.0100 [-.0100, .0300] over 2 seeds'
    """
    seeds, over_rows = len(found["seeds"]), found.get("over_rows")
    same = len(found.get("identical_seeds", ()))
    if same == seeds:
        return f"{mine} and {other} cannot be compared in {metric}: they gave identical predictions"
    intervals = [(found["low"], found["high"])]
    if over_rows is not None:
        intervals.append((over_rows["low"], over_rows["high"]))
    if any(not _known(end) for interval in intervals for end in interval):
        why = "one seed has no interval" if seeds == 1 else "a value is not finite"
        return f"{mine} and {other} cannot be compared in {metric}: {why}"
    numbers = f"{short(found['mean'], sign=True)} {_interval(intervals[0])} over {seeds} seeds"
    if same:
        numbers += f" (identical predictions in {same})"
    if over_rows is not None:
        numbers += f", {_interval(intervals[1])} over test rows"
    if all(low > 0 for low, _ in intervals):
        return f"{mine} has higher {metric} than {other}: {numbers}"
    if all(high < 0 for _, high in intervals):
        return f"{mine} has lower {metric} than {other}: {numbers}"
    return f"no difference found between {mine} and {other} in {metric}: {numbers}"


def of_leads(sentences: Sequence[str], leads: Sequence[str]) -> list[str]:
    """The sentences about methods that lead a study; all of them where none does."""
    begins = tuple(
        f"{start}{name}{end}"
        for name in leads
        for start, ends in (("", (" has ", " and ", "@")), ("no difference found between ", (" and ", "@")))
        for end in ends
    )
    return [each for each in sentences if each.startswith(begins)] or list(sentences)


def _known(value: float | None) -> bool:
    return value is not None and abs(value) < float("inf")


def short(value: float, *, sign: bool = False) -> str:
    """Four decimals without the zero before the point.

    >>> short(-0.25), short(1.5), short(-0.00001, sign=True)
    ('-.2500', '1.5000', '+.0000')
    """
    value = round(value, 4) + 0.0  # no minus before zero
    text = f"{value:+.4f}" if sign else f"{value:.4f}"
    return text.replace("0.", ".", 1) if abs(value) < 1 else text


def _interval(ends: tuple[float, float]) -> str:
    return f"[{short(ends[0])}, {short(ends[1])}]"
