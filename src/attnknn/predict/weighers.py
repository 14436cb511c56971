"""All that may weigh the neighbors of a served member, and how it is made again from what was saved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from torch import Tensor

from attnknn.attend import weigher_from_state as base_from_state
from attnknn.predict.adaptive import ByCertificate, ByEntropy
from attnknn.predict.several import BaseWeigher, KEnsemble

AnyWeigher = BaseWeigher | KEnsemble | ByEntropy | ByCertificate
_AROUND: Final[dict[Any, Any]] = {each.kind: each for each in (KEnsemble, ByEntropy, ByCertificate)}


def base_of(weigher: AnyWeigher) -> BaseWeigher:
    """What weighs the neighbors of one k."""
    return weigher.base if isinstance(weigher, KEnsemble | ByEntropy | ByCertificate) else weigher


def weigher_from_state(state: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> AnyWeigher:
    """The weigher whose ``state()`` and, if something in it is learned, weights these are."""
    kind = state.get("kind")
    if kind not in _AROUND:
        return base_from_state(state, tensors)
    given = {name: value for name, value in state.items() if name not in ("kind", "base")}
    made: AnyWeigher = _AROUND[kind](base_from_state(state["base"], tensors), **given)
    return made
