"""Random operations on a bank beside a plain dictionary; the tests run 10,000 of them, the soak 200,000."""

import tempfile
from pathlib import Path

import numpy as np

from attnknn.bank import MemoryBank
from attnknn.errors import AttnKNNError

DIM = 3
LARGEST = 120  # rows; beyond, removals outweigh additions
LEAST_FOUND = {"exact": 1.0, "flat": 1.0, "hnsw": 0.98, "ivf": 0.9}


class DictionaryModel:
    """id -> (vector, label, group), in order of addition; search is a loop over all of it."""

    def __init__(self, metric):
        self.metric = metric
        self.rows = {}

    def nearest(self, query, k, excluded):
        """All (distance, id) that may be found, nearest first, of equals the earlier; and how many must be."""
        names = [name for name in self.rows if not self.left_out(name, excluded)]
        if not names:
            return [], 0
        gaps = self.gaps(query, np.array([self.rows[name][0] for name in names]))
        order = np.argsort(gaps, kind="stable")
        return [(gaps[at], names[at]) for at in order], min(k, len(self.rows), len(names))

    def gaps(self, query, vectors):
        if self.metric == "l2":
            return np.sqrt(np.square(vectors - query).sum(axis=1))
        if self.metric == "ip":
            return -(vectors * query).sum(axis=1)
        lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(query)
        return 1 - (vectors * query).sum(axis=1) / np.where(lengths > 0, lengths, 1)

    def left_out(self, name, excluded):
        if excluded is None:
            return False
        group = self.rows[excluded][2]
        return name == excluded or (group >= 0 and self.rows[name][2] == group)


