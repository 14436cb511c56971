"""Several studies in one run, studies from Python, and recipes of the source documents."""

from __future__ import annotations

import csv
import io
import json
import sys
from dataclasses import replace

import numpy as np
import pytest
from mixed import mixed

from attnknn import study
from attnknn.errors import InvalidInput, MissingExtra
from attnknn.study import engine
from attnknn.study.answers import answered
from attnknn.study.compared import compare
from attnknn.study.methods import METHODS
from attnknn.study.pdf import overview_sheets
from attnknn.study.points import PLAIN_POINT, Scope, k_points, noise_points
from attnknn.study.published import claims
from attnknn.study.recipe import STUDIES, TOGETHER
from attnknn.study.scopes import all_scopes, scope_of
from attnknn.study.source import SOURCES
from attnknn.study.splits import recipe_for, task_of

SCOPES = {
    "main": Scope(["sklearn-knn", "hgb", "uniform", "distance", "attention"]),
    "k-sweep": Scope(["uniform", "distance"], k_points((1, 5))),
    "noise": Scope(["hgb", "distance"], (PLAIN_POINT, noise_points((0.3,))[1])),
}


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    """Three studies of two seeds, run at once."""
    out = tmp_path_factory.mktemp("all") / "run"
    frame, labels = mixed()
    recipe = recipe_for(frame, labels, data="mixed", target="y", named=False, study="all", quick=True)
    ours = replace(recipe.ours, embedder="standardize", table=None)  # the run is tested, not the training
    recipe = replace(recipe, draws=40, ours=ours)
    said: list[str] = []
    task = task_of(frame, labels, recipe)
    found = engine.run_all(recipe, task, SCOPES, seeds=[0, 1], out=out, device="cpu", commit="c", say=said.append)
    return recipe, task, out, found, said


def test_studies_that_run_together_are_what_each_would_be_alone(together, tmp_path):
    recipe, task, out, found, _ = together
    assert found.failed == {}
    for name, scope in SCOPES.items():
        alone = engine.run_study(
            replace(recipe, study=name), task, methods=scope.methods, points=scope.points, seeds=[0, 1],
            out=tmp_path / name, device="cpu", commit="c",
        )  # fmt: skip
        for part in ("methods", "uncalibrated", "differences", "settings"):
            assert json.dumps(found.report["studies"][name][part]) == json.dumps(alone.report[part]), (name, part)
        assert (out / name / "index.html").exists()
    assert json.loads((out / "report.json").read_text())["studies"].keys() == SCOPES.keys()


def test_what_one_study_fitted_serves_the_others(together, tmp_path, monkeypatch):
    recipe, task, *_ = together
    fits, fit = [], METHODS["hgb"]

    def counted(job):
        fits.append((job.recipe.study, job.point.name))
        return fit(job)

    monkeypatch.setitem(METHODS, "hgb", counted)
    scopes = {name: replace(scope, methods=["hgb"]) for name, scope in SCOPES.items() if name != "k-sweep"}
    engine.run_all(recipe, task, scopes, seeds=[0], out=tmp_path, device="cpu", commit="c")
    assert fits == [("main", ""), ("noise", "symmetric-0.3")]


def test_a_run_of_all_goes_seed_by_seed_and_on_where_it_was(together):
    recipe, task, out, found, said = together
    seeds = [text.split("seed ")[1][0] for text in said if ": cell " in text]
    assert seeds == sorted(seeds)
    assert said[0].startswith("main: sklearn-knn, seed 0: cell 1 of ")
    again: list[str] = []
    same = engine.run_all(recipe, task, SCOPES, seeds=[0, 1], out=out, device="cpu", commit="c", say=again.append)
    assert not [text for text in again if ": cell " in text]
    assert (found.report["run"]["cells"], same.report["run"]["cells"]) == (26, 0)
    assert json.dumps(same.report["studies"]["main"]["methods"]) == json.dumps(
        found.report["studies"]["main"]["methods"]
    )
    with pytest.raises(InvalidInput, match="another recipe"):
        engine.run_all(replace(recipe, draws=41), task, SCOPES, seeds=[0], out=out, device="cpu", commit="c")


def test_several_studies_are_compared_one_by_one(together):
    out = together[2]
    with pytest.raises(InvalidInput, match="holds several studies; name one"):
        compare(out, out)
    assert compare(out / "main", out / "main")["verdicts"]


