"""``attnknn demo``."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnknn.cli import arguments, screen
from attnknn.errors import InvalidInput

if TYPE_CHECKING:
    from attnknn.study.demo import Abstention, Contender, DemoRun, Edit

_SCORES = ("accuracy", "nll", "ece", "ece_floor", "brier")


@screen.examples("attnknn demo", "attnknn demo --out /tmp/demo.html --seed 3 --json")
def demo(
    out: Annotated[Path, typer.Option(metavar="FILE", help="HTML file to write.")] = Path("demo.html"),
    seed: Annotated[int, typer.Option(metavar="N", min=0, max=2**31 - 1, help="Seed of the split.")] = 0,
    as_json: arguments.Json = False,
) -> None:
    """Compare the weights with scikit-learn on handwritten digits, and show what answers rest on.

    Takes less than a minute, needs no files, and writes one page that a browser opens without a network.

    Exits 0 when the page is written, 2 for bad input.
    """
    if not out.parent.is_dir() or out.is_dir():
        raise InvalidInput(f"{out} cannot be written: --out names a file in a folder that exists")
    with screen.progress("starting") as say:
        from attnknn.study.demo import run
        from attnknn.study.demo_page import page

        found = run(seed, say)
        out.write_text(page(found, _versions()), encoding="utf-8")
    if as_json:
        screen.emit(_object(found, out))
    else:
        _show(found, out)


def _versions() -> dict[str, str]:
    from attnknn import __version__

    found = {"attnknn": __version__, "Python": sys.version.split()[0]}
    for name in ("scikit-learn", "torch", "numpy"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _show(found: DemoRun, out: Path) -> None:
    digits = found.digits
    screen.line(f"digits: {len(digits.learn)} examples, {len(digits.test)} test rows, seed {found.seed}")
    screen.table(
        ["weights", "k", "accuracy", "NLL", "ECE", "floor", "Brier", "ms"],
        [_cells(each) for each in found.contenders],
    )
    for gap in found.gaps:
        screen.line(f"{gap.metric}, softmax minus scikit-learn: {gap.mean:+.4f} [{gap.low:+.4f}, {gap.high:+.4f}]")
        screen.line(f"  {gap.verdict}")
    screen.line(_on_abstention(found.abstention))
    if found.edit is not None:
        screen.line(_on_edit(found.edit))
    screen.line(f"{found.seconds:.0f} s; with pictures and reasons in {out}")


def _cells(each: Contender) -> list[Any]:
    scores = [screen.number(each.metrics[name].value) for name in _SCORES]
    return [each.name, each.k, *scores, f"{each.milliseconds:.0f}"]


def _on_abstention(found: Abstention) -> str:
    return (
        f"abstaining below {found.threshold:.3f}: {found.wrong_answered} wrong of {found.answered} answers, "
        f"instead of {found.wrong_before} of {found.rows}"
    )


def _on_edit(found: Edit) -> str:
    return (
        f"editing: row {found.before.row} is answered {found.before.reasons.prediction}; with example "
        f"{found.example} relabelled {found.label} to {found.new_label}, "
        f"{found.relabelled.reasons.prediction} ({found.relabel_ms:.1f} ms); with it removed, "
        f"{found.removed.reasons.prediction} ({found.remove_ms:.1f} ms)"
    )


def _object(found: DemoRun, out: Path) -> dict[str, Any]:
    return {
        "out": out,
        "seed": found.seed,
        "versions": _versions(),
        "rows": {"bank": len(found.digits.learn), "test": len(found.digits.test)},
        "methods": {
            each.name: {"k": each.k, "milliseconds": each.milliseconds, "metrics": each.metrics}
            for each in found.contenders
        },
        "differences": [{**screen.strict(gap), "verdict": gap.verdict} for gap in found.gaps],
        "abstention": {
            name: getattr(found.abstention, name)
            for name in ("threshold", "answered", "wrong_answered", "wrong_before", "rows")
        },
        "edit": None if found.edit is None else _edit_object(found.edit),
        "seconds": found.seconds,
    }


def _edit_object(found: Edit) -> dict[str, Any]:
    answers = {"before": found.before, "relabelled": found.relabelled, "removed": found.removed}
    return {
        "row": found.before.row,
        "example": found.example,
        "label": found.label,
        "new_label": found.new_label,
        "answers": {name: each.reasons.prediction for name, each in answers.items()},
        "relabel_ms": found.relabel_ms,
        "remove_ms": found.remove_ms,
    }
