"""The methods of studies by name; a later study adds its own here and names them in ``recipe.STUDIES``."""

from __future__ import annotations

from attnknn.study import baselines
from attnknn.study.job import Method
from attnknn.study.ours import Ours

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
}
