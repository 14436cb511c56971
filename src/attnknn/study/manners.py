"""Manners of answering on tables: the k that they look at, and what they are compared with."""

from __future__ import annotations

from collections.abc import Sequence

from attnknn.study.differences import pairs
from attnknn.study.recipe import IN_MANNERS


def around(k: int, most: int) -> tuple[int, ...]:
    """The k of a k-ensemble on a table: a quarter to four times the fitted k, as far as there are rows.

    A fixed list suits no two tables: the fitted k tells how far neighbors are of use.

    >>> around(32, 1000), around(1, 1000), around(50, 60)
    ((8, 16, 32, 64, 128), (1, 2, 4), (12, 25, 50, 60))
    """
    wanted = (k // 4, k // 2, k, 2 * k, 4 * k)
    return tuple(sorted({min(max(1, each), most) for each in wanted}))


def table_pairs(methods: Sequence[str], ours: Sequence[str]) -> list[tuple[str, str]]:
    """As ``pairs``, and each manner against its own plain method; those of attention also against each other.

    >>> table_pairs(["hgb", "attention", "attention+k-ensemble"], ["attention"])
    [('attention+k-ensemble', 'attention'), ('attention', 'hgb')]
    """
    manners = [name for name in IN_MANNERS if name in methods]
    found = []
    for at, mine in reversed(list(enumerate(manners))):
        way = mine.partition("+")[0]
        rivals = [other for other in manners[:at] if way == "attention" and other.startswith("attention+")]
        found += [(mine, other) for other in (*reversed(rivals), way) if other in methods]
    return found + pairs([name for name in methods if name not in IN_MANNERS], ours)
