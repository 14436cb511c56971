"""Methods whose answers are made up, so that the truth about them is known."""

from __future__ import annotations

import numpy as np

from attnknn.study.job import Fitted, Job, Method, Predictions

SURE = 0.8


def answers(right: np.ndarray, codes: np.ndarray, classes: int = 3) -> np.ndarray:
    """Probabilities that favor the true class where ``right``, else the one after it."""
    said = np.where(right, codes, (codes + 1) % classes)
    found = np.full((len(codes), classes), (1 - SURE) / (classes - 1))
    found[np.arange(len(codes)), said] = SURE
    return found


def luck(seed: int, own: int, rows: int, alone: float) -> np.ndarray:
    """A uniform number for each row: of a method's own for a share ``alone`` of the rows, else shared by all."""
    mine = np.random.default_rng([seed, own])
    shared = np.random.default_rng([seed, 0]).random(rows)
    return np.where(mine.random(rows) < alone, mine.random(rows), shared)


def planted(rate: float, own: int, alone: float = 1.0) -> Method:
    """A method that is right at a rate, by luck of its own or partly shared."""

    def method(job: Job) -> Fitted:
        def predict(rows: np.ndarray) -> Predictions:
            right = luck(job.seed, own, len(rows), alone) < rate
            said = answers(right, job.task.codes[rows])
            return Predictions(said, said, 0.0)

        return Fitted({}, 0.0, predict)

    return method
