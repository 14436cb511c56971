"""Scores and sums along the links from queries to the keys they keep, with backward passes that hold nothing else.

A link joins one query to one key. Rows of a table are summed by ``embedding_bag``, which gathers, weighs and adds
at once: neither the neighbors' vectors (tokens, k, dim), unless they are few, nor anything quadratic in the tokens
is written down.
Backwards, the same sums run over the links sorted by key, so that gradients too are the same on every run.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import conv1d, embedding_bag

from attnknn.ops.tokens import by_numpy

_PIECE = 2**19  # numbers of a table worked on at a time on the CPU, so that they stay in cache
_LARGE_PIECE = 2**25  # and on other devices
_FEW = 2**16  # numbers of the neighbors of a batch that are added up in the order of the reference, on the CPU


class Links(NamedTuple):
    """Links of (batch, queries, heads) tokens to k keys each, with batch, token and head flattened to one row."""

    rows: Tensor  # (b * q * h, k) row of each key, which is (batch * keys + key) * heads + head
    order: Tensor  # (links,) the links sorted by the row of their key; empty where no gradient is wanted
    starts: Tensor  # (b * n * h + 1,) where the links of each key begin in that order


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Autocast off: sums here are at least float32. A meta tensor, which only has a shape, has no autocast."""
    if device.type == "meta" or not torch.is_autocast_enabled(device.type):
        return nullcontext()
    return torch.autocast(device.type, enabled=False)


def linked(indices: Tensor, keys: int, *, backward: bool) -> Links:
    """Links to keys ``indices`` (batch, heads, queries, k), each below ``keys``; sorted if ``backward``."""
    batch, heads = indices.shape[:2]
    device = indices.device
    base = torch.arange(batch, device=device)[:, None, None, None] * keys
    head = torch.arange(heads, device=device)[:, None]
    rows = ((indices.transpose(1, 2) + base) * heads + head).flatten(0, 2)
    if not backward:
        return Links(rows, rows.new_empty(0), rows.new_empty(0))
    ranked, order = _sorted(rows.flatten())
    starts = torch.searchsorted(ranked, torch.arange(batch * keys * heads + 1, device=device))
    return Links(rows, order, starts)


