"""All that the classifier can do, by the untouched default constructor on 2,000 rows of Adult after save and load.

The test starts this file twice, in processes of their own: one fits and saves, the other loads and tries all.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

TRAIN, HELD = 2000, 300


def rows():
    """Mixed-type training and held-out rows, drawn once and for all."""
    from attnknn.data import load_named

    data = load_named("adult")
    order = np.random.default_rng(0).permutation(data.train_rows)[: TRAIN + HELD]
    X, y = data.X.iloc[order].reset_index(drop=True), data.y[order]
    return X[:TRAIN], y[:TRAIN], X[TRAIN:].reset_index(drop=True), y[TRAIN:]


def fit_and_save(folder):
    from attnknn import AttnKNNClassifier

    X, y, held, _ = rows()
    model = AttnKNNClassifier().fit(X, y)
    model.save(folder / "model")
    np.save(folder / "probabilities.npy", model.predict_proba(held))


def check(fine, promise):
    if not fine:  # not assert: it must hold under -O too
        raise SystemExit(f"broken promise: {promise}")


def refused(error, promise, call):
    try:
        call()
    except error:
        return
    raise SystemExit(f"broken promise: {promise}")


def try_everything(folder):
    from attnknn import AttnKNNClassifier

    X, y, held, truth = rows()
    model = AttnKNNClassifier.load(folder / "model")
    recorded = np.load(folder / "probabilities.npy")
    check(np.array_equal(model.predict_proba(held), recorded), "a loaded model answers to the last bit")
    default = AttnKNNClassifier().get_params()
    check(model.get_params() == default, "a loaded model has the settings it was made with")
    answers(model, held, truth)
    inputs(model, X, y, held)
    explanations(model, X, y, held)
    edits(model, X, y, held, truth, folder)
    tools(X[:400], y[:400], held, truth)
    print("all promises hold")


def answers(model, held, truth):
    chances, predicted = model.predict_proba(held), model.predict(held)
    check(chances.shape == (HELD, 2), "one probability for each row and class")
    check(np.abs(chances.sum(axis=1) - 1).max() < 1e-12, "probabilities sum to 1")
    check(((chances > 0) & (chances < 1)).all(), "calibrated probabilities are never 0 or 1")
    check((predicted == model.classes_[chances.argmax(axis=1)]).all(), "predict is the most probable class")
    common = max((truth == label).mean() for label in model.classes_)
    check((predicted == truth).mean() > common, "it knows more than the most frequent class")
    nll = -np.log(chances[np.arange(HELD), (truth == model.classes_[1]).astype(int)]).mean()
    base = -(common * np.log(common) + (1 - common) * np.log(1 - common))
    check(nll < base - 0.05, f"its NLL {nll:.3f} beats the class frequencies' {base:.3f}")
    threshold = model.abstention_threshold(held, truth, max_error=0.05)
    said = model.predict(held, abstain_below=threshold, abstain_label="ask a person")
    answered = said != "ask a person"
    check(answered.any() and not answered.all(), "at 5 % error some rows are answered and some are not")
    check((said[answered] != truth[answered]).mean() <= 0.05, "answered rows keep the promised error")
    lower = chances.max(axis=1)[~answered].max()
    check((predicted != truth)[chances.max(axis=1) >= lower].mean() > 0.05, "the threshold is the lowest there is")
    quiet = model.predict(held, abstain_below=1.1)
    check(set(quiet.tolist()) == {None}, "without a label to abstain with the answer is None")
    distances, near = model.kneighbors(held[:20], 7)
    check(distances.shape == near.shape == (20, 7), "kneighbors has scikit-learn's shapes")
    check((np.diff(distances, axis=1) >= 0).all(), "the nearest come first")
    check((model.kneighbors(held[:20], 7, return_distance=False) == near).all(), "distances can be left out")
    own = model.kneighbors(n_neighbors=3)[1]
    check(own.shape == (TRAIN, 3) and not (own == np.arange(TRAIN)[:, None]).any(), "no row is its own neighbor")


def inputs(model, X, y, held):
    import polars as pl

    from attnknn import AttnKNNClassifier

    twin = pl.DataFrame({name: [None if v != v else v for v in held[name].tolist()] for name in held.columns})
    same = np.array_equal(model.predict_proba(twin), model.predict_proba(held))
    check(same, "polars and pandas give the same probabilities")
    strange = held[:2].copy()
    strange["occupation"] = ["Astronaut", None]
    check(np.isfinite(model.predict_proba(strange)).all(), "a category unseen at fit is no obstacle")
    refused(ValueError, "reordered columns are refused", lambda: model.predict(held[held.columns[::-1]]))
    refused(ValueError, "renamed columns are refused", lambda: model.predict(held.rename(columns={"age": "Age"})))
    infinite = held.assign(age=held["age"].astype(float).where(held.index != 3, np.inf))
    refused(ValueError, "infinity is refused", lambda: model.predict(infinite))
    small, labels = X[:400], y[:400]
    plain = AttnKNNClassifier(random_state=0).fit(small, labels).predict_proba(held)
    weighted = AttnKNNClassifier(random_state=0).fit(small, labels, sample_weight=np.full(400, 2.0))
    check(np.allclose(weighted.predict_proba(held), plain, atol=1e-9), "equal sample weights change nothing")
    balanced = AttnKNNClassifier(class_weight="balanced", random_state=0).fit(small, labels).predict_proba(held)
    check(balanced[:, 1].mean() > plain[:, 1].mean() + 0.05, "balanced classes raise the rare one")
    weight = np.where(labels == model.classes_[1], 3.0, 1.0)
    heavier = AttnKNNClassifier(random_state=0).fit(small, labels, sample_weight=weight).predict_proba(held)
    check(heavier[:, 1].mean() > plain[:, 1].mean() + 0.05, "heavier rows of a class raise it")


def explanations(model, X, y, held):
    chances = model.predict_proba(held[:25])
    for said, expected in zip(model.explain(held[:25]), chances, strict=True):
        check(abs(sum(reason.weight for reason in said.neighbors) - 1) < 1e-12, "weights sum to 1")
        votes = []
        for label in model.classes_:
            evidence = sum(reason.weight for reason in said.neighbors if reason.label == label)
            votes.append((evidence + said.prior_mass * said.prior[label]) / (1 + said.prior_mass))
        power = np.array(votes) ** (1 / said.temperature)
        check(np.abs(power / power.sum() - expected).max() < 1e-9, "an explanation adds up to the probabilities")
        for reason in said.neighbors[:3]:
            original = X.iloc[reason.id]
            check(reason.label == y[reason.id], "neighbors carry their own label")
            shown = {name: None if value != value else value for name, value in original.items()}
            check(reason.row == shown, f"a neighbor is shown as it was: {reason.row} is not {shown}")
        check("<table" in said._repr_html_() and str(said.prediction) in str(said), "text and HTML tell it")


def edits(model, X, y, held, truth, folder):
    from attnknn import AttnKNNClassifier, MemoryBank

    def as_from_scratch(rows, labels, promise):
        bank, member = MemoryBank(model.bank_.dim, metric=model.bank_.metric), model.voter_.members[0]
        vectors = member.vectors(model.embedder_.transform(as_table(rows)))
        bank.add(vectors, np.searchsorted(model.classes_, labels))
        voter = replace(model.voter_, members=(replace(member, bank=bank),))
        expected = voter.probabilities(model.embedder_.transform(as_table(held)))
        check(np.abs(model.predict_proba(held) - expected).max() < 1e-9, promise)

    import pandas as pd

    from attnknn.data import as_table

    ids = model.add(held[:100], truth[:100], ids=[f"held {at}" for at in range(100)])
    both = pd.concat([X, held[:100]], ignore_index=True)
    labels = np.concatenate([y, truth[:100]])
    as_from_scratch(both, labels, "after add it answers like a bank built with these rows")
    model.relabel(ids[:5], ["<=50K"] * 5)
    labels[TRAIN : TRAIN + 5] = "<=50K"
    as_from_scratch(both, labels, "after relabel too")
    model.remove([*ids[:50], *range(100)])
    kept = np.setdiff1d(np.arange(TRAIN + 100), [*range(TRAIN, TRAIN + 50), *range(100)])
    as_from_scratch(both.iloc[kept], labels[kept], "after remove too")
    model.partial_fit(held[100:120], truth[100:120])
    both, labels = pd.concat([both.iloc[kept], held[100:120]]), np.concatenate([labels[kept], truth[100:120]])
    as_from_scratch(both, labels, "after partial_fit too")
    refused(ValueError, "an unknown label is refused", lambda: model.add(held[:1], ["a million"]))
    refused(KeyError, "an unknown id is refused", lambda: model.remove(["nobody"]))
    check(len(model.bank_) == len(labels), "what is refused changes nothing")
    expected = model.predict_proba(held)
    model.save(folder / "edited")
    again = AttnKNNClassifier.load(folder / "edited").predict_proba(held)
    check(np.array_equal(again, expected), "an edited model survives another save")
    model.add(held[:1], ["a million"], classes=["a million"])
    check("a million" in model.classes_, "classes= allows a new label")
    check(np.allclose(model.predict_proba(held).sum(axis=1), 1), "and probabilities still sum to 1")


def tools(X, y, held, truth):
    import joblib
    from sklearn.base import clone
    from sklearn.model_selection import GridSearchCV, cross_val_predict, cross_val_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer

    from attnknn import AttnKNNClassifier

    model = AttnKNNClassifier(random_state=0).fit(X, y)
    expected = model.predict_proba(held)
    check(np.array_equal(clone(model).fit(X, y).predict_proba(held), expected), "a clone learns the same")
    check(np.array_equal(pickle.loads(pickle.dumps(model)).predict_proba(held), expected), "pickling keeps it")
    joblib.dump(model, "model.joblib")
    check(np.array_equal(joblib.load("model.joblib").predict_proba(held), expected), "joblib keeps it")
    piped = make_pipeline(FunctionTransformer(), AttnKNNClassifier(random_state=0)).fit(X, y)
    check(np.array_equal(piped.predict_proba(held), expected), "a pipeline changes nothing")
    check(cross_val_score(AttnKNNClassifier(), X, y, cv=2).min() > 0.7, "cross_val_score works")
    chances = cross_val_predict(AttnKNNClassifier(), X, y, cv=2, method="predict_proba")
    check(np.allclose(chances.sum(axis=1), 1), "cross_val_predict works")
    search = GridSearchCV(AttnKNNClassifier(), {"weights": ["uniform", "softmax"]}, cv=2).fit(X, y)
    check(search.score(held, truth) > 0.7, "GridSearchCV works")


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("ATTNKNN_DATA"), reason="needs the data files; set ATTNKNN_DATA")
def test_the_default_constructor_keeps_every_promise_on_adult_in_a_fresh_process(tmp_path):
    for step in ("fit", "try"):
        command = [sys.executable, "-W", "error", __file__, step, str(tmp_path)]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=110, cwd=tmp_path)
        assert ran.returncode == 0, f"{step}: {ran.stdout}{ran.stderr[-3000:]}"
    assert "all promises hold" in ran.stdout


if __name__ == "__main__":
    warnings.simplefilter("error")
    {"fit": fit_and_save, "try": try_everything}[sys.argv[1]](Path(sys.argv[2]))
