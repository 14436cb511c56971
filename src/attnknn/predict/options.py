"""What a prediction rests on beside the k nearest of one query: views, several k, k by query, the head's prior."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from numbers import Integral, Real
from typing import Any, Final, Literal, get_args

from attnknn.errors import InvalidInput

Views = Literal["probabilities", "vectors"]
AdaptiveK = Literal["entropy", "certificate"]
Prior = Literal["classes", "head"]

ERROR: Final = 0.05
"""Of the certificate, unless another is given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionOptions:
    """How a fitted model answers; by default plainly.

    Weights are fitted on plain answers with ``n_neighbors``; shares, thresholds, prior mass and calibration on
    answers that are made in the same way as those to come.

    Args:
        views: Several views of each image, those of the augmentation it was trained with, are averaged:
            ``"probabilities"`` averages what is said of each, ``"vectors"`` their vectors. Examples keep one.
        k_ensemble: The votes of these numbers of neighbors are mixed, at least two, ascending; one search finds
            the neighbors of all.
        k_shares: How much each of them counts; by default what suits the rows that judge.
        adaptive_k: Each query has its own k, one of ``tiers``. ``"entropy"``: the more evenly the weights of the
            largest tier are spread, the larger. ``"certificate"``: the smallest at which the neighbors left out
            provably have at most ``error`` of the weight; for softmax weights and exact search.
        tiers: At least two, ascending; by default about k / 4, k and 4 k.
        error: Of the certificate, 0.05 unless given.
        prior: ``"classes"`` is the frequency of each class, ``"head"`` what the head of the image network thinks.

    >>> PredictionOptions(k_ensemble=[5, 20]).k_ensemble
    (5, 20)
    """

    views: Views | None = None
    k_ensemble: tuple[int, ...] | None = None
    k_shares: tuple[float, ...] | None = None
    adaptive_k: AdaptiveK | None = None
    tiers: tuple[int, ...] | None = None
    error: float | None = None
    prior: Prior = "classes"

    def __post_init__(self) -> None:
        for name, allowed in (("views", (None, *get_args(Views))), ("adaptive_k", (None, *get_args(AdaptiveK)))):
            _one_of(name, getattr(self, name), allowed)
        _one_of("prior", self.prior, get_args(Prior))
        for name in ("k_ensemble", "tiers"):
            given = getattr(self, name)
            object.__setattr__(self, name, None if given is None else checked_ks(name, given))
        if self.k_shares is not None:
            object.__setattr__(self, "k_shares", _checked_shares(self.k_shares))
        if self.error is not None and not (_is_number(self.error) and 0 < self.error < 1):
            raise InvalidInput(f"error must be between 0 and 1, got {self.error!r}")
        self._check_that_all_is_read()

    def _check_that_all_is_read(self) -> None:
        if self.k_ensemble is not None and self.adaptive_k is not None:
            raise InvalidInput(
                f"k_ensemble={self.k_ensemble} mixes every k, adaptive_k={self.adaptive_k!r} takes one: choose"
            )
        if self.k_shares is not None:
            if self.k_ensemble is None:
                raise InvalidInput(f"k_shares={self.k_shares} are of a k_ensemble, but there is none")
            if len(self.k_shares) != len(self.k_ensemble):
                raise InvalidInput(f"{len(self.k_ensemble)} members of k_ensemble, {len(self.k_shares)} k_shares")
        if self.tiers is not None and self.adaptive_k is None:
            raise InvalidInput(f"tiers={self.tiers} are of adaptive_k, which is None")
        if self.error is not None and self.adaptive_k != "certificate":
            raise InvalidInput(f"error={self.error} is of the certificate, but adaptive_k={self.adaptive_k!r}")

    @property
    def fits_ks(self) -> bool:
        """Whether shares or thresholds are to be fitted on rows that judge."""
        return self.adaptive_k == "entropy" or (self.k_ensemble is not None and self.k_shares is None)

    @property
    def plain(self) -> bool:
        """Whether nothing differs from the vote of the k nearest with class frequencies."""
        return self == PredictionOptions()

    def state(self) -> dict[str, Any]:
        """The options for JSON; ``PredictionOptions(**state)`` makes them again."""
        return {name: list(each) if isinstance(each, tuple) else each for name, each in asdict(self).items()}


def checked_ks(name: str, given: Any) -> tuple[int, ...]:
    """At least two numbers of neighbors, ascending."""
    wrong = InvalidInput(f"{name} must be at least two whole numbers above 0, ascending, got {given!r}")
    if not _is_sequence(given) or len(given) < 2:
        raise wrong
    if any(isinstance(each, bool) or not isinstance(each, Integral) or each < 1 for each in given):
        raise wrong
    ks = tuple(int(each) for each in given)
    if any(low >= high for low, high in pairwise(ks)):
        raise wrong
    return ks


def _checked_shares(given: Any) -> tuple[float, ...]:
    if not _is_sequence(given) or not all(_is_number(each) and 0 < each < float("inf") for each in given):
        raise InvalidInput(f"k_shares must be numbers above 0, got {given!r}")
    return tuple(float(each) for each in given)


def _is_sequence(given: Any) -> bool:
    return isinstance(given, Sequence) and not isinstance(given, str)


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _one_of(name: str, value: Any, allowed: tuple[Any, ...]) -> None:
    if not isinstance(value, str | None) or value not in allowed:
        raise InvalidInput(f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}")
