"""Every command from end to end."""

from __future__ import annotations

import contextlib
import csv
import io
import os

import numpy as np
import pandas as pd
import pytest
import torch
from people import people, write_csv

from attnknn import AttnKNNClassifier
from attnknn.cli.predict import harmless


def test_fit_saves_the_model_that_the_classifier_would_learn(attnknn, tables, trained):
    frame = pd.read_csv(tables["train"])
    names, y = frame.pop("name").tolist(), frame.pop("income").to_numpy()
    alone = AttnKNNClassifier(random_state=0).fit(frame, y, ids=names)
    loaded = AttnKNNClassifier.load(trained)
    np.testing.assert_allclose(loaded.predict_proba(frame), alone.predict_proba(frame))
    assert loaded.bank_.ids == names
    assert loaded.device == "auto"


def test_fit_says_what_it_chose_and_how_k_did(attnknn, tables, tmp_path):
    text = attnknn("fit", tables["train"], "--target", "income", "--out", tmp_path / "m").stdout
    for word in ("scale", "prior mass", "calibrator", "index", "NLL by k", "saved in"):
        assert word in text
    found = attnknn.json("fit", "iris", "--k", 3, "--weights", "uniform", "--calibration", "none",
                         "--class-weight", "balanced", "--out", tmp_path / "i")  # fmt: skip
    assert found["chosen"]["k"] == 3
    assert found["chosen"]["weights"] == "uniform"
    assert found["chosen"]["calibrator"] == "none"
    assert found["chosen"]["prior_mass"] == 0
    assert found["test"] is None


def test_fit_holds_out_rows_that_the_model_never_sees(attnknn, tmp_path):
    found = attnknn.json("fit", "iris", "--test-share", "0.3", "--out", tmp_path / "m")
    assert found["chosen"]["rows"] + found["test"]["rows"] == 150
    assert found["test"]["rows_in_bank"] == 0
    assert set(found["test"]["metrics"]["accuracy"]) == {"value", "low", "high"}
    assert np.sum(found["test"]["confusion"]) == found["test"]["rows"]


def test_fit_names_examples_by_their_row(attnknn, tmp_path):
    attnknn("fit", "iris", "--test-share", "0.5", "--out", tmp_path / "m")
    model = AttnKNNClassifier.load(tmp_path / "m")
    from attnknn.data import load_named

    iris = load_named("iris")
    rows = model.bank_.rows(model.bank_.ids)
    np.testing.assert_array_equal(model.classes_[model.bank_.labels(rows)], iris.y[model.bank_.ids])


def test_fit_overwrites_a_model_only_by_force(attnknn, tmp_path):
    out = tmp_path / "m"
    attnknn("fit", "iris", "--out", out)
    assert "--force" in attnknn.refused("fit", "iris", "--out", out)
    attnknn("fit", "wine", "--out", out, "--force")
    assert attnknn.json("bank", "info", out)["rows"] == 178


def test_a_file_wins_over_a_data_set_of_the_same_name(attnknn, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "iris").write_text("a,b\n1,x\n")
    assert "unknown extension" in attnknn.refused("fit", "iris", "--target", "b", "--out", "m")


def test_predict_ignores_columns_that_the_model_does_not_use(attnknn, trained, tables):
    result = attnknn("predict", trained, tables["test"])
    assert "'name', 'income'" in result.stderr
    rows = list(csv.DictReader(io.StringIO(result.stdout)))
    assert list(rows[0]) == ["row", "prediction", "confidence"]
    assert [int(row["row"]) for row in rows] == list(range(40))
    frame = pd.read_csv(tables["test"])[["age", "hours", "job", "member"]]
    assert [row["prediction"] for row in rows] == AttnKNNClassifier.load(trained).predict(frame).tolist()


def test_predict_finds_columns_in_any_order(attnknn, trained, tables, tmp_path):
    turned = [dict(reversed(row.items())) for row in people(40, 2)]
    other = write_csv(tmp_path / "turned.csv", turned)
    assert attnknn("predict", trained, other).stdout == attnknn("predict", trained, tables["test"]).stdout


