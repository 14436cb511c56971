"""A trial: the first two kernels of exact search for Hopper's own products, beside those that are shipped.

On this chip a product runs while other instructions do, if the kernel says so. Here one tile of keys is multiplied
while the scores of the tile before are gone through, and tiles come by the copy engine. The queries stay in
registers or in shared memory. This needs Gluon, the part of Triton that is still called experimental. So far it
has been compiled for the chip and no more: whether it is right and how fast it is, a run must tell.

    python benchmarks/hopper_search.py            # checks the neighbors, then times each shape of a tile
    python benchmarks/hopper_search.py --help

Needs a GPU of compute capability 9.0.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from attnknn.ops import exact_topk, fused_search, prepare
from attnknn.ops.backends import power
from attnknn.ops.triton_lists import DEAD, LOWEST, column_of, pack, score_of

LANES = gl.constexpr(4)  # threads that share a row of a product: each has a list of its own, so none asks another
RANK = gl.constexpr(20)
_barrier = getattr(gl, "barrier", None) or gl.thread_barrier  # as versions before 3.7 call it


def _assembler() -> str:
    """Writes down those of two keys that reach their floors, and counts them; mostly neither does.

    Operands, two of each: counts to come, scores, floors, columns, counts, lists, places that there are.
    """
    new, score, floor, column, count, own, places = range(0, 14, 2)
    each = range(2)
    return "\n".join(
        [
            "{ .reg .pred p<2>, some; .reg .b64 to;",
            *(f"mov.b32 ${new + at}, ${count + at};" for at in each),
            *(f"setp.geu.f32 p{at}, ${score + at}, ${floor + at};" for at in each),
            "or.pred some, p0, p1;",
            "@!some bra NONE;",
            *(
                f"@p{at} add.s32 ${new + at}, ${count + at}, 1; "
                f"setp.lt.and.s32 p{at}, ${count + at}, ${places + at}, p{at}; "
                f"mad.wide.u32 to, ${count + at}, 8, ${own + at}; "
                f"@p{at} st.global.v2.b32 [to + 8], {{${column + at}, ${score + at}}};"
                for at in each
            ),
            "NONE: }",
        ]
    )


_WRITE = gl.constexpr(_assembler())


@gluon.jit
def _write_some(scores, start, floor, own, count, within, ROOM: gl.constexpr, LISTS: gl.constexpr):
    """Of scores (rows, groups, lanes) the keys that reach the floor; of a group lane t has ``start + 2 * t``."""
    rows: gl.constexpr = scores.shape[0]
    groups: gl.constexpr = scores.shape[1]
    if groups > 1:
        left, right = gl.split(scores.reshape([rows, 2, groups // 2, LANES]).permute((0, 2, 3, 1)))
        count = _write_some(left, start, floor, own, count, within, ROOM, LISTS)
        count = _write_some(right, start + 4 * groups, floor, own, count, within, ROOM, LISTS)
    else:
        count = gl.inline_asm_elementwise(
            _WRITE,
            "=&r,=&r,f,f,f,f,r,r,r,r,l,l,r,r",
            [
                gl.convert_layout(scores.reshape([rows, LANES]), LISTS, assert_trivial=True),
                floor,
                start + within,
                count,
                own.to(gl.int64),
                gl.full([rows, LANES], ROOM - 1, gl.int32, LISTS),
            ],
            dtype=gl.int32,
            is_pure=False,
            pack=2,
        )
    return count


@gluon.jit
def _scaled(scores, start, factor, offsets, there, OFFSETS: gl.constexpr, WHOLE: gl.constexpr, MMA: gl.constexpr):
    columns = start + gl.arange(0, scores.shape[1], gl.SliceLayout(0, MMA))
    if OFFSETS:
        if WHOLE:
            beside = gl.load(offsets + columns)
        else:
            beside = gl.load(offsets + columns, mask=columns < there, other=float("-inf"))
        scores = scores * factor[:, None] + beside[None, :]
    elif not WHOLE:
        scores = gl.where((columns < there)[None, :], scores, float("-inf"))
    return scores


@gluon.jit
def _taken(
    scores,
    tile,
    factor,
    offsets,
    there,
    floor,
    own,
    state,
    within,
    ROOM: gl.constexpr,
    SAMPLE: gl.constexpr,
    OFFSETS: gl.constexpr,
    WHOLE: gl.constexpr,
    MMA: gl.constexpr,
    LISTS: gl.constexpr,
):
    """What there is after one tile: of a sample the maxima of its groups, else the counts of the lists."""
    rows: gl.constexpr = scores.shape[0]
    columns: gl.constexpr = scores.shape[1]
    scores = _scaled(scores, tile * columns, factor, offsets, there, OFFSETS, WHOLE, MMA)
    if SAMPLE:
        state = gl.maximum(state, scores)
    else:
        even, odd = gl.split(scores.reshape([rows, columns // 8, LANES, 2]))
        state = _write_some(even, tile * columns, floor, own, state, within, ROOM, LISTS)
        state = _write_some(odd, tile * columns + 1, floor, own, state, within, ROOM, LISTS)
    return state


@gluon.jit
def _of_rank(values, RANKED: gl.constexpr):
    top = gl.max(values, axis=1)
    for _ in range(1, RANKED):
        values = gl.where(values == top[:, None], float("-inf"), values)
        top = gl.max(values, axis=1)
    return gl.maximum(top, LOWEST)


@gluon.jit
def sweep(
    queries,
    keys,
    factors,
    offsets,
    floors,
    lists,
    asking,
    there,
    step,
    ROOM: gl.constexpr,
    DIM: gl.constexpr,
    ROWS: gl.constexpr,
    COLUMNS: gl.constexpr,
    STAGES: gl.constexpr,
    SAMPLE: gl.constexpr,
    OFFSETS: gl.constexpr,
    HELD: gl.constexpr,
    MMA: gl.constexpr,
    LISTS: gl.constexpr,
):
    """Goes over every ``step``-th tile of keys: for a SAMPLE to find floors, else to list what reaches these.

    With HELD the queries are in registers. A sample has whole tiles only; of each part there is one at least.
    """
    first, part = gl.program_id(0) * ROWS, gl.program_id(1)
    tiles = there // COLUMNS if SAMPLE else gl.cdiv(there, COLUMNS)
    total = (tiles - part + step - 1) // step
    bars = gl.allocate_shared_memory(gl.int64, [STAGES + 1, 1], mbarrier.MBarrierLayout())
    for at in gl.static_range(STAGES + 1):
        mbarrier.init(bars.index(at), count=1)
    asked = gl.allocate_shared_memory(queries.dtype, [ROWS, DIM], queries.layout)
    near = gl.allocate_shared_memory(keys.dtype, [STAGES, COLUMNS, DIM], keys.layout)
    mbarrier.expect(bars.index(STAGES), queries.block_type.nbytes)
    tma.async_copy_global_to_shared(queries, [first, 0], bars.index(STAGES), asked)
    for at in gl.static_range(STAGES):
        mbarrier.expect(bars.index(at), keys.block_type.nbytes, pred=at < total)
        tma.async_copy_global_to_shared(
            keys, [(part + at * step) * COLUMNS, 0], bars.index(at), near.index(at), pred=at < total
        )
    rows = first + gl.arange(0, ROWS, gl.SliceLayout(1, LISTS))
    lane = gl.arange(0, LANES, gl.SliceLayout(0, LISTS))
    known, none = rows < asking, gl.zeros([ROWS, LANES], gl.int32, LISTS)
    mma_rows = first + gl.arange(0, ROWS, gl.SliceLayout(1, MMA))
    factor = gl.load(factors + mma_rows, mask=mma_rows < asking, other=0.0)
    within = none + (2 * lane)[None, :]
    own = lists + ((rows.to(gl.int64) * gl.num_programs(1) + part)[:, None] * LANES + lane[None, :]) * ROOM
    floor = gl.load(floors + rows, mask=known, other=float("inf"))[:, None] + none.to(gl.float32)
    if SAMPLE:
        state = gl.full([ROWS, COLUMNS], float("-inf"), gl.float32, MMA)
    else:
        state = none + gl.where(known, 0, ROOM)[:, None]
    mbarrier.wait(bars.index(STAGES), 0)
    asked_of = asked.load(gl.DotOperandLayout(0, MMA, 2)) if HELD else asked
    zero = gl.zeros([ROWS, COLUMNS], gl.float32, MMA)
    mbarrier.wait(bars.index(0), 0)
    going = warpgroup_mma(asked_of, near.index(0).permute((1, 0)), zero, use_acc=False, is_async=True)
    scores = warpgroup_mma_wait(0, deps=[going])
    slot, phase = 1 % STAGES, 1 // STAGES
    done = 1
    for tile in range(1, total - 1, 2):
        for more in gl.static_range(2):  # two at a time: else all scores would change places for each
            mbarrier.wait(bars.index(slot), phase)
            going = warpgroup_mma(asked_of, near.index(slot).permute((1, 0)), zero, use_acc=False, is_async=True)
            free = gl.where(slot == 0, STAGES - 1, slot - 1)
            coming = tile + more + STAGES - 1
            _barrier()  # now no warp needs the tile before
            mbarrier.expect(bars.index(free), keys.block_type.nbytes, pred=coming < total)
            tma.async_copy_global_to_shared(
                keys,
                [(part + coming * step) * COLUMNS, 0],
                bars.index(free),
                near.index(free),
                pred=coming < total,
            )
            state = _taken(
                *(scores, part + (tile + more - 1) * step, factor, offsets, there, floor, own, state, within),
                *(ROOM, SAMPLE, OFFSETS, True, MMA, LISTS),
            )
            scores = warpgroup_mma_wait(0, deps=[going])
            slot += 1
            phase = gl.where(slot == STAGES, phase ^ 1, phase)
            slot = gl.where(slot == STAGES, 0, slot)
        done += 2
    state = _taken(
        *(scores, part + (done - 1) * step, factor, offsets, there, floor, own, state, within),
        *(ROOM, SAMPLE, OFFSETS, SAMPLE, MMA, LISTS),
    )
    if done < total:
        mbarrier.wait(bars.index(slot), phase)
        going = warpgroup_mma(asked_of, near.index(slot).permute((1, 0)), zero, use_acc=False, is_async=True)
        scores = warpgroup_mma_wait(0, deps=[going])
        state = _taken(
            *(scores, part + done * step, factor, offsets, there, floor, own, state, within),
            *(ROOM, SAMPLE, OFFSETS, SAMPLE, MMA, LISTS),
        )
    if SAMPLE:
        gl.store(floors + mma_rows, _of_rank(state, RANK), mask=mma_rows < asking)
    else:
        gl.store(own, state.to(gl.int64), mask=known[:, None])


@triton.jit
def in_order(
    lists,
    factors,
    floors,
    scores,
    columns,
    reach,
    asking,
    none,
    ROOM: tl.constexpr,
    LISTS: tl.constexpr,
    LISTED: tl.constexpr,
    PLACES: tl.constexpr,
    KEPT: tl.constexpr,
    ROWS: tl.constexpr,
    OFFSETS: tl.constexpr,
):
    """The best KEPT of the LISTS of a query, best first, ties by the lower row; and what no other key exceeds."""
    rows, places, which = (
        tl.program_id(0) * ROWS + tl.arange(0, ROWS),
        tl.arange(0, PLACES),
        tl.arange(0, LISTED),
    )
    known = rows < asking
    own = lists + rows.to(tl.int64) * (ROOM * LISTS)
    told = known[:, None] & (which < LISTS)[None, :]
    count = tl.load(own[:, None] + which[None, :] * ROOM, mask=told, other=0).to(tl.int32)
    full = tl.max(count, axis=1) >= ROOM
    ends = tl.cumsum(tl.minimum(count, ROOM - 1), axis=1)
    total = tl.max(ends, axis=1)
    full |= total > PLACES
    # The lists one behind another: a place belongs to the first of them that ends beyond it.
    beyond = places[None, :, None] >= ends[:, None, :]
    owner = tl.sum(beyond.to(tl.int32), axis=2)
    start = tl.max(tl.where(beyond, ends[:, None, :], 0), axis=2)
    there = places[None, :] < total[:, None]
    entry = tl.load(own[:, None] + owner * ROOM + 1 + places[None, :] - start, mask=there, other=0)
    score = (entry >> 32).to(tl.int32).to(tl.float32, bitcast=True)
    score = tl.where(score == score, score, float("inf"))  # what is not a number must be seen
    best = tl.sort(tl.where(there, pack(score, (entry & 0x7FFFFFFF).to(tl.int32)), DEAD), 1, descending=True)
    alive = best != DEAD
    score = tl.where(alive, score_of(best), float("-inf"))
    factor = tl.load(factors + rows, mask=known, other=1.0)
    floor = tl.load(floors + rows, mask=known, other=0.0)
    last = tl.sum(tl.where((places == KEPT - 1)[None, :], score, 0.0), axis=1)
    last = tl.where(last == float("-inf"), floor, last)
    if not OFFSETS:
        score *= factor[:, None]
        scaled = last * factor
        scaled = tl.where(tl.abs(scaled) <= -LOWEST, scaled, float("inf"))  # too large a number tells nothing
        last = tl.where(last > LOWEST, scaled, last)
    to = rows[:, None].to(tl.int64) * KEPT + places[None, :]
    kept = known[:, None] & (places < KEPT)[None, :]
    tl.store(scores + to, score, mask=kept)
    tl.store(columns + to, tl.where(alive, column_of(best).to(tl.int64), none), mask=kept)
    tl.store(reach + rows, tl.where(full, float("inf"), last), mask=known)


class Shape(NamedTuple):
    """Of a tile, and how it is worked on."""

    rows: int = 128
    columns: int = 64
    warps: int = 8
    stages: int = 5
    held: bool = True


def layouts(shape: Shape) -> tuple[Any, Any]:
    """Of the scores, and of the lists: of these each thread has those of its own rows."""
    registers, warps, row = [[8, 0]], [], 16
    while row < shape.rows:
        (warps if len(warps) < shape.warps.bit_length() - 1 else registers).append([row, 0])
        row *= 2
    lists = gl.DistributedLinearLayout(
        reg_bases=registers,
        lane_bases=[[0, 1], [0, 2], [1, 0], [2, 0], [4, 0]],
        warp_bases=warps,
        block_bases=[],
        shape=[shape.rows, 4],
    )
    mma = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[shape.warps, 1], instr_shape=[16, shape.columns, 16]
    )
    return mma, lists


def best_keys(
    queries: Tensor,
    keys: Tensor,
    factors: Tensor,
    offsets: Tensor,
    count: int,
    step: int,
    none: int,
    even: bool,
    shape: Shape,
    timed: Callable[[str, Callable[[], Any]], Any] = lambda _, work: work(),
) -> tuple[Tensor, Tensor, Tensor]:
    """What :func:`attnknn.ops.fused_search.best_keys` does, for 16 bits and at most 256 dimensions."""
    asking, there, dim = len(factors), len(offsets), queries.shape[1]
    scores = torch.empty(asking, count, device=queries.device)
    found, reach = torch.empty_like(scores, dtype=torch.int64), torch.empty_like(factors)
    blocks = -(-asking // shape.rows)
    parts = fused_search._parts(blocks, there // shape.columns, queries.device)
    listed = parts * LANES.value
    room = power(2 * RANK.value * step // listed + 16)
    floor = torch.empty_like(factors)
    lists = torch.empty(asking, listed, room, dtype=torch.int64, device=queries.device)
    bits = {torch.bfloat16: gl.bfloat16, torch.float16: gl.float16}[queries.dtype]
    asked, near = (
        TensorDescriptor.from_tensor(table, [rows, dim], gl.NVMMASharedLayout.get_default_for([rows, dim], bits))
        for table, rows in ((queries, shape.rows), (keys, shape.columns))
    )
    mma, lanes = layouts(shape)
    fixed = {
        "ROOM": room,
        "DIM": dim,
        "ROWS": shape.rows,
        "COLUMNS": shape.columns,
        "OFFSETS": not even,
        "MMA": mma,
        "LISTS": lanes,
        "num_warps": shape.warps,
    }
    given = asked, near, factors, offsets, floor, lists, asking, there
    stages, held = shape.stages, shape.held
    timed("floors", lambda: sweep[(blocks, 1)](*given, step, **fixed, SAMPLE=True, STAGES=stages, HELD=held))
    timed("above", lambda: sweep[(blocks, parts)](*given, parts, **fixed, SAMPLE=False, STAGES=stages, HELD=held))
    places = max(2 * count, 64 * step)
    at_once = max(1, 1024 // places)
    timed(
        "in order",
        lambda: in_order[(-(-asking // at_once),)](
            *(lists, factors, floor, scores, found, reach, asking, none),
            ROOM=room,
            LISTS=listed,
            LISTED=power(listed),
            PLACES=places,
            KEPT=count,
            ROWS=at_once,
            OFFSETS=not even,
            num_warps=4 if places <= 256 else 8,
        ),
    )
    return scores, found, reach


def milliseconds(work: Callable[[], Any]) -> float:
    """The median of several."""
    took = []
    for at in range(12):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        torch.cuda.synchronize()
        if at > 1:
            took.append(start.elapsed_time(end))
    return median(took)


def tables(count: int, queries: int, dim: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Queries and keys of length 1, laid out as the kernels read them."""
    random = torch.Generator("cuda").manual_seed(0)
    laid = []
    for rows in (queries, count):
        table = torch.zeros(fused_search.room_for(rows, dim), dtype=dtype, device="cuda")
        drawn = torch.randn(rows, dim, generator=random, device="cuda")
        table[:rows, :dim] = torch.nn.functional.normalize(drawn, dim=1).to(dtype)
        laid.append(table)
    return laid[0], laid[1]


