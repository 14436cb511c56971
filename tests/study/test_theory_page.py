"""What a page shows of the checks of the theory."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from html import unescape

import numpy as np
import pytest

from attnknn.attend import AttentionOptions
from attnknn.estimator import AttnKNNClassifier
from attnknn.study import engine
from attnknn.study.answers import not_run
from attnknn.study.cells import Cells
from attnknn.study.page import page_of
from attnknn.study.plots import plots_of
from attnknn.study.scales import check_scales, head_scales


@pytest.fixture(scope="module")
def ran(recipe, task, tmp_path_factory):
    out = tmp_path_factory.mktemp("theory")
    asked = {"methods": ["theory"], "seeds": [0, 1], "out": out, "device": "cpu", "commit": "c"}
    theory = replace(recipe, study="theory")
    found = engine.run_study(theory, task, **asked)
    assert not found.failed
    return json.loads((out / "report.json").read_text()), Cells.open(out, theory), out


def checks(report, name):
    return [check for told in report["settings"]["theory"] for check in told["checks"] if check["name"] == name]


def test_no_check_is_folded_away_whatever_its_words_are(ran):
    report, *_ = ran
    for told in checks(report, "k"):
        told["found"] = "no difference found to the k served."
    page = unescape(page_of(report, {}, ()))
    assert "k: reported in 2 of 2 seeds. How good probabilities are depends on k" in page
    assert "comparisons without a difference" not in page
    for told in report["settings"]["theory"][0]["checks"]:
        assert told["claim"] in page


def test_nll_against_k_and_the_recall_of_hnsw_are_figures(ran):
    report, cells, out = ran
    figures = plots_of(report, cells, ())
    (line,) = figures["nll-k"].series
    per_seed = [{each["k"]: each["nll"] for each in told["numbers"]["by_k"]} for told in checks(report, "k")]
    assert set(line.x) == set(per_seed[0]) & set(per_seed[1])
    assert line.y == pytest.approx([np.mean([each[k] for each in per_seed]) for k in line.x])
    assert all(low <= y <= high for low, y, high in zip(line.low, line.y, line.high, strict=True))
    assert (out / "figures/nll-k.svg").exists()
    pytest.importorskip("faiss", reason="needs attnknn[faiss]")
    for line, told in zip(figures["hnsw-recall"].series, checks(report, "hnsw recall"), strict=True):
        curve = told["numbers"]["curve"]
        assert line.x == tuple(each["ef_search"] for each in curve)
        assert line.y == tuple(each["recall"] for each in curve)


def test_of_one_seed_the_interval_is_over_its_rows(ran):
    report, cells, _ = ran
    alone = {**report, "settings": {"theory": report["settings"]["theory"][:1]}}
    figure = plots_of(alone, cells, ())["nll-k"]
    told = {each["k"]: each for each in checks(alone, "k")[0]["numbers"]["by_k"]}
    assert figure.series[0].low == pytest.approx([told[k]["low"] for k in figure.series[0].x])
    assert "over its test rows" in figure.note


def test_a_check_that_was_not_run_is_among_what_was_not_run(ran):
    report, *_ = ran
    told = json.loads(json.dumps(report))
    check = checks(told, "tail")[1]
    check |= {"verdict": "not run", "found": "Not run: k = 9 takes in all 9 rows."}
    assert "not run: check of tail, seed 1: k = 9 takes in all 9 rows" in not_run(told)


def test_scales_are_told_for_what_ships_and_for_each_head_of_learned_attention(ran):
    report, *_ = ran
    (told,) = checks(report, "scale")[:1]
    shipped, learned = told["numbers"]["heads"].values()
    assert len(shipped) == 1
    assert shipped[0]["effective"] == pytest.approx(shipped[0]["scale"])
    assert len(learned) == AttentionOptions().num_heads
    assert len({each["effective"] for each in learned}) > 1  # the projections make heads differ
    assert "what ships (softmax weights): one scale, " in told["found"]
    assert "attention with all learned parts (attention weights): scales of its 4 heads " in told["found"]


def test_weights_of_one_neighbor_have_no_effective_scale():
    X, y = np.random.default_rng(0).normal(size=(60, 3)), np.arange(60) % 2
    model = AttnKNNClassifier(1, weights="softmax", embedder="standardize", random_state=0).fit(X, y)
    member = model.voter_.members[0]
    (head,) = head_scales(member, member.vectors(model._encoded(X[:5])))
    assert math.isnan(head["effective"])
    found = check_scales({"one": [head]}, {"two": "no rows"}).found
    assert "effective unknown" in found
    assert found.endswith("two: not run: no rows.")
