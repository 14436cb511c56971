"""Every notebook runs from its first cell to its last, in a kernel of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).resolve().parent.parent / "examples").glob("*.ipynb"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_a_notebook_runs(path, tmp_path):
    nbformat = pytest.importorskip("nbformat", reason="needs what attnknn[dev] brings")
    nbclient = pytest.importorskip("nbclient", reason="needs what attnknn[dev] brings")
    notebook = nbformat.read(path, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "outputs would grow stale: clear them"
    nbclient.NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    said = [out.text for cell in notebook.cells for out in cell.get("outputs", []) if out.output_type == "stream"]
    assert any("no difference found between attention" in text or "attention has " in text for text in said)
    assert any("image/png" in out.get("data", {}) for cell in notebook.cells for out in cell.get("outputs", []))


def test_there_is_a_notebook():
    assert EXAMPLES
