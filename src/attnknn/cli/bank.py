"""``attnknn bank``: see and edit what a model knows, without retraining."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnknn.cli import arguments, screen
from attnknn.cli.errors import input_checks
from attnknn.errors import InvalidInput, UnknownId

if TYPE_CHECKING:
    from attnknn.cli.rows import Rows
    from attnknn.estimator import AttnKNNClassifier

app = typer.Typer(help="See and edit the examples that a model knows, without retraining.")

Model = Annotated[Path, typer.Argument(metavar="MODEL", help="Folder of the model.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]


@app.command()
@screen.examples("attnknn bank info people-model", "attnknn bank info people-model --suspects 20 --json")
def info(
    model: Model,
    suspects: Annotated[
        int,
        typer.Option(metavar="N", min=0, help="List so many examples whose own neighbors agree least with them."),
    ] = 0,
    as_json: Json = False,
) -> None:
    """Say what a model consists of, and which of its examples look mislabelled.

    Exits 0, or 2 for bad input.
    """
    import numpy as np

    from attnknn.cli import model as models

    fitted = models.load(model)
    labels = fitted.classes_.tolist()
    counts = np.bincount(fitted.bank_.labels(fitted.bank_.live), minlength=len(labels)).tolist()
    size = sum(file.stat().st_size for file in model.iterdir() if file.is_file())
    found = {
        "model": str(model),
        **models.chosen(fitted),
        "bytes": size,
        "counts": dict(zip(labels, counts, strict=True)),
        "suspects": _suspects(fitted, suspects),
        "relabelled": len(fitted.suspects_),
        "changes": [each.to_dict() for each in fitted.suspects_[:suspects]],
    }
    if as_json:
        screen.emit(found)
        return
    heads = {
        name: value for name, value in found.items() if name not in ("bytes", "counts", "suspects", "changes")
    }
    heads["relabelled"] = found["relabelled"] or None
    screen.facts({**models.shown(heads), "size": f"{size / 1e6:.2f} MB on disk"})
    screen.table(["class", "rows"], list(zip(labels, counts, strict=True)))
    if suspects:
        screen.line("examples whose own neighbors agree least with them")
        body = [(each["id"], each["label"], f"{each['reliability']:.3f}") for each in found["suspects"]]
        screen.table(["id", "label", "reliability"], body, left=(0, 1))
    if found["changes"]:
        screen.line("examples whose labels the training changed, the surest first")
        changed = [
            (each["id"], each["given"], each["label"], f"{each['chance']:.3f}") for each in found["changes"]
        ]
        screen.table(["id", "given", "now", "chance"], changed, left=(0, 1, 2))


@app.command()
@screen.examples(
    "attnknn bank add people-model more.csv --target income",
    "attnknn bank add people-model more.csv --target income \\",
    "  --ids name --classes unknown,retired",
    "attnknn bank add photo-model more-photos/",
    "attnknn bank add photo-model zebras/ --new-class zebra",
)
def add(
    context: typer.Context,
    model: Model,
    data: arguments.Labelled,
    target: arguments.Target = None,
    ids: Annotated[str | None, typer.Option(metavar="COL", help="Column of ids; else the next numbers.")] = None,
    classes: Annotated[
        str | None, typer.Option(metavar="A,B", help="New labels to allow, between commas.")
    ] = None,
    new_class: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="A new label to allow; that of all images, where DATA is a folder of one class."
        ),
    ] = None,
    as_is: Annotated[
        bool,
        typer.Option("--as-is", help="Let each example of a new class count as one, however few they are."),
    ] = False,
    data_dir: arguments.DataDir = None,
    as_json: Json = False,
) -> None:
    """Teach a model new examples at once.

    A label that it does not know is refused unless --classes or --new-class names it. Images lie in a folder for
    each class; or in a folder of their own, all of the one class that --new-class names. The examples of a new
    class count together as much as a class does on average, unless --as-is is given.

    Exits 0 when the model is saved, 2 for bad input.
    """
    from attnknn.cli import model as models

    fitted = _held(context, model)
    fresh = _fresh_classes(classes, new_class or [], fitted)
    rows, names = _to_teach(fitted, data, target, ids, new_class or [], data_dir)
    X, ignored = models.features(fitted, rows)
    labels = models.as_labels(rows.labels.tolist() if rows.labels is not None else [], fitted.classes_)
    unknown = sorted(set(labels.tolist()) - set(fitted.classes_.tolist()) - set(fresh or []))
    if unknown:
        raise InvalidInput(
            f"the model does not know the label {unknown[0]!r} (it knows {models.some(fitted.classes_)}); "
            f"allow it with {'--new-class' if rows.are_images else '--classes'} {unknown[0]}"
        )
    if ignored:
        screen.note(f"columns that the model does not use: {models.some(ignored)}")
    before = len(fitted.bank_)
    with input_checks():
        given = fitted.add(X, labels, ids=names, classes=fresh, sample_weight=None if as_is else "balanced")
    _save(fitted, model, before, {"added": given}, f"added {len(given)} examples", as_json=as_json)


@app.command()
@screen.examples("attnknn bank remove people-model 17 204", "attnknn bank remove people-model 'Ada Lovelace'")
def remove(
    context: typer.Context,
    model: Model,
    ids: Annotated[list[str], typer.Argument(metavar="ID", help="Ids of examples; `attnknn explain` shows them.")],
    as_json: Json = False,
) -> None:
    """Make a model forget examples at once; all of them or, if an id is unknown, none.

    Exits 0 when the model is saved, 2 for bad input.
    """
    from attnknn.cli import model as models

    fitted = _held(context, model)
    names = list(dict.fromkeys(models.known_ids(ids, fitted)))
    before = len(fitted.bank_)
    if len(names) == before:
        raise InvalidInput(f"these are all {before} examples, and a model without any cannot predict; keep one")
    fitted.remove(names)
    _save(fitted, model, before, {"removed": names}, f"removed {len(names)} examples", as_json=as_json)


@app.command()
@screen.examples(
    "attnknn bank relabel people-model 17=rich",
    "attnknn bank relabel digits-model 5=9 1042=3 --json",
)
def relabel(
    context: typer.Context,
    model: Model,
    changes: Annotated[list[str], typer.Argument(help="ID=LABEL for each example.", metavar="ID=LABEL")],
    as_json: Json = False,
) -> None:
    """Correct the labels of examples at once; all of them or, on any mistake, none.

    Exits 0 when the model is saved, 2 for bad input.
    """
    from attnknn.cli import model as models

    fitted = _held(context, model)
    pairs = [_change(text, fitted) for text in changes]
    names = [name for name, _ in pairs]
    labels = models.known_labels([label for _, label in pairs], fitted)
    bank = fitted.bank_
    old = fitted.classes_[bank.labels(bank.rows(names))].tolist()
    before = len(bank)
    fitted.relabel(names, labels)
    done = [
        {"id": name, "before": was, "after": now}
        for name, was, now in zip(names, old, labels.tolist(), strict=True)
    ]
    said = ", ".join(f"{each['id']}: {each['before']} -> {each['after']}" for each in done)
    _save(fitted, model, before, {"relabelled": done}, f"relabelled {said}", as_json=as_json)


def _held(context: typer.Context, model: Path) -> AttnKNNClassifier:
    """The model, held until the command ends, so that two edits at once follow one another."""
    from attnknn.bank.folder import editing
    from attnknn.cli import model as models

    context.with_resource(editing(model))
    return models.load(model)


def _save(
    fitted: AttnKNNClassifier, folder: Path, before: int, done: dict[str, Any], said: str, *, as_json: bool
) -> None:
    fitted.save(folder)
    after = len(fitted.bank_)
    if as_json:
        screen.emit({"model": folder, **done, "rows_before": before, "rows_after": after})
    else:
        screen.line(f"{said}; {before} examples before, {after} now")


def _suspects(fitted: AttnKNNClassifier, count: int) -> list[dict[str, Any]]:
    if not count:
        return []
    import numpy as np

    bank = fitted.bank_
    live = bank.live
    trust = bank.reliability(live)
    rows = live[np.argsort(trust, kind="stable")[:count]]
    parts = bank.names(rows), fitted.classes_[bank.labels(rows)].tolist(), np.sort(trust, kind="stable").tolist()
    return [{"id": name, "label": label, "reliability": r} for name, label, r in zip(*parts, strict=False)]


def _to_teach(
    fitted: AttnKNNClassifier,
    data: str,
    target: str | None,
    ids: str | None,
    new: list[str],
    data_dir: Path | None,
) -> tuple[Rows, list[int | str] | None]:
    """What to add, and the ids; None where the next numbers will do."""
    from attnknn.cli import model as models
    from attnknn.cli import pictures
    from attnknn.cli import rows as reading

    canvas = models.canvas(fitted, data)
    with screen.progress(f"reading {data}") as say:
        if canvas is None or reading.is_named(data):
            rows = reading.read_labelled(data, target, data_dir, canvas=canvas)
            return reading.with_ids(rows, ids)
        for flag, value in (("--target", target), ("--ids", ids)):
            if value is not None:
                raise InvalidInput(f"{flag} {value}: {data} holds images, which have no columns")
        rows = pictures.to_teach(data, canvas, new, say)
        return rows, list(rows.names)


def _fresh_classes(classes: str | None, new: list[str], fitted: AttnKNNClassifier) -> list[Any] | None:
    """Labels that --classes and --new-class allow; a new one must be new."""
    from attnknn.cli import model as models

    if classes is None and not new:
        return None
    named = [] if classes is None else [name.strip() for name in classes.split(",") if name.strip()]
    if classes is not None and not named:
        raise typer.BadParameter("names no label", param_hint="--classes")
    if not all(name.strip() for name in new):
        raise typer.BadParameter("names no label", param_hint="--new-class")
    old = set(models.as_labels(new, fitted.classes_).tolist()) & set(fitted.classes_.tolist())
    if old:
        raise InvalidInput(
            f"--new-class {min(old)}: the model knows that class already; leave the option out, and have "
            "images of it in a folder of that name"
        )
    return list(models.as_labels([*named, *new], fitted.classes_).tolist())


def _change(text: str, fitted: AttnKNNClassifier) -> tuple[int | str, str]:
    """ID and LABEL. Either may hold an equals sign: the first cut into a known id and a known label counts."""
    from attnknn.cli.model import as_label, known_id

    cuts = [at for at, letter in enumerate(text) if letter == "="]
    if not cuts:
        raise InvalidInput(f"{text!r} is not ID=LABEL, such as 17=yes")
    readings = []
    for at in cuts:
        with suppress(UnknownId):
            readings.append((known_id(text[:at], fitted), text[at + 1 :]))
    if not readings:
        raise UnknownId(f"the bank holds no id {text[: cuts[0]]!r}; nothing was changed")
    known = fitted.classes_.tolist()
    return next((each for each in readings if as_label(each[1], fitted.classes_) in known), readings[0])
