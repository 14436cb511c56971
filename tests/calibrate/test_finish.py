"""Prior mass and calibrator, fitted together on what judges were told."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from attnknn.calibrate import Identity
from attnknn.calibrate.prior import LEAST, MOST
from attnknn.estimator.calibration import fit_finish
from attnknn.estimator.jury import Polled
from attnknn.metrics import ece, nll
from attnknn.train.judges import Given


def told(rows=1500, seed=0):
    """Judges whose evidence is all too sure: most of it lies on one class, and now and then on a wrong one."""
    random = np.random.default_rng(seed)
    labels = random.integers(4, size=rows)
    guess = np.where(random.random(rows) < 0.93, labels, random.integers(4, size=rows))
    evidence = random.dirichlet([0.02] * 4, size=rows) * 0.05
    evidence[np.arange(rows), guess] += 0.95
    return Polled(evidence, random.random(rows), labels, np.full((rows, 4), 0.25), np.ones(rows))


def answers(finish, polled):
    votes = (polled.evidence + finish.mass * polled.prior) / (1 + finish.mass)
    return finish.calibrator.transform(votes, polled.density)


@pytest.mark.parametrize("kind", ["temperature", "density", "auto"])
def test_mass_and_temperature_together_do_better_than_one_after_the_other(kind):
    polled, others = told(), told(seed=1)
    alone = fit_finish("prior", polled, None)
    together = fit_finish(kind, polled, None)
    assert LEAST <= together.mass <= MOST
    assert together.mass != alone.mass
    after = fit_finish(kind, polled, alone.mass)
    assert after.loss == pytest.approx(together.loss, abs=1e-5)  # wherever it starts from
    separately = _separately(kind, polled, alone.mass)
    assert together.loss < separately.loss
    assert nll(answers(together, others), others.labels) < nll(answers(separately, others), others.labels)


def _separately(kind, polled, mass):
    from attnknn.estimator import calibration

    return calibration._at("density" if kind == "auto" else kind, polled, mass)


def test_prior_alone_has_no_calibrator():
    finish = fit_finish("prior", told(), 0.5)
    assert finish.mass == 0.5
    assert isinstance(finish.calibrator, Identity)


def test_judges_who_are_all_right_prove_no_certainty():
    polled = told(40)
    sure = Polled(np.eye(4)[polled.labels], polled.density, polled.labels, polled.prior, polled.importance)
    chances = answers(fit_finish("temperature", sure, None), sure)
    assert 0.9 < chances.max() < 1.0


@pytest.mark.parametrize("kind", ["auto", "matrix", "isotonic"])
def test_revised_labels_do_not_judge_the_votes_that_revised_them(kind):
    polled = told(4000)
    random, believed = np.random.default_rng(2), polled.evidence.argmax(axis=1)
    wrong = random.random(4000) < 0.3
    given = np.where(wrong, (polled.labels + random.integers(1, 4, 4000)) % 4, polled.labels)
    revised = replace(polled, evidence=np.eye(4)[believed], labels=believed, given=Given(given, 0.3))
    chances = answers(fit_finish(kind, revised, None), revised)
    assert ece(chances, polled.labels) < 0.025
    naive = fit_finish(kind, replace(revised, given=None), None)
    assert ece(answers(naive, revised), polled.labels) > 0.045


def test_wrong_labels_that_explain_all_prove_no_certainty():
    polled = told(4000)
    given = np.where(np.arange(4000) % 10 < 3, (polled.labels + 1) % 4, polled.labels)
    sure = replace(polled, evidence=np.eye(4)[polled.labels], given=Given(given, 0.35))
    assert 0.9 < answers(fit_finish("auto", sure, None), sure).max() < 0.9999