@pytest.mark.parametrize("ending", ["tsv", "parquet"])
def test_predict_reads_every_kind_of_file(attnknn, trained, tables, tmp_path, ending):
    frame = pd.read_csv(tables["test"])
    other = tmp_path / f"test.{ending}"
    frame.to_parquet(other) if ending == "parquet" else frame.to_csv(other, sep="\t", index=False)
    assert attnknn("predict", trained, other).stdout == attnknn("predict", trained, tables["test"]).stdout


def test_predict_writes_probabilities_that_sum_to_one(attnknn, trained, tables, tmp_path):
    out = tmp_path / "answers.csv"
    assert "40 rows" in attnknn("predict", trained, tables["test"], "--proba", "--out", out).stdout
    frame = pd.read_csv(out)
    assert list(frame.columns) == ["row", "prediction", "confidence", "p_high", "p_low"]
    np.testing.assert_allclose(frame[["p_high", "p_low"]].sum(axis=1), 1)
    assert [file.name for file in tmp_path.iterdir()] == ["answers.csv"]


def test_predict_abstains_where_confidence_is_low(attnknn, trained, tables):
    args = ("predict", trained, tables["test"], "--abstain-below", "0.9")
    found = attnknn.json(*args, "--proba")
    unsure = [each for each in found["predictions"] if each["confidence"] < 0.9]
    assert found["abstained"] == len(unsure) > 0
    assert all(each["prediction"] is None for each in unsure)
    assert set(found["predictions"][0]["probabilities"]) == {"high", "low"}
    answers = attnknn(*args, "--abstain-label", "=ask()").stdout
    assert answers.count("'=ask()") == len(unsure)


@pytest.mark.parametrize("cell", ["=1+1", "+x", "-x", "@x", "\tx", " =x", "\r=x"])
def test_text_that_a_spreadsheet_would_run_is_quoted(cell):
    assert harmless(cell) == f"'{cell}"


@pytest.mark.parametrize("cell", ["a=b", "", "x-y", -1, -0.5, None, True])
def test_other_cells_stay_as_they_are(cell):
    assert harmless(cell) == cell


def test_a_model_of_a_bare_array_takes_a_table_by_order_or_by_number(attnknn, tmp_path):
    X = np.random.default_rng(0).normal(size=(40, 2))
    model = AttnKNNClassifier(random_state=0).fit(X, X[:, 0] > 0)
    model.save(tmp_path / "m")
    named, numbered = tmp_path / "named.csv", tmp_path / "numbered.csv"
    pd.DataFrame(X, columns=["a", "b"]).to_csv(named, index=False)
    pd.DataFrame({"x1": X[:, 1], "other": "t", "x0": X[:, 0]}).to_csv(numbered, index=False)
    expected = model.predict(X).tolist()
    for file in (named, numbered):
        found = attnknn.json("predict", tmp_path / "m", file)
        assert [each["prediction"] for each in found["predictions"]] == expected


def test_evaluate_gives_what_the_metrics_give(attnknn, trained, tables):
    from attnknn.metrics import evaluate

    found = attnknn.json("evaluate", trained, tables["test"], "--target", "income", "--draws", 50)
    frame = pd.read_csv(tables["test"])
    model = AttnKNNClassifier.load(trained)
    chances = model.predict_proba(frame[["age", "hours", "job", "member"]])
    expected = evaluate(chances, (frame["income"] == "low").to_numpy().astype(int), draws=50)
    assert set(found["metrics"]) == set(expected)
    for name, each in expected.items():
        assert found["metrics"][name]["value"] == pytest.approx(each.value)
    text = attnknn("evaluate", trained, tables["test"], "--target", "income", "--draws", 50).stdout
    assert "its floor" in text
    assert "by prediction" in text


def test_a_label_that_the_model_does_not_know_counts_as_wrong(attnknn, trained, tmp_path):
    rows = people(20, 3)
    other = write_csv(tmp_path / "new.csv", [{**row, "income": "royal"} for row in rows[:5]] + rows[5:])
    args = ("evaluate", trained, other, "--target", "income", "--draws", 20)
    found = attnknn.json(*args)
    assert found["unknown_labels"] == {"royal": 5}
    assert found["metrics"]["nll"]["value"] is None
    assert found["metrics"]["accuracy"]["value"] <= 0.75
    assert sum(found["confusion_of_unknown"]) == 5
    result = attnknn(*args)
    assert "'royal'" in result.stderr
    assert "inf" in result.stdout


