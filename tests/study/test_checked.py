"""The studies of theory and efficiency as cells of a study."""

from __future__ import annotations

import json

import pytest

from attnknn.study import checked, engine
from attnknn.study.efficiency import Place, run_places


@pytest.fixture
def asked(recipe, task, tmp_path, untrained):
    def run(method):
        out = tmp_path / method
        found = engine.run_study(recipe, task, methods=[method], seeds=[0], out=out, device="cpu", commit="c")
        assert not found.failed
        return json.loads((out / "report.json").read_text())

    return run


def test_every_check_of_the_theory_is_in_the_cell_with_what_was_found(asked):
    report = asked("theory")
    (told,) = report["settings"]["theory"]
    verdicts = {check["name"]: check["verdict"] for check in told["checks"]}
    assert {"truncation", "certificate", "gumbel", "tail", "metrics agree", "k", "norms"} <= set(verdicts)
    for name in ("truncation", "certificate", "metrics agree"):
        assert verdicts[name] == "pass"
    assert set(verdicts.values()) <= {"pass", "fail", "reported", "not run"}
    assert all(check["claim"] and check["found"] for check in told["checks"])
    assert report["methods"]["theory"]["accuracy"]["mean"] > 0


def test_stages_are_timed_at_both_sizes_of_batches(asked, monkeypatch):
    monkeypatch.setattr(checked, "_BATCHES", (1, 64))  # more than there are test rows: they come again
    (told,) = asked("stages")["settings"]["stages"]
    assert [each["batch"] for each in told["stages"]] == [1, 64]
    for each in told["stages"]:
        assert all(value >= 0 for value in each["ms_per_query"].values())
    assert "ms per query" in told["overhead"]


def test_places_are_measured_once_and_those_that_were_not_run_again(tmp_path):
    place, said = Place("exact", 400, 8), []
    first = run_places(tmp_path, [place], said.append)
    assert first[place.name]["recall"] == 1
    assert run_places(tmp_path, [place], said.append) == first
    assert len(said) == 1
    (tmp_path / f"{place.name}.json").write_text('{"not_run": "no room"}')
    assert "not_run" in run_places(tmp_path, [place], said.append, since=0.0)[place.name]  # another run of now
    again = run_places(tmp_path, [place], said.append)
    assert again[place.name]["recall"] == 1
    assert len(said) == 2