def check(shape: Shape, count: int, queries: int, dim: int, dtype: torch.dtype, even: bool) -> str:
    """Whether both find the same keys."""
    asked, keys = tables(count, queries, dim, dtype)
    factors = torch.full((queries,), 0.5, device="cuda")
    offsets = torch.zeros(count, device="cuda")
    if not even:
        offsets = -0.1 * torch.rand(count, device="cuda")
        offsets[::97] = -torch.inf
    step = 4 if count < 200_000 else 16
    given = asked, keys, factors, offsets, 32, step, 2**62, even
    theirs, ours = fused_search.best_keys(*given), best_keys(*given, shape)
    sure = torch.isfinite(theirs[2]) & torch.isfinite(ours[2])
    alike = (theirs[1] == ours[1]).all(dim=1) & (theirs[0] == ours[0]).all(dim=1)
    return (
        f"{count} keys, {queries} queries, {dim} dimensions, {dtype}, even={even}: "
        f"{int((~alike & sure).sum())} rows differ, {int((~sure).sum())} are unsure"
    )


def main() -> None:
    """Check, then time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", help="write the times to this JSON file")
    out = parser.parse_args().out
    shapes = [
        Shape(),
        Shape(stages=5, held=False),
        Shape(stages=3, held=False),
        Shape(columns=128, stages=2, held=False),
        Shape(columns=128, stages=2, held=True),
        Shape(rows=256, stages=3, held=False),
        Shape(rows=64, warps=4, stages=3),
    ]
    report: dict[str, Any] = {}
    for shape in shapes:
        try:
            for case in (
                (5000, 1000, 256, torch.bfloat16, True),
                (50_000, 777, 256, torch.float16, False),
                (9999, 300, 64, torch.float16, True),
                (70_001, 130, 16, torch.float16, False),
            ):
                print(shape, check(shape, *case), flush=True)
            for count, queries in ((50_000, 50_000), (1_281_167, 10_000)):
                report[f"{shape} {count}x{queries}"] = found = time(shape, count, queries)
                print(shape, count, queries, {name: round(took, 3) for name, took in found.items()}, flush=True)
        except Exception as error:  # another shape may do
            print(shape, type(error).__name__, str(error)[-400:], flush=True)
    if out:
        with open(out, "w") as file:
            json.dump(report, file, indent=1)


def time(shape: Shape, count: int, queries: int) -> dict[str, float]:
    """Milliseconds of each stage, of all, and of what is shipped."""
    asked, keys = tables(count, queries, 256, torch.float16)
    factors, offsets = torch.ones(queries, device="cuda"), torch.zeros(count, device="cuda")
    given = asked, keys, factors, offsets, 32, 4 if count < 200_000 else 16, 2**62, True
    stages: dict[str, float] = {}

    def note(name: str, work: Callable[[], Any]) -> None:
        stages[name] = milliseconds(work)

    best_keys(*given, shape, note)
    stages["candidates"] = milliseconds(partial(best_keys, *given, shape))
    stages["candidates, shipped"] = milliseconds(partial(fused_search.best_keys, *given))
    laid = prepare(keys[:count], "ip")
    stages["search, shipped"] = milliseconds(partial(exact_topk, asked[:queries], laid, 16, backend="triton"))
    return stages


if __name__ == "__main__":
    main()
