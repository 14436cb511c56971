"""Cells share their predictions only where the recipe says so, and the cells bear it out; else a note is loud."""

from __future__ import annotations

from dataclasses import replace

import pytest
from mixed import mixed, small

from attnknn.study import engine
from attnknn.study.alike import RULES, Cell, told_apart
from attnknn.study.methods import METHODS
from attnknn.study.recipe import ALIKE
from attnknn.study.splits import recipe_for, task_of

PLAIN_MEMBER = {"network": None, "weigher": "Weighting", "k": 8}
LEARNED_MEMBER = {**PLAIN_MEMBER, "weigher": "LearnedWeighting"}


def cell(name, member=PLAIN_MEMBER, seed=0, **settings):
    return Cell(name, seed, {"k": 8, "members": [member], **settings})


def allowed(*cells, recipe):
    return bool(told_apart([cells], recipe)[0])


def test_every_reason_of_a_recipe_has_a_rule(recipe):
    assert {*ALIKE} == {*RULES} == {*recipe.may_coincide}


def test_attention_is_distance_only_where_no_learned_part_was_kept(recipe):
    for end in ("", "+k-ensemble", "@symmetric-0.4", "+prior-correction@tail-0.1"):
        pair = cell(f"distance{end}"), cell(f"attention{end}")
        assert allowed(*pair, recipe=recipe)
        assert not allowed(pair[0], cell(f"attention{end}", LEARNED_MEMBER), recipe=recipe)
        assert not allowed(*pair, recipe=replace(recipe, may_coincide=()))
    assert not allowed(cell("distance"), cell("attention@symmetric-0.4"), recipe=recipe)
    assert not allowed(cell("distance"), cell("attention", seed=1), recipe=recipe)


def test_reliability_is_distance_only_without_trust(recipe):
    assert allowed(cell("distance"), cell("reliability", trust=0.0), recipe=recipe)
    assert not allowed(cell("distance"), cell("reliability", trust=0.5), recipe=recipe)


def test_votes_are_one_and_the_same_however_they_are_weighed_only_where_all_neighbors_agree(recipe):
    pair = cell("uniform@k-3", k=3), cell("attention@k-3", LEARNED_MEMBER, k=3)
    agreeing = [replace(each, unanimous=True) for each in pair]
    assert allowed(*agreeing, recipe=recipe)
    assert not allowed(*pair, recipe=recipe)
    assert not allowed(agreeing[0], pair[1], recipe=recipe)
    elsewhere = replace(cell("attention@k-5", LEARNED_MEMBER, k=5), unanimous=True)
    assert not allowed(agreeing[0], elsewhere, recipe=recipe)
    vector_free = Cell("hgb", 0, {}, unanimous=True), Cell("logistic", 0, {}, unanimous=True)
    assert not allowed(*vector_free, recipe=recipe)  # no votes: two models that are one are told


def test_a_group_hangs_together_by_pairs(recipe):
    group = cell("attention"), cell("distance"), cell("reliability", trust=0.0)
    (found,), unexpected = told_apart([group], recipe)
    assert unexpected == []
    assert found["cells"] == ["attention-0", "distance-0", "reliability-0"]
    assert found["why"] == [ALIKE["no-learned-part"], ALIKE["no-trust"]]
    assert not allowed(*group, cell("uniform"), recipe=recipe)


@pytest.mark.parametrize(
    ("one", "other", "otherwise"),
    [
        (cell("uniform@k-1", k=1), cell("attention@k-1", LEARNED_MEMBER, k=1), cell("attention@k-1")),
        (cell("distance+raw"), cell("distance"), cell("distance", {"network": "PeriodicEmbedder"})),
        (cell("attention"), cell("attention-periodic"), cell("attention-tabular")),
        (cell("uniform@k-20"), cell("uniform@k-50"), cell("uniform@k-50", k=50)),
        (cell("attention-matrix"), cell("attention-temperature"), cell("attention-isotonic", calibrator={})),
        (cell("uniform+k-ensemble"), cell("uniform"), cell("distance")),
        (cell("taught-20", examples=7), cell("taught-100", examples=7), cell("taught-100", examples=9)),
    ],
)
def test_what_may_coincide_is_judged_by_what_the_cells_tell(one, other, otherwise, recipe):
    assert allowed(one, other, recipe=recipe)
    assert not allowed(one, otherwise, recipe=recipe)


def test_one_model_under_two_names_is_loud_and_a_known_case_is_told_with_its_reason(tmp_path, monkeypatch):
    recipe = small(recipe_for(*mixed(), data="d", target="y", named=False))
    monkeypatch.setitem(METHODS, "logistic", METHODS["sklearn-knn"])
    methods = ["sklearn-knn", "logistic", "distance+raw", "distance"]
    task = task_of(*mixed(), recipe)
    found = engine.run_study(recipe, task, methods=methods, seeds=[0, 1], out=tmp_path, device="cpu", commit="c")
    assert sorted(map(sorted, found.report["unexpected"])) == [
        [f"logistic-{seed}", f"sklearn-knn-{seed}"] for seed in (0, 1)
    ]
    assert [each["why"] for each in found.report["alike"]] == [[ALIKE["nothing-trained"]]] * 2
    loud = "unexpected: logistic, sklearn-knn gave identical predictions, in 2 cases such as"
    assert [each.startswith(loud) for each in found.report["notes"]].count(True) == 1
    quiet = f"identical predictions of distance, distance+raw in 2 cases: {ALIKE['nothing-trained']}"
    assert quiet in found.report["notes"]
    page = (tmp_path / "index.html").read_text()
    assert loud in page
    assert quiet in page
