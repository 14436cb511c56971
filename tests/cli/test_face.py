"""Help, choices, JSON, narrow terminals, and what a fresh process does."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from attnknn import __version__
from attnknn.cli import choices, screen

COMMANDS = [
    [],
    ["demo"],
    ["fit"],
    ["predict"],
    ["evaluate"],
    ["explain"],
    ["bank", "info"],
    ["bank", "add"],
    ["bank", "remove"],
    ["bank", "relabel"],
    ["data", "list"],
    ["data", "verify"],
    ["study", "list"],
    ["study", "main"],
    ["study", "ablation"],
    ["study", "all"],
    ["study", "diff"],
    ["bench", "gpu"],
]


def process(*args: object, **settings: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **settings}
    return subprocess.run(
        [sys.executable, *map(str, args)], capture_output=True, text=True, env=environment, check=False, timeout=60
    )


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("width", [60, 80])
def test_help_shows_examples_and_fits_the_terminal(attnknn, command, width, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERMINAL_WIDTH", str(width))
    text = attnknn(*command, "--help").stdout
    lines = text.splitlines()
    at = next(place for place, line in enumerate(lines) if line.strip() == "Examples:")
    assert lines[at + 1].strip().startswith(" ".join(["attnknn", *command]))
    assert "\x1b" not in text
    if width == 80:
        examples = [line.rstrip() for line in lines[at + 1 : at + 9] if line.startswith("   attnknn")]
        assert examples
        assert max(map(len, examples)) <= 80


def test_choices_are_told_where_they_are_asked_for(tmp_path):
    rows = "\n".join(f"{at % 7},{at % 5},{'ab'[at % 2]}" for at in range(40))
    file = tmp_path / "rows.csv"
    file.write_text(f"x,y,z\n{rows}\n")
    quiet, told = (
        process("-m", "attnknn", *flags, "fit", file, "--target", "z", "--device", "cpu", "--out", tmp_path / name)
        for name, flags in (("quiet", []), ("told", ["-v"]))
    )
    line = "note: search by torch: the tensors are on cpu"
    assert (quiet.returncode, told.returncode) == (0, 0), told.stderr
    assert line in told.stderr.splitlines()
    assert line not in quiet.stderr


def test_without_a_command_the_help_is_shown(attnknn):
    assert "Examples:" in attnknn().stdout


def test_version_is_said(attnknn):
    assert attnknn("--version").stdout == f"attnknn {__version__}\n"


def test_choices_are_those_of_the_packages():
    from attnknn.bank import INDEXES
    from attnknn.estimator.options import CALIBRATIONS, EMBEDDERS, WEIGHTS
    from attnknn.ops import METRICS

    assert {each.value for each in choices.Weights} == set(WEIGHTS)
    assert {each.value for each in choices.Embedder} == set(EMBEDDERS)
    assert {each.value for each in choices.Metric} == {"auto", *METRICS}
    assert {each.value for each in choices.Index} == {"auto", *INDEXES}
    assert {each.value for each in choices.Calibration} == {each or "none" for each in CALIBRATIONS}


def test_strict_json_holds_anything_that_commands_report(tmp_path, capsys):
    import numpy as np

    from attnknn.metrics import Estimate

    screen.emit(
        {
            "a": np.float64("nan"),
            "b": [np.inf, -1.5],
            3: np.array([[1, 2]]),
            "c": Estimate(0.5, float("-inf"), 1.0),
            "d": tmp_path,
            "e": "\u2028é",
            "f": None,
            "g": np.bool_(True),
        }
    )
    found = json.loads(capsys.readouterr().out)
    assert found == {
        "a": None, "b": [None, -1.5], "3": [[1, 2]], "c": {"value": 0.5, "low": None, "high": 1.0},
        "d": str(tmp_path), "e": "\u2028é", "f": None, "g": True,
    }  # fmt: skip


def test_tables_take_names_that_look_like_markup_or_commands(capsys):
    screen.table(["[red]head[/red]"], [["[bold]x"], ["\x1b[2J:smile:"]])
    text = capsys.readouterr().out
    for word in ("[red]head[/red]", "[bold]x", r"\x1b[2J:smile:"):
        assert word in text
    assert "\x1b" not in text


@pytest.mark.parametrize("width", [60, 80])
def test_tables_fit_a_narrow_terminal(attnknn, trained, tables, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.delenv("ATTNKNN_DATA", raising=False)
    evaluated = attnknn("evaluate", trained, tables["test"], "--target", "income", "--draws", 20).stdout
    informed = attnknn("bank", "info", trained, "--suspects", 2).stdout
    for line in (evaluated + informed).splitlines():
        assert len(line) <= width or line.startswith("model ")


def test_importing_the_command_line_imports_nothing_slow():
    slow = "torch, numpy, pandas, sklearn, scipy, faiss"
    code = f"import sys, attnknn.cli; print([name for name in {slow.split(', ')!r} if name in sys.modules])"
    assert process("-c", code).stdout.strip() == "[]"


def test_a_fresh_process_predicts_on_a_plain_ascii_terminal(trained, tables):
    found = process("-m", "attnknn", "predict", trained, tables["test"], "--json", PYTHONIOENCODING="ascii")
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout)["rows"] == 40
    assert "columns that the model does not use" in found.stderr


def test_a_fresh_process_refuses_without_a_traceback(tmp_path):
    found = process("-m", "attnknn", "fit", "no.csv", "--target", "y", "--out", tmp_path / "m")
    assert (found.returncode, found.stdout) == (2, "")
    assert found.stderr.startswith("error: ")
    assert found.stderr.count("\n") == 1


def test_a_reader_that_leaves_early_is_no_error():
    code = (
        "import sys; from attnknn.cli import main; sys.argv = ['attnknn', *sys.argv[1:]]\n"
        "import os; r, w = os.pipe(); os.close(r); os.dup2(w, 1); main()"
    )
    found = process("-c", code, "data", "list")
    assert (found.returncode, found.stderr) == (141, "")


def test_warnings_of_libraries_become_notes(tmp_path):
    file = tmp_path / "t.csv"
    file.write_text("a,y\n" + "".join(f"{at},{at // 2 * 2 + at % 2 * (at > 3)}\n" for at in range(60)))
    found = process("-m", "attnknn", "fit", file, "--target", "y", "--out", tmp_path / "m")
    assert found.returncode == 0, found.stderr
    assert all(line.startswith("note: ") for line in found.stderr.splitlines())


def test_a_log_gets_a_line_now_and_then(monkeypatch, capsys):
    with screen.progress("starting") as say:
        say("soon done")
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(screen, "_SILENCE", 0.0)
    with screen.progress("starting") as say:
        say("cell 1 of 2")
        say("cell 2 of 2")
    assert capsys.readouterr().err.splitlines() == ["note: cell 1 of 2", "note: cell 2 of 2"]
