"""NCA, neighborhood component analysis: the softmax's mass on the keys of a query's own label, made to grow."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from attnknn.errors import InvalidInput
from attnknn.ops.similarity import Metric, checked_metric, unit

_CPU_CELLS: Final = 2**21  # queries x keys at a time: few enough for the processor's cache
_DEVICE_CELLS: Final = 2**27


def nca(
    queries: Tensor,
    keys: Tensor,
    query_labels: Tensor,
    key_labels: Tensor,
    scale: float | Tensor,
    *,
    metric: Metric = "l2",
    leave_out: Tensor | None = None,
    smoothing: float = 0.0,
    classes: int | None = None,
    sample_weight: Tensor | None = None,
    key_prior: Tensor | None = None,
) -> Tensor:
    """Mean over queries of -log of the softmax's mass on the keys of the query's label; no top-k.

    The softmax runs over all allowed keys of ``scale * similarity + key_prior``. A query that has no allowed
    key of its label does not count. Never holds more than a slice of the (queries, keys) matrix.

    Args:
        queries: (q, d).
        keys: (n, d).
        query_labels: (q,) integers.
        key_labels: (n,) integers.
        scale: One number; a tensor gets a gradient.
        metric: ``l2`` is minus the plain Euclidean distance; ``cosine`` takes vectors of any length.
        leave_out: What a query must not see: (q, n) bool or, faster, (m, 2) pairs of query and key as
            :func:`~attnknn.ops.same_group` returns them.
        smoothing: Share of the target that is spread evenly over ``classes``; what falls on a class without an
            allowed key is dropped.
        classes: How many classes there are; only smoothing asks.
        sample_weight: (q,) weights of the queries in the mean.
        key_prior: (n,) added to the logits, such as the log of the keys' weights.

    >>> query, keys, labels = torch.zeros(1, 1), torch.tensor([[1.0], [3.0]]), torch.tensor([0, 1])
    >>> round(nca(query, keys, labels[:1], labels, 1.0).item(), 4)  # log(1 + e^-2)
    0.1269
    """
    _check_nca(queries, keys, query_labels, key_labels, leave_out)
    share = smoothing_share(smoothing, classes)
    if not len(queries) or not len(keys):
        return 0.0 * (queries.sum() + keys.sum())
    queries, keys = wide(queries), wide(keys).to(wide(queries))
    factor = torch.as_tensor(scale).to(queries)
    if factor.numel() != 1:
        raise InvalidInput(f"scale must be one number, got shape {tuple(factor.shape)}")
    plan = _Plan.of(query_labels, key_labels, 1 - smoothing, share, sample_weight, leave_out)
    keys = keys.index_select(0, plan.order)
    prior = None if key_prior is None else key_prior.to(keys).index_select(0, plan.order)
    if checked_metric(metric) == "l2":
        queries, keys, floor = _expanded(queries, keys)
        plan = replace(plan, floor=floor)
    elif metric == "cosine":
        queries, keys = unit(queries), unit(keys)
    loss: Tensor = _NCA.apply(queries, keys, factor, prior, plan)  # type: ignore[no-untyped-call]
    return loss


def _check_nca(
    queries: Tensor, keys: Tensor, query_labels: Tensor, key_labels: Tensor, leave_out: Tensor | None
) -> None:
    if queries.ndim != 2 or keys.ndim != 2 or queries.shape[1] != keys.shape[1]:
        raise InvalidInput(f"expected (q, d) and (n, d), got {tuple(queries.shape)} and {tuple(keys.shape)}")
    if query_labels.shape != queries.shape[:1] or key_labels.shape != keys.shape[:1]:
        got = f"{tuple(query_labels.shape)} and {tuple(key_labels.shape)}"
        raise InvalidInput(f"expected labels for {len(queries)} queries and {len(keys)} keys, got {got}")
    if leave_out is None:
        return
    wanted = (len(queries), len(keys)) if leave_out.dtype == torch.bool else (len(leave_out), 2)
    if leave_out.shape != wanted or leave_out.is_floating_point():
        got = f"{leave_out.dtype} of shape {tuple(leave_out.shape)}"
        raise InvalidInput(f"leave_out is ({len(queries)}, {len(keys)}) bool or (m, 2) pairs, got {got}")


def _expanded(queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries (q, d + 2) and keys (n, d + 2) whose inner products are squared distances, and (q, 1) their error.

    Relative to the mean of the keys: the expanded square loses digits with the distance from the origin.
    """
    center = keys.detach().mean(dim=0)
    queries, keys = queries - center, keys - center
    asked, held = (each.square().sum(dim=1, keepdim=True) for each in (queries, keys))
    left = torch.cat([-2 * queries, torch.ones_like(asked), asked], dim=1)
    right = torch.cat([keys, held, torch.ones_like(held)], dim=1)
    limits = torch.finfo(queries.dtype)
    # A key this near has about the query's length, hence the error of the difference.
    return left, right, (4 * limits.eps * asked.detach()).clamp(min=limits.tiny)


