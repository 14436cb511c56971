"""What is learned of an embedder: networks from encoded rows to vectors.

Each has a ``front`` without parameters, which training applies once, a ``body`` that learns, and a ``shape``: the
arguments that build it again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from attnknn.embed.images import ImageEmbedder, embed_images
from attnknn.embed.quantile import QuantileNormal
from attnknn.errors import InvalidInput
from attnknn.ops import Metric

_ROWS_AT_ONCE: Final = 16_384


class PeriodicEmbedder(nn.Module):
    """Each number as a small learned curve made of waves, categories as they are, one linear map on top.

    Numbers go to normal scores, then to cosines and sines of learned frequencies, then through a linear map and
    ReLU of their own. Distances between its vectors are Euclidean.

    Args:
        width: Width of the encoded rows.
        numbers: Which of their columns are numbers.
        embed_dim: Width of the vectors.
        frequencies: Waves for each number; by default 48, fewer from 17 numbers on, never below 16.
        sigma: Spread of the frequencies at the start; larger bends more.
        number_width: How wide each number becomes.
        blocks: Residual blocks after the linear map.
        dropout: Share of the columns hidden from each row while training: a number with all its waves, or one
            of the other columns.
        knots: Points of the map to normal scores, as fitted; see :meth:`start`.
    """

    kind: ClassVar[str] = "periodic"
    metric: ClassVar[Metric] = "l2"

    def __init__(
        self,
        width: int,
        numbers: Sequence[int],
        *,
        embed_dim: int = 128,
        frequencies: int | None = None,
        sigma: float = 0.05,
        number_width: int = 16,
        blocks: int = 0,
        dropout: float = 0.0,
        knots: int = 11,
    ) -> None:
        super().__init__()
        self.width, self.embed_dim, self.number_width = width, embed_dim, number_width
        self.numbers = tuple(int(at) for at in numbers)
        taken = set(self.numbers)
        self.others = tuple(at for at in range(width) if at not in taken)
        self.sigma, self.dropout = sigma, dropout
        if frequencies is None:  # many numbers say the same in several ways: they need fewer waves each
            frequencies = min(48, max(16, 768 // max(1, len(self.numbers))))
        self.normal = QuantileNormal(len(self.numbers), knots)
        count, reach = len(self.numbers), 1 / math.sqrt(2 * frequencies)
        self.frequencies = nn.Parameter(torch.randn(count, frequencies) * sigma)
        self.mix = nn.Parameter(torch.empty(count, 2 * frequencies, number_width).uniform_(-reach, reach))
        self.mix_bias = nn.Parameter(torch.empty(count, 1, number_width).uniform_(-reach, reach))
        self.linear = nn.Linear(count * number_width + len(self.others), embed_dim)
        self.blocks = nn.ModuleList(_Block(embed_dim) for _ in range(blocks))

    @classmethod
    def start(cls, features: NDArray[np.float32], numbers: Sequence[int], **options: Any) -> PeriodicEmbedder:
        """An untrained network for rows like these."""
        normal = QuantileNormal.learn(features[:, list(numbers)])
        network = cls(features.shape[1], numbers, knots=normal.knots.shape[1], **options)
        network.normal = normal
        return network

    def front(self, features: Tensor) -> Tensor:
        """Normal scores of the numbers, then the other columns."""
        scores = self.normal(features[:, list(self.numbers)]) if self.numbers else features[:, :0]
        return torch.cat([scores, features[:, list(self.others)]], dim=1)

    def body(self, prepared: Tensor) -> Tensor:
        """Vectors of rows that went through :meth:`front`."""
        scores, others = prepared[:, : len(self.numbers)], prepared[:, len(self.numbers) :]
        # (numbers, rows, frequencies): a batched product for each number's own map
        angles = 2 * math.pi * scores.T.unsqueeze(-1) * self.frequencies.unsqueeze(1)
        waves = torch.cat([angles.cos(), angles.sin()], dim=-1)
        curves = torch.baddbmm(self.mix_bias, waves, self.mix).relu()
        shown = curves.transpose(0, 1)  # (rows, numbers, width)
        if self.dropout and self.training:
            shown = shown * F.dropout(torch.ones_like(scores), self.dropout).unsqueeze(-1)
            others = F.dropout(others, self.dropout)
        vectors: Tensor = self.linear(torch.cat([shown.reshape(len(prepared), -1), others], dim=1))
        for block in self.blocks:
            vectors = vectors + block(vectors)
        return vectors

    def forward(self, features: Tensor) -> Tensor:
        """(n, width) encoded rows to (n, embed_dim) vectors."""
        return self.body(self.front(features))

    def shape(self) -> dict[str, Any]:
        """Arguments that build the same network."""
        return {
            "width": self.width,
            "numbers": list(self.numbers),
            "embed_dim": self.embed_dim,
            "frequencies": self.frequencies.shape[1],
            "sigma": self.sigma,
            "number_width": self.number_width,
            "blocks": len(self.blocks),
            "dropout": self.dropout,
            "knots": self.normal.knots.shape[1],
        }


class _Block(nn.Sequential):
    """Normalize, widen, ReLU, narrow; added to what goes in."""

    def __init__(self, dim: int) -> None:
        super().__init__(
            nn.LayerNorm(dim), nn.Linear(dim, 2 * dim), nn.ReLU(), nn.Dropout(0.2), nn.Linear(2 * dim, dim)
        )


class TabularEmbedder(nn.Module):
    """A perceptron of two hidden layers with unit-length output, as in the source documents.

    Args:
        input_dim: Width of the encoded rows.
        embed_dim: Width of the vectors.
    """

    kind: ClassVar[str] = "tabular"
    metric: ClassVar[Metric] = "cosine"

    def __init__(self, input_dim: int, embed_dim: int = 256) -> None:
        super().__init__()
        self.input_dim, self.embed_dim = input_dim, embed_dim
        self.net = nn.Sequential(
            *(nn.Linear(input_dim, 256), nn.LayerNorm(256), nn.GELU(), nn.Dropout(0.2)),
            *(nn.Linear(256, 256), nn.LayerNorm(256), nn.GELU(), nn.Dropout(0.1)),
            nn.Linear(256, embed_dim),
        )

    @classmethod
    def start(cls, features: NDArray[np.float32], numbers: Sequence[int], **options: Any) -> TabularEmbedder:
        """An untrained network for rows like these."""
        return cls(features.shape[1], **options)

    def front(self, features: Tensor) -> Tensor:
        """Nothing is fixed."""
        return features

    def body(self, prepared: Tensor) -> Tensor:
        """Vectors of unit length."""
        return F.normalize(self.net(prepared), dim=1)

    def forward(self, features: Tensor) -> Tensor:
        """(n, input_dim) encoded rows to (n, embed_dim) vectors."""
        return self.body(self.front(features))

    def shape(self) -> dict[str, Any]:
        """Arguments that build the same network."""
        return {"input_dim": self.input_dim, "embed_dim": self.embed_dim}


class LinearEmbedder(nn.Module):
    """A square projection that starts as the identity, for vectors that another model made; compared by cosine.

    Args:
        input_dim: Width of the given vectors, and of its own.
    """

    kind: ClassVar[str] = "linear"
    metric: ClassVar[Metric] = "cosine"

    def __init__(self, input_dim: int) -> None:
        super().__init__()
        self.embed_dim = input_dim
        self.projection = nn.Linear(input_dim, input_dim, bias=False)
        nn.init.eye_(self.projection.weight)

    @classmethod
    def start(cls, features: NDArray[np.float32], numbers: Sequence[int], **options: Any) -> LinearEmbedder:
        """An untrained network for rows like these."""
        return cls(features.shape[1], **options)

    def front(self, features: Tensor) -> Tensor:
        """Unit length: only directions count."""
        return F.normalize(features, dim=1)

    def body(self, prepared: Tensor) -> Tensor:
        """Vectors of unit length."""
        return F.normalize(self.projection(prepared), dim=1)

    def forward(self, features: Tensor) -> Tensor:
        """(n, input_dim) given vectors to projected ones."""
        return self.body(self.front(features))

    def shape(self) -> dict[str, Any]:
        """Arguments that build the same network."""
        return {"input_dim": self.embed_dim}


TableNetwork = PeriodicEmbedder | TabularEmbedder | LinearEmbedder
NETWORKS: Final[dict[str, type[PeriodicEmbedder] | type[TabularEmbedder] | type[LinearEmbedder]]] = {
    "periodic": PeriodicEmbedder,
    "tabular": TabularEmbedder,
    "linear": LinearEmbedder,
}
"""Those for tables."""

AnyNetwork = TableNetwork | ImageEmbedder
LEARNED: Final[dict[str, Any]] = {**NETWORKS, "image": ImageEmbedder}
"""All of them."""


@torch.no_grad()
def embed(network: AnyNetwork, features: NDArray[Any]) -> NDArray[np.float32]:
    """Vectors of encoded rows, a bounded number at a time, on the network's device."""
    if isinstance(network, ImageEmbedder):
        return embed_images(network, features)
    device = next(network.parameters()).device
    network.eval()
    parts = [
        network(torch.from_numpy(np.ascontiguousarray(features[at : at + _ROWS_AT_ONCE], np.float32)).to(device))
        for at in range(0, len(features), _ROWS_AT_ONCE)
    ]
    if not parts:
        return np.empty((0, network.embed_dim), np.float32)
    vectors: NDArray[np.float32] = torch.cat(parts).cpu().numpy()
    return vectors


def network_from_state(state: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> AnyNetwork:
    """The network whose kind, shape and weights these are."""
    kind = state.get("kind")
    if kind not in LEARNED:
        raise InvalidInput(f"no network is called {kind!r}; try one of: {', '.join(LEARNED)}")
    network: AnyNetwork = LEARNED[kind](**state["shape"])
    try:
        network.load_state_dict(dict(tensors))
    except RuntimeError as problem:
        raise InvalidInput(f"the weights do not fit the {kind} network: {problem}") from problem
    return network.eval()
