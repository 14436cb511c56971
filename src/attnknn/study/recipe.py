"""What a study does, as data: everything that decides a number is in its recipe. Imports nothing slow."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from attnknn.study.ablation import PARTS as PARTS
from attnknn.study.ablation import QUICK, varied

OURS = ("distance+raw", "uniform", "distance", "reliability", "attention", "attention+ensemble")
"""The methods of this package; each is compared with those before it and with every baseline."""

PLAIN = ("uniform", "distance", "reliability", "attention")
"""The ways of weighing that share the vectors of one training."""

MANNERS = ("tta", "k-ensemble", "tta+k-ensemble", "adaptive-k")
"""How images are answered, beside plainly; uniform weights have no entropy to adapt k by."""

ON_IMAGES = (
    "sklearn-knn",
    "logistic",
    "cnn",
    "cnn+tta",
    *PLAIN,
    *(f"{way}+{manner}" for way in PLAIN for manner in MANNERS if (way, manner) != ("uniform", "adaptive-k")),
    "attention+head-prior",
    "attention+tta+head-prior",
)
"""The methods for images; each of ours is compared with baselines and others before it."""

IN_MANNERS = tuple(
    f"{way}+{manner}"
    for way in PLAIN
    for manner in ("k-ensemble", "adaptive-k")
    if (way, manner) != ("uniform", "adaptive-k")
)
"""Our methods on tables that do not answer plainly; each is compared with its plain one."""

QUICK_MANNERS = tuple(name for name in IN_MANNERS if name.startswith(("distance+", "attention+")))
"""Those of them that a quick run has too."""

UNMEANT: Mapping[str, str] = {"uniform+adaptive-k": "uniform weights have no entropy to adapt k by"}
"""What a reader may look for among ways and manners, and why there is no such method."""

TAUGHT = ("untaught", "taught-5", "taught-20", "taught-20-as-is", "taught-100")
"""A class left out of the training, then taught by so many examples; as they are, or as much as a class weighs."""

BARE, ONE_TEMPERATURE = "uncalibrated", "temperature"
CALIBRATED = tuple(
    f"attention-{kind}" for kind in (BARE, ONE_TEMPERATURE, "prior-mass", "density", "isotonic", "matrix")
)
"""One trained attention before calibration and after each kind of it."""

CORRECTED = "+prior-correction"
"""Ends the name of a method that is told how frequent classes really are."""

BASELINES = ("sklearn-knn", "logistic", "mlp", "mlp-trunk", "hgb", "lightgbm")


ALIKE: Mapping[str, str] = {
    "no-learned-part": "no learned part of the attention was kept",
    "no-trust": "the fitted trust in reliable neighbors is 0",
    "one-neighbor": "with one neighbor there is nothing to weigh",
    "nothing-trained": "nothing is trained, so that vectors are the scaled columns",
    "usual-embedder": "the usual embedder is the periodic one",
    "k-beyond-the-bank": "every k beyond the bank is all of its rows",
    "same-calibrator": "the fitted calibrator is the same",
    "one-k": "all rows have the same single k",
    "one-view": "without augmentation there is one view",
    "one-member": "the ensemble has one member",
    "same-prior": "the correction has the same factor for each class",
    "same-examples": "the class has no more examples",
    "all-agree": "all neighbors of each row are of one class, however they count",
    "official-split": "the rows are the same for every seed, and nothing else is drawn",
}
"""When cells may give the very same predictions, and why; ``alike.RULES`` judges each."""

JUDGES = ("may_coincide",)
"""Fields of a recipe that judge cells when a report is made, and decide none of their numbers."""


def _with_correction(*names: str) -> tuple[str, ...]:
    return (*names, *(f"{name}{CORRECTED}" for name in names))


@dataclass(frozen=True, slots=True)
class Study:
    """A study by name.

    Args:
        name: What it is called on the command line.
        line: What it finds out, in one line.
        methods: What it compares, unless told otherwise; keys of ``methods.METHODS``.
        leads: Methods whose verdicts are printed; the report has all of them.
        on_images: What it compares on images; nothing where it has no meaning there.
        quick: Of all these, what a quick run compares; None is everything.
        slow: What a quick run compares on tables only where it is named.
    """

    name: str
    line: str
    methods: tuple[str, ...]
    leads: tuple[str, ...]
    on_images: tuple[str, ...] = ()
    quick: tuple[str, ...] | None = None
    slow: tuple[str, ...] = ()


STUDIES: dict[str, Study] = {
    "main": Study(
        "main",
        "Every way of weighing neighbors beside kNN, linear models, MLP and trees, calibrated alike, over seeds.",
        methods=(*BASELINES, *OURS, *IN_MANNERS),
        leads=("attention", "attention+ensemble"),
        on_images=ON_IMAGES,
        slow=("mlp-trunk", *(name for name in IN_MANNERS if name not in QUICK_MANNERS)),
    ),
    "ablation": Study(
        "ablation",
        "One thing changed at a time: parts and heads of the attention, then how its vectors are trained.",
        methods=varied("tables"),
        leads=(),
        on_images=varied("images"),
        quick=QUICK,
    ),
    "k-sweep": Study(
        "k-sweep",
        "Accuracy, NLL and ECE against the number of neighbors, on the same vectors.",
        methods=PLAIN,
        leads=("attention",),
        on_images=PLAIN,
    ),
    "noise": Study(
        "noise",
        "Wrong labels at growing rates, everywhere or in the bank alone: what is left, and which are found.",
        methods=("hgb", *PLAIN),
        leads=("attention",),
        on_images=("cnn", *PLAIN),
    ),
    "imbalance": Study(
        "imbalance",
        "Long tails of classes, everywhere or in the bank alone, with and without a correction of the prior.",
        methods=_with_correction("hgb", *PLAIN),
        leads=("attention",),
        on_images=_with_correction("cnn", *PLAIN),
    ),
    "calibration": Study(
        "calibration",
        "Reliability before and after each calibrator, with coverage and per-class curves.",
        methods=(f"hgb-{BARE}", f"hgb-{ONE_TEMPERATURE}", *CALIBRATED),
        leads=CALIBRATED[1:],
        on_images=(f"cnn-{BARE}", f"cnn-{ONE_TEMPERATURE}", *CALIBRATED),
    ),
    "theory": Study(
        "theory",
        "What is claimed of kNN attention, checked on the trained vectors: passed, failed, or reported.",
        methods=("theory",),
        leads=(),
        on_images=("theory",),
    ),
    "efficiency": Study(
        "efficiency",
        "Build, search and memory of each index up to a million rows, and the time of each stage of a prediction.",
        methods=("stages",),
        leads=(),
        on_images=("stages",),
    ),
    "new-class": Study(
        "new-class",
        "A class left out of the training and taught afterwards by a few examples: its recall, and the cost.",
        methods=TAUGHT,
        leads=("taught-20",),
        on_images=TAUGHT,
    ),
}


TOGETHER = tuple(name for name in STUDIES if name != "new-class")
"""The studies that ``all`` runs; that of a new class is about editing, and trains for itself."""

EVERYTHING = Study("all", "All of them but new-class, on trainings that they share, with one page.", (), ())


@dataclass(frozen=True, slots=True)
class Validation:
    """Rows on which a baseline's settings and temperature are chosen.

    Args:
        fraction: Share of the training rows that is held out.
        folds: Below ``folds_below`` training rows each row is held out once, in so many turns.
        folds_below: See ``folds``.
    """

    fraction: float = 0.1
    folds: int = 5
    folds_below: int = 2000


@dataclass(frozen=True, slots=True)
class Noise:
    """Wrong labels among training rows, validation rows and the bank; test rows stay clean."""

    rate: float = 0.0
    kind: Literal["symmetric", "asymmetric"] = "symmetric"


ROBUST = "robust"
"""How robustly the attention is trained, among the options of our methods: studies with wrong labels set it."""

NOISY_TABLES: Mapping[str, Any] = {ROBUST: 0.7}
NOISY_IMAGES: Mapping[str, Any] = {
    "epochs": 120,
    "mix": "cutmix",
    "mix_alpha": 1.0,
    "mix_share": 0.5,
    "relabel": 3,
}
"""What changes where many of the labels to learn from are wrong; epochs only where none were asked for."""


@dataclass(frozen=True, slots=True)
class OurSettings:
    """What our methods share.

    Args:
        embedder: As in ``AttnKNNClassifier``.
        n_neighbors: As in ``AttnKNNClassifier``.
        index: As in ``AttnKNNClassifier``.
        validation_fraction: As in ``AttnKNNClassifier``.
        options: Further arguments of ``AttnKNNClassifier``, and ``ROBUST``.
        images: The state of ``ImageOptions``, which the CNN shares; None for tables.
        table: The state of ``TrainingOptions`` for tables; None trains as usual, below 500 rows nothing.
        heads: Of the attention; None is as usual.
        k_ensemble: The k of a k-ensemble of images; on tables they lie around the fitted k.
        under_noise: What changes where labels to learn from are wrong: of ``images``, else of ``options``.
    """

    embedder: str = "auto"
    n_neighbors: int | str = "auto"
    index: str = "exact"
    validation_fraction: float = 0.1
    options: Mapping[str, Any] = field(default_factory=dict)
    images: Mapping[str, Any] | None = None
    table: Mapping[str, Any] | None = None
    heads: int | None = None
    k_ensemble: tuple[int, ...] = (16, 64, 256, 1024, 4096)
    under_noise: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class KNNGrid:
    """What scikit-learn's kNN is tried with."""

    k: tuple[int, ...] = (1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 75, 100, 150, 200)
    weights: tuple[str, ...] = ("uniform", "distance")


