"""Which tokens each block keeps for one token, drawn over the image: SVG, a page around it, or plain pixels.

The token itself is outlined, what it keeps is tinted and numbered by rank, and the rest of the image is veiled.
Words are of a gray that light and dark grounds suit alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from html import escape
from os import PathLike
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from attnknn.data import png, png_uri
from attnknn.data.images import CHANNELS, Pixels
from attnknn.errors import InvalidInput

_COLUMNS: Final = 4
_GAP, _HEAD, _TOP = 28, 44, 78  # between panels, above each, above all: pixels of the screen
_LEAST, _MOST, _PER_TOKEN = 260, 640, 19  # the longer side of a panel, and what a token needs to be read
_MARK: Final = 18  # side of the box of a class token, and of the marks of the legend
_READABLE: Final = 11  # a smaller token bears no number
_WORDS: Final = 460  # width of title and legend
_COARSE: Final = 3  # from here on an enlarged image shows its pixels
_NEAR, _ASKED = (255, 170, 0), (0, 200, 255)  # amber and blue: told apart by nearly all eyes
_TINT, _VEIL = 0.72, 0.45  # of the nearest token, and of what is not kept

_STYLE: Final = """<style>
.attnknn-kept text { font: 13px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; fill: #7a7a7a }
.attnknn-kept .title { font-size: 17px; font-weight: 600 } .attnknn-kept .block { font-weight: 600 }
.attnknn-kept .rank { fill: #fff; stroke: #000; stroke-width: 2.5px; stroke-opacity: .75; paint-order: stroke;
  stroke-linejoin: round; font-weight: 600; text-anchor: middle; dominant-baseline: central }
</style>"""


class _Block(NamedTuple):
    """One block: its place, its layer, and the tokens it keeps, nearest first; None if it does not select."""

    title: str
    name: str | None
    kept: tuple[int, ...] | None

    @property
    def words(self) -> str:
        count = "no selection"
        if self.kept is not None:
            count = f"keeps {len(self.kept)} token{'' if len(self.kept) == 1 else 's'}"
        return count if self.name is None else f"{self.name} · {count}"


class _Box(NamedTuple):
    x: float
    y: float
    wide: float
    tall: float


@dataclass(frozen=True, slots=True)
class _Scene:
    """What is drawn, all checked, at some scale."""

    image: Pixels
    blocks: tuple[_Block, ...]
    rows: int
    columns: int
    token: tuple[int, int]
    before: int  # tokens before the first patch: the class token, or none
    patch: tuple[float, float]  # height and width
    scale: float = 1.0  # of the image

    def times(self, scale: float) -> _Scene:
        """The same, enlarged."""
        return replace(self, patch=(scale * self.patch[0], scale * self.patch[1]), scale=scale * self.scale)

    @property
    def size(self) -> tuple[float, float]:
        """Height and width of all patches: those of the image, or more where patches reach beyond it."""
        return self.rows * self.patch[0], self.columns * self.patch[1]

    @property
    def asked(self) -> int:
        """The token, as an index."""
        return self.before + self.token[0] * self.columns + self.token[1]

    def place(self, index: int) -> tuple[int, int]:
        """Row and column of a token."""
        return divmod(index - self.before, self.columns)

    def box(self, index: int) -> _Box:
        """Where a token is drawn."""
        row, column = self.place(index)
        return _Box(column * self.patch[1], row * self.patch[0], self.patch[1], self.patch[0])


def kept_picture(
    image: Pixels,
    kept: Sequence[Tensor | NDArray[np.int64] | None],
    grid: tuple[int, int],
    token: tuple[int, int],
    class_token: bool,
    *,
    names: Sequence[str] | None = None,
    patch_size: tuple[int, int] | None = None,
) -> str:
    """An SVG with a panel for each block: the image, one token, and the tokens that it keeps there, by rank.

    It needs nothing else: the image is part of it.

    Args:
        image: uint8 (height, width, 1 or 3), as the model was given it.
        kept: For each block the tokens (tokens, K) that each token keeps in one head, nearest first, -1 for none
            (see :meth:`ViT.kept_tokens`); None for a block that does not select.
        grid: Rows and columns of patches.
        token: Row and column, from 0, of the patch that is asked about.
        class_token: Whether a class token comes before the patches.
        names: What the layers of the blocks are called.
        patch_size: Height and width of a patch, where patches do not divide the image.

    >>> image = np.zeros((8, 8, 3), np.uint8)
    >>> kept_picture(image, [np.array([[0], [0], [3], [3]])], (2, 2), (1, 0), False)[:4]
    '<svg'
    """
    return _svg(_scene(image, kept, grid, token, class_token, names, patch_size))


def write_kept(
    path: str | PathLike[str],
    image: Pixels,
    kept: Sequence[Tensor | NDArray[np.int64] | None],
    grid: tuple[int, int],
    token: tuple[int, int],
    class_token: bool,
    *,
    names: Sequence[str] | None = None,
    patch_size: tuple[int, int] | None = None,
) -> None:
    """Write :func:`kept_picture` to a file that ends in .svg or .html; one in .png has no words and numbers."""
    file = Path(path)
    writer = _WRITERS.get(file.suffix.lower())
    if writer is None:
        raise InvalidInput(f"{file}: expected a name that ends in one of: {', '.join(_WRITERS)}")
    file.write_bytes(writer(_scene(image, kept, grid, token, class_token, names, patch_size)))


def _scene(
    image: Pixels,
    kept: Sequence[Tensor | NDArray[np.int64] | None],
    grid: tuple[int, int],
    token: tuple[int, int],
    class_token: bool,
    names: Sequence[str] | None,
    patch_size: tuple[int, int] | None,
) -> _Scene:
    (rows, columns), (row, column), before = grid, token, int(class_token)
    if not (0 <= row < rows and 0 <= column < columns):
        raise InvalidInput(
            f"token {row},{column} is outside of the grid: it has rows 0 to {rows - 1}, columns 0 to {columns - 1}"
        )
    if not len(kept) or (names is not None and len(names) != len(kept)):
        given = "" if names is None else f" and {len(names)} names"
        raise InvalidInput(f"expected at least one block, and a name for each, got {len(kept)} blocks{given}")
    asked, tokens = before + row * columns + column, before + rows * columns
    blocks = (
        _Block(
            f"Block {at + 1} of {len(kept)}",
            None if names is None else names[at],
            None if each is None else _kept_by(asked, each, tokens),
        )
        for at, each in enumerate(kept)
    )
    patch = _patch(image, rows, columns, patch_size)
    return _Scene(image, tuple(blocks), rows, columns, (row, column), before, patch)


def _kept_by(asked: int, kept: Tensor | NDArray[np.int64], tokens: int) -> tuple[int, ...]:
    indices = kept.detach().cpu().numpy() if isinstance(kept, Tensor) else np.asarray(kept)
    if indices.ndim != 2 or len(indices) != tokens or indices.dtype.kind not in "iu":
        raise InvalidInput(
            f"expected indices ({tokens}, K) for every block, got {indices.dtype} of shape {indices.shape}"
        )
    own = indices[asked]
    if (own >= tokens).any() or (own < -1).any():
        raise InvalidInput(f"there are tokens 0 to {tokens - 1}, got {own.tolist()}")
    return tuple(own[own >= 0].tolist())


def _patch(image: Pixels, rows: int, columns: int, size: tuple[int, int] | None) -> tuple[float, float]:
    """Height and width of a patch; without a size the image is taken to be divided evenly."""
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] not in CHANNELS or not image.size:
        raise InvalidInput(
            f"expected uint8 pixels of shape (height, width, 1 or 3), got {image.dtype} of shape {image.shape}"
        )
    height, width = image.shape[:2]
    if size is None:
        return height / rows, width / columns
    if (-(-height // size[0]), -(-width // size[1])) != (rows, columns):
        raise InvalidInput(
            f"patches of {size[0]} x {size[1]} do not cut an image of {height} x {width} into {rows} x {columns}"
        )
    return size


def _strength(rank: int, count: int) -> float:
    """1 for the nearest token, a quarter for the last."""
    return 1 - 0.75 * rank / max(1, count - 1)


# --- SVG --------------------------------------------------------------------------------------------------------


def _svg(scene: _Scene) -> str:
    uri = png_uri(scene.image)
    side = min(_MOST, max(_LEAST, _PER_TOKEN * max(scene.rows, scene.columns)))
    scene = scene.times(side / max(scene.size))
    across = min(_COLUMNS, len(scene.blocks))
    step = max(scene.size[1], _LEAST) + _GAP, scene.size[0] + _HEAD + _GAP
    wide, tall = max(_WORDS, _GAP + across * step[0]), _TOP - (-len(scene.blocks) // across) * step[1]
    name = f"attnknn-{blake2b(uri.encode(), digest_size=6).hexdigest()}"  # a page may hold several pictures
    panels = (
        f'<g transform="translate({_GAP + at % across * step[0]:.1f} {_TOP + at // across * step[1]:.1f})">'
        f"{_panel(scene, block, name)}</g>"
        for at, block in enumerate(scene.blocks)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="attnknn-kept" role="img" aria-label="{_title(scene)}" '
        f'viewBox="0 0 {wide:.0f} {tall:.0f}" width="{wide:.0f}" height="{tall:.0f}">'
        f"{_STYLE}<defs>{_embedded(scene, uri, name)}</defs>"
        f'<text x="{_GAP}" y="32" class="title">{_title(scene)}</text>{_legend()}{"".join(panels)}</svg>'
    )


def _title(scene: _Scene) -> str:
    return f"What the token in row {scene.token[0]}, column {scene.token[1]} keeps"


def _embedded(scene: _Scene, uri: str, name: str) -> str:
    height, width = (scene.scale * each for each in scene.image.shape[:2])
    kind = ' style="image-rendering:pixelated"' if scene.scale >= _COARSE else ""
    size = f'width="{width:.2f}" height="{height:.2f}"'
    return f'<image id="{name}"{kind} href="{uri}" {size} preserveAspectRatio="none"/>'


def _legend() -> str:
    y, start, step = 46, _GAP + 148, _MARK + 2
    ranks = (_tinted(_Box(start + at * step, y, _MARK, _MARK), at, 4) for at in range(4))
    return (
        f'{_outline(_Box(_GAP, y, _MARK, _MARK))}<text x="{_GAP + 26}" y="{y + 14}">the token itself</text>'
        f'{"".join(ranks)}<text x="{start + 4 * step + 6}" y="{y + 14}">kept, the nearest first</text>'
    )


def _panel(scene: _Scene, block: _Block, name: str) -> str:
    height, width = scene.size
    words = f'<text y="14" class="block">{block.title}</text><text y="33">{escape(block.words)}</text>'
    drawn = [f'<rect width="{width:.2f}" height="{height:.2f}" fill="#8884"/><use href="#{name}"/>']
    if block.kept is not None:
        drawn += [_veil(scene, block.kept), *_tokens(scene, block.kept)]
        if scene.before and 0 in block.kept:
            words += _class_box(block.kept.index(0), len(block.kept), max(width, _LEAST))
    drawn.append(_outline(scene.box(scene.asked)))
    return f'{words}<g transform="translate(0 {_HEAD})">{"".join(drawn)}</g>'


def _veil(scene: _Scene, kept: tuple[int, ...]) -> str:
    """Over everything but the tokens that are kept and the one that keeps them."""
    bare = sorted({scene.asked, *(index for index in kept if index >= scene.before)})
    boxes = [_Box(0, 0, scene.size[1], scene.size[0]), *map(scene.box, bare)]
    path = "".join(f"M{x:.2f} {y:.2f}h{wide:.2f}v{tall:.2f}h{-wide:.2f}z" for x, y, wide, tall in boxes)
    return f'<path d="{path}" fill="#000" fill-opacity="{_VEIL}" fill-rule="evenodd"/>'


def _tokens(scene: _Scene, kept: tuple[int, ...]) -> Iterator[str]:
    for rank, index in enumerate(kept):
        if index >= scene.before:
            row, column = scene.place(index)
            words = f"<title>rank {rank + 1}: row {row}, column {column}</title>"
            yield f"<g>{words}{_tinted(scene.box(index), rank, len(kept))}</g>"


def _tinted(box: _Box, rank: int, count: int) -> str:
    color, strength, number = _hex(_NEAR), _strength(rank, count), str(rank + 1)
    short = min(box.wide, box.tall)
    size = min(0.62 * short, 13, 1.6 * box.wide / len(number))
    label = (
        f'<text x="{box.x + box.wide / 2:.2f}" y="{box.y + box.tall / 2:.2f}" class="rank" '
        f'style="font-size:{size:.1f}px">{number}</text>'
    )
    return (
        f'<rect x="{box.x + 0.5:.2f}" y="{box.y + 0.5:.2f}" width="{box.wide - 1:.2f}" '
        f'height="{box.tall - 1:.2f}" fill="{color}" fill-opacity="{_TINT * strength:.3f}" '
        f'stroke="{color}" stroke-opacity="{0.4 + 0.6 * strength:.3f}"/>{label if short >= _READABLE else ""}'
    )


def _outline(box: _Box) -> str:
    """Blue on black, which shows on any image."""
    frame = f'<rect x="{box.x:.2f}" y="{box.y:.2f}" width="{box.wide:.2f}" height="{box.tall:.2f}" fill="none"'
    black = f'{frame} stroke="#000" stroke-opacity=".7" stroke-width="5"/>'
    return f'{black}{frame} stroke="{_hex(_ASKED)}" stroke-width="3"/>'


def _class_box(rank: int, count: int, right: float) -> str:
    """The class token has no place in the image: it stands above its right corner."""
    words = f'<text x="{right - _MARK - 6:.1f}" y="14" text-anchor="end">class token</text>'
    box = _tinted(_Box(right - _MARK, 0, _MARK, _MARK), rank, count)
    return f"<g><title>rank {rank + 1}: the class token</title>{words}{box}</g>"


def _hex(color: tuple[int, int, int]) -> str:
    return "#" + bytes(color).hex()


def _page(scene: _Scene) -> str:
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{_title(scene)}</title>
<style>
:root {{ color-scheme: light dark }}
body {{ margin: 0; background: Canvas }}
svg {{ display: block; margin: auto; max-width: 100%; height: auto }}
.attnknn-kept text:not(.rank) {{ fill: CanvasText }}
</style></head>
<body>{_svg(scene)}</body></html>
"""


# --- pixels -----------------------------------------------------------------------------------------------------


def _raster(scene: _Scene) -> bytes:
    """The panels row by row on white; right of one that keeps the class token, a box for that."""
    scene = scene.times(max(1, round(_LEAST / max(scene.size))))
    panels = [_painted(scene, block) for block in scene.blocks]
    across = min(_COLUMNS, len(panels))
    panels += [np.full_like(panels[0], 255)] * (-len(panels) % across)
    lines = [np.concatenate(panels[at : at + across], axis=1) for at in range(0, len(panels), across)]
    return png(np.concatenate(lines).round().astype(np.uint8))


def _painted(scene: _Scene, block: _Block) -> NDArray[np.float32]:
    """One panel within its margins, (height, width, 3)."""
    height, width = map(round, scene.size)
    edge, times = _MARK // 2, round(scene.scale)
    whole = np.full((height + 2 * edge, width + 2 * edge + 2 * _MARK * scene.before, 3), 255, np.float32)
    panel = whole[edge : edge + height, edge : edge + width]
    panel[...] = 128
    shown = scene.image.repeat(times, axis=0).repeat(times, axis=1)
    panel[: shown.shape[0], : shown.shape[1]] = shown
    if block.kept is not None:
        _paint_kept(scene, block.kept, panel)
        if scene.before and 0 in block.kept:
            aside = whole[edge : edge + _MARK, width + 2 * edge : width + 2 * edge + _MARK]
            _mix(aside, _NEAR, _strength(block.kept.index(0), len(block.kept)))
    _paint_outline(panel[_area(scene.box(scene.asked))])
    return whole


def _paint_kept(scene: _Scene, kept: tuple[int, ...], panel: NDArray[np.float32]) -> None:
    bright = panel.copy()
    _mix(panel, (0, 0, 0), _VEIL)
    for index in (scene.asked, *kept):
        if index >= scene.before:
            area = _area(scene.box(index))
            panel[area] = bright[area]
    for rank, index in enumerate(kept):
        if index >= scene.before:
            _mix(panel[_area(scene.box(index))], _NEAR, _TINT * _strength(rank, len(kept)))


def _paint_outline(cell: NDArray[np.float32]) -> None:
    """Blue along the edge of a token, two pixels wide, and black within."""
    for depth, color in enumerate((_ASKED, _ASKED, (0, 0, 0))):
        inner = cell[depth : len(cell) - depth, depth : cell.shape[1] - depth]
        if inner.size:
            inner[[0, -1]] = inner[:, [0, -1]] = color


def _mix(area: NDArray[np.float32], color: tuple[int, int, int], share: float) -> None:
    area += share * (np.asarray(color, np.float32) - area)


def _area(box: _Box) -> tuple[slice, slice]:
    return slice(round(box.y), round(box.y + box.tall)), slice(round(box.x), round(box.x + box.wide))


_WRITERS: Final[dict[str, Callable[[_Scene], bytes]]] = {
    ".svg": lambda scene: _svg(scene).encode("utf-8", "backslashreplace"),
    ".html": lambda scene: _page(scene).encode("utf-8", "backslashreplace"),
    ".png": _raster,
}