def _sorted(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Rows in ascending order, and where each was; equal ones keep their order."""
    if not by_numpy(rows.device):
        ranked, order = rows.sort(stable=True)
        return ranked, order
    # A row and its place in one integer: sorting those is several times as fast as a stable sort.
    both = torch.from_numpy(np.sort(((rows << 32) | torch.arange(len(rows))).numpy()))
    return both >> 32, both & 0xFFFFFFFF


def scores_at(q: Tensor, k: Tensor, links: Links, known: Tensor | None = None) -> Tensor:
    """Inner products (batch, heads, queries, k) of queries and the keys they are linked to.

    Args:
        q: (batch, heads, queries, dim).
        k: (batch, heads, keys, dim).
        links: Which keys.
        known: The products, where the search has them already; only their gradient is then computed.
    """
    scores: Tensor = _Products.apply(q, k, *links, known)  # type: ignore[no-untyped-call]
    return scores


def squared_distances_at(q: Tensor, k: Tensor, links: Links) -> Tensor:
    """Squared Euclidean distances to the keys; by subtraction, so that equal vectors are at exactly 0."""
    squares: Tensor = _SquaredDistances.apply(q, k, *links)  # type: ignore[no-untyped-call]
    return squares


def combine_at(weights: Tensor, v: Tensor, links: Links, rank_weights: Tensor | None = None) -> Tensor:
    """Weighted sums (batch, heads, queries, dim_out) of the values at the keys.

    Args:
        weights: (batch, heads, queries, k).
        v: (batch, heads, keys, dim).
        links: Which keys.
        rank_weights: What a value is multiplied with by rank: (dim, k), a factor for each channel, or
            (dim_out, dim, k), a matrix: a convolution over rank. None leaves values as they are.
    """
    if rank_weights is None:
        mixed: Tensor = _Sums.apply(weights, v, *links)  # type: ignore[no-untyped-call]
    elif rank_weights.ndim == 2:
        mixed = _ChannelSums.apply(weights, v, rank_weights, *links)  # type: ignore[no-untyped-call]
    elif _few(links.rows, v):
        mixed = _convolved(weights, v, rank_weights, links)
    else:
        mixed = _MatrixSums.apply(weights, v, rank_weights, *links)  # type: ignore[no-untyped-call]
    return mixed


def _convolved(weights: Tensor, v: Tensor, kernel: Tensor, links: Links) -> Tensor:
    """The sums by a convolution of all neighbors side by side, with a stride of as many as a query has.

    It rounds, forwards and backwards, as the reference does; with many neighbors sums by rank take half the time.
    """
    batch, heads, keys, dim = v.shape
    queries, ranks = weights.shape[2:]
    wide = v if v.dtype in (torch.float32, torch.float64) else v.float()
    at = links.rows.view(batch, queries, heads, ranks).transpose(1, 2).flatten(0, 1) // heads % keys
    values = wide.transpose(2, 3).flatten(0, 1)[..., None].expand(-1, -1, -1, ranks)
    near = values.gather(2, at[:, None].expand(-1, dim, -1, -1))  # (batch * heads, dim, queries, k)
    near = near * weights.flatten(0, 1)[:, None].to(wide.dtype)
    mixed = conv1d(near.flatten(2), kernel.to(wide.dtype), stride=ranks)
    return mixed.transpose(1, 2).view(batch, heads, queries, len(kernel)).to(v.dtype)


def _few(rows: Tensor, values: Tensor) -> bool:
    """Whether neighbors are so few, and on the CPU, that how sums are rounded counts more than what they cost.

    Each batch is judged alone, so that others decide no more than the last bits of a convolution's sums.
    """
    batch, heads, keys, dim = values.shape
    most = max(len(rows) // max(1, batch), heads * keys) * rows.shape[1] * dim
    return rows.device.type == "cpu" and len(rows) > 0 and most <= _FEW


def _flat(values: Tensor) -> Tensor:
    """(b, h, n, c) as rows (b * n * h, c), a view if the heads were split from a projection; at least float32."""
    rows = values.transpose(1, 2).flatten(0, 2)
    return rows if rows.dtype in (torch.float32, torch.float64) else rows.float()


def _heads(rows: Tensor, like: Tensor) -> Tensor:
    """Rows (b * n * h, c) as (b, h, n, c) and in the precision of ``like``, whose b, h and n they have."""
    batch, heads, tokens = like.shape[:3]
    return rows.view(batch, tokens, heads, rows.shape[-1]).transpose(1, 2).to(like.dtype)


def _gathered(table: Tensor, rows: Tensor, weights: Tensor) -> Tensor:
    """(r, c) sums of the rows (r, k) of a table (n, c), weighted (r, k)."""
    return embedding_bag(rows, table, mode="sum", per_sample_weights=weights.contiguous())


def _scattered(table: Tensor, weights: Tensor, order: Tensor, starts: Tensor) -> Tensor:
    """(keys, c) sums over the links of each key: rows of a table (queries, c), weighted (queries, k)."""
    source = order.div(weights.shape[1], rounding_mode="floor")
    sorted_weights = weights.flatten()[order]
    return embedding_bag(
        source, table, starts, mode="sum", per_sample_weights=sorted_weights, include_last_offset=True
    )


class _Products(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, rows: Tensor, order: Tensor, starts: Tensor, known: Tensor | None
    ) -> Tensor:
        ctx.save_for_backward(q, k, rows, order, starts)
        if known is not None:
            return known.clone()
        asked, keys = _flat(q), _flat(k)
        found = [(asked * keys[rows[:, rank]]).sum(dim=-1) for rank in range(rows.shape[1])]
        return _by_query(torch.stack(found, dim=-1), q)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, rows, order, starts = ctx.saved_tensors
        grad = _flat(grads[0])
        by_key, to_keys = rows, grad
        if _few(rows, k):  # by key, as a product with the matrix of all scores adds up
            by_key, at = rows.sort(dim=1)
            to_keys = grad.gather(1, at)
        to_q = _gathered(_flat(k), by_key, to_keys)
        to_k = _scattered(_flat(q), grad, order, starts)
        return _heads(to_q, q), _heads(to_k, k), None, None, None, None


class _SquaredDistances(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, rows: Tensor, order: Tensor, starts: Tensor) -> Tensor:
        ctx.save_for_backward(q, k, rows, order, starts)
        asked, keys = _flat(q), _flat(k)
        found = [(asked - keys[rows[:, rank]]).square().sum(dim=-1) for rank in range(rows.shape[1])]
        return _by_query(torch.stack(found, dim=-1), q)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, rows, order, starts = ctx.saved_tensors
        grad, asked, keys = 2 * _flat(grads[0]), _flat(q), _flat(k)
        to_q = grad.sum(dim=-1, keepdim=True) * asked - _gathered(keys, rows, grad)
        total = _scattered(asked.new_ones(len(asked), 1), grad, order, starts)
        to_k = total * keys - _scattered(asked, grad, order, starts)
        return _heads(to_q, q), _heads(to_k, k), None, None, None


class _Sums(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weights: Tensor, v: Tensor, rows: Tensor, order: Tensor, starts: Tensor) -> Tensor:
        ctx.save_for_backward(weights, v, rows, order, starts)
        values = _flat(v)
        return _heads(_gathered(values, rows, _flat(weights).to(values.dtype)), _like(weights, v))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        weights, v, rows, order, starts = ctx.saved_tensors
        grad, values = _flat(grads[0]), _flat(v)
        to_weights = [(grad * values[rows[:, rank]]).sum(dim=-1) for rank in range(rows.shape[1])]
        to_v = _scattered(grad, _flat(weights).to(grad.dtype), order, starts)
        return _heads(torch.stack(to_weights, dim=-1), weights), _heads(to_v, v), None, None, None


class _ChannelSums(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, weights: Tensor, v: Tensor, factors: Tensor, rows: Tensor, order: Tensor, starts: Tensor
    ) -> Tensor:
        ctx.save_for_backward(weights, v, factors, rows, order, starts)
        values = _flat(v)
        shares, by_rank = _flat(weights).to(values.dtype), factors.to(values.dtype).T
        mixed = values.new_zeros(len(rows), values.shape[1])
        for rank, factor in enumerate(by_rank.contiguous()):
            one = slice(rank, rank + 1)
            mixed.addcmul_(_gathered(values, rows[:, one].contiguous(), shares[:, one]), factor)
        return _heads(mixed, _like(weights, v))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        weights, v, factors, rows, order, starts = ctx.saved_tensors
        grad, values = _flat(grads[0]), _flat(v)
        shares, by_rank = _flat(weights).to(grad.dtype), factors.to(grad.dtype).T.contiguous()
        to_weights, to_factors = torch.empty_like(shares), torch.empty_like(by_rank)
        with without_autocast(grad.device):  # a backward pass may be asked for within autocast, too
            for rank, factor in enumerate(by_rank):
                product = values.index_select(0, rows[:, rank]).mul_(grad)
                to_weights[:, rank] = product @ factor
                to_factors[rank] = shares[:, rank] @ product
        to_v = _ranked_back(grad, by_rank, shares, order, starts, len(v))
        return _heads(to_weights, weights), _heads(to_v, v), to_factors.T.to(factors.dtype), None, None, None


class _MatrixSums(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, weights: Tensor, v: Tensor, matrices: Tensor, rows: Tensor, order: Tensor, starts: Tensor
    ) -> Tensor:
        ctx.save_for_backward(weights, v, matrices, rows, order, starts)
        values = _flat(v)
        shares, by_rank = _flat(weights).to(values.dtype), matrices.to(values.dtype).permute(2, 1, 0).contiguous()
        mixed = values.new_zeros(len(rows), matrices.shape[0])
        for rank, matrix in enumerate(by_rank):
            one = slice(rank, rank + 1)
            mixed.addmm_(_gathered(values, rows[:, one].contiguous(), shares[:, one]), matrix)
        return _heads(mixed, _like(weights, v))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        weights, v, matrices, rows, order, starts = ctx.saved_tensors
        grad, values = _flat(grads[0]), _flat(v)
        shares, by_rank = _flat(weights).to(grad.dtype), matrices.to(grad.dtype).permute(2, 0, 1).contiguous()
        to_weights, to_matrices = torch.empty_like(shares), torch.empty_like(by_rank)
        with without_autocast(grad.device):
            for rank, matrix in enumerate(by_rank):
                near = values.index_select(0, rows[:, rank])
                to_weights[:, rank] = ((grad @ matrix) * near).sum(dim=-1)
                to_matrices[rank] = grad.T @ (near * shares[:, rank, None])
            to_v = _ranked_back(grad, by_rank, shares, order, starts, len(v))
        to_given = to_matrices.permute(1, 2, 0).to(matrices.dtype)
        return _heads(to_weights, weights), _heads(to_v, v), to_given, None, None, None


def _ranked_back(
    grad: Tensor, by_rank: Tensor, weights: Tensor, order: Tensor, starts: Tensor, batch: int
) -> Tensor:
    """(keys, c) sums over the links of each key, whose gradients pass the factors or the matrix of their rank.

    A few batches at a time: links stay within a batch, and the table of one is as large as all its neighbors.
    """
    if torch.compiler.is_compiling():  # which would make a graph for every number of times
        named: Tensor = _named_ranked_back(grad, by_rank, weights, order, starts, batch)
        return named
    queries, keys, ranks = len(grad) // max(1, batch), (len(starts) - 1) // max(1, batch), weights.shape[1]
    shares = weights.flatten()[order]
    step = max(
        1, (_PIECE if by_numpy(grad.device) else _LARGE_PIECE) // max(1, queries * ranks * by_rank.shape[-1])
    )
    parts = []
    for first in range(0, batch, step):
        last = min(first + step, batch)
        few = grad[first * queries : last * queries]
        table = few[:, None] * by_rank if by_rank.ndim == 2 else torch.einsum("ro,koc->rkc", few, by_rank)
        links = slice(first * queries * ranks, last * queries * ranks)
        parts.append(
            embedding_bag(
                order[links] - links.start,
                table.flatten(0, 1),
                starts[first * keys : last * keys + 1] - links.start,
                mode="sum",
                per_sample_weights=shares[links],
                include_last_offset=True,
            )
        )
    return torch.cat(parts) if parts else grad.new_empty(0, by_rank.shape[-1])


@torch.library.custom_op("attnknn::sums_back_to_keys", mutates_args=())
def _named_ranked_back(
    grad: Tensor, by_rank: Tensor, weights: Tensor, order: Tensor, starts: Tensor, batch: int
) -> Tensor:
    return _ranked_back(grad, by_rank, weights, order, starts, batch)


@_named_ranked_back.register_fake
def _ranked_back_fake(
    grad: Tensor, by_rank: Tensor, weights: Tensor, order: Tensor, starts: Tensor, _: int
) -> Tensor:
    return grad.new_empty(starts.shape[0] - 1, by_rank.shape[-1])  # len would fix the number


def _by_query(scores: Tensor, q: Tensor) -> Tensor:
    batch, heads, tokens = q.shape[:3]
    return scores.view(batch, tokens, heads, scores.shape[-1]).transpose(1, 2)


def _like(weights: Tensor, v: Tensor) -> Tensor:
    """The batch, heads and queries of the weights with the precision of the values, without memory."""
    return v.new_empty(1).expand(*weights.shape[:3], 1)
