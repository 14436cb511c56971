"""The tables of ablations: what each part of the attention does, and what another training changes."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from attnknn import AttentionOptions
from attnknn.study.ablation import HEADS, PARTS, USUAL, VARIANTS
from attnknn.study.verdicts import ends_of, fine, numbers_of
from image_tables import estimate, unrun, wrong

Report = Mapping[str, Any]

ALL = "attention-all"


def details(reports: Sequence[Report]) -> str:
    """For each report what the absence of a learned part changes, and what another training does."""
    return "\n".join("\n".join(_ablation(report)) for report in reports)


def _ablation(report: Report) -> list[str]:
    config = report["config"]
    return [
        f"**{config['data']}**, k = {config['ours']['n_neighbors']}{wrong(config)}, {len(report['seeds'])} seeds:",
        "",
        *_parts(report),
        *_trained(report),
        *(f"- {sentence}" for sentence in unrun(report)),
        f"- repeat: `{re.sub(' --minutes [0-9.]+', '', report['command'])}`",
        "",
    ]


def _parts(report: Report) -> list[str]:
    """A table of the learned parts; nothing where the report does not have them."""
    if ALL not in report["methods"]:
        return []
    return [
        "| part | gradient | size | NLL with it off | accuracy with it off |",
        "|---|---|---|---|---|",
        *(_part(report, part) for part in PARTS),
        _change(report, "all of them", "attention-none", ["-", "-"]),
        *(_heads(report, heads) for heads in HEADS if f"{ALL}-heads-{heads}" in report["methods"]),
        "",
    ]


def _part(report: Report, part: str) -> str:
    told = [each["parts"][part] for each in report["settings"][ALL] if part in each.get("parts", {})]
    sizes = [
        f"{sum(each[name] for each in told) / len(told):.2g}" if told else "-" for name in ("gradient", "size")
    ]
    return _change(report, f"`{part}`", f"{ALL}-{part}", sizes)


def _heads(report: Report, heads: int) -> str:
    words = f"{heads} head{'s' * (heads > 1)} in place of {AttentionOptions().num_heads}"
    return _change(report, words, f"{ALL}-heads-{heads}", ["-", "-"])


def _change(report: Report, title: str, without: str, sizes: list[str]) -> str:
    """What a variant has otherwise than all parts, whichever of the two the report compares with the other."""
    differences = report["differences"]
    sign = 1 if ALL in differences.get(without, {}) else -1
    found = differences.get(without, {}).get(ALL) or differences.get(ALL, {}).get(without, {})
    gaps = (_gap(found[metric], sign) if metric in found else "-" for metric in ("nll", "accuracy"))
    return f"| {' | '.join([title, *sizes, *gaps])} |"


def _gap(found: Mapping[str, Any], sign: int = 1) -> str:
    low, high = sorted(sign * end for end in ends_of(found))
    turned = {"mean": sign * found["mean"], "low": low, "high": high}
    return numbers_of(turned, math.inf) if math.isfinite(low) else fine(turned["mean"], sign=True)


def _trained(report: Report) -> list[str]:
    """A table of what was trained anew, with its differences; nothing where the report has none of that."""
    rows = [
        _row(report, name, _gap(against["nll"]), _gap(against["accuracy"]))
        for name in report["methods"]
        if name in VARIANTS and (against := _against_reference(report, name)) is not None
    ]
    if not rows:
        return []
    return [
        "| trained anew | accuracy | NLL | change of NLL | change of accuracy |",
        "|---|---|---|---|---|",
        _row(report, USUAL, "-", "-"),
        *rows,
        "",
    ]


def _row(report: Report, name: str, *gaps: str) -> str:
    found = report["methods"][name]
    return f"| {' | '.join([f'`{name}`', *(estimate(found[metric]) for metric in ('accuracy', 'nll')), *gaps])} |"


def _against_reference(report: Report, name: str) -> Mapping[str, Any] | None:
    """The differences of a variant with a training of its own from what it varies."""
    reference = VARIANTS[name].reference
    if VARIANTS[name].attention is not None or reference is None:
        return None
    found: Mapping[str, Any] | None = report["differences"].get(name, {}).get(reference)
    return found
