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
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Final

import torch
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # scikit-learn brings it

from attnknn.errors import InvalidInput
from attnknn.metrics.inputs import checked_count
from attnknn.study.claims import CAN_SHARE
from attnknn.study.filling import Filling, Lacking

_COMMAND: Final = (sys.executable, "-P", "-m", "attnknn.study.workers")

Process = subprocess.Popen[bytes]


def check_jobs(jobs: int) -> None:
    """Refuse a number of processes that cannot be."""
    if checked_count(jobs, "jobs") > 1 and not CAN_SHARE:
        raise InvalidInput(f"this system has no locks on files to share work by: jobs must be 1, got {jobs}")


def filled(work: Filling) -> list[Lacking]:
    """Do the work by as many processes as its machine is to have; returns what ``Filling.run`` does."""
    jobs = work.share()
    if jobs == 1:
        return work.run()
    before = torch.get_num_threads()
    threads = max(1, before // jobs)
    torch.set_num_threads(threads)
    try:
        with threadpool_limits(threads), _others(work, jobs - 1, threads):
            work.run()
        return work.lacks()  # all are done: what one had no time left for, another may have been filling
    finally:
        torch.set_num_threads(before)


@contextmanager
def _others(work: Filling, count: int, threads: int) -> Iterator[None]:
    """All processes but this one; they are waited for, as each may be in the middle of a cell."""
    with ExitStack() as ending:
        others = _all_started(work, count, threads, ending)
        yield
        for other in others:
            if other.wait():
                warnings.warn(f"another process of this run ended with code {other.returncode}", stacklevel=2)


def _all_started(work: Filling, count: int, threads: int, ending: ExitStack) -> list[Process]:
    """Processes that end with a context, each with its share of the threads; what they are told is not kept."""
    told = pickle.dumps((work.plans, work.task, work.machine, work.out))
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "PYTHONPATH": os.pathsep.join(sys.path)}
    others = []
    for _ in range(count):
        others.append(_started(told, environment))
        ending.callback(_end, others[-1])
    return others


def _started(told: bytes, environment: dict[str, str]) -> Process:
    """A process that hears of an interrupt by its pipe alone, and is told its work while others start."""
    process = subprocess.Popen(  # noqa: S603
        _COMMAND, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env=environment, start_new_session=True
    )
    threading.Thread(target=_tell, args=(process, told), daemon=True).start()
    return process


def _end(process: Process) -> None:
    process.kill()
    process.wait()
    with suppress(OSError):  # as it has not heard everything, what is left cannot be sent
        process.stdin.close()  # type: ignore[union-attr]


def _tell(process: Process, told: bytes) -> None:
    with suppress(OSError):  # it may end before it has heard everything
        process.stdin.write(told)  # type: ignore[union-attr]
        process.stdin.flush()  # type: ignore[union-attr]


def _work() -> None:
    """What such a process does."""
    try:
        plans, task, machine, out = pickle.load(sys.stdin.buffer)  # noqa: S301  # from the run
    except (EOFError, pickle.UnpicklingError):  # the run ended before it had told everything
        return
    threading.Thread(target=_end_with_run, daemon=True).start()
    warnings.formatwarning = lambda message, *_: f"note: {message}\n"  # as the command tells its own
    Filling(plans, task, machine, out, lambda text: None).run()


def _end_with_run() -> None:
    while os.read(0, 1):  # not by sys.stdin, whose lock would be missed where the work ends first
        pass
    os._exit(0)


if __name__ == "__main__":
    _work()
