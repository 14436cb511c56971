"""What a report says in sentences: what was found, what that says to the four claims, and what was not run."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from attnknn.study import record
from attnknn.study.differences import difference
from attnknn.study.plots import SHOWN
from attnknn.study.points import BANK, method_of
from attnknn.study.tables import finite
from attnknn.study.theory_plots import checks_of
from attnknn.study.timing import LEARNED
from attnknn.study.verdicts import NOTHING, UNKNOWN, ends_of, judged, numbers_of, of_leads, verdict

_ALONE: Final = " over seeds alone"
_WORST: Final = ("fail", "not run", "reported", "pass")

_OURS: Final = ("attention", "attention+tta")  # the claims speak of both
_RIVALS: Final = ("uniform", "distance")  # of which the second has a fitted scale
_CLAIMED_RATE: Final = 0.3
_LEARNED_KIND: Final = "attention"  # weights that a part was trained for

CLAIMED: Final = (
    "What the documents behind this package claim, of data and trainings of their own; below each claim stands "
    "what the numbers of this run say to it."
)
"""Whose claims they are, for those who read them."""

STATISTICS: Final = (
    "Differences are paired by seed and test row. An interval is made of two: Student's t over seeds, and the "
    "bootstrap over test rows, which for accuracy is one row wider at both ends. Where all seeds test the same "
    "rows, both add up as squares do, else the wider one counts at each end. A difference is stated where all of "
    "it lies on one side of 0. Of pairs that differ in nothing, about one in twenty looks as if it did."
)
"""How verdicts are made, for those who read them."""

MEASURES: Final = (
    "NLL is the mean of -log of the probability of the right class, Brier the squared error of all probabilities. "
    "ECE is how far probabilities lie from frequencies, in bins of equal width or of equal mass, smoothed, or "
    "class by class; its floor is what chance leaves of it where nothing is wrong. AURC is the error of the "
    "surest answers, averaged over how many of them are given. Of each, less is better."
)
"""What the numbers mean."""


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
    sentences = []
    for name, some in checks_of(report).items():
        verdicts = [check["verdict"] for check in some]
        worst = next((check for word in _WORST for check in some if check["verdict"] == word), some[0])
        counts = ", ".join(f"{word} in {verdicts.count(word)}" for word in _WORST if word in verdicts)
        words = f"{counts} of {len(some)} seeds" if len(some) > 1 else verdicts[0]
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
    """What weighing adds to a query, by the first seed that was timed: learned attention, then what ships.

    Reports of older versions timed only what shipped, which need not be learned; then that is said.
    """
    told = [each for some in report["settings"].values() for each in some if each and "overhead" in each]
    if not told:
        return []
    first, most = told[0], record.processes_of(report)
    beside = f" (timed while up to {most} processes shared the machine)" if most > 1 else ""
    found = [f"{first[name]}{beside}" for name in ("overhead", "overhead_shipped") if name in first]
    timed = {str(each.get("weights", _LEARNED_KIND)) for each in first.get("stages", ())}
    return [*([f"{LEARNED}: not run"] if len(found) == 1 and timed - {_LEARNED_KIND} else []), *found]


def answered(claim: str, reports: Sequence[Mapping[str, Any]]) -> str:
    """What the first of some reports that can say anything says to a claim; else what would have to be run."""
    return "; ".join(answers(claim, reports))


def answers(claim: str, reports: Sequence[Mapping[str, Any]]) -> list[str]:
    """The same, sentence by sentence."""
    study, answer = _ANSWERS[claim]
    found = (answer(each) for each in sorted(reports, key=lambda each: each["study"] != study))
    return next((words for words in found if words), [f"not run: attnknn study {study}"])


def _calibration(report: Mapping[str, Any]) -> list[str]:
    """ECE and NLL of attention, plain and with views, against weights that learn nothing beyond the vectors."""
    pairs = [(mine, other) for mine in _OURS for other in _RIVALS]
    return [
        _compared(report, *pair, metric) for metric in ("ece", "nll") for pair in _known(report, pairs, metric)
    ]


def _accuracy(report: Mapping[str, Any]) -> list[str]:
    """The same of accuracy, and the gap to the network of the same training, or to trees."""
    pairs = [(mine, other) for mine in _OURS for other in _RIVALS]
    pairs += [("attention", "cnn"), ("attention+tta", "cnn+tta"), ("attention", "hgb")]
    return [_compared(report, *pair, "accuracy") for pair in _known(report, pairs, "accuracy")]


def _known(report: Mapping[str, Any], pairs: Sequence[tuple[str, str]], metric: str) -> list[tuple[str, str]]:
    """Pairs of methods that a report has a difference of."""
    return [pair for pair in pairs if gap_of(report, *pair, metric) is not None]


def gap_of(report: Mapping[str, Any], mine: str, other: str, metric: str) -> Mapping[str, Any] | None:
    """A paired difference: as it was recorded, else over the seeds alone; None where a method is not there."""
    recorded: Mapping[str, Any] | None = report["differences"].get(mine, {}).get(other, {}).get(metric)
    if recorded is not None:
        return recorded
    both = [report["methods"].get(name, {}).get(metric) for name in (mine, other)]
    if None in both:
        return None
    one, two = (_by_seed(found["values"], report["seeds"]) for found in both)
    return difference(one, two)


def _by_seed(values: Sequence[float | None], seeds: Sequence[int]) -> dict[int, float]:
    return {seed: value for seed, value in zip(seeds, values, strict=True) if value is not None}


def _compared(report: Mapping[str, Any], mine: str, other: str, metric: str) -> str:
    """A verdict; of ECE also by which share it changes. An interval that knows nothing of test rows says so."""
    gap = gap_of(report, mine, other, metric)
    said = verdict(mine, other, SHOWN[metric], gap) if gap else ""
    if gap is None or judged(gap).startswith(UNKNOWN):
        return said
    alone = "" if "over_rows" in gap else " alone, not for other test rows"
    return said + alone + (_change(report, other, gap) if metric == "ece" else "")


def _change(report: Mapping[str, Any], other: str, gap: Mapping[str, Any]) -> str:
    """By which share of another's ECE a method has less or more, on the seeds that both have."""
    found = report["methods"].get(other, {}).get("ece")
    values = {} if found is None else _by_seed(found["values"], report["seeds"])
    before = sum(values.get(seed, math.nan) for seed in gap["seeds"]) / len(gap["seeds"])
    if not (finite(gap["mean"]) and finite(before) and before):
        return ""
    return f", a change of {gap['mean'] / before:+.0%}".replace("%", " %")


