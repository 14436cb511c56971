"""What an ablation changes, one thing at a time, and what each change is compared with. Imports nothing slow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

PARTS = ("projections", "distance_bias", "label_bias", "prototypes", "self_attention", "neighbor_dropout")
"""The learned parts of the attention that can be switched off, one at a time."""

HEADS = (1, 2, 8)
"""Heads of the attention, beside the usual 4."""

USUAL = "attention"
"""The training as it always is."""

_ALL: Final = {"distance_bias": True, "prototypes": True, "self_attention": True, "always": True}
_OFF: Final[dict[str, dict[str, Any]]] = {
    "projections": {"projections": False, "self_attention": False},  # which refines what projections compare
    "neighbor_dropout": {"neighbor_dropout": 0.0},
}


@dataclass(frozen=True, slots=True)
class Variant:
    """A method that differs from another in one thing.

    Args:
        reference: The method that it is compared with; None for one that is only a reference.
        attention: Arguments of ``AttentionOptions``, on the vectors of the usual training; None is the usual ones.
        embedder: As in ``AttnKNNClassifier``; None is the usual one.
        training: Options of the training that are not as usual; what has some is trained anew.
        data: What it has a meaning for; None is everything.
    """

    reference: str | None
    attention: Mapping[str, Any] | None = None
    embedder: str | None = None
    training: Mapping[str, Any] = field(default_factory=dict)
    data: Literal["tables", "images"] | None = None


def _on_tables(reference: str, embedder: str | None = None, **training: Any) -> Variant:
    return Variant(reference, embedder=embedder, training=training, data="tables")


def _on_images(**training: Any) -> Variant:
    return Variant(USUAL, training=training, data="images")


VARIANTS: dict[str, Variant] = {
    "attention-none": Variant(None, {"projections": False, "label_bias": False}),
    "attention-all": Variant("attention-none", _ALL),
    **{f"attention-all-{part}": Variant("attention-all", _ALL | _OFF.get(part, {part: False})) for part in PARTS},
    **{f"attention-all-heads-{heads}": Variant("attention-all", {**_ALL, "heads": heads}) for heads in HEADS},
    "attention-with-smoothing": Variant(USUAL, training={"label_smoothing": 0.1}),
    "attention-with-contrastive": Variant(USUAL, training={"contrastive": 0.5}),
    "attention-without-leave-one-out": Variant(USUAL, training={"leave_one_out": False}),
    "attention-with-auxiliary": _on_tables(USUAL, auxiliary=1.0),
    "attention-untrained": _on_tables(USUAL, "standardize"),
    "attention-tabular": _on_tables(USUAL, "tabular"),
    # Usual is the better of two embedders where all columns are numbers; only this one has a shape to change.
    "attention-periodic": _on_tables(USUAL, "periodic"),
    "attention-periodic-embed-32": _on_tables("attention-periodic", "periodic", embed_dim=32),
    "attention-periodic-embed-512": _on_tables("attention-periodic", "periodic", embed_dim=512),
    "attention-periodic-blocks-2": _on_tables("attention-periodic", "periodic", blocks=2),
    "attention-periodic-dropout-0": _on_tables("attention-periodic", "periodic", dropout=0.0),
    "attention-periodic-dropout-0.4": _on_tables("attention-periodic", "periodic", dropout=0.4),
    "attention-embed-32": _on_images(embed_dim=32),
    "attention-embed-512": _on_images(embed_dim=512),
    "attention-resnet50": _on_images(backbone="resnet50"),
    "attention-without-auxiliary": _on_images(auxiliary=0.0),
    "attention-with-hard": _on_images(hard=0.5),
    "attention-without-augmentation": _on_images(augmentation="none"),
    "attention-with-mixup": _on_images(mix="mixup"),
    "attention-pretrained": _on_images(backbone="efficientnet-lite0", frozen=True),
}
"""Each by its name; none is dropped for lack of gain."""

QUICK = ("attention-none", "attention-all", f"attention-all-heads-{HEADS[0]}")
"""Of what shares the vectors of one training: no part, all of them, and one head; 8 would take far longer."""


def varied(data: Literal["tables", "images"]) -> tuple[str, ...]:
    """The methods of an ablation of tables or of images, the usual one first."""
    return (USUAL, *(name for name, each in VARIANTS.items() if each.data in (None, data)))


def reference_pairs(methods: Sequence[str]) -> list[tuple[str, str]]:
    """Each variant against its reference, where both are there.

    >>> reference_pairs(["attention", "attention-all", "attention-all-heads-1", "attention-tabular"])
    [('attention-all-heads-1', 'attention-all'), ('attention-tabular', 'attention')]
    """
    found = [(name, each.reference) for name, each in VARIANTS.items() if name in methods]
    return [(name, other) for name, other in found if other is not None and other in methods]
