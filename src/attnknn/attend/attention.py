"""Neighbors -> weights, learned: softmax of scale * similarity, plus parts that start at zero."""

from __future__ import annotations

import math
from typing import Any, Final

import torch
from torch import Tensor, nn

from attnknn.attend.biases import HeadFactor, HeadNetwork, QueryKeyScore, label_features, score
from attnknn.attend.options import AttentionOptions
from attnknn.attend.self_attention import NeighborSelfAttention
from attnknn.errors import InvalidInput
from attnknn.ops import Metric, similarity, softmax
from attnknn.ops.similarity import checked_metric

SCALES: Final[dict[Metric, tuple[float, float, float]]] = {
    "l2": (1.0, 0.01, 100.0),
    "cosine": (10.0, 1.0, 100.0),
    "ip": (1.0, 0.01, 100.0),
}
"""The start of the scale and its two bounds, for distances in units of the typical one."""


class MultiHeadNeighborAttention(nn.Module):
    """Weights of neighbors that sum to 1: the mean over heads of softmax(scale * similarity + learned parts).

    When it is made every learned part is 0: it is softmax distance weighting. Similarities keep the precision of
    the distances; the parts are computed in that of the parameters.

    Args:
        embed_dim: Width of the vectors.
        options: Which parts there are.
        metric: Metric of the distances. For ``cosine`` vectors are expected to have length 1.
        scale: Inverse temperature that every head starts with, for distances in units of ``unit``; by default 1,
            for cosine 10. It is learned within .01 and 100, for cosine 1 and 100.
        unit: A typical distance (for ``ip``: inner product), so that data in any units learns alike.
            Cosine has none to choose: 1.
        center: (dim,) where the vectors lie; 0 unless given. What is projected is counted from there.
        length: Their typical distance from it; by default that which ``unit`` suggests. Vectors that lie far from
            0, or much further apart than a vector and its neighbors, would drown the projections otherwise.
            Vectors of length 1 have neither to choose.
        normalized: Whether vectors have length 1, as those of an embedder that normalizes; by default for cosine.

    >>> attention = MultiHeadNeighborAttention(8).eval()
    >>> dists = torch.tensor([[0.0, 1.0]], dtype=torch.float64)
    >>> labels = torch.tensor([[0, 1]])
    >>> weights = attention(torch.randn(1, 8), torch.randn(1, 2, 8), dists, labels)
    >>> torch.equal(weights, softmax(-dists))
    True
    """

    unit: Tensor
    center: Tensor
    length: Tensor

    def __init__(
        self,
        embed_dim: int,
        options: AttentionOptions | None = None,
        *,
        metric: Metric = "l2",
        scale: float | None = None,
        unit: float = 1.0,
        center: Tensor | None = None,
        length: float | None = None,
        normalized: bool | None = None,
    ) -> None:
        super().__init__()
        self.options = options = options or AttentionOptions()
        self.metric = checked_metric(metric)
        self.embed_dim = _checked_dim(embed_dim)
        self.num_heads = heads = options.num_heads
        self.normalized = metric == "cosine" if normalized is None else normalized
        if self.normalized and not (center is None and length is None):
            raise InvalidInput("vectors of length 1 are compared as they are: center and length must be None")
        self.register_buffer("unit", torch.tensor(_checked_unit(unit, self.metric)))
        self.register_buffer("center", _checked_center(center, embed_dim))
        usual = usual_length(self.unit, self.metric, self.normalized)
        self.register_buffer("length", usual if length is None else torch.tensor(_positive(length, "length")))
        # Relative to the usual start, which is exact in float32 this way, and where weight decay pulls to.
        begin = math.log(_checked_scale(scale, self.metric) / SCALES[self.metric][0])
        self.log_scale = nn.Parameter(torch.full((heads,), begin))
        key_dim, hidden = options.key_dim, options.hidden_dim
        self.projections = QueryKeyScore(embed_dim, heads, key_dim) if options.projections else None
        self.distance_bias = HeadNetwork(1, hidden, heads) if options.distance_bias else None
        self.label_bias = HeadNetwork(2, hidden, heads) if options.label_bias else None
        self.prototypes = HeadFactor(heads) if options.prototypes else None
        self.self_attention = None
        if options.self_attention:
            self.self_attention = NeighborSelfAttention(
                embed_dim, heads, head_dim=key_dim, normalize=self.normalized
            )

    def forward(
        self,
        query: Tensor,
        neighbors: Tensor,
        dists: Tensor,
        neigh_labels: Tensor | None = None,
        *,
        reliability: Tensor | None = None,
        alignment: Tensor | None = None,
        found: Tensor | None = None,
        prior: Tensor | None = None,
    ) -> Tensor:
        """Weights (queries, k) that sum to 1 over the neighbors that exist, 0 elsewhere.

        Args:
            query: (queries, dim).
            neighbors: (queries, k, dim).
            dists: (queries, k), as the search gave them.
            neigh_labels: (queries, k); the label bias needs them.
            reliability: (queries, k) of the neighbors, above 0, for the label bias.
            alignment: (queries, k) from :func:`prototype_alignment`; the prototypes need it.
            found: (queries, k), which neighbors exist; without it, those at a finite distance.
            prior: (queries, k) factors of the weights before they are normalized: sample and class weights.
        """
        there = dists.isfinite() if found is None else found
        if prior is not None:
            there = there & (prior > 0)
        parts = self.logit_parts(
            query, neighbors, dists, neigh_labels, reliability=reliability, alignment=alignment, found=there
        )
        base = parts.pop("scale")
        bias = torch.stack(list(parts.values())).sum(dim=0) if parts else None
        prior = None if prior is None else prior[:, None]
        seen = self._kept(there)[:, None]
        return softmax(base, bias=bias, found=seen, prior=prior).mean(dim=1)

    def logit_parts(
        self,
        query: Tensor,
        neighbors: Tensor,
        dists: Tensor,
        neigh_labels: Tensor | None = None,
        *,
        reliability: Tensor | None = None,
        alignment: Tensor | None = None,
        found: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """What each part adds to the logits, as (queries, heads, k), finite also where there is no neighbor.

        Arguments as for :meth:`forward`. ``"scale"`` is scale * similarity; the others are the parts that are on.
        """
        there = dists.isfinite() if found is None else found
        self._check_shapes(query, neighbors, dists, there)
        gaps = dists.masked_fill(~there, 0.0)  # infinite, and infinity times a gradient of 0 is NaN
        scales = _scales(self.log_scale.to(gaps.dtype), self.unit.to(gaps.dtype), self.metric)
        parts = {"scale": scales[:, None] * similarity(gaps, self.metric)[:, None]}
        if self.projections is not None:
            parts |= self._compared(self.projections, query, neighbors, there)
        if self.distance_bias is not None:
            parts["distance_bias"] = self.distance_bias((gaps / self.unit).to(self.dtype)[..., None])
        if self.label_bias is not None:
            labels = _needed(neigh_labels, "label_bias", "neigh_labels")
            parts["label_bias"] = self.label_bias(label_features(labels, reliability, there).to(self.dtype))
        if self.prototypes is not None:
            aligned = _needed(alignment, "prototypes", "alignment").masked_fill(~there, 0.0)
            parts["prototypes"] = self.prototypes(aligned.to(self.dtype))
        return parts

    def parts(self) -> dict[str, tuple[nn.Parameter, ...]]:
        """The parameters of the scale and of each part that is on, by the names of :meth:`logit_parts`."""
        modules = {name: getattr(self, name) for name in self.options.parts}
        return {"scale": (self.log_scale,)} | {name: tuple(each.parameters()) for name, each in modules.items()}

    @property
    def scales(self) -> Tensor:
        """(heads,) inverse temperatures in float64, for distances as they are given; detached."""
        logs, unit = (each.detach().cpu().double() for each in (self.log_scale, self.unit))
        return _scales(logs, unit, self.metric)

    @property
    def dtype(self) -> torch.dtype:
        """Precision of the parameters."""
        return self.log_scale.dtype

    def _compared(
        self, projections: QueryKeyScore, query: Tensor, neighbors: Tensor, there: Tensor
    ) -> dict[str, Tensor]:
        """The scores of the neighbors as they are, and what self-attention changes about them."""
        query, neighbors = query.to(self.dtype), neighbors.to(self.dtype)
        if not there.all():  # what stands where there is no neighbor may be NaN; a copy only where needed
            neighbors = neighbors.masked_fill(~there[..., None], 0.0)
        folded = projections.folded((query - self.center) / self.length)
        scores = {"projections": score(folded / self._step(), neighbors)}
        if self.self_attention is not None:
            near = ((neighbors - self.center) / self.length).masked_fill(~there[..., None], 0.0)
            scores["self_attention"] = score(folded, self.self_attention(near, there) - near)
        return scores

    def _step(self) -> Tensor:
        """How far apart neighbors are that the projections tell from each other."""
        return self.unit if self.metric == "l2" and not self.normalized else self.length

    def _kept(self, there: Tensor) -> Tensor:
        """Which neighbors are left after dropout: in training some are hidden from all heads, never the last."""
        rate = self.options.dropout
        if not (self.training and rate):
            return there
        luck = torch.rand(there.shape, device=there.device).masked_fill(~there, -1.0)
        lucky = luck == luck.amax(dim=-1, keepdim=True) if luck.shape[-1] else there
        return there & ((luck >= rate) | lucky)

    def _check_shapes(self, query: Tensor, neighbors: Tensor, dists: Tensor, found: Tensor) -> None:
        wanted = (*dists.shape, self.embed_dim)
        given = tuple(query.shape), tuple(neighbors.shape), tuple(dists.shape), tuple(found.shape)
        if given != ((len(dists), self.embed_dim), wanted, wanted[:2], wanted[:2]):
            raise InvalidInput(
                f"expected query (b, {self.embed_dim}), neighbors (b, k, {self.embed_dim}), "
                f"dists and found (b, k), got {', '.join(map(str, given))}"
            )

    def extra_repr(self) -> str:
        """Settings that no submodule shows."""
        return f"embed_dim={self.embed_dim}, num_heads={self.num_heads}, metric={self.metric!r}"


def logit_size(logits: Tensor, found: Tensor | None = None) -> Tensor:
    """How much logits (queries, heads, k) say: their root mean square over the neighbors that exist.

    The mean of each query and head is taken out first, for softmax cancels it.

    >>> logit_size(torch.tensor([[[4.0, 6.0, 99.0]]]), torch.tensor([[True, True, False]])).item()
    1.0
    """
    there = torch.ones_like(logits) if found is None else found[:, None].expand_as(logits).to(logits)
    logits = logits.where(there > 0, 0.0)
    centered = (logits - logits.sum(dim=-1, keepdim=True) / there.sum(dim=-1, keepdim=True).clamp(min=1)) * there
    return (centered.square().sum() / there.sum().clamp(min=1)).sqrt()


def usual_length(unit: Tensor, metric: Metric, normalized: bool) -> Tensor:
    """How far from the center vectors lie, as far as the unit tells."""
    if normalized:
        return torch.ones_like(unit)
    return unit.sqrt() if metric == "ip" else unit.clone()


def _scales(logs: Tensor, unit: Tensor, metric: Metric) -> Tensor:
    """What is multiplied with similarities, within the bounds, in the precision of ``logs``."""
    start, low, high = SCALES[metric]
    bounded: Tensor = _Within.apply(logs, math.log(low / start), math.log(high / start))  # type: ignore[no-untyped-call]
    return start * bounded.exp() / unit


class _Within(torch.autograd.Function):
    """A clamp that lets a value come back: beyond a bound only the gradient that leads further out is stopped."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, low: float, high: float) -> Tensor:
        ctx.save_for_backward(values <= low, values >= high)
        return values.clamp(low, high)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (grad,), (below, above) = grads, ctx.saved_tensors
        return grad.masked_fill((below & (grad > 0)) | (above & (grad < 0)), 0.0), None, None


def _needed(values: Tensor | None, part: str, name: str) -> Tensor:
    if values is None:
        raise InvalidInput(f"{part} is on and needs {name}, but got None")
    return values


def _checked_dim(embed_dim: int) -> int:
    if embed_dim < 1:
        raise InvalidInput(f"embed_dim must be at least 1, got {embed_dim}")
    return embed_dim


def _checked_unit(unit: float, metric: Metric) -> float:
    _positive(unit, "unit")
    if metric == "cosine" and unit != 1:
        raise InvalidInput(f"cosine has no unit to choose, got {unit=}")
    return float(unit)


def _checked_center(center: Tensor | None, embed_dim: int) -> Tensor:
    if center is None:
        return torch.zeros(embed_dim)
    if center.shape != (embed_dim,) or not center.isfinite().all():
        raise InvalidInput(f"center must be {embed_dim} finite numbers, got {center!r}")
    return center.detach().clone().float()


def _positive(value: float, name: str) -> float:
    if not (math.isfinite(value) and value > 0):
        raise InvalidInput(f"{name} must be a positive distance, got {value!r}")
    return float(value)


def _checked_scale(scale: float | None, metric: Metric) -> float:
    start, low, high = SCALES[metric]
    if scale is None:
        return start
    if not low <= scale <= high:
        raise InvalidInput(f"scale for {metric} must lie within {low:g} and {high:g}, got {scale!r}")
    return scale
