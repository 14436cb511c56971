"""A class that was left out of the training and is taught afterwards."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_iris

from attnknn.study.engine import run_study
from attnknn.study.recipe import TAUGHT
from attnknn.study.splits import recipe_for, task_of

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    flowers = load_iris()
    frame, labels = pd.DataFrame(flowers.data, columns=flowers.feature_names), flowers.target_names[flowers.target]
    recipe = recipe_for(frame, labels, data="iris", target="species", named=True, study="new-class")
    recipe = replace(recipe, draws=20)
    task = task_of(frame, labels, recipe)
    out = tmp_path_factory.mktemp("taught")
    found = run_study(recipe, task, methods=TAUGHT, seeds=[0, 1], out=out, device="cpu", commit="x")
    assert found.failed == {}
    return found.report


def test_the_seed_says_which_class_is_new(report):
    named = [each["new_class"] for each in report["settings"]["taught-20"]]
    assert named == ["setosa", "versicolor"]
    assert report["settings"]["taught-5"][0]["examples"] == 5


def test_what_is_not_taught_is_not_known_and_a_few_examples_suffice(report):
    recall = {name: report["methods"][name]["recall_new"]["values"] for name in TAUGHT}
    assert recall["untaught"] == [0.0, 0.0]
    assert recall["taught-20"][0] == 1.0  # setosa lies apart
    assert np.mean(recall["taught-20"]) >= np.mean(recall["taught-20-as-is"])
    others = {name: report["methods"][name]["accuracy_others"]["mean"] for name in TAUGHT}
    assert others["taught-20"] > others["untaught"] - 0.2
