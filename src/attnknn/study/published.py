"""What the documents behind this package report, of others as well, to be printed beside our own numbers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Final

FILE: Final = "published.json"


@dataclass(frozen=True, slots=True)
class Published:
    """One number as a document reports it.

    Args:
        document: Short name of the document.
        place: Heading or run that it stands under.
        study: The study of ours that it can be put beside; ``vit`` for token attention.
        data: Name of the data set.
        method: Our name of the method, or its own where only others ran it; for token attention that of the layer,
            for a search that of the index.
        setting: What it was measured with, such as ``k``; empty where the document does not say.
        metric: What was measured; shares are fractions, and a name ends in its unit where there is one.
        value: The number.
        note: How it was made, or what is wrong with it; None where nothing is known.
    """

    document: str
    place: str
    study: str
    data: str
    method: str
    setting: Mapping[str, Any]
    metric: str
    value: float
    note: str | None


@dataclass(frozen=True, slots=True)
class Claim:
    """What a document claims, with its figures, and what speaks against it.

    Args:
        name: What it is about.
        document: Short name of the document.
        place: Heading that it stands under.
        claim: The claim, in our words.
        note: What to know before believing it.
    """

    name: str
    document: str
    place: str
    claim: str
    note: str


def published(study: str | None = None, data: str | None = None) -> tuple[Published, ...]:
    """Published numbers in the order of their documents; none where nobody reported any.

    Args:
        study: Only those that this study can be put beside.
        data: Only those on this data set.

    >>> [each.method for each in published("main", "iris")]
    ['uniform', 'distance', 'attention']
    """
    return tuple(each for each in _entries() if study in (None, each.study) and data in (None, each.data))


def claims() -> dict[str, Claim]:
    """The claims that studies examine, by name.

    >>> claims()["overhead"].claim
    'Attention adds less than 1 ms to each query.'
    """
    return {each["name"]: Claim(**each) for each in _content()["claims"]}


@cache
def _entries() -> tuple[Published, ...]:
    return tuple(Published(**each) for each in _content()["entries"])


def _content() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(files("attnknn.study").joinpath(FILE).read_text("utf-8"))
    return content
