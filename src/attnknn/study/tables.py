"""The tables of a report as CSV and, with booktabs, as LaTeX."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from attnknn.study.verdicts import JUDGED, ends_of, has_width, judged, short

FLOOR: Final = "ece_floor"

METRICS: Final = {
    "accuracy": "accuracy",
    "f1_macro": "macro F1",
    "nll": "NLL",
    "ece": "ECE",
    FLOOR: "floor of ECE",
    "brier": "Brier",
    "aurc": "AURC",
    "auc": "AUC",
    "balanced_accuracy": "mean recall",
    "recall_new": "recall of the new class",
    "accuracy_others": "accuracy on the others",
}
"""Metrics of a table, and how they are written."""

ERRORS: Final = {
    "ece": "equal width",
    "ece_equal_mass": "equal mass",
    "ece_smooth": "smooth",
    "ece_classwise": "classwise",
}
"""Kinds of calibration error, and how they are written; each has a floor under its name with ``_floor``."""

MOST: Final = dict.fromkeys([*METRICS, *ERRORS], 1.0) | {"nll": math.inf, "brier": 2.0}
"""What a metric cannot exceed; none is below 0. An interval is shown no further than that."""

_SPECIAL = str.maketrans(
    {each: f"\\{each}" for each in "&%$#_{}"}
    | {
        each: rf"\text{word}{{}}"
        for each, word in zip("<>~\\", ("less", "greater", "asciitilde", "backslash"), strict=True)
    }
    | {"^": r"\^{}", "–": "--", "\n": " "}
)
_NUMERAL = r"[-+]?[\d.]+(?:e[-+]\d+)?%?"
_ESTIMATE: Final = re.compile(
    rf"(?P<value>{_NUMERAL})"
    rf"(?:\n(?:in every seed|\[?(?P<low>{_NUMERAL})(?: to |, )(?P<high>{_NUMERAL})\]?))?"
    rf"(?:\nfloor (?P<floor>{_NUMERAL}))?"
)
"""A cell of a value with its interval, its floor or both, as ``in_words`` and the grids write them."""

_COMMANDS: Final = ("=", "+", "-", "@", "\t")  # what spreadsheets run

Cells = Sequence[Sequence[str]]


def grid_csv(rows: Cells) -> str:
    r"""Rows of text, the first of heads; what a spreadsheet would take for a formula stays text.

    A column of estimates becomes several of numbers, with the ends of intervals, and floors where there are some.

    >>> print(grid_csv([("method", "=1+1", "kept"), ("a", "x", "90%\n[80%, 95%]"), ("b", "y\nz", ".5")]), end="")
    method,'=1+1,kept,kept low,kept high
    a,x,0.9,0.8,0.95
    b,y z,.5,,
    >>> print(grid_csv([("method", "ece"), ("a", ".09\nfloor .04"), ("b", ".05\n.00 to .14\nfloor .05")]), end="")
    method,ece,ece low,ece high,ece floor
    a,.09,,,.04
    b,.05,.00,.14,.05
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    columns = [each for column in zip(*rows, strict=True) for each in _apart(column)]
    writer.writerows([_harmless(cell.replace("\n", " ")) for cell in row] for row in zip(*columns, strict=True))
    return out.getvalue()


def _apart(column: Sequence[str]) -> list[Sequence[str]]:
    """A column as it is, or those of its values, of the ends of their intervals and of their floors."""
    head, *cells = column
    found = [_ESTIMATE.fullmatch(cell) for cell in cells]
    known = [each for each in found if each]
    if not known or any(each is None and "\n" in cell for each, cell in zip(found, cells, strict=True)):
        return [column]
    parts = [part for part in ("low", "high", "floor") if any(each[part] for each in known)]
    values = [cell if each is None else _number(each["value"]) for each, cell in zip(found, cells, strict=True)]
    others = [
        [f"{head} {part}", *("" if each is None else _number(each[part]) for each in found)] for part in parts
    ]
    return [[head, *values], *others]


def _number(text: str | None) -> str:
    """A share where there are percents; nothing for an end that there is not."""
    return "" if text is None else f"{float(text[:-1]) / 100:.10g}" if text.endswith("%") else text


def grid_latex(rows: Cells, words: int | None = None) -> str:
    """Rows of text, the first of heads; ``words`` is a column of sentences. Lines of a cell stay lines."""
    columns = ["p{7cm}" if at == words else "l" if not at else "r" for at in range(len(rows[0]))]
    cells = [[_lined(cell, column) for cell, column in zip(row, columns, strict=True)] for row in rows]
    return _tabular("".join(columns), cells)


