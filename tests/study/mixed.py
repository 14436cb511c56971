"""A small task with mixed columns, and a recipe of small grids."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd

from attnknn.study.recipe import BoostingGrid, KNNGrid, MLPGrid, OurSettings, Recipe, Rounds, TrunkGrid


def mixed(rows: int = 150, seed: int = 0) -> tuple[pd.DataFrame, np.ndarray]:
    """Numbers, a category and holes; three classes that can be learned, not perfectly."""
    draw = np.random.default_rng(seed)
    codes = np.arange(rows) % 3
    frame = pd.DataFrame(
        {
            "size": codes + draw.normal(0, 0.7, rows),
            "weight": draw.normal(0, 1, rows),
            "color": np.where(draw.random(rows) < 0.7, np.array(["red", "green", "blue"])[codes], "red"),
        }
    )
    frame.loc[::17, "weight"] = np.nan
    return frame, np.array(["a", "b", "c"])[codes]


def small(recipe: Recipe, **changes: object) -> Recipe:
    """The same recipe with grids that take no time."""
    return replace(
        recipe,
        ours=OurSettings(embedder="standardize"),
        knn=KNNGrid(k=(1, 5, 15)),
        mlp=MLPGrid(hidden=((8,),), alpha=(1e-4,), learning_rate=(0.05,), rounds=Rounds(1, 2, 6)),
        trunk=TrunkGrid(lr=(0.01,), rounds=Rounds(1, 2, 6)),
        boosting=BoostingGrid(learning_rate=(0.1,), leaves=(5, 7), rounds=Rounds(4, 1, 8)),
        draws=40,
        **changes,
    )
