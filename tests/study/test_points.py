"""Studies with an axis: k, wrong labels, long tails; in all that is learned from, and in the bank alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from mixed import mixed, small

from attnknn.data.tails import long_tail
from attnknn.errors import InvalidInput
from attnknn.estimator import AttnKNNClassifier
from attnknn.study import engine, splits
from attnknn.study.audit import audit, changed
from attnknn.study.correction import Corrected
from attnknn.study.filling import Shared, job_at
from attnknn.study.methods import METHODS, has_meaning
from attnknn.study.ours import Ours
from attnknn.study.points import (
    PLAIN_POINT,
    POINTS,
    Point,
    cell_name,
    ends,
    k_points,
    method_of,
    noise_points,
    points_of,
    tail_points,
)
from attnknn.study.recipe import STUDIES, Noise
from attnknn.study.scored import recalls
from attnknn.study.splits import at_point, noisy, parts, recipe_for, task_of, wrong_labels

RAW = "distance+raw"


def study(recipe, task, out, points, methods=(RAW,), seeds=(0, 1)):
    return engine.run_study(
        recipe, task, methods=methods, seeds=seeds, points=points, out=out, device="cpu", commit="c"
    ).report


def job(recipe, task, point, seed=0):
    return job_at(recipe, task, point, seed, "cpu", {})


def test_names_of_cells_lead_back_to_their_method_and_differ():
    points = [*k_points(), *noise_points(), *tail_points()]
    names = [cell_name("attention", point) for point in points]
    assert {method_of(name) for name in names} == {"attention"}
    assert len({*names}) == len({point.name for point in points})
    assert cell_name("attention", PLAIN_POINT) == "attention"


def test_ends_keep_what_belongs_to_every_line_and_two_points_of_each():
    found = points_of("noise", quick=True)
    lines = ["symmetric-0.4", "asymmetric-0.4", "symmetric-0.4-bank", "asymmetric-0.4-bank"]
    assert [point.name for point in found] == ["", *lines]
    assert [point.k for point in points_of("k-sweep", quick=True)] == [1, 50]
    assert [point.k for point in points_of("k-sweep", [7], quick=True)] == [7]
    assert points_of("main") == (PLAIN_POINT,)
    assert ends(()) == ()
    assert set(POINTS) < set(STUDIES)


def test_a_long_tail_has_the_sizes_of_its_formula():
    codes = np.repeat(np.arange(5), 100)
    kept = long_tail(codes, 0.01, classes=5, random=np.random.default_rng(0))
    assert np.bincount(codes[kept]).tolist() == [100, 32, 10, 3, 1]
    assert (np.diff(kept) > 0).all()
    few = long_tail([0] * 40 + [1] * 3, 0.5, classes=2, random=np.random.default_rng(0))
    assert len(few) == 43  # a class that has fewer keeps all
    for ratio in (0.0, 1.5, np.nan):
        with pytest.raises(InvalidInput, match="ratio must be"):
            long_tail(codes, ratio, classes=5, random=np.random.default_rng(0))


def test_noise_and_tails_are_in_what_is_learned_from_and_never_in_what_is_tested(recipe, task):
    clean = parts(task, recipe, 0)
    for point in (*noise_points([0.3]), *tail_points([0.1])):
        here = job(recipe, task, point).parts
        np.testing.assert_array_equal(here.test, clean.test)
        np.testing.assert_array_equal(here.labels[here.test], task.codes[here.test])
        flipped = (here.labels[here.train] != task.codes[here.train]).mean()
        assert flipped == pytest.approx(0 if point.bank_only else point.noise.rate, abs=0.01)
        shorter = point.tail < 1 and not point.bank_only
        assert (len(here.train) < len(clean.train)) == shorter


def test_only_trainings_on_wrong_labels_are_robust():
    recipe = recipe_for(*mixed(), data="d", target="y", named=False)
    for point in noise_points([0.3]):
        wrong = bool(point.noise.rate) and not point.bank_only
        assert ("robust" in at_point(recipe, point).ours.options) == wrong
        assert at_point(recipe, point).noise.rate == (0.3 if wrong else 0)
    pictures = np.zeros((30, 8, 8, 1), np.uint8), np.arange(30) % 2
    for asked, epochs in ((None, 120), (3, 3)):
        images = recipe_for(*pictures, data="d", target="y", named=False, images={"epochs": asked})
        assert ("epochs" in images.ours.under_noise) == (asked is None)
        found = noisy(images, Noise(0.4)).ours.images
        assert (found["epochs"], found["relabel"], images.ours.images["relabel"]) == (epochs, 3, 0)


def test_what_is_done_about_wrong_labels_is_in_the_recipe_and_decides_its_hash(monkeypatch):
    table = recipe_for(*mixed(), data="d", target="y", named=False)
    assert table.config()["ours"]["under_noise"] == {"robust": 0.7}
    assert at_point(table, noise_points([0.3])[1]).ours.options == {"robust": 0.7}
    monkeypatch.setattr(splits, "NOISY_TABLES", {"robust": 0.5})
    other = recipe_for(*mixed(), data="d", target="y", named=False)
    assert other.hash != table.hash
    assert at_point(other, noise_points([0.3])[1]).ours.options == {"robust": 0.5}


def test_cells_and_notes_tell_how_a_training_on_wrong_labels_differs(tmp_path):
    usual = recipe_for(*mixed(), data="d", target="y", named=False, study="noise")
    recipe = replace(small(usual), ours=usual.ours)
    methods = ("hgb", "distance", "attention")
    found = study(recipe, task_of(*mixed(), recipe), tmp_path, noise_points([0.3])[:2], methods, seeds=(0,))
    told = {name: each[0].get("changed") for name, each in found["settings"].items()}
    assert told.pop("attention@symmetric-0.3") == {"robust": 0.7}
    assert set(told.values()) == {None}
    note = "where labels to learn from are wrong, the attention is trained with robust 0.7"
    assert any(each.startswith(note) for each in found["notes"])
    assert note in (tmp_path / "index.html").read_text()
    clean = study(recipe, task_of(*mixed(), recipe), tmp_path, [PLAIN_POINT], methods, seeds=(0,))
    assert not any("wrong" in each for each in clean["notes"])


def test_every_k_is_answered_from_one_search_as_if_it_had_its_own(recipe, task, tmp_path, untrained, monkeypatch):
    searched = []
    bank = type(AttnKNNClassifier(embedder="standardize").fit([[0.0], [1.0]], [0, 1]).bank_)
    search = bank.search
    monkeypatch.setattr(
        bank, "search", lambda self, v, k, **how: searched.append((len(v), k)) or search(self, v, k, **how)
    )

    points = k_points([1, 5, 30])
    found = study(recipe, task, tmp_path, points, ("uniform", "distance"), [0])
    tested = len(parts(task, recipe, 0).test)
    assert searched.count((tested, 30)) == 1
    assert not any(rows == tested and k != 30 for rows, k in searched)
    for k in (1, 5, 30):
        mine = job(recipe, task, Point(f"k-{k}", k, k=k))
        rows = mine.parts.train
        alone = AttnKNNClassifier(
            k, weights="uniform", embedder="standardize", calibration="temperature", random_state=0
        ).fit(task.take(rows), task.classes[mine.parts.labels[rows]])
        told = np.load(tmp_path / f"cells/uniform@k-{k}-0.npz")["probabilities"]
        np.testing.assert_allclose(told, alone.predict_proba(task.take(mine.parts.test)), atol=1e-6)
    assert [*found["methods"]] == [f"{m}@k-{k}" for k in (1, 5, 30) for m in ("uniform", "distance")]
    assert found["points"]["k-30"] == {"at": 30, "line": "k"}
    assert "uniform@k-5" in found["differences"]["distance@k-5"]
    assert found["retention"] == {}


def test_a_bank_alone_is_changed_under_a_model_that_was_trained_without(recipe, task):
    noise, tail = noise_points([0.4])[3], tail_points([0.1])[2]
    assert noise.bank_only
    assert tail.bank_only
    for point in (noise, tail):
        mine = job(recipe, task, point)
        rows = mine.parts.train
        model = AttnKNNClassifier(embedder="standardize", random_state=0).fit(
            task.take(rows), task.classes[task.codes[rows]]
        )
        before = model.predict_proba(task.take(mine.parts.test))
        other = changed(model, mine)
        np.testing.assert_array_equal(model.predict_proba(task.take(mine.parts.test)), before)
        assert other.voter_.calibrator == model.voter_.calibrator
        assert other.voter_.mass == model.voter_.mass
        assert other.n_neighbors_ == model.n_neighbors_
        labels = {
            name: int(label)
            for name, label in zip(other.bank_.ids, other.bank_.labels(other.bank_.live), strict=True)
        }
        expected = job(recipe, task, replace(point, bank_only=False)).parts
        assert len(labels) == len(expected.train)
        if point is noise:
            assert [labels[at] for at in range(len(rows))] == expected.labels[rows].tolist()
        else:
            assert sorted(rows[at] for at in labels) == expected.train.tolist()


def test_wrong_labels_are_found_by_the_votes_of_the_others(recipe, task):
    rows = parts(task, recipe, 0).train
    apart = replace(task, X=task.X.assign(**{task.X.columns[0]: 100.0 * task.codes}))  # what a child could tell
    mine = job(replace(recipe, noise=Noise(0.2)), apart, PLAIN_POINT)
    given = wrong_labels(apart, rows, Noise(0.2), 0)
    model = AttnKNNClassifier(9, embedder="standardize", random_state=0)
    model.fit(apart.take(rows)[[task.X.columns[0]]], apart.classes[given])
    found = audit(model, mine)["audit"]
    assert found["recall"] == 1
    assert found["precision"] == 1
    assert found["labels_right_before"] == pytest.approx(0.8, abs=0.01)
    assert found["labels_right_after"] == 1
    assert audit(model, job(recipe, task, PLAIN_POINT)) == {}


def test_a_noise_study_tells_what_is_retained_and_where_nothing_is_changed(recipe, task, tmp_path):
    points = noise_points([0.4])
    found = study(recipe, task, tmp_path, points, ("sklearn-knn", RAW))
    cells = {path.stem for path in (tmp_path / "cells").glob("*.json")}
    assert f"{RAW}@symmetric-0.4-bank-1" in cells
    assert "sklearn-knn@symmetric-0.4-1" in cells
    assert "sklearn-knn@symmetric-0.4-bank-1" not in cells  # it has no bank
    for name, kept in found["retention"].items():
        values = found["methods"][name]["accuracy"]["values"]
        plain = found["methods"][method_of(name)]["accuracy"]["values"]
        assert kept["values"] == pytest.approx([one / two for one, two in zip(values, plain, strict=True)])
    assert found["retention"][f"{RAW}@symmetric-0.4"]["mean"] < 1
    assert found["missing"] == []
    assert all(len(each) == len(task.classes) for each in found["recalls"][RAW])
    again = study(recipe, task, tmp_path, points, ("sklearn-knn", RAW))
    assert again["methods"] == found["methods"]


def test_a_corrected_prior_gives_rare_classes_back_what_the_tail_took(recipe, task):
    point = tail_points([0.05])[1]
    mine = job(recipe, task, point)
    method = METHODS["uniform+prior-correction"]
    assert isinstance(method, Corrected)
    plain = Ours("softmax", embedder="standardize")
    one, two = plain(mine).predict(mine.parts.test), Corrected(RAW, plain)(mine).predict(mine.parts.test)
    counts = np.bincount(task.codes[mine.parts.train], minlength=len(task.classes))
    rarest = int(counts.argmin())
    assert two.calibrated[:, rarest].mean() > one.calibrated[:, rarest].mean()
    np.testing.assert_allclose(two.calibrated.sum(axis=1), 1)
    ratio = two.calibrated / one.calibrated
    np.testing.assert_allclose(ratio / ratio[:, :1], (ratio / ratio[:, :1])[:1].repeat(len(ratio), 0), rtol=1e-6)


def test_methods_are_asked_only_where_a_point_means_something_to_them():
    assert has_meaning(METHODS["hgb"], noise_points([0.1])[1])
    assert not has_meaning(METHODS["hgb"], noise_points([0.1])[3])
    assert not has_meaning(METHODS["cnn"], k_points()[0])
    assert has_meaning(METHODS["attention"], k_points()[0])
    assert not has_meaning(METHODS["attention+prior-correction"], PLAIN_POINT)
    assert has_meaning(METHODS["attention+prior-correction"], tail_points()[1])
    assert not has_meaning(METHODS["hgb+prior-correction"], tail_points()[3])


def test_what_is_shared_is_that_of_the_training_and_of_the_plain_one():
    shared, one, two = Shared(), *noise_points([0.1, 0.2])[1:3]
    shared.of(0, PLAIN_POINT)["model"] = "plain"
    shared.of(0, one)["model"] = "one"
    assert shared.of(0, one) == {"model": "one"}
    assert shared.of(0, replace(one, bank_only=True)) == {"model": "plain"}
    assert shared.of(0, two) == {}
    assert shared.of(0, one) == {}  # gone with the next training
    assert shared.of(0, PLAIN_POINT) == {"model": "plain"}
    assert shared.of(1, PLAIN_POINT) == {}


def test_recall_of_a_class_without_rows_is_unknown():
    said = np.array([[0.9, 0.1, 0.0], [0.2, 0.8, 0.0], [0.6, 0.4, 0.0]])
    assert recalls(said, np.array([0, 1, 1])) == [1.0, 0.5, None]


def test_a_study_takes_at_most_so_many_rows(recipe, task):
    few = parts(task, replace(recipe, most_rows=40), 0)
    assert 38 <= len(few.train) <= 42
    assert set(few.train) <= set(parts(task, recipe, 0).train)
    np.testing.assert_array_equal(few.test, parts(task, recipe, 0).test)