def test_the_page_of_all_answers_the_claims_from_the_study_that_can(together):
    _, _, out, found, _ = together
    page = (out / "index.html").read_text()
    for name in SCOPES:
        assert f'<section id="{name}">' in page
        assert STUDIES[name].line in page
    reports = list(found.report["studies"].values())
    assert "uniform in ECE" in answered("calibration", reports)
    assert answered("overhead", reports) == "not run: attnknn study efficiency"
    assert "distance" not in answered("robustness", reports)
    assert page.index("The four claims") < page.index('id="main"')
    made = page.partition("How it was made")[2]
    assert all(name in made for name in SCOPES)
    assert "Nothing differs from this in main, k-sweep, noise." in made
    assert "quick: short trainings" in page


def test_a_run_of_all_has_tables_and_figures_of_its_own(together):
    _, _, out, found, _ = together
    for name in SCOPES:
        for kind in ("tables", "figures"):
            there = {f"{name}-{path.name}": path.read_bytes() for path in (out / name / kind).iterdir()}
            mine = {path.name: path.read_bytes() for path in (out / kind).glob(f"{name}-*")}
            assert mine == there != {}, (name, kind)
    rows = list(csv.DictReader(io.StringIO((out / "tables/claims.csv").read_text())))
    assert [row["about"] for row in rows] == list(claims())
    assert rows[0]["found"] == answered("calibration", list(found.report["studies"].values()))
    assert (out / "tables/claims.tex").read_text().startswith("\\begin{tabular}{lrp{7cm}}")


def test_a_run_of_all_has_a_pdf_of_its_own_where_asked(together, tmp_path):
    pytest.importorskip("matplotlib", reason="needs attnknn[plots]")
    recipe, task, *_ = together
    scopes = {"main": Scope(["sklearn-knn"]), "noise": SCOPES["noise"]}
    how = {"seeds": [0], "out": tmp_path, "device": "cpu", "commit": "c", "also": ("pdf",)}
    found = engine.run_all(recipe, task, scopes, **how).report
    for folder in (tmp_path, tmp_path / "main", tmp_path / "noise"):
        assert (folder / "report.pdf").read_bytes().startswith(b"%PDF-")
    from matplotlib.text import Text

    words = [
        each.get_text()
        for sheet in overview_sheets(found, {name: ({}, ()) for name in scopes})
        for each in sheet.findobj(Text)
    ]
    places = [
        words.index(each) for each in ("mixed: 2 studies", "The four claims", "main", "noise", "How it was made")
    ]
    assert places == sorted(places)
    assert not list(tmp_path.rglob("*.png"))


def test_without_matplotlib_a_pdf_is_refused_before_anything_is_run(together, tmp_path, monkeypatch):
    recipe, task, *_ = together
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    how = {"seeds": [0], "device": "cpu", "commit": "c"}
    with pytest.raises(MissingExtra, match="pip install"):
        engine.run_all(recipe, task, SCOPES, out=tmp_path / "run", also=("pdf",), **how)
    assert not (tmp_path / "run").exists()
    scopes = {"main": Scope(["sklearn-knn"])}
    found = engine.run_all(recipe, task, scopes, out=tmp_path / "run", also=("figures",), **how).report
    assert found["studies"]["main"]["notes"][-1].startswith("no figures/*.png, but *.svg: figures need matplotlib")
    assert (tmp_path / "run/figures/main-accuracy.svg").exists()


@pytest.mark.parametrize(
    ("given", "named"), [("main", "'main'"), ("noise", "'noise'"), ("fun", "'main'"), (3, "'main'")]
)
def test_what_is_no_recipe_is_refused_in_one_line_that_says_how_to_make_one(given, named):
    with pytest.raises(InvalidInput) as refused:
        study.run(given)
    assert str(refused.value) == f"run takes a recipe, such as study.recipe_of({named}, 'iris'); got {given!r}"


def test_all_scopes_name_every_study_that_fits_the_data():
    tables, images = all_scopes(images=False), all_scopes(images=True, quick=True)
    assert [*tables] == [*TOGETHER]
    assert [*images] == [*TOGETHER]
    assert "cnn" in images["main"].methods
    assert "lightgbm" in tables["main"].methods
    assert "lightgbm" not in all_scopes(images=False, quick=True)["main"].methods


def test_some_studies_are_run_as_all_would_run_them(together):
    every = all_scopes(images=False)
    assert all_scopes(images=False, studies=["noise", "main"]) == {name: every[name] for name in ("main", "noise")}
    for wrong, said in (
        (["magic"], "is called 'magic'"),
        ([], "is named"),
    ):
        with pytest.raises(InvalidInput) as refused:
            all_scopes(images=False, studies=wrong)
        assert str(refused.value) == f"no study {said}; try one of: {', '.join(TOGETHER)}"
    with pytest.raises(InvalidInput, match="new-class does not run together with others: attnknn study new-class"):
        all_scopes(images=False, studies=["noise", "new-class"])


