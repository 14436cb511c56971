"""The house stands as house.md draws it."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import attnknn

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "attnknn"
MODULES = sorted(SOURCE.rglob("*.py"))


@cache
def imported(path):
    """Top-level names of everything a module imports, wherever in it."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            names.add(node.module.partition(".")[0])
    return names


def importers_of(name):
    return {path.relative_to(SOURCE).as_posix() for path in MODULES if name in imported(path)}


def loaded_by(statement):
    code = f"{statement}\nimport sys\nprint(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    return set(ran.stdout.split())


SLOW = {"faiss", "matplotlib", "typer", "rich", "polars", "fastapi", "PIL", "timm"}


def test_importing_the_package_loads_nothing_slow():
    assert not loaded_by("import attnknn") & (SLOW | {"pandas", "pyarrow", "torch", "sklearn"})


def test_importing_the_classifier_loads_nothing_optional():
    # scikit-learn 1.9 imports pandas by itself where it is installed; our own modules do not (next test).
    assert not loaded_by("from attnknn import AttnKNNClassifier") & SLOW


def test_no_module_imports_a_frame_library_before_it_is_needed():
    for path in MODULES:
        top = ast.parse(path.read_text(encoding="utf-8")).body
        names = {
            alias.name.partition(".")[0] for node in top if isinstance(node, ast.Import) for alias in node.names
        }
        names |= {(node.module or "").partition(".")[0] for node in top if isinstance(node, ast.ImportFrom)}
        assert not names & {"pandas", "polars", "pyarrow", "matplotlib", "faiss"} or path.name == "faiss.py", path


def test_only_the_bank_knows_faiss_only_the_command_line_knows_typer_and_nobody_reads_pickles():
    assert importers_of("faiss") == {"bank/faiss.py"}
    assert importers_of("PIL") == {"data/images.py"}
    assert {path.partition("/")[0] for path in importers_of("typer")} <= {"cli"}
    assert {path for path in importers_of("rich") if not path.startswith("cli/")} <= {"train/progress.py"}
    assert importers_of("pickle") == {"study/workers.py"}  # by a pipe, to processes of its own
    for name in ("cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"):
        assert importers_of(name) == set(), name


def test_nothing_in_the_source_evaluates_text_or_reads_pickles():
    forbidden = {"eval", "exec", "__import__"}
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            name = getattr(node.func, "id", None)
            assert name not in forbidden, f"{path}:{node.lineno}"
            given = {keyword.arg: keyword.value for keyword in node.keywords}
            allows = given.get("allow_pickle")
            assert not (isinstance(allows, ast.Constant) and allows.value), f"{path}:{node.lineno}"


def test_every_public_name_resolves_and_is_documented():
    assert sorted(attnknn.__all__) == attnknn.__all__
    for name in attnknn.__all__:
        assert getattr(attnknn, name).__doc__, name
        assert name in dir(attnknn)
    with pytest.raises(AttributeError, match="no_such_name"):
        attnknn.no_such_name  # noqa: B018


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_a_module_has_fewer_than_400_lines_and_a_docstring(path):
    text = path.read_text(encoding="utf-8")
    assert text.count("\n") < 400
    assert ast.get_docstring(ast.parse(text))


def test_there_is_no_room_for_odds_and_ends():
    assert not {path.stem for path in MODULES} & {"utils", "common", "helpers", "misc"}
    assert (SOURCE / "py.typed").exists()


def test_test_files_have_names_of_their_own_and_no_packages():
    tests = [path for path in (ROOT / "tests").rglob("*.py") if "__pycache__" not in path.parts]
    names = [path.name for path in tests if path.name != "conftest.py"]
    assert len(set(names)) == len(names)
    assert "__init__.py" not in names


def test_imports_follow_the_path_of_the_data():
    pytest.importorskip("importlinter")
    code = "import sys; from importlinter.cli import lint_imports_command; sys.exit(lint_imports_command())"
    ran = subprocess.run(
        [sys.executable, "-c", code, "--no-cache"], capture_output=True, text=True, timeout=100, cwd=ROOT
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
