"""A small table of mixed columns that can be learned."""

from __future__ import annotations

import csv
import random
from pathlib import Path


def people(count: int, seed: int) -> list[dict[str, object]]:
    """Mixed columns with missing values; who is older and works more earns more."""
    draw = random.Random(seed)
    rows = []
    for at in range(count):
        age, hours = draw.randint(18, 70), draw.randint(5, 60)
        score = age + hours + draw.gauss(0, 6)
        rows.append(
            {
                "name": f"p{seed}-{at}",
                "age": "" if draw.random() < 0.1 else age,
                "hours": hours,
                "job": draw.choice(["clerk", "cook", "nurse", ""]),
                "member": draw.choice(["True", "False"]),
                "income": "high" if score > 80 else "low",
            }
        )
    return rows


def write_csv(path: Path, rows: list[dict[str, object]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return path
