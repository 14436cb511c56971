"""What training minimizes, as pure functions: NCA over the bank, the served vote, SupCon, the weights' entropy."""

from __future__ import annotations

import torch
from torch import Tensor

from attnknn.errors import InvalidInput
from attnknn.ops import fused_shares
from attnknn.ops.backends import Backend, served
from attnknn.ops.combine import evidence
from attnknn.ops.kernels import wide_float
from attnknn.ops.similarity import unit
from attnknn.train.nca import nca, or_one, smoothing_share, wide

__all__ = [
    "candidates",
    "class_shares",
    "hard_negatives",
    "nca",
    "of_groups",
    "robust_loss",
    "served_vote",
    "supcon",
    "weight_entropy",
]


def robust_loss(logs: Tensor, robust: float) -> Tensor:
    """Generalized cross-entropy (1 - p^q) / q of labels, given as log p; q is ``robust``, and 0 means -log p.

    A label that the vote finds impossible costs 1 / q at most, however sure the vote is. So wrong labels do not
    outweigh the others, which -log p would make the vote hedge for.

    >>> robust_loss(torch.tensor([0.25, 1.0]).log(), 0.5).tolist()
    [1.0, -0.0]
    """
    return -logs if not robust else -torch.expm1(robust * logs) / robust


def served_vote(
    weights: Tensor,
    neighbor_labels: Tensor,
    labels: Tensor,
    prior: Tensor,
    mass: float | Tensor,
    *,
    smoothing: float = 0.0,
    robust: float = 0.0,
    sample_weight: Tensor | None = None,
) -> Tensor:
    """Mean NLL of the vote that is served: (evidence + mass * prior) / (1 + mass), as :func:`attnknn.ops.vote`.

    A query whose label has neither evidence nor prior does not count.

    Args:
        weights: (q, k) of the neighbors; they get the gradient.
        neighbor_labels: (q, k) in 0 .. classes - 1; any other is no neighbor.
        labels: (q,) of the queries.
        prior: (classes,) or (q, classes), summing to 1.
        mass: How many neighborhoods the prior is worth; above 0.
        smoothing: Share of the target that is spread evenly over all classes.
        robust: Up to 1: see :func:`robust_loss`; 0 is NLL.
        sample_weight: (q,) weights of the queries in the mean.

    >>> half = torch.tensor([0.5, 0.5])
    >>> found = torch.tensor([[0, 1]]), torch.tensor([0])
    >>> round(served_vote(torch.tensor([[1.0, 0.0]]), *found, half, 1.0).exp().reciprocal().item(), 4)
    0.75
    """
    classes = prior.shape[-1]
    if not isinstance(mass, Tensor) and not mass > 0:
        raise InvalidInput(f"mass must be above 0, or a vote can be infinitely wrong, got {mass!r}")
    share = smoothing_share(smoothing, classes)
    weights, own = wide(weights), labels[:, None]
    prior = prior.to(weights).expand(len(weights), classes)
    if smoothing:
        weighed = evidence(weights, neighbor_labels, classes).to(weights)
        wanted = torch.full_like(weighed, share).scatter_add_(1, own, torch.full_like(prior, 1 - smoothing))
    else:  # only the true label matters: no need for (q, classes)
        prior, weighed = prior.gather(1, own), (weights * (neighbor_labels == own)).sum(dim=1, keepdim=True)
        own, wanted = torch.zeros_like(own), torch.ones_like(weighed)
    known = (neighbor_labels >= 0) & (neighbor_labels < classes)
    total = (weights * known).sum(dim=1, keepdim=True)
    chance = torch.where(total > 0, (weighed + mass * prior) / (total + mass), prior)
    each = (wanted * robust_loss(chance.where(chance > 0, 1.0).log(), robust)).sum(dim=1)
    weight = (chance.gather(1, own)[:, 0] > 0).to(each)
    if sample_weight is not None:
        weight = weight * sample_weight.detach().to(each)
    return (weight * each).sum() / or_one(weight.sum())


def supcon(
    first: Tensor, second: Tensor, labels: Tensor, *, temperature: float = 0.1, margin: float = 0.0
) -> Tensor:
    """Supervised contrastive loss of two views, by cosine: pulls together what shares a label.

    For each of the 2 n views, the mean over its positives of -log softmax over all other views. A view's twin
    is a positive, the view itself never a key.

    Args:
        first: (n, d) one view of each row.
        second: (n, d) the other.
        labels: (n,) integers; a negative one is no label, its view has only its twin.
        temperature: Divides the similarities.
        margin: Is subtracted from those of positives, which must be that much closer.
    """
    if first.shape != second.shape or labels.shape != first.shape[:1]:
        got = f"{tuple(first.shape)}, {tuple(second.shape)} and {tuple(labels.shape)}"
        raise InvalidInput(f"expected two views (n, d) and labels (n,), got {got}")
    if not temperature > 0:
        raise InvalidInput(f"temperature must be above 0, got {temperature!r}")
    if len(first) == 0:
        return first.sum() + second.sum()
    views = unit(wide(torch.cat([first, second])))
    twice, row = labels.repeat(2), torch.arange(len(first), device=labels.device).repeat(2)
    positive = ((twice[:, None] == twice) & (twice >= 0)) | (row[:, None] == row)
    itself = torch.eye(len(views), dtype=torch.bool, device=views.device)
    positive &= ~itself
    with torch.autocast(views.device.type, enabled=False):
        logits = ((views @ views.T - margin * positive) / temperature).masked_fill(itself, -torch.inf)
    log_shares = logits.log_softmax(dim=1).masked_fill(~positive, 0.0)
    return -(log_shares.sum(dim=1) / positive.sum(dim=1)).mean()


