"""The study of calibration: one model of a seed under every calibrator, and the figures that compare them."""

from dataclasses import replace

import numpy as np
import pytest
from mixed import mixed

from attnknn import metrics
from attnknn.attend import AttentionOptions
from attnknn.calibrate import CALIBRATORS
from attnknn.estimator import AttnKNNClassifier, fitting
from attnknn.study import calibrations, methods
from attnknn.study.calibration_plots import (
    MOST_CLASSES,
    calibration_figures,
    class_error,
    selective_accuracy,
)
from attnknn.study.calibrations import KINDS, Baseline, calibration_pairs, recalibrated
from attnknn.study.cells import Cells
from attnknn.study.engine import run_study
from attnknn.study.figures import Lines, Reliability
from attnknn.study.methods import METHODS
from attnknn.study.plots import plots_of
from attnknn.study.recipe import CALIBRATED, STUDIES

pytestmark = pytest.mark.usefixtures("one_thread")

STUDY = STUDIES["calibration"]


@pytest.fixture(scope="module")
def wanted(recipe):
    return replace(recipe, study="calibration")


@pytest.fixture(scope="module")
def ran(wanted, task, tmp_path_factory):
    """The report of the study, its cells, and how often the baseline was fitted."""
    out, fits = tmp_path_factory.mktemp("calibration"), []
    hgb = METHODS["hgb"]
    with pytest.MonkeyPatch.context() as patch:
        for name, calibrated in (("hgb-uncalibrated", False), ("hgb-temperature", True)):
            counted = Baseline("hgb", lambda job: (fits.append(job.seed), hgb(job))[1], calibrated)
            patch.setitem(methods.METHODS, name, counted)
        told = run_study(wanted, task, methods=STUDY.methods, seeds=[0, 1], out=out, device="cpu", commit="x")
    assert told.failed == {}
    return told.report, Cells.open(out, wanted), fits


def test_every_calibrator_has_a_method_and_every_method_of_the_study_exists():
    assert {kind or "none" for kind in KINDS.values()} - {"prior"} == set(CALIBRATORS)
    assert tuple(f"attention-{name}" for name in KINDS) == CALIBRATED
    assert {*STUDY.methods, *STUDY.on_images} <= set(METHODS)


def test_a_seed_trains_one_model_and_fits_one_baseline(ran, wanted, task, untrained, tmp_path):
    assert ran[2] == [0, 1]
    run_study(wanted, task, methods=CALIBRATED, seeds=[0], out=tmp_path / "again", device="cpu", commit="x")
    assert untrained == [(0, "attention")]


def test_only_prior_mass_and_calibrator_differ(ran):
    told = {name: ran[0]["settings"][name][0] for name in CALIBRATED}
    assert len({(each["k"], each["scale"], each["embedder"]) for each in told.values()}) == 1
    kinds = {name: each["calibrator"]["kind"] for name, each in told.items()}
    assert kinds == {
        f"attention-{name}": CALIBRATORS.get(kind, CALIBRATORS["none"]).kind for name, kind in KINDS.items()
    }
    assert told["attention-uncalibrated"]["prior_mass"] == pytest.approx(1 / told["attention-uncalibrated"]["k"])
    assert told["attention-matrix"]["prior_mass"] == told["attention-temperature"]["prior_mass"]


def test_before_calibration_is_what_every_method_calls_uncalibrated(ran):
    for model in ("attention", "hgb"):
        after = ran[0]["uncalibrated"][f"{model}-temperature"]
        assert ran[0]["methods"][f"{model}-uncalibrated"] == after
        assert ran[0]["methods"][f"{model}-temperature"] != after
    # A matrix that convinces nobody is the temperature that it starts from.
    falls_back = [[f"attention-matrix-{seed}", f"attention-temperature-{seed}"] for seed in (0, 1)]
    assert all(same in falls_back for same in ran[0]["identical"])


def test_each_is_compared_with_none_and_with_a_temperature(ran):
    gaps = {mine: set(others) for mine, others in ran[0]["differences"].items()}
    both = {"attention-uncalibrated", "attention-temperature"}
    assert gaps == {
        "hgb-temperature": {"hgb-uncalibrated"},
        "attention-temperature": {"attention-uncalibrated", "hgb-temperature"},
        **dict.fromkeys(CALIBRATED[2:], both),
    }
    assert calibration_pairs(["attention-matrix", "attention-density"]) == []


