"""``attnknn fit``."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnknn.cli import arguments, choices, screen, training
from attnknn.cli.errors import folder_named_by
from attnknn.errors import InvalidInput

if TYPE_CHECKING:
    from attnknn.cli.rows import Rows
    from attnknn.estimator import AttnKNNClassifier


@screen.examples(
    "attnknn fit people.csv --target income --out people-model",
    "attnknn fit digits --out digits-model --test-share 0.3",
    "attnknn fit adult --data-dir ~/data --out adult-model --json",
    "attnknn fit people.csv --target income --weights softmax --out people-model",
    "attnknn fit adult --members 5 --checkpoint runs/adult --out adult-model",
    "attnknn fit photos/ --out photo-model --test more-photos/",
    "attnknn fit photos/ --backbone efficientnet-lite0 --frozen --out m",
    "attnknn fit cifar10 --test cifar10 --tta --out cifar-model",
    "attnknn fit photos/ --relabel 2 --out photo-model",
)
def fit(
    data: arguments.Data,
    out: arguments.ModelOut,
    target: arguments.Target = None,
    weights: choices.WeightsOption = choices.Weights.attention,
    k: arguments.Neighbors = "auto",
    embedder: choices.EmbedderOption = choices.Embedder.auto,
    metric: choices.MetricOption = choices.Metric.auto,
    index: choices.IndexOption = choices.Index.auto,
    calibration: choices.CalibrationOption = choices.Calibration.auto,
    class_weight: choices.ClassWeightOption = choices.ClassWeight.none,
    members: arguments.Members = 1,
    epochs: arguments.Epochs = None,
    lr: arguments.LearningRate = None,
    batch_size: arguments.BatchSize = None,
    blocks: arguments.Blocks = None,
    checkpoint: arguments.Checkpoint = None,
    ids: arguments.Ids = None,
    test: arguments.Test = None,
    test_share: arguments.HoldOut = 0.0,
    seed: arguments.Seed = 0,
    device: arguments.Device = "auto",
    data_dir: arguments.DataDir = None,
    image_size: arguments.ImageSize = None,
    backbone: arguments.Backbone = None,
    pretrained: arguments.Pretrained = None,
    frozen: arguments.Frozen = False,
    augmentation: choices.PolicyOption = None,
    compiled: arguments.Compile = False,
    mix: choices.MixOption = None,
    relabel: arguments.Relabel = None,
    tta: arguments.Views = False,
    k_ensemble: arguments.KEnsemble = None,
    adaptive_k: choices.AdaptiveOption = None,
    head_prior: arguments.HeadPrior = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite a model.")] = False,
    as_json: arguments.Json = False,
) -> None:
    """Learn from labelled rows or images and save the model.

    A data set with an official split is learned from its training rows only.

    Exits 0 when the model is saved, 2 for bad input.
    """
    neighbors = _neighbors(k)
    _check_out(out, force=force)
    for folder in (out, checkpoint):
        arguments.check_outside(folder, data)
    if test is not None and test_share:
        raise typer.BadParameter(
            "cannot stand beside --test, which names what to test on", param_hint="--test-share"
        )
    given = {
        "ids": ids, "epochs": epochs, "lr": lr, "batch_size": batch_size, "blocks": blocks,
        "checkpoint": checkpoint, "image_size": image_size, "backbone": backbone, "pretrained": pretrained,
        "frozen": frozen, "augmentation": augmentation and augmentation.value, "compile": compiled,
        "mix": mix and mix.value, "relabel": relabel, "tta": tta, "head_prior": head_prior,
    }  # fmt: skip
    prediction = training.prediction(tta=tta, k_ensemble=k_ensemble, adaptive_k=adaptive_k, head_prior=head_prior)
    lesson = _read(data, target, data_dir, given, test=test, embedder=embedder, members=members)
    from attnknn.estimator import AttnKNNClassifier

    model = AttnKNNClassifier(
        neighbors,
        weights=weights.value,
        embedder=embedder.value,
        metric=metric.value,
        index=index.value,
        calibration=None if calibration is choices.Calibration.none else calibration.value,
        n_estimators=members,
        class_weight=None if class_weight is choices.ClassWeight.none else class_weight.value,
        training=training.options(data, given, images=lesson.rows.are_images),
        prediction=prediction,
        device=device,
        random_state=seed,
        verbose=int(sys.stderr.isatty() and not frozen),
    )
    with folder_named_by("--checkpoint"):
        result = _learned(model, lesson, test_share, seed)
    model.set_params(device="auto", verbose=0)  # the model may be used on another machine
    model.save(out)
    result = {"model": str(out), "data": data, **result}
    if as_json:
        screen.emit({**result, "test": result["test"] and result["test"].to_dict()})
    else:
        _show(result)


@dataclass(frozen=True, slots=True)
class _Lesson:
    """What is learned from, what its rows are called, and what else was given to evaluate on."""

    rows: Rows
    ids: list[int | str]
    test: Rows | None


def _read(
    data: str,
    target: str | None,
    data_dir: Path | None,
    given: dict[str, Any],
    *,
    test: str | None,
    embedder: choices.Embedder,
    members: int,
) -> _Lesson:
    """Check the options against DATA and read it, and what is to be tested on: mistakes come before the work."""
    from attnknn.cli import rows as reading
    from attnknn.cli.pictures import Canvas

    images = reading.holds_images(data)
    training.check_flags(data, given, images=images, embedder=embedder, members=members)
    size = training.picture_size(given["image_size"])
    if test is not None and reading.holds_images(test) != images:
        raise InvalidInput(f"--test {test} and {data} must both be tables, or both images")
    with screen.progress(f"reading {data}") as say:
        rows = reading.read_labelled(data, target, data_dir, "train", canvas=Canvas(size), say=say)
        rows, names = reading.with_ids(rows, given["ids"])
        _check_labels(rows)
        others = None
        if test is not None:
            canvas = Canvas(rows.X.shape[1:3], rows.X.shape[3]) if images else None
            others = reading.read_labelled(test, target, data_dir, "test", canvas=canvas, say=say)
    return _Lesson(rows, list(rows.names) if names is None else names, others)


def _learned(model: AttnKNNClassifier, lesson: _Lesson, test_share: float, seed: int) -> dict[str, Any]:
    """Fit, and evaluate on what was held out or given for it."""
    import numpy as np

    from attnknn.cli import model as models
    from attnknn.cli import scores

    learn, held = _parts(lesson.rows, test_share, seed)
    part = lesson.rows.take(learn)
    start = time.perf_counter()
    with screen.working(_title(model, part)), contextlib.redirect_stdout(sys.stderr):
        model.fit(part.X, np.asarray(part.labels), ids=[lesson.ids[at] for at in learn.tolist()])
    seconds = time.perf_counter() - start
    test, asked = None, lesson.test if lesson.test is not None else lesson.rows.take(held)
    if len(asked):
        with screen.working(f"evaluating {len(asked)} rows"):
            test, _ = scores.score(model, asked, draws=1000, seed=seed)
    curve = [{"k": k, "nll": nll, "standard_error": error} for k, nll, error in model.tuning_.curve]
    tested = {"test": test, "tested_on": None if lesson.test is None else lesson.test.source}
    return {"chosen": models.chosen(model), "nll_by_k": curve, "seconds": seconds, **tested}


def _title(model: AttnKNNClassifier, rows: Rows) -> str | None:
    """What to show while fitting; None where a training has bars of its own: two things cannot move at once."""
    from attnknn.embed import LEARNED

    bars = model.weights == "attention" or model.embedder in LEARNED or rows.are_images
    return None if bars and model.verbose else f"fitting {len(rows)} {'images' if rows.are_images else 'rows'}"


def _parts(table: Rows, test_share: float, seed: int) -> tuple[Any, Any]:
    import numpy as np

    if not test_share:
        return np.arange(len(table)), np.arange(0)
    from attnknn.data import duplicate_groups, split

    groups = duplicate_groups(table.X)
    learn, held = split(np.asarray(table.labels), test=test_share, seed=seed, groups=groups)
    if not len(held):
        raise InvalidInput(
            f"--test-share {test_share:g} of {len(table)} rows leaves none to test on: "
            "every class keeps a row to learn from; use more rows or a larger share"
        )
    return learn, held


def _show(result: dict[str, Any]) -> None:
    from attnknn.cli import model as models
    from attnknn.cli import scores

    screen.facts({**models.shown(result["chosen"]), "time": f"{result['seconds']:.2f} s"})
    chosen = result["chosen"]["k"]
    if result["nll_by_k"]:
        screen.line()
        screen.line("NLL by k of the rows that judged (before calibration)")
        body = [
            (
                at["k"],
                screen.number(at["nll"]),
                screen.number(at["standard_error"]),
                "<-" if at["k"] == chosen else "",
            )
            for at in result["nll_by_k"]
        ]
        screen.table(["k", "NLL", "error of difference to best", ""], body, left=(3,))
    if result["test"] is not None:
        given = result["tested_on"]
        screen.line("held-out rows, which the saved model does not know" if given is None else f"rows of {given}")
        scores.show(result["test"])
    screen.line(f"saved in {result['model']}")


def _neighbors(k: str) -> int | str:
    if k == "auto":
        return k
    try:
        number = int(k)
    except ValueError:
        number = 0
    if not 1 <= number < 2**31:
        raise typer.BadParameter(f"{k!r} is neither auto nor a whole number from 1 on", param_hint="--k")
    return number


def _check_labels(table: Rows) -> None:
    from attnknn.cli.errors import input_checks
    from attnknn.estimator.inputs import checked_labels

    with input_checks():
        checked_labels(table.labels)


def _check_out(out: Path, *, force: bool) -> None:
    """Refuse early, before the work, to overwrite what is there."""
    if not out.exists():
        _check_writable(out)
        return
    if not out.is_dir():
        raise InvalidInput(f"{out} is a file; --out names a folder for the model")
    if all(file.name == ".lock" for file in out.iterdir()):
        return
    if not _is_model(out):
        raise InvalidInput(f"{out} is a folder with other things in it, not a model; choose another --out")
    if not force:
        raise InvalidInput(f"{out} holds a model already; use --force to overwrite it, or choose another --out")


def _check_writable(out: Path) -> None:
    """Make the folder and take it away again: what cannot be saved should not be trained."""
    made = [folder for folder in (out, *out.parents) if not folder.exists()]
    try:
        out.mkdir(parents=True)
        for folder in made:
            folder.rmdir()
    except OSError as problem:
        raise InvalidInput(f"{out} cannot be made: {problem.strerror or problem}") from None


def _is_model(folder: Path) -> bool:
    try:
        found = json.loads((folder / "manifest.json").read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and found.get("attnknn") == "folder"
