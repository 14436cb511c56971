"""The methods of studies by name; a later study adds its own here and names them in ``recipe.STUDIES``."""

from __future__ import annotations

from types import FunctionType

from attnknn.attend import AttentionOptions
from attnknn.study import baselines
from attnknn.study.ablation import VARIANTS, Variant
from attnknn.study.calibrations import KINDS, Baseline, Calibrated
from attnknn.study.checked import Theory, Timed
from attnknn.study.cnn import CNN
from attnknn.study.correction import Corrected
from attnknn.study.job import Method
from attnknn.study.ours import Ours
from attnknn.study.points import Point
from attnknn.study.recipe import BARE, CORRECTED, MANNERS, ONE_TEMPERATURE, PLAIN
from attnknn.study.teaching import Taught
from attnknn.study.trunk import mlp_trunk


def _varied(each: Variant) -> Method:
    """The method that an ablation's variant is."""
    attention = None if each.attention is None else AttentionOptions(**each.attention)
    return Ours("attention", embedder=each.embedder, training=each.training, attention=attention)


def _ways(name: str, weights: str) -> dict[str, Method]:
    """One way of weighing neighbors, in every manner of answering."""
    manners = [manner for manner in MANNERS if weights != "uniform" or manner != "adaptive-k"]
    return {name: Ours(weights), **{f"{name}+{manner}": Ours(weights, manner=manner) for manner in manners}}


def has_meaning(method: Method, point: Point) -> bool:
    """Whether a method has something that a point changes.

    Only ours have a bank and a number of neighbors, and a prior is corrected only where it was changed.
    """
    if isinstance(method, Corrected):
        return point.tail != 1 and has_meaning(method.method, point)
    return isinstance(method, Ours) or not (point.bank_only or point.k is not None)


def fit_of(name: str) -> str:
    """What a method is fitted with: methods of one name share a fit, and one of its own name needs nobody's.

    >>> fit_of("hgb-uncalibrated"), fit_of("cnn+tta"), fit_of("attention+ensemble"), fit_of("uniform")
    ('hgb', 'cnn', 'attention+ensemble', 'ours')
    """
    method = METHODS[name]
    if isinstance(method, Baseline | Corrected):
        return fit_of(method.name)
    if isinstance(method, CNN):
        return "cnn"
    alone = method.trained_alone if isinstance(method, Ours) else isinstance(method, FunctionType)
    return name if alone else "ours"


METHODS: dict[str, Method] = {
    "sklearn-knn": baselines.sklearn_knn,
    "logistic": baselines.logistic,
    "mlp": baselines.mlp,
    "mlp-trunk": mlp_trunk,
    "hgb": baselines.hgb,
    "lightgbm": baselines.lightgbm,
    "cnn": CNN(),
    "cnn+tta": CNN(views=True),
    "distance+raw": Ours("softmax", embedder="standardize"),
    **_ways("uniform", "uniform"),
    **_ways("distance", "softmax"),
    **_ways("reliability", "reliability"),
    **_ways("attention", "attention"),
    "attention+head-prior": Ours("attention", manner="head-prior"),
    "attention+tta+head-prior": Ours("attention", manner="tta+head-prior"),
    "attention+ensemble": Ours("attention", ensemble=True),
    **{name: _varied(each) for name, each in VARIANTS.items()},
    "theory": Theory(),
    "stages": Timed(),
    "untaught": Taught(0),
    "taught-5": Taught(5),
    "taught-20": Taught(20),
    "taught-20-as-is": Taught(20, balanced=False),
    "taught-100": Taught(100),
}
METHODS |= {
    f"{name}-{kind}": Baseline(name, METHODS[name], calibrated=kind != BARE)
    for name in ("hgb", "cnn")
    for kind in (BARE, ONE_TEMPERATURE)
}
METHODS |= {f"attention-{name}": Calibrated(kind) for name, kind in KINDS.items()}
METHODS |= {f"{name}{CORRECTED}": Corrected(name, METHODS[name]) for name in ("hgb", "cnn", *PLAIN)}
