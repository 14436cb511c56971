"""The tables of images: what every method reaches, beside what the source documents published."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from attnknn.study.points import BANK, method_of
from attnknn.study.published import published
from attnknn.study.recipe import CORRECTED
from attnknn.study.verdicts import JUDGED, short, verdict

Report = Mapping[str, Any]

DATA = ("cifar10", "cifar100", "fashion-mnist", "mnist")
SHOWN = ("cnn", "attention", "attention+head-prior", "cnn+tta", "attention+tta")
"""Methods of the table in the README; the others are in the details."""

ASKED = ("cnn", "reliability", "distance")
"""What the attention must be compared with, whatever comes out."""


def summary(reports: Sequence[Report]) -> str:
    """Accuracy, NLL and ECE of the methods that matter most, a row for each data set."""
    lines = [
        "Accuracy / NLL / ECE on the official test images, means over seeds, ResNet-18 from scratch. The CNN has",
        "the same training with one option changed. Intervals and all other methods are in",
        "[docs/reference/results.md](docs/reference/results.md#images).",
        "",
        f"| data | seeds | {' | '.join(f'`{name}`' for name in SHOWN)} |",
        f"|{'---|' * (len(SHOWN) + 2)}",
        *(row(each, [_three(each, name) for name in SHOWN]) for each in reports),
    ]
    return "\n".join([*lines, ""])


def row(report: Report, cells: Sequence[str]) -> str:
    """What a report has, behind its data and how many seeds there were."""
    return f"| {' | '.join([report['config']['data'], str(len(report['seeds'])), *cells])} |"


def details(reports: Sequence[Report]) -> str:
    """A table for each report, what it took to train, the comparisons that must be made, and the command."""
    return "\n".join("\n".join(_report(report)) for report in reports)


def taught(reports: Sequence[Report]) -> str:
    """What is recognized of a class that was left out of the training, once some of its images are in the bank."""
    lines = []
    for report in reports:
        classes = [each["new_class"] for each in next(iter(report["settings"].values()))]
        columns = ("accuracy", "recall_new", "accuracy_others", "nll", "ece")
        lines += [
            f"**{report['config']['data']}**, {len(report['seeds'])} seeds; new is {', '.join(classes)}:",
            "",
            "| method | accuracy | recall of the new class | accuracy on the others | NLL | ECE |",
            f"|{'---|' * (len(columns) + 1)}",
            *(
                f"| `{name}` | {' | '.join(estimate(found[metric]) for metric in columns)} |"
                for name, found in report["methods"].items()
            ),
            "",
            f"- repeat: `{report['command']}`",
            "",
        ]
    return "\n".join(lines)


def along(reports: Sequence[Report]) -> str:
    """Accuracy and NLL of each method at every place of an axis, what was found, and what was not run."""
    lines = []
    for report in reports:
        points = sorted(report["points"], key=lambda name: _place(report["points"][name]))
        methods = list(dict.fromkeys(method_of(name) for name in report["methods"]))
        lines += [
            f"**{report['config']['data']}**, {report['study']}, {len(report['seeds'])} seeds, accuracy / NLL:",
            "",
            f"| method | {' | '.join(name or 'as they are' for name in points)} |",
            f"|{'---|' * (len(points) + 1)}",
            *(f"| `{name}` | {' | '.join(_at(report, name, point) for point in points)} |" for name in methods),
            "",
            *(f"- {sentence}" for sentence in [*_found(report), *unrun(report)]),
            f"- repeat: `{re.sub(' --minutes [0-9.]+', '', report['command'])}`",
            "",
        ]
    return "\n".join(lines)


def _place(point: Mapping[str, Any]) -> tuple[bool, bool, str, float]:
    """The plain place first, then lines, those of the bank alone last, each away from what is plain."""
    line = point["line"]
    return bool(line), line.endswith(BANK), line, -point["at"] if line.startswith("tail") else point["at"]


def _at(report: Report, method: str, point: str) -> str:
    name = f"{method}@{point}" if point else method
    found = report["methods"].get(name)
    if found is None:
        return "-"
    seeds = sum(each is not None for each in found["accuracy"]["values"])
    few = f" ({seeds} seed{'s' * (seeds > 1)})" * (seeds < len(report["seeds"]))
    return f"{estimate(found['accuracy'])} / {short(found['nll']['mean'])}{few}"


def _found(report: Report) -> list[str]:
    """What the attention was found to be better or worse than, in accuracy or NLL, at a place of the axis.

    With a correction of the prior it is compared with others that have one.
    """
    return [
        verdict(name, other, JUDGED[metric], gap)
        for name, others in report["differences"].items()
        if method_of(name) in ("attention", f"attention{CORRECTED}")
        for other, gaps in others.items()
        if (CORRECTED in name) == (CORRECTED in other)
        for metric, gap in gaps.items()
        if metric in ("accuracy", "nll") and (gap["low"] or 0) * (gap["high"] or 0) > 0
    ]


def unrun(report: Report) -> list[str]:
    """How many cells were not run, by reason."""
    reasons: dict[str, int] = {}
    for why in report["not_run"].values():
        reasons[why] = reasons.get(why, 0) + 1
    return [f"not run: {count} cells, {why}" for why, count in reasons.items()]


def _three(report: Report, name: str) -> str:
    found = report["methods"].get(name)
    return (
        "-" if found is None else " / ".join(short(found[metric]["mean"]) for metric in ("accuracy", "nll", "ece"))
    )


def _report(report: Report) -> list[str]:
    config, methods = report["config"], report["methods"]
    beside = config["data"] == "cifar10" and not config["noise"]["rate"]
    titles = [
        "method",
        "accuracy",
        "macro F1",
        "NLL",
        "ECE (floor)",
        *["best published: accuracy / NLL / ECE"] * beside,
    ]
    seeds = len(report["seeds"])
    return [
        f"**{config['data']}**, {seeds} seed{'s' * (seeds > 1)}{wrong(config)}:",
        "",
        f"| {' | '.join(titles)} |",
        f"|{'---|' * len(titles)}",
        *(_method(name, found, beside=beside) for name, found in methods.items()),
        "",
        *(f"- {sentence}" for sentence in [*_seconds(report), *_audits(report), *_compared(report)]),
        f"- repeat: `{report['command']}`",
        "",
    ]


def _method(name: str, found: Mapping[str, Any], *, beside: bool) -> str:
    floor = found["ece_floor"]["mean"]
    cells = [f"`{name}`", *(estimate(found[metric]) for metric in ("accuracy", "f1_macro", "nll"))]
    cells.append(estimate(found["ece"]) + ("" if floor is None else f" ({short(floor)})"))
    return f"| {' | '.join([*cells, *[_published(name)] * beside])} |"


def _published(name: str) -> str:
    """What the source documents state for CIFAR-10: of their runs, the one of the highest accuracy."""
    runs: dict[str, dict[str, float]] = {}
    for each in published("main", "cifar10"):
        if each.method == name:
            runs.setdefault(f"{each.document} {each.place} {each.setting}", {})[each.metric] = each.value
    runs = {name: run for name, run in runs.items() if "accuracy" in run}
    if not runs:
        return ""
    best = max(runs.values(), key=lambda run: run["accuracy"])
    told = " / ".join(short(best[metric]) for metric in ("accuracy", "nll", "ece"))
    return f"{told}, of {len(runs)} runs" if len(runs) > 1 else told


def estimate(found: Mapping[str, Any]) -> str:
    """Mean ± half the interval; JSON has null for what is not finite, and for the interval of one seed."""
    mean, low, high = (found[name] for name in ("mean", "low", "high"))
    if mean is None:
        return "-"
    return short(mean) if low is None or high is None else f"{short(mean)} ± {short((high - low) / 2)}"


def _seconds(report: Report) -> list[str]:
    took = {
        name: report["seconds"][name]["fit"]["values"]
        for name in ("attention", "cnn")
        if name in report["seconds"]
    }
    known = {name: [each for each in values if each is not None] for name, values in took.items()}
    words = [f"`{name}` {_span(each)} s" for name, each in known.items() if each]
    return [f"to fit, everything chosen and calibrated: {', '.join(words)}"] if words else []


def _span(values: Sequence[float]) -> str:
    """From the least to the most, or the one that there is."""
    low, high = f"{min(values):.0f}", f"{max(values):.0f}"
    return low if low == high else f"{low} to {high}"


def _audits(report: Report) -> list[str]:
    told = [each["audit"] for each in report["settings"].get("attention", []) if each and "audit" in each]
    if not told:
        return []
    mean = {name: sum(each[name] for each in told) / len(told) for name in ("recall", "precision")}
    return [f"wrong labels found: recall {short(mean['recall'])}, precision {short(mean['precision'])}"]


def _compared(report: Report) -> list[str]:
    found = report["differences"].get("attention", {})
    return [
        verdict("attention", other, JUDGED[metric], found[other][metric])
        for other in ASKED
        for metric in ("accuracy", "nll", "ece")
        if metric in found.get(other, {})
    ]


def wrong(config: Mapping[str, Any]) -> str:
    """How many labels to learn from are wrong."""
    noise = config.get("noise", {"rate": 0.0})
    return f", {noise['rate'] * 100:.0f} % of the labels wrong ({noise['kind']})" if noise["rate"] else ""
