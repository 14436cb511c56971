"""Side by side: Attn-KNN, scikit-learn's KNeighborsClassifier and plain FAISS, in one run on one machine.

    python benchmarks/search.py --out results/synthetic/bench.json

Fit and predict with 1 / distance weights, k = 16. Each method has a process of its own; rounds alternate between
them, so that a busy moment hits all; a ratio is the median over rounds.
Memory is the peak of a process that loads one method,
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


class Worker:
    """One method in a process of its own, so that no method's threads disturb another's."""

    def __init__(self, method: str, asked: argparse.Namespace, kind: str) -> None:
        sizes = ["--rows", asked.rows, "--dim", asked.dim, "--k", asked.k, "--seed", asked.seed, "--kind", kind]
        command = [sys.executable, __file__, "--work-as", method, *map(str, sizes)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.start: dict[str, Any] = self._answer()

    def seconds(self, batch: int, first: int, calls: int) -> float:
        """Median seconds of some predicts of a batch that starts at query ``first``."""
        self._process.stdin.write(f"{batch} {first} {calls}\n")
        self._process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        """End the process."""
        self._process.stdin.close()
        self._process.wait(timeout=60)

    def _answer(self) -> Any:
        return json.loads(self._process.stdout.readline())


def work(asked: argparse.Namespace) -> None:
    """What a worker does: fit, tell, then time the predicts it is asked for."""
    X, y, queries = make_data(asked.rows, asked.dim, asked.kind, asked.seed)
    times = []
    for _ in range(3):
        start = time.perf_counter()
        predict = fitted(asked.work_as, X, y, asked.k)
        times.append(time.perf_counter() - start)
    print(json.dumps({"fit": float(np.median(times)), "answers": predict(queries).tolist()}), flush=True)
    for line in sys.stdin:
        batch, first, calls = map(int, line.split())
        each = []
        for _ in range(calls):
            start = time.perf_counter()
            predict(queries[first : first + batch])
            each.append(time.perf_counter() - start)
        print(json.dumps(float(np.median(each))), flush=True)


def measure(asked: argparse.Namespace, kind: str) -> dict[str, Any]:
    """Seconds of fit and of predict for each method and batch, with ratios to scikit-learn and FAISS."""
    workers = {method: Worker(method, asked, kind) for method in METHODS}
    answers = {method: np.asarray(worker.start["answers"]) for method, worker in workers.items()}
    agree = {method: float(np.mean(each == answers["sklearn-knn"])) for method, each in answers.items()}
    result: dict[str, Any] = {"fit": {method: worker.start["fit"] for method, worker in workers.items()}}
    for batch in BATCHES:
        result[f"predict_{batch}"] = _rounds(workers, batch, asked.rounds)
    for worker in workers.values():
        worker.close()
    return {**result, "agreement_with_sklearn": agree}


def _rounds(workers: dict[str, Worker], batch: int, rounds: int) -> dict[str, Any]:
    seconds: dict[str, list[float]] = {method: [] for method in METHODS}
    calls = {1: 30, 64: 8}.get(batch, 2)
    for at in range(rounds):
        first = (at * batch) % (max(BATCHES) - batch + 1)
        for method, worker in workers.items():
            seconds[method].append(worker.seconds(batch, first, calls))
    ours = np.asarray(seconds["attnknn"])
    ratios = {method: np.asarray(each) / ours for method, each in seconds.items() if method != "attnknn"}
    return {
        "seconds": {method: float(np.median(each)) for method, each in seconds.items()},
        "times_as_fast_as": {method: float(np.median(each)) for method, each in ratios.items()},
        "quartiles": {method: np.percentile(each, [25, 75]).tolist() for method, each in ratios.items()},
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
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--memory-of", choices=METHODS, help=argparse.SUPPRESS)
    parser.add_argument("--work-as", choices=METHODS, help=argparse.SUPPRESS)
    parser.add_argument("--kind", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.work_as:
        work(asked)
        return
    if asked.memory_of:
        _own_memory(asked.memory_of, asked.rows, asked.dim, asked.k)
        return
    config = {name: getattr(asked, name) for name in ("rows", "dim", "k", "rounds")}
    kinds = ("clustered", "gaussian")
    start = time.perf_counter()
    data = {kind: measure(asked, kind) for kind in kinds}
    held = {method: memory(method, asked.rows, asked.dim, asked.k) for method in METHODS}
    results = {"config": config, "seeds": [asked.seed], "data": data, "memory": held}
    results["seconds"] = {"total": time.perf_counter() - start}
    show(results)
    if asked.out:
        from attnknn.study.record import write

        write(asked.out, results)
        print(f"\nwritten to {asked.out}")


if __name__ == "__main__":
    main()