def test_evaluate_says_when_it_sees_the_examples_again(attnknn, iris):
    result = attnknn("evaluate", iris, "iris", "--draws", 20)
    assert "150 of 150 rows equal an example" in result.stderr


def test_explain_gives_the_reasons_of_the_classifier(attnknn, trained, tables, tmp_path):
    html = tmp_path / "why.html"
    found = attnknn.json("explain", trained, tables["test"], "--row", 3, "--html", html)
    frame = pd.read_csv(tables["test"])[["age", "hours", "job", "member"]]
    reasons = AttnKNNClassifier.load(trained).explain(frame.iloc[[3]])[0]
    assert found["prediction"] == reasons.prediction
    assert [each["id"] for each in found["neighbors"]] == [each.id for each in reasons.neighbors]
    assert str(reasons.neighbors[0].id) in html.read_text()
    text = attnknn("explain", trained, tables["test"], "--row", 3, "--most", 1).stdout
    assert f"prediction {reasons.prediction}" in text
    assert str(reasons.neighbors[0].id) in text


def test_bank_info_counts_what_the_bank_holds(attnknn, trained):
    found = attnknn.json("bank", "info", trained, "--suspects", 4)
    assert found["rows"] == sum(found["counts"].values()) == 160
    assert found["bytes"] > 0
    lowest = [each["reliability"] for each in found["suspects"]]
    model = AttnKNNClassifier.load(trained)
    assert lowest == np.sort(model.bank_.reliability(model.bank_.live))[:4].tolist()
    for each in found["suspects"]:
        row = model.bank_.rows([each["id"]])
        assert model.bank_.reliability(row)[0] == each["reliability"]
        assert model.classes_[model.bank_.labels(row)[0]] == each["label"]
    text = attnknn("bank", "info", trained, "--suspects", 4).stdout
    assert found["suspects"][0]["id"] in text
    assert "on disk" in text


def test_bank_add_teaches_and_remove_forgets(attnknn, model, tables):
    args = ("bank", "add", model, tables["test"], "--target", "income", "--ids", "name")
    found = attnknn.json(*args)
    assert (found["rows_before"], found["rows_after"]) == (160, 200)
    assert found["added"] == [row["name"] for row in people(40, 2)]
    assert "already holds" in attnknn.refused(*args)
    assert "200 examples before, 198 now" in attnknn("bank", "remove", model, "p2-0", "p2-1").stdout
    assert len(AttnKNNClassifier.load(model).bank_) == 198


def test_bank_add_takes_a_new_label_only_when_it_is_named(attnknn, model, tmp_path):
    other = write_csv(tmp_path / "new.csv", [{**row, "income": "royal"} for row in people(3, 4)])
    args = ("bank", "add", model, other, "--target", "income")
    assert "--classes royal" in attnknn.refused(*args)
    assert attnknn.json(*args, "--classes", "royal,noble")["rows_after"] == 163
    assert AttnKNNClassifier.load(model).classes_.tolist() == ["high", "low", "noble", "royal"]


def test_bank_relabel_changes_labels_and_says_from_what_to_what(attnknn, model):
    before = AttnKNNClassifier.load(model)
    was = before.classes_[before.bank_.labels(before.bank_.rows(["p1-7"]))[0]]
    now = "low" if was == "high" else "high"
    assert f"p1-7: {was} -> {now}" in attnknn("bank", "relabel", model, f"p1-7={now}").stdout
    after = AttnKNNClassifier.load(model)
    assert after.classes_[after.bank_.labels(after.bank_.rows(["p1-7"]))[0]] == now


def test_ids_that_look_like_numbers_are_tried_as_numbers_first(attnknn, tmp_path):
    X = np.arange(12.0).reshape(6, 2)
    model = AttnKNNClassifier(2, random_state=0).fit(X, [0, 1, 0, 1, 0, 1], ids=[7, "7", "8", "a=b", "a", "z"])
    model.save(tmp_path / "m")
    found = attnknn.json("bank", "relabel", tmp_path / "m", "7=1", "8=1", "a=b=0", "a=1")
    assert [each["id"] for each in found["relabelled"]] == [7, "8", "a=b", "a"]
    assert [each["after"] for each in found["relabelled"]] == [1, 1, 0, 1]
    assert attnknn.json("bank", "remove", tmp_path / "m", "7")["removed"] == [7]
    assert attnknn.json("bank", "remove", tmp_path / "m", "7")["removed"] == ["7"]


