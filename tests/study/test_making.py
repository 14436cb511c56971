"""How several studies were made."""

from __future__ import annotations

from attnknn.study.making import made_of_all
from attnknn.study.page import _made_of_all


def report(study, cores=2, k="auto", commit="c", cells=("a-0",)):
    environment = {"environment": {"cores": cores}, "commit": commit, "source_hash": "s", "cells": list(cells)}
    config = {"study": study, "data": "d", "ours": {"n_neighbors": k, "index": "exact"}}
    made = {"command": "attnknn study all", "commit": commit, "source_hash": "s"}
    return {"study": study, **made, "config": config, "environments": [environment]}


def test_what_studies_share_is_told_once_and_the_rest_by_study():
    studies = {"main": report("main"), "noise": report("noise", cores=8, k=5)}
    shared, own = made_of_all(studies)
    assert shared == {
        "command": "attnknn study all", "commit": "c", "source_hash": "s", "config.data": "d",
        "config.ours.index": "exact",
    }  # fmt: skip
    assert [each["config.ours.n_neighbors"] for each in own.values()] == ["auto", 5]
    assert [each["environments"][0]["environment"]["cores"] for each in own.values()] == [2, 8]


def test_studies_that_were_made_alike_are_said_to_be():
    shared, own = made_of_all({"main": report("main"), "noise": report("noise", cells=("b-0",))})
    assert own == {"main": {}, "noise": {}}
    assert shared["environments"] == [{"environment": {"cores": 2}, "commit": "c", "source_hash": "s"}]
    page = _made_of_all({"main": report("main"), "noise": report("noise")})
    assert "Nothing differs from this in main, noise." in page
    assert page.count("<pre>") == 1


def test_of_several_machines_each_is_told_with_its_cells():
    two = report("main")
    two["environments"] += report("main", cores=8, cells=("b-1",))["environments"]
    shared, own = made_of_all({"main": two, "noise": report("noise")})
    assert [each["cells"] for each in own["main"]["environments"]] == [["a-0"], ["b-1"]]
    assert "environments" not in shared
    page = _made_of_all({"main": two, "noise": report("noise")})
    assert "&quot;cores&quot;: 8" in page
    assert page.index("config.data") < page.index("<h3>main</h3>") < page.index("b-1")
