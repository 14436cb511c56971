"""``attnknn study`` from end to end, and its mistakes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

QUICK = ("--methods", "sklearn-knn,distance+raw", "--seeds", "2")


def test_studies_are_listed_one_to_a_line(attnknn):
    lines = attnknn("study", "list").stdout.splitlines()
    found = [line.partition(":")[0] for line in lines]
    names = "main ablation k-sweep noise imbalance calibration theory efficiency new-class all"
    assert found == names.split()
    assert attnknn.json("study", "list")["studies"][0]["methods"][0] == "sklearn-knn"


def test_a_study_of_a_file_writes_a_report_twice_and_says_what_it_found(attnknn, tables, tmp_path):
    out, saved = tmp_path / "run", tmp_path / "results/people/main.json"
    asked = ("study", "main", "--data", tables["train"], "--target", "income", "--out", out, *QUICK)
    result = attnknn(*asked, "--commit", "abc", "--save", saved)
    for word in ("sklearn-knn", "distance+raw", "accuracy", "over 2 seeds", str(out / "report.json")):
        assert word in result.stdout
    assert result.stderr == ""
    report = json.loads(saved.read_text())
    assert report == json.loads((out / "report.json").read_text())
    assert (report["commit"], report["seeds"], report["config"]["data"]) == ("abc", [0, 1], "train.csv")
    assert set(report["methods"]["distance+raw"]) >= {"accuracy", "f1_macro", "nll", "ece", "brier", "aurc", "auc"}
    assert report["verdicts"]
    assert attnknn.json(*asked)["methods"] == report["methods"]


def test_a_study_leaves_tables_and_figures_unless_told_otherwise(attnknn, tables, tmp_path):
    pytest.importorskip("matplotlib", reason="needs attnknn[plots]")
    asked = ("study", "main", "--data", tables["train"], "--target", "income", *QUICK)
    attnknn(*asked, "--out", tmp_path / "run")
    attnknn(*asked, "--out", tmp_path / "bare", "--no-figures")
    for name, kinds in (("run", {".png", ".svg"}), ("bare", {".svg"})):
        assert {path.suffix for path in (tmp_path / name / "figures").iterdir()} == kinds
        assert {path.suffix for path in (tmp_path / name / "tables").iterdir()} == {".csv", ".tex"}


def test_some_of_all_studies_are_named_and_a_wrong_name_is_refused_in_one_line(attnknn, tables, tmp_path):
    asked = ("study", "all", "--data", tables["train"], "--target", "income", "--out", tmp_path / "run")
    for along, problem in (
        ("0.2", "--along takes one STUDY=A,B"),
        ("noise=2", "noise goes along numbers from 0 to 0.9"),
        ("imbalance=0.1", "there are places for imbalance, which is none of the studies: noise"),
    ):
        assert problem in attnknn.refused(*asked, "--studies", "noise", "--along", along)
    refused = attnknn.refused(*asked, "--studies", "noise,magic")
    assert "no study is called 'magic'; try one of: main, ablation, " in refused
    assert not (tmp_path / "run").exists()
    shown = " ".join(attnknn("study", "all", "--help").stdout.split())  # on a screen of any width
    assert "--studies noise,imbalance" in shown


@pytest.mark.parametrize("name", ["main", "all"])
def test_the_help_names_the_extra_that_pictures_take(attnknn, name):
    shown = attnknn("study", name, "--help").stdout
    assert shown.count("attnknn[pl") == 2  # a narrow screen cuts the rest off


def test_what_to_know_of_the_rows_is_said_after_the_table(attnknn, tmp_path):
    rows = [f"{at % 7},{at % 5},{'ab'[at % 2] if at else 'rare'}" for at in range(60)]
    (tmp_path / "few.csv").write_text("\n".join(["x,y,kind", *rows]) + "\n")
    asked = (
        "--data",
        tmp_path / "few.csv",
        "--target",
        "kind",
        "--out",
        tmp_path / "run",
        "--methods",
        "distance+raw",
    )
    shown = attnknn("study", "main", *asked, "--seeds", "1", "--k", "500", "--no-figures").stdout
    assert "note: 'rare' (1 row): never tested" in shown
    assert "note: k 500 is more than the bank of distance+raw holds" in shown


def test_a_study_along_an_axis_is_quick_where_asked_and_never_goes_on_unasked(attnknn, tables, tmp_path):
    out = tmp_path / "run"
    asked = ("study", "noise", "--data", tables["train"], "--target", "income", "--out", out)
    few = ("--methods", "hgb", "--along", "0.1,0.3")
    report = attnknn.json(*asked, *few, "--quick")
    assert [*report["methods"]] == ["hgb", "hgb@symmetric-0.3"]  # of two classes both kinds are one
    assert report["seeds"] == [0, 1]
    assert report["config"]["most_rows"] == 20_000
    assert report["points"]["symmetric-0.3"] == {"at": 0.3, "line": "symmetric"}
    shown = attnknn(*asked, *few, "--quick").stdout
    assert "hgb@symmetric-0.3 keeps " in shown
    assert "holds a study already" in attnknn(*asked, *few, "--quick", "--no-resume", code=2).stderr


def test_a_report_is_never_saved_over_something_else(attnknn, tables, tmp_path):
    out = tmp_path / "run"
    asked = ("study", "main", "--data", tables["train"], "--target", "income", "--out", out, *QUICK, "--save")
    before = tables["train"].read_bytes()
    assert "is there and is no report" in attnknn.refused(*asked, tables["train"])
    assert tables["train"].read_bytes() == before
    assert "has a report of its own" in attnknn.refused(*asked, out / "recipe.json")
    below = tables["train"] / "folder" / "saved.json"
    assert "nothing can be written in" in attnknn.refused(*asked, below)
    assert not out.exists()
    saved = tmp_path / "saved.json"
    for _ in range(2):
        attnknn(*asked, saved)
    assert json.loads(saved.read_text())["study"] == "main"


@pytest.mark.parametrize("width", ["60", "80"])
def test_the_table_fits_the_terminal(attnknn, tables, tmp_path, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", width)
    asked = ("--data", tables["train"], "--target", "income", "--out", tmp_path / "run", *QUICK)
    table = attnknn("study", "main", *asked).stdout.partition("no difference")[0].splitlines()[1:8]
    assert max(map(len, table)) <= int(width)


def test_a_failed_cell_is_named_and_the_exit_code_is_1(attnknn, tables, tmp_path, monkeypatch):
    from attnknn.study.methods import METHODS

    def broken(job):
        raise RuntimeError("out of luck")

    monkeypatch.setitem(METHODS, "sklearn-knn", broken)
    asked = ("--data", tables["train"], "--target", "income", "--out", tmp_path / "run", *QUICK)
    result = attnknn("study", "main", *asked, code=1)
    assert "cell sklearn-knn-1 failed: RuntimeError: out of luck" in result.stderr
    assert "distance+raw" in result.stdout
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["study"], "Missing command"),
        (["study", "minor"], "No such command"),
        (["study", "main"], "--data"),
        (["study", "main", "--data", "iris", "--out", "o", "--along", "1"], "has no axis"),
        (["study", "k-sweep", "--data", "iris", "--out", "o", "--along", "1,2.5"], "whole numbers from 1"),
        (["study", "k-sweep", "--data", "iris", "--out", "o", "--along", "a"], "got 'a'"),
        (["study", "k-sweep", "--data", "iris", "--out", "o", "--k", "3"], "--along 1,5,10"),
        (["study", "noise", "--data", "iris", "--out", "o", "--along", "0.95"], "from 0 to 0.9"),
        (["study", "noise", "--data", "iris", "--out", "o", "--noise", "0.2"], "rates of its own"),
        (["study", "imbalance", "--data", "iris", "--out", "o", "--along", "0"], "from 1e-06 to 1"),
        (["study", "noise", "--data", "iris", "--out", "o", "--keep", "attention"], "studies without an axis"),
        (["study", "main", "--data", "iris"], "--out"),
        (["study", "main", "--data", "irises", "--out", "o"], "breast-cancer"),
        (["study", "main", "--data", "no.csv", "--target", "y", "--out", "o"], "no such file"),
        (["study", "main", "--data", "adult", "--out", "o"], "UCI"),
        (["study", "main", "--data", "iris", "--out", "o", "--target", "color"], "species"),
        (["study", "main", "--data", "iris", "--out", "o", "--methods", "hgb,magic"], "'magic'; try one of"),
        (["study", "main", "--data", "iris", "--out", "o", "--methods", ","], "no method is named"),
        (["study", "main", "--data", "iris", "--out", "o", "--seeds", "0"], "--seeds"),
        (["study", "main", "--data", "iris", "--out", "o", "--test-share", "2"], "--test-share"),
        (["study", "main", "--data", "iris", "--out", "o", "--members", "1"], "--members"),
        (["study", "main", "--data", "iris", "--out", "o", "--device", "toaster"], "no device"),
        (["study", "main", "--data", "iris", "--out", "o", "--save", "."], "is a folder"),
        (["study", "main", "--data", "iris", "--out", "o", "--bogus"], "No such option"),
    ],
)  # fmt: skip
def test_a_mistake_is_refused_in_one_line(attnknn, args, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ATTNKNN_DATA", raising=False)
    assert said in attnknn.refused(*args)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_another_recipe_or_of_something_else_is_refused(attnknn, tmp_path):
    asked = ("study", "main", "--data", "iris", "--methods", "distance+raw", "--seeds", 1)
    attnknn(*asked, "--out", tmp_path / "run")
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    assert "members (5 there, 3 here)" in attnknn.refused(*asked, "--out", tmp_path / "run", "--members", 3)
    assert "test_share" in attnknn.refused(*asked, "--out", tmp_path / "run", "--test-share", 0.4)
    assert "other files" in attnknn.refused(*asked, "--out", tmp_path)
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()} == before


def test_a_study_that_is_killed_goes_on_where_it_was(attnknn, tables, tmp_path):
    out = tmp_path / "run"
    asked = ["study", "main", "--data", tables["train"], "--target", "income", "--out", out]
    asked = [*map(str, asked), "--methods", "sklearn-knn,distance+raw", "--seeds", "30"]
    process = subprocess.Popen([sys.executable, "-m", "attnknn", *asked], env=dict(os.environ))
    end = time.monotonic() + 60
    while not list(out.glob("cells/*-0.json")) and time.monotonic() < end:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=10)
    there = {path: path.read_bytes() for path in out.glob("cells/*.json") if not path.name.startswith(".")}
    assert there
    assert len(there) < 60
    found = attnknn.json(*asked[:-1], 3)
    assert {path: path.read_bytes() for path in there} == there
    assert found["failed"] == {}
    assert None not in found["methods"]["distance+raw"]["nll"]["values"][:3]


def test_importing_the_command_imports_nothing_slow():
    slow = ["torch", "numpy", "pandas", "sklearn", "scipy"]
    code = f"import sys, attnknn.cli.study; print([name for name in {slow!r} if name in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def test_a_study_that_is_interrupted_says_how_to_go_on(attnknn, tables, tmp_path, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("attnknn.study.engine.run_study", interrupted)
    asked = ("study", "main", "--data", tables["train"], "--target", "income", "--out", tmp_path / "run")
    said = attnknn(*asked, *QUICK, code=130).stderr
    assert "the same command goes on" in said
    assert str(tmp_path / "run") in said
