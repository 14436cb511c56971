"""Tables of a report: what a study finds beside metrics is there, and survives CSV and LaTeX."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import replace

import numpy as np
import pytest

from attnknn import metrics
from attnknn.study import engine
from attnknn.study.grids import MOST_CLASSES, audits, errors, grids_of, recalls
from attnknn.study.page import page_of
from attnknn.study.plots import difference_figures
from attnknn.study.points import noise_points, tail_points
from attnknn.study.recall_plots import recall_figures
from attnknn.study.scored import errors as errors_of
from attnknn.study.scored import floors_of
from attnknn.study.tables import ERRORS, grid_csv, grid_latex, in_words
from attnknn.study.verdicts import JUDGED, ends_of, short, verdict

RAW = "distance+raw"


def run(recipe, task, out, study, points):
    asked = {"methods": ["hgb", RAW], "seeds": [0, 1], "points": points, "device": "cpu", "commit": "c"}
    return engine.run_study(replace(recipe, study=study), task, out=out, **asked).report


@pytest.fixture(scope="module")
def noisy(recipe, task, tmp_path_factory):
    out = tmp_path_factory.mktemp("noise")
    return run(recipe, task, out, "noise", noise_points([0.3])), out


@pytest.fixture(scope="module")
def tailed(recipe, task, tmp_path_factory):
    out = tmp_path_factory.mktemp("tail")
    return run(recipe, task, out, "imbalance", tail_points([0.1])), out


def test_every_kind_of_error_has_its_floor_in_cells_and_on_the_page(noisy):
    report, out = noisy
    page = (out / "index.html").read_text()
    grid = errors(report)
    assert grid.head == ("method", "equal width", "equal mass", "smooth", "classwise")
    for row in grid.rows:
        found = report["methods"][row[0]]
        for kind, cell in zip(ERRORS, row[1:], strict=True):
            assert cell.startswith(short(found[kind]["mean"]))
            assert cell.endswith(f"floor {short(found[f'{kind}_floor']['mean'])}")
            assert 0 < found[f"{kind}_floor"]["mean"] < 1
            assert short(found[kind]["mean"]) in page
    assert all(f"{kind}_floor" in report["uncalibrated"][RAW] for kind in ERRORS)


@pytest.mark.parametrize("classes", [2, 3, 12])
def test_errors_are_those_of_the_metrics_and_floors_those_of_many_draws(classes):
    draw = np.random.default_rng(classes)
    said = draw.dirichlet(np.full(classes, 0.4), 300)
    labels = np.array([draw.choice(classes, p=each) for each in said])
    found = errors_of(said, labels, floors_of([said], 400)[0])
    for name, kind in zip(ERRORS, ("equal-width", "equal-mass", "smooth", "classwise"), strict=True):
        assert found[name] == metrics.ece(said, labels, kind=kind)
        assert found[f"{name}_floor"] == pytest.approx(
            metrics.ece_floor(said, kind=kind, draws=1000, seed=1), rel=0.08
        )


def test_how_well_wrong_labels_are_found_is_on_the_page(noisy):
    report, out = noisy
    grid = audits(report)
    assert [row[0] for row in grid.rows] == [
        name for name, some in report["settings"].items() if name.startswith(RAW + "@") and some
    ]
    page = (out / "index.html").read_text()
    for name, recall, precision, before, after in grid.rows:
        each = [told["audit"] for told in report["settings"][name]]
        for text, column in ((recall, "recall"), (precision, "precision"), (after, "labels_right_after")):
            mean = np.mean([audit[column] for audit in each])
            assert text.startswith(short(mean))
            assert short(mean) in page
        assert before.splitlines()[0] == ".7000"
    assert "suspects that are wrong" in page


def test_the_recall_of_each_class_under_a_tail_is_a_table_and_a_figure(tailed):
    report, out = tailed
    grid = recalls(report)
    assert grid.head == ("method", "a", "b", "c")
    for row in grid.rows:
        means = np.mean(report["recalls"][row[0]], axis=0)
        assert [cell.splitlines()[0] for cell in row[1:]] == [short(value) for value in means]
    assert "Recall of each class" in (out / "index.html").read_text()
    figure = recall_figures(report)["recall-tail"]
    assert [series.name for series in figure.series] == ["hgb", RAW]
    assert figure.series[1].y == pytest.approx(np.mean(report["recalls"][f"{RAW}@tail-0.1"], axis=0))
    assert (out / "figures/recall-tail.svg").exists()
    assert (out / "tables/recall.csv").read_text().startswith("method,a,a low,a high,b,")
    assert recalls({**report, "study": "noise"}).rows == ()


def test_of_many_classes_the_rarest_are_shown_and_one_without_rows_has_a_dash(tailed):
    report, _ = tailed
    many = {"classes": [f"c{at}" for at in range(30)], "recalls": {"hgb": [[*([0.5] * 29), None], None]}}
    grid = recalls({**report, **many})
    assert grid.head == ("method", *(f"c{at}" for at in range(30 - MOST_CLASSES, 30)))
    assert grid.rows == (("hgb", *([".5000"] * (MOST_CLASSES - 1)), "–"),)
    assert "the rarest 20 of 30" in grid.title
    at_tail = {**many, "recalls": {"hgb@tail-0.1": many["recalls"]["hgb"]}}
    (series,) = recall_figures({**report, **at_tail})["recall-tail"].series
    assert series.y[:29] == (0.5,) * 29
    assert np.isnan(series.y[29])
    assert series.low is None  # one seed has no interval


def test_what_is_kept_of_the_accuracy_has_an_interval_for_seeds_and_rows(noisy):
    report, out = noisy
    found = report["retention"][f"{RAW}@symmetric-0.3"]
    both = [report["methods"][name]["accuracy"]["values"] for name in (f"{RAW}@symmetric-0.3", RAW)]
    assert found["values"] == pytest.approx([mine / plain for mine, plain in zip(*both, strict=True)])
    for kind in ("over_seeds", "over_rows"):
        assert found["low"] <= found[kind]["low"] <= found[kind]["high"] <= found["high"]
    rows = {row[0]: row for grid in grids_of(report)[0] if grid.name == "retention" for row in grid.rows}
    assert rows["symmetric-0.3"][-1].startswith(f"{found['mean']:.1%}\n[")
    assert rows["symmetric-0.3-bank"][1] == "–"  # boosted trees have no bank
    assert "Accuracy over that without changes" in (out / "index.html").read_text()


def test_a_report_of_an_older_version_has_the_tables_that_it_has_numbers_for(noisy):
    report, _ = noisy
    old = {name: each for name, each in report.items() if name not in ("classes", "notes")}
    kept = ("accuracy", "nll", "ece", "ece_floor")
    old["methods"] = {name: {m: each[m] for m in kept} for name, each in report["methods"].items()}
    names = [grid.name for some in grids_of(old) for grid in some]
    assert "calibration-error" not in names
    assert names[0] == "methods"
    assert page_of(old, {}, ())


def test_text_that_is_code_elsewhere_stays_text():
    rows = [("class", "=HYPERLINK(1)"), ("a_b & 50%\\x", ".9\nand so on"), ("-", "-.5"), ("@x", "+cmd")]
    read = list(csv.reader(io.StringIO(grid_csv(rows))))
    assert read == [["class", "'=HYPERLINK(1)"], ["a_b & 50%\\x", ".9 and so on"], ["-", "-.5"], ["'@x", "'+cmd"]]
    latex = grid_latex(rows, words=1)
    assert latex.startswith("\\begin{tabular}{lp{7cm}}\n\\toprule\nclass & =HYPERLINK(1) \\\\\n\\midrule\n")
    assert r"a\_b \& 50\%\textbackslash{}x & .9 and so on \\" in latex
    assert grid_latex([("a<b", "b>c")]).splitlines()[2] == r"a\textless{}b & b\textgreater{}c \\"


def test_an_interval_has_columns_of_its_own_in_csv():
    cells = ("accuracy", ".9\n.8 to 1.0\nfloor .02", "1\nin every seed", "5e-05\n[-1e-05, .1]", "not run")
    rows = [*csv.reader(io.StringIO(grid_csv([(cell, "x") for cell in cells])))]
    assert [row[:4] for row in rows] == [
        ["accuracy", "accuracy low", "accuracy high", "accuracy floor"],
        [".9", ".8", "1.0", ".02"],
        ["1", "", "", ""],
        ["5e-05", "-1e-05", ".1", ""],
        ["not run", "", "", ""],
    ]
    assert all(row[4:] == ["x"] for row in rows)


def test_lines_of_a_cell_do_not_run_together_in_latex(noisy):
    _, out = noisy
    text = (out / "tables/calibration-error.tex").read_text()
    rows = [line for line in text.splitlines() if line.startswith("hgb & ")]
    assert re.match(r"hgb & \\shortstack\[r\]\{\.\d{4}\\\\\.\d{4} to 1?\.\d{4}\\\\floor \.\d{4}\} & ", rows[0])


def test_every_paired_difference_is_a_row_with_its_interval_and_verdict(noisy):
    report, out = noisy
    rows = list(csv.DictReader(io.StringIO((out / "tables/differences.csv").read_text())))
    found = {
        (mine, other, metric): gap
        for mine, others in report["differences"].items()
        for other, gaps in others.items()
        for metric, gap in gaps.items()
    }
    assert [(row["method"], row["other"], row["metric"]) for row in rows] == list(found)
    assert rows
    for row, gap in zip(rows, found.values(), strict=True):
        assert float(row["mean"]) == gap["mean"]
        assert (float(row["low"]), float(row["high"])) == ends_of(gap)
        assert int(row["seeds"]) == 2
        words = verdict(row["method"], row["other"], row["metric"], gap)
        assert row["verdict"] in words or row["verdict"].replace(":", f" in {row['metric']}:") in words
    text = (out / "tables/differences.tex").read_text()
    assert text.startswith("\\begin{tabular}{lllrrrrl}\n\\toprule\nmethod & other & metric & mean & low & high")
    assert text.count(" \\\\\n") == 1 + sum(metric in JUDGED for *_, metric in found)


def test_an_ablation_has_figures_of_the_differences_to_each_reference(noisy):
    report, _ = noisy
    gap = {"mean": -0.02, "low": -0.03, "high": -0.01, "seeds": [0, 1]}
    gaps = {"accuracy": gap, "nll": {**gap, "low": None, "high": None}}
    upward = {"accuracy": {**gap, "mean": 0.01, "high": 0.02}}
    to_all = {"b": {"attention-all": gaps}, "c": {"attention-all": upward}}
    told = {**report, "differences": {"attention-all": {"attention-none": gaps}, **to_all}}
    found = difference_figures(told)
    assert list(found) == [
        f"difference-{metric}-{other}"
        for other in ("attention-none", "attention-all")
        for metric in ("accuracy", "nll")
    ]
    bars = found["difference-accuracy-attention-all"]
    assert (bars.names, bars.values, bars.low) == (("b", "c"), (-0.02, 0.01), (-0.03, -0.03))
    assert bars.base == 0
    assert found["difference-nll-attention-all"].low is None
    assert found["difference-nll-attention-all"].names == ("b",)


def test_an_interval_without_a_width_is_not_shown_as_one():
    assert in_words({"mean": 0.5, "low": 0.5, "high": 0.5}, "accuracy") == (".5000", "in every seed")


def test_a_column_of_shares_is_one_of_shares_to_its_last_row_whatever_has_an_interval():
    read = [*csv.reader(io.StringIO(grid_csv([("kept",), ("91.3%\n[88.0%, 94.0%]",), ("80.0%",), ("–",)])))]
    assert read == [["kept", "kept low", "kept high"], ["0.913", "0.88", "0.94"], ["0.8", "", ""], ["–", "", ""]]
    assert grid_csv([("kept",), ("80.0%",)]).splitlines() == ["kept", "0.8"]
