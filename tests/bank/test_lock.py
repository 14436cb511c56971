"""The readers-writer lock: exclusive writers, shared readers, nobody starves."""

import threading
import time

from attnknn.bank.lock import ReadersWriterLock


def run_for(seconds, *workers):
    stop = threading.Event()
    threads = [threading.Thread(target=worker, args=(stop,), daemon=True) for worker in workers]
    for thread in threads:
        thread.start()
    time.sleep(seconds)
    stop.set()
    for thread in threads:
        thread.join(timeout=20)
    assert not any(thread.is_alive() for thread in threads)


def test_readers_share_and_writers_are_alone():
    lock, inside = ReadersWriterLock(), {"readers": 0, "writers": 0}
    guard, problems, shared = threading.Lock(), [], []

    def enter(kind, by):
        with guard:
            inside[kind] += by
            if inside["writers"] > 1 or (inside["writers"] and inside["readers"]):
                problems.append(dict(inside))
            if inside["readers"] > 1:
                shared.append(True)

    def reader(stop):
        while not stop.is_set():
            with lock.read():
                enter("readers", 1)
                time.sleep(0.001)
                enter("readers", -1)

    def writer(stop):
        while not stop.is_set():
            with lock.write():
                enter("writers", 1)
                enter("writers", -1)
            time.sleep(0.001)

    run_for(0.6, *[reader] * 4, *[writer] * 2)
    assert problems == []
    assert shared


def test_writers_in_a_tight_loop_do_not_starve_readers_nor_the_reverse():
    lock, turns = ReadersWriterLock(), {"read": 0, "write": 0}

    def reader(stop):
        while not stop.is_set():
            with lock.read():
                time.sleep(0.0005)
                turns["read"] += 1

    def writer(stop):
        while not stop.is_set():
            with lock.write():
                time.sleep(0.0005)
                turns["write"] += 1

    run_for(1.0, *[writer] * 4, *[reader] * 2)
    assert turns["read"] > 50
    assert turns["write"] > 50


def test_an_error_inside_lets_go():
    lock = ReadersWriterLock()
    for hold in (lock.read, lock.write):
        try:
            with hold():
                raise RuntimeError
        except RuntimeError:
            pass
    with lock.write():
        pass


def test_an_interrupt_while_waiting_leaves_the_lock_usable():
    class Interrupted(ReadersWriterLock):
        pass

    for wait in ("read", "write"):
        lock = Interrupted()
        with lock.write():

            def interrupted(*_):
                raise KeyboardInterrupt

            lock._turn.wait_for = interrupted
            try:
                with getattr(lock, wait)():
                    raise AssertionError("entered")
            except KeyboardInterrupt:
                pass
            del lock._turn.wait_for
        with lock.read():
            pass
        with lock.write():
            pass
