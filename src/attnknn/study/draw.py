"""Pictures as text: digits as inline PNG, reliability diagrams and bars as SVG. Nothing comes from elsewhere."""

from __future__ import annotations

import math
from html import escape

import numpy as np
from numpy.typing import NDArray

from attnknn.data import png_uri
from attnknn.metrics import ReliabilityCurve

_SIDE = 300  # of the diagram's square
_LEFT, _TOP, _COUNTS = 46, 12, 56


def digit(pixels: NDArray[np.float64], words: str, size: int) -> str:
    """64 values from 0 to 16 as an image, dark on light."""
    gray = (255 - np.clip(pixels, 0, 16) * 255 / 16).round().astype(np.uint8).reshape(8, 8)
    return f'<img class="digit" src="{png_uri(gray)}" width="{size}" height="{size}" alt="{escape(words)}">'


def bar(share: float) -> str:
    """A weight from 0 to 1 as a bar."""
    width = 100 * min(1.0, max(0.0, share))
    return (
        '<svg class="bar" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">'
        '<rect width="100" height="8" class="bar-ground"/>'
        f'<rect width="{width:.2f}" height="8" class="bar-fill"/></svg>'
    )


def reliability_diagram(curve: ReliabilityCurve, title: str) -> str:
    """Accuracy of each bin of confidence as a bar, the gap to its mean confidence, and the rows in it."""
    width, height = _LEFT + _SIDE + 12, _TOP + _SIDE + _COUNTS + 58
    parts = [
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title)}" class="diagram">',
        f"<title>{escape(title)}</title>",
        *_axes(),
        *(piece for at in range(len(curve.count)) for piece in _bin(curve, at)),
        f'<line x1="{_x(0)}" y1="{_y(0)}" x2="{_x(1)}" y2="{_y(1)}" class="diagonal"/>',
        f'<text x="{_x(0.5)}" y="{height - 6}" class="middle">confidence</text>',
        f'<text transform="translate(12 {_y(0.5)}) rotate(-90)" class="middle">accuracy</text>',
        "</svg>",
    ]
    return "".join(parts)


def _axes() -> list[str]:
    marks = []
    for tick in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0):
        marks += [
            f'<line x1="{_x(0)}" y1="{_y(tick)}" x2="{_x(1)}" y2="{_y(tick)}" class="grid"/>',
            f'<text x="{_LEFT - 6}" y="{_y(tick) + 4}" class="end">{tick:g}</text>',
            f'<text x="{_x(tick)}" y="{_TOP + _SIDE + _COUNTS + 30}" class="middle">{tick:g}</text>',
        ]
    return marks


def _bin(curve: ReliabilityCurve, at: int) -> list[str]:
    count = int(curve.count[at])
    if not count:
        return []
    low, high = float(curve.edges[at]), float(curve.edges[at + 1])
    right, said = float(curve.accuracy[at]), float(curve.confidence[at])
    words = f"{count} rows said {said:.3f} on average, {right:.3f} of them are right"
    left, width = _x(low) + 1, _x(high) - _x(low) - 2
    top, bottom = max(right, said), min(right, said)
    # Counts differ by orders of magnitude; the logarithm keeps the small ones visible.
    tall = _COUNTS * 0.7 * math.log1p(count) / math.log1p(int(curve.count.sum()))
    base = _TOP + _SIDE + _COUNTS + 14
    return [
        f"<g><title>{escape(words)}</title>",
        _box(left, _y(right), width, _y(0) - _y(right), "accuracy"),
        _box(left, _y(top), width, _y(bottom) - _y(top), "gap over" if said > right else "gap under"),
        _box(left, base - tall, width, tall, "count"),
        f'<text x="{left + width / 2:.1f}" y="{base - tall - 3:.1f}" class="small">{count}</text></g>',
    ]


def _box(x: float, y: float, width: float, height: float, name: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" class="{name}"/>'


def _x(value: float) -> float:
    return round(_LEFT + _SIDE * value, 2)


def _y(value: float) -> float:
    return round(_TOP + _SIDE * (1 - value), 2)
