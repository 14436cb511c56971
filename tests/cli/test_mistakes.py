"""A user's mistake: exit code 2, one line that says what to do, never a traceback."""

from __future__ import annotations

import os

import numpy as np
import pandas as pd
import pytest
from people import people, write_csv

from attnknn import AttnKNNClassifier
from attnknn.errors import AttnKNNError


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--bogus"], "No such option"),
        (["nothing"], "No such command"),
        (["fit"], "Missing argument"),
        (["fit", "iris"], "--out"),
        (["fit", "iris", "--out", "m", "--weights", "best"], "softmax"),
        (["fit", "iris", "--out", "m", "--k", "many"], "--k"),
        (["fit", "iris", "--out", "m", "--k", "0"], "--k"),
        (["fit", "iris", "--out", "m", "--test-share", "2"], "--test-share"),
        (["fit", "iris", "--out", "m", "--target", "color"], "species"),
        (["fit", "iris", "--out", "m", "--device", "toaster"], "cpu"),
        (["fit", "irises", "--out", "m"], "breast-cancer"),
        (["fit", "no.csv", "--out", "m", "--target", "y"], "no such file: no.csv"),
        (["fit", ".", "--out", "m"], "folder"),
        (["fit", "adult", "--out", "m"], "UCI"),
        (["fit", "adult", "--out", "m", "--data-dir", "nowhere"], "does not exist"),
        (["predict", "no-model", "iris"], "no such folder"),
        (["evaluate", "no-model", "iris"], "no such folder"),
        (["explain", "no-model", "iris", "--row", "0"], "no such folder"),
        (["explain", "no-model", "iris"], "--row"),
        (["explain", "no-model", "iris", "--row", "-1"], "--row"),
        (["bank"], "Missing command"),
        (["bench"], "Missing command"),
        (["bench", "gpu", "--save", "."], "folder"),
        (["bank", "info", "no-model"], "no such folder"),
        (["bank", "remove", "no-model"], "Missing argument"),
        (["data", "verify", "irises"], "breast-cancer"),
        (["data", "list", "--data-dir", "nowhere"], "not a folder"),
        (["demo", "--seed", "-1"], "--seed"),
        (["demo", "--out", "nowhere/demo.html"], "folder that exists"),
    ],
)  # fmt: skip
def test_a_bad_argument_is_refused_in_one_line(attnknn, args, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ATTNKNN_DATA", raising=False)
    assert said in attnknn.refused(*args)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "empty"),
        (b"a,y\n", "no rows"),
        (b"a,y\n1,x\n2\n", "line 3"),
        (b"a,y\n1,x\n,\n", "missing in 1 row (1, counted from 0)"),
        (b"\x00\x01\x02", "UTF-8"),
        (b"a,b\n1,2\n", "no column 'y'"),
        (b"y\nx\nz\n", "besides the target"),
        (b"a,y\n1,0.5\n2,0.25\n3,0.125\n", "continuous"),
        (b"a,y\n1,x\ninf,z\n", "infinity"),
    ],
)
def test_a_table_that_cannot_be_learned_from_is_refused(attnknn, content, said, tmp_path):
    file = tmp_path / "t.csv"
    file.write_bytes(content)
    assert said in attnknn.refused("fit", file, "--target", "y", "--out", tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_fit_asks_for_the_target_and_names_the_columns(attnknn, tables, tmp_path):
    assert "income" in attnknn.refused("fit", tables["train"], "--out", tmp_path / "m")


def test_fit_refuses_ids_that_cannot_be(attnknn, tables, tmp_path):
    args = ("fit", tables["train"], "--target", "income", "--out", tmp_path / "m", "--ids")
    assert "no column 'nobody'" in attnknn.refused(*args, "nobody")
    assert "missing" in attnknn.refused(*args, "job")
    assert "given twice" in attnknn.refused(*args, "hours")


def test_fit_refuses_a_test_share_that_leaves_nothing_to_test(attnknn, tmp_path):
    file = write_csv(tmp_path / "t.csv", [{"a": 1, "y": "p"}, {"a": 2, "y": "q"}])
    said = attnknn.refused("fit", file, "--target", "y", "--test-share", "0.5", "--out", tmp_path / "m")
    assert "leaves none to test on" in said


def test_fit_never_touches_a_folder_that_is_no_model(attnknn, tmp_path):
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "dear.txt").write_text("dear")
    (tmp_path / "file").write_text("x")
    for force in ([], ["--force"]):
        assert "other things" in attnknn.refused("fit", "iris", "--out", tmp_path / "letters", *force)
        assert "is a file" in attnknn.refused("fit", "iris", "--out", tmp_path / "file", *force)
    assert [file.name for file in (tmp_path / "letters").iterdir()] == ["dear.txt"]