@dataclass(frozen=True, slots=True)
class _Plan:
    """Which key counts for what; the keys are taken in ``order``, those of one label side by side."""

    order: Tensor  # (n,)
    counts: list[int]  # keys of each label
    own: Tensor  # (q,) which of the labels is the query's; 0 if none
    weight: Tensor  # (q,) of the queries; 0 if no key has the label
    right: float  # what the own label gets of the target
    share: float  # what every label gets besides
    hidden: Tensor | None  # (q, n) bool or (m, 2), already in order
    floor: Tensor | None = None  # (q, 1) least squared distance; None where products are similarities

    @classmethod
    def of(
        cls,
        query_labels: Tensor,
        key_labels: Tensor,
        right: float,
        share: float,
        sample_weight: Tensor | None,
        leave_out: Tensor | None,
    ) -> _Plan:
        ranked, order = key_labels.sort(stable=True)
        labels, counts = torch.unique_consecutive(ranked, return_counts=True)
        own = torch.searchsorted(labels, query_labels.to(labels.dtype).contiguous())
        known = own < len(labels)
        own = own.where(known, 0)
        known &= labels[own] == query_labels
        weight = known.float() if sample_weight is None else sample_weight.detach() * known
        if leave_out is not None and leave_out.dtype == torch.bool:
            leave_out = leave_out.index_select(1, order)
        elif leave_out is not None:
            leave_out = torch.stack([leave_out[:, 0], order.argsort()[leave_out[:, 1]]], dim=1)
        return cls(order, counts.tolist(), own, weight, right, share, leave_out)

    def hide(self, logits: Tensor, start: int) -> None:
        """Set to minus infinity what the queries from ``start`` on must not see."""
        if self.hidden is None:
            return
        stop = start + len(logits)
        if self.hidden.dtype == torch.bool:
            logits.masked_fill_(self.hidden[start:stop], -torch.inf)
        else:
            row = self.hidden[:, 0]
            pairs = self.hidden[(row >= start) & (row < stop)]
            logits[pairs[:, 0] - start, pairs[:, 1]] = -torch.inf


