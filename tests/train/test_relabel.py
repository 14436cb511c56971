"""What beliefs tell of labels that may be wrong."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from attnknn.train.judges import Given, Judges
from attnknn.train.relabel import Beliefs


def believing(held):
    return Beliefs(torch.empty(0, len(held[0])), torch.tensor(held, dtype=torch.float32))


def test_the_surer_half_tells_how_many_labels_are_wrong():
    surer = [[0.98, 0.01, 0.01]] * 2 + [[0.02, 0.9, 0.08]] * 6  # equally sure are six: all of them
    rest = [[0.6, 0.2, 0.2]] * 3 + [[0.3, 0.5, 0.2]] * 3
    given = np.array([0, 2, 1, 1, 1, 1, 2, 0] + [1] * 3 + [0] * 3)
    assert believing(surer + rest).wrong(given, np.ones(14)) == pytest.approx(3 / 8)
    weights = np.array([1.0, 5, 1, 1, 1, 1, 0, 0] + [9.0] * 6)
    assert believing(surer + rest).wrong(given, weights) == pytest.approx(5 / 10)


def test_beliefs_that_all_round_to_certainty_are_told_apart():
    held = [[1.0, 1e-20], [1.0, 1e-19], [1.0, 1e-9], [1.0, 1e-8]]
    assert believing(held).wrong(np.array([0, 0, 1, 1]), np.ones(4)) == 0.0


def test_labels_still_tell_something_whatever_is_believed():
    assert believing([[0.9, 0.1]] * 6).wrong(np.ones(6, np.int64), np.ones(6)) == pytest.approx(0.45)
    assert believing(np.eye(10)).wrong((np.arange(10) + 1) % 10, np.ones(10)) == pytest.approx(0.81)


def test_nothing_held_out_tells_nothing():
    nobody = np.empty(0, np.int64)
    assert Beliefs(torch.eye(2), None).wrong(nobody, nobody.astype(float)) == 0.0


@pytest.mark.parametrize("share", [0.0, 0.2, 0.4, 0.6])
def test_wrong_labels_are_counted_although_one_belief_in_twelve_is_wrong(share):
    random, rows = np.random.default_rng(0), 20_000
    truth, doubt = random.integers(10, size=rows), random.random(rows)
    given = np.where(random.random(rows) < share, (truth + random.integers(1, 10, rows)) % 10, truth)
    believed = np.where(random.random(rows) < doubt**5 / 2, (truth + 1) % 10, truth)
    held = np.repeat(0.01 * doubt[:, None], 10, axis=1)
    held[np.arange(rows), believed] = 1 - 0.09 * doubt
    found = believing(held).wrong(given, np.ones(rows))
    assert found == pytest.approx(share, abs=0.015)
    assert np.mean(believed != given) > found + 0.025  # of all images it would be too many


def test_given_labels_go_where_their_judges_go():
    judges = Judges(np.eye(4), np.array([0, 1, 0, 1]), np.ones(4), given=Given(np.array([0, 1, 2, 3]), 0.3))
    some = judges.take(np.array([3, 1]))
    assert some.given.labels.tolist() == [3, 1]
    assert some.given.wrong == 0.3
    assert judges.take(slice(2)).given.labels.tolist() == [0, 1]