def test_fit_says_how_to_choose_another_folder_where_one_holds_another_training(attnknn, tables, tmp_path):
    base = ("fit", tables["train"], "--target", "income", "--epochs", 1, "--checkpoint", tmp_path / "c")
    attnknn(*base, "--seed", 0, "--out", tmp_path / "one")
    said = attnknn.refused(*base, "--seed", 1, "--out", tmp_path / "two")
    assert said.endswith("choose another folder (--checkpoint)")


def test_predict_names_the_columns_that_are_missing(attnknn, trained, tmp_path):
    rows = [{"age": row["age"], "job": row["job"]} for row in people(5, 1)]
    said = attnknn.refused("predict", trained, write_csv(tmp_path / "t.csv", rows))
    assert "'hours', 'member'" in said


def test_predict_refuses_text_where_numbers_were(attnknn, trained, tmp_path):
    rows = [{**row, "hours": "many"} for row in people(5, 1)]
    assert "'hours'" in attnknn.refused("predict", trained, write_csv(tmp_path / "t.csv", rows))


def test_predict_refuses_to_overwrite_what_it_reads(attnknn, trained, tmp_path):
    file = write_csv(tmp_path / "t.csv", people(5, 1))
    assert "is read" in attnknn.refused("predict", trained, file, "--out", file)
    assert "is a folder" in attnknn.refused("predict", trained, file, "--out", tmp_path)
    assert "make it first" in attnknn.refused("predict", trained, file, "--out", tmp_path / "no" / "x.csv")
    assert "--abstain-below" in attnknn.refused("predict", trained, file, "--abstain-label", "x")


def test_explain_says_which_rows_there_are(attnknn, trained, tables):
    assert "rows 0 to 39" in attnknn.refused("explain", trained, tables["test"], "--row", 40)


def test_evaluate_refuses_a_target_that_is_not_there(attnknn, trained, tables):
    assert "income" in attnknn.refused("evaluate", trained, tables["test"])
    assert "no column 'wage'" in attnknn.refused("evaluate", trained, tables["test"], "--target", "wage")


@pytest.mark.parametrize("damage", ["flip", "truncate", "delete", "foreign", "pickle"])
@pytest.mark.parametrize("command", ["predict", "evaluate", "bank"])
def test_a_damaged_model_is_refused_and_the_file_named(attnknn, model, damage, command):
    victim = next(file for file in sorted(model.iterdir()) if file.suffix == ".safetensors")
    content = victim.read_bytes()
    if damage == "flip":
        victim.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    elif damage == "truncate":
        victim.write_bytes(content[:-1])
    elif damage == "delete":
        victim.unlink()
    else:
        victim = model / "manifest.json"
        victim.write_bytes(b"{}" if damage == "foreign" else b"\x80\x04.")
    args = ["bank", "info", model] if command == "bank" else [command, model, "iris"]
    assert victim.name in attnknn.refused(*args)


@pytest.mark.parametrize(
    "args",
    [
        ["remove", "p1-1", "ghost"],
        ["remove", "ghost"],
        ["relabel", "p1-1=low", "ghost=high"],
        ["relabel", "p1-1=low", "p1-2=royal"],
        ["relabel", "p1-1=low", "p1-2"],
        ["relabel", "p1-1=low", "p1-1=high"],
    ],
)
def test_an_edit_with_any_mistake_changes_nothing(attnknn, model, args):
    def content():  # but for the empty files that are locked
        return {file.name: file.read_bytes() for file in model.iterdir() if not file.name.startswith(".")}

    before = content()
    attnknn.refused("bank", args[0], model, *args[1:])
    assert content() == before


