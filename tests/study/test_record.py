"""What a results file tells of its run, in a checkout and out of it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import attnknn
from attnknn.study import record

PACKAGE = Path(attnknn.__file__).parent


def test_an_installed_copy_knows_its_source_but_no_commit(tmp_path):
    shutil.copytree(PACKAGE, tmp_path / "site/attnknn", ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run(["git", "init", "-q", tmp_path], check=True)  # somebody else's checkout
    code = "from attnknn.study import record; print(record.commit(), record.source_hash(), record.__file__)"
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
        capture_output=True, text=True, check=True, cwd=tmp_path,
    )  # fmt: skip
    commit, source, file = ran.stdout.split()
    assert file.startswith(str(tmp_path))
    digest = hashlib.sha256()
    for path in sorted((tmp_path / "site").rglob("*.py")):
        name = "src/" + path.relative_to(tmp_path / "site").as_posix()
        digest.update(name.encode() + b"\0" + path.read_bytes())
    assert (commit, source) == ("None", digest.hexdigest())


def test_without_git_there_is_no_commit_but_the_given_one(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert record.commit() is None
    record.write(tmp_path / "deep/down.json", {"seeds": [0]}, given_commit="abc")
    found = json.loads((tmp_path / "deep/down.json").read_text())
    assert (found["commit"], found["seeds"]) == ("abc", [0])
    assert list(found)[:4] == ["command", "commit", "source_hash", "environment"]
    assert found["environment"]["versions"]["numpy"] == np.__version__


def test_json_is_strict_and_the_file_is_whole_or_as_it_was(tmp_path):
    file = tmp_path / "a.json"
    record.write_json(file, {"a": np.float64("nan"), "b": (np.int64(1), float("inf")), 2: np.array([0.5])})
    assert json.loads(file.read_text()) == {"a": None, "b": [1, None], "2": [0.5]}
    before = file.read_bytes()
    with pytest.raises(TypeError):
        record.write_json(file, {"a": object()})
    assert file.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (
            ["/usr/bin/attnknn", "study", "main", "--data", "my file.csv"],
            "attnknn study main --data 'my file.csv'",
        ),
        (["/src/attnknn/__main__.py", "study", "list"], "attnknn study list"),
        (["benchmarks/search.py", "--k", "3"], "python benchmarks/search.py --k 3"),
        (
            ["attnknn", "study", "main", "--data", "/home/me/my people.csv", "--out", "/mnt/runs/people/"],
            "attnknn study main --data 'my people.csv' --out people",
        ),
        (
            ["attnknn", "study", "--out=/mnt/runs/a", "--data-dir=/", "--k=3"],
            "attnknn study --out=a --data-dir=. --k=3",
        ),
        (
            ["attnknn", "study", "--out", "runs/a", "--data-dir", "../data"],
            "attnknn study --out runs/a --data-dir ../data",
        ),
        ([str(record.ROOT / "benchmarks/tables.py")], "python benchmarks/tables.py"),
        (["/home/me/mine.py", "/tmp/x"], "python mine.py x"),
    ],
)
def test_the_command_is_told_without_the_folders_of_this_machine(argv, said, monkeypatch):
    monkeypatch.setattr(sys, "argv", argv)
    assert record.command() == said
