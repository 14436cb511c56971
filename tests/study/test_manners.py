"""Manners of answering on tables: numbers of neighbors that suit the rows, and comparisons that can be read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnknn.study.differences import pairs
from attnknn.study.engine import run_study
from attnknn.study.manners import around, table_pairs
from attnknn.study.methods import METHODS
from attnknn.study.recipe import IN_MANNERS, OURS, PLAIN, STUDIES
from attnknn.study.scopes import scope_of

MAIN = STUDIES["main"]


@given(k=st.integers(1, 4096), most=st.integers(2, 5000))
def test_numbers_of_neighbors_ascend_around_the_fitted_one_and_never_exceed_the_rows(k, most):
    ks = around(k, most)
    assert list(ks) == sorted(set(ks))
    assert 1 <= ks[0] <= max(1, k // 4)
    assert ks[-1] <= most
    assert min(k, most) in ks
    if k <= most:
        assert len(ks) > 1
        assert ks[-1] == min(4 * k, most)


def test_manners_meet_their_own_method_and_each_other_where_attention_answers():
    found = table_pairs(["hgb", *OURS, *IN_MANNERS], OURS)
    met = {(mine, other) for mine, other in found if mine in IN_MANNERS or other in IN_MANNERS}
    own = {(name, name.partition("+")[0]) for name in IN_MANNERS}
    assert met == own | {("attention+adaptive-k", "attention+k-ensemble")}
    assert [pair for pair in found if pair not in met] == pairs(["hgb", *OURS], OURS)


def test_a_manner_alone_has_nobody_to_meet():
    assert table_pairs(["distance+k-ensemble", "attention+adaptive-k"], OURS) == []


def test_every_manner_is_run_unasked_and_a_quick_run_has_those_of_distance_and_attention():
    assert set(IN_MANNERS) <= set(METHODS)
    assert {name.partition("+")[0] for name in IN_MANNERS} == set(PLAIN)
    assert "uniform+adaptive-k" not in IN_MANNERS
    assert set(IN_MANNERS) <= set(scope_of(MAIN, images=False).methods)
    quick = [name for name in scope_of(MAIN, images=False, quick=True).methods if name in IN_MANNERS]
    assert quick == ["distance+k-ensemble", "distance+adaptive-k", "attention+k-ensemble", "attention+adaptive-k"]
    assert set(IN_MANNERS) <= set(scope_of(MAIN, images=True, quick=True).methods)
    named = ["uniform+k-ensemble"]
    assert scope_of(MAIN, images=False, quick=True, methods=named).methods == named


@pytest.fixture(scope="module")
def ran(recipe, task, tmp_path_factory):
    methods = ["sklearn-knn", *PLAIN, *IN_MANNERS]
    out = tmp_path_factory.mktemp("study") / "run"
    return run_study(recipe, task, methods=methods, seeds=[0], out=out, device="cpu", commit="c")


def test_every_manner_answers_on_a_small_table(ran, task):
    assert ran.failed == {}
    assert set(IN_MANNERS) < set(ran.report["methods"])
    for name in IN_MANNERS:
        (plain,), (told,) = (ran.report["settings"][each] for each in (name.partition("+")[0], name))
        assert plain["k"] <= told["k"] <= min(4 * plain["k"], len(task) * 4 // 5), name
        assert told["calibrator"] != plain["calibrator"] or told["prior_mass"] != plain["prior_mass"], name


def test_a_manner_is_compared_with_its_own_method_in_the_report(ran):
    differences = ran.report["differences"]
    assert set(differences["reliability+adaptive-k"]) == {"reliability"}
    assert set(differences["attention+adaptive-k"]) == {"attention", "attention+k-ensemble"}
    assert not any(name in IN_MANNERS for name in differences["attention"])
