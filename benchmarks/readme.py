"""Write the README's table of speeds from results/synthetic/bench.json.

python benchmarks/readme.py
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
MARKS = re.compile(r"(<!-- speed:.*?-->\n).*?(<!-- /speed -->)", flags=re.S)


def section(results: dict[str, Any]) -> str:
    """The table, with the machine it was measured on."""
    config, found, machine = results["config"], results["data"]["clustered"], results["environment"]
    fit, held = found["fit"], results["memory"]
    return "\n".join(
        [
            "## Speed",
            "",
            f"{config['rows']:,} x {config['dim']} clustered vectors, k = {config['k']}, weights 1 / distance,",
            f"exact search, {machine['cores']} cores ({machine['processor']}); medians over {config['rounds']}",
            "rounds, each method in its own process:",
            "",
            "| predict | Attn-KNN | KNeighborsClassifier (brute) | plain FAISS flat |",
            "|---|---|---|---|",
            *(_row(batch, found[f"predict_{batch}"]) for batch in (1, 64, 1000)),
            "",
            f"Fitting takes {1e3 * fit['attnknn']:.0f} ms against {1e3 * fit['sklearn-knn']:.0f} ms: vectors are",
            "checked, named and laid out twice. That also costs memory: the process, torch included, holds",
            f"{held['attnknn']['after_fit_mib']:.0f} MiB against {held['sklearn-knn']['after_fit_mib']:.0f};",
            f"a batch of 1,000 adds {held['attnknn']['largest_batch_adds_mib']:.0f} MiB. `make bench` repeats it;",
            "[results/synthetic/bench.json](results/synthetic/bench.json) has the record.",
            "",
        ]
    )


def _row(batch: int, cell: dict[str, Any]) -> str:
    ours, theirs, faiss = (f"{1e3 * cell['seconds'][m]:.1f} ms" for m in ("attnknn", "sklearn-knn", "faiss"))
    ratio = cell["times_as_fast_as"]
    queries = "1 query" if batch == 1 else f"{batch} queries"
    return (
        f"| {queries} | {ours} | {theirs} ({ratio['sklearn-knn']:.1f} x ours) | {faiss} ({ratio['faiss']:.1f} x) |"
    )


def updated(readme: str, results: dict[str, Any]) -> str:
    """The README with its table made anew."""
    return MARKS.sub(lambda found: found[1] + section(results) + found[2], readme)


def main() -> None:
    """Rewrite README.md."""
    results = json.loads((ROOT / "results/synthetic/bench.json").read_text())
    readme = ROOT / "README.md"
    readme.write_text(updated(readme.read_text(), results))


if __name__ == "__main__":
    main()
