"""AttnKNN: embed the query, weigh its neighbors, let them vote."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from attnknn.attend.attention import MultiHeadNeighborAttention
from attnknn.attend.biases import prototype_alignment
from attnknn.errors import InvalidInput
from attnknn.ops import evidence, unit, vote


class AttnKNN(nn.Module):
    """A nearest-neighbor classifier as one module; the search for neighbors lies outside.

    Args:
        embedder: Inputs -> vectors (queries, dim).
        attention: Neighbors -> weights.
        num_classes: Classes that can be voted for.
        prior_mass: How many neighborhoods the class prior is worth in the vote.
        class_prior: (classes,) summing to 1; uniform unless given.

    >>> from attnknn.attend.options import AttentionOptions
    >>> attention = MultiHeadNeighborAttention(2, AttentionOptions().without("label_bias"))
    >>> model = AttnKNN(nn.Identity(), attention, num_classes=3).eval()
    >>> neighbors, labels, dists = torch.randn(1, 2, 2), torch.tensor([[2, 0]]), torch.tensor([[0.5, 0.5]])
    >>> probs, weights, query = model(torch.randn(1, 2), neighbors, labels, dists)
    >>> probs.tolist()
    [[0.5, 0.0, 0.5]]
    """

    prototype_means: Tensor
    prototype_counts: Tensor
    class_prior: Tensor

    def __init__(
        self,
        embedder: nn.Module,
        attention: MultiHeadNeighborAttention,
        num_classes: int,
        *,
        prior_mass: float = 0.0,
        class_prior: Tensor | None = None,
    ) -> None:
        super().__init__()
        if num_classes < 1:
            raise InvalidInput(f"num_classes must be at least 1, got {num_classes}")
        if not (math.isfinite(prior_mass) and prior_mass >= 0):
            raise InvalidInput(f"prior_mass must be at least 0, got {prior_mass!r}")
        self.embedder = embedder
        self.attention = attention
        self.num_classes = num_classes
        self.prior_mass = prior_mass
        self.register_buffer("class_prior", _checked_prior(class_prior, num_classes))
        self.register_buffer("prototype_means", torch.zeros(num_classes, attention.embed_dim))
        self.register_buffer("prototype_counts", torch.zeros(num_classes, dtype=torch.int64))

    def forward(
        self,
        x: Tensor,
        neigh_emb: Tensor,
        neigh_labels: Tensor,
        dists: Tensor,
        *,
        reliability: Tensor | None = None,
        alignment: Tensor | None = None,
        found: Tensor | None = None,
        prior: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Class probabilities (queries, classes), weights (queries, k) and query vectors (queries, dim).

        Args:
            x: What the embedder takes.
            neigh_emb: (queries, k, dim) vectors of the neighbors.
            neigh_labels: (queries, k), below 0 where there is no neighbor.
            dists: (queries, k) distances of the neighbors.
            reliability: (queries, k), for the label bias.
            alignment: (queries, k), for the prototypes; computed from the kept ones unless given. Those contain
                the training queries themselves, so in training give one from which they are taken out.
            found: (queries, k), which neighbors exist; without it, those at a finite distance.
            prior: (queries, k) factors of the weights before they are normalized.
        """
        query_emb = self.get_embedding(x)
        if alignment is None and self.attention.options.prototypes:
            alignment = self._alignment(neigh_emb, neigh_labels)
        weights: Tensor = self.attention(
            query_emb,
            neigh_emb,
            dists,
            neigh_labels,
            reliability=reliability,
            alignment=alignment,
            found=found,
            prior=prior,
        )
        weighed = evidence(weights, neigh_labels, self.num_classes)
        return vote(weighed, self.class_prior.to(weighed), self.prior_mass), weights, query_emb

    def get_embedding(self, x: Tensor) -> Tensor:
        """Vectors (queries, dim) of inputs."""
        vectors: Tensor = self.embedder(x)
        return vectors

    def get_prototypes(self) -> Tensor | None:
        """(classes, dim) prototypes of length 1, zero for a class not seen yet; None when none was."""
        return unit(self.prototype_means) if self.prototype_counts.any() else None

    @torch.no_grad()
    def update_prototypes(self, embeddings: Tensor, labels: Tensor, momentum: float = 0.99) -> None:
        """Move each class's prototype towards the mean of its vectors in a batch; the first batch sets it.

        Args:
            embeddings: (rows, dim).
            labels: (rows,).
            momentum: How much of a prototype stays, from 0 to 1.
        """
        if not 0 <= momentum <= 1:
            raise InvalidInput(f"momentum must lie within 0 and 1, got {momentum!r}")
        if labels.numel() and not 0 <= int(labels.min()) <= int(labels.max()) < self.num_classes:
            last, low, high = self.num_classes - 1, int(labels.min()), int(labels.max())
            raise InvalidInput(f"labels must lie within 0 and {last}, got {low} to {high}")
        means = self.prototype_means
        counts = torch.bincount(labels, minlength=self.num_classes)
        sums = torch.zeros_like(means).index_add_(0, labels, embeddings.to(means))
        stay = torch.where(self.prototype_counts > 0, momentum, 0.0).to(means)[:, None]
        moved = stay * means + (1 - stay) * sums / counts.clamp(min=1)[:, None]
        means.copy_(torch.where(counts[:, None] > 0, moved, means))
        self.prototype_counts.add_(counts)

    def _alignment(self, neighbors: Tensor, labels: Tensor) -> Tensor:
        prototypes = self.get_prototypes()
        if prototypes is None:
            raise InvalidInput("there are no prototypes yet: call update_prototypes, or give alignment")
        return prototype_alignment(neighbors, labels, prototypes)


def _checked_prior(prior: Tensor | None, classes: int) -> Tensor:
    if prior is None:
        return torch.full((classes,), 1 / classes)
    prior = prior.detach().float()
    if prior.shape != (classes,) or not (prior >= 0).all() or not torch.isclose(prior.sum(), torch.ones(())):
        raise InvalidInput(f"class_prior must be {classes} probabilities that sum to 1, got {prior.tolist()}")
    return prior
