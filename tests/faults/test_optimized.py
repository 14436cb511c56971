"""Under ``python -O``, where plain assertions vanish, the checks still stand."""

import os
import subprocess
import sys

CHECKS = """
import sys
import numpy as np
from attnknn.bank import MemoryBank
from attnknn.errors import CorruptModel, InvalidInput
from attnknn.ops import exact_topk

try:
    assert False
except AssertionError:
    raise SystemExit("this is not python -O")

def refused(error, words, call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except error as problem:
        if any(word not in str(problem) for word in words):
            raise SystemExit(f"the message lacks {words}: {problem}")
        return
    raise SystemExit(f"{call} took {args}")

rng = np.random.default_rng(0)
for index in ("exact", "flat", "hnsw", "ivf"):
    bank = MemoryBank(4, index=index)
    refused(InvalidInput, ["(n, 4)", "(2, 3)"], bank.add, np.zeros((2, 3)), [0, 0])
    bank.add(rng.normal(size=(50, 4)), np.arange(50) % 2, groups=[0] * 49 + [1])
    refused(InvalidInput, ["(n, 4)", "(2, 3)"], bank.search, np.zeros((2, 3)), 1)
    refused(InvalidInput, ["(n, 4)", "(2, 9)"], bank.search, np.zeros((2, 9), np.float32), 1)
    for value in (np.nan, np.inf):
        refused(InvalidInput, ["row 1 column 2"], bank.search, [[0, 0, 0, 0], [0, 0, value, 0]], 1)
        refused(InvalidInput, ["row 0 column 3"], bank.add, [[0, 0, 0, value]], [0])
    refused(InvalidInput, ["limit"], bank.search, np.full((1, 4), 1e20), 1)
    for k in (0, -1, True, 2.0, 10**26, 2**31):
        refused(InvalidInput, ["k must be"], bank.search, np.zeros((1, 4)), k)
    for labels in ([-1], [0, 1], [0.5]):
        refused(InvalidInput, ["labels"], bank.add, np.zeros((1, 4)), labels)
    near = bank.search(np.zeros((1, 4)), 50, exclude=[0])
    if near.found.tolist() != [[True] + [False] * 49] or near.ids[0, 1] is not None:
        raise SystemExit("found what was left out")
    if not np.isinf(near.distances[0, 1:]).all():
        raise SystemExit("a distance to nothing")
    for column in (near.rows, near.labels):
        refused(IndexError, [], np.zeros(50).__getitem__, column)
    if len(bank) != 50 or bank.search(np.zeros((1, 4)), 99).k != 50:
        raise SystemExit("a refused call left a trace")
    bank.save(sys.argv[1] + index)
    from pathlib import Path
    for file in Path(sys.argv[1] + index).glob("*.*s*"):
        whole = file.read_bytes()
        file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        refused(CorruptModel, [file.name], MemoryBank.load, sys.argv[1] + index)
        file.write_bytes(whole)
    if MemoryBank.load(sys.argv[1] + index).ids != bank.ids:
        raise SystemExit("not what was saved")
import torch
refused(InvalidInput, ["k must be at least 1"], exact_topk, torch.zeros(1, 1), torch.zeros(1, 1), 0)
"""


def test_bad_input_is_refused_without_assertions(tmp_path):
    strict = ["-W", "error::RuntimeWarning", "-W", "error::UserWarning"]  # SWIG deprecates itself on import
    command = [sys.executable, "-O", *strict, "-c", CHECKS, f"{tmp_path}/bank-"]
    plain = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=plain, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
