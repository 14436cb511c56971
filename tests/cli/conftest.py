"""Small tables, a model of each, and a way to run commands."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from people import people, write_csv
from typer.testing import CliRunner, Result

from attnknn.cli import app


def refuse_constant(name: str) -> None:
    raise AssertionError(f"not strict JSON: {name}")


class Shell:
    """Runs ``attnknn`` in this process."""

    def __call__(self, *args: object, code: int = 0) -> Result:
        result = CliRunner().invoke(app, [str(arg) for arg in args], prog_name="attnknn", catch_exceptions=False)
        assert result.exit_code == code, f"{result.stdout}\n{result.stderr}"
        return result

    def json(self, *args: object, code: int = 0) -> dict:
        text = self(*args, "--json", code=code).stdout
        return json.loads(text, parse_constant=refuse_constant)

    def refused(self, *args: object) -> str:
        """Runs what must be refused with one line on stderr, and gives that line."""
        result = self(*args, code=2)
        lines = [line for line in result.stderr.splitlines() if not line.startswith("note: ")]
        assert len(lines) == 1, result.stderr
        assert lines[0].startswith("error: ")
        assert "Traceback" not in result.stderr + result.stdout
        assert result.stdout == ""
        return lines[0]


@pytest.fixture(scope="session")
def attnknn() -> Shell:
    return Shell()


@pytest.fixture(scope="session")
def tables(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("tables")
    return {
        "train": write_csv(folder / "train.csv", people(160, 1)),
        "test": write_csv(folder / "test.csv", people(40, 2)),
    }


@pytest.fixture(scope="session")
def trained(tmp_path_factory, attnknn, tables) -> Path:
    """A model that tests only read."""
    out = tmp_path_factory.mktemp("models") / "people"
    attnknn("fit", tables["train"], "--target", "income", "--ids", "name", "--out", out)
    return out


@pytest.fixture
def model(tmp_path, trained) -> Path:
    """A model that a test may edit."""
    return Path(shutil.copytree(trained, tmp_path / "model"))


@pytest.fixture(scope="session")
def iris(tmp_path_factory, attnknn) -> Path:
    out = tmp_path_factory.mktemp("models") / "iris"
    attnknn("fit", "iris", "--out", out, "--k", "5")
    return out
