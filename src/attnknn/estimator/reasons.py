"""What the members say, told so that a person can follow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnknn.embed import Embedder, Pictures
from attnknn.estimator.voter import Voter
from attnknn.predict import Explanation, Poll, Reason


def explained(
    poll: Poll, prior: NDArray[np.float64], voter: Voter, encoder: Embedder, classes: NDArray[Any]
) -> Iterator[Explanation]:
    """An explanation of each query of a poll.

    Args:
        poll: What the members say.
        prior: (classes,), or one for each query (queries, classes).
        voter: Whose members they are.
        encoder: Tells what the rows of the bank were.
        classes: The labels.
    """
    chances = voter.finished(poll, prior)
    heat = voter.temperatures(poll.density)
    evidence, labels = poll.evidence.numpy(), classes.tolist()
    priors = np.broadcast_to(prior, chances.shape)
    for at in range(len(poll)):
        yield Explanation(
            prediction=labels[int(chances[at].argmax())],
            probabilities=dict(zip(labels, chances[at].tolist(), strict=True)),
            evidence=dict(zip(labels, evidence[at].tolist(), strict=True)),
            prior=dict(zip(labels, priors[at].tolist(), strict=True)),
            prior_mass=voter.mass,
            temperature=None if heat is None else float(heat[at]),
            neighbors=_reasons(poll, at, voter, encoder, labels),
        )


def with_pictures(
    explanations: Iterable[Explanation], encoder: Embedder, features: NDArray[Any]
) -> list[Explanation]:
    """The same explanations with the images that they explain; as they are where rows are no images."""
    if not isinstance(encoder, Pictures):
        return list(explanations)
    return [replace(each, picture=image) for each, image in zip(explanations, features, strict=True)]


def _reasons(poll: Poll, at: int, voter: Voter, encoder: Embedder, labels: list[Any]) -> tuple[Reason, ...]:
    shares = poll.shares(at)
    kept = voter.encoded([name for name, *_ in shares])
    rows = encoder.describe(kept)
    pictures = encoder.images(kept) if isinstance(encoder, Pictures) else [None] * len(rows)
    return tuple(
        Reason(id=name, label=labels[code], distance=gap, weight=weight, row=row, picture=picture)
        for (name, code, gap, weight), row, picture in zip(shares, rows, pictures, strict=True)
    )
