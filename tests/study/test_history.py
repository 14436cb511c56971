"""How trainings went: once for each, in few numbers, and drawn as they were."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from mixed import mixed, small

from attnknn.study.cells import Cells
from attnknn.study.engine import run_study
from attnknn.study.figures import MOST_SERIES, Lines
from attnknn.study.history import MOST_EPOCHS, told, training_figures
from attnknn.study.plots import plots_of
from attnknn.study.points import k_points, noise_points
from attnknn.study.recipe import OurSettings
from attnknn.study.splits import recipe_for, task_of
from attnknn.train import History, TrainingOptions
from attnknn.train.attention import EPOCHS as ATTENTION_EPOCHS

pytestmark = pytest.mark.usefixtures("one_thread")

EPOCHS = 3


def history(epochs, every=1):
    return History(
        tuple(
            {"epoch": at, "seconds": 1.0, "lr": 0.1 / at, "loss_nca": 2.0 / at, "loss_total": 3.0 / at}
            | ({"validation_nll": 1 / at} if at % every == 0 or at == epochs else {})
            for at in range(1, epochs + 1)
        ),
        *(epochs, 1 / epochs, False),
    )


def test_what_is_kept_is_what_happened_to_four_digits_without_times():
    found = told(history(7, every=2))
    assert found["epoch"] == [1, 2, 3, 4, 5, 6, 7]
    assert "seconds" not in found
    assert found["loss_total"] == [pytest.approx(3 / at, rel=1e-3) for at in range(1, 8)]
    assert [value is not None for value in found["validation_nll"]] == [
        at % 2 == 0 or at == 7 for at in range(1, 8)
    ]


@pytest.mark.parametrize(("epochs", "every"), [(100, 5), (1000, 1), (77, 10), (61, 1)])
def test_a_long_training_is_thinned_to_validated_epochs_and_keeps_its_end(epochs, every):
    found = told(history(epochs, every))
    assert len(found["epoch"]) <= MOST_EPOCHS
    assert found["epoch"][-1] == epochs
    assert None not in found["validation_nll"]
    assert len({b - a for a, b in zip(found["epoch"], found["epoch"][1:-1], strict=False)}) == 1


def test_what_is_not_finite_becomes_null_and_no_training_is_none():
    found = told(History(({"epoch": 1, "lr": math.inf, "loss_total": math.nan},), 1, None, False))
    assert found == {"epoch": [1], "lr": [None], "loss_total": [None]}
    assert told(History((), 0, None, False)) is None


def told_by(history, seeds):
    return {"history": history, "seeds": seeds, "config": {"data": "d"}}


def test_each_seed_has_its_line_until_they_are_too_many():
    few = training_figures(told_by({"a": [told(history(4)), None], "b": [None, told(history(6))]}, [3, 5]))
    lines = few["training-nll"]
    assert [each.name for each in lines.series] == ["a, seed 3", "b, seed 5"]
    assert lines.series[1].x == (1, 2, 3, 4, 5, 6)
    many = {name: [told(history(epochs)) for epochs in (4, 6)] for name in "abcdefghijk"}
    means = training_figures(told_by(many, [0, 1]))["training-nll"].series
    assert [each.name.partition(",")[0] for each in means] == list("abcdefghijk")[:MOST_SERIES]
    assert means[0].x == (1, 2, 3, 4)  # as far as both went
    assert means[0].y == tuple(told(history(4))["validation_nll"])


def test_a_loss_is_drawn_in_its_parts_where_it_has_several():
    one = told(history(4))
    several = {**one, "loss_auxiliary": one["loss_nca"]}
    found = training_figures(told_by({"one": [one, None], "several": [several, several]}, [0, 1]))
    assert [each.name for each in found["training-loss-one"].series] == ["total"]
    parts = {f"{name}, mean over seeds" for name in ("total", "nca", "auxiliary")}
    assert {each.name for each in found["training-loss-several"].series} == parts


def test_epochs_without_a_validation_leave_no_gap_in_its_line():
    (line,) = training_figures(told_by({"a": [told(history(7, every=3))]}, [0]))["training-nll"].series
    assert line.x == (3, 6, 7)
    assert not any(map(math.isnan, line.y))


def test_a_report_without_trainings_has_no_such_figures():
    assert training_figures({"config": {"data": "d"}, "seeds": [0]}) == {}
    assert training_figures(told_by({}, [0])) == {}


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """A study that really trains, for a moment."""
    frame, labels = mixed(90)
    recipe = small(recipe_for(frame, labels, data="mixed.csv", target="y", named=False))
    recipe = replace(recipe, ours=OurSettings(embedder="linear", table=TrainingOptions(epochs=EPOCHS).state()))
    task = task_of(frame[["size"]].assign(square=frame["size"] ** 2), labels, recipe)
    out = tmp_path_factory.mktemp("study") / "run"
    asked = ["sklearn-knn", "distance", "attention", "attention+k-ensemble", "attention+ensemble"]
    recipe = replace(recipe, members=2)
    outcome = run_study(recipe, task, methods=asked, seeds=[0, 1], out=out, device="cpu", commit="c")
    assert outcome.failed == {}
    return recipe, task, out, json.loads((out / "report.json").read_text())


def test_a_training_is_told_once_by_attention_and_the_report_passes_it_on(ran):
    recipe, _, out, report = ran
    cells = Cells.open(out, recipe).all()
    assert {name for (name, _), cell in cells.items() if "history" in cell} == {"attention"}
    assert report["history"] == {"attention": [cells["attention", seed]["history"] for seed in (0, 1)]}
    for each in report["history"]["attention"]:
        assert each["epoch"] == [*range(1, EPOCHS + 1)]
        assert all(len(column) == EPOCHS for column in each.values())
        assert {"lr", "loss_nca", "loss_total", "validation_nll", "validation_accuracy"} < set(each)
        # Five folds learn side by side. Each knows little yet, so its loss is near that of a guess.
        assert 0.5 * math.log(3) < each["loss_total"][0] < 2 * math.log(3)


def test_the_page_draws_the_trainings(ran):
    recipe, _, out, report = ran
    found = plots_of(report, Cells.open(out, recipe), ("attention",))
    lines = found["training-nll"]
    assert isinstance(lines, Lines)
    for seed, series in enumerate(lines.series):
        assert series.name == f"attention, seed {seed}"
        assert list(series.y) == report["history"]["attention"][seed]["validation_nll"]
    for name in ("entropy", "scale"):
        (first, *_) = found[f"training-{name}"].series
        assert list(first.y) == report["history"]["attention"][0][f"validation_{name}"]
    for each in report["history"]["attention"]:
        assert all(0 < share <= 1 for share in each["validation_entropy"])
    assert found["training-loss-attention"].title in (out / "index.html").read_text()


def test_the_attentions_own_training_is_a_curve_of_its_own_whether_it_is_kept_or_not(ran):
    recipe, _, out, report = ran
    assert set(report["attention_history"]) == {"attention"}
    for each in report["attention_history"]["attention"]:
        assert each["epoch"] == [*range(ATTENTION_EPOCHS + 1)]  # as it starts, then after each epoch
        assert each["loss_vote"][0] is None
        assert None not in each["loss_vote"][1:]
        assert {"validation_nll", "validation_scale", "validation_entropy"} < set(each)
    found = plots_of(report, Cells.open(out, recipe), ("attention",))
    lines = found["attention-loss"]
    assert list(lines.series[1].y) == report["attention_history"]["attention"][1]["loss_total"][1:]
    assert {"attention-nll", "attention-entropy"} < set(found)
    assert found["attention-nll"].title.replace("'", "&#x27;") in (out / "index.html").read_text()


def test_along_an_axis_each_training_is_told_once_and_the_plain_one_reported(ran, tmp_path):
    recipe, task, *_ = ran
    points = {"k-sweep": k_points([1, 5]), "noise": noise_points([0.2])}
    told_in, reported = {}, {}
    for study, some in points.items():
        how, out = replace(recipe, study=study), tmp_path / study
        asked = {"methods": ["distance", "attention"], "seeds": [0], "points": some, "device": "cpu"}
        reported[study] = set(run_study(how, task, out=out, commit="c", **asked).report["history"])
        told_in[study] = {name for (name, _), cell in Cells.open(out, how).all().items() if "history" in cell}
    assert told_in["k-sweep"] == reported["k-sweep"] == {"attention@k-5"}
    assert told_in["noise"] == {"attention", "attention@symmetric-0.2", "attention@asymmetric-0.2"}
    assert reported["noise"] == {"attention"}
