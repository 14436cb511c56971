"""Parts of a run that one process takes."""

import errno
import subprocess
import sys

import pytest

from attnknn.study.claims import claimed

HOLD = """
import sys, time
from pathlib import Path
from attnknn.study.claims import claimed
with claimed(Path(sys.argv[1])) as mine:
    print(mine, flush=True)
    time.sleep(float(sys.argv[2]))
"""


def holder(file, seconds):
    """Another process that has the file; returned once it does."""
    other = subprocess.Popen([sys.executable, "-c", HOLD, str(file), str(seconds)], stdout=subprocess.PIPE)
    assert other.stdout.readline() == b"True\n"
    return other


def test_what_another_process_has_is_not_ours_until_it_is_done(tmp_path):
    file = tmp_path / "deep" / "part"
    other = holder(file, 60)
    try:
        with claimed(file) as mine:
            assert not mine
        with claimed(tmp_path / "deep" / "another") as mine:
            assert mine
    finally:
        other.kill()  # a run that dies holds nothing
        other.communicate()
    with claimed(file) as mine:
        assert mine


def test_who_waits_gets_it_after_the_other(tmp_path):
    other = holder(tmp_path / "part", 0.5)
    with claimed(tmp_path / "part", wait=True) as mine:
        assert mine
        assert other.wait(timeout=10) == 0  # it let go because it ended
    other.communicate()


def test_a_system_without_such_locks_has_its_folder_for_itself(tmp_path, monkeypatch):
    monkeypatch.setattr("attnknn.study.claims.fcntl", None)
    with claimed(tmp_path / "part") as one, claimed(tmp_path / "part") as two:
        assert one
        assert two


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_so_has_a_run_where_the_file_system_has_no_locks(tmp_path, monkeypatch, number):
    def flock(*_):
        raise OSError(number, "no locks here")

    monkeypatch.setattr("attnknn.study.claims.fcntl.flock", flock)
    with claimed(tmp_path / "part") as mine:
        assert mine