def _lined(cell: str, column: str) -> str:
    r"""A cell whose lines stand below each other.

    >>> print(_lined(".9\n.8 to 1.0", "r"), _lined("one line", "r"))
    \shortstack[r]{.9\\.8 to 1.0} one line
    >>> print(_lined("90%\n[80%, 95%]", "r"))
    \shortstack[r]{90\%\\{}[80\%, 95\%]}
    """
    lines = [line.translate(_SPECIAL) for line in cell.split("\n")]
    if len(lines) == 1 or len(column) > 1:  # sentences break by themselves
        return " ".join(lines)
    # A bracket behind the end of a line would be read as its height.
    whole = ["{}" + line if line.startswith(("[", "*")) else line for line in lines]
    return rf"\shortstack[{column}]" + "{" + r"\\".join(whole) + "}"


def _harmless(cell: str) -> str:
    return (
        f"'{cell}" if cell.startswith(_COMMANDS) and len(cell) > 1 and not re.fullmatch(_NUMERAL, cell) else cell
    )


def in_words(found: Mapping[str, Any] | None, metric: str) -> tuple[str, str]:
    """A mean and its interval as a reader sees them; no interval is shown beyond what the metric can be.

    >>> in_words({"mean": 0.98, "low": 0.94, "high": 1.02}, "accuracy")
    ('.9800', '.9400 to 1.0000')
    """
    if found is None or not finite(found["mean"]):
        return "–", ""
    if not finite(found["low"]):
        return short(found["mean"]), ""
    if not has_width(found["low"], found["high"]):
        return short(found["mean"]), "in every seed"
    ends = max(0.0, found["low"]), min(MOST.get(metric, math.inf), found["high"])
    return short(found["mean"]), " to ".join(map(short, ends))


def as_csv(methods: Mapping[str, Mapping[str, Any]]) -> str:
    """A row for each method and metric, with mean, interval and the value of each seed."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["method", "metric", "mean", "low", "high", "values"])
    for method, metrics in methods.items():
        for metric, found in metrics.items():
            values = " ".join("" if value is None else repr(value) for value in found["values"])
            writer.writerow([method, metric, *(_digits(found[end]) for end in ("mean", "low", "high")), values])
    return out.getvalue()


def as_latex(methods: Mapping[str, Mapping[str, Any]]) -> str:
    """One line for each method: the mean of each metric and half of its interval."""
    shown = [name for name in METRICS if any(name in metrics for metrics in methods.values())]
    rows = [
        [method.translate(_SPECIAL), *(_in_latex(metrics.get(name)) for name in shown)]
        for method, metrics in methods.items()
    ]
    return _tabular("l" + "r" * len(shown), [["method", *(METRICS[name] for name in shown)], *rows])


_COMPARED: Final = ("method", "other", "metric", "mean", "low", "high", "seeds", "verdict")

Differences = Mapping[str, Mapping[str, Mapping[str, Mapping[str, Any]]]]


def differences_csv(differences: Differences) -> str:
    """A row for each paired difference of each metric, with what its interval says."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(_COMPARED)
    for names, found in _each(differences):
        ends = (_digits(each) for each in (found["mean"], *ends_of(found)))
        writer.writerow([*names, *ends, len(found["seeds"]), judged(found)])
    return out.getvalue()


def differences_latex(differences: Differences) -> str:
    """The same of the metrics that verdicts speak of."""
    rows = [
        [
            *(each.translate(_SPECIAL) for each in (mine, other, JUDGED[metric])),
            *(f"${each:+.4f}$" if finite(each) else "--" for each in (found["mean"], *ends_of(found))),
            str(len(found["seeds"])),
            judged(found),
        ]
        for (mine, other, metric), found in _each(differences)
        if metric in JUDGED
    ]
    return _tabular("lllrrrrl", [_COMPARED, *rows])


def _each(differences: Differences) -> Iterator[tuple[tuple[str, str, str], Mapping[str, Any]]]:
    for mine, others in differences.items():
        for other, metrics in others.items():
            for metric, found in metrics.items():
                yield (mine, other, metric), found


def _tabular(columns: str, rows: Cells) -> str:
    """A table of booktabs of cells that are LaTeX already, the first row above the line."""
    head, *body = [" & ".join(row) + " \\\\\n" for row in rows]
    begin = f"\\begin{{tabular}}{{{columns}}}\n\\toprule\n{head}\\midrule\n"
    return f"{begin}{''.join(body)}\\bottomrule\n\\end{{tabular}}\n"


def _in_latex(found: Mapping[str, Any] | None) -> str:
    if found is None or not finite(found["mean"]):
        return "--"
    if not finite(found["low"]):
        return f"${found['mean']:.4f}$"
    return f"${found['mean']:.4f} \\pm {(found['high'] - found['low']) / 2:.4f}$"


def _digits(value: float | None) -> str:
    return repr(float(value)) if finite(value) else ""  # type: ignore[arg-type]


def finite(value: float | None) -> bool:
    """Whether there is such a number."""
    return value is not None and math.isfinite(value)
