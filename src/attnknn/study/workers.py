"""Other processes that fill cells beside a run: the same work, shared by the claims of its folder.

Each is a fresh interpreter that is told its work through a pipe. The pipe stays open: where it closes, the run has
ended, however it ended, and so does the process.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

import torch
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # scikit-learn brings it

from attnknn.errors import InvalidInput
from attnknn.study.claims import CAN_SHARE
from attnknn.study.filling import Filling, Lacking

_COMMAND: Final = (sys.executable, "-P", "-m", "attnknn.study.workers")

Process = subprocess.Popen[bytes]


def check_jobs(jobs: object) -> None:
    """Refuse a number of processes that cannot be."""
    if isinstance(jobs, bool) or not isinstance(jobs, int) or jobs < 1:
        raise InvalidInput(f"jobs must be a whole number of at least 1, got {jobs!r}")
    if jobs > 1 and not CAN_SHARE:
        raise InvalidInput(f"this system has no locks on files to share work by: jobs must be 1, got {jobs}")


def filled(work: Filling) -> list[Lacking]:
    """Do the work by as many processes as its machine is to have; returns what ``Filling.run`` does."""
    if work.machine.jobs == 1:
        return work.run()
    before = torch.get_num_threads()
    share = max(1, before // work.machine.jobs)
    torch.set_num_threads(share)
    try:
        with threadpool_limits(share), _others(work, share):
            work.run()
        return work.lacks()  # all are done: what one had no time left for, another may have been filling
    finally:
        torch.set_num_threads(before)


@contextmanager
def _others(work: Filling, threads: int) -> Iterator[None]:
    """All processes but this one; they are waited for, as each may be in the middle of a cell."""
    told = pickle.dumps((work.plans, work.task, work.machine, work.out))
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "PYTHONPATH": os.pathsep.join(sys.path)}
    others = [_started(told, environment) for _ in range(work.machine.jobs - 1)]
    try:
        yield
        for other in others:
            if other.wait():
                work.say(f"another process of this run ended with code {other.returncode}")
    finally:
        for other in others:
            other.kill()
            other.wait()
            with suppress(OSError):  # as it has not heard everything, what is left cannot be sent
                other.stdin.close()  # type: ignore[union-attr]


def _started(told: bytes, environment: dict[str, str]) -> Process:
    """A process that hears of an interrupt by its pipe alone, and is told its work while others start."""
    process = subprocess.Popen(  # noqa: S603
        _COMMAND, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env=environment, start_new_session=True
    )
    threading.Thread(target=_tell, args=(process, told), daemon=True).start()
    return process


def _tell(process: Process, told: bytes) -> None:
    with suppress(OSError):  # it may end before it has heard everything
        process.stdin.write(told)  # type: ignore[union-attr]
        process.stdin.flush()  # type: ignore[union-attr]


def _work() -> None:
    """What such a process does."""
    plans, task, machine, out = pickle.load(sys.stdin.buffer)  # noqa: S301  # from the process that started this one
    threading.Thread(target=_end_with_run, daemon=True).start()
    Filling(plans, task, machine, out, lambda text: None).run()


def _end_with_run() -> None:
    while os.read(0, 1):  # not by sys.stdin, whose lock would be missed where the work ends first
        pass
    os._exit(0)


if __name__ == "__main__":
    _work()
