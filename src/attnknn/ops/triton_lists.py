"""Lists that the Triton kernels write: keys that score high enough, in whatever order, and then in order.

A list takes ROOM places of 8 bytes. The first tells how many keys were to be written down, the others hold as many
of them as there is room for: the bits of the score and those of the column.
"""

from __future__ import annotations

import triton
import triton.language as tl

DEAD = tl.constexpr(-(2**63))  # below every key: there is none
LAST = tl.constexpr(2**31 - 1)
LOWEST = tl.constexpr(-3.4028234663852886e38)  # of all numbers; minus infinity hides a key


def _assembler() -> str:
    """Writes down those of four keys that reach their floors.

    Mostly none of them does, and that is all there is to see. The place of one is what the list holds, and the
    keys of the tile before it. Operands, four of each: nothing, scores, floors, columns, words of which keys of
    the row reach its floor, counts, lists, places that there are.
    """
    none, score, floor, column, word, count, rows, places = range(0, 32, 4)
    each = range(4)
    return "\n".join(
        [
            "{ .reg .pred p<4>, some; .reg .b32 below, place; .reg .b64 to;",
            *(f"mov.b32 ${none + at}, 0;" for at in each),
            *(f"setp.geu.f32 p{at}, ${score + at}, ${floor + at};" for at in each),
            "or.pred some, p0, p1; or.pred some, some, p2; or.pred some, some, p3;",
            "@!some bra NONE;",
            *(
                f"and.b32 below, ${column + at}, 31; bmsk.clamp.b32 below, 0, below; "
                f"and.b32 below, below, ${word + at}; popc.b32 place, below; add.u32 place, place, ${count + at}; "
                f"setp.lt.and.u32 p{at}, place, ${places + at}, p{at}; mad.wide.u32 to, place, 8, ${rows + at}; "
                f"@p{at} st.global.v2.b32 [to + 8], {{${column + at}, ${score + at}}};"
                for at in each
            ),
            "NONE: }",
        ]
    )


_WRITE = tl.constexpr(_assembler())


@triton.jit
def pack(scores, columns):
    """Integers that compare as scores do, and where these are equal, a lower column as the larger."""
    bits = (scores + 0.0).to(tl.int32, bitcast=True)  # -0.0 becomes 0.0
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return (ordered.to(tl.int64) << 32) | (-columns.to(tl.int64) + LAST)


@triton.jit
def score_of(key):
    """The score that was packed."""
    ordered = (key >> 32).to(tl.int32)
    return (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def column_of(key):
    """The column that was packed."""
    return (-(key & 0x7FFFFFFF) + LAST).to(tl.int32)


@triton.jit
def write(scores, start, floor, lists, count, ROOM: tl.constexpr, INTERPRETED: tl.constexpr):
    """Write down the keys whose scores (rows, columns) reach the floor of their row, or are no numbers.

    The columns begin at ``start``, a multiple of 32. Returns how many each list has now.
    """
    if scores.shape[1] > 32 and not INTERPRETED:
        left, right = _halves(scores)
        count = write(left, start, floor, lists, count, ROOM, INTERPRETED)
        count = write(right, start + scores.shape[1] // 2, floor, lists, count, ROOM, INTERPRETED)
    else:
        count = _write(scores, start, floor, lists, count, ROOM, INTERPRETED)
    return count


@triton.jit
def _write(scores, start, floor, lists, count, ROOM: tl.constexpr, INTERPRETED: tl.constexpr):
    reaches, within = (scores < floor[:, None]) == 0, tl.arange(0, scores.shape[1])
    columns = (start + within)[None, :]
    if INTERPRETED:  # which knows no assembler
        place = count[:, None] + tl.cumsum(reaches.to(tl.int32), axis=1) - 1
        entry = (scores.to(tl.int32, bitcast=True).to(tl.int64) << 32) | columns.to(tl.int64)
        tl.store(lists[:, None] + 1 + place, entry, mask=reaches & (place < ROOM - 1))
        more = tl.sum(reaches.to(tl.int32), axis=1)
    else:
        word = tl.sum(tl.where(reaches, (1 << within)[None, :], 0), axis=1)
        room = tl.full((1, 1), ROOM - 1, tl.int32)
        tl.inline_asm_elementwise(
            _WRITE,
            "=r,=r,=r,=r,f,f,f,f,f,f,f,f,r,r,r,r,r,r,r,r,r,r,r,r,l,l,l,l,r,r,r,r",
            [scores, floor[:, None], columns, word[:, None], count[:, None], lists[:, None].to(tl.int64), room],
            dtype=tl.int32,
            is_pure=False,
            pack=4,
        )
        more = tl.inline_asm_elementwise("popc.b32 $0, $1;", "=r,r", [word], tl.int32, is_pure=True, pack=1)
    return count + more


@triton.jit
def listed(lists, known, ROOM: tl.constexpr, PARTS: tl.constexpr, PLACES: tl.constexpr):
    """What PARTS lists of each row hold, in PLACES places, packed, best first; and the count of the longest."""
    places = tl.arange(0, PLACES)[None, :]
    inside = known[:, None] & (places < ROOM * PARTS)
    count = tl.load(lists[:, None] + places // ROOM * ROOM, mask=inside, other=0).to(tl.int32)
    there = (places % ROOM > 0) & (places % ROOM <= count)
    entry = tl.load(lists[:, None] + places, mask=there, other=0)
    score = (entry >> 32).to(tl.int32).to(tl.float32, bitcast=True)
    score = tl.where(score == score, score, float("inf"))  # what is not a number must be seen
    packed = tl.where(there, pack(score, (entry & 0x7FFFFFFF).to(tl.int32)), DEAD)
    return tl.sort(packed, 1, descending=True), tl.max(count, axis=1)


@triton.jit
def of_rank(values, RANK: tl.constexpr, INTERPRETED: tl.constexpr):
    """(rows,) a value that at least RANK of each row reach: the last of as many maxima, equal ones being one."""
    left, right = values, values
    if values.shape[1] > 32 and not INTERPRETED:  # as they are written down: else all would change places for it
        left, right = _halves(values)
    top = tl.maximum(tl.max(left, axis=1), tl.max(right, axis=1))
    for _ in range(1, RANK):
        left = tl.where(left == top[:, None], float("-inf"), left)
        right = tl.where(right == top[:, None], float("-inf"), right)
        top = tl.maximum(tl.max(left, axis=1), tl.max(right, axis=1))
    return tl.maximum(top, LOWEST)


@triton.jit
def _halves(values):
    """The left and the right half of (rows, columns)."""
    rows: tl.constexpr = values.shape[0]
    half: tl.constexpr = values.shape[1] // 2
    return tl.split(tl.permute(tl.reshape(values, (rows, 2, half)), (0, 2, 1)))
