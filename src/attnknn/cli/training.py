"""Options of a training on the command line: which are of tables, which of images, and what they make together."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from attnknn.cli.choices import AdaptiveK, Embedder
from attnknn.errors import InvalidInput, MissingData

if TYPE_CHECKING:
    from attnknn.predict import PredictionOptions
    from attnknn.train import TrainingOptions

Given = Mapping[str, Any]

_OF_TABLES: Final = ("ids", "blocks")
_OF_TRAINING: Final = (
    "epochs",
    "lr",
    "batch_size",
    "augmentation",
    "compile",
    "mix",
    "relabel",
)  # of the backbone
_NOT_OF_TRAINING: Final = ("image_size", "ids", "tta", "head_prior")
OF_IMAGES: Final = (
    *("image_size", "backbone", "pretrained", "frozen", "augmentation", "compile"),
    *("mix", "relabel", "tta", "head_prior"),
)
_NAMES: Final = {"pretrained": "weights"}  # where an option of the command is called otherwise in the package


def check_flags(data: str, given: Given, *, images: bool, embedder: Embedder, members: int) -> None:
    """Refuse options that nothing would read, before any work is done.

    Args:
        data: What the user named.
        given: Options by name; None, or False, where one was left out.
        images: Whether DATA holds images.
        embedder: As given.
        members: As given.
    """
    for name in _OF_TABLES if images else OF_IMAGES:
        if _is_given(given, name):
            has, lacks = ("images", "tables") if images else ("a table", "images")
            raise InvalidInput(f"{_flag(name)} is for {lacks}, but {data} holds {has}")
    if not images:
        return
    if embedder not in (Embedder.auto, Embedder.image):
        raise InvalidInput(f"--embedder {embedder} is for tables, but {data} holds images")
    _check_backbone(given["backbone"])
    if given["pretrained"] is not None and not Path(given["pretrained"]).is_file():
        raise MissingData(f"no such file: {given['pretrained']} (--pretrained)")
    if given["frozen"]:
        _check_frozen(given, members)


def options(data: str, given: Given, *, images: bool) -> TrainingOptions | None:
    """The options of training that were given; None for a table where none was.

    Args:
        data: The name of a data set may say which augmentation suits it.
        given: Options by name; None, or False, where one was left out.
        images: Whether DATA holds images.
    """
    from attnknn.train import ImageOptions, TrainingOptions
    from attnknn.train.policies import policy_for

    known = {_NAMES.get(name, name): given[name] for name in given if _is_given(given, name)}
    for name in _NOT_OF_TRAINING:
        known.pop(name, None)
    if images:
        return ImageOptions(**{"augmentation": policy_for(data), **known})
    return TrainingOptions(**known) if known else None


def prediction(
    *, tta: bool, k_ensemble: str | None, adaptive_k: AdaptiveK | None, head_prior: bool
) -> PredictionOptions | None:
    """The options of answering that were given; None where none was."""
    if not (tta or k_ensemble is not None or adaptive_k is not None or head_prior):
        return None
    from attnknn.predict import PredictionOptions

    parts = None if k_ensemble is None else [part.strip() for part in k_ensemble.split(",")]
    if parts is not None and not all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts):
        raise InvalidInput(f"--k-ensemble {k_ensemble}: give whole numbers between commas, such as 16,64,256")
    return PredictionOptions(
        views="probabilities" if tta else None,
        k_ensemble=None if parts is None else tuple(map(int, parts)),
        adaptive_k=None if adaptive_k is None else adaptive_k.value,
        prior="head" if head_prior else "classes",
    )


def picture_size(text: str | None) -> tuple[int, int] | None:
    """Height and width of ``32`` or ``32x48``.

    >>> picture_size("32"), picture_size("28x40")
    ((32, 32), (28, 40))
    """
    if text is None:
        return None
    from attnknn.data.images import LEAST_SIDE, MOST_SIDE

    parts = text.lower().split("x")
    sides = [int(part) for part in parts if part.isascii() and part.isdigit() and len(part) < 6]
    if len(sides) != len(parts) or len(sides) > 2 or not all(LEAST_SIDE <= side <= MOST_SIDE for side in sides):
        raise InvalidInput(
            f"--image-size {text}: give a side, such as 32, or height and width, such as 32x48, "
            f"from {LEAST_SIDE} to {MOST_SIDE}"
        )
    return sides[0], sides[-1]


def _is_given(given: Given, name: str) -> bool:
    value = given.get(name)
    return value is not None and value is not False  # 0 is given


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _check_backbone(name: str | None) -> None:
    from attnknn.embed.images import BACKBONES

    if name is not None and name not in BACKBONES[:-1] and not (name.startswith("timm:") and len(name) > 5):
        raise InvalidInput(f"--backbone {name}: no backbone has that name; try one of: {', '.join(BACKBONES)}")


def _check_frozen(given: Given, members: int) -> None:
    backbone = given["backbone"] or "resnet18"
    if given["pretrained"] is None and backbone != "efficientnet-lite0":
        raise InvalidInput(
            f"--frozen keeps the backbone as it is, and {backbone} would stay random: give its weights with "
            "--pretrained FILE, or take --backbone efficientnet-lite0"
        )
    useless = [_flag(name) for name in _OF_TRAINING if _is_given(given, name)]
    if members > 1:
        useless.append("--members")
    if useless:
        raise InvalidInput(f"{useless[0]} is of a backbone that is trained, but --frozen keeps it as it is")
