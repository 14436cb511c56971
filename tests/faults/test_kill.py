"""kill -9 at random moments of a save: what is on disk is the old bank or the new one, whole."""

import os
import subprocess
import sys

import numpy as np
import pytest

# One warm process forks a child per kill: starting Python and torch anew would take seconds each time.
DRIVER = """
import os, random, signal, sys, time, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # forking is the point here
import numpy as np
from attnknn.bank import MemoryBank, folder

path, index, seed, kills = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
draw = random.Random(seed)

def made(mark):
    rng = np.random.default_rng(mark)
    bank = MemoryBank(16, index=index)
    bank.add(rng.normal(size=(600, 16)), np.full(600, mark), ids=[f"{mark}/{at}" for at in range(600)])
    return bank

def whole(bank, original):
    return (
        bank.ids == original.ids
        and np.array_equal(bank.vectors(bank.live), original.vectors(original.live))
        and np.array_equal(bank.labels(bank.live), original.labels(original.live))
        and bank.search(original.vectors([0]), 1).ids.tolist() == [original.ids[:1]]
    )

def child(work):
    process = os.fork()
    if process:
        return process
    try:
        work()
    finally:
        os._exit(3)

def forever():
    turn = draw.randrange(2)
    while True:
        banks[turn].save(path)
        turn = 1 - turn

def dies_at(step):
    def work():
        left = step
        def counted(plain):
            def call(*args, **kwargs):
                nonlocal left
                left -= 1
                if left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return plain(*args, **kwargs)
            return call
        from pathlib import Path
        os.fsync, Path.replace, Path.unlink = map(counted, (os.fsync, Path.replace, Path.unlink))
        Path.open = counted(Path.open)
        banks[held].save(path)
        os._exit(0)
    return work

def check(when):
    try:
        bank = MemoryBank.load(path)
    except Exception as broken:
        sys.exit(f"seed {seed}, {when}: {broken}")
    for at, original in enumerate(banks):
        if whole(bank, original):
            return at
    sys.exit(f"seed {seed}, {when}: a mix of the two")

banks = [made(0), made(1)]
banks[0].save(path)
seen = []
for kill in range(kills):
    process = child(forever)
    time.sleep(draw.uniform(0.0, 0.12))
    os.kill(process, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == -signal.SIGKILL
    seen.append(check(f"kill {kill}"))
print("found", sorted(set(seen)))

steps, finished = 0, False
while not finished:
    for held in (0, 1):
        banks[1 - held].save(path)
        process = child(dies_at(steps))
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        finished = code == 0
        if not finished and code != -signal.SIGKILL:
            sys.exit(f"step {steps}: the child ended with {code}")
        found = check(f"killed at step {steps}")
    steps += 1
print("steps", steps)
"""


@pytest.mark.slow
@pytest.mark.parametrize("index", ["exact", "hnsw"])
def test_a_save_killed_at_any_moment_leaves_the_old_bank_or_the_new_whole(index, tmp_path):
    seed = int(np.random.SeedSequence().generate_state(1)[0])
    print(f"seed {seed}")
    command = [sys.executable, "-c", DRIVER, tmp_path / "bank", index, str(seed), "40"]
    plain = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=plain, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    print(done.stdout)
    assert "found [0, 1]" in done.stdout, "every kill came too early or too late to tell"
    assert int(done.stdout.split()[-1]) > 8
