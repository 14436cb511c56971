"""The methods of studies by name; a later study adds its own here and names them in ``recipe.STUDIES``."""

from __future__ import annotations

from dataclasses import replace

from attnknn.attend import AttentionOptions
from attnknn.study import baselines
from attnknn.study.job import Method
from attnknn.study.ours import Ours
from attnknn.study.recipe import PARTS

EVERYTHING = AttentionOptions(distance_bias=True, prototypes=True, self_attention=True, always=True)
NOTHING = AttentionOptions().without("projections", "label_bias")


def _without(part: str) -> AttentionOptions:
    if part == "neighbor_dropout":
        return replace(EVERYTHING, neighbor_dropout=0.0)
    return EVERYTHING.without(part)  # type: ignore[arg-type]


METHODS: dict[str, Method] = {
    "sklearn-knn": baselines.sklearn_knn,
    "mlp": baselines.mlp,
    "hgb": baselines.hgb,
    "lightgbm": baselines.lightgbm,
    "distance+raw": Ours("softmax", embedder="standardize"),
    "uniform": Ours("uniform"),
    "distance": Ours("softmax"),
    "reliability": Ours("reliability"),
    "attention": Ours("attention"),
    "attention+ensemble": Ours("attention", ensemble=True),
    "attention-none": Ours("attention", attention=NOTHING),
    "attention-all": Ours("attention", attention=EVERYTHING),
    **{f"attention-all-{part}": Ours("attention", attention=_without(part)) for part in PARTS},
}
