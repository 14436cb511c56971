"""Token attention as one operation, by the kernels of :mod:`attnknn.ops.triton_tokens`, with its gradient.

The operations are known to torch by name, so that a compiler leaves them as they are. Triton is imported when the
first of them runs: where it is not installed, nothing here is called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from attnknn.errors import InvalidInput
from attnknn.ops.backends import HAS_TRITON, interpreted, launching_on, power

MOST_KEPT: Final = 64
WIDEST: Final = 128
_MOST_LISTED: Final = 32  # keys kept, of which there are half as many again in the running
_FEWEST_LISTED: Final = 128  # tokens
_MANY: Final = 4096  # tokens, from which wider tiles are faster
_PARTS: Final = 64  # places where queries add to the gradient of the factors, so that few meet
_PARTS_ALONE: Final = 512  # and where each is a sum of its own, so that all of the GPU has work
_TYPES: Final = (torch.float32, torch.bfloat16, torch.float16)


def unfit(q: Tensor, k: Tensor, v: Tensor, kept: int, *, matrices: bool, masked: bool) -> str | None:
    """Why the kernels cannot serve, in words; None where they can."""
    if not HAS_TRITON:
        return "Triton is not installed"
    if len({each.device for each in (q, k, v)}) > 1:
        return "the tensors are on several devices"
    if any(each.dtype not in _TYPES for each in (q, k, v)):
        return f"types are {q.dtype}, {k.dtype} and {v.dtype}, not all of 16 or 32 bits"
    if max(q.shape[3], v.shape[3]) > WIDEST:
        return f"heads are {max(q.shape[3], v.shape[3])} wide, more than {WIDEST}"
    if kept > MOST_KEPT:
        return f"{kept} keys are kept, more than {MOST_KEPT}"
    if matrices:
        return "rank_weights are matrices"
    if masked:
        return "there is an attn_mask"
    if not q.numel() or not v.numel():
        return "there are no tokens"
    return None


def fused_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kept: int,
    *,
    scale: float,
    euclidean: bool,
    softmax: bool,
    factors: Tensor | None = None,
    padding: Tensor | None = None,
    keep: Tensor | None = None,
    candidates: Tensor | None = None,
    causal: bool = False,
) -> tuple[Tensor, Tensor]:
    """What each query makes of the keys it keeps (b, h, q, width), and which they are (b, h, q, kept), int32.

    Args:
        q: (b, h, queries, dim).
        k: (b, h, tokens, dim).
        v: (b, h, tokens, width).
        kept: Keys that each query keeps, the query itself among them where there are candidates.
        scale: Factor of the similarities.
        euclidean: Whether distance decides, not the inner product.
        softmax: Whether weights are a softmax.
        factors: (width, ranks) of the values by rank; ranks beyond the kept are not used.
        padding: (b, tokens), True where a key is padding.
        keep: (b, h, queries, kept) factors of the weights.
        candidates: (m,) ascending: only these keys are looked at, behind the query itself.
        causal: Whether a query sees only keys up to its own index.
    """
    if euclidean:  # distances do not change with the origin, but their rounding errors do
        center = k.detach().float().mean(dim=2, keepdim=True)
        q, k = q.float() - center, k.float() - center
    given = q, k, v, factors, padding, keep, candidates, kept, scale, euclidean, softmax, causal
    if torch.compiler.is_compiling():
        out, indices, _ = _forward(*given)
        return out, indices
    out, indices = _Eager.apply(*given)  # type: ignore[no-untyped-call]
    return out, indices


def _run(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    factors: Tensor | None,
    padding: Tensor | None,
    keep: Tensor | None,
    candidates: Tensor | None,
    kept: int,
    scale: float,
    euclidean: bool,
    softmax: bool,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """The result, the kept, and their weights."""
    from attnknn.ops.triton_tokens import select_weigh_combine

    q, k, v = (_rows_dense(each) for each in (q, k, v))
    padding, keep, candidates = (None if one is None else one.contiguous() for one in (padding, keep, candidates))
    out, indices, weights = _made(q, v, kept)
    batch, heads, queries, dim = q.shape
    tokens, sizes, tile, lists = k.shape[2], _padded(q, v, kept), _search_tile(k.shape[2]), None
    listed = candidates is None and not euclidean and kept <= _MOST_LISTED and q.dtype != torch.float32
    if listed and tokens >= _FEWEST_LISTED:
        tile, sizes["RANKS"] = _list_tile(tokens), max(16, power(kept + 6))
        lists = torch.empty(batch * heads * queries, sizes["RANKS"], dtype=torch.int64, device=q.device)
    with launching_on(q.device):
        select_weigh_combine[(batch * heads * -(-queries // tile["ROWS"]),)](
            *(q, k, v, factors, padding, keep, candidates, lists, out, indices, weights),
            *(step for each in (q, k, v, out) for step in each.stride()[:3]),
            *(heads, queries, tokens if candidates is None else len(candidates), tokens, dim, v.shape[3]),
            *(*_steps(factors), scale),
            **sizes,
            **tile,
            HAS_FACTORS=factors is not None,
            HAS_PADDING=padding is not None,
            HAS_KEEP=keep is not None,
            HAS_CANDIDATES=candidates is not None,
            CAUSAL=causal,
            EUCLIDEAN=euclidean,
            SOFTMAX=softmax,
            LISTED=lists is not None,
            EVEN=dim == sizes["DIM"],
            PRECISION="ieee",
            INTERPRETED=interpreted(),
        )
    return out, indices, weights


def _run_back(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    factors: Tensor | None,
    keep: Tensor | None,
    indices: Tensor,
    weights: Tensor,
    scale: float,
    euclidean: bool,
    softmax: bool,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of queries, keys, values and factors; that of no factors is empty."""
    from attnknn.ops.triton_back import back_to_queries

    grad, q, k, v = (_rows_dense(each) for each in (grad, q, k, v))
    batch, heads, queries, dim = q.shape
    tokens, width, kept = k.shape[2], v.shape[3], indices.shape[3]
    sizes, scatter = _padded(q, v, kept), not torch.are_deterministic_algorithms_enabled()
    rows = _query_tile(sizes, scatter)
    blocks = batch * heads * -(-queries // rows)
    to_q, to_scores, near, mixed, parts = _by_token(q, queries), torch.empty_like(weights), None, None, None
    if factors is not None:
        parts = weights.new_zeros(min(blocks, _PARTS if scatter else _PARTS_ALONE), kept, width)
    if scatter:
        room, first = weights.new_zeros(batch * tokens * heads * (dim + width)), batch * tokens * heads * dim
        near, mixed = room[:first], room[first:]
    same = {"EUCLIDEAN": euclidean, "HAS_FACTORS": factors is not None, "HAS_KEEP": keep is not None}
    with launching_on(q.device):
        back_to_queries[(blocks,)](
            *(q, k, v, factors, keep, indices, weights, grad, to_q, near, mixed, to_scores, parts),
            *(step for each in (q, k, v, grad) for step in each.stride()[:3]),
            *(heads, queries, tokens, dim, width, *_steps(factors), 1 if parts is None else len(parts), scale),
            **sizes,
            **same,
            ROWS=rows,
            SOFTMAX=softmax,
            SCATTER=scatter,
            num_warps=1,
        )
        if near is not None and mixed is not None:
            shape = batch, tokens, heads, -1
            to_k, to_v = (
                near.view(shape).to(k.dtype).transpose(1, 2),
                mixed.view(shape).to(v.dtype).transpose(1, 2),
            )
        else:
            to_k, to_v = _summed(
                *(grad, q, k, v, factors, keep, indices, weights, to_scores, parts, causal), sizes, same
            )
    if factors is None or parts is None:
        return to_q, to_k, to_v, grad.new_empty(0)
    to_factors = parts.sum(dim=0).T.to(factors.dtype)
    if factors.shape[1] > kept:  # there are ranks for more keys than there were
        to_factors = torch.nn.functional.pad(to_factors, (0, factors.shape[1] - kept))
    return to_q, to_k, to_v, to_factors


def _summed(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    factors: Tensor | None,
    keep: Tensor | None,
    indices: Tensor,
    weights: Tensor,
    to_scores: Tensor,
    parts: Tensor | None,
    causal: bool,
    sizes: dict[str, int],
    same: dict[str, bool],
) -> tuple[Tensor, Tensor]:
    """Gradients of keys and values; in ``parts`` those of the factors. Each is a sum, the same on every run."""
    from attnknn.ops.triton_back import back_to_factors, back_to_keys

    batch, heads, queries, dim = q.shape
    tokens, width = k.shape[2], v.shape[3]
    to_k, to_v = (_by_token(each, tokens) for each in (k, v))
    rows, columns, warps = _KEY_TILE
    if parts is not None:
        back_to_factors[parts.shape[:2]](
            *(v, keep, indices, weights, grad, parts),
            *(step for each in (v, grad) for step in each.stride()[:3]),
            *(heads, queries, width, batch * heads),
            **{name: sizes[name] for name in ("KEPT", "WIDTH")},
            ROWS=_query_tile(sizes, scatter=False),
            HAS_KEEP=keep is not None,
            num_warps=1,
        )
    back_to_keys[(batch * heads * -(-tokens // columns),)](
        *(q, k, factors, keep, indices, weights, to_scores, grad, to_k, to_v),
        *(step for each in (q, k, grad) for step in each.stride()[:3]),
        *(heads, queries, tokens, dim, width, *_steps(factors)),
        **{name: sizes[name] for name in ("KEPT", "DIM", "WIDTH")},
        **same,
        ROWS=rows,
        COLUMNS=columns,
        CAUSAL=causal,
        WIDE=torch.float16 in (q.dtype, grad.dtype),  # what a key is pulled by may be beyond its range
        PRECISION="ieee" if torch.float32 in (q.dtype, grad.dtype) else "tf32",
        num_warps=warps,
    )
    return to_k, to_v


class _Eager(torch.autograd.Function):
    """Without the detour that an operation takes which is known by name."""

    @staticmethod
    def forward(ctx: Any, *given: Any) -> tuple[Tensor, Tensor]:
        out, indices, weights = _run(*given)
        q, k, v, factors, _, keep, _, _, *told = given
        ctx.mark_non_differentiable(indices)
        ctx.save_for_backward(q, k, v, factors, keep, indices, weights)
        ctx.told = told
        return out, indices

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Any) -> Any:
        # The operation refuses to be differentiated again, which is asked of it where gradients are recorded.
        return _slopes(_backward if torch.is_grad_enabled() else _run_back, ctx, grad)


@torch.library.custom_op("attnknn::token_attention", mutates_args=())
def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    factors: Tensor | None,
    padding: Tensor | None,
    keep: Tensor | None,
    candidates: Tensor | None,
    kept: int,
    scale: float,
    euclidean: bool,
    softmax: bool,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    return _run(q, k, v, factors, padding, keep, candidates, kept, scale, euclidean, softmax, causal)


@_forward.register_fake
def _forward_fake(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    return _made(q, v, rest[4])


def _made(q: Tensor, v: Tensor, kept: int) -> tuple[Tensor, Tensor, Tensor]:
    """Room for the result, for the kept and for their weights."""
    batch, heads, queries = q.shape[:3]
    out = _by_token(v, queries)
    indices = torch.empty(batch, heads, queries, kept, dtype=torch.int32, device=q.device)
    return out, indices, torch.empty_like(indices, dtype=torch.float32)


def _by_token(like: Tensor, tokens: int) -> Tensor:
    """Room for (b, h, tokens, dim) with the tokens before the heads: so these are merged for free."""
    batch, heads, _, dim = like.shape
    return like.new_empty(batch, tokens, heads, dim).transpose(1, 2)


@torch.library.custom_op("attnknn::token_attention_backward", mutates_args=())
def _backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    factors: Tensor | None,
    keep: Tensor | None,
    indices: Tensor,
    weights: Tensor,
    scale: float,
    euclidean: bool,
    softmax: bool,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    to_q, to_k, to_v, to_factors = _run_back(
        grad, q, k, v, factors, keep, indices, weights, scale, euclidean, softmax, causal
    )
    # What an operation returns shares no memory, and sums of another type are copies.
    to_k, to_v = (each.clone() if each.dtype == torch.float32 else each for each in (to_k, to_v))
    return to_q, to_k, to_v, to_factors.contiguous()


@_backward.register_fake
def _backward_fake(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, factors: Tensor | None, *rest: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    to_q, to_k, to_v = (_by_token(each, each.shape[2]) for each in (q, k, v))
    return to_q, to_k, to_v, grad.new_empty(0) if factors is None else factors.new_empty(factors.shape)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    q, k, v, factors, _, keep, _, _, *told = inputs
    _, indices, weights = output
    ctx.mark_non_differentiable(indices, weights)
    ctx.save_for_backward(q, k, v, factors, keep, indices, weights)
    ctx.told = told


def _named_slopes(ctx: Any, grad: Tensor, *_: Any) -> tuple[Any, ...]:
    # Nothing but the operation: a compiler may come by with tensors that hold no numbers.
    return _slopes(_backward, ctx, grad)


def _slopes(run: Callable[..., tuple[Tensor, ...]], ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    q, k, v, factors, keep, indices, weights = ctx.saved_tensors
    to_q, to_k, to_v, to_factors = run(grad, q, k, v, factors, keep, indices, weights, *ctx.told)
    return to_q, to_k, to_v, None if factors is None else to_factors, *[None] * 8


def _refuse(ctx: Any, *_: Any) -> tuple[Any, ...]:
    raise InvalidInput("the fused kernel has no second derivatives; knn_attention(backend='torch') has them")


_forward.register_autograd(_named_slopes, setup_context=_remember)
_backward.register_autograd(_refuse)


def _steps(factors: Tensor | None) -> tuple[int, int]:
    """From channel to channel, and from rank to rank."""
    return (0, 0) if factors is None else (factors.stride(0), factors.stride(1))


def _rows_dense(values: Tensor) -> Tensor:
    """The same with the numbers of each row next to each other."""
    return values if values.stride(3) == 1 or values.shape[3] == 1 else values.contiguous()


def _padded(q: Tensor, v: Tensor, kept: int) -> dict[str, int]:
    """Sizes that the kernels are made for: powers of 2, but for the keys that are kept."""
    dim, width = (max(16, power(each.shape[3])) for each in (q, v))
    return {"KEPT": kept, "RANKS": max(2, power(kept)), "DIM": dim, "WIDTH": width}


def _search_tile(tokens: int) -> dict[str, int]:
    """Queries and keys at a time, for one warp: several would wait for each other at every key that enters."""
    return {"ROWS": 16, "COLUMNS": 32 if tokens < _MANY else 64, "num_warps": 1}


def _list_tile(tokens: int) -> dict[str, int]:
    """The same where keys are listed; with more registers fewer warps would run at a time."""
    return {"ROWS": 64, "COLUMNS": 64, "num_warps": 4, "num_stages": 1 if tokens < 512 else 2, "maxnreg": 128}


def _query_tile(sizes: dict[str, int], scatter: bool) -> int:
    """Queries at a time, for one warp: so few that their gradients stay in registers."""
    return 16 if max(sizes["DIM"], sizes["WIDTH"]) <= (32 if scatter else 64) else 8


_KEY_TILE: Final = 32, 128, 4
"""Queries and keys at a time, and warps."""
