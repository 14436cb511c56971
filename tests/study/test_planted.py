"""The statistics of studies on planted truth: a zero is not found, two points are, and pairing finds them."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from mixed import mixed, small
from planted import answers, luck, planted
from scipy import stats

from attnknn import metrics
from attnknn.metrics.scores import accuracy_of
from attnknn.study.cells import Cells
from attnknn.study.differences import Draws, difference
from attnknn.study.engine import run_study
from attnknn.study.methods import METHODS
from attnknn.study.recipe import Validation
from attnknn.study.splits import recipe_for, task_of
from attnknn.study.verdicts import verdict

SEEDS = range(5)
TIMES = 200
TEST = 3000
CODES = np.arange(300) % 3


@pytest.fixture(scope="module")
def many():
    frame, labels = mixed(2 * TEST)
    recipe = small(recipe_for(frame, labels, data="mixed.csv", target="y", named=False, test_share=0.5))
    return recipe, task_of(frame, labels, recipe)


def binomial(rate):
    """How often something of a rate happens in ``TIMES``, but for one time in a thousand."""
    return stats.binom.interval(0.999, TIMES, rate)


def said(mine, other, drawn=None):
    return verdict("a", "b", "metric", difference(mine, other, drawn))


def two_points(time):
    """Accuracies by seed of two methods that mostly err together, the first better by two points."""
    return [
        {seed: float((luck(1000 * time + seed, own, 1000, alone=0.05) < rate).mean()) for seed in SEEDS}
        for own, rate in ((1, 0.82), (2, 0.8))
    ]


@pytest.mark.parametrize("metric", ["accuracy", "nll", "ece"])
def test_two_equally_good_methods_are_called_different_one_time_in_twenty(metric):
    score, wrong = getattr(metrics, metric), 0
    for time in range(TIMES):
        both = (
            {s: score(answers(luck(1000 * time + s, own, len(CODES), 1.0) < 0.7, CODES), CODES) for s in SEEDS}
            for own in (1, 2)
        )
        wrong += not said(*both).startswith("no difference found")
    low, high = binomial(0.05)
    assert low <= wrong <= high


def test_two_points_are_found_with_their_sign_and_never_with_the_other():
    found = [said(*two_points(time)) for time in range(TIMES)]
    assert sum(each.startswith("a has higher") for each in found) > 0.9 * TIMES
    assert sum(each.startswith("a has lower") for each in found) == 0
    mirrored = [said(*reversed(two_points(time))) for time in range(20)]
    assert not any(each.startswith("a has higher") for each in mirrored)


def test_intervals_of_methods_that_err_together_are_narrow_and_cover_the_truth():
    covered, narrower = 0, []
    for time in range(TIMES):
        mine, other = two_points(time)
        found = difference(mine, other)
        apart = stats.ttest_ind([*mine.values()], [*other.values()]).confidence_interval(0.95)
        covered += found["low"] <= 0.02 <= found["high"]
        narrower.append((found["high"] - found["low"]) / (apart.high - apart.low))
    assert np.median(narrower) < 0.5
    low, high = binomial(0.95)
    assert low <= covered <= high


def test_draws_of_the_same_rows_are_narrower_than_draws_of_other_rows():
    rows = len(CODES)
    counts = [np.random.default_rng(at).multinomial(rows, np.full(rows, 1 / rows), 400) for at in (0, 1)]
    right = [luck(0, own, rows, 0.05) < 0.8 for own in (1, 2)]
    under = [[accuracy_of(answers(each, CODES), CODES)(drawn.astype(float)) for drawn in counts] for each in right]
    values = [{0: float(each.mean())} for each in right]
    same, other = (
        difference(*values, Draws({0: under[0][0]}, {0: under[1][at]}))["over_rows"] for at in (0, 1)
    )  # fmt: skip
    assert same["high"] - same["low"] < 0.5 * (other["high"] - other["low"])


def test_what_a_few_test_rows_favor_in_every_seed_is_no_finding():
    """Methods that are alike on average, but not on these rows: seeds agree on that, new rows would not."""
    rows, by_seeds, by_both = len(CODES), 0, 0
    counts = np.random.default_rng(0).multinomial(rows, np.full(rows, 1 / rows), 200).astype(float)
    for time in range(TIMES):
        draw = np.random.default_rng([time, 9])
        easy = [draw.random(rows) < 0.7 for _ in range(2)]
        right = [
            {s: np.where(draw.random(rows) < 0.1, draw.random(rows) < 0.7, each) for s in SEEDS} for each in easy
        ]
        values = [{s: float(each[s].mean()) for s in SEEDS} for each in right]
        drawn = [{s: accuracy_of(answers(each[s], CODES), CODES)(counts) for s in SEEDS} for each in right]
        by_seeds += not said(*values).startswith("no difference")
        by_both += not said(*values, Draws(*drawn)).startswith("no difference")
    assert by_seeds > 0.5 * TIMES
    assert by_both <= binomial(0.05)[1]


def compared(time, seeds, tested, table, differing, gain):
    """The difference of two methods on splits of one table; a row's luck is half its own, half that of a seed."""
    draw = np.random.default_rng([time, 7])
    rows = [draw.permutation(table)[:tested] if table > tested else np.arange(tested) for _ in range(seeds)]
    own, counts = draw.random(table), draw.multinomial(table, np.full(table, 1 / table), 200).astype(float)
    right: list[dict] = [{}, {}]
    for seed in range(seeds):
        luck = np.where(draw.random(table) < 0.5, own, draw.random(table))[rows[seed]]
        right[0][seed] = luck < (differing + gain) / 2
        right[1][seed] = luck > 1 - (differing - gain) / 2
    values = [{seed: float(each.mean()) for seed, each in some.items()} for some in right]
    drawn = [
        {
            s: accuracy_of(answers(each, CODES[:tested]), CODES[:tested])(counts[:, rows[s]])
            for s, each in some.items()
        }
        for some in right
    ]
    return difference(*values, Draws.of(*drawn, "accuracy", rows))


