"""Two runs are paired by seed and test row, or refused; what differs in how they were made is told."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from mixed import mixed
from planted import planted

from attnknn.errors import InvalidInput
from attnknn.study import record
from attnknn.study.compared import compare
from attnknn.study.engine import run_study
from attnknn.study.methods import METHODS
from attnknn.study.points import Point
from attnknn.study.splits import content_hash, task_of


@pytest.fixture
def ran(recipe, task, tmp_path, monkeypatch):
    """Runs a study of planted methods, each with its rate and its luck, in a folder."""

    def run(name, methods, seeds=range(5), *, commit="c", points=None, rows=task, **changes):
        for method, how in methods.items():
            monkeypatch.setitem(METHODS, method, planted(*how))
        more = {} if points is None else {"points": points}
        run_study(
            replace(recipe, **changes), rows, methods=[*methods], seeds=seeds, out=tmp_path / name, device="cpu",
            commit=commit, **more,
        )  # fmt: skip
        return tmp_path / name

    return run


def edit(path, change):
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def cell(folder, name):
    return json.loads((folder / f"cells/{name}.json").read_text())


def test_a_difference_is_the_second_minus_the_first_seed_by_seed(ran):
    before, after = ran("before", {"attention": (0.6, 1)}), ran("after", {"attention": (0.9, 2)})
    found = compare(before, after)["cells"]["attention"]
    for metric in ("accuracy", "nll", "ece"):
        each = [
            cell(after, f"attention-{seed}")["metrics"][metric]
            - cell(before, f"attention-{seed}")["metrics"][metric]
            for seed in range(5)
        ]
        assert found["differences"][metric]["values"] == pytest.approx(each)
        assert found["second"][metric] - found["first"][metric] == pytest.approx(np.mean(each))
    assert (found["seeds"], found["identical_seeds"]) == ([0, 1, 2, 3, 4], [])


@pytest.mark.parametrize("official", [False, True])
def test_verdicts_say_what_was_planted_and_turn_with_the_runs(ran, official):
    how = {"train_rows": 50, "test_share": None} if official else {}
    weak, strong = {"attention": (0.5, 1), "hgb": (0.7, 3, 0.1)}, {"attention": (0.95, 2), "hgb": (0.7, 4, 0.1)}
    before, after = ran("before", weak, **how), ran("after", strong, **how)
    there, back = compare(before, after)["verdicts"], compare(after, before)["verdicts"]
    assert there[-3].startswith("attention: the second has higher accuracy than the first: +")
    assert there[-2].startswith("attention: the second has lower NLL than the first: -")
    assert back[-3].startswith("attention: the second has lower accuracy than the first: -")
    assert there[0].startswith("hgb: no difference found between the second and the first in accuracy: ")
    assert all("over 5 seeds and their test rows" in each for each in there)


def test_draws_of_test_rows_are_paired_also_where_one_run_has_more(ran):
    how = {"train_rows": 50, "test_share": None}
    before = ran("before", {"attention": (0.7, 1)}, **how)
    after = ran("after", {"attention": (0.8, 2)}, draws=25, **how)
    found = compare(before, after)["cells"]["attention"]["differences"]["accuracy"]["over_rows"]
    gaps = []
    for seed in range(5):
        one, two = (np.load(folder / f"cells/attention-{seed}.npz") for folder in (before, after))
        right = [each["probabilities"].argmax(axis=1) == each["labels"] for each in (one, two)]
        draw = np.random.default_rng(0)
        taken = [draw.integers(len(right[0]), size=len(right[0])) for _ in range(25)]
        gaps.append([right[1][rows].mean() - right[0][rows].mean() for rows in taken])
    expected = np.percentile(np.mean(gaps, axis=0), [2.5, 97.5])
    row = 1 / len(taken[0])  # all seeds have the same test
    assert (found["low"], found["high"]) == pytest.approx((expected[0] - row, expected[1] + row), abs=1e-6)
    assert found["draws"] == 25


def test_a_run_is_identical_to_itself_and_to_one_that_only_draws_more(ran, recipe):
    folder = ran("a", {"attention": (0.7, 1)})
    itself = compare(folder, folder)
    assert (itself["recipes"], itself["records"], itself["only"]) == ({}, {}, {"first": {}, "second": {}})
    assert itself["verdicts"] == ["attention: identical predictions, 5 seeds"]
    found = compare(folder, ran("b", {"attention": (0.7, 1)}, draws=50))
    assert found["recipes"] == {"draws": {"first": recipe.draws, "second": 50}}
    assert found["verdicts"] == ["attention: identical predictions, 5 seeds"]


def test_seeds_with_identical_predictions_are_told_among_others(ran):
    before, after = ran("before", {"hgb": (0.7, 1)}), ran("after", {"hgb": (0.7, 2)})
    for kind in ("json", "npz"):
        shutil.copy(before / f"cells/hgb-3.{kind}", after / f"cells/hgb-3.{kind}")
    found = compare(before, after)
    assert found["cells"]["hgb"]["identical_seeds"] == [3]
    assert all("(identical predictions in 1 seed)" in each for each in found["verdicts"])


def test_what_differs_in_recipes_and_records_is_told_under_flat_names(ran, recipe, monkeypatch):
    before = ran("before", {"hgb": (0.7, 1)}, [0, 1], commit="abc")
    monkeypatch.setattr(record, "environment", lambda device=None: {"machine": "elsewhere", "device": device})
    after = ran("after", {"hgb": (0.7, 1)}, [0], commit="def", ours=replace(recipe.ours, n_neighbors=7), members=3)
    ran("after", {"hgb": (0.7, 1)}, [1], commit="abc", ours=replace(recipe.ours, n_neighbors=7), members=3)
    found = compare(before, after)
    assert found["recipes"] == {
        "members": {"first": 5, "second": 3},
        "ours.n_neighbors": {"first": "auto", "second": 7},
    }
    assert found["records"]["commit"] == {"first": ["abc"], "second": ["abc", "def"]}
    assert found["records"]["environment.machine"]["second"] == ["elsewhere"]
    assert "source_hash" not in found["records"]


def test_what_only_one_has_is_told_and_only_shared_seeds_are_compared(ran):
    before = ran("before", {"hgb": (0.7, 1), "mlp": (0.7, 2)}, [0, 1, 2])
    found = compare(before, ran("after", {"attention": (0.7, 3), "hgb": (0.7, 4)}, [1, 2, 5]))
    assert found["only"] == {
        "first": {"mlp": [0, 1, 2], "hgb": [0]},
        "second": {"hgb": [5], "attention": [1, 2, 5]},
    }
    assert [*found["cells"]] == ["hgb"]
    assert found["cells"]["hgb"]["differences"]["nll"]["seeds"] == [1, 2]
    nothing = compare(before, ran("else", {"uniform": (0.7, 1)}, [0]))
    assert (nothing["cells"], nothing["verdicts"]) == ({}, [])


def test_points_are_compared_each_with_its_own_and_stand_along_their_axis(ran):
    one, five, ten = (Point(f"step-{at}", at, "step") for at in (1, 5, 10))
    before = ran("before", {"uniform": (0.7, 1), "attention": (0.7, 2)}, [0, 1], points=[five, ten])
    after = ran("after", {"uniform": (0.7, 1), "attention": (0.7, 3)}, [0, 1], points=[one, five, ten])
    found = compare(before, after)
    assert [*found["cells"]] == ["uniform@step-5", "uniform@step-10", "attention@step-5", "attention@step-10"]
    assert found["only"]["second"] == {"uniform@step-1": [0, 1], "attention@step-1": [0, 1]}
    assert found["verdicts"][0] == "uniform@step-5: identical predictions, 2 seeds"


def test_one_seed_has_a_change_but_no_interval(ran):
    found = compare(ran("a", {"hgb": (0.5, 1)}, [0]), ran("b", {"hgb": (0.9, 2)}, [0]))
    assert found["cells"]["hgb"]["differences"]["accuracy"]["mean"] > 0
    assert all(each.endswith("one seed has no interval") for each in found["verdicts"])


def test_a_value_that_is_not_finite_is_no_finding(ran):
    before, after = ran("a", {"hgb": (0.5, 1)}), ran("b", {"hgb": (0.9, 2)})
    edit(after / "cells/hgb-1.json", lambda found: found["metrics"].update(nll=None))
    said = compare(before, after)["verdicts"]
    assert said[1] == "hgb: the second and the first cannot be compared in NLL: a value is not finite"
    assert said[0].startswith("hgb: the second has higher accuracy")


def test_cells_that_were_not_run_count_as_absent(ran):
    before, after = ran("a", {"hgb": (0.7, 1), "mlp": (0.7, 1)}, [0]), ran("b", {"mlp": (0.7, 1)}, [0])
    shutil.copy(before / "cells/hgb-0.json", after / "cells/hgb-0.json")
    edit(after / "cells/hgb-0.json", lambda found: (found.pop("metrics"), found.update(not_run="absent")))
    assert compare(before, after)["only"] == {"first": {"hgb": [0]}, "second": {}}


def test_a_run_of_an_earlier_version_with_fewer_fields_is_read(ran):
    before, after = ran("a", {"hgb": (0.7, 1)}, [0, 1]), ran("b", {"hgb": (0.7, 1)}, [0, 1], most_rows=90)
    lacking = ("most_rows", "drop_duplicates", "may_coincide")
    edit(before / "recipe.json", lambda config: [config.pop(name) for name in lacking])
    written = json.loads((before / "recipe.json").read_text())
    recipe = hashlib.sha256(json.dumps(written, sort_keys=True).encode()).hexdigest()
    for path in (before / "cells").glob("*.json"):
        edit(path, lambda found: found.update(recipe=recipe))
    found = compare(before, after)
    assert found["recipes"]["most_rows"] == {"first": None, "second": 90}
    assert found["verdicts"] == ["hgb: identical predictions, 2 seeds"]


def test_runs_of_different_rows_are_refused_and_told_why(ran, recipe, tmp_path):
    first = ran("a", {"hgb": (0.7, 1)}, [0])
    frame, labels = mixed(seed=1)
    other = replace(recipe, data="other.csv", data_hash=content_hash(frame, labels))
    elsewhere = ran(
        "b", {"hgb": (0.7, 1)}, [0], rows=task_of(frame, labels, other), data=other.data, data_hash=other.data_hash
    )  # fmt: skip
    with pytest.raises(
        InvalidInput, match=r"mixed\.csv\) and .*other\.csv\) are studies of different rows.*data_hash"
    ):
        compare(first, elsewhere)
    with pytest.raises(InvalidInput, match=r"hgb-0\.json have different test rows.*test_share \(0\.2 and 0\.4\)"):
        compare(first, ran("c", {"hgb": (0.7, 1)}, [0], test_share=0.4))
    with pytest.raises(InvalidInput, match=r"train_rows \(None and 100\)"):
        compare(first, ran("d", {"hgb": (0.7, 1)}, [0], train_rows=100, test_share=None))


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("recipe.json", None, "has no recipe.json"),
        ("recipe.json", "{", "is not the recipe of a study"),
        ("recipe.json", '{"name": 1}', "is not the recipe of a study"),
        ("cells/hgb-0.json", "{", r"hgb-0\.json is not a JSON object"),
        ("cells/hgb-0.npz", "junk", r"hgb-0\.npz is not what its cell was made with"),
        ("cells/hgb-0.npz", None, r"hgb-0\.npz is not what its cell was made with"),
        ("cells/hgb-0.json", None, "has no cell with numbers"),
    ],
)
def test_a_broken_folder_is_refused_by_name(ran, file, content, said):
    good, bad = ran("good", {"hgb": (0.7, 1)}, [0]), ran("bad", {"hgb": (0.7, 1)}, [0])
    (bad / file).unlink() if content is None else (bad / file).write_text(content)
    for both in ((good, bad), (bad, good)):
        with pytest.raises(InvalidInput, match=said):
            compare(*both)


def test_metrics_that_are_no_numbers_are_refused_by_name(ran):
    folder = ran("a", {"hgb": (0.7, 1)}, [0])
    for broken in ({"accuracy": "high"}, {"accuracy": True}, [0.5]):
        edit(folder / "cells/hgb-0.json", lambda found, each=broken: found.update(metrics=each))
        with pytest.raises(InvalidInput, match=r"hgb-0\.json has metrics that are no numbers"):
            compare(folder, folder)


def test_predictions_that_lack_their_rows_are_refused_by_name(ran):
    folder = ran("a", {"hgb": (0.7, 1)}, [0])
    file = folder / "cells/hgb-0.npz"
    with np.load(file) as arrays:
        kept = {name: each for name, each in arrays.items() if name != "rows"}
    np.savez_compressed(file, **kept)
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    edit(folder / "cells/hgb-0.json", lambda found: found.update(predictions=digest))
    with pytest.raises(InvalidInput, match=r"hgb-0\.npz has no rows"):
        compare(folder, folder)
