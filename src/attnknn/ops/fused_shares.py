"""Shares of classes in the softmax over all keys, by the kernels of :mod:`attnknn.ops.triton_shares`."""

from __future__ import annotations

import math
from typing import Any, Final

import torch
from torch import Tensor

from attnknn.errors import InvalidInput
from attnknn.ops.backends import HAS_TRITON, interpreted, launching_on, power
from attnknn.ops.kernels import wide_float

WIDEST: Final = 256
_SHARED: Final = 600  # bytes for each number of a vector and each class: at most 229,760 for 256 and 128
_RANGE: Final = 80.0
_MOST_CLASSES: Final = 127  # beside them are all keys
_MOST_GROUPS: Final = 4
_STEEPEST: Final = 1e36  # a slope: what is steeper meets no mass of its range
_FEWEST: Final = 4096  # keys
_NARROW: Final = 160  # a vector's numbers and classes: 144 were seen to take a third of torch's time, 384 twice
_AT_ONCE: Final = 264  # programs, two for each multiprocessor of a large GPU


def unfit(queries: Tensor, keys: Tensor, owners: Tensor, own: Tensor, beside: Tensor | None) -> str | None:
    """Why the kernels cannot serve, in words; None where they can."""
    if not HAS_TRITON:
        return "Triton is not installed"
    if any(each.requires_grad for each in (keys, owners, *(() if beside is None else (beside,)))):
        return "keys ask for a gradient"
    if torch.float64 in (queries.dtype, keys.dtype):
        return "vectors are float64"
    if queries.shape[1] > WIDEST:
        return f"vectors are {queries.shape[1]} wide, more than {WIDEST}"
    if owners.shape[1] > _MOST_CLASSES:
        return f"there are {owners.shape[1]} classes, more than {_MOST_CLASSES}"
    if own.shape[1] > _MOST_GROUPS:
        return f"a query is of {own.shape[1]} groups, more than {_MOST_GROUPS}"
    if queries.is_cuda:
        needed = _SHARED * _width(keys, owners)
        properties = torch.cuda.get_device_properties(queries.device)
        there = getattr(properties, "shared_memory_per_block_optin", needed)  # not every torch tells
        if needed > there:
            return f"so wide vectors and so many classes take {needed} bytes of shared memory; the GPU has {there}"
    if not queries.numel() or not keys.numel() or not owners.numel():
        return "there are no queries or no keys"
    return None


def slow(keys: Tensor, owners: Tensor) -> str | None:
    """Why torch is faster, in words; None where it is not."""
    if len(keys) < _FEWEST:
        return f"there are fewer than {_FEWEST:,} keys"
    if _width(keys, owners) > _NARROW:
        return f"{keys.shape[1]} dimensions and {owners.shape[1]} classes are many for the kernels"
    return None


def fused_shares(
    queries: Tensor,
    keys: Tensor,
    owners: Tensor,
    scale: Tensor,
    own: Tensor,
    theirs: Tensor,
    key_prior: Tensor | None = None,
) -> Tensor:
    """(q, classes) shares of the softmax of ``scale * q.k + key_prior`` over the keys of other groups.

    In float64 where there is one. A query that may see nothing has zeros. Queries and the scale get gradients.

    Args:
        queries: (q, d) float32 of length 1 at most.
        keys: (n, d), likewise.
        owners: (n, classes) how much of each class a key is.
        scale: One number.
        own: (q, any number) groups of a query.
        theirs: (n,) the group of a key.
        key_prior: (n,) added to the logits; minus infinity hides a key.
    """
    offsets = queries.new_zeros(len(keys)) if key_prior is None else key_prior.float().contiguous()
    shown = offsets > -torch.inf
    least, most = torch.where(shown, offsets, torch.inf).min(), torch.where(shown, offsets, -torch.inf).max()
    scale = scale.float().reshape(())
    steep = scale.detach().abs()
    top = steep + torch.where(most == -torch.inf, 0.0, most)
    spread = 2 * steep + torch.where(shown.any(), most - least, 0.0)
    of = torch.nn.functional.pad(owners.float(), (0, 1), value=1.0)  # behind the classes: all keys
    sums = _sums(
        *(queries, _halved(keys.float()), _halved(of), offsets),
        *(own.contiguous(), theirs.contiguous(), scale, top, spread),
    )
    units = torch.exp(-_RANGE * torch.arange(3, device=sums.device, dtype=wide_float(sums.device)))
    whole = (sums * units[:, None, None]).sum(dim=0)
    classes, total = whole[:, :-1], whole[:, -1:]
    return torch.where(total == 0, 0.0, classes / torch.where(total == 0, 1.0, total))


@torch.library.custom_op("attnknn::halved", mutates_args=())
def _halved(values: Tensor) -> Tensor:
    """(2, ...) numbers of 16 bits, two of which add up to what is as good as one of 32.

    A compiler must not look within: it would leave out the rounding, and nothing would be left for the second.
    """
    coarse = values.bfloat16()
    return torch.stack([coarse, (values - coarse.float()).bfloat16()])