def test_the_attention_is_not_trained_again_for_another_calibrator(monkeypatch):
    X, y = mixed(60)
    model = AttnKNNClassifier(embedder="standardize", attention=AttentionOptions(always=True), random_state=0)
    model.set_params(calibration="temperature").fit(X, y)
    monkeypatch.setattr(fitting, "train_attention", None)
    other = recalibrated(model, "density")
    assert recalibrated(model, "temperature") is model
    assert other.voter_.weighting.attention is model.voter_.weighting.attention
    assert (model.calibration, model.voter_.calibrator.kind) == ("temperature", "temperature")
    assert other.voter_.calibrator.kind == "density"
    alone = AttnKNNClassifier(weights="softmax", embedder="standardize", random_state=0)
    again = calibrations.recalibrated(alone.set_params(calibration="temperature").fit(X, y), "density")
    fitted = AttnKNNClassifier(weights="softmax", embedder="standardize", calibration="density", random_state=0)
    np.testing.assert_array_equal(again.predict_proba(X), fitted.fit(X, y).predict_proba(X))


def test_the_page_has_a_diagram_for_each_and_both_kinds_of_curves(ran):
    report, cells, _ = ran
    figures = plots_of(report, cells, STUDY.leads)
    diagrams = {name: each for name, each in figures.items() if isinstance(each, Reliability)}
    assert set(diagrams) == {f"reliability-{name}" for name in STUDY.methods}
    rows = sum(len(cells.predictions("hgb-temperature", seed)["labels"]) for seed in (0, 1))
    assert {sum(each.count) for each in diagrams.values()} == {rows}
    assert diagrams["reliability-attention-uncalibrated"].title.startswith("attention before calibration: ECE ")
    assert diagrams["reliability-attention-prior-mass"].title.startswith("attention after prior mass: ECE ")
    for name in ("coverage", "per-class"):
        assert isinstance(figures[name], Lines)
        assert [each.name for each in figures[name].series[: len(CALIBRATED)]] == list(CALIBRATED)
    page = (cells.folder / "index.html").read_text(encoding="utf-8")
    assert "Accuracy on the surest rows" in page
    assert "From left to right:" in page


def test_all_rows_answered_give_the_accuracy_and_all_classes_the_classwise_error(ran):
    report, cells, _ = ran
    figures = calibration_figures(report, cells)
    for each in figures["coverage"].series:
        assert each.x[-1] == 1
        assert each.y[-1] == pytest.approx(report["methods"][each.name]["accuracy"]["mean"])
    for each in figures["per-class"].series[:-1]:
        some = cells.answers(each.name, [0, 1])
        whole = [metrics.ece(one.said, one.truth, kind="classwise") for one in some]
        assert np.mean(each.y) == pytest.approx(np.mean(whole))
    first = figures["per-class"].series[0].y
    assert list(first) == sorted(first, reverse=True)


def test_a_run_of_some_methods_draws_what_there_is(ran):
    report, cells, _ = ran
    some = {**report, "methods": {name: report["methods"][name] for name in ("hgb-temperature",)}}
    assert set(calibration_figures(some, cells)) == {"reliability-hgb-temperature", "coverage"}


def test_of_many_classes_the_worst_are_shown_and_named(wanted, tmp_path):
    draw = np.random.default_rng(0)
    said = draw.dirichlet(np.full(30, 0.1), 3000).astype(np.float32)
    truth = np.array([draw.choice(30, p=row / row.sum()) for row in said.astype(np.float64)])
    truth[:300] = 7  # whatever was said
    names = np.array([f"class {code} of a great many" for code in range(30)])
    cells = Cells.open(tmp_path / "many", wanted)
    cells.write("attention-uncalibrated", 0, {}, {"probabilities": said, "labels": truth, "classes": names})
    told = {"methods": {"attention-uncalibrated": {key: {"mean": 0.1} for key in ("ece", "ece_floor")}}}
    figure = calibration_figures({**told, "seeds": [0], "config": {"data": "d"}}, cells)["per-class"]
    assert [len(each.x) for each in figure.series] == [MOST_CLASSES] * 2
    assert figure.note.startswith("One seed. From left to right: class 7 of a gr…, class ")
    assert figure.note.endswith(f"The worst {MOST_CLASSES} of 30 classes are shown.")
    worst, chance = (each.y[0] for each in figure.series)
    assert worst > 2 * chance
    some = cells.answers("attention-uncalibrated", [0])
    assert figure.series[0].y[-1] >= sorted(class_error(some, code) for code in range(30))[9]


def test_selective_accuracy_is_the_mean_over_orders_of_rows_that_are_equally_sure():
    draw = np.random.default_rng(1)
    sure = np.round(draw.uniform(0.5, 1, 40), 1)
    said, truth = np.stack([sure, 1 - sure], axis=1), (draw.random(40) > sure).astype(np.int64)
    shares = np.array([0.1, 0.25, 0.5, 1.0])
    orders = [np.lexsort((draw.random(40), -sure)) for _ in range(4000)]
    brute = [[(truth[order[: round(40 * share)]] == 0).mean() for share in shares] for order in orders]
    np.testing.assert_allclose(selective_accuracy(said, truth, shares), np.mean(brute, axis=0), atol=0.02)
