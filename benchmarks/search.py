"""Side by side: Attn-KNN, scikit-learn's KNeighborsClassifier and plain FAISS, in one run on one machine.

    python benchmarks/search.py --out results/synthetic/bench.json

Fit and predict with 1 / distance weights, k = 16. Rounds alternate between the methods, so that a busy moment
hits all of them; a ratio is the median over rounds. Memory is the peak of a process that loads one method,
predicts once with a single query, and then with the largest batch.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

METHODS = ("attnknn", "sklearn-knn", "faiss")
BATCHES = (1, 64, 1000)

Predict = Callable[[NDArray[Any]], NDArray[Any]]


def make_data(rows: int, dim: int, kind: str, seed: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Vectors, labels and queries: ``gaussian`` noise, or ``clustered`` around 100 centers as embeddings are."""
    draw = np.random.default_rng(seed)
    centers = draw.normal(size=(100, dim)) * (1.0 if kind == "clustered" else 0.0)
    which = draw.integers(0, 100, rows + max(BATCHES))
    points = (centers[which] + draw.normal(size=(len(which), dim))).astype(np.float32)
    return points[:rows], which[:rows] % 10, points[rows:]


def fitted(method: str, X: NDArray[Any], y: NDArray[Any], k: int) -> Predict:
    """The predict function of a fitted method."""
    if method == "attnknn":
        from attnknn import AttnKNNClassifier

        ours = AttnKNNClassifier(
            k, weights="distance", embedder="identity", metric="l2", index="exact", calibration=None, device="cpu"
        )
        return ours.fit(X, y).predict
    if method == "sklearn-knn":
        from sklearn.neighbors import KNeighborsClassifier

        return KNeighborsClassifier(k, weights="distance", algorithm="brute").fit(X, y).predict
    return _fitted_faiss(X, y, k)


def _fitted_faiss(X: NDArray[Any], y: NDArray[Any], k: int) -> Predict:
    """The least a user would write around a flat FAISS index; none of the checks, ties or zeros handled."""
    import faiss

    index = faiss.IndexFlatL2(X.shape[1])
    index.add(X)
    classes = int(y.max()) + 1

    def predict(queries: NDArray[Any]) -> NDArray[Any]:
        squared, rows = index.search(queries, k)
        weights = 1 / np.sqrt(np.maximum(squared, 1e-12))
        votes = np.zeros((len(queries), classes))
        np.add.at(votes, (np.arange(len(queries))[:, None], y[rows]), weights)
        return votes.argmax(axis=1)

    return predict


def timed(call: Callable[[], Any]) -> float:
    """Seconds that a call takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def measure(rows: int, dim: int, kind: str, k: int, rounds: int, seed: int) -> dict[str, Any]:
    """Seconds of fit and of predict for each method and batch, with ratios to scikit-learn and FAISS."""
    X, y, queries = make_data(rows, dim, kind, seed)
    fit_seconds: dict[str, list[float]] = {method: [] for method in METHODS}
    predicts: dict[str, Predict] = {}
    for _ in range(3):
        for method in METHODS:
            start = time.perf_counter()
            predicts[method] = fitted(method, X, y, k)
            fit_seconds[method].append(time.perf_counter() - start)
    answers = {method: predicts[method](queries) for method in METHODS}
    agree = {method: float(np.mean(answers[method] == answers["sklearn-knn"])) for method in METHODS}
    result: dict[str, Any] = {"fit": {method: float(np.median(times)) for method, times in fit_seconds.items()}}
    for batch in BATCHES:
        result[f"predict_{batch}"] = _rounds(predicts, queries, batch, rounds * max(1, min(40, 200 // batch)))
    return {**result, "agreement_with_sklearn": agree}


def _rounds(predicts: dict[str, Predict], queries: NDArray[Any], batch: int, rounds: int) -> dict[str, Any]:
    seconds: dict[str, list[float]] = {method: [] for method in METHODS}
    for at in range(rounds):
        first = (at * batch) % (len(queries) - batch + 1)
        asked = queries[first : first + batch]
        for method in METHODS:
            seconds[method].append(timed(lambda method=method, asked=asked: predicts[method](asked)))
    ours = np.asarray(seconds["attnknn"])
    return {
        "seconds": {method: float(np.median(times)) for method, times in seconds.items()},
        "times_as_fast_as": {
            method: float(np.median(np.asarray(seconds[method]) / ours))
            for method in METHODS
            if method != "attnknn"
        },
    }


def memory(method: str, rows: int, dim: int, k: int) -> dict[str, float]:
    """MiB of a fresh process: after fit and one query, and what the largest batch adds at its peak."""
    command = [
        sys.executable,
        __file__,
        "--memory-of",
        method,
        "--rows",
        str(rows),
        "--dim",
        str(dim),
        "--k",
        str(k),
    ]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def _own_memory(method: str, rows: int, dim: int, k: int) -> None:
    X, y, queries = make_data(rows, dim, "clustered", 0)
    predict = fitted(method, X, y, k)
    predict(queries[:1])
    before = _peak()
    predict(queries)
    print(json.dumps({"after_fit_mib": before, "largest_batch_adds_mib": _peak() - before}))


def _peak() -> float:
    """Peak resident MiB of this process alone (getrusage would count the parent it was forked from)."""
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) / 1024


def show(results: dict[str, Any]) -> None:
    """Print the ratios."""
    for kind, found in results["data"].items():
        print(f"\n{kind}: fit " + ", ".join(f"{m} {s * 1e3:.0f} ms" for m, s in found["fit"].items()))
        for batch in BATCHES:
            cell = found[f"predict_{batch}"]
            times = ", ".join(f"{m} {s * 1e3:.2f} ms" for m, s in cell["seconds"].items())
            ratio = ", ".join(f"{r:.2f} x {m}" for m, r in cell["times_as_fast_as"].items())
            print(f"  batch {batch:>4}: {times}   -> attnknn is as fast as {ratio}")
    for method, held in results["memory"].items():
        print(f"memory {method}: {held['after_fit_mib']:.0f} MiB, + {held['largest_batch_adds_mib']:.0f} MiB")


def main() -> None:
    """Run, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--k", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--memory-of", choices=METHODS, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.memory_of:
        _own_memory(asked.memory_of, asked.rows, asked.dim, asked.k)
        return
    config = {name: getattr(asked, name) for name in ("rows", "dim", "k", "rounds")}
    kinds = ("clustered", "gaussian")
    start = time.perf_counter()
    data = {kind: measure(asked.rows, asked.dim, kind, asked.k, asked.rounds, asked.seed) for kind in kinds}
    held = {method: memory(method, asked.rows, asked.dim, asked.k) for method in METHODS}
    results = {"config": config, "seeds": [asked.seed], "data": data, "memory": held}
    results["seconds"] = {"total": time.perf_counter() - start}
    show(results)
    if asked.out:
        from record import write

        write(asked.out, results)
        print(f"\nwritten to {asked.out}")


if __name__ == "__main__":
    main()
