"""What the four claims are answered with."""

from __future__ import annotations

import pytest

from attnknn.study.answers import answers

SEEDS = [0, 1, 2]


def told(values):
    known = [value for value in values if value is not None]
    return {"mean": sum(known) / len(known), "low": 0.0, "high": 1.0, "values": list(values)}


def report(study="main", **methods):
    """A report without recorded differences: methods by name, each with the values of its metrics."""
    found = {
        name.replace("_", "+"): {metric: told(values) for metric, values in each.items()}
        for name, each in methods.items()
    }
    return {"study": study, "seeds": SEEDS, "methods": found, "differences": {}, "points": {}, "retention": {}}


def gap(low, high):
    return {
        "mean": (low + high) / 2,
        "low": low,
        "high": high,
        "seeds": SEEDS,
        "over_rows": {"low": low, "high": high},
    }


ECE = {"uniform": [0.1, 0.11, 0.12], "distance": [0.05, 0.04, 0.06], "attention": [0.05, 0.05, 0.05]}


def test_calibration_is_answered_for_attention_with_views_too_against_both_baselines():
    tta = {"ece": [0.01, 0.03, 0.02]}
    said = answers(
        "calibration", [report(**{name: {"ece": each} for name, each in ECE.items()}, attention_tta=tta)]
    )
    assert len(said) == 4
    assert said[0].startswith("attention has lower ECE than uniform: ")
    assert said[0].endswith("a change of -55 %")
    assert said[1].startswith("no difference found between attention and distance in ECE: ")
    assert said[2].startswith("attention+tta has lower ECE than uniform: ")
    assert said[2].endswith("a change of -82 %")
    assert "attention+tta and distance" in said[3] or "attention+tta has" in said[3]


def test_views_that_a_study_does_not_have_are_not_mentioned():
    found = report(**{name: {"ece": each, "accuracy": each} for name, each in ECE.items()})
    for claim in ("calibration", "accuracy"):
        assert answers(claim, [found])
        assert not any("tta" in sentence or "not run" in sentence for sentence in answers(claim, [found]))


def test_accuracy_is_answered_with_views_and_with_the_gap_to_the_network_of_the_same_training():
    names = ("uniform", "distance", "attention", "attention_tta", "cnn", "cnn_tta")
    said = answers("accuracy", [report(**{name: {"accuracy": [0.9, 0.91, 0.93]} for name in names})])
    pairs = [("attention", "uniform"), ("attention", "distance"), ("attention+tta", "uniform"),
             ("attention+tta", "distance"), ("attention", "cnn"), ("attention+tta", "cnn+tta")]  # fmt: skip
    assert len(said) == len(pairs)
    for sentence, (mine, other) in zip(said, pairs, strict=True):
        assert f"between {mine} and {other} in" in sentence


def test_a_recorded_difference_counts_before_one_of_the_seeds_alone():
    found = report(**{name: {"ece": each} for name, each in ECE.items()})
    found["differences"] = {"attention": {"uniform": {"ece": gap(-0.2, 0.2)}}}
    said = answers("calibration", [found])
    assert said[0].startswith(
        "no difference found between attention and uniform in ECE: +.0000 [-.2000, .2000] over"
    )
    assert "over 3 seeds and their test rows, a change of" in said[0]
    assert "over 3 seeds alone, not for other test rows, a change of" in said[1]


def noise(rates):
    names = [
        f"{kind}-{rate}{end}" for kind in ("symmetric", "asymmetric") for rate in rates for end in ("", "-bank")
    ]
    found = report("noise")
    for name in names:
        kind, rate, *end = name.split("-")
        found["points"][name] = {"at": float(rate), "line": "-".join([kind, *end])}
        for at, method in enumerate(("uniform", "distance", "attention")):
            found["retention"][f"{method}@{name}"] = told([0.7 + 0.1 * at] * 3)
        found["differences"][f"attention@{name}"] = {
            f"uniform@{name}": {"accuracy": gap(0.01, 0.03)},
            f"distance@{name}": {"accuracy": gap(-0.01, 0.03)},
        }
    return found


@pytest.mark.parametrize(
    ("rates", "told_at"), [((0.1, 0.2, 0.3, 0.4), (30, 40)), ((0.2, 0.4), (40,)), ((0.3,), (30,))]
)
def test_robustness_is_answered_at_the_rate_of_the_claim_and_at_the_far_end_of_each_line(rates, told_at):
    said = answers("robustness", [noise(rates)])
    lines = [("wrong (symmetric)", ""), ("wrong (asymmetric)", ""), ("wrong (symmetric)", " in the bank"),
             ("wrong (asymmetric)", " in the bank")]  # fmt: skip
    begins = [f"with {rate} % of the labels{where} {kind}" for kind, where in lines for rate in told_at]
    assert [sentence.partition(",")[0] for sentence in said] == begins
    for sentence in said:
        assert "attention keeps 90.0%" in sentence
        assert "(uniform 70.0%, distance 80.0%)" in sentence
        assert "against uniform higher accuracy (+.0200 [.0100, .0300])" in sentence
        assert "against distance no difference found (+.0100 [-.0100, .0300])" in sentence
