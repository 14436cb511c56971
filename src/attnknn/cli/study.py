"""``attnknn study``: experiments over seeds, one command for each."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from attnknn.cli import arguments, choices, screen
from attnknn.errors import InvalidInput
from attnknn.study.points import POINTS, Point, points_of
from attnknn.study.recipe import STUDIES, Noise, Study

if TYPE_CHECKING:
    from attnknn.study.engine import Outcome

QUICK_ROWS = 20_000
"""Training rows of a quick study, at most."""

app = typer.Typer(help="Run experiments over several seeds, with intervals and computed verdicts.")


@app.command("list")
@screen.examples("attnknn study list", "attnknn study list --json")
def list_studies(as_json: arguments.Json = False) -> None:
    """List the studies, one line for each.

    Exits 0, or 2 for bad input.
    """
    if as_json:
        screen.emit(
            {
                "studies": [
                    {"name": s.name, "line": s.line, "methods": s.methods, "on_images": s.on_images}
                    for s in STUDIES.values()
                ]
            }
        )
        return
    for study in STUDIES.values():
        screen.line(f"{study.name}: {study.line}")


def command(study: Study) -> Callable[..., None]:
    """The command of one study."""

    def run(
        data: arguments.DataOption,
        out: arguments.StudyOut,
        seeds: arguments.Seeds = None,
        first_seed: arguments.FirstSeed = 0,
        target: arguments.Target = None,
        methods: arguments.Methods = None,
        members: arguments.EnsembleSize = 5,
        test_share: arguments.TestShare = None,
        noise: arguments.NoiseRate = 0.0,
        noise_kind: choices.NoiseOption = choices.NoiseKind.symmetric,
        k: arguments.StudyNeighbors = None,
        along: arguments.Along = None,
        quick: arguments.Quick = False,
        resume: arguments.Resume = True,
        figures: arguments.Figures = False,
        data_dir: arguments.DataDir = None,
        device: arguments.Device = "auto",
        commit: arguments.Commit = None,
        keep: arguments.Keep = None,
        save: arguments.Save = None,
        epochs: arguments.ImageEpochs = None,
        image_size: arguments.ImageSize = None,
        compiled: arguments.Compile = False,
        as_json: arguments.Json = False,
    ) -> None:
        asked = _methods(methods, _offered(study, data), "--methods")
        if quick and methods is None:
            asked = [name for name in asked if name != "lightgbm"]
        points = _points(study, along, quick=quick)
        kept = [] if keep is None else _methods(keep, asked, "--keep")
        _check_axis(study, noise=noise, k=k, keep=bool(kept))
        arguments.check_outside(out, data)
        if not resume and (out / "recipe.json").exists():
            raise InvalidInput(f"{out} holds a study already; name another folder, or leave --no-resume out")
        if save is not None:
            _check_save(save, out, data)
        images: dict[str, Any] = {"epochs": epochs, "compile": compiled or None, "image_size": image_size}
        found = _run(
            study, data, target, data_dir, {name: value for name, value in images.items() if value is not None},
            {"test_share": test_share, "members": members, "noise": Noise(noise, noise_kind.value), "k": k,
             "most_rows": QUICK_ROWS if quick else None},
            {"methods": asked, "seeds": range(first_seed, first_seed + (seeds or (2 if quick else 5))),
             "out": out, "points": points, "device": device, "commit": commit, "keep": kept,
             "figures": figures},
        )  # fmt: skip
        _tell(study, found, out, save, as_json=as_json)

    run.__doc__ = _described(study)
    return screen.examples(
        f"attnknn study {study.name} --data digits --out runs/digits",
        f"attnknn study {study.name} --data adult --seeds 5 --out runs/adult \\",
        f"  --save results/adult/{study.name}.json",
        f"attnknn study {study.name} --data people.csv --target income --out runs/people",
        *(
            f"attnknn study {study.name} --data {each} --out runs/images"
            for each in ("cifar10", "photos/")[: 2 * bool(study.on_images)]
        ),
    )(run)


def _check_axis(study: Study, *, noise: float, k: int | None, keep: bool) -> None:
    """Refuse what the axis of a study decides, or leaves no place for."""
    if noise and study.name == "noise":
        raise InvalidInput("--noise is for other studies; the study noise has rates of its own: --along 0.1,0.2")
    if k is not None and study.name == "k-sweep":
        raise InvalidInput("--k is for other studies; the study k-sweep has several: --along 1,5,10")
    if keep and study.name in POINTS:
        raise InvalidInput(f"--keep is for studies without an axis, not for {study.name}")


def _check_save(save: Path, out: Path, data: str) -> None:
    """Refuse to write a report over anything but a report."""
    if save.is_dir():
        raise InvalidInput(f"{save} is a folder; --save names a file")
    if out.resolve() in save.resolve().parents:
        raise InvalidInput(f"{save} lies in {out}, which has a report of its own; --save names a file elsewhere")
    if Path(data).is_dir() and Path(data).resolve() in save.resolve().parents:
        raise InvalidInput(f"{save} lies among the images of {data}; --save names a file elsewhere")
    if save.exists():
        from attnknn.study.record import is_report

        if not is_report(save):
            raise InvalidInput(f"{save} is there and is no report; --save would write over it")


def _points(study: Study, along: str | None, *, quick: bool) -> tuple[Point, ...]:
    """The points of a study, from numbers with commas between them where they are given."""
    if along is None:
        return points_of(study.name, quick=quick)
    if study.name not in POINTS:
        raise InvalidInput(f"--along is for studies with an axis ({', '.join(POINTS)}), not for {study.name}")
    bounds = {"k-sweep": (1, 1_000_000), "noise": (0, 0.9), "imbalance": (1e-6, 1)}[study.name]
    try:
        numbers = [float(each) for each in along.split(",") if each.strip()]
    except ValueError:
        numbers = []
    whole = study.name != "k-sweep" or all(each.is_integer() for each in numbers)
    if not numbers or not whole or not all(bounds[0] <= each <= bounds[1] for each in numbers):
        kind = "whole numbers" if study.name == "k-sweep" else "numbers"
        raise InvalidInput(f"--along takes {kind} from {bounds[0]:g} to {bounds[1]:g} with commas, got {along!r}")
    given = [int(each) for each in numbers] if study.name == "k-sweep" else numbers
    return points_of(study.name, given, quick=quick)


def _described(study: Study) -> str:
    return f"""{study.line}

    Settings and calibration are chosen on held-out training rows, and the test rows are predicted once.
    A run that is stopped goes on where it was; more seeds or methods only add to what DIR holds.

    Methods: {", ".join(study.methods)}.{_on_images(study)}

    Exits 0 when every cell is there, 1 when one failed, 2 for bad input.
    """


def _on_images(study: Study) -> str:
    return f"\n\n    On images: {', '.join(study.on_images)}." if study.on_images else ""


def _offered(study: Study, data: str) -> tuple[str, ...]:
    """The methods that a study has for DATA."""
    from attnknn.cli.rows import holds_images

    if not holds_images(data):
        return study.methods
    if not study.on_images:
        raise InvalidInput(f"{data} holds images; the study {study.name} is of tables")
    return study.on_images


def _methods(given: str | None, offered: Sequence[str], flag: str) -> list[str]:
    names = list(offered) if given is None else [name.strip() for name in given.split(",") if name.strip()]
    unknown = [name for name in names if name not in offered]
    if unknown or not names:
        what = f"no method is called {unknown[0]!r}" if unknown else "no method is named"
        raise InvalidInput(f"{flag}: {what}; try one of: {', '.join(offered)}")
    return [name for name in offered if name in names]


def _run(
    study: Study,
    data: str,
    target: str | None,
    data_dir: Path | None,
    images: dict[str, Any],
    what: Mapping[str, Any],
    how: Mapping[str, Any],
) -> Outcome:
    with screen.progress(f"reading {data}") as say:
        from attnknn.cli import rows as reading
        from attnknn.cli.pictures import Canvas
        from attnknn.cli.training import picture_size
        from attnknn.data import NAMED
        from attnknn.study.engine import run_study
        from attnknn.study.splits import recipe_for, task_of

        size = picture_size(images.pop("image_size", None))
        canvas = None if size is None else Canvas(size)
        rows = reading.read_labelled(data, target, data_dir, canvas=canvas, say=say)
        if size is not None and not rows.are_images:
            raise InvalidInput(f"--image-size is for images, but {data} holds a table")
        labels, named = rows.labels, reading.is_named(data)
        if labels is None:
            raise InvalidInput(f"{data} has no labels")
        recipe = recipe_for(
            rows.X,
            labels,
            data=data if named else Path(data).name,
            target=_target(NAMED[data].target if named else target),
            named=named,
            study=study.name,
            images=images,
            **what,
        )
        return run_study(recipe, task_of(rows.X, labels, recipe), say=say, **how)


def _target(name: str | None) -> str:
    """What is predicted; images lie in folders that are their classes."""
    return "folder" if name is None else name


def _tell(study: Study, found: Outcome, out: Path, save: Path | None, *, as_json: bool) -> None:
    """Save and show what was found; a failed cell is named, and the exit code is 1."""
    from attnknn.study.record import write_json

    if save is not None:
        write_json(save, found.report)
    if as_json:
        screen.emit(found.report)
    else:
        _show(study, found.report, out)
    for cell, reason in found.failed.items():
        screen.note(f"cell {cell} failed: {reason}")
    if found.failed:
        raise typer.Exit(1)


def _show(study: Study, report: Mapping[str, Any], out: Path) -> None:
    from attnknn.study.verdicts import of_leads

    config, seeds = report["config"], len(report["seeds"])
    share = config["test_share"]
    tested = "official test rows" if share is None else f"{share:.0%} of the rows tested"
    screen.line(
        f"{config['data']}: {seeds} seed{'s' * (seeds != 1)}, {tested}; ± is half a 95 % t interval over seeds"
    )
    names = {"accuracy": "accuracy", "nll": "NLL", "ece": "ECE", "ece_floor": "floor", "auc": "AUC"}
    names |= {"recall_new": "new class", "accuracy_others": "others"}
    shown = {name: head for name, head in names.items() if any(name in m for m in report["methods"].values())}
    if shown:
        body = [
            [
                method,
                *(_cell(each.get(name), name) for name in shown),
                f"{report['seconds'][method]['fit']['mean']:.1f}",
            ]
            for method, each in report["methods"].items()
        ]
        screen.table(["method", *shown.values(), "fit s"], body)
    _show_found(report)
    for cell, reason in report["not_run"].items():
        screen.line(f"{cell} not run: {reason}")
    for cells in report["identical"]:
        screen.line(f"identical predictions, so the same model under several names: {', '.join(cells)}")
    sentences = of_leads(report["verdicts"], study.leads)
    found = [each for each in sentences if " has higher " in each or " has lower " in each]
    for sentence in sentences if len(report["points"]) == 1 else found:  # along an axis there are too many to read
        screen.line(sentence)
    if len(report["points"]) > 1 and len(found) < len(sentences):
        unknown = sum(" cannot be compared " in each for each in sentences)
        none = len(sentences) - len(found) - unknown
        screen.line(f"{none} other comparisons find no difference, {unknown} cannot be made: see the page")
    screen.line(f"all numbers and verdicts are in {out / 'report.json'}, and {out / 'index.html'} shows them")


def _show_found(report: Mapping[str, Any]) -> None:
    """What some studies find beside metrics: checks of the theory, times, what is left under noise."""
    from attnknn.study.efficiency import HEAD, table
    from attnknn.study.page import checked, overheads, retained

    for sentence in (*checked(report), *overheads(report), *retained(report)):
        screen.line(sentence)
    if "places" in report:
        screen.table([*HEAD], table(report["places"]))


def _cell(found: Mapping[str, Any] | None, metric: str) -> str:
    """Mean, and half the interval for the metrics that decide; one seed has none."""
    from attnknn.study.verdicts import short

    if found is None or not math.isfinite(found["mean"]):
        return "-"
    reach = (found["high"] - found["low"]) / 2
    spread = f" ±{short(reach)}" if metric in ("accuracy", "nll") and math.isfinite(reach) else ""
    return short(found["mean"]) + spread


for _study in STUDIES.values():
    app.command(_study.name)(command(_study))