@pytest.mark.parametrize(
    ("labels", "text", "label"),
    [([False, True] * 3, "true", True), ([-2, 5] * 3, "-2", -2), (["1", "b"] * 3, "1", "1")],
)
def test_labels_are_read_as_the_type_that_the_model_knows(attnknn, tmp_path, labels, text, label):
    AttnKNNClassifier(2, random_state=0).fit(np.arange(12.0).reshape(6, 2), labels).save(tmp_path / "m")
    found = attnknn.json("bank", "relabel", tmp_path / "m", f"0={text}")
    assert found["relabelled"][0]["after"] == label
    assert type(found["relabelled"][0]["after"]) is type(label)


def test_data_list_says_which_sets_are_here(attnknn, tmp_path, monkeypatch):
    monkeypatch.delenv("ATTNKNN_DATA", raising=False)
    found = {each["name"]: each for each in attnknn.json("data", "list")["data_sets"]}
    assert found["iris"]["state"] == "ready"
    assert found["adult"]["state"] == "absent"
    assert found["adult"]["rows"] == 48842
    assert "breast-cancer" in attnknn("data", "list").stdout


@pytest.mark.parametrize("name", ["iris", "wine", "breast-cancer", "digits"])
def test_data_list_counts_rows_as_they_are(attnknn, name):
    from attnknn.cli.data import ROWS
    from attnknn.data import load_named

    assert ROWS[name] == len(load_named(name).y)


def test_data_list_knows_every_named_set():
    from attnknn.cli.data import ROWS
    from attnknn.data import NAMED

    assert list(ROWS) == list(NAMED)


@pytest.mark.skipif(
    not os.environ.get("ATTNKNN_DATA"), reason="the original files are not shipped: set ATTNKNN_DATA"
)
def test_data_list_counts_rows_of_the_original_files():
    from attnknn.cli.data import ROWS
    from attnknn.data import NAMED, load_named
    from attnknn.errors import MissingData

    found = {}
    for name in NAMED:
        with contextlib.suppress(MissingData):  # the images may be absent where the tables are there
            found[name] = len(load_named(name).y)
    assert found == {name: ROWS[name] for name in found}
    assert {"adult", "letter", "german-credit"} <= set(found)


def test_data_verify_fails_for_a_damaged_file(attnknn, tmp_path):
    (tmp_path / "letter").mkdir()
    (tmp_path / "letter" / "LetterRecognition.csv").write_text("not it\n")
    args = ("data", "verify", "--data-dir", tmp_path)
    found = attnknn.json(*args, code=1)
    states = {each["name"]: each["state"] for each in found["files"]}
    assert (states["iris"], states["adult"], states["letter"]) == ("ready", "absent", "damaged")
    assert found["ok"] is False
    assert "not the original file" in attnknn(*args, code=1).stdout
    assert attnknn.json("data", "verify", "iris")["ok"] is True
    assert "UCI" in attnknn("data", "verify", "adult", "--data-dir", tmp_path, code=1).stdout


def test_data_verify_says_once_what_an_absent_set_needs(attnknn, tmp_path):
    said = attnknn("data", "verify", "cifar10", "mnist", "--data-dir", tmp_path, code=1).stdout
    for place in ("University of Toronto", "MNIST database"):
        assert said.count(place) == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="is for machines without a CUDA device")
def test_the_bench_of_a_gpu_says_that_there_is_none(attnknn):
    assert "needs a CUDA device; there is none here" in attnknn.refused("bench", "gpu")


def test_the_bench_of_a_gpu_shows_its_report(capsys):
    from attnknn.cli.bench import show

    ways = {"ours": 1.0, "gather": 4.0, "sdpa": 0.5}
    show(
        {
            "milliseconds": {
                "search 9x9x9": {"ours": 2.0, "torch": 8.0, "floor": 1.0},
                "attention N=9": {"forward": ways, "backward": ways},
            },
            "mib": {"attention N=9": {"forward": ways, "backward": {**ways, "ours": float("nan")}}},
            "share_of_floor": {"search 9x9x9": 0.5},
        }
    )
    said = capsys.readouterr().out
    assert "50%" in said
    assert "backward" in said
