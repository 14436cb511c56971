"""The page, tables and figures of a report: all numbers there, nothing from elsewhere."""

from __future__ import annotations

import csv
import io
import json
import sys
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from attnknn.study import engine
from attnknn.study.cells import Cells
from attnknn.study.figures import Bars, Lines, Matrix, Reliability
from attnknn.study.page import page_of
from attnknn.study.plots import plots_of
from attnknn.study.points import noise_points
from attnknn.study.tables import as_csv, as_latex
from attnknn.study.verdicts import short
from attnknn.study.written import not_drawn, write_figures

VOID = {"meta", "br", "img", "hr"}


class Balanced(HTMLParser):
    """Refuses what does not close what it opened, and anything that is fetched or run."""

    def __init__(self):
        super().__init__()
        self.open, self.figures = [], 0

    def handle_starttag(self, tag, attrs):
        self.figures += tag == "figure"
        assert tag not in ("script", "link", "iframe")
        assert not any(name in ("src", "href") for name, _ in attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def ran(recipe, task, tmp_path_factory):
    out = tmp_path_factory.mktemp("study") / "run"
    asked = {
        "methods": ["sklearn-knn", "hgb", "distance+raw"],
        "seeds": [0, 1],
        "device": "cpu",
        "commit": "<c&d>",
    }
    report = engine.run_study(recipe, task, out=out, **asked).report
    return out, json.loads(json.dumps(report)), Cells.open(out, recipe)


def test_the_page_stands_alone_and_holds_verdicts_and_numbers(ran):
    out, report, _ = ran
    page = (out / "index.html").read_text()
    parser = Balanced()
    parser.feed(page)
    assert parser.open == []
    assert parser.figures >= 5
    words = unescape(page)
    assert all(sentence in words for sentence in report["verdicts"])
    for metrics in report["methods"].values():
        assert all(short(metrics[name]["mean"]) in page for name in ("accuracy", "nll", "ece", "brier"))
    assert "<c&d>" not in page
    assert "&lt;c&amp;d&gt;" in page
    assert page.index("Verdicts") < page.index("Numbers") < page.index("How it was made")


def test_what_was_not_run_and_what_was_not_asked_is_on_the_page(ran):
    _, report, _ = ran
    told = {
        **report,
        "not_run": {"lightgbm-0": "no <wheel>"},
        "failed": {"mlp-1": "RuntimeError: x"},
        "missing": ["hgb-7"],
        "places": {"hnsw-9x9-cpu": {"not_run": "took longer"}},
    }
    page = page_of(told, {}, ())
    for words in ("lightgbm-0: no &lt;wheel&gt;", "mlp-1: RuntimeError: x", "hgb-7", "hnsw-9x9-cpu: took longer"):
        assert f"not run: {words}" in page
    assert "not run: attnknn study noise" in page
    assert "not run: attnknn study efficiency" in page


def test_claims_are_answered_from_the_numbers(ran):
    _, report, _ = ran
    gap = {"mean": 0.02, "low": 0.01, "high": 0.03, "seeds": [0, 1]}
    rows = {"low": -0.045, "high": -0.035, "draws": 9}
    lower = {"mean": -0.04, "low": -0.05, "high": -0.03, "seeds": [0, 1], "over_rows": rows}
    told = {
        **report,
        "study": "noise",
        "methods": {
            name: {
                **report["methods"]["hgb"],
                "ece": {**report["methods"]["hgb"]["ece"], "mean": value, "values": [value] * 2},
            }
            for name, value in (("uniform", 0.08), ("attention", 0.04))
        },
        "differences": {
            "attention": {"uniform": {"accuracy": gap, "nll": lower, "ece": lower}},
            "attention@symmetric-0.4": {"uniform@symmetric-0.4": {"accuracy": {**gap, "low": -0.01}}},
        },
        "points": {
            "": {"at": 0.0, "line": ""},
            **{f"symmetric-{at}": {"at": at, "line": "symmetric"} for at in (0.4, 0.2)},
        },
        "retention": {
            "uniform@symmetric-0.4": {"mean": 0.8, "low": -0.1, "high": 0.9, "values": [0.7, 0.9]},
            "attention@symmetric-0.4": {"mean": 0.9, "low": 0.85, "high": 0.95, "values": [0.89, 0.91]},
            "attention@symmetric-0.2": {"mean": 0.95, "low": None, "high": None, "values": [0.95, None]},
        },
        "settings": {"stages": [{"overhead": "attention adds 0.1 ms"}]},
    }
    page = page_of(told, {}, ())
    assert "attention has higher accuracy than uniform: +.0200 [.0100, .0300] over 2 seeds" in page
    lowered = "attention has lower ECE than uniform: -.0400 [-.0500, -.0300] over 2 seeds and their test rows"
    assert f"{lowered}, a change of -50 %" in page
    kept = "attention keeps 90.0% [85.0%, 95.0%] of its accuracy (uniform 80.0%)"
    gap = "against uniform no difference found (+.0200 [-.0100, .0300] over seeds alone)"
    assert f"<b>with 40 % of the labels wrong (symmetric), {kept}, {gap}; 2 seeds</b>" in page
    assert "attention@symmetric-0.4 keeps 90.0% [85.0%, 95.0%] of its accuracy over 2 seeds" in page
    assert "attention@symmetric-0.2 keeps 95.0% of its accuracy over 1 seed" in page
    assert "attention adds 0.1 ms" in page


def test_a_check_that_fails_in_any_seed_is_seen_and_so_are_searches_and_stages(ran):
    _, report, _ = ran
    checks = [
        [{"name": "tail", "verdict": word, "claim": "A.", "found": f"B {word}."}] for word in ("pass", "fail")
    ]
    stages = [{"batch": 1000, "ms_per_query": {"search": 0.25, "weighing": 0.125}}]
    told = {
        **report,
        "settings": {"theory": [None, *({"checks": each} for each in checks)], "stages": [{"stages": stages}]},
        "places": {"exact-9x9-cpu": {"not_run": "no <device>"}},
    }
    page = page_of(told, {}, ())
    assert "tail: fail in 1, pass in 1 of 2 seeds. A. B fail." in page
    assert "0.2500" in page
    assert "0.1250" in page
    assert "exact-9x9-cpu" in page.partition("Searches")[2]
    assert "<device>" not in page


def test_published_numbers_stand_beside_ours(ran):
    _, report, _ = ran
    told = {**report, "config": {**report["config"], "data": "iris"}}
    told["methods"] = {"uniform": report["methods"]["hgb"]}
    page = page_of(told, {}, ())
    assert "What others reported" in page
    assert short(report["methods"]["hgb"]["accuracy"]["mean"]) in page.partition("What others reported")[2]
    assert "What others reported" not in page_of(report, {}, ())


def test_figures_are_of_the_numbers(ran):
    _, report, cells = ran
    found = plots_of(report, cells, ("distance+raw",))
    bars = found["accuracy"]
    assert isinstance(bars, Bars)
    assert bars.values == tuple(each["accuracy"]["mean"] for each in report["methods"].values())
    assert max(bars.high) <= 1
    assert isinstance(found["reliability-distance+raw"], Reliability)
    confusion = found["confusion"]
    assert isinstance(confusion, Matrix)
    right = sum(row[at] for at, row in enumerate(confusion.counts))
    total = sum(map(sum, confusion.counts))
    assert right / total == pytest.approx(report["methods"]["distance+raw"]["accuracy"]["mean"], abs=1e-9)
    assert plots_of({**report, "methods": {}}, cells, ()) == {}


def test_an_ablation_shows_the_reliability_of_the_usual_attention(ran):
    _, report, cells = ran
    told = {**report, "study": "ablation"}
    told["methods"] = {"attention": report["methods"]["hgb"], **report["methods"]}

    class Renamed:
        """The cells of hgb under another name."""

        def answers(self, name, seeds):
            return cells.answers("hgb" if name.startswith("attention") else name, seeds)

    quick = {**told, "methods": {"attention-all": report["methods"]["hgb"], **report["methods"]}}
    assert plots_of(quick, Renamed(), ())["confusion"].title == "attention-all: answers"
    found = plots_of(told, Renamed(), ())
    assert "reliability-attention" in found
    assert found["confusion"].title == "attention: answers"


def test_every_search_is_drawn_and_each_device_has_figures_of_its_own(ran):
    _, report, cells = ran
    kinds = [(index, "cpu") for index in ("exact", "flat", "hnsw", "ivf")] + [("exact", "cuda")]
    times = {name: {"median": 0.5} for name in ("single", "batch")}
    places = {
        f"{index}-{rows}x{dim}-{device}": {
            "index": index, "device": device, "rows": rows, "dim": dim, "ms_per_query": times
        }
        for index, device in kinds
        for rows in (1000, 10_000)
        for dim in (32, 64, 256)
    }  # fmt: skip
    found = plots_of({**report, "study": "efficiency", "places": places}, cells, ())
    names = ["search-single", "search-single-2", "search-batch", "search-batch-2"]
    assert list(found) == [*names, "search-single-cuda", "search-batch-cuda"]
    drawn = [each.name for name in names[:2] for each in found[name].series]
    assert drawn == [f"{index}, {dim} dimensions" for index, _ in kinds[:4] for dim in (32, 64, 256)]
    assert found["search-single"].title.endswith("part 1")
    assert found["search-single-cuda"].series[0].name == "exact, 32 dimensions"


def test_an_axis_is_drawn_as_lines_that_begin_where_nothing_is_changed(recipe, task, tmp_path):
    noisy, points = replace(recipe, study="noise"), noise_points([0.2, 0.4])
    asked = {"methods": ["hgb", "distance+raw"], "seeds": [0], "points": points, "device": "cpu", "commit": "c"}
    found = engine.run_study(noisy, task, out=tmp_path / "n", **asked)
    plots = plots_of(found.report, Cells.open(tmp_path / "n", noisy), ("distance+raw",))
    lines = plots["accuracy-symmetric"]
    assert isinstance(lines, Lines)
    assert [series.name for series in lines.series] == ["hgb", "distance+raw"]
    assert lines.series[0].x == (0.0, 0.2, 0.4)
    assert lines.series[0].y[0] == found.report["methods"]["hgb"]["accuracy"]["mean"]
    assert [series.name for series in plots["nll-asymmetric-bank"].series] == ["distance+raw"]
    assert lines.series[0].low is None  # one seed has no interval
    assert "keeps" in (tmp_path / "n/index.html").read_text()


def test_tables_hold_every_value_and_survive_latex(ran):
    out, report, _ = ran
    rows = list(csv.DictReader(io.StringIO((out / "tables/methods.csv").read_text())))
    assert len(rows) == sum(map(len, report["methods"].values()))
    for row in rows:
        found = report["methods"][row["method"]][row["metric"]]
        assert float(row["mean"]) == found["mean"]
        assert [float(each) for each in row["values"].split()] == found["values"]
    text = as_latex(
        {"a_b&c%": {"nll": {"mean": None, "low": None, "high": None}, "ece": report["methods"]["hgb"]["ece"]}}
    )
    assert r"a\_b\&c\% & -- & $" in text
    assert text.startswith("\\begin{tabular}{lrr}\n\\toprule\n")
    assert text.count("\\\\\n") == 2
    assert as_csv({"m": {"nll": {"mean": float("nan"), "low": None, "high": None, "values": [None]}}}).endswith(
        "m,nll,,,,\n"
    )


def test_figures_are_files_too_and_those_without_matplotlib_are_vectors(ran, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib", reason="needs attnknn[plots]")
    out, report, cells = ran
    plots = plots_of(report, cells, ("distance+raw",))
    assert {path.name for path in (out / "figures").iterdir()} >= {"accuracy.svg", "confusion.svg"}
    figures = {"accuracy": plots["accuracy"]}
    write_figures(figures, tmp_path / "both")
    assert (tmp_path / "both/accuracy.png").read_bytes().startswith(b"\x89PNG")
    drawn = ElementTree.fromstring((tmp_path / "both/accuracy.svg").read_text())
    assert drawn.tag.endswith("svg")
    assert "var(--plot-0)" in (tmp_path / "both/accuracy.svg").read_text()  # its style is in it
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    write_figures(figures, tmp_path / "one")
    assert [path.name for path in (tmp_path / "one").iterdir()] == ["accuracy.svg"]
    assert not_drawn(["figures"]).startswith("no figures/*.png, but *.svg: figures need matplotlib: pip install")
    assert not_drawn([]) is None


def test_a_corrected_line_begins_where_nothing_is_to_be_corrected(ran):
    _, report, cells = ran
    found = report["methods"]["hgb"]
    names = ("hgb", "hgb@tail-0.01", "hgb+prior-correction@tail-0.01")
    told = {
        **report,
        "study": "imbalance",
        "methods": dict.fromkeys(names, found),
        "points": {"": {"at": 1.0, "line": ""}, "tail-0.01": {"at": 0.01, "line": "tail"}},
    }
    plots = plots_of(told, cells, ())
    for name, method in (("accuracy-tail", "hgb"), ("accuracy-tail-corrected", "hgb+prior-correction")):
        (line,) = plots[name].series
        assert (line.name, line.x) == (method, (0.01, 1.0))