def test_the_last_example_stays(attnknn, tmp_path):
    AttnKNNClassifier(1).fit(np.zeros((2, 1)), [0, 1]).save(tmp_path / "m")
    assert "keep one" in attnknn.refused("bank", "remove", tmp_path / "m", "0", "1")


def test_a_new_label_must_be_of_the_model_s_type(attnknn, tmp_path):
    AttnKNNClassifier(1).fit(pd.DataFrame({"a": [0.0, 1.0]}), [0, 1]).save(tmp_path / "m")
    file = write_csv(tmp_path / "t.csv", [{"a": 1, "y": "two"}])
    said = attnknn.refused("bank", "add", tmp_path / "m", file, "--target", "y", "--classes", "two")
    assert "cannot be a label" in said


def test_a_system_error_names_the_file(attnknn, trained, tables, tmp_path, monkeypatch):
    def full(*_: object, **__: object) -> None:
        raise OSError(28, os.strerror(28), str(tmp_path / "m"))

    monkeypatch.setattr(AttnKNNClassifier, "save", full)
    said = attnknn.refused("fit", "iris", "--out", tmp_path / "m")
    assert str(tmp_path / "m") in said
    assert "No space left" in said


def test_an_error_of_several_lines_becomes_one_and_cannot_command_the_terminal(attnknn, monkeypatch, tmp_path):
    def refuse(*_: object, **__: object) -> None:
        raise AttnKNNError("one\ntwo \x1b[31m red")

    monkeypatch.setattr(AttnKNNClassifier, "fit", refuse)
    assert attnknn.refused("fit", "iris", "--out", tmp_path / "m") == r"error: one two \x1b[31m red"


def test_a_bug_is_not_hidden(attnknn, monkeypatch, tmp_path):
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(AttnKNNClassifier, "fit", broken)
    with pytest.raises(ZeroDivisionError):
        attnknn("fit", "iris", "--out", tmp_path / "m")


def test_an_interruption_is_quiet(attnknn, monkeypatch, tmp_path):
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(AttnKNNClassifier, "fit", interrupted)
    result = attnknn("fit", "iris", "--out", tmp_path / "m", code=130)
    assert result.stdout + result.stderr == ""


def test_output_never_overwrites_the_data_or_the_model(attnknn, tables, trained):
    data, manifest = tables["test"], trained / "manifest.json"
    before = data.read_bytes(), manifest.read_bytes()
    for target in (data, manifest):
        attnknn.refused("predict", trained, data, "--out", target)
        attnknn.refused("explain", trained, data, "--row", 0, "--html", target)
    assert (data.read_bytes(), manifest.read_bytes()) == before


def test_a_save_does_not_replace_the_manifest_of_something_else(tmp_path):
    (tmp_path / "manifest.json").write_text('{"name": "my webapp"}')
    model = AttnKNNClassifier(1).fit([[0.0], [1.0]], [0, 1])
    with pytest.raises(AttnKNNError, match="something else"):
        model.save(tmp_path)
    assert (tmp_path / "manifest.json").read_text() == '{"name": "my webapp"}'


def test_edits_of_several_processes_at_once_all_count(attnknn, tmp_path):
    """A child process holds the model while this one waits, then both examples are there."""
    import subprocess
    import sys
    import time

    AttnKNNClassifier(1).fit([[0.0], [1.0]], [0, 1]).save(tmp_path / "m")
    child = (
        "import sys, time; from attnknn.bank.folder import editing; from attnknn import AttnKNNClassifier\n"
        "with editing(sys.argv[1]):\n"
        "    model = AttnKNNClassifier.load(sys.argv[1]); print('held', flush=True); time.sleep(1)\n"
        "    model.add([[5.0]], [1], ids=['theirs']); model.save(sys.argv[1])\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", child, str(tmp_path / "m")], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "held\n"
    start = time.monotonic()
    attnknn("bank", "remove", tmp_path / "m", "0")
    assert process.wait(timeout=60) == 0, time.monotonic() - start
    process.stdout.close()
    assert AttnKNNClassifier.load(tmp_path / "m").bank_.ids == [1, "theirs"]
