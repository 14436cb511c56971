"""The tables of a report as CSV and, with booktabs, as LaTeX."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from attnknn.study.record import write_bytes
from attnknn.study.verdicts import short

METRICS: Final = {
    "accuracy": "accuracy",
    "f1_macro": "macro F1",
    "nll": "NLL",
    "ece": "ECE",
    "ece_floor": "floor of ECE",
    "brier": "Brier",
    "aurc": "AURC",
    "auc": "AUC",
    "balanced_accuracy": "mean recall",
    "recall_new": "recall of the new class",
    "accuracy_others": "accuracy on the others",
}
"""Metrics of a table, and how they are written."""

MOST: Final = dict.fromkeys(METRICS, 1.0) | {"nll": math.inf, "brier": 2.0}
"""What a metric cannot exceed; none is below 0. An interval is shown no further than that."""

_SPECIAL = str.maketrans({each: f"\\{each}" for each in "&%$#_{}"} | {"~": r"\textasciitilde{}", "^": r"\^{}"})


def write_tables(report: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write ``methods`` and ``uncalibrated`` as .csv and .tex; returns what was written."""
    written = []
    for kind in ("methods", "uncalibrated"):
        for suffix, text in (("csv", as_csv(report[kind])), ("tex", as_latex(report[kind]))):
            path = folder / f"{kind}.{suffix}"
            write_bytes(path, text.encode())
            written.append(path)
    return written


def in_words(found: Mapping[str, Any] | None, metric: str) -> tuple[str, str]:
    """A mean and its interval as a reader sees them; no interval is shown beyond what the metric can be.

    >>> in_words({"mean": 0.98, "low": 0.94, "high": 1.02}, "accuracy")
    ('.9800', '.9400 to 1.0000')
    """
    if found is None or not finite(found["mean"]):
        return "–", ""
    if not finite(found["low"]):
        return short(found["mean"]), ""
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
    heads = " & ".join(["method", *(METRICS[name] for name in shown)])
    lines = [
        " & ".join([method.translate(_SPECIAL), *(_in_latex(metrics.get(name)) for name in shown)])
        for method, metrics in methods.items()
    ]
    body = "".join(f"{line} \\\\\n" for line in lines)
    begin = f"\\begin{{tabular}}{{l{'r' * len(shown)}}}\n\\toprule\n{heads} \\\\\n\\midrule\n"
    return f"{begin}{body}\\bottomrule\n\\end{{tabular}}\n"


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
