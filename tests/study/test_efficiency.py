"""What a search costs, place by place, and where the time of a prediction goes."""

from __future__ import annotations

import json
import os
import sys
import time
from importlib.util import find_spec
from statistics import median

import numpy as np
import pytest
import torch

from attnknn.attend import AttentionOptions
from attnknn.bank import INDEXES
from attnknn.errors import InvalidInput
from attnknn.estimator import AttnKNNClassifier
from attnknn.study.efficiency import (
    HEAD,
    PLACES,
    Place,
    clustered,
    measure,
    measure_here,
    quick_places,
    recall,
    run_places,
    table,
)
from attnknn.study.timing import STAGES, overhead, stages, timed

pytestmark = pytest.mark.usefixtures("one_thread")

needs_faiss = pytest.mark.skipif(find_spec("faiss") is None, reason="FAISS is not installed")
SMALL = {"k": 5, "queries": 60, "repeats": 3}


@pytest.fixture(scope="module", autouse=True)
def few_threads():
    """For the processes that are started."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        yield


def check_measured(found, place):
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert Place(*(found[name] for name in ("index", "rows", "dim", "device"))) == place
    assert {name: found[name] for name in SMALL} == SMALL
    assert found["build_s"] > 0
    for how in ("single", "batch"):
        low, high = found["ms_per_query"][how]["quartiles"]
        assert 0 < low <= found["ms_per_query"][how]["median"] <= high
    assert found["recall"] == 1.0 if place.index in ("exact", "flat") else 0.9 < found["recall"] <= 1.0
    assert set(found["bytes"]) == {"host", "gpu"}


def shadowed(folder, monkeypatch, name, text):
    """Let processes that are started find another module under a name."""
    (folder / f"{name}.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)


# --- places -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "place",
    [
        Place("exact", 500, 8),
        pytest.param(Place("flat", 500, 8), marks=needs_faiss),
        pytest.param(Place("hnsw", 2000, 16), marks=needs_faiss),
    ],
    ids=lambda place: place.name,
)
def test_a_place_has_times_recall_and_memory(place):
    check_measured(measure_here(place, **SMALL), place)


def test_a_bank_takes_the_memory_of_its_vectors_twice_and_not_of_many_more():
    place = Place("exact", 40_000, 64)
    found = measure(place, **SMALL)
    check_measured(found, place)
    held = found["bytes"]
    if held["host"] is None:
        pytest.skip("this system does not say how much memory a process takes")
    vectors = 4 * place.rows * place.dim  # by rows and by columns; ids and labels come on top
    assert 1.9 * vectors < held["host"] < 4 * vectors
    assert held["gpu"] == 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_bank_on_cuda_is_measured_there():
    place = Place("exact", 40_000, 64, "cuda")
    found = measure(place, **SMALL)
    check_measured(found, place)
    assert found["bytes"]["gpu"] > 4 * place.rows * place.dim


def test_recall_is_the_share_of_the_true_neighbors_in_any_order():
    truth = np.array([[1, 2, 3, 4], [5, 6, 7, 8]])
    assert recall(truth[:, ::-1], truth) == 1.0
    assert recall(np.array([[4, 9, 1, 0], [0, 1, 2, 3]]), truth) == 0.25
    assert recall(np.full((2, 4), 2**62), truth) == 0.0


def test_vectors_have_length_one_lie_in_clusters_and_depend_on_the_seed_alone():
    vectors, queries = clustered(2000, 256, 100, seed=3)
    np.testing.assert_allclose(np.linalg.norm(np.vstack([vectors, queries]), axis=1), 1, rtol=1e-5)
    close = np.mean(queries @ vectors.T > 0.3)  # five standard deviations, were there no clusters
    assert 0.5 / 500 < close < 2 / 500
    again, other = clustered(2000, 256, 100, seed=3), clustered(2000, 256, 100, seed=4)
    assert np.array_equal(vectors, again[0])
    assert np.array_equal(queries, again[1])
    assert not np.array_equal(vectors, other[0])


def test_the_grid_has_every_index_at_every_size_and_exact_search_on_cuda():
    assert len({place.name for place in PLACES}) == len(PLACES)
    sizes = {(place.rows, place.dim) for place in PLACES}
    assert {(50_000, 256), (1_000_000, 64)} <= sizes
    for rows, dim in sizes:
        there = {(place.index, place.device) for place in PLACES if (place.rows, place.dim) == (rows, dim)}
        assert there == {(index, "cpu") for index in INDEXES} | {("exact", "cuda")}


def test_the_quick_grid_is_the_small_part_of_the_whole():
    quick = quick_places()
    assert set(quick) < set(PLACES)
    assert max(place.rows for place in quick) <= 20_000
    assert {place.index for place in quick} == set(INDEXES)
    assert min(place.rows for place in quick) == min(place.rows for place in PLACES)


# --- places that are not run --------------------------------------------------------------------------------


def test_a_device_that_is_not_there_is_a_reason():
    assert "toaster" in measure(Place("exact", 500, 8, "toaster"))["not_run"]


def test_a_run_whose_time_is_over_measures_nothing_and_the_next_one_does(tmp_path):
    place = Place("exact", 500, 8)
    late = run_places(tmp_path, [place], lambda _: None, late=lambda: "no time")
    assert late == {place.name: {"not_run": "no time"}}
    known = {"not_run": "no such device"}
    (tmp_path / f"{place.name}.json").write_text(json.dumps(known))
    assert run_places(tmp_path, [place], lambda _: None, late=lambda: "no time") == {place.name: known}
    assert "not_run" not in run_places(tmp_path, [place], lambda _: None)[place.name]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_no_cuda_is_a_reason():
    assert measure(Place("exact", 500, 8, "cuda"))["not_run"].startswith("this machine has no device 'cuda'")


@pytest.mark.skipif(sys.platform == "win32", reason="there a signal 0 ends a process")
def test_past_its_limit_a_process_is_ended(tmp_path, monkeypatch):
    note = tmp_path / "pid"
    sleepy = f"import os, time\nopen({str(note)!r}, 'w').write(str(os.getpid()))\ntime.sleep(100)\n"
    shadowed(tmp_path, monkeypatch, "sitecustomize", sleepy)  # what Python imports before all else
    start = time.perf_counter()
    assert measure(Place("exact", 500, 8), limit=1.5) == {"not_run": "took longer than 1.5 s"}
    assert time.perf_counter() - start < 50
    with pytest.raises(ProcessLookupError):
        os.kill(int(note.read_text()), 0)


def test_a_missing_faiss_is_a_reason(tmp_path, monkeypatch):
    shadowed(tmp_path, monkeypatch, "faiss", "raise ImportError('not here')")
    assert "pip install 'attnknn[faiss]'" in measure(Place("hnsw", 500, 8), **SMALL)["not_run"]


def test_too_little_memory_is_a_reason():
    found = measure(Place("exact", 10**12, 256), **SMALL)  # more than addresses can reach
    assert "Unable to allocate" in found["not_run"]


@pytest.mark.skipif(sys.platform == "win32", reason="it has no such signal")
def test_a_process_that_was_killed_is_a_reason(tmp_path, monkeypatch):
    killed = "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n"
    shadowed(tmp_path, monkeypatch, "sitecustomize", killed)
    assert "want of memory" in measure(Place("exact", 500, 8))["not_run"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("lsh", 500, 8), "'lsh'"),
        (("exact", 0, 8), "rows must be"),
        (("exact", 500, 0.5), "dim must be"),
        (("ivf", 500, 8, "cuda"), "ivf searches on the CPU only, got device='cuda'"),
    ],
)
def test_a_place_that_cannot_be_is_refused(given, said):
    with pytest.raises(InvalidInput, match=said):
        Place(*given)


@pytest.mark.parametrize(
    "given", [{"k": 0}, {"queries": 0}, {"repeats": 0}, {"limit": 0.0}, {"limit": float("nan")}], ids=str
)
def test_a_bad_number_is_refused_before_anything_is_started(given):
    with pytest.raises(InvalidInput, match=f"{next(iter(given))} must be"):
        measure(Place("exact", 500, 8), **given)


def test_a_table_has_a_row_for_each_place_and_says_why_one_was_not_run():
    times = {"single": {"median": 0.25, "quartiles": [0.2, 0.3]}, "batch": {"median": 0.0625, "quartiles": [0, 1]}}
    ran = {"build_s": 1.5, "ms_per_query": times, "recall": 0.98765, "bytes": {"host": 3 * 2**30, "gpu": 2**20}}
    rows = table({"a": ran, "b": {**ran, "bytes": {"host": None, "gpu": 0}}, "c": {"not_run": "took too long"}})
    assert rows[0] == ["a", "1.50", "0.250", "0.062", "0.988", "3,073", ""]
    assert rows[1] == [*["b", "1.50", "0.250", "0.062", "0.988"], "-", ""]
    assert rows[2] == ["c", "-", "-", "-", "-", "-", "not run: took too long"]
    assert {len(row) for row in rows} == {len(HEAD)}


# --- stages of a prediction ---------------------------------------------------------------------------------


def points(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    codes = draw.integers(0, 3, rows)
    return (codes[:, None] + draw.normal(0, 1, (rows, 6))).astype(np.float32), codes


@pytest.fixture(scope="module")
def attending():
    options = AttentionOptions(always=True)
    model = AttnKNNClassifier(
        16, weights="attention", attention=options, embedder="standardize", device="cpu", random_state=0
    )
    return model.fit(*points(600, 0))


@pytest.fixture(scope="module")
def asked(attending):
    rows = points(1000, 1)[0]
    return rows, attending.embedder_.transform(rows)


@pytest.mark.parametrize("weights", ["attention", "uniform"])
def test_the_stages_take_about_as_long_as_the_prediction(attending, asked, weights):
    model = attending if weights == "attention" else attending.with_weights("uniform")
    found = stages(model, asked[1], batch=1000)
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert (found["weights"], found["batch"], found["laps"], found["k"]) == (weights, 1000, 5, 16)
    assert set(found["ms_per_query"]) == {*STAGES, "uniform"}
    assert min(found["ms_per_query"].values()) > 0
    whole = []
    for _ in range(5):
        start = time.perf_counter()
        model.predict_proba(asked[0])
        whole.append(time.perf_counter() - start)
    assert 1 / 5 < sum(found["ms_per_query"][stage] for stage in STAGES) / median(whole) < 5


def test_learned_attention_takes_longer_than_uniform_weights(attending, asked):
    found = stages(attending, asked[1][:90], batch=30)
    assert found["laps"] == 15
    assert found["adds"] > 0
    assert found["ms_per_query"]["weighing"] > found["ms_per_query"]["uniform"]


@pytest.mark.parametrize("kind", ["attention", "reliability"])
def test_what_is_timed_is_the_prediction(attending, asked, kind):
    model = attending
    if kind == "reliability":
        factors = {0: 3.0, 1: 1.0, 2: 0.5}
        model = AttnKNNClassifier(weights=kind, class_weight=factors, calibration="isotonic", device="cpu")
        model.fit(*points(300, 2))
    chances, seconds = timed(model.voter_, model.embedder_.transform(asked[0]))
    np.testing.assert_array_equal(chances, model.predict_proba(asked[0]))
    assert set(seconds) == {*STAGES, "uniform"}


@pytest.mark.parametrize(
    ("given", "said"), [({"batch": 1001}, "1001 queries, but only 1000 rows"), ({"batch": 0}, "batch must be"),
                        ({"batch": 1, "repeats": 0}, "repeats must be")],
)  # fmt: skip
def test_stages_refuse_batches_that_cannot_be(attending, asked, given, said):
    with pytest.raises(InvalidInput, match=said):
        stages(attending, asked[1], **given)


def planted(batch: int, adds: float, weights: str = "attention") -> dict:
    return {"weights": weights, "batch": batch, "adds": adds}


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ([planted(1, 0.4), planted(1000, 0.0123)],
         "attention adds 0.012 ms per query at batch 1,000 (0.4 ms at batch 1): below 1 ms"),
        ([planted(1000, 1.0), planted(1, 7.25)],
         "attention adds 1 ms per query at batch 1,000 (7.25 ms at batch 1): not below 1 ms"),
        ([planted(1000, 0.5), planted(1, 1.5)],
         "attention adds 0.5 ms per query at batch 1,000 (1.5 ms at batch 1): "
         "below 1 ms at batch 1,000, not below at batch 1"),
        ([planted(64, -0.0001, "softmax")], "softmax weights add 0 ms per query at batch 64: below 1 ms"),
    ],
    ids=["below", "not below", "both", "no attention"],
)  # fmt: skip
def test_the_verdict_follows_the_numbers(found, said):
    assert overhead(found) == said


def test_no_verdict_without_numbers():
    with pytest.raises(InvalidInput, match="nothing was timed"):
        overhead([])
