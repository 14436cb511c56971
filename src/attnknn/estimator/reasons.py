"""What the members say, told so that a person can follow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnknn.embed import Embedder
from attnknn.estimator.voter import Voter
from attnknn.predict import Explanation, Poll, Reason


def explained(
    poll: Poll, prior: NDArray[np.float64], voter: Voter, encoder: Embedder, classes: NDArray[Any]
) -> Iterator[Explanation]:
    """An explanation of each query of a poll."""
    chances = voter.finished(poll, prior)
    heat = voter.temperatures(poll.density)
    evidence, labels = poll.evidence.numpy(), classes.tolist()
    for at in range(len(poll)):
        shares = poll.shares(at)
        rows = encoder.describe(voter.encoded([name for name, *_ in shares]))
        yield Explanation(
            prediction=labels[int(chances[at].argmax())],
            probabilities=dict(zip(labels, chances[at].tolist(), strict=True)),
            evidence=dict(zip(labels, evidence[at].tolist(), strict=True)),
            prior=dict(zip(labels, prior.tolist(), strict=True)),
            prior_mass=voter.mass,
            temperature=None if heat is None else float(heat[at]),
            neighbors=tuple(
                Reason(id=name, label=labels[code], distance=gap, weight=weight, row=row)
                for (name, code, gap, weight), row in zip(shares, rows, strict=True)
            ),
        )
