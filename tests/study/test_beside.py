"""A published number stands beside ours of the same setting, or says that there is none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from attnknn.study.beside import Beside, published_beside
from attnknn.study.grids import reported
from attnknn.study.points import noise_points, points_of
from attnknn.study.published import Published, published


def told(mean):
    return {"accuracy": {"mean": mean, "low": mean - 0.01, "high": mean + 0.01, "values": [mean, mean]}}


def report(study, k=16, backbone="resnet50", **changes):
    """Numbers for attention that tell where they stand: .5 at the plain place, another at each other."""
    points = {point.name: {"at": point.at, "line": point.line} for point in points_of(study)}
    cells = {f"attention@{name}" if name else "attention": at for at, name in enumerate(points)}
    ours = {"images": {"backbone": backbone, "epochs": None}, "k_ensemble": [5, 10, 20], "n_neighbors": "auto"}
    return {
        "study": study,
        "config": {"data": "cifar10", "ours": ours},
        "points": points,
        "methods": {cell: told(0.5 + at / 1000) for cell, at in cells.items()},
        "settings": {cell: [{"k": k}, {"k": k}] for cell in cells},
        **changes,
    }


def beside(study, method="attention", metric="accuracy", found=None, **setting):
    """Ours beside the first published numbers of a setting."""
    every = published_beside(report(study) if found is None else found)
    some = [each for each in every if each.entry.method == method and each.entry.metric == metric]
    return [each for each in some if setting.items() <= each.entry.setting.items()]


def place_of(each, found):
    """The cell whose number stands beside."""
    return [name for name, metrics in found["methods"].items() if metrics["accuracy"] == each.ours]


@pytest.mark.parametrize("rate", [0.1, 0.2, 0.3])
def test_wrong_labels_stand_beside_as_many_of_the_same_kind_in_the_same_place(rate):
    found = report("noise")
    some = beside("noise", noise=rate, k=16, backbone="resnet50")
    assert len(some) == 1
    assert place_of(some[0], found) == [f"attention@symmetric-{rate}-bank"]
    assert some[0].here.startswith(
        f"{found['methods'][f'attention@symmetric-{rate}-bank']['accuracy']['mean']:.4f}"[1:]
    )
    assert "published only" not in some[0].here


def test_right_labels_and_whole_classes_stand_beside_the_plain_cell():
    assert place_of(beside("noise", noise=0.0, k=16, backbone="resnet50")[0], report("noise")) == ["attention"]
    assert place_of(beside("imbalance", tail=1.0, k=16)[0], report("imbalance")) == ["attention"]


@pytest.mark.parametrize("ratio", [0.1, 0.01])
def test_a_long_tail_stands_beside_one_as_long(ratio):
    some = beside("imbalance", tail=ratio, k=16)
    assert [place_of(each, report("imbalance")) for each in some] == [[f"attention@tail-{ratio}-bank"]]


@pytest.mark.parametrize("k", [1, 3, 5, 10, 20, 50])
def test_a_k_of_a_sweep_stands_beside_the_same_k(k):
    found = report("k-sweep")
    some = beside("k-sweep", k=k, backbone="resnet50")
    assert some
    assert all(place_of(each, found) == [f"attention@k-{k}"] for each in some)


def test_a_place_that_was_not_run_is_published_only():
    few = report("noise")
    few["points"] = {name: each for name, each in few["points"].items() if each["at"] in (0.0, 0.4)}
    some = beside("noise", found=few, noise=0.3)
    assert some
    assert {each.here for each in some} == {"published only\nnot run here"}
    of_all = beside("noise", "knn", "accuracy_retained", noise=0.1)
    assert {each.here for each in of_all} == {"published only\nnot run here"}


def test_another_k_or_trunk_is_told_and_never_stands_as_if_it_were_the_same():
    chosen = report("main", k=64, backbone="resnet18")
    here = {each.here for each in beside("main", found=chosen, k=16, backbone="resnet50")}
    assert here == {"published only\nours .5000 with\nbackbone resnet18\nk 64"}
    several = report("main")
    several["settings"]["attention"] = [{"k": 16}, {"k": 32}]
    (text,) = {each.here for each in beside("main", found=several, k=16, backbone="resnet50")}
    assert text.endswith("k 16 to 32")
    first = beside("main", found=report("main", backbone="resnet18"), epoch=1)
    assert all(each.here.endswith("with\nepochs as usual") for each in first)


def test_several_k_are_those_of_the_recipe():
    found = report("main", backbone="resnet50")
    found["methods"]["attention+k-ensemble"] = told(0.7)
    some = beside("main", method="attention+k-ensemble", found=found, backbone="resnet50")
    assert {each.here for each in some} == {".7000\n.6900 to .7100"}
    found["config"]["ours"]["k_ensemble"] = [16, 64]
    some = beside("main", method="attention+k-ensemble", found=found, backbone="resnet50")
    assert {each.here for each in some} == {"published only\nours .7000 with\nk 16, 64"}


def test_a_search_stands_beside_one_of_as_many_rows():
    timed = {"k": 10, "build_s": 2.5, "ms_per_query": {"batch": {"median": 0.04}, "single": {"median": 0.2}}}
    places = {"hnsw-50000x256-cpu": timed, "hnsw-10000x256-cpu": {**timed, "build_s": 0.5}}
    found = report("efficiency", places=places)
    (each,) = beside("efficiency", "hnsw", "build_seconds", found)
    assert each.here == "published only\nours 2.5000 with\nmetric cosine"
    (each,) = beside("efficiency", "hnsw", "search_ms_per_query", found)
    assert each.ours["mean"] == 0.04
    for other in ({}, {"hnsw-50000x256-cpu": {"not_run": "took longer"}}):
        (each,) = beside("efficiency", "hnsw", "build_seconds", {**found, "places": other})
        assert each.here == "published only\nnot run here"


@pytest.mark.parametrize("study", ["main", "k-sweep", "noise", "imbalance", "efficiency", "theory", "calibration"])
def test_no_number_of_ours_stands_in_two_settings(study):
    """Every row that is not published only has all that the document says of it."""
    points = {point.name: point for point in (*noise_points(), *points_of("imbalance"), *points_of("k-sweep"))}
    for each in published_beside(report(study)):
        if each.ours is None or each.other:
            assert each.here.startswith("published only")
            continue
        (cell,) = place_of(each, report(study))
        point, setting = points[cell.partition("@")[2]], each.entry.setting
        assert point.noise.rate == setting.get("noise", 0.0)
        assert point.tail == setting.get("tail", 1.0)
        assert point.bank_only == setting.get("bank_only", False)
        assert setting.get("backbone", "resnet50") == "resnet50"
        assert setting.get("k", 16) == (16 if point.k is None else point.k)


def test_the_table_has_a_row_for_each_number_and_says_where_it_is_from():
    found = reported(report("noise"))
    assert len(found.rows) == len(published("noise", "cifar10"))
    assert len({row[:3] for row in found.rows}) > 20
    assert any(
        row[0] == "attention\nbackbone resnet50, k 16, noise 0.3, kind symmetric, bank_only True"
        for row in found.rows
    )
    assert all(
        each.document in row[-1] for row, each in zip(found.rows, published("noise", "cifar10"), strict=True)
    )


def test_a_number_without_a_setting_stands_beside_ours_as_it_is():
    entry = Published("doc", "place", "main", "iris", "attention", {}, "accuracy", 0.9, None)
    assert Beside(entry, told(0.8)["accuracy"], {}).here == ".8000\n.7900 to .8100"
    assert Beside(replace(entry, note="mind"), None, {}).where == "doc, place: mind"


def test_a_page_of_adult_has_what_others_reached_beside_ours_and_those_that_only_others_ran():
    found = {**report("main"), "methods": {"sklearn-knn": told(0.84), "lightgbm": told(0.87)}}
    found["config"] = {**found["config"], "data": "adult"}
    rows = {row[0]: row for row in reported(found).rows}
    assert rows["sklearn-knn"][2:4] == ("0.834", ".8400\n.8300 to .8500")
    assert rows["lightgbm\nreported highest"][2] == "0.8741"
    for name in ("TabR", "ModernNCA", "XGBoost", "CatBoost\nreported lowest"):
        assert rows[name][3] == "published only\nnot run here"
        assert rows[name][4].startswith("attn-knn.md, section 9: official split")
