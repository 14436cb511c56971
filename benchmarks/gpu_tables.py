"""The tables of the fused kernels: milliseconds of ours, of torch's ways and of the floor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Report = Mapping[str, Any]


def details(report: Report) -> str:
    """Search, token attention and an epoch of training, the machine, and the command."""
    took, machine = report["milliseconds"], report["environment"]
    lines = [
        "| search, keys x queries x dim | ours | ours, float32 | torch | floor | share of the floor |",
        "|---|---|---|---|---|---|",
        *(_search(name, each, report["share_of_floor"][name]) for name, each in took.items() if "floor" in each),
        "",
        "| token attention: forward / with backward | ours | gather | full (SDPA) | MiB of ours | of SDPA |",
        "|---|---|---|---|---|---|",
        *(_attention(name, each, report["mib"][name]) for name, each in took.items() if "forward" in each),
        "",
        *(
            f"- {name}, each compared with all others: {each['ours']:.0f} ms, a CNN {each['cnn']:.0f} ms"
            for name, each in took.items()
            if "cnn" in each
        ),
        f"- {machine['device'].partition(': ')[2]}, torch {machine['versions']['torch']}",
        f"- repeat: `{report['command']}`",
        "",
    ]
    return "\n".join(lines)


def _search(name: str, each: Mapping[str, float], share: float) -> str:
    cells = [f"{each[way]:.2f}" for way in ("ours", "ours, float32", "torch", "floor")]
    return f"| {' | '.join([name.removeprefix('search '), *cells, f'{100 * share:.0f} %'])} |"


def _attention(name: str, each: Mapping[str, Any], mib: Mapping[str, Any]) -> str:
    def both(found: Mapping[str, Any], way: str, digits: int) -> str:
        return " / ".join(f"{found[direction][way]:.{digits}f}" for direction in ("forward", "backward"))

    cells = [both(each, way, 3) for way in ("ours", "gather", "sdpa")]
    held = [both(mib, way, 0) for way in ("ours", "sdpa")]
    return f"| {' | '.join([name.removeprefix('attention '), *cells, *held])} |"