@dataclass(frozen=True, slots=True)
class LogisticGrid:
    """What scikit-learn's logistic regression is tried with."""

    C: tuple[float, ...] = (1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0)


@dataclass(frozen=True, slots=True)
class Rounds:
    """When learning stops: after ``patience`` looks without a better NLL, one look each ``step`` rounds."""

    step: int
    patience: int
    most: int


@dataclass(frozen=True, slots=True)
class MLPGrid:
    """What scikit-learn's MLP is tried with; a round is an epoch."""

    hidden: tuple[tuple[int, ...], ...] = ((128,), (256, 128))
    alpha: tuple[float, ...] = (1e-4, 1e-2)
    learning_rate: tuple[float, ...] = (1e-3,)
    rounds: Rounds = Rounds(step=1, patience=10, most=200)

    def settings(self) -> list[dict[str, Any]]:
        """Every combination."""
        return _combined(hidden=self.hidden, alpha=self.alpha, learning_rate=self.learning_rate)


@dataclass(frozen=True, slots=True)
class TrunkGrid:
    """What the network of our embedder is tried with under a head of its own; a round is an epoch."""

    lr: tuple[float, ...] = (1e-3, 3e-3)
    rounds: Rounds = Rounds(step=1, patience=10, most=200)

    def settings(self) -> list[dict[str, Any]]:
        """Every rate."""
        return _combined(lr=self.lr)


