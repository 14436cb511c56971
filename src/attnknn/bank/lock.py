"""Many readers or one writer: searches overlap, edits do not."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class ReadersWriterLock:
    """A lock that any number of readers share and a writer has alone.

    A waiting writer goes before readers that come after it; the readers that waited for a writer go before
    the next one. So neither can starve the other.
    """

    def __init__(self) -> None:
        self._turn = threading.Condition()
        self._readers = 0
        self._writing = False
        self._writers_waiting = 0
        self._readers_waiting = 0
        self._admitted = 0  # readers that waited for the last writer and now go first

    def __reduce__(self) -> tuple[type[ReadersWriterLock], tuple[()]]:
        return ReadersWriterLock, ()  # a copy of what it guards starts with a free lock

    @contextmanager
    def read(self) -> Iterator[None]:
        """Hold the lock with other readers."""
        with self._turn:
            self._readers_waiting += 1
            try:  # an interrupt while waiting must not leave a trace
                self._turn.wait_for(lambda: not self._writing and (self._admitted or not self._writers_waiting))
            finally:
                self._readers_waiting -= 1
                self._admitted = min(self._admitted, self._readers_waiting + 1)
            self._admitted = max(0, self._admitted - 1)
            self._readers += 1
        try:
            yield
        finally:
            with self._turn:
                self._readers -= 1
                self._turn.notify_all()

    @contextmanager
    def write(self) -> Iterator[None]:
        """Hold the lock alone."""
        with self._turn:
            self._writers_waiting += 1
            try:
                self._turn.wait_for(lambda: not self._writing and not self._readers and not self._admitted)
            finally:
                self._writers_waiting -= 1
                self._turn.notify_all()
            self._writing = True
        try:
            yield
        finally:
            with self._turn:
                self._writing = False
                self._admitted = self._readers_waiting
                self._turn.notify_all()
