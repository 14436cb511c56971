"""Curves of a training as a picture; needs matplotlib, which the extra ``plots`` brings."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence

from attnknn.errors import MissingExtra

_PANELS = (
    ("loss", (("loss_total", "training"), ("validation_nll", "validation"), ("validation_mse", "validation"))),
    ("accuracy", (("train_top1", "training"), ("validation_top1", "validation"))),
)


def training_curves(epochs: Sequence[Mapping[str, float]], title: str, test: float | None = None) -> bytes:
    """A PNG of loss and accuracy by epoch.

    Args:
        epochs: The numbers of each epoch.
        title: Above the panels.
        test: Accuracy on the images to test on, as a dashed line.

    Raises:
        MissingExtra: There is no matplotlib.
    """
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator
    except ImportError as missing:
        raise MissingExtra("curves need matplotlib: pip install 'attnknn[plots]'") from missing
    figure = Figure(figsize=(9, 3.6), dpi=120, layout="constrained")
    figure.suptitle(title, parse_math=False)
    for place, (name, lines) in enumerate(_PANELS):
        axes = figure.add_subplot(1, 2, place + 1)
        for key, label in lines:
            points = [(each["epoch"], each[key]) for each in epochs if key in each]
            if points:
                axes.plot(*zip(*points, strict=True), label=label, marker="." if len(points) < 20 else "")
        if name == "accuracy" and test is not None:
            axes.axhline(test, linestyle="--", color="gray", label="test")
        axes.set_xlabel("epoch")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_ylabel(name)
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
    held = io.BytesIO()
    figure.savefig(held, format="png")
    return held.getvalue()
