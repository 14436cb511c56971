"""What the attention adds to scale * similarity; each part is exactly 0 when it is made.

Each part gives (queries, heads, k) logits.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from attnknn.errors import InvalidInput
from attnknn.ops import evidence, unit
from attnknn.ops.links import without_autocast


class QueryKeyScore(nn.Module):
    """The product of a projected query and a projected neighbor, one per head, over the root of their width.

    The query's projection starts at random with entries of size 1, for vectors of length about 1; the neighbor's
    starts at zero. So all scores start at 0, yet no two heads get the same gradient.

    Args:
        embed_dim: Width of the vectors.
        heads: Heads.
        head_dim: Width of each head's projections.
    """

    def __init__(self, embed_dim: int, heads: int, head_dim: int) -> None:
        super().__init__()
        self.heads = heads
        self.head_dim = head_dim
        self.q_proj = nn.Linear(embed_dim, heads * head_dim, bias=False)
        self.k_proj = nn.Linear(embed_dim, heads * head_dim, bias=False)
        nn.init.normal_(self.q_proj.weight)
        nn.init.zeros_(self.k_proj.weight)

    def folded(self, query: Tensor) -> Tensor:
        """(queries, heads, dim) vectors whose product with a neighbor is its score.

        Both projections act on the query, so that k neighbors are not projected at all.
        """
        projected = self.q_proj(query).view(len(query), self.heads, self.head_dim).transpose(0, 1)
        keys = self.k_proj.weight.view(self.heads, self.head_dim, -1)
        folded: Tensor = (projected @ keys).transpose(0, 1) * self.head_dim**-0.5
        return folded

    def forward(self, query: Tensor, neighbors: Tensor) -> Tensor:
        """Scores of neighbors (queries, k, dim) for queries (queries, dim)."""
        return score(self.folded(query), neighbors)


def score(folded: Tensor, neighbors: Tensor) -> Tensor:
    """(queries, heads, k) products of (queries, heads, dim) with (queries, k, dim)."""
    return (neighbors @ folded.transpose(1, 2)).transpose(1, 2)  # this order is the faster one


class HeadNetwork(nn.Module):
    """A small network of a few features of each neighbor, one output per head; its last layer starts at zero.

    The last layer has no offset: it would be the same for all neighbors, and softmax would cancel it.

    Args:
        features: How many features a neighbor has.
        hidden: Width of the hidden layer.
        heads: Heads.
    """

    def __init__(self, features: int, hidden: int, heads: int) -> None:
        super().__init__()
        self.inner = nn.Linear(features, hidden)
        self.outer = nn.Linear(hidden, heads, bias=False)
        nn.init.zeros_(self.outer.weight)

    def forward(self, features: Tensor) -> Tensor:
        """Logits of neighbors with features (queries, k, features)."""
        logits: Tensor = self.outer(silu(self.inner(features))).transpose(1, 2)
        return logits


class HeadFactor(nn.Module):
    """A factor per head for one number of each neighbor; starts at zero."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.zeros(heads))

    def forward(self, values: Tensor) -> Tensor:
        """Logits of neighbors with values (queries, k)."""
        return self.factor[:, None] * values[:, None]


def label_features(labels: Tensor, reliability: Tensor | None, found: Tensor) -> Tensor:
    """(queries, k, 2): the share of the neighbors found that carry a neighbor's label, and its log reliability.

    Both differ between neighbors; what is the same for all of them, softmax cancels. Without reliability the
    second feature is 0.

    >>> labels, found = torch.tensor([[1, 1, 0]]), torch.tensor([[True, True, True]])
    >>> label_features(labels, None, found)[0, :, 0].tolist()
    [0.6666666666666666, 0.6666666666666666, 0.3333333333333333]
    """
    labels = labels.masked_fill(~found, -1)
    classes = 1 + (max(0, int(labels.max())) if labels.numel() else 0)
    counts = evidence(found.float(), labels, classes).gather(1, labels.clamp(min=0)).masked_fill(~found, 0.0)
    shares = counts / found.sum(dim=-1, keepdim=True).clamp(min=1)
    if reliability is None:
        return torch.stack([shares, torch.zeros_like(shares)], dim=-1)
    return torch.stack([shares, reliability.to(shares).masked_fill(~found, 1.0).log()], dim=-1)


def prototype_alignment(
    neighbors: Tensor,
    neigh_labels: Tensor,
    sums: Tensor,
    own: Tensor | None = None,
    query: Tensor | None = None,
) -> Tensor:
    """(queries, k) cosine of each neighbor and the prototype of its class; 0 where the label is below 0.

    A training query belongs to the prototype of its own class, and so would tell its label: the neighbors of that
    class would look more aligned. So its vector is taken out again.

    Args:
        neighbors: (queries, k, dim).
        neigh_labels: (queries, k).
        sums: (classes, dim) sums of each class's vectors; or means, where nothing is to be taken out.
        own: (queries,) labels of the queries that are themselves in the sums; -1 for one that is not.
        query: (queries, dim) what each query added to the sum of its class: its vector, or that of its group.

    >>> sums, neighbor, label = torch.tensor([[3.0, 4.0]]), torch.tensor([[[0.0, 2.0]]]), torch.tensor([[0]])
    >>> round(prototype_alignment(neighbor, label, sums).item(), 6)
    0.8
    >>> prototype_alignment(neighbor, label, sums, own=torch.tensor([0]), query=torch.tensor([[3.0, 0.0]])).item()
    1.0
    """
    if (own is None) != (query is None):
        raise InvalidInput("own and query go together: the labels of the queries, and what they added to the sums")
    if neigh_labels.numel() and int(neigh_labels.max()) >= len(sums):
        raise InvalidInput(f"label {int(neigh_labels.max())} has no prototype: there are {len(sums)}")
    sums, known = sums.to(neighbors.dtype), neigh_labels >= 0
    with without_autocast(neighbors.device):
        products = _with_prototypes(neighbors, neigh_labels.clamp(min=0), unit(sums))
        if own is not None and query is not None:
            rest = unit(sums[own] - query.to(sums.dtype))
            without = (neighbors @ rest[..., None]).squeeze(-1)
            products = torch.where(neigh_labels == own[:, None], without, products)
    lengths = torch.linalg.vector_norm(neighbors, dim=-1)
    return (products / torch.where(lengths > 0, lengths, 1.0)).masked_fill(~known, 0.0)


def _with_prototypes(neighbors: Tensor, labels: Tensor, prototypes: Tensor) -> Tensor:
    """(queries, k) products; where classes are few, with all of them, which is faster than to copy a prototype."""
    if 8 * len(prototypes) <= neighbors.shape[-1]:
        return (neighbors @ prototypes.T).gather(-1, labels[..., None]).squeeze(-1)
    return (neighbors * prototypes[labels]).sum(dim=-1)
