"""Searching while adding, moving, removing and saving: every answer is the bank of some moment."""

import threading

import numpy as np
import pytest
from bank_threads import run_threads

from attnknn.bank import INDEXES
from attnknn.bank.lock import ReadersWriterLock


@pytest.mark.slow
@pytest.mark.parametrize("index", INDEXES)
def test_eight_threads_search_while_others_edit(index, tmp_path):
    seed = int(np.random.SeedSequence().generate_state(1)[0])
    print(f"seed {seed}")
    crowd = run_threads(index, 2.0, seed, tmp_path / "bank")
    print(f"{crowd.answers} answers, {crowd.edits} edits")
    assert crowd.answers > 20
    assert crowd.edits > 10


def test_readers_share_and_a_writer_is_alone():
    lock, inside, together = ReadersWriterLock(), [], threading.Barrier(3, timeout=20)

    def read():
        with lock.read():
            together.wait()  # only passes if all three are in at once
            inside.append("reader")

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(timeout=30)
    assert inside == ["reader"] * 3
    with lock.write():
        late = threading.Thread(target=lambda: (lock.read().__enter__(), inside.append("late")))
        late.start()
        late.join(timeout=0.1)
        assert inside == ["reader"] * 3
    late.join(timeout=30)
    assert inside[-1] == "late"


def test_a_lock_is_given_back_after_an_error():
    lock = ReadersWriterLock()
    for hold in (lock.read, lock.write):
        with pytest.raises(KeyError), hold():
            raise KeyError
    with lock.write():
        pass
