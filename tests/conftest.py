"""Settings that every test shares."""

import gc
import os

import pytest
import torch
from hypothesis import HealthCheck, settings

if not torch.cuda.is_available():  # whether kernels are interpreted is settled when Triton is imported
    os.environ.setdefault("TRITON_INTERPRET", "1")

settings.register_profile(
    "house",
    deadline=None,  # a busy machine is no failure
    derandomize=False,
    print_blob=True,
    max_examples=40,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("house")


def pytest_collection_finish():
    """Thousands of tests and their libraries stay until the end: they need not be searched for garbage."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 50)


@pytest.fixture(scope="module")
def one_thread():
    """On a busy machine threads that wait for each other make small products a hundred times as slow."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