DESIGNS = [(2, 30, 150, 0.1), (5, 30, 150, 0.2), (3, 30, 30, 0.05), (5, 30, 30, 0.05), (5, 300, 1000, 0.05)]


@pytest.mark.parametrize("gain", [0.0, 0.02])
@pytest.mark.parametrize(("seeds", "tested", "table", "differing"), DESIGNS)
def test_an_interval_covers_the_truth_with_few_seeds_few_rows_and_rows_that_seeds_share(
    seeds, tested, table, differing, gain
):
    found = [compared(time, seeds, tested, table, differing, gain) for time in range(TIMES)]
    covered = sum(each["low"] <= gain <= each["high"] for each in found)
    assert covered >= binomial(0.95)[0]
    said = [verdict("a", "b", "accuracy", each) for each in found]
    if not gain:
        assert sum("no difference found" not in each for each in said) <= binomial(0.05)[1]
    assert sum(each.startswith("a has lower") for each in said) <= binomial(0.025)[1]


@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_an_interval_covers_the_truth_where_trainings_differ_as_much_as_shared_rows_do(seeds):
    """Two methods that are alike: each training is better or worse by chance, and so are the rows for a method."""
    rows, covered, hull = 300, 0, 0
    spread = 0.1 / rows**0.5 * seeds**0.5  # so that the mean of the seeds errs as that of the rows does
    counts = np.random.default_rng(1).multinomial(rows, np.full(rows, 1 / rows), 400).astype(float)
    for time in range(2 * TIMES):
        draw = np.random.default_rng([time, 11])
        favored = draw.normal(0, 0.1, rows)
        gaps = {s: favored + draw.normal(0, spread) for s in range(seeds)}
        drawn = {s: counts @ each / rows for s, each in gaps.items()}
        none = {s: np.zeros(len(counts)) for s in gaps}
        tested = [np.arange(rows)] * seeds
        found = difference(
            {s: float(each.mean()) for s, each in gaps.items()},
            dict.fromkeys(gaps, 0.0),
            Draws.of(drawn, none, "nll", tested),
        )
        covered += found["low"] <= 0 <= found["high"]
        ends = found["over_seeds"], found["over_rows"]
        hull += min(each["low"] for each in ends) <= 0 <= max(each["high"] for each in ends)
    low, _ = stats.binom.interval(0.999, 2 * TIMES, 0.95)
    assert low <= covered
    assert hull < covered
    assert hull < low or seeds < 10  # the wider of two would not do


def test_seeds_alone_would_call_a_zero_a_difference_where_they_agree_by_chance():
    found = [compared(time, 2, 30, 150, 0.1, 0.0) for time in range(TIMES)]
    ends = [[each[kind] for each in found] for kind in ("over_seeds", "over_rows")]
    by_seeds, by_rows = (sum(one["low"] > 0 or one["high"] < 0 for one in some) for some in ends)
    assert by_seeds > binomial(0.05)[1] > by_rows


