"""What options may be: names that the packages know, kept here because those are slow to import."""

from enum import StrEnum
from typing import Annotated, Any

import typer


def option(choices: type[StrEnum], panel: str | None = None) -> Any:
    """An option that takes one of several names; its help is what the docstring of ``choices`` says."""
    names = [choice.value for choice in choices]
    text = (choices.__doc__ or "").removesuffix(".")
    said = f"{text}: {', '.join(names[:-1])} or {names[-1]}."
    return typer.Option(metavar="NAME", help=said, rich_help_panel=panel)


class Weights(StrEnum):
    """How much each neighbor counts."""

    attention = "attention"
    uniform = "uniform"
    distance = "distance"
    softmax = "softmax"
    reliability = "reliability"


class Embedder(StrEnum):
    """How rows become vectors."""

    auto = "auto"
    periodic = "periodic"
    tabular = "tabular"
    linear = "linear"
    image = "image"
    standardize = "standardize"
    identity = "identity"


class Metric(StrEnum):
    """What near means."""

    auto = "auto"
    l2 = "l2"
    cosine = "cosine"
    ip = "ip"


class Index(StrEnum):
    """How neighbors are found."""

    auto = "auto"
    exact = "exact"
    flat = "flat"
    hnsw = "hnsw"
    ivf = "ivf"


class Calibration(StrEnum):
    """How votes become probabilities."""

    auto = "auto"
    density = "density"
    temperature = "temperature"
    isotonic = "isotonic"
    matrix = "matrix"
    prior = "prior"
    none = "none"


class ClassWeight(StrEnum):
    """How much each class counts."""

    none = "none"
    balanced = "balanced"


class Policy(StrEnum):
    """Random changes to training images; unless given, what suits the data set."""

    photos = "photos"
    digits = "digits"
    clothes = "clothes"
    none = "none"


class Mix(StrEnum):
    """Let each training image hold a part of another."""

    mixup = "mixup"
    cutmix = "cutmix"


class AdaptiveK(StrEnum):
    """Give each query its own k, by the spread of its weights or a bound on what is left out."""

    entropy = "entropy"
    certificate = "certificate"


class NoiseKind(StrEnum):
    """Which class a wrong label names."""

    symmetric = "symmetric"
    asymmetric = "asymmetric"


class Source(StrEnum):
    """Settings of an experiment of the source documents, in place of the usual ones."""

    exp3 = "seed-exp3"
    exp4 = "seed-exp4"
    exp5 = "seed-exp5"


WeightsOption = Annotated[Weights, option(Weights)]
EmbedderOption = Annotated[Embedder, option(Embedder)]
MetricOption = Annotated[Metric, option(Metric)]
IndexOption = Annotated[Index, option(Index)]
CalibrationOption = Annotated[Calibration, option(Calibration)]
ClassWeightOption = Annotated[ClassWeight, option(ClassWeight)]
PolicyOption = Annotated[Policy | None, option(Policy, "Images")]
NoiseOption = Annotated[NoiseKind, option(NoiseKind)]
SourceOption = Annotated[Source | None, option(Source, "Images")]
MixOption = Annotated[Mix | None, option(Mix, "Images")]
AdaptiveOption = Annotated[AdaptiveK | None, option(AdaptiveK, "Answers")]