class Walk:
    """One seeded random walk of a bank and its dictionary."""

    def __init__(self, index, metric, seed, folder):
        self.rng = np.random.default_rng(seed)
        self.bank = MemoryBank(DIM, index=index, metric=metric)
        self.model = DictionaryModel(metric)
        self.folder = Path(folder) / "bank"
        self.next_name = 0
        self.asked = self.agreed = self.steps = 0

    def step(self):
        crowd = len(self.model.rows) / LARGEST
        kinds = ["add", "remove", "relabel", "move", "search", "refuse", "save"]
        share = np.array([0.16 * (1.5 - crowd), 0.1 + 0.14 * crowd, 0.08, 0.08, 0.5, 0.03, 0.001])
        self.steps += 1
        kind = "save" if self.steps % 400 == 0 else str(self.rng.choice(kinds, p=share / share.sum()))
        if kind in ("remove", "relabel", "move") and not self.model.rows:
            kind = "add"
        getattr(self, kind)()
        if len(self.bank) != len(self.model.rows):
            raise AssertionError(f"{len(self.bank)} rows, expected {len(self.model.rows)}")
        return kind

    def some(self, most=3):
        names = list(self.model.rows)
        count = min(len(names), int(self.rng.integers(1, most + 1)))
        return [names[at] for at in self.rng.choice(len(names), count, replace=False)]

    def drawn(self, rows):
        vectors = self.rng.normal(size=(rows, DIM))
        if self.model.rows and self.rng.random() < 0.2:  # the same place as another row
            vectors[0] = self.model.rows[self.some(1)[0]][0]
        return vectors

    def named(self):
        self.next_name += 1
        return f"n{self.next_name}" if self.rng.random() < 0.5 else 10**6 + self.next_name

    def add(self):
        rows = int(self.rng.integers(0, 5))
        vectors, labels = self.drawn(rows) if rows else np.empty((0, DIM)), self.rng.integers(0, 4, rows)
        groups = self.rng.integers(-2, 8, rows)
        own = None if self.rng.random() < 0.3 else [self.named() for _ in range(rows)]
        names = self.bank.add(vectors, labels, ids=own, groups=groups)
        if own is not None and names != own:
            raise AssertionError(f"gave {own}, got {names}")
        for name, vector, label, group in zip(names, vectors, labels, groups, strict=True):
            if name in self.model.rows:
                raise AssertionError(f"id {name!r} given twice")
            self.model.rows[name] = (vector, int(label), int(group))

    def remove(self):
        names = self.some()
        self.bank.remove(names)
        for name in names:
            del self.model.rows[name]

    def relabel(self):
        names = self.some()
        labels = self.rng.integers(0, 4, len(names))
        self.bank.update(names, labels=labels)
        for name, label in zip(names, labels, strict=True):
            vector, _, group = self.model.rows[name]
            self.model.rows[name] = (vector, int(label), group)

    def move(self):
        names = self.some()
        vectors = self.drawn(len(names))
        self.bank.update(names, vectors=vectors)
        for name, vector in zip(names, vectors, strict=True):
            _, label, group = self.model.rows[name]
            self.model.rows[name] = (vector, label, group)

    def refuse(self):
        """Calls that must fail and change nothing; the next comparison would tell."""
        held = self.some(1) if self.model.rows else []
        calls = [
            lambda: self.bank.add(np.zeros((2, DIM)), [0, 0], ids=["twice", "twice"]),
            lambda: self.bank.add(np.full((1, DIM), np.nan), [0]),
            lambda: self.bank.remove([*held, "ghost"]),
            lambda: self.bank.update([*held, "ghost"], vectors=np.zeros((len(held) + 1, DIM))),
            lambda: self.bank.search(np.zeros((1, DIM)), 0),
        ]
        if held:
            calls.append(lambda: self.bank.add(np.zeros((2, DIM)), [0, 0], ids=["ghost", *held]))
        try:
            calls[self.rng.integers(len(calls))]()
        except AttnKNNError:
            return
        raise AssertionError("a call that must fail did not")

    def search(self):
        queries = self.drawn(int(self.rng.integers(1, 4)))
        k = int(self.rng.integers(1, 12)) if self.rng.random() < 0.95 else 10**6
        exclude = None
        if self.model.rows and self.rng.random() < 0.5:
            exclude = [self.some(1)[0] if self.rng.random() < 0.8 else None for _ in queries]
        near = self.bank.search(queries, k, exclude=exclude)
        width = min(k, len(self.model.rows))
        if near.ids.shape != (len(queries), width):
            raise AssertionError(f"an answer of shape {near.ids.shape} for {len(queries)} queries, {width=}")
        for at, query in enumerate(queries):
            self.compare(near, at, query, k, None if exclude is None else exclude[at])

    def compare(self, near, at, query, k, excluded):
        ranked, count = self.model.nearest(query, k, excluded)
        found = near.found[at]
        if found.sum() != count or not found[:count].all():
            raise AssertionError(f"found {found.sum()} of {count}")
        if np.isfinite(near.distances[at, count:]).any() or any(name is not None for name in near.ids[at, count:]):
            raise AssertionError("something where nothing is")
        names, gaps = near.ids[at, :count].tolist(), near.distances[at, :count]
        possible = {name: gap for gap, name in ranked}
        if len(set(names)) < count or not possible.keys() >= set(names):
            raise AssertionError(f"found {names}, of which some twice, removed or left out")
        true = [possible[name] for name in names]
        if not np.allclose(gaps, true, rtol=1e-9, atol=1e-12) or (np.diff(gaps) < 0).any():
            raise AssertionError(f"distances {gaps} of {names}")
        if near.labels[at, :count].tolist() != [self.model.rows[name][1] for name in names]:
            raise AssertionError(f"labels of {names}")
        expected = [name for _, name in ranked[:count]]
        self.asked += count
        self.agreed += len(set(names) & set(expected))
        if self.bank.index in ("exact", "flat") and names != expected:
            raise AssertionError(f"found {names}, expected {expected}")

    def save(self):
        self.bank.save(self.folder)
        self.bank = MemoryBank.load(self.folder)
        if self.bank.ids != list(self.model.rows):
            raise AssertionError("not the rows that were saved")
        held = self.bank.vectors(self.bank.live)
        if not np.array_equal(held, np.array([row[0] for row in self.model.rows.values()]).reshape(-1, DIM)):
            raise AssertionError("not the vectors that were saved")


def run_operations(operations, seed, index="exact", metric="l2", progress=None):
    """Walk ``operations`` steps; raises AssertionError, with the seed, where bank and dictionary differ."""
    counts = {}
    with tempfile.TemporaryDirectory() as folder:
        walk = Walk(index, metric, seed, folder)
        for at in range(operations):
            try:
                kind = walk.step()
            except Exception as problem:
                raise AssertionError(f"{index}, {metric}, seed {seed}, operation {at}: {problem!r}") from problem
            counts[kind] = counts.get(kind, 0) + 1
            if progress is not None and at % 500 == 0:
                progress(at)
    recall = walk.agreed / max(1, walk.asked)
    if recall < LEAST_FOUND[index]:
        raise AssertionError(f"{index}, {metric}, seed {seed}: found {recall:.4f} of the nearest")
    return counts