def _robustness(report: Mapping[str, Any]) -> list[str]:
    """What is left on each line at the rate that the claim speaks of and at the far end, and of whom more."""
    if report["study"] != "noise":
        return []
    lines: dict[str, dict[float, str]] = {}  # by line and rate, the place
    for place, told in sorted(report["points"].items(), key=lambda each: float(each[1]["at"])):
        if told["line"]:
            lines.setdefault(told["line"], {})[float(told["at"])] = place
    found = []
    for line in sorted(lines, key=lambda line: (line.endswith(BANK), line.startswith("asymmetric"))):
        ends = {_CLAIMED_RATE, max(lines[line])} & set(lines[line])
        found += [_left_at(report, line, lines[line][rate]) for rate in sorted(ends)]
    return [sentence for sentence in found if sentence]


def _left_at(report: Mapping[str, Any], line: str, place: str) -> str:
    """A sentence, empty if attention was not run there."""
    each = {name: report["retention"].get(f"{name}@{place}") for name in ("attention", *_RIVALS)}
    known = {name: found for name, found in each.items() if found and finite(found["mean"])}
    if "attention" not in known:
        return ""
    first, *rest = known
    others = ", ".join(f"{name} {known[name]['mean']:.1%}" for name in rest)
    gaps = {other: gap_of(report, f"attention@{place}", f"{other}@{place}", "accuracy") for other in _RIVALS}
    compared = "".join(f", {_against(other, gap)}" for other, gap in gaps.items() if gap)
    kept = f"{first} keeps {share(known[first])} of its accuracy" + f" ({others})" * bool(rest)
    return f"{_wrong(line, report['points'][place]['at'])}, {kept}{compared}; {_seeds(known[first])}"


