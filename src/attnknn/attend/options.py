"""Which parts a learned attention has, and how wide they are."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Literal, get_args

from attnknn.errors import InvalidInput

PartName = Literal["projections", "distance_bias", "label_bias", "prototypes", "self_attention"]
PARTS: Final[tuple[PartName, ...]] = get_args(PartName)

_HEADS, _HEAD_DIM, _HIDDEN, _DROPOUT = 4, 16, 16, 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionOptions:
    """The parts of a :class:`MultiHeadNeighborAttention`; with all of them off it is softmax weighting.

    A width that no part reads is an error, so widths default to None, "as usual". The properties ``num_heads``,
    ``key_dim``, ``hidden_dim`` and ``dropout`` say what holds.

    Args:
        heads: Heads, 4 unless given. Only the projections, which start at random, can make heads differ:
            without them every head would learn the same, so there is one.
        head_dim: Width of each head's query and key projections, 16 unless given.
        projections: Whether learned projections of query and neighbor are compared.
        distance_bias: Whether a small network of the distance adds to the logits.
        label_bias: Whether a small network of a neighbor's label adds to the logits: how common the label is
            among the neighbors, and how reliable it is.
        prototypes: Whether a neighbor counts more the closer it is to the prototype of its class.
        self_attention: Whether neighbors look at each other before their projections are compared.
        hidden: Width of the two small networks, 16 unless given.
        neighbor_dropout: Share of the neighbors hidden from each training query, 0.1 unless given.
        robust: For labels that may be wrong, above 0 and up to 1; 0.7 is a good choice. The parts are trained
            with a loss that wrong labels cannot dominate, the less so the larger it is; 0 is NLL.
        always: Whether the learned parts are kept even where they do not improve the validation NLL.

    >>> AttentionOptions(prototypes=True).without("projections").parts
    ('label_bias', 'prototypes')
    """

    heads: int | None = None
    head_dim: int | None = None
    projections: bool = True
    distance_bias: bool = False
    label_bias: bool = True
    prototypes: bool = False
    self_attention: bool = False
    hidden: int | None = None
    neighbor_dropout: float | None = None
    robust: float = 0.0
    always: bool = False

    def __post_init__(self) -> None:
        for part in (*PARTS, "always"):
            if not isinstance(getattr(self, part), bool):
                raise InvalidInput(f"{part} must be True or False, got {getattr(self, part)!r}")
        for name in ("heads", "head_dim", "hidden"):
            width = getattr(self, name)
            if width is not None and (isinstance(width, bool) or not isinstance(width, int) or width < 1):
                raise InvalidInput(f"{name} must be a whole number of at least 1, got {width!r}")
        rate = self.neighbor_dropout
        if rate is not None and not (_between(rate, 0, 1) and rate < 1):
            raise InvalidInput(f"neighbor_dropout must be at least 0 and below 1, got {rate!r}")
        if not _between(self.robust, 0, 1):
            raise InvalidInput(f"robust must lie within 0 and 1, got {self.robust!r}")
        self._check_that_all_is_read()

    def _check_that_all_is_read(self) -> None:
        if self.self_attention and not self.projections:
            raise InvalidInput("self_attention=True refines what projections compare, but projections=False")
        if not self.projections and (self.heads or 1) > 1:
            raise InvalidInput(f"heads={self.heads} without projections: nothing could make them differ")
        if not self.projections and self.head_dim is not None:
            raise InvalidInput(f"head_dim={self.head_dim} is the width of projections, but projections=False")
        if not (self.distance_bias or self.label_bias) and self.hidden is not None:
            raise InvalidInput(f"hidden={self.hidden} is the width of a bias, but both biases are off")
        if not self.parts and self.always:
            raise InvalidInput("always=True keeps the learned parts, but all of them are off")
        if not self.parts and self.robust:
            raise InvalidInput(f"robust={self.robust} is how parts are trained, but all of them are off")
        if not self.parts and self.neighbor_dropout:
            raise InvalidInput(f"neighbor_dropout={self.neighbor_dropout} without any learned part")

    @property
    def parts(self) -> tuple[PartName, ...]:
        """The parts that are on."""
        return tuple(name for name in PARTS if getattr(self, name))

    @property
    def num_heads(self) -> int:
        """Heads: as given; else 4, or 1 where nothing could make them differ."""
        return self.heads or (_HEADS if self.projections else 1)

    @property
    def key_dim(self) -> int:
        """Width of each head's projections."""
        return self.head_dim or _HEAD_DIM

    @property
    def hidden_dim(self) -> int:
        """Width of the networks of the biases."""
        return self.hidden or _HIDDEN

    @property
    def dropout(self) -> float:
        """Share of the neighbors hidden in training: as given; else 0.1, or 0 where nothing is learned."""
        if self.neighbor_dropout is not None:
            return self.neighbor_dropout
        return _DROPOUT if self.parts else 0.0

    def without(self, *parts: PartName) -> AttentionOptions:
        """The same with these parts off, and with them whatever only they read."""
        unknown = set(parts) - set(PARTS)
        if unknown:
            raise InvalidInput(f"no part {', '.join(sorted(unknown))}; there are: {', '.join(PARTS)}")
        gone = {*parts, "self_attention"} if "projections" in parts else set(parts)
        left = set(self.parts) - gone
        off: dict[str, Any] = dict.fromkeys(gone, False)
        if "projections" not in left:
            off |= {"heads": None, "head_dim": None}
        if not left & {"distance_bias", "label_bias"}:
            off["hidden"] = None
        if not left:
            off |= {"neighbor_dropout": None, "robust": 0.0, "always": False}
        return replace(self, **off)

    def state(self) -> dict[str, Any]:
        """The options as given, for JSON; ``AttentionOptions(**state)`` makes them again."""
        return asdict(self)


def _between(value: Any, low: float, high: float) -> bool:
    return not isinstance(value, bool) and isinstance(value, int | float) and low <= value <= high
