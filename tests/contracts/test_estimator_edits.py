"""Editing a fitted classifier, saving it, and reading it back."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.datasets import load_iris, load_wine

from attnknn import AttnKNNClassifier, CorruptModel, InvalidInput, MemoryBank, UnknownId

WEIGHTS = ["uniform", "distance", "softmax", "reliability"]
CALIBRATIONS = ["auto", "density", "temperature", "isotonic", "matrix", "prior", None]


@pytest.fixture(scope="module")
def wine():
    X, y = load_wine(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(X))
    return X[order], np.array(["red", "rose", "white"])[y[order]]


def from_scratch(model, X, y, weights=None):
    """Probabilities as a function, by the same fitted voter over a bank that only ever saw these rows."""
    old = model.voter_.bank
    bank = MemoryBank(old.dim, index=old.index, metric=old.metric)
    bank.add(model.embedder_.transform(X), np.searchsorted(model.classes_, y), weights=weights)
    member = replace(model.voter_.members[0], bank=bank)
    return replace(model.voter_, members=(member,)).probabilities


@pytest.mark.parametrize("index", ["exact", "flat"])
@pytest.mark.parametrize("weights", WEIGHTS)
def test_after_any_edit_it_answers_like_a_bank_that_only_ever_held_these_rows(wine, weights, index):
    X, y = wine
    model = AttnKNNClassifier(8, weights=weights, index=index, random_state=0).fit(X[:100], y[:100])
    queries = model.embedder_.transform(X[130:])
    model.predict_proba(X[130:])  # so that whatever is kept between edits is there to go stale

    def check(rows, labels, importance=None):
        expected = from_scratch(model, X[rows], labels, importance)(queries)
        np.testing.assert_allclose(model.predict_proba(X[130:]), expected, rtol=0, atol=1e-12)

    rows = np.arange(130)
    assert model.add(X[100:120], y[100:120]) == list(range(100, 120))
    check(rows[:120], y[:120])
    assert model.partial_fit(X[120:130], y[120:130]) is model
    check(rows, y[:130])
    model.remove(range(20, 60))
    kept = np.delete(rows, np.arange(20, 60))
    check(kept, y[kept])
    changed = y[:130].copy()
    changed[[3, 7, 125]] = "white"
    model.relabel([3, 7, 125], ["white"] * 3)
    check(kept, changed[kept])
    assert model.add(X[20:25], y[20:25], ids=[f"again {at}" for at in range(5)], sample_weight=np.full(5, 3.0))
    kept = np.append(kept, np.arange(20, 25))
    check(kept, np.append(changed[kept[:-5]], y[20:25]), np.append(np.ones(len(kept) - 5), np.full(5, 3.0)))


def test_partial_fit_fits_first_and_adds_later(wine):
    X, y = wine
    model = AttnKNNClassifier(5, random_state=0).partial_fit(X[:60], y[:60], classes=["red", "rose", "white"])
    fitted = AttnKNNClassifier(5, random_state=0).fit(X[:60], y[:60])
    np.testing.assert_array_equal(model.predict_proba(X), fitted.predict_proba(X))
    voter = model.voter_
    model.partial_fit(X[60:], y[60:])
    assert len(model.bank_) == len(X)
    assert model.voter_.weighting == voter.weighting
    assert model.voter_.calibrator == voter.calibrator


def test_classes_may_be_announced_before_any_row_shows_them(wine):
    X, y = wine
    two = y != "white"
    model = AttnKNNClassifier(3).fit(X[two], y[two], classes=["white", "red", "rose"])
    assert model.classes_.tolist() == ["red", "rose", "white"]
    assert (model.predict_proba(X).argmax(axis=1) < 2).all()
    model.add(X[~two], y[~two])
    assert (model.predict(X[~two]) == "white").mean() > 0.8


def test_a_new_label_is_refused_unless_classes_names_it(wine):
    X, y = wine
    two = y != "rose"
    model = AttnKNNClassifier(3).fit(X[two], y[two])
    before = model.predict_proba(X)
    for call in (model.add, model.partial_fit):
        with pytest.raises(InvalidInput, match=r"rose.*classes="):
            call(X[~two], y[~two])
    with pytest.raises(InvalidInput, match="orange"):
        model.relabel([0], ["orange"])
    with pytest.raises(InvalidInput, match="rose"):
        model.add(X[~two], y[~two], classes=["orange"])
    np.testing.assert_array_equal(model.predict_proba(X), before)
    assert model.classes_.tolist() == ["red", "white"]
    assert len(model.bank_) == two.sum()


@pytest.mark.parametrize("calibration", CALIBRATIONS)
@pytest.mark.parametrize("new", ["a first", "rose", "z last"])
def test_a_new_class_takes_its_place_and_the_old_ones_keep_theirs(wine, new, calibration):
    X, y = wine
    two = y != "rose"
    model = AttnKNNClassifier(5, calibration=calibration, random_state=0).fit(X[two], y[two])
    before = pd.DataFrame(model.predict_proba(X[two]), columns=model.classes_)
    kinds = {reason.label for said in model.explain(X[two]) for reason in said.neighbors[:1]}
    far = X[:1] + 1e4  # so that no old row has a new neighbor
    model.add(far, [new], classes=[new])
    assert model.classes_.tolist() == sorted(["red", "white", new])
    after = pd.DataFrame(model.predict_proba(X[two]), columns=model.classes_)
    np.testing.assert_allclose(after.sum(axis=1), 1, atol=1e-12)
    # Only the prior knows the new class, by one row in many: the old ones stand to each other as they did.
    old = after[["red", "white"]].to_numpy()
    np.testing.assert_allclose(old / old.sum(axis=1, keepdims=True), before, atol=0.02)
    assert {reason.label for said in model.explain(X[two]) for reason in said.neighbors[:1]} == kinds
    assert model.explain(far)[0].neighbors[0].label == new


@pytest.mark.parametrize("weights", WEIGHTS)
def test_an_emptied_model_says_so_and_comes_back_to_life(wine, weights):
    X, y = wine
    model = AttnKNNClassifier(5, weights=weights, random_state=0).fit(X, y)
    expected = model.predict_proba(X)
    model.remove(model.bank_.ids)
    for call in (model.predict, model.predict_proba, model.explain):
        with pytest.raises(InvalidInput, match=r"empty.*add"):
            call(X)
    model.add(X, y)
    np.testing.assert_allclose(model.predict_proba(X), expected, rtol=0, atol=1e-12)


def test_an_emptied_model_can_be_saved_and_loaded(wine, tmp_path):
    X, y = wine
    model = AttnKNNClassifier(5, random_state=0).fit(X, y)
    expected = model.predict(X)
    model.remove(model.bank_.ids)
    model.save(tmp_path)
    back = AttnKNNClassifier.load(tmp_path)
    with pytest.raises(InvalidInput, match="empty"):
        back.predict(X)
    back.add(X, y)
    np.testing.assert_array_equal(back.predict(X), expected)


def test_a_refused_edit_changes_nothing(wine):
    X, y = wine
    model = AttnKNNClassifier(5, random_state=0).fit(X[:100], y[:100])
    before = model.predict_proba(X)
    dirty = X[100:103].copy()
    dirty[2, 0] = np.nan
    refused = [
        (InvalidInput, lambda: model.add(X[100:102], y[100:102], ids=["new", 3])),
        (InvalidInput, lambda: model.add(X[100:102], y[100:102], ids=["new", "new"])),
        (InvalidInput, lambda: model.add(X[100:102], y[100:102], ids=["new"])),
        (InvalidInput, lambda: model.add(X[100:102], ["red", "mauve"], ids=["new", 3], classes=["mauve"])),
        (InvalidInput, lambda: model.add(X[100:102], y[100:103])),
        (ValueError, lambda: model.add(dirty, y[100:103])),
        (ValueError, lambda: model.add(X[100:102, :5], y[100:102])),
        (UnknownId, lambda: model.remove([0, 1, 999])),
        (UnknownId, lambda: model.relabel([0, 999], ["red", "red"])),
        (InvalidInput, lambda: model.relabel([0, 1], ["red"])),
        (InvalidInput, lambda: model.relabel([0, 0], ["red", "rose"])),
        (InvalidInput, lambda: model.relabel([0, 1], ["red", "mauve"])),
    ]
    for error, call in refused:
        with pytest.raises(error):
            call()
        assert model.bank_.ids == list(range(100))
        assert model.classes_.tolist() == ["red", "rose", "white"]
        np.testing.assert_array_equal(model.predict_proba(X), before)


SAVED = [
    *({"weights": weights} for weights in WEIGHTS),
    *({"calibration": calibration} for calibration in CALIBRATIONS),
    *({"index": index} for index in ("flat", "hnsw", "ivf")),
    {"embedder": "identity", "metric": "cosine"},
    {"embedder": "identity", "metric": "ip"},
    {"n_neighbors": np.int64(7), "class_weight": {"red": 2.0}, "random_state": np.random.RandomState(0)},
    {"n_neighbors": 500, "class_weight": "balanced", "device": torch.device("cpu")},
]


@pytest.mark.parametrize("settings", SAVED, ids=[", ".join(f"{k}={v}" for k, v in each.items()) for each in SAVED])
def test_a_loaded_model_answers_to_the_last_bit_and_can_be_edited_and_saved_again(wine, settings, tmp_path):
    X, y = wine
    model = AttnKNNClassifier(**settings).fit(X[:90], y[:90], ids=[f"wine {at}" for at in range(90)])
    model.save(tmp_path / "model")
    back = AttnKNNClassifier.load(tmp_path / "model")
    np.testing.assert_array_equal(back.predict_proba(X), model.predict_proba(X))
    np.testing.assert_array_equal(back.classes_, model.classes_)
    assert back.classes_.dtype == model.classes_.dtype
    assert back.n_neighbors_ == model.n_neighbors_
    assert [said.to_dict() for said in back.explain(X[:3])] == [said.to_dict() for said in model.explain(X[:3])]
    for twin in (model, back):
        twin.remove(["wine 3", "wine 80"])
        twin.relabel(["wine 5"], ["rose"])
        assert twin.add(X[90:100], y[90:100]) == list(range(10))
    np.testing.assert_allclose(back.predict_proba(X), model.predict_proba(X), rtol=0, atol=1e-12)
    back.save(tmp_path / "model")
    again = AttnKNNClassifier.load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict_proba(X), back.predict_proba(X))
    again.fit(X, y)  # the settings came back too


LABELS = {
    "int": [3, 1, 2],
    "int8": np.array([-128, 0, 127], np.int8),
    "uint64": np.array([0, 1, 2**63 + 1], np.uint64),
    "bool": [False, True, True],
    "str": ["b", "", "日本 <b>"],
    "object str": np.array(["é", "a", "c"], object),
    "float": [1.0, -2.0, 0.5 * 4],
}


@pytest.mark.parametrize("kind", LABELS)
def test_labels_of_every_kind_survive_the_disk(kind, tmp_path):
    y = np.repeat(np.asarray(LABELS[kind]), 10)
    X = np.repeat(np.arange(3.0), 10)[:, None] + np.random.default_rng(0).normal(scale=0.01, size=(30, 1))
    model = AttnKNNClassifier(3).fit(X, y)
    model.save(tmp_path)
    back = AttnKNNClassifier.load(tmp_path)
    assert back.predict(X).dtype == model.predict(X).dtype
    assert back.predict(X).tolist() == y.tolist()


FRESH = """
import sys
import numpy as np
from attnknn import AttnKNNClassifier
model = AttnKNNClassifier.load(sys.argv[1])
np.save(sys.argv[2], model.predict_proba(np.load(sys.argv[3])))
"""


def test_a_fresh_process_reads_the_same_probabilities(wine, tmp_path):
    X, y = wine
    model = AttnKNNClassifier(weights="reliability", random_state=0).fit(X, y)
    model.save(tmp_path / "model")
    np.save(tmp_path / "X.npy", X)
    files = [tmp_path / "model", tmp_path / "out.npy", tmp_path / "X.npy"]
    subprocess.run([sys.executable, "-c", FRESH, *map(str, files)], check=True, timeout=60)
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), model.predict_proba(X))


def test_a_frame_model_remembers_its_columns_and_statistics(tmp_path):
    frame = pd.DataFrame({"a": [1.0, None, 3.0, 4.0], "b": ["x", "y", None, "x"], "c": [True, False, True, False]})
    model = AttnKNNClassifier(2).fit(frame, [0, 0, 1, 1])
    model.save(tmp_path)
    back = AttnKNNClassifier.load(tmp_path)
    np.testing.assert_array_equal(back.predict_proba(frame), model.predict_proba(frame))
    assert back.feature_names_in_.tolist() == ["a", "b", "c"]
    assert back.embedder_.state() == model.embedder_.state()
    with pytest.raises(ValueError, match="feature names"):
        back.predict(frame[["b", "a", "c"]])


@pytest.fixture
def folder(tmp_path):
    AttnKNNClassifier(3).fit(*load_iris(return_X_y=True)).save(tmp_path / "model")
    return tmp_path / "model"


def data_files(folder):
    return sorted(path for path in folder.iterdir() if path.suffix in (".json", ".safetensors"))


def test_a_cut_or_changed_file_is_refused_by_name(folder):
    for path in data_files(folder):
        whole = path.read_bytes()
        middle = len(whole) // 2
        flipped = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
        for damaged in (whole[:-1], whole[:middle], b"", whole + b"\0", flipped, pickle.dumps({"a": 1}), b"text"):
            path.write_bytes(damaged)
            with pytest.raises(CorruptModel, match=path.name):
                AttnKNNClassifier.load(folder)
        path.unlink()
        with pytest.raises(CorruptModel, match=path.name):
            AttnKNNClassifier.load(folder)
        path.write_bytes(whole)
    AttnKNNClassifier.load(folder)


def test_no_folder_a_foreign_folder_and_a_file_are_refused_by_name(tmp_path):
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "manifest.json").write_text('{"name": "something else"}')
    (tmp_path / "bare").mkdir()
    (tmp_path / "file").write_text("hello")
    for name in ("absent", "foreign", "bare", "file"):
        with pytest.raises(CorruptModel, match=name):
            AttnKNNClassifier.load(tmp_path / name)


def test_a_future_format_is_refused_and_a_bank_is_not_a_classifier(folder, tmp_path):
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, "format": 999}))
    with pytest.raises(CorruptModel, match=r"manifest.json.*999.*newer"):
        AttnKNNClassifier.load(folder)
    bank = MemoryBank(2)
    bank.add([[0.0, 1.0]], [0])
    bank.save(tmp_path / "bank")
    with pytest.raises(CorruptModel, match="bank"):
        AttnKNNClassifier.load(tmp_path / "bank")
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CorruptModel, match="classifier"):
        MemoryBank.load(folder)


def test_a_well_formed_model_json_that_makes_no_sense_is_refused(tmp_path):
    from attnknn.bank.folder import read_folder, write_folder

    AttnKNNClassifier(3).fit(*load_iris(return_X_y=True)).save(tmp_path / "model")
    files = read_folder(tmp_path / "model", "classifier")
    about = json.loads(files["model.json"])
    broken = [
        [],
        {},
        {**about, "parameters": {"no_such_argument": 1}},
        {**about, "classes": {"dtype": "datetime64[D]", "values": [1]}},
        {**about, "classes": {"dtype": "no dtype", "values": []}},
        {**about, "embedder": {"kind": "nothing"}},
        {**about, "embedder": None},
        {**about, "calibrator": {"kind": "temperature", "temperature": "hot"}},
        {**about, "members": [{**about["members"][0], "k": "many"}]},
        {**about, "members": [{**about["members"][0], "weigher": {"kind": "softmax", "unknown": 1}}]},
        {**about, "members": [{**about["members"][0], "network": {"kind": "nothing", "shape": {}}}]},
        {key: value for key, value in about.items() if key != "class_weight"},
    ]
    for at, content in enumerate(broken):
        write_folder(tmp_path / str(at), "classifier", {**files, "model.json": json.dumps(content).encode()})
        with pytest.raises(CorruptModel, match=r"model\.json"):
            AttnKNNClassifier.load(tmp_path / str(at))
    write_folder(tmp_path / "gone", "classifier", {k: v for k, v in files.items() if k != "model.json"})
    with pytest.raises(CorruptModel, match=r"model\.json"):
        AttnKNNClassifier.load(tmp_path / "gone")


GOLDEN = Path(__file__).parents[1] / "golden" / "format-1"


def test_files_of_format_1_still_load_and_answer_as_they_did_when_written():
    recorded = json.loads((GOLDEN / "expected.json").read_text())
    model = AttnKNNClassifier.load(GOLDEN / "model")
    np.testing.assert_array_equal(model.classes_, recorded["classes"])
    np.testing.assert_allclose(model.predict_proba(recorded["rows"]), recorded["probabilities"], rtol=0, atol=1e-9)
    assert json.loads((GOLDEN / "model" / "manifest.json").read_text())["format"] == 1


def test_a_handful_of_a_new_class_can_count_as_much_as_a_class_does():
    random = np.random.default_rng(0)
    X = np.concatenate([random.normal(at, 1, (60, 2)) for at in ((0, 0), (8, 0))])
    model = AttnKNNClassifier(60, weights="uniform", calibration=None).fit(X, np.repeat([0, 1], 60))
    few, asked = random.normal((4, 6), 1, (3, 2)), random.normal((4, 6), 1, (20, 2))
    alone, together = (
        model,
        AttnKNNClassifier(60, weights="uniform", calibration=None).fit(X, np.repeat([0, 1], 60)),
    )
    alone.add(few, [2] * 3, classes=[2])
    ids = together.add(np.vstack([few, X[:1]]), [2] * 3 + [0], classes=[2], sample_weight="balanced")
    assert (alone.predict(asked) == 2).mean() < 0.1
    assert (together.predict(asked) == 2).mean() > 0.9
    weights = together.bank_.weights(together.bank_.rows(ids))
    np.testing.assert_allclose(weights, [20, 20, 20, 1])
