"""``attnknn study diff`` on real runs, and its mistakes."""

from __future__ import annotations

import shutil

import pytest


@pytest.fixture(scope="module")
def runs(attnknn, tables, tmp_path_factory):
    """Two small runs on the same rows; the second has two neighbors, and a seed less."""
    folder = tmp_path_factory.mktemp("runs")
    data = ("--data", tables["train"], "--target", "income", "--commit", "abc")
    asked = ("study", "main", *data, "--methods", "sklearn-knn,distance+raw")
    attnknn(*asked, "--seeds", 3, "--out", folder / "before")
    attnknn(*asked, "--seeds", 2, "--out", folder / "after", "--k", 2)
    return folder


def test_two_runs_are_compared_in_words_and_numbers(attnknn, runs):
    shown = attnknn("study", "diff", runs / "before", runs / "after").stdout
    for words in (
        "ours.n_neighbors   auto    2",
        "commits, machines and versions are the same",
        "identical predictions: sklearn-knn",
        "distance+raw: ",
        "only in the first, seed 2: sklearn-knn, distance+raw",
    ):
        assert words in shown
    found = attnknn.json("study", "diff", runs / "before", runs / "after")
    assert [*found] == ["runs", "recipes", "records", "cells", "verdicts", "only"]
    gap = found["cells"]["distance+raw"]["differences"]["accuracy"]
    assert (gap["seeds"], len(gap["values"])) == ([0, 1], 2)
    assert [each for each in found["verdicts"] if each.startswith("distance+raw: ") and each in shown]


def test_a_run_beside_itself_has_nothing_to_say_but_that(attnknn, runs):
    shown = attnknn("study", "diff", runs / "after", runs / "after").stdout.splitlines()
    assert [line.partition(":")[0] for line in shown[2:]] == [
        "the recipes are the same", "commits, machines and versions are the same", "identical predictions"
    ]  # fmt: skip


def test_of_many_cells_only_the_differences_are_printed(attnknn, runs, monkeypatch):
    from attnknn.cli import study_diff

    asked = ("study", "diff", runs / "before", runs / "after")
    none = [each for each in attnknn.json(*asked)["verdicts"] if "no difference found" in each]
    assert none
    monkeypatch.setattr(study_diff, "_FEW", 1)
    shown = attnknn(*asked).stdout
    assert not any(each in shown for each in none)
    assert f"{len(none)} other comparisons find no difference: --json has them" in shown


@pytest.mark.parametrize("width", ["60", "80"])
def test_tables_fit_the_terminal(attnknn, runs, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", width)
    shown = attnknn("study", "diff", runs / "before", runs / "after").stdout.splitlines()
    table = [line for line in shown if line.startswith(" ")]
    assert table
    assert max(map(len, table)) <= int(width)


def test_help_shows_examples(attnknn):
    lines = [line.strip() for line in attnknn("study", "diff", "--help").stdout.splitlines()]
    assert lines[lines.index("Examples:") + 1] == "attnknn study diff runs/before runs/after"


def test_a_mistake_is_refused_in_one_line(attnknn, runs, tables, tmp_path):
    good = runs / "before"
    assert "has no recipe.json" in attnknn.refused("study", "diff", good, tmp_path / "none")
    assert "has no recipe.json" in attnknn.refused("study", "diff", tables["train"], good)
    assert "DIR2" in attnknn.refused("study", "diff", good)
    broken = shutil.copytree(good, tmp_path / "broken")
    (broken / "cells/distance+raw-1.npz").unlink()
    assert "distance+raw-1.npz" in attnknn.refused("study", "diff", good, broken)


def test_runs_that_were_tested_on_different_rows_are_refused(attnknn, runs, tables, tmp_path):
    asked = ("study", "main", "--target", "income", "--methods", "distance+raw", "--seeds", 1)
    attnknn(*asked, "--data", tables["train"], "--test-share", 0.4, "--out", tmp_path / "a")
    assert "test_share (0.2 and 0.4)" in attnknn.refused("study", "diff", runs / "before", tmp_path / "a")
    attnknn(*asked, "--data", tables["test"], "--out", tmp_path / "b")
    assert "different rows" in attnknn.refused("study", "diff", runs / "before", tmp_path / "b")
