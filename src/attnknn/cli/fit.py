"""``attnknn fit``."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnknn.cli import arguments, choices, screen
from attnknn.errors import InvalidInput

if TYPE_CHECKING:
    from attnknn.cli.rows import Rows
    from attnknn.estimator import AttnKNNClassifier


@screen.examples(
    "attnknn fit people.csv --target income --out people-model",
    "attnknn fit digits --out digits-model --test-share 0.3",
    "attnknn fit adult --data-dir ~/data --out adult-model --json",
    "attnknn fit people.csv --target income --weights softmax --out people-model --force",
    "attnknn fit adult --members 5 --checkpoint runs/adult --out adult-model",
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
    blocks: arguments.Blocks = None,
    checkpoint: arguments.Checkpoint = None,
    ids: arguments.Ids = None,
    test_share: arguments.HoldOut = 0.0,
    seed: arguments.Seed = 0,
    device: arguments.Device = "auto",
    data_dir: arguments.DataDir = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite a model.")] = False,
    as_json: arguments.Json = False,
) -> None:
    """Learn from labelled rows and save the model.

    A data set with an official split is learned from its training rows only.

    Exits 0 when the model is saved, 2 for bad input.
    """
    neighbors = _neighbors(k)
    _check_out(out, force=force)
    from attnknn.cli import rows as reading

    with screen.working(f"reading {data}"):
        table = reading.read_labelled(data, target, data_dir, part="train")
        table, names = reading.with_ids(table, ids)
        _check_labels(table)
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
        training=_training(epochs=epochs, lr=lr, blocks=blocks, checkpoint=checkpoint),
        device=device,
        random_state=seed,
        verbose=int(sys.stderr.isatty()),
    )
    result = _learned(model, table, names, test_share, seed)
    model.set_params(device="auto", verbose=0)  # the model may be used on another machine
    model.save(out)
    result = {"model": str(out), "data": data, **result}
    if as_json:
        screen.emit({**result, "test": result["test"] and result["test"].to_dict()})
    else:
        _show(result)


def _training(**given: Any) -> Any:
    """Options of training, where any was given."""
    from attnknn.train import TrainingOptions

    known = {name: value for name, value in given.items() if value is not None}
    return TrainingOptions(**known) if known else None


def _learned(
    model: AttnKNNClassifier, table: Rows, names: list[int | str] | None, test_share: float, seed: int
) -> dict[str, Any]:
    """Fit, and evaluate on what was held out."""
    import numpy as np

    from attnknn.cli import model as models
    from attnknn.cli import scores
    from attnknn.embed import NETWORKS

    learn, held = _parts(table, test_share, seed)
    part = table.take(learn)
    ids = part.numbers.tolist() if names is None else [names[at] for at in learn.tolist()]
    start = time.perf_counter()
    # A training has bars of its own, and two things cannot move on a terminal at once.
    title = None if model.weights == "attention" or model.embedder in NETWORKS else f"fitting {len(part)} rows"
    with screen.working(title), contextlib.redirect_stdout(sys.stderr):
        model.fit(part.frame, np.asarray(part.labels), ids=ids)
    seconds = time.perf_counter() - start
    test = None
    if len(held):
        with screen.working(f"evaluating {len(held)} rows"):
            test, _ = scores.score(model, table.take(held), draws=1000, seed=seed)
    curve = [{"k": k, "nll": nll, "standard_error": error} for k, nll, error in model.tuning_.curve]
    return {"chosen": models.chosen(model), "nll_by_k": curve, "seconds": seconds, "test": test}


def _parts(table: Rows, test_share: float, seed: int) -> tuple[Any, Any]:
    import numpy as np

    if not test_share:
        return np.arange(len(table)), np.arange(0)
    from attnknn.data import duplicate_groups, split

    groups = duplicate_groups(table.frame)
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
        screen.line("held-out rows, which the saved model does not know")
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
        return
    if not out.is_dir():
        raise InvalidInput(f"{out} is a file; --out names a folder for the model")
    if all(file.name == ".lock" for file in out.iterdir()):
        return
    if not _is_model(out):
        raise InvalidInput(f"{out} is a folder with other things in it, not a model; choose another --out")
    if not force:
        raise InvalidInput(f"{out} holds a model already; use --force to overwrite it, or choose another --out")


def _is_model(folder: Path) -> bool:
    try:
        found = json.loads((folder / "manifest.json").read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and found.get("attnknn") == "folder"