def class_shares(
    queries: Tensor,
    keys: Tensor,
    owners: Tensor,
    scale: float | Tensor,
    *,
    leave_out: Tensor | tuple[Tensor, Tensor] | None = None,
    key_prior: Tensor | None = None,
    backend: Backend = "auto",
) -> Tensor:
    """(q, classes) shares of the softmax over all keys, by cosine: what NCA makes grow, for labels of any kind.

    Never makes a GPU wait. torch holds (q, n) matrices, the kernels do not. In float64 where there is one: in
    float32 the share of a class far away would be 0, and pull no more. A query that may see nothing has zeros.

    Args:
        queries: (q, d).
        keys: (n, d).
        owners: (n, classes) how much of each class a key is.
        scale: One number; a tensor gets a gradient.
        leave_out: What a query must not see: (q, n) bool, or groups of the queries (q, any number) and the group
            of each key (n,).
        key_prior: (n,) added to the logits, such as the log of the keys' weights.
        backend: ``torch``, or ``triton`` for kernels that know groups, and keys without a gradient.

    >>> class_shares(torch.eye(2)[:1], torch.eye(2), torch.eye(2), 0.0).tolist()
    [[0.5, 0.5]]
    """
    reason = "leave_out is a matrix" if isinstance(leave_out, Tensor) else None
    own, theirs = (
        leave_out
        if isinstance(leave_out, tuple)
        else (queries.new_zeros(len(queries), 0), keys.new_zeros(len(keys)))
    )
    reason = reason or fused_shares.unfit(queries, keys, owners, own, key_prior)
    with torch.autocast(queries.device.type, enabled=False):
        asked, held = unit(wide(queries)), unit(wide(keys))
        if served(backend, queries.device, reason, "shares of classes", fused_shares.slow(keys, owners)):
            factor = scale.to(asked) if isinstance(scale, Tensor) else asked.new_full((), scale)
            return fused_shares.fused_shares(asked, held, owners, factor, own, theirs, key_prior)
        logits = (scale * (asked @ held.T)).to(wide_float(queries.device))
        hidden = torch.zeros(1, len(keys), dtype=torch.bool, device=keys.device)
        if key_prior is not None:
            logits, hidden = logits + key_prior, (key_prior == -torch.inf)[None]
        if leave_out is not None:
            hidden = hidden | (leave_out if isinstance(leave_out, Tensor) else of_groups(own, theirs))
        blind = hidden.all(dim=1, keepdim=True)
        logits = logits.masked_fill(hidden, -torch.inf).masked_fill(blind, 0.0)
        return (logits.softmax(dim=1) @ owners.to(logits)) * ~blind


def of_groups(own: Tensor, theirs: Tensor) -> Tensor:
    """(q, n) whether the group of a key, (n,), is among those of a query, (q, any number)."""
    return (own[:, :, None] == theirs).any(dim=1)


def hard_negatives(
    queries: Tensor,
    keys: Tensor,
    query_labels: Tensor,
    key_labels: Tensor,
    scale: float | Tensor,
    *,
    hardest: int,
    leave_out: Tensor | None = None,
) -> Tensor:
    """NCA in which of all keys of other labels only the nearest count: those that could win the vote.

    Mean over queries of -log of the mass on the keys of the query's label, by cosine, among these keys and the
    ``hardest`` nearest of other labels. A query that has no allowed key of its label does not count.

    Args:
        queries: (q, d).
        keys: (n, d).
        query_labels: (q,) integers.
        key_labels: (n,) integers.
        scale: One number.
        hardest: How many keys of other labels each query meets.
        leave_out: (q, n) bool, what a query must not see.

    >>> query, keys, labels = torch.eye(2)[:1], torch.eye(2), torch.tensor([0, 1])
    >>> round(hard_negatives(query, keys, labels[:1], labels, 2.0, hardest=5).item(), 4)  # log(1 + e^-2)
    0.1269
    """
    with torch.autocast(queries.device.type, enabled=False):
        logits = scale * (unit(wide(queries)) @ unit(wide(keys)).T)
    if leave_out is not None:
        logits = logits.masked_fill(leave_out, -torch.inf)
    right = query_labels[:, None] == key_labels
    own = logits.masked_fill(~right, -torch.inf).logsumexp(dim=1)
    wrong = logits.masked_fill(right, -torch.inf).topk(min(hardest, keys.shape[0]), dim=1).values.logsumexp(dim=1)
    known = own > -torch.inf
    gap = torch.where(known & (wrong > -torch.inf), wrong - own.where(known, 0.0), -torch.inf)
    each = torch.nn.functional.softplus(gap.clamp(min=-1e4))
    return (each * known).sum() / or_one(known.sum())


def weight_entropy(weights: Tensor) -> Tensor:
    """Mean entropy of the rows of (q, k) weights, in nats; a weight of 0 adds nothing and gets no gradient.

    >>> round(weight_entropy(torch.tensor([[0.5, 0.5], [1.0, 0.0]])).item(), 4)  # log(2) / 2
    0.3466
    """
    return -(weights * weights.where(weights > 0, 1.0).log()).sum(dim=-1).mean()


def candidates(count: int, share: float, random: torch.Generator) -> Tensor:
    """Rows to keep in one step of candidate dropout: ``share`` of ``count``, at least one, ascending.

    >>> len(candidates(10, 0.3, torch.Generator().manual_seed(0)))
    3
    """
    if count < 1 or not 0 < share <= 1:
        raise InvalidInput(f"expected count of at least 1 and a share in (0, 1], got {count=}, {share=}")
    if share == 1:
        return torch.arange(count, device=random.device)
    drawn = torch.randperm(count, generator=random, device=random.device)
    return drawn[: max(1, round(share * count))].sort().values