@_halved.register_fake
def _halved_fake(values: Tensor) -> Tensor:
    return values.new_empty(2, *values.shape, dtype=torch.bfloat16)


@torch.library.custom_op("attnknn::class_sums", mutates_args=())
def _sums(
    queries: Tensor,
    keys: Tensor,
    owners: Tensor,
    offsets: Tensor,
    own: Tensor,
    theirs: Tensor,
    scale: Tensor,
    top: Tensor,
    spread: Tensor,
) -> Tensor:
    """(3, q, classes + 1): masses of the keys of each class, and of all, in three ranges."""
    from attnknn.ops import triton_shares

    given, sizes, fixed = _told(queries, keys, owners, offsets, own, theirs)
    grid = _grid(len(queries), keys.shape[1])
    sums = queries.new_empty(grid[1], 3, len(queries), owners.shape[2], dtype=torch.float32)
    with launching_on(queries.device):
        triton_shares.class_sums[grid](*given, scale, top, spread, sums, *sizes, **fixed)
    return sums.sum(dim=0)


@_sums.register_fake
def _sums_fake(queries: Tensor, keys: Tensor, owners: Tensor, *rest: Any) -> Tensor:
    return queries.new_empty(3, queries.shape[0], owners.shape[2], dtype=torch.float32)  # len would fix the number


@torch.library.custom_op("attnknn::class_sums_backward", mutates_args=())
def _back(
    slopes: Tensor,
    queries: Tensor,
    keys: Tensor,
    owners: Tensor,
    offsets: Tensor,
    own: Tensor,
    theirs: Tensor,
    scale: Tensor,
    top: Tensor,
    spread: Tensor,
) -> tuple[Tensor, Tensor]:
    """Gradients of the queries and of the scale."""
    from attnknn.ops import triton_shares

    given, sizes, fixed = _told(queries, keys, owners, offsets, own, theirs)
    grid = _grid(len(queries), keys.shape[1])
    slopes = slopes.clamp(-_STEEPEST, _STEEPEST).contiguous()
    to_q = queries.new_empty(grid[1], *queries.shape, dtype=torch.float32)
    to_scale = queries.new_empty(grid[1], len(queries), dtype=torch.float32)
    with launching_on(queries.device):
        triton_shares.back_to_queries[grid](*given, scale, top, spread, slopes, to_q, to_scale, *sizes, **fixed)
    return scale * to_q.sum(dim=0), to_scale.sum()


@_back.register_fake
def _back_fake(slopes: Tensor, queries: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(queries, dtype=torch.float32), slopes.new_empty(())


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _slopes(ctx: Any, slopes: Tensor) -> tuple[Any, ...]:
    to_q, to_scale = _back(slopes, *ctx.saved_tensors)
    return to_q, *[None] * 5, to_scale, None, None


def _refuse(ctx: Any, *_: Any) -> tuple[Any, ...]:
    raise InvalidInput("the fused kernel has no second derivatives; class_shares(backend='torch') has them")


_sums.register_autograd(_slopes, setup_context=_remember)
_back.register_autograd(_refuse)


def _told(
    queries: Tensor, keys: Tensor, owners: Tensor, *rest: Tensor
) -> tuple[tuple[Tensor, ...], tuple[int, ...], dict[str, int]]:
    """What both kernels are given, how much of it there is, and the sizes that they are made for."""
    own, dim, classes = rest[1], queries.shape[1], owners.shape[2]
    given = *_halved(queries), *keys, *owners, *rest
    fixed = {**_widths(dim, classes), "GROUPS": own.shape[1], **_tile(), "INTERPRETED": interpreted()}
    return given, (len(queries), keys.shape[1], dim, classes, own.shape[1]), fixed


def _widths(dim: int, classes: int) -> dict[str, int]:
    """Room for the numbers of a vector, and for classes."""
    return {"DIM": max(16, power(dim)), "CLASSES": max(16, power(classes))}


def _width(keys: Tensor, owners: Tensor) -> int:
    """Both together; behind the classes are all keys."""
    return sum(_widths(keys.shape[1], owners.shape[1] + 1).values())


def _grid(queries: int, keys: int) -> tuple[int, int]:
    """Blocks of queries, and parts that the keys are cut into, so that all of the GPU has work."""
    tile = _tile()
    blocks = -(-queries // tile["ROWS"])
    return blocks, max(1, min(-(-keys // tile["COLUMNS"]), math.ceil(_AT_ONCE / blocks)))


def _tile() -> dict[str, int]:
    """How many queries and keys at a time, by how many warps, with how many tiles of keys under way."""
    return {"ROWS": 64, "COLUMNS": 32, "num_warps": 4, "num_stages": 2}
