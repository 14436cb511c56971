"""Numbers to the scores of a normal distribution, by their rank: outliers and skew stop mattering."""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import norm
from torch import Tensor, nn

MOST_KNOTS: Final = 1000
_EDGE: Final = 1e-7  # ranks 0 and 1 would be infinite scores
_BEYOND: Final = 1e30  # pads columns with fewer knots than others


class QuantileNormal(nn.Module):
    """Piecewise linear map of each column to normal scores; fitted, then fixed.

    Equal values share the middle of their ranks. What lies outside the range seen at fit is as extreme as the
    most extreme value seen.

    Args:
        columns: How many columns.
        knots: Points of each column's map.

    >>> layer = QuantileNormal.learn(np.arange(11, dtype=np.float32)[:, None])
    >>> abs(round(layer(torch.tensor([[5.0]])).item(), 4))  # the median
    0.0
    """

    knots: Tensor  # (columns, knots), ascending
    scores: Tensor  # (columns, knots)

    def __init__(self, columns: int, knots: int) -> None:
        super().__init__()
        self.register_buffer("knots", torch.zeros(columns, knots))
        self.register_buffer("scores", torch.zeros(columns, knots))

    @classmethod
    def learn(cls, values: NDArray[np.floating]) -> QuantileNormal:
        """The map of the columns of ``values``; one knot for every 30 rows, from 10 to 1,000."""
        ranks = np.linspace(0.0, 1.0, int(np.clip(len(values) // 30, 10, MOST_KNOTS)))
        layer = cls(values.shape[1], len(ranks) + 1)
        for column in range(values.shape[1]):
            knots, scores = _curve(values[:, column].astype(np.float64), ranks)
            layer.knots[column, : len(knots)] = torch.from_numpy(knots)
            layer.knots[column, len(knots) :] = _BEYOND
            layer.scores[column, : len(knots)] = torch.from_numpy(scores)
            layer.scores[column, len(knots) :] = float(scores[-1])
        return layer

    def forward(self, values: Tensor) -> Tensor:
        """(rows, columns) values to scores."""
        columns = values.T.contiguous()
        right = torch.searchsorted(self.knots, columns).clamp(1, self.knots.shape[1] - 1)
        low, high = self.knots.gather(1, right - 1), self.knots.gather(1, right)
        share = ((columns - low) / (high - low).clamp(min=torch.finfo(low.dtype).tiny)).clamp(0, 1)
        return torch.lerp(self.scores.gather(1, right - 1), self.scores.gather(1, right), share).T


def _curve(values: NDArray[np.float64], ranks: NDArray[np.float64]) -> tuple[NDArray[np.float64], ...]:
    """Distinct quantiles in float32, each with the score of the middle of its ranks."""
    knots, place = np.unique(np.quantile(values, ranks).astype(np.float32), return_inverse=True)
    first, last = np.full(len(knots), np.inf), np.full(len(knots), -np.inf)
    np.minimum.at(first, place, ranks)
    np.maximum.at(last, place, ranks)
    return knots.astype(np.float64), norm.ppf(np.clip((first + last) / 2, _EDGE, 1 - _EDGE))
