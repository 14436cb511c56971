"""Write the tables of README.md and of docs/reference/results.md, and figures, from the recorded runs in results/.

python benchmarks/tables.py
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ablation_tables
import gpu_tables
import image_tables
import vit_tables
from attnknn.study.answers import answers as answers_to
from attnknn.study.plots import bars
from attnknn.study.published import claims
from attnknn.study.verdicts import JUDGED, short, verdict
from attnknn.study.written import alone
from image_tables import estimate, wrong

ROOT = Path(__file__).resolve().parent.parent
DATA = ("adult", "letter", "digits", "wine-quality-red", "bank-marketing", "german-credit")
"""Data sets of the tables, in their order; one without results is left out."""

COLUMNS = ("sklearn-knn", "mlp", "hgb", "lightgbm", "attention", "attention+ensemble")
"""Methods of the table in the README; the others are in the details."""

ASKED = ("distance", "reliability")
"""What the attention must be compared with, whatever comes out."""

Report = Mapping[str, Any]


def summary(reports: Sequence[Report]) -> str:
    """Accuracy and NLL of the methods that matter most, a row for each data set."""
    if not reports:
        return "## Accuracy\n\nNo results are recorded yet; `attnknn study main` makes them.\n"
    lines = [
        "## Accuracy",
        "",
        "Accuracy / NLL on test rows, means over seeds. Every method has its settings and its temperature chosen",
        "on training rows. Intervals, calibration and all other methods are in",
        "[docs/reference/results.md](docs/reference/results.md), with the commands that repeat them.",
        "",
        f"| data | seeds | {' | '.join(f'`{name}`' for name in COLUMNS)} |",
        f"|{'---|' * (len(COLUMNS) + 2)}",
        *(image_tables.row(each, [_two(each, name) for name in COLUMNS]) for each in reports),
    ]
    return "\n".join([*lines, ""])


def _two(report: Report, name: str) -> str:
    found = report["methods"].get(name)
    if found is None:
        return "-"
    means = [found[metric]["mean"] for metric in ("accuracy", "nll")]
    seeds, all_seeds = (sum(v is not None for v in found["accuracy"]["values"]), len(report.get("seeds", ())))
    few = f" (*n* = {seeds})" if seeds < all_seeds else ""
    return " / ".join("-" if mean is None else short(mean) for mean in means) + few


def details(reports: Sequence[Report]) -> str:
    """A table for each report, the command that made it, and what the attention adds."""
    return "\n".join("\n".join(_study(report)) for report in reports)


def _study(report: Report) -> list[str]:
    methods = report["methods"]
    two_classes = any("auc" in found for found in methods.values())
    titles = ["method", "accuracy", "NLL", "ECE (floor)", *["AUC"] * two_classes, "*n*"]
    return [
        f"**{report['config']['data']}**, {_split(report['config'])}:",
        "",
        f"| {' | '.join(titles)} |",
        f"|{'---|' * len(titles)}",
        *(_method(name, found, two_classes=two_classes) for name, found in methods.items()),
        "",
        *(f"- {sentence}" for sentence in _gains(report.get("differences", {}))),
        f"- repeat: `{report['command']}`",
        "",
    ]


def in_full(reports: Sequence[Report]) -> str:
    """Every method of each report, without the sentences: those are in the details."""
    return "\n".join("\n".join(_table(report)) for report in reports)


def _table(report: Report) -> list[str]:
    tell = image_tables.details if report["config"]["data"] in image_tables.DATA else details
    head, *rest = tell([report]).splitlines()
    rows = [line for line in rest if line.startswith("|")]
    return [f"{head.removesuffix(':')}; means ± half of the 95 % interval over seeds:", "", *rows, ""]


def _split(config: dict[str, Any]) -> str:
    if config["train_rows"] is not None:
        words = f"the first {config['train_rows']:,} rows train, the others test"
    else:
        words = f"{config['test_share']:.0%} of the rows test".replace("%", " %")
    return words + ", duplicates dropped" * config["drop_duplicates"] + wrong(config)


def _method(name: str, found: dict[str, Any], *, two_classes: bool) -> str:
    floor = found.get("ece_floor", {}).get("mean")
    cells = [
        f"`{name}`",
        estimate(found["accuracy"]),
        estimate(found["nll"]),
        estimate(found["ece"]) + ("" if floor is None else f" ({short(floor)})"),
        *([estimate(found["auc"]) if "auc" in found else "-"] * two_classes),
        str(sum(value is not None for value in found["accuracy"]["values"])),
    ]
    return f"| {' | '.join(cells)} |"


def _gains(differences: dict[str, Any]) -> list[str]:
    found = differences.get("attention", {})
    return [
        verdict("attention", other, JUDGED[metric], found[other][metric])
        for other in ASKED
        for metric in ("accuracy", "nll")
        if metric in found.get(other, {})
    ]


def speed(results: dict[str, Any]) -> str:
    """The table of speeds, with the machine it was measured on."""
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


def cpu(reports: Sequence[Report]) -> str:
    """How long a fit takes without a GPU, in words."""
    lines = []
    for each in reports:
        seconds, machine = each["seconds"]["attention"]["fit"]["values"], each["environment"]
        accuracy = each["methods"]["attention"]["accuracy"]["mean"]
        lines.append(
            f"- {each['config']['data']}: {max(seconds):.0f} s on {machine['cores']} cores "
            f"({machine['processor']}), accuracy {short(accuracy)}; `{each['command']}`"
        )
    return "\n".join([*lines, ""])


def answers(reports: Sequence[Report]) -> str:
    """What each run of all studies says to the claims of the source documents."""
    lines = []
    for each in reports:
        studies = list(each["studies"].values())
        seeds = max(len(study["seeds"]) for study in studies)
        lines += [
            f"**{each['config']['data']}**, {seeds} seeds; `{each['command']}`",
            "",
            *(_points(name, answers_to(name, studies)) for name in claims()),
            "",
        ]
    return "\n".join(lines)


def _points(name: str, sentences: Sequence[str]) -> str:
    """An answer as a point of a list; where it has several sentences, each is a point below it."""
    return f"- {name}: {sentences[0]}" if len(sentences) == 1 else "\n  - ".join([f"- {name}:", *sentences])


def recorded(results: Path, study: str = "main", data: Sequence[str] = DATA) -> list[dict[str, Any]]:
    """The reports of a study that are there, in the order of ``data``."""
    paths = (results / name / f"{study}.json" for name in data)
    return [json.loads(path.read_text()) for path in paths if path.exists()]


def token_layers(results: Path, names: Sequence[str]) -> list[dict[str, Any]]:
    """The reports of token layers that are there, in the order of ``names``."""
    return [report for name in names for report in recorded(results, name, ("vit",))]


def updated(page: str, results: Path) -> str:
    """A page with those of its tables that are made from results made anew."""
    made: dict[str, Callable[[], str]] = {
        "accuracy": lambda: summary(recorded(results)),
        "cpu": lambda: cpu(recorded(results, "cpu")),
        "details": lambda: details(recorded(results)),
        "noise": lambda: details(recorded(results, "noise")),
        "parts": lambda: ablation_tables.details(
            [
                *recorded(results, "ablation", (*DATA, *image_tables.DATA)),
                *recorded(results, "ablation-trainings", image_tables.DATA),
            ]
        ),
        "images": lambda: image_tables.summary(recorded(results, data=image_tables.DATA)),
        "image-details": lambda: image_tables.details(recorded(results, data=image_tables.DATA)),
        "image-noise": lambda: image_tables.details(recorded(results, "noise-sym-40", image_tables.DATA)),
        "image-new-class": lambda: image_tables.taught(recorded(results, "new-class", image_tables.DATA)),
        "image-axes": lambda: image_tables.along(
            [each for study in ("noise", "imbalance") for each in recorded(results, study, image_tables.DATA)]
        ),
        "vit-short": lambda: vit_tables.summary(token_layers(results, vit_tables.DATA)),
        "vit": lambda: vit_tables.details(token_layers(results, vit_tables.DATA)),
        "vit-224": lambda: vit_tables.beside(token_layers(results, ("cifar10-224",))),
        "vit-bench": lambda: vit_tables.costs(recorded(results, "bench", ("vit",))),
        "in-full": lambda: in_full([*recorded(results, data=("cifar10",)), *recorded(results, data=("adult",))]),
        "all": lambda: answers(recorded(results, "all", ("iris", *DATA, "wine-quality-red-good", "mnist"))),
        "gpu": lambda: gpu_tables.details(json.loads((results / "gpu/kernels.json").read_text())),
        "speed": lambda: speed(json.loads((results / "synthetic/bench.json").read_text())),
    }
    for name, section in made.items():
        marks = re.compile(rf"(<!-- {name}:.*?-->\n).*?(<!-- /{name} -->)", flags=re.S)
        page = marks.sub(lambda found, section=section: found[1] + section() + found[2], page)  # type: ignore[misc]
    return page


PAGES = ("README.md", "docs/reference/results.md")
FIGURES = {"cifar10-accuracy": ("cifar10", "accuracy"), "adult-nll": ("adult", "nll")}
"""Figures of the README: the set whose methods are drawn, and the metric."""


def figures(results: Path) -> dict[str, str]:
    """The content of each figure's file, by its name in docs/figures."""
    reports = {data: json.loads((results / data / "main.json").read_text()) for data, _ in FIGURES.values()}
    return {f"{name}.svg": alone(bars(reports[data], metric)) for name, (data, metric) in FIGURES.items()}


def main() -> None:
    """Rewrite the pages, and draw the figures."""
    for name in PAGES:
        page = ROOT / name
        page.write_text(updated(page.read_text(), ROOT / "results"))
    folder = ROOT / "docs" / "figures"
    folder.mkdir(exist_ok=True)
    for name, content in figures(ROOT / "results").items():
        (folder / name).write_text(content)


if __name__ == "__main__":
    main()
