"""What a report says in sentences: what was found, what that says to the four claims, and what was not run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from attnknn.study.plots import SHOWN
from attnknn.study.points import BANK, method_of
from attnknn.study.tables import finite
from attnknn.study.verdicts import ends_of, of_leads, verdict

_WORST: Final = ("fail", "not run", "reported", "pass")

STATISTICS: Final = (
    "Differences are paired by seed and test row. An interval is made of two: Student's t over seeds, and the "
    "bootstrap over test rows, which for accuracy is one row wider at both ends. Where all seeds test the same "
    "rows, both add up as squares do, else the wider one counts at each end. A difference is stated where all of "
    "it lies on one side of 0. Of pairs that differ in nothing, about one in twenty looks as if it did."
)
"""How verdicts are made, for those who read them."""


def subtitle(report: Mapping[str, Any]) -> str:
    """The line under the title."""
    seeds, quick = len(report["seeds"]), report["config"]["most_rows"] is not None
    words = f"{seeds} seed{'s' * (seeds != 1)}; intervals are of 95 %; commit {report['commit']}"
    return words + "; quick: short trainings, few settings tried" * quick


def sentences_of(report: Mapping[str, Any], leads: Sequence[str]) -> list[str]:
    """What a study found: differences of its leads, checks, what attention adds, and what its leads retain."""
    return [*of_leads(report["verdicts"], leads), *checked(report), *overheads(report), *retained(report, leads)]


def checked(report: Mapping[str, Any]) -> list[str]:
    """A sentence for each check of the theory: its verdicts over the seeds, and what the worst of them found."""
    each: dict[str, list[Mapping[str, Any]]] = {}
    for told in (told for some in report["settings"].values() for told in some if told):
        for check in told.get("checks", ()):
            each.setdefault(check["name"], []).append(check)
    sentences = []
    for name, some in each.items():
        verdicts = [check["verdict"] for check in some]
        worst = next((check for word in _WORST for check in some if check["verdict"] == word), some[0])
        counts = ", ".join(f"{word} in {verdicts.count(word)}" for word in _WORST if word in verdicts)
        words = counts if len(some) > 1 else verdicts[0]
        sentences.append(f"{name}: {words}. {worst['claim']} {worst['found']}")
    return sentences


def retained(report: Mapping[str, Any], leads: Sequence[str] = ()) -> list[str]:
    """A sentence for each place with changed labels or rows: what is left of the accuracy, of leads or of all."""
    known = {name: found for name, found in report["retention"].items() if finite(found["mean"])}
    led = [name for name in known if method_of(name) in leads] or list(known)
    return [f"{name} keeps {share(known[name])} of its accuracy over {_seeds(known[name])}" for name in led]


def share(found: Mapping[str, Any]) -> str:
    """A share of what there was, with its interval.

    >>> share({"mean": 0.9, "low": 0.85, "high": 0.95})
    '90.0% [85.0%, 95.0%]'
    """
    low, high = ends_of(found)
    return f"{found['mean']:.1%}" + (f" [{max(0.0, low):.1%}, {high:.1%}]" if finite(low) else "")


def _seeds(found: Mapping[str, Any]) -> str:
    """How many seeds a number is of."""
    count = sum(each is not None for each in found["values"])
    return f"{count} seed{'s' * (count != 1)}"


def overheads(report: Mapping[str, Any]) -> list[str]:
    """What weighing adds to a query, by the first seed that was timed."""
    told = [each for some in report["settings"].values() for each in some if each and "overhead" in each]
    return [str(each["overhead"]) for each in told[:1]]


def answered(claim: str, reports: Sequence[Mapping[str, Any]]) -> str:
    """What the first of some reports that can say anything says to a claim; else what would have to be run."""
    return "; ".join(answers(claim, reports))


def answers(claim: str, reports: Sequence[Mapping[str, Any]]) -> list[str]:
    """The same, sentence by sentence."""
    study, answer = _ANSWERS[claim]
    found = (answer(each) for each in sorted(reports, key=lambda each: each["study"] != study))
    return next((words for words in found if words), [f"not run: attnknn study {study}"])


def _compared(report: Mapping[str, Any], metrics: Sequence[str], *others: str) -> list[str]:
    """Attention against those of the others that there are, and by how much ECE changes relative to the first."""
    gaps = report["differences"].get("attention", {})
    there = [name for name in others if name in gaps]
    found = [
        verdict("attention", other, SHOWN[metric], gaps[other][metric])
        for other in there
        for metric in metrics
        if metric in gaps[other]
    ]
    if there and "ece" in metrics:
        before, now = (report["methods"][name]["ece"]["mean"] for name in (there[0], "attention"))
        found += [f"ECE changes by {(now - before) / before:+.0%}"] if finite(before) and before > 0 else []
    return found


def _robustness(report: Mapping[str, Any]) -> list[str]:
    """What is left at the far end of each line, and of whom more; the places before it are in the table."""
    if report["study"] != "noise":
        return []
    ends: dict[str, str] = {}  # by line, the place where most is wrong
    for place, told in sorted(report["points"].items(), key=lambda each: float(each[1]["at"])):
        if told["line"]:
            ends[told["line"]] = place
    lines = sorted(ends, key=lambda line: (line.endswith(BANK), line.startswith("asymmetric")))
    return [sentence for line in lines for sentence in _left_at(report, line, ends[line])]


def _left_at(report: Mapping[str, Any], line: str, place: str) -> list[str]:
    """A sentence, if there is anything to say."""
    mine, other = (f"{name}@{place}" for name in ("attention", "uniform"))
    each = {name: report["retention"].get(name) for name in (mine, other)}
    known = {method_of(name): found for name, found in each.items() if found and finite(found["mean"])}
    if not known:
        return []
    kept = " and ".join(f"{name} keeps {share(found)}" for name, found in known.items())
    gap = report["differences"].get(mine, {}).get(other, {}).get("accuracy")
    over = f" over {_seeds(next(iter(known.values())))}"
    compared = over if gap is None else f": {verdict('attention', 'uniform', SHOWN['accuracy'], gap)}"
    return [f"{_wrong(line, report['points'][place]['at'])}, {kept} of the accuracy{compared}"]


def _wrong(line: str, rate: float) -> str:
    """How much is wrong at a place, and where.

    >>> _wrong("symmetric-bank", 0.4)
    'with 40 % of the labels in the bank wrong (symmetric)'
    """
    where = " in the bank" * line.endswith(BANK)
    return f"with {rate:.0%} of the labels{where} wrong ({line.partition('-')[0]})".replace("%", " %")


_ANSWERS: Final[Mapping[str, tuple[str, Callable[[Mapping[str, Any]], list[str]]]]] = {
    "calibration": ("main", lambda report: _compared(report, ("ece", "nll"), "uniform")),
    "accuracy": ("main", lambda report: _compared(report, ("accuracy",), "uniform", "cnn", "hgb")),
    "robustness": ("noise", _robustness),
    "overhead": ("efficiency", overheads),
}
"""The study that answers a claim best, and how a report answers it."""


def not_run(report: Mapping[str, Any]) -> list[str]:
    """Cells and searches that were not run, a line for each reason."""
    found = {**report["not_run"], **report["failed"], **dict.fromkeys(report["missing"], "not asked for yet")}
    found |= {name: each["not_run"] for name, each in report.get("places", {}).items() if "not_run" in each}
    return by_reason(found)


def by_reason(unrun: Mapping[str, str]) -> list[str]:
    """A line for each reason, with what was not run for it.

    >>> by_reason({"cnn-0": "too slow", "hgb-0": "not installed", "cnn-1": "too slow"})
    ['not run: cnn-0, cnn-1: too slow', 'not run: hgb-0: not installed']
    """
    names: dict[str, list[str]] = {}
    for name, why in unrun.items():
        names.setdefault(why, []).append(name)
    return [f"not run: {', '.join(some)}: {why}" for why, some in names.items()]
