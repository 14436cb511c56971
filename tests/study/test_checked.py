"""The studies of theory and efficiency as cells of a study."""

from __future__ import annotations

import json

import pytest

from attnknn.study import checked, engine, ours
from attnknn.study.answers import answers
from attnknn.study.efficiency import Place, run_places
from attnknn.study.job import Job
from attnknn.study.methods import METHODS
from attnknn.study.splits import parts


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
    assert "ms per query" in told["overhead_shipped"]


def test_learned_attention_that_cannot_be_trained_is_told_beside_what_ships(asked):
    report = asked("stages")  # whose stand-in for the training knows only softmax
    said = answers("overhead", [report])
    assert said[0] == "attention with all learned parts: not run: there are too few rows to train its parts"
    assert said[1].startswith("what ships (softmax weights, k = ")
    assert "adds" in said[1]


def test_the_claim_of_an_overhead_is_answered_by_learned_attention_that_the_ablation_shares(
    recipe, task, monkeypatch
):
    monkeypatch.setattr(checked, "_BATCHES", (1, 8))
    job = Job(recipe, task, parts(task, recipe, 0), 0)
    told = METHODS["stages"](job).settings
    assert [(each["what"], each["weights"]) for each in told["stages"]] == [
        *[("what ships", "softmax")] * 2,
        *[("attention with all learned parts", "attention")] * 2,
    ]
    assert told["overhead"].startswith("attention with all learned parts (k = ")
    assert told["overhead_shipped"].startswith("what ships (softmax weights, k = ")
    monkeypatch.setattr(ours, "reweighed", None)  # would be called if anything were trained again
    assert METHODS["attention-all"](job).settings["members"][0]["weigher"] == "LearnedWeighting"


def test_a_record_of_softmax_alone_does_not_pass_for_learned_attention():
    stages = [{"batch": 1, "weights": "softmax"}]
    report = {
        "study": "efficiency",
        "settings": {"stages": [{"stages": stages, "overhead": "softmax weights add 0"}]},
    }
    assert answers("overhead", [report]) == ["attention with all learned parts: not run", "softmax weights add 0"]
    report["environments"] = [{"environment": {}}, {"environment": {"processes": 3}}]
    beside = "softmax weights add 0 (timed while up to 3 processes shared the machine)"
    assert answers("overhead", [report])[-1] == beside


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
