"""Sheets of A4 that fill one after the other with words, tables and figures; what does not fit goes on, uncut."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from attnknn.study.figures import Bars, Figure, Matrix
from attnknn.study.rendered import INK, QUIET, blank, draw, settle, size_of
from attnknn.study.svg import MOST_NUMBERED

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Page

SIZE: Final = (8.27, 11.69)
"""Inches of a sheet."""

_INCH: Final = 72.0
_RULE: Final = "#d5dae0"
_WIDE, _HIGH = SIZE[0] * _INCH, SIZE[1] * _INCH  # points, as all lengths here
_MARGIN: Final = 48.0
_ROOM: Final = _WIDE - 2 * _MARGIN
_BOTTOM: Final = _HIGH - _MARGIN
_LINE: Final = 1.35  # height of a line, of its letters
_GAP: Final = 7.0  # between the columns of a table
_LEAST: Final = 140.0  # of its first column, where the others need the room
_MANY: Final = 13  # bars that half a sheet has room for
_APART: Final = 14.0  # from one figure to the next
_TALLEST: Final = (_BOTTOM - _MARGIN) / 2 - _APART  # of a figure whose shape is free: two of them fill a sheet


@dataclass(frozen=True, slots=True)
class Letters:
    """How words are set."""

    size: float = 9.5
    color: str = INK
    bold: bool = False
    mono: bool = False

    @property
    def look(self) -> dict[str, Any]:
        """What matplotlib calls it."""
        family = {"family": "monospace"} if self.mono else {}
        return {"size": self.size, "weight": "bold" if self.bold else "normal", **family}


TEXT, BOLD, NOTE = Letters(), Letters(bold=True), Letters(8.5, QUIET)
TITLE, HEAD, MONO = Letters(20, bold=True), Letters(13, bold=True), Letters(7.5, mono=True)
_CELL_HEAD = Letters(8.5, QUIET)
_HEADS, _CELLS = (
    (_CELL_HEAD, _CELL_HEAD),
    (Letters(8.5), Letters(6.8, QUIET)),
)  # of the first line and of the others

_Cell: TypeAlias = list[tuple[str, Letters]]
_Row: TypeAlias = list[_Cell]


class Paper:
    """Sheets that are written from top to bottom.

    Args:
        footer: Stands at the foot of each, before its number.
    """

    def __init__(self, footer: str) -> None:
        self.footer = footer
        self.sheets: list[Page] = []
        self._top = _HIGH  # nothing fits before there is a sheet

    def words(
        self, said: str, letters: Letters = TEXT, *, indent: float = 0.0, mark: str = "", follows: float = 0.0
    ) -> None:
        """A paragraph; ``mark`` stands before its first line, within the indent.

        ``follows`` points of what comes next fit on the same sheet.
        """
        for at, line in enumerate(wrapped(said, _ROOM - indent, letters)):
            self._need(letters.size * _LINE + follows)
            if mark and not at:
                self._put(0.0, self._top, mark, letters)
            self._put(indent, self._top, line, letters)
            self._top += letters.size * _LINE
        self._top += 0.3 * letters.size

    def heading(self, said: str, follows: float = 60.0) -> None:
        """The name of what follows, on the same sheet as so many points of it, or at the top of the next."""
        self._need(min(follows + 40.0, _BOTTOM - _MARGIN))
        self._top += 14.0
        self.words(said, HEAD)

    def table(
        self, title: str, head: Sequence[str], rows: Sequence[Sequence[str]], words: int | None = None
    ) -> None:
        """A table; columns that do not fit beside each other follow below, behind the first one again.

        Args:
            title: What stands above it.
            head: What stands above the columns.
            rows: Cells; lines after the first are small.
            words: The column that takes what room there is, and as many lines as it needs.
        """
        columns = [[each[at] for each in (head, *rows)] for at in range(len(head))]
        groups = _beside(columns) if words is None else iter([columns])
        for at, some in enumerate(groups):
            grid = _Grid.of(some, words)
            if at:
                self._need(min(grid.tall, _BOTTOM - _MARGIN))
            else:
                self.heading(title, grid.tall)
            self._grid(grid)

    def figures(self, figures: Iterable[Figure]) -> None:
        """Figures below each other on sheets of their own."""
        for some in _stacked(figures):
            sheet = self._sheet()
            high = [_height(figure) for figure in some]
            rows = [_MARGIN, *(part for each in high for part in (each, _APART))]
            rows.append(_HIGH - sum(rows))
            grid = sheet.add_gridspec(
                len(rows), 3, width_ratios=(_MARGIN, _ROOM, _MARGIN), height_ratios=rows, hspace=0, wspace=0
            )
            for at, figure in enumerate(some):
                draw(figure, sheet.add_subfigure(grid[2 * at + 1, 1]))
            settle(sheet)
            self._top = _HIGH

    def _grid(self, grid: _Grid) -> None:
        """Rows under their heads, which stand on every sheet."""
        self._row(grid, grid.head, INK)
        for row in grid.rows:
            if self._need(_tall(row)):
                self._row(grid, grid.head, INK)
            self._row(grid, row, _RULE)
        self._top += 12.0

    def _row(self, grid: _Grid, cells: _Row, rule: str) -> None:
        from matplotlib.lines import Line2D

        start = 0.0
        for at, (cell, room) in enumerate(zip(cells, grid.wide, strict=True)):
            below, right = self._top, at not in grid.left
            for line, letters in cell:
                self._put(start + room * right, below, line, letters, right=right)
                below += letters.size * _LINE
            start += room + _GAP
        self._top += _tall(cells)
        ends = [_MARGIN / _WIDE, (_MARGIN + start - _GAP) / _WIDE]
        height = 1 - (self._top - 2.0) / _HIGH
        self.sheets[-1].add_artist(Line2D(ends, [height, height], color=rule, linewidth=0.6))

    def _need(self, height: float) -> bool:
        """Begin a sheet if so much does not fit on this one; says whether it did."""
        if self._top + height <= _BOTTOM:
            return False
        self._sheet()
        return True

    def _sheet(self) -> Page:
        sheet = blank(SIZE)
        self.sheets.append(sheet)
        foot = _HIGH - 0.6 * _MARGIN
        self._put(0.0, foot, wrapped(self.footer, _ROOM - 40.0, NOTE)[0], NOTE)
        self._put(_ROOM, foot, str(len(self.sheets)), NOTE, right=True)
        self._top = _MARGIN
        return sheet

    def _put(self, start: float, top: float, line: str, letters: Letters, *, right: bool = False) -> None:
        where = (_MARGIN + start) / _WIDE, 1 - (top + letters.size) / _HIGH
        look = {**letters.look, "color": letters.color, "ha": "right" if right else "left", "va": "baseline"}
        self.sheets[-1].text(*where, line, parse_math=False, **look)


def wrapped(words: str, width: float, letters: Letters) -> list[str]:
    """Lines no wider than so many points; a word breaks only where it has no room in a line of its own."""
    lines: list[str] = []
    for word in words.split():
        joined = f"{lines[-1]} {word}" if lines else word
        if _measured(joined, letters) <= width:
            lines[-1:] = [joined]
        else:
            lines += _pieces(word, width, letters)
    return lines or [""]


def _pieces(word: str, width: float, letters: Letters) -> Iterator[str]:
    """A word in parts that fit, broken behind the signs that join names where there are some."""
    while _measured(word, letters) > width and len(word) > 1:
        fits = next((end for end in range(len(word) - 1, 1, -1) if _measured(word[:end], letters) <= width), 1)
        at = max(word.rfind(sign, 0, fits) + 1 for sign in "+@/_,-") or fits
        yield word[:at]
        word = word[at:]
    yield word


def _measured(words: str, letters: Letters) -> float:
    """Points from the begin of words to their end."""
    return sum(_advance(letter, letters) for letter in words)


@cache
def _advance(letter: str, letters: Letters) -> float:
    from matplotlib.font_manager import FontProperties, findfont
    from matplotlib.ft2font import FT2Font

    font = FT2Font(findfont(FontProperties(**letters.look)))  # one of its own: the shared ones keep what is set
    font.set_size(letters.size, _INCH)
    return font.load_char(ord(letter)).linearHoriAdvance / 0x10000


@dataclass(frozen=True, slots=True)
class _Grid:
    """A table in lines that fit its columns."""

    wide: Sequence[float]
    left: set[int]  # columns of words; the others hold numbers, which end below each other
    head: _Row
    rows: Sequence[_Row]

    @classmethod
    def of(cls, columns: Sequence[Sequence[str]], words: int | None) -> _Grid:
        wide = [_natural(column) for column in columns]
        wide[0] = min(wide[0], _LEAST) if words else wide[0]
        free = words or 0
        rest = _ROOM - sum(wide) + wide[free] - _GAP * (len(wide) - 1)
        wide[free] = max(60.0, rest if words else min(rest, wide[0]))
        left = {0, free}
        head, *rows = zip(*columns, strict=True)
        above = [_cell(cell, room, _HEADS, wraps=True) for cell, room in zip(head, wide, strict=True)]
        cells = [[_cell(each, wide[at], _CELLS, wraps=at in left) for at, each in enumerate(row)] for row in rows]
        return cls(wide, left, above, cells)

    @property
    def tall(self) -> float:
        return sum(map(_tall, [self.head, *self.rows]))


def _cell(words: str, width: float, letters: tuple[Letters, Letters], *, wraps: bool) -> _Cell:
    if wraps:
        return [(line, letters[0]) for line in wrapped(words, width, letters[0])]
    return [(line, letters[bool(at)]) for at, line in enumerate(words.split("\n"))]


def _tall(cells: _Row) -> float:
    return max(sum(letters.size * _LINE for _, letters in cell) for cell in cells) + 4.0


def _natural(column: Sequence[str]) -> float:
    """The width of a column: of its cells, and of the longest word above them."""
    head, *cells = column
    above = [_measured(word, _CELL_HEAD) for word in head.split()]
    lines = [(line, at) for cell in cells for at, line in enumerate(cell.split("\n"))]
    return max([*above, *(_measured(line, _CELLS[bool(at)]) for line, at in lines), 34.0]) + 0.5


def _beside(columns: list[list[str]]) -> Iterator[list[list[str]]]:
    """Columns in groups that fit beside each other and hold about as many each, all behind the first."""
    first, *others = columns
    room = _ROOM - min(_natural(first), _LEAST)
    wide = [_natural(column) + _GAP for column in others]
    for groups in range(1, len(others) + 1):
        step = math.ceil(len(others) / groups)
        if groups == len(others) or all(sum(wide[at : at + step]) <= room for at in range(0, len(wide), step)):
            for at in range(0, len(others), step):
                yield [first, *others[at : at + step]]
            return


def _height(figure: Figure) -> float:
    """Points that a figure takes on a sheet."""
    natural, most = size_of(figure)[1] * _INCH, _BOTTOM - _MARGIN - _APART
    bars = isinstance(figure, Bars) and len(figure.names) > _MANY
    cells = isinstance(figure, Matrix) and len(figure.names) > MOST_NUMBERED
    return min(natural, most if bars or cells else _TALLEST)


def _stacked(figures: Iterable[Figure]) -> Iterator[list[Figure]]:
    """Figures that fit on a sheet together, in their order."""
    some: list[Figure] = []
    for figure in figures:
        if some and sum(_height(each) + _APART for each in [*some, figure]) > _BOTTOM - _MARGIN:
            yield some
            some = []
        some.append(figure)
    if some:
        yield some
