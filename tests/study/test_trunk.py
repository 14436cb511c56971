"""The network of our embedder under a head of its own: a baseline that learns, and the same on every run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import torch
from mixed import small

from attnknn.metrics import accuracy, nll
from attnknn.study.job import Job
from attnknn.study.recipe import Rounds, TrunkGrid
from attnknn.study.splits import parts, recipe_for, task_of
from attnknn.study.trunk import Trunk, mlp_trunk


def asked(seed=0):
    """A number decides one of two classes by its size, and a category turns it around."""
    draw = np.random.default_rng(3)
    sizes, kinds = draw.normal(size=600), draw.choice(["a", "b"], 600)
    frame = pd.DataFrame({"size": sizes, "kind": kinds, "luck": draw.random(600)})
    labels = ((np.abs(sizes) > 0.7) ^ (kinds == "b")).astype(int)
    made = small(recipe_for(frame, labels, data="sizes.csv", target="y", named=False, test_share=0.4))
    recipe = replace(made, trunk=TrunkGrid(lr=(0.01,), rounds=Rounds(step=5, patience=2, most=60)))
    task = task_of(frame, labels, recipe)
    return Job(recipe, task, parts(task, recipe, seed), seed)


def test_it_learns_what_no_line_tells_apart_and_says_what_it_chose():
    job = asked()
    fitted = mlp_trunk(job)
    said = fitted.predict(job.parts.test)
    truth = job.task.codes[job.parts.test]
    assert accuracy(said.calibrated, truth) > 0.9
    assert nll(said.calibrated, truth) < 0.3
    assert fitted.settings["lr"] == 0.01
    assert 5 <= fitted.settings["rounds"] <= 60


def test_a_seed_gives_one_network_whatever_is_drawn_beside_it():
    job = asked()
    found = []
    for draws in (0, 7):
        learner = Trunk(job, job.parts.train, {"lr": 0.01})
        torch.rand(draws)
        learner.grow(2)
        found.append(learner.predict(job.parts.test))
    assert np.array_equal(*found)
    other = Trunk(asked(seed=1), job.parts.train, {"lr": 0.01})
    other.grow(2)
    assert not np.allclose(found[0], other.predict(job.parts.test))
