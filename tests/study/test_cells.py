"""A folder holds one recipe; a cell is whole, its own, and written once."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from attnknn.errors import InvalidInput
from attnknn.study.cells import Cells


@pytest.fixture
def cells(tmp_path, recipe) -> Cells:
    return Cells.open(tmp_path / "run", recipe)


def test_a_folder_goes_on_with_its_own_recipe_and_refuses_another(cells, recipe):
    assert Cells.open(cells.folder, recipe) == cells
    before = (cells.folder / "recipe.json").read_bytes()
    with pytest.raises(InvalidInput, match=r"members \(5 there, 3 here\)"):
        Cells.open(cells.folder, replace(recipe, members=3))
    assert (cells.folder / "recipe.json").read_bytes() == before


def test_of_two_that_claim_a_new_folder_at_once_one_gets_it(tmp_path, recipe):
    for at in range(20):
        start, got = threading.Barrier(2), []

        def claim(which, folder=tmp_path / str(at), start=start, got=got):
            start.wait()
            try:
                got.append(Cells.open(folder, which).recipe)
            except InvalidInput as refused:
                assert "another recipe" in str(refused)  # noqa: PT017

        claims = [threading.Thread(target=claim, args=(replace(recipe, members=many),)) for many in (3, 5)]
        [each.start() for each in claims]
        [each.join() for each in claims]
        assert len(got) == 1
        assert json.loads((tmp_path / str(at) / "recipe.json").read_text())["members"] == got[0].members


def test_where_there_are_no_links_a_folder_is_claimed_nevertheless(tmp_path, recipe, monkeypatch):
    def refused(path, target):
        raise PermissionError(1, "no links here")

    monkeypatch.setattr(Path, "hardlink_to", refused)
    assert Cells.open(tmp_path / "run", recipe) == Cells.open(tmp_path / "run", recipe)
    with pytest.raises(InvalidInput, match="another recipe"):
        Cells.open(tmp_path / "run", replace(recipe, members=3))
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["recipe.json"]


def test_what_judges_cells_and_decides_no_number_may_change_meanwhile(cells, recipe):
    judged_anew = replace(recipe, may_coincide=())
    assert judged_anew.hash == recipe.hash
    assert Cells.open(cells.folder, judged_anew).recipe.may_coincide == ()


def test_a_folder_of_something_else_is_left_alone(tmp_path, recipe):
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(InvalidInput, match="other files"):
        Cells.open(tmp_path, recipe)
    with pytest.raises(InvalidInput, match="is a file"):
        Cells.open(tmp_path / "letter.txt", recipe)
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]


def test_what_is_written_is_read_again(cells):
    arrays = {"probabilities": np.array([[0.5, 0.5]]), "classes": np.array(["a", "b"])}
    cells.write("attention+ensemble", 12, {"metrics": {"accuracy": 0.5}}, arrays)
    assert cells.done("attention+ensemble", 12)
    assert list(cells.all()) == [("attention+ensemble", 12)]
    assert cells.read("attention+ensemble", 12)["metrics"] == {"accuracy": 0.5}
    found = cells.predictions("attention+ensemble", 12)
    assert {name: each.tolist() for name, each in found.items()} == {n: a.tolist() for n, a in arrays.items()}


def test_a_cell_that_was_not_run_is_tried_again(cells):
    cells.write("lightgbm", 0, {"not_run": "absent"})
    assert not cells.done("lightgbm", 0)
    assert cells.all()["lightgbm", 0]["not_run"] == "absent"


def test_predictions_without_their_cell_are_no_cell(cells):
    cells.write("hgb", 0, {}, {"labels": np.arange(3)})
    cells.path("hgb", 0).unlink()
    assert not cells.done("hgb", 0)
    assert cells.all() == {}


@pytest.mark.parametrize("change", [{"recipe": "0" * 64}, {"seed": 1}, {"method": "mlp"}])
def test_a_cell_from_elsewhere_is_refused_by_name(cells, change):
    cells.write("hgb", 0, {})
    path = cells.path("hgb", 0)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(InvalidInput, match=r"hgb-0\.json"):
        cells.done("hgb", 0)


@pytest.mark.parametrize("text", ["", "{", "[]", "null"])
def test_a_damaged_cell_is_refused_by_name(cells, text):
    cells.write("hgb", 0, {})
    cells.path("hgb", 0).write_text(text)
    with pytest.raises(InvalidInput, match=r"hgb-0\.json is not a JSON object"):
        cells.all()


def test_predictions_that_are_not_those_of_the_cell_are_refused(cells):
    cells.write("hgb", 0, {}, {"labels": np.arange(3)})
    file = cells.path("hgb", 0).with_suffix(".npz")
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(InvalidInput, match=r"hgb-0\.npz"):
        cells.predictions("hgb", 0)
    file.unlink()
    with pytest.raises(InvalidInput, match=r"hgb-0\.npz"):
        cells.predictions("hgb", 0)