@dataclass(frozen=True, slots=True)
class BoostingGrid:
    """What boosted trees are tried with; a round is a tree for each class."""

    learning_rate: tuple[float, ...] = (0.05, 0.1)
    leaves: tuple[int, ...] = (7, 31)
    rounds: Rounds = Rounds(step=20, patience=3, most=1000)

    def settings(self) -> list[dict[str, Any]]:
        """Every combination."""
        return _combined(learning_rate=self.learning_rate, leaves=self.leaves)


@dataclass(frozen=True, slots=True)
class Recipe:
    """A study of one data set. Methods and seeds are not part of it: more of them only add cells.

    Args:
        study: A key of ``STUDIES``.
        data: Name of the data set or of the file.
        target: What is predicted.
        data_hash: SHA-256 of the rows as they were read.
        train_rows: Leading rows that form the official training set, or None for a split by seed.
        test_share: Share of the rows to test on, or None where the split is official.
        drop_duplicates: Whether rows that repeat in every column count once.
        noise: Wrong labels to learn from.
        validation: Where baselines choose their settings.
        calibration: How every method is calibrated.
        members: Members of an ensemble.
        ours: What our methods share.
        knn: Grid of ``sklearn-knn``.
        logistic: Grid of ``logistic``.
        mlp: Grid of ``mlp``.
        trunk: Grid of ``mlp-trunk``.
        boosting: Grid of ``hgb`` and ``lightgbm``.
        draws: Draws behind the floor of ECE and the bootstrap over test rows.
        most_rows: Training rows at most; None takes all.
        may_coincide: Keys of ``ALIKE``: any other cells with the same predictions are a mistake.
    """

    study: str
    data: str
    target: str
    data_hash: str
    train_rows: int | None = None
    test_share: float | None = 0.2
    drop_duplicates: bool = False
    noise: Noise = Noise()
    validation: Validation = Validation()
    calibration: str = "temperature"
    members: int = 5
    ours: OurSettings = field(default_factory=OurSettings)
    knn: KNNGrid = KNNGrid()
    logistic: LogisticGrid = LogisticGrid()
    mlp: MLPGrid = MLPGrid()
    trunk: TrunkGrid = TrunkGrid()
    boosting: BoostingGrid = BoostingGrid()
    draws: int = 1000
    most_rows: int | None = None
    may_coincide: tuple[str, ...] = tuple(ALIKE)

    def config(self) -> dict[str, Any]:
        """The recipe as JSON would give it back."""
        found: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return found

    @property
    def hash(self) -> str:
        """Names the recipe; every cell carries it."""
        return hash_of(self.config())


def hash_of(config: Mapping[str, Any]) -> str:
    """Names what decides the numbers of a recipe."""
    decides = {name: value for name, value in config.items() if name not in JUDGES}
    return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()


def _combined(**choices: tuple[Any, ...]) -> list[dict[str, Any]]:
    return [dict(zip(choices, each, strict=True)) for each in itertools.product(*choices.values())]
