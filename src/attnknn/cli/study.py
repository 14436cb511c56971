"""``attnknn study``: experiments over seeds, one command for each."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from attnknn.cli import arguments, choices, screen, study_diff
from attnknn.cli.rows import holds_images
from attnknn.cli.study_shown import tell
from attnknn.errors import InvalidInput
from attnknn.study.points import POINTS
from attnknn.study.recipe import EVERYTHING, STUDIES, Noise, Study
from attnknn.study.scopes import all_scopes, chosen, scope_of

if TYPE_CHECKING:
    from attnknn.study.engine import Outcome

app = typer.Typer(help="Run experiments over several seeds, with intervals and computed verdicts.")
app.command("diff")(study_diff.diff)


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
                    for s in (*STUDIES.values(), EVERYTHING)
                ]
            }
        )
        return
    for study in (*STUDIES.values(), EVERYTHING):
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
        recipe: choices.SourceOption = None,
        quick: arguments.Quick = False,
        resume: arguments.Resume = True,
        figures: arguments.Figures = True,
        pdf: arguments.Pdf = False,
        data_dir: arguments.DataDir = None,
        device: arguments.Device = "auto",
        commit: arguments.Commit = None,
        minutes: arguments.Minutes = None,
        jobs: arguments.Jobs = 1,
        keep: arguments.Keep = None,
        save: arguments.Save = None,
        epochs: arguments.ImageEpochs = None,
        image_size: arguments.ImageSize = None,
        compiled: arguments.Compile = False,
        as_json: arguments.Json = False,
    ) -> None:
        scope = scope_of(study, images=holds_images(data), methods=_names(methods), along=_numbers(along),
                         quick=quick)  # fmt: skip
        kept = [] if keep is None else chosen(_names(keep), scope.methods)
        _check_axis(study, noise=noise, k=k, keep=bool(kept))
        given = Given(study, data, out, target, data_dir, save)
        given.check(resume=resume)
        what = {"test_share": test_share, "members": members, "k": k, "quick": quick, "source": recipe,
                "noise": Noise(noise, noise_kind.value)}  # fmt: skip
        how = {"seeds": _seeds(first_seed, seeds, quick=quick), "device": device, "commit": commit,
               "minutes": minutes, "jobs": jobs, "also": _also(figures=figures, pdf=pdf), "methods": scope.methods,
               "points": scope.points, "keep": kept}  # fmt: skip
        images = {"epochs": epochs, "compile": compiled or None, "image_size": image_size}
        tell(study, given.run("run_study", images, what, how), out, save, as_json=as_json)

    run.__doc__ = _described(study)
    return screen.examples(
        f"attnknn study {study.name} --data digits --out runs/digits",
        f"attnknn study {study.name} --data adult --seeds 5 --jobs 4 --out runs/adult \\",
        f"  --save results/adult/{study.name}.json",
        f"attnknn study {study.name} --data people.csv --target income --out runs/people",
        f"attnknn study {study.name} --data cifar10 --out runs/images",
        f"attnknn study {study.name} --data photos/ --out runs/images",
    )(run)


@app.command("all")
@screen.examples(
    "attnknn study all --data digits --out runs/digits --quick",
    "attnknn study all --data people.csv --target income --out runs/people --pdf",
    "attnknn study all --data cifar10 --studies noise,imbalance --along noise=0.2,0.4 --out runs/images",
)
def run_all_studies(
    data: arguments.DataOption,
    out: arguments.StudyOut,
    studies: arguments.Studies = None,
    along: arguments.AlongEach = None,
    seeds: arguments.Seeds = None,
    first_seed: arguments.FirstSeed = 0,
    target: arguments.Target = None,
    members: arguments.EnsembleSize = 5,
    test_share: arguments.TestShare = None,
    recipe: choices.SourceOption = None,
    quick: arguments.Quick = False,
    resume: arguments.Resume = True,
    figures: arguments.Figures = True,
    pdf: arguments.Pdf = False,
    data_dir: arguments.DataDir = None,
    device: arguments.Device = "auto",
    commit: arguments.Commit = None,
    minutes: arguments.Minutes = None,
    jobs: arguments.Jobs = 1,
    save: arguments.Save = None,
    epochs: arguments.ImageEpochs = None,
    image_size: arguments.ImageSize = None,
    compiled: arguments.Compile = False,
    as_json: arguments.Json = False,
) -> None:
    """Run every study but new-class, or --studies, each in a folder of DIR, with one page of them all.

    Seed by seed: what is trained for a seed serves all of them. Each study is what its own command would run with
    its usual methods: --methods is for that command. Studies may be added later by the same command: name
    all that the page is to have, what is there is not run again.
    Several processes share the work, by --jobs or by the same command started several times; times taken
    meanwhile say little beside those of a run alone.

    Exits 0 when no cell failed, 1 when one did, 2 for bad input.
    """
    scopes = all_scopes(
        images=holds_images(data), quick=quick, studies=_names(studies), along=_places(along or ())
    )
    given = Given(EVERYTHING, data, out, target, data_dir, save)
    given.check(resume=resume)
    what = {"test_share": test_share, "members": members, "quick": quick, "source": recipe}
    how = {"seeds": _seeds(first_seed, seeds, quick=quick), "device": device, "commit": commit,
           "minutes": minutes, "jobs": jobs, "scopes": scopes,
           "also": _also(figures=figures, pdf=pdf)}  # fmt: skip
    images = {"epochs": epochs, "compile": compiled or None, "image_size": image_size}
    tell(EVERYTHING, given.run("run_all", images, what, how), out, save, as_json=as_json)


def _places(along: Sequence[str]) -> dict[str, list[float]]:
    """Places on axes, by study."""
    found: dict[str, list[float]] = {}
    for each in along:
        name, equals, places = each.partition("=")
        if not equals or name in found:
            raise InvalidInput(
                f"--along takes one STUDY=A,B,... for each study, such as noise=0.2,0.4, got {each!r}"
            )
        found[name] = _numbers(places) or []
    return found


def _seeds(first: int, count: int | None, *, quick: bool) -> range:
    return range(first, first + (count or (2 if quick else 5)))


def _also(**wanted: bool) -> list[str]:
    return [name for name, asked in wanted.items() if asked]


def _check_axis(study: Study, *, noise: float, k: int | None, keep: bool) -> None:
    """Refuse what the axis of a study decides, or leaves no place for."""
    if noise and study.name == "noise":
        raise InvalidInput("--noise is for other studies; the study noise has rates of its own: --along 0.1,0.2")
    if k is not None and study.name == "k-sweep":
        raise InvalidInput("--k is for other studies; the study k-sweep has several: --along 1,5,10")
    if keep and study.name in POINTS:
        raise InvalidInput(f"--keep is for studies without an axis, not for {study.name}")


@dataclass(frozen=True, slots=True)
class Given:
    """What a study is to read, and where it writes."""

    study: Study
    data: str
    out: Path
    target: str | None
    data_dir: Path | None
    save: Path | None

    def check(self, *, resume: bool) -> None:
        """Refuse to write over what is read, or over what is no study."""
        arguments.check_outside(self.out, self.data)
        if not resume and (self.out / "recipe.json").exists():
            raise InvalidInput(f"{self.out} holds a study already; name another folder, or leave --no-resume out")
        if self.save is not None:
            _check_save(self.save, self.out, self.data)

    def run(self, engine: str, images: dict[str, Any], what: Mapping[str, Any], how: Mapping[str, Any]) -> Outcome:
        """Read the rows and run a function of the engine on them."""
        with screen.progress(f"reading {self.data}") as say:
            from attnknn.cli import rows as reading
            from attnknn.cli.pictures import Canvas
            from attnknn.cli.training import picture_size
            from attnknn.data import NAMED
            from attnknn.study import engine as engines
            from attnknn.study.splits import recipe_for, task_of

            size = picture_size(images.pop("image_size", None))
            canvas = None if size is None else Canvas(size)
            rows = reading.read_labelled(self.data, self.target, self.data_dir, canvas=canvas, say=say)
            if size is not None and not rows.are_images:
                raise InvalidInput(f"--image-size is for images, but {self.data} holds a table")
            labels, named = rows.labels, reading.is_named(self.data)
            if labels is None:
                raise InvalidInput(f"{self.data} has no labels")
            recipe = recipe_for(
                rows.X,
                labels,
                data=self.data if named else Path(self.data).name,
                target=(NAMED[self.data].target if named else self.target) or "folder",
                named=named,
                study=self.study.name,
                images={name: value for name, value in images.items() if value is not None},
                **what,
            )
            task = task_of(rows.X, labels, recipe)
            try:
                found: Outcome = getattr(engines, engine)(recipe, task, out=self.out, say=say, **how)
            except KeyboardInterrupt:
                screen.note(f"stopped; what is done lies in {self.out}, and the same command goes on from there")
                raise
            return found


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
    there = next(folder for folder in save.resolve().parents if folder.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise InvalidInput(f"nothing can be written in {there}, where --save has its file")


def _numbers(along: str | None) -> list[float] | None:
    """Numbers with commas between them."""
    if along is None:
        return None
    try:
        return [float(each) for each in along.split(",") if each.strip()]
    except ValueError:
        raise InvalidInput(f"--along takes numbers with commas between them, got {along!r}") from None


def _names(given: str | None) -> list[str] | None:
    """Names with commas between them."""
    return None if given is None else [name.strip() for name in given.split(",") if name.strip()]


def _described(study: Study) -> str:
    return f"""{study.line}

    Settings and calibration are chosen on held-out training rows, and the test rows are predicted once.
    A run that is stopped goes on where it was; more seeds or methods only add to what DIR holds.
    Several processes share the work, by --jobs or by the same command started several times; times taken
    meanwhile say little beside those of a run alone.

    Methods: {", ".join(study.methods)}.

    On images: {", ".join(study.on_images)}.

    Exits 0 when no cell failed, 1 when one did, 2 for bad input.
    """


for _study in STUDIES.values():
    app.command(_study.name)(command(_study))