def test_a_study_that_was_left_out_is_added_to_the_same_folder(together, tmp_path):
    recipe, task, *_ = together
    how = {"seeds": [0], "out": tmp_path, "device": "cpu", "commit": "c"}
    scopes = {name: replace(SCOPES[name], methods=["hgb"]) for name in ("main", "noise")}
    engine.run_all(recipe, task, {"noise": scopes["noise"]}, **how)
    assert not (tmp_path / "main").exists()
    found = engine.run_all(recipe, task, scopes, **how).report
    assert (found["run"]["cells"], [*found["studies"]]) == (1, ["main", "noise"])
    assert (tmp_path / "tables" / "main-methods.csv").exists()
    engine.run_all(recipe, task, {"noise": scopes["noise"]}, **how)
    assert not [*tmp_path.glob("tables/main-*"), *tmp_path.glob("figures/main-*")]  # nor are they on the page
    assert (tmp_path / "tables" / "noise-methods.csv").exists()
    assert (tmp_path / "main" / "tables" / "methods.csv").exists()


@pytest.mark.parametrize(
    ("name", "asked", "said"),
    [
        ("main", {"methods": ["magic"]}, "'magic'; try one of"),
        ("main", {"methods": []}, "no method is named"),
        ("main", {"along": [1.0]}, "has no axis"),
        ("k-sweep", {"along": [2.5]}, "whole numbers"),
        ("noise", {"along": []}, "from 0 to 0.9"),
    ],
)
def test_a_scope_that_makes_no_sense_is_refused(name, asked, said):
    with pytest.raises(InvalidInput, match=said):
        scope_of(STUDIES[name], images=False, **asked)


def test_a_study_runs_from_python_on_rows_of_ones_own(tmp_path):
    frame, labels = mixed()
    recipe = study.recipe_of("main", "mine", frame, labels, quick=True)
    found = study.run(recipe, frame, labels, methods=["sklearn-knn"], seeds=1, out=tmp_path / "run", device="cpu")
    assert found.report["config"]["data"] == "mine"
    assert found.report["seeds"] == [0]
    assert (tmp_path / "run" / "index.html").exists()
    numbers = np.random.default_rng(0).normal(size=(60, 3))
    sides = (numbers[:, 0] > 0).astype(int)
    recipe = study.recipe_of("main", "numbers", numbers, sides, quick=True)
    report = study.run(recipe, numbers, sides, methods=["sklearn-knn"], device="cpu").report
    assert report["seeds"] == [0, 1]
    assert report["methods"]["sklearn-knn"]["accuracy"]["mean"] > 0.7


def test_a_study_from_python_knows_data_sets_by_name_and_refuses_other_rows():
    recipe = study.recipe_of("k-sweep", "iris", quick=True)
    frame, labels = mixed()
    with pytest.raises(InvalidInput, match="not the rows of 'iris'"):
        study.run(recipe, frame, labels)
    with pytest.raises(InvalidInput, match="no study is called 'minor'"):
        study.recipe_of("minor", "iris")
    with pytest.raises(InvalidInput, match="a label for each of 150 rows"):
        study.recipe_of("main", "mine", frame, labels[1:])
    with pytest.raises(InvalidInput, match="name one of them"):
        study.run(study.recipe_of("all", "iris", quick=True), methods=["hgb"])


@pytest.mark.parametrize(
    ("seeds", "said"),
    [
        (0, "a count of at least 1"),
        ([], "a count of at least 1"),
        ("12", "a count of at least 1"),
        (np.array(2.0), "a count of at least 1"),
        (np.ones((2, 2), int), "whole numbers"),
        ([True], "whole numbers"),
        ([0.5], "whole numbers"),
        ([-1], "whole numbers"),
        ([2**32], "below 2"),
        ([3, 1, 3], "another one"),
    ],
)
def test_seeds_that_make_no_sense_are_refused(seeds, said):
    with pytest.raises(InvalidInput, match=said):
        study.run(study.recipe_of("main", "iris", quick=True), methods=["sklearn-knn"], seeds=seeds)


@pytest.mark.parametrize("name", SOURCES)
def test_a_recipe_of_the_source_documents_sets_what_they_set(name):
    images = np.zeros((40, 32, 32, 3), np.uint8)
    labels = np.arange(40) % 2
    given = {"data": "photos", "target": "folder", "named": False}
    recipe = recipe_for(images, labels, source=name, **given)
    source = SOURCES[name]
    assert (recipe.ours.n_neighbors, recipe.ours.heads) == (source.k, source.heads)
    assert {key: recipe.ours.images[key] for key in source.images} == dict(source.images)
    assert recipe_for(images, labels, source=name, images={"epochs": 2}, **given).ours.images["epochs"] == 2
    frame, of_table = mixed()
    with pytest.raises(InvalidInput, match="recipe of images"):
        recipe_for(frame, of_table, source=name, **given)