@pytest.mark.parametrize("official", [False, True])
@pytest.mark.parametrize(
    ("gain", "accuracy", "nll"),
    [
        (
            0.0,
            "no difference found between attention and distance in accuracy",
            "no difference found between attention and distance in NLL",
        ),
        (0.02, "attention has higher accuracy than distance", "attention has lower NLL than distance"),
        (-0.02, "attention has lower accuracy than distance", "attention has higher NLL than distance"),
    ],
    ids=["zero", "two-points", "minus-two-points"],
)
def test_a_report_says_what_was_planted(many, tmp_path, monkeypatch, official, gain, accuracy, nll):
    recipe, task = many
    if official:
        recipe = replace(recipe, train_rows=TEST, test_share=None)
    # One luck in twenty would call a zero a difference; this one does not.
    monkeypatch.setitem(METHODS, "distance", planted(0.8, 3, alone=0.1))
    monkeypatch.setitem(METHODS, "attention", planted(0.8 + gain, 4, alone=0.1))
    methods = ["distance", "attention"]
    found = run_study(recipe, task, methods=methods, seeds=SEEDS, out=tmp_path, device="cpu").report
    gap = found["differences"]["attention"]["distance"]["accuracy"]
    assert gap["low"] <= gain <= gap["high"]
    assert gap["low"] <= gap["over_rows"]["low"] < gap["over_rows"]["high"] <= gap["high"]
    for start in (accuracy, nll):
        assert [each for each in found["verdicts"] if each.startswith(start)]
    assert found["identical"] == []


def test_a_cell_has_its_seed_its_recipe_and_a_hash_that_only_the_same_predictions_share(recipe, tmp_path):
    cells = Cells.open(tmp_path, recipe)
    said = answers(np.ones(300, bool), CODES).astype(np.float32)
    other = said.copy()
    other[0, 0] = np.nextafter(other[0, 0], np.float32(0))
    for method, predicted in {"uniform": said, "distance": said, "attention": other}.items():
        cells.write(method, 3, {}, {"probabilities": predicted})
    hashes = {}
    for method in ("uniform", "distance", "attention"):
        cell = cells.read(method, 3)
        assert (cell["seed"], cell["recipe"]) == (3, recipe.hash)
        assert cell["predictions"] == hashlib.sha256((tmp_path / f"cells/{method}-3.npz").read_bytes()).hexdigest()
        hashes[method] = cell["predictions"]
    assert hashes["uniform"] == hashes["distance"] != hashes["attention"]
    assert replace(recipe, members=recipe.members + 1).hash != recipe.hash


def test_only_cells_with_the_same_predictions_are_named(recipe, task, tmp_path, monkeypatch):
    for method, own in {"uniform": 1, "distance": 1, "attention": 2}.items():
        monkeypatch.setitem(METHODS, method, planted(0.8, own))
    methods = ["uniform", "distance", "attention"]
    found = run_study(recipe, task, methods=methods, seeds=[0, 1], out=tmp_path, device="cpu").report
    assert found["identical"] == [["distance-0", "uniform-0"], ["distance-1", "uniform-1"]]


@pytest.mark.parametrize(
    ("known", "said"),
    [
        (False, "no difference found between distance+raw and hgb in accuracy"),
        (True, "distance+raw has lower accuracy than hgb"),
    ],
    ids=["coins", "column"],
)
def test_real_methods_differ_where_one_column_decides_and_not_where_coins_do(known, said, tmp_path):
    draw = np.random.default_rng(5)
    frame = pd.DataFrame(draw.normal(size=(500, 20)), columns=[f"c{at}" for at in range(20)])
    labels = (frame["c0"].to_numpy() > 0).astype(int) if known else draw.integers(0, 2, 500)
    recipe = small(recipe_for(frame, labels, data="coins.csv", target="y", named=False, test_share=0.4))
    recipe = replace(
        recipe, validation=Validation(folds_below=0)
    )  # one check instead of five: this is not about it
    task = task_of(frame, labels, recipe)
    found = run_study(
        recipe, task, methods=["hgb", "distance+raw"], seeds=SEEDS, out=tmp_path, device="cpu"
    ).report  # fmt: skip
    assert found["failed"] == {}
    assert [each for each in found["verdicts"] if each.startswith(said)]
