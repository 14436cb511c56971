"""Threads that search a bank while others edit it; the tests run seconds of them, the soak ten minutes."""

import threading
import time

import numpy as np

from attnknn.bank import MemoryBank

DIM = 4
BATCH = 12  # rows that are added, moved and removed together
MOST = 25  # batches at a time


def place(batch, version):
    """(BATCH, DIM) where a batch is in each of its versions."""
    return np.random.default_rng((batch, version)).normal(size=(BATCH, DIM))


class Crowd:
    """Writers keep every batch whole at each moment, so any answer that shows half of one shows no moment."""

    def __init__(self, index, seed):
        self.bank = MemoryBank(DIM, index=index)
        self.seed = seed
        self.stop = threading.Event()
        self.problems = []
        self.answers = self.edits = 0
        self.count = threading.Lock()

    def write(self, writer):
        rng = np.random.default_rng((self.seed, writer))
        mine, turn = {}, 0
        while not self.stop.is_set():
            turn += 1
            batch = writer * 10**6 + turn
            names = [f"{batch}/{at}" for at in range(BATCH)]
            self.bank.add(place(batch, 0), [batch * 8] * BATCH, ids=names)
            mine[batch] = 0
            moved = int(rng.choice(list(mine)))
            mine[moved] = (mine[moved] + 1) % 8
            names = [f"{moved}/{at}" for at in range(BATCH)]
            self.bank.update(names, vectors=place(moved, mine[moved]), labels=[moved * 8 + mine[moved]] * BATCH)
            while len(mine) > MOST * rng.random():
                gone = int(rng.choice(list(mine)))
                del mine[gone]
                self.bank.remove([f"{gone}/{at}" for at in range(BATCH)])
            with self.count:
                self.edits += 1
            time.sleep(0.002)  # a waiting writer goes first: without a pause nobody would read

    def read(self, reader):
        rng = np.random.default_rng((self.seed, 1000 + reader))
        while not self.stop.is_set():
            queries = rng.normal(size=(2, DIM))
            near = self.bank.search(queries, 10**6 if rng.random() < 0.7 else 5)
            self.judge(near, queries, whole=near.k != 5)
            with self.count:
                self.answers += 1

    def keep(self, folder):
        """Save and load now and then: rows get new numbers under the others' feet."""
        while not self.stop.wait(0.1):
            self.bank.save(folder)
            held = MemoryBank.load(folder)
            self.judge(held.search(np.zeros((1, DIM)), 10**6), np.zeros((1, DIM)), whole=True)
            live = self.bank.live
            try:
                self.bank.reliability(live)
            except ValueError as gone:  # edited in between: refused, not wrong
                if "no such row" not in str(gone):
                    raise

    def judge(self, near, queries, whole):
        for query, ids, labels, gaps in zip(queries, near.ids, near.labels, near.distances, strict=True):
            if not near.found.all():
                raise AssertionError("a row was lost")
            batches = [divmod(int(label), 8) for label in labels]
            if any(name.split("/")[0] != str(batch) for name, (batch, _) in zip(ids, batches, strict=True)):
                raise AssertionError("ids and labels of different rows")
            for held in set(batches):
                at = [row for row, other in enumerate(batches) if other == held]
                if whole and len(at) != BATCH:
                    raise AssertionError(f"{len(at)} of {BATCH} rows of batch {held}")
                order = [int(ids[row].split("/")[1]) for row in at]
                expected = np.linalg.norm(place(*held)[order] - query, axis=1)
                if not np.allclose(gaps[at], expected):
                    raise AssertionError(f"distances of another version of batch {held}")
            if len({batch for batch, _ in batches}) < len(set(batches)):
                raise AssertionError("two versions of one batch")

    def guarded(self, work, *args):
        try:
            work(*args)
        except BaseException as problem:
            self.problems.append(problem)
            self.stop.set()


def run_threads(index, seconds, seed, folder, readers=8, writers=2, progress=None):
    """Search from 8 threads while others edit; raises AssertionError at the first answer of no moment."""
    crowd = Crowd(index, seed)
    jobs = [(crowd.read, at) for at in range(readers)] + [(crowd.write, at) for at in range(writers)]
    jobs.append((crowd.keep, folder))
    threads = [threading.Thread(target=crowd.guarded, args=job, daemon=True) for job in jobs]
    for thread in threads:
        thread.start()
    end = time.monotonic() + seconds
    while time.monotonic() < end and not crowd.stop.wait(min(1.0, end - time.monotonic())):
        if progress is not None:
            progress(crowd)
    crowd.stop.set()
    for thread in threads:
        thread.join(timeout=30)
        if thread.is_alive():
            raise AssertionError(f"{index}, seed {seed}: a thread hangs")
    if crowd.problems:
        raise AssertionError(f"{index}, seed {seed}: {crowd.problems[0]!r}") from crowd.problems[0]
    return crowd