class _NCA(torch.autograd.Function):
    """The loss with its gradient in one sweep over slices of the queries.

    Autograd would keep half a dozen (queries, keys) matrices and take several times as long.
    """

    @staticmethod
    def forward(
        ctx: Any, queries: Tensor, keys: Tensor, scale: Tensor, prior: Tensor | None, plan: _Plan
    ) -> Tensor:
        slopes = [torch.zeros_like(each) for each in (queries, keys, scale, prior) if each is not None]
        loss = total = scale.new_zeros(())
        rows = max(1, (_CPU_CELLS if keys.device.type == "cpu" else _DEVICE_CELLS) // len(keys))
        with torch.autocast(keys.device.type, enabled=False):
            for start in range(0, len(queries), rows):
                part = slice(start, start + rows)
                near = queries[part] @ keys.T
                if plan.floor is not None:
                    near.clamp_(min=plan.floor[part]).sqrt_().neg_()
                logits = near * scale if prior is None else torch.addcmul(prior, near, scale)
                plan.hide(logits, start)
                each, weight = _derivatives(logits, plan, part)
                loss, total = loss + each, total + weight
                if any(ctx.needs_input_grad):
                    _collect(slopes, logits, near, queries, keys, part, euclidean=plan.floor is not None)
        total = or_one(total)
        ctx.save_for_backward(*(slope * (scale if at < 2 else 1.0) / total for at, slope in enumerate(slopes)))
        return loss / total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        pairs = zip(ctx.needs_input_grad, ctx.saved_tensors, strict=False)
        slopes = [upstream * slope if needed else None for needed, slope in pairs]
        return (*slopes, *[None] * (5 - len(slopes)))


def _derivatives(logits: Tensor, plan: _Plan, part: slice) -> tuple[Tensor, Tensor]:
    """Summed loss and weight of some queries; ``logits`` become the loss's derivatives in place.

    exp(logit - the largest of its label) serves both: one exponential a pair, and no label's share underflows.
    What lies below the root of the smallest normal number is 0, so that no product of two is almost 0.
    """
    least = torch.finfo(logits.dtype).tiny ** 0.5
    blocks = torch.split(logits, plan.counts, dim=1)
    tops = torch.stack([block.amax(dim=1) for block in blocks])  # (labels, queries): each label's side by side
    tops.masked_fill_(tops == -torch.inf, 0.0)
    pairs = zip(blocks, tops, strict=True)
    sums = torch.stack([_powers(block.sub_(top[:, None]), least).sum(dim=1) for block, top in pairs]).T
    there = sums != 0  # also where it is no number: the loss is none either
    each = sums.log() + tops.T
    shares = (each - each.logsumexp(dim=1, keepdim=True)).masked_fill(~there, 0.0)  # logarithms
    own = plan.own[part, None]
    weight = plan.weight[part, None].to(logits) * there.gather(1, own)
    wanted = torch.full_like(sums, plan.share).scatter_add_(1, own, torch.full_like(weight, plan.right)) * there
    slopes = (shares.exp() * wanted.sum(dim=1, keepdim=True) - wanted) * weight / sums.where(there, 1.0)
    slopes.masked_fill_(slopes.abs() < least, 0.0)
    for block, slope in zip(blocks, slopes.T.contiguous(), strict=True):
        block.mul_(slope[:, None])
    return -(weight * wanted * shares).sum(), weight.sum()


def _powers(exponents: Tensor, least: float) -> Tensor:
    """Exp in place, and 0 where that is less than ``least``.

    A processor takes a hundred times as long for results that are almost 0, and for each product with them.
    """
    if exponents.device.type != "cpu":
        return exponents.exp_()
    return torch.threshold_(exponents.clamp_(min=math.log(least) - 1.0).exp_(), least, 0.0)


def _collect(
    slopes: list[Tensor],
    derivatives: Tensor,
    near: Tensor,
    queries: Tensor,
    keys: Tensor,
    part: slice,
    *,
    euclidean: bool,
) -> None:
    """Add what some queries say to the gradients of queries and keys (without the scale), scale, prior if any."""
    slopes[2].add_(torch.dot(derivatives.view(-1), near.view(-1)))
    if len(slopes) > 3:
        slopes[3].add_(derivatives.sum(dim=0))
    if euclidean:  # near = -sqrt(x), whose derivative is 1 / (2 near)
        derivatives.div_(near.mul_(2.0))
    torch.mm(derivatives, keys, out=slopes[0][part])
    slopes[1].addmm_(derivatives.T, queries[part])


def smoothing_share(smoothing: float, classes: int | None) -> float:
    """What label smoothing gives to each class."""
    if not 0 <= smoothing < 1:
        raise InvalidInput(f"smoothing must lie in [0, 1), got {smoothing!r}")
    if smoothing and not classes:
        raise InvalidInput(f"{smoothing=} is spread over all classes: say how many, got {classes=}")
    return smoothing / classes if classes else 0.0


def wide(values: Tensor) -> Tensor:
    """At least float32: half precision has too few digits for a difference of squares or a small chance."""
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values


def or_one(total: Tensor) -> Tensor:
    """A divisor: the total, or 1 where it is 0."""
    return total.where(total > 0, 1.0)
