"""What a study offers and a run was not asked for is told, with the option that left it out."""

from __future__ import annotations

from dataclasses import replace

import pytest
from mixed import mixed, small

from attnknn.study import engine
from attnknn.study.ablation import QUICK, USUAL, VARIANTS
from attnknn.study.answers import not_run
from attnknn.study.efficiency import PLACES, quick_places
from attnknn.study.left_out import left_out
from attnknn.study.points import cell_name, noise_points, points_of
from attnknn.study.recipe import STUDIES
from attnknn.study.scopes import scope_of
from attnknn.study.splits import recipe_for, task_of


def recipe_of(study, *, quick):
    return recipe_for(*mixed(), data="d", target="y", named=False, study=study, quick=quick)


def cells_of(study, **asked):
    scope = scope_of(STUDIES[study], images=False, **asked)
    return [cell_name(method, point) for method in scope.methods for point in scope.points]


@pytest.mark.parametrize("study", [name for name in STUDIES if name != "main"])
def test_a_full_run_leaves_nothing_out(study):
    assert left_out(recipe_of(study, quick=False), cells_of(study), 3) == {}


def test_only_what_has_no_meaning_is_left_out_of_a_full_main_study():
    assert left_out(recipe_of("main", quick=False), cells_of("main"), 3) == {
        "uniform+adaptive-k": "uniform weights have no entropy to adapt k by"
    }


def test_what_quick_leaves_out_is_told_by_method_place_and_bank():
    main = left_out(recipe_of("main", quick=True), cells_of("main", quick=True), 3)
    assert {"lightgbm", "attention+ensemble"} <= {*main}
    assert main["lightgbm"] == "not asked for: --quick leaves them out"
    ablation = left_out(recipe_of("ablation", quick=True), cells_of("ablation", quick=True), 3)
    offered = {*STUDIES["ablation"].methods}
    assert {*ablation} == offered - {*cells_of("ablation", quick=True)}
    assert {*ablation} & {USUAL, *VARIANTS} == offered - {*QUICK}
    noise = left_out(recipe_of("noise", quick=True), cells_of("noise", quick=True), 3)
    inner = {f"@{point.name}" for point in points_of("noise") if point not in points_of("noise", quick=True)}
    assert noise == dict.fromkeys(inner, "not asked for: --quick takes the ends of each line")
    efficiency = left_out(recipe_of("efficiency", quick=True), cells_of("efficiency", quick=True), 3)
    assert {*efficiency} == {place.name for place in PLACES} - {place.name for place in quick_places()}


def test_what_was_not_named_is_told_as_such():
    found = left_out(recipe_of("noise", quick=False), cells_of("noise", methods=["attention"], along=[0.4]), 3)
    assert found["uniform"] == "not asked for: not named by --methods"
    assert found["@symmetric-0.1"] == "not asked for: not among the places of --along"
    assert "@symmetric-0.4" not in found


def test_the_page_lists_it_among_what_was_not_run(tmp_path):
    recipe = replace(small(recipe_of("noise", quick=False)), study="noise")
    task, points = task_of(*mixed(), recipe), noise_points([0.4])[:2]
    how = {"methods": ["hgb", "distance"], "points": points, "seeds": [0], "out": tmp_path}
    report = engine.run_study(recipe, task, device="cpu", commit="c", **how).report
    assert report["left_out"]["attention"] == "not asked for: not named by --methods"
    lines = not_run(report)
    assert "not run: uniform, reliability, attention: not asked for: not named by --methods" in lines
    assert lines[0] in (tmp_path / "index.html").read_text()


def test_of_two_classes_both_kinds_of_wrong_labels_are_one_and_only_one_is_run(tmp_path):
    rows, labels = mixed()
    recipe = small(recipe_for(rows, labels == "a", data="d", target="y", named=False, study="noise"))
    how = {"methods": ["hgb"], "points": noise_points([0.1, 0.4]), "seeds": [0], "out": tmp_path}
    report = engine.run_study(recipe, task_of(rows, labels == "a", recipe), device="cpu", commit="c", **how).report
    assert [*report["methods"]] == ["hgb", "hgb@symmetric-0.1", "hgb@symmetric-0.4"]
    assert report["left_out"]["@asymmetric-0.4"].startswith("of two classes a wrong label is always the other one")
    assert report["left_out"]["@symmetric-0.2"] == "not asked for: not among the places of --along"
