"""Trainings side by side: each learns as if alone, one epoch is best for all."""

import pytest
import torch
from torch import nn

from attnknn.train import LoopOptions, run
from attnknn.train.together import Together, as_one


class Line:
    """A line through points of its own; ``nlls`` scripts what validation finds."""

    def __init__(self, slope, steps=4, nlls=None, name="fit"):
        self.model = nn.Linear(1, 1)
        nn.init.zeros_(self.model.weight)
        nn.init.zeros_(self.model.bias)
        self.slope, self.steps, self.name = slope, steps, name
        self.nlls = None if nlls is None else iter(nlls)
        self.met = []

    def batches(self, random):
        for _ in range(self.steps):
            yield torch.linspace(-1, 1, 8)[:, None]

    def losses(self, batch, random):
        self.met.append(len(batch))
        return {self.name: (self.model(batch) - self.slope * batch).square().mean()}

    def validate(self):
        return {} if self.nlls is None else {"nll": next(self.nlls), "extra": 1.0}


def weight(task):
    return float(task.model.weight.detach())


OPTIONS = LoopOptions(epochs=5, lr=0.05, weight_decay=0.0, warmup=0.0)


def test_one_task_is_left_as_it_is():
    task = Line(1.0)
    assert as_one([task]) is task


def test_each_learns_as_if_it_were_alone():
    alone = [Line(2.0), Line(-3.0)]
    for task in alone:
        run(task, OPTIONS, seed=0)
    beside = [Line(2.0), Line(-3.0)]
    run(as_one(beside), OPTIONS, seed=0)
    assert [weight(task) for task in beside] == pytest.approx([weight(task) for task in alone], rel=1e-6)
    assert weight(beside[0]) > 0 > weight(beside[1])


def test_the_epoch_that_is_best_for_all_is_kept_for_all():
    nlls = [9.0, 1.0, 3.0, 9.0, 9.0], [9.0, 9.0, 3.0, 1.0, 9.0]  # alone they would keep 2 and 4
    tasks = [Line(2.0, nlls=each) for each in nlls]
    history = run(Together(tasks), OPTIONS, seed=0)
    assert (history.best_epoch, history.best_nll) == (3, 3.0)
    reference = Line(2.0)
    run(reference, OPTIONS, seed=0, last=3)
    assert [weight(task) for task in tasks] == pytest.approx([weight(reference)] * 2, rel=1e-6)


def test_the_shortest_epoch_is_that_of_all_and_losses_of_one_name_are_summed():
    tasks = [Line(1.0, steps=5), Line(1.0, steps=3), Line(1.0, steps=4, name="other")]
    both = Together(tasks)
    assert both.steps == 3
    assert len(list(both.batches(torch.Generator()))) == 3
    found = both.losses(next(both.batches(torch.Generator())), torch.Generator())
    assert set(found) == {"fit", "other"}
    assert found["fit"].item() == pytest.approx(2 * found["other"].item())


def test_without_rows_to_validate_one_of_them_nothing_is_validated():
    assert Together([Line(1.0, nlls=[1.0]), Line(1.0)]).validate() == {}
    assert Together([Line(1.0, nlls=[1.0]), Line(1.0, nlls=[2.0])]).validate() == {"nll": 1.5, "extra": 1.0}


def test_a_killed_training_goes_on_as_if_nothing_had_happened(tmp_path):
    whole = [Line(2.0), Line(-3.0)]
    run(Together(whole), OPTIONS, seed=0)

    def stop(numbers):
        if numbers["epoch"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(Together([Line(2.0), Line(-3.0)]), OPTIONS, seed=0, checkpoint=tmp_path / "run.pt", on_epoch=stop)
    again = [Line(2.0), Line(-3.0)]
    run(Together(again), OPTIONS, seed=0, checkpoint=tmp_path / "run.pt")
    assert [weight(task) for task in again] == [weight(task) for task in whole]
    assert len(again[0].met) == 3 * 4