def _against(other: str, gap: Mapping[str, Any]) -> str:
    """How accurate something is against another.

    >>> _against("uniform", {"mean": 0.02, "low": 0.01, "high": 0.03, "seeds": [0, 1]})
    'against uniform higher accuracy (+.0200 [.0100, .0300] over seeds alone)'
    """
    word = judged(gap)
    if word.startswith(UNKNOWN):
        return f"{UNKNOWN} with {other} ({word.removeprefix(UNKNOWN + ': ')})"
    alone = "" if "over_rows" in gap else _ALONE
    return f"against {other} {word}{' accuracy' * (word != NOTHING)} ({numbers_of(gap)}{alone})"


def _wrong(line: str, rate: float) -> str:
    """How much is wrong at a place, and where.

    >>> _wrong("symmetric-bank", 0.4)
    'with 40 % of the labels in the bank wrong (symmetric)'
    """
    where = " in the bank" * line.endswith(BANK)
    return f"with {rate:.0%} of the labels{where} wrong ({line.partition('-')[0]})".replace("%", " %")


_ANSWERS: Final[Mapping[str, tuple[str, Callable[[Mapping[str, Any]], list[str]]]]] = {
    "calibration": ("main", _calibration),
    "accuracy": ("main", _accuracy),
    "robustness": ("noise", _robustness),
    "overhead": ("efficiency", overheads),
}
"""The study that answers a claim best, and how a report answers it."""


def not_run(report: Mapping[str, Any]) -> list[str]:
    """Cells and searches that were not run, then what was not asked for, a line for each reason."""
    found = {**report["not_run"], **report["failed"], **dict.fromkeys(report["missing"], "not asked for yet")}
    found |= {name: each["not_run"] for name, each in report.get("places", {}).items() if "not_run" in each}
    return by_reason(found | _unchecked(report) | report.get("left_out", {}))


def _unchecked(report: Mapping[str, Any]) -> dict[str, str]:
    """Checks of the theory that were not run, and attention that was not timed, with the reason."""
    found: dict[str, str] = {}
    for some in report["settings"].values():
        for seed, told in zip(report["seeds"], some, strict=False):
            for check in (told or {}).get("checks", ()):
                if check["verdict"] == "not run":
                    found[f"check of {check['name']}, seed {seed}"] = _reason(check["found"])
            overhead = str((told or {}).get("overhead", ""))
            if ": not run: " in overhead:
                found[f"time of {LEARNED}, seed {seed}"] = _reason(overhead)
    return found


def _reason(words: str) -> str:
    """What follows "not run".

    >>> _reason("Not run: no k is below the 3 rows of the bank.")
    'no k is below the 3 rows of the bank'
    """
    return re.split("not run: ", words, maxsplit=1, flags=re.IGNORECASE)[-1].removesuffix(".")


def by_reason(unrun: Mapping[str, str]) -> list[str]:
    """A line for each reason, with what was not run for it.

    >>> by_reason({"cnn-0": "too slow", "hgb-0": "not installed", "cnn-1": "too slow"})
    ['not run: cnn-0, cnn-1: too slow', 'not run: hgb-0: not installed']
    """
    names: dict[str, list[str]] = {}
    for name, why in unrun.items():
        names.setdefault(why, []).append(name)
    return [f"not run: {', '.join(some)}: {why}" for why, some in names.items()]
