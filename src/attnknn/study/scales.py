"""Scales of attention, as a check of the theory reports them: of each head, and what learned parts make of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from attnknn.attend import LearnedWeighting
from attnknn.estimator.voter import Member
from attnknn.ops import similarity
from attnknn.predict import base_of
from attnknn.study.theory import Check

CLAIM = "Each head weighs similarity by a scale of its own, which learned parts may sharpen or blunt."


def check_scales(heads: Mapping[str, Sequence[Mapping[str, float]]], unknown: Mapping[str, str]) -> Check:
    """Report scales.

    Args:
        heads: What :func:`head_scales` found for each kind of weights.
        unknown: Kinds of weights that there are none of, and why.
    """
    told = [f"{what}: {_words(some)}" for what, some in heads.items()]
    told += [f"{what}: not run: {why}" for what, why in unknown.items()]
    numbers = {"heads": {what: [dict(each) for each in some] for what, some in heads.items()}}
    return Check("scale", "reported", CLAIM, "; ".join(told) + ".", numbers)


def _words(heads: Sequence[Mapping[str, float]]) -> str:
    scales, effective = (", ".join(_said(each[name]) for each in heads) for name in ("scale", "effective"))
    if len(heads) == 1:
        return f"one scale, {scales}, effective {effective} (temperature {_said(1 / heads[0]['scale'])})"
    return f"scales of its {len(heads)} heads {scales}, effective {effective}"


def _said(value: float) -> str:
    return "unknown" if math.isnan(value) else f"{value:.3g}"


@torch.no_grad()
def head_scales(member: Member, vectors: NDArray[Any]) -> list[dict[str, float]]:
    """Scale and effective scale of each head, over the neighbors of some queries.

    The effective scale is how far a head's logits spread for each unit that similarities do, in the median of the
    queries: without learned parts it is the scale itself.

    Args:
        member: Of a fitted voter; its weights have a scale.
        vectors: (queries, dim) as it embeds them.
    """
    weigher, bank = base_of(member.weigher), member.bank
    near = bank.search(vectors, member.k)
    there = torch.from_numpy(near.found)
    gaps = torch.from_numpy(near.distances).double().masked_fill(~there, 0.0)
    alike = similarity(gaps, bank.metric)[:, None]
    if not isinstance(weigher, LearnedWeighting):
        return [{"scale": float(weigher.scale), "effective": _ratio(weigher.scale * alike, alike, there)[0]}]
    attention = weigher.attention
    facts = {name: each.to(attention.unit.device) for name, each in weigher.facts(near, bank, vectors).items()}
    logits = torch.stack([each.double().cpu() for each in attention.logit_parts(**facts).values()]).sum(dim=0)
    scales = attention.scales.tolist()
    return [
        {"scale": scale, "effective": effective}
        for scale, effective in zip(scales, _ratio(logits, alike, there), strict=True)
    ]


def _ratio(logits: Tensor, alike: Tensor, there: Tensor) -> list[float]:
    """Spread of (queries, heads, k) logits over that of similarities; NaN where all neighbors are alike."""
    of_logits, of_similarity = (_spread(each, there[:, None]) for each in (logits, alike))
    told = of_similarity[:, 0] > 1e-12
    ratios = (of_logits / of_similarity)[told]
    return (
        [float(each) for each in ratios.median(dim=0).values] if len(ratios) else [float("nan")] * logits.shape[1]
    )


def _spread(values: Tensor, there: Tensor) -> Tensor:
    """Standard deviation over the neighbors that exist."""
    count = there.sum(dim=-1).clamp(min=1)
    mean = values.masked_fill(~there, 0.0).sum(dim=-1) / count
    squares = ((values - mean[..., None]) ** 2).masked_fill(~there, 0.0).sum(dim=-1)
    return (squares / count).sqrt()
