"""The format on disk: whole or absent, checked before parsed, never executed, never mixed."""

import hashlib
import json
import os
import pickle
import subprocess
import sys
import zipfile

import numpy as np
import pytest

from attnknn.bank import MemoryBank, folder
from attnknn.bank.folder import FORMAT, MANIFEST, read_folder, write_folder
from attnknn.errors import CorruptModel

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def filled(seed=0, rows=30, dim=4, **options):
    rng = np.random.default_rng(seed)
    bank = MemoryBank(dim, **options)
    bank.add(rng.normal(size=(rows, dim)), rng.integers(0, 3, rows), metadata=[{"seed": seed}] * rows)
    return bank


def content(path):
    return {file.name: file.read_bytes() for file in path.iterdir() if file.name != ".lock"}


def seal(path, manifest):
    """Write a manifest whose own checksum is right."""
    manifest.pop("digest", None)
    digest = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
    (path / MANIFEST).write_text(json.dumps({**manifest, "digest": digest}))


@pytest.fixture
def saved(tmp_path):
    filled(index="hnsw").save(tmp_path / "bank")
    return tmp_path / "bank"


# --- writing


def test_a_folder_gives_back_the_files_it_was_given(tmp_path):
    files = {"a.json": b"{}", "b.bin": bytes(range(256)), "empty.bin": b""}
    write_folder(tmp_path / "deep" / "er", "thing", files)
    assert read_folder(tmp_path / "deep" / "er", "thing") == files


def test_overwriting_replaces_the_whole(tmp_path):
    write_folder(tmp_path, "thing", {"a.json": b"1", "b.json": b"2"})
    write_folder(tmp_path, "thing", {"a.json": b"3"})
    assert read_folder(tmp_path, "thing") == {"a.json": b"3"}


def test_files_that_no_manifest_names_go_at_the_next_save(tmp_path):
    for turn in range(5):
        write_folder(tmp_path, "thing", {"a.json": b"%d" % turn, "same.json": b"same"})
        names = set(content(tmp_path))
        assert len(names) <= 1 + 2 + 1  # manifest, this save's files, and what the save before alone had
    write_folder(tmp_path, "thing", {"a.json": b"4", "same.json": b"same"})
    assert len(content(tmp_path)) == 3


def test_what_a_killed_save_left_behind_goes_too(tmp_path):
    write_folder(tmp_path, "thing", {"a.json": b"1"})
    left = [tmp_path / f"a-{'0' * 20}.json", tmp_path / f"{MANIFEST}.{'1' * 16}.tmp"]
    for file in left:
        file.write_bytes(b"half of i")
    write_folder(tmp_path, "thing", {"a.json": b"2"})
    assert not any(file.exists() for file in left)


def test_half_a_file_under_the_right_name_is_written_again(tmp_path):
    write_folder(tmp_path / "one", "thing", {"a.json": b"whole"})
    (name,) = set(content(tmp_path / "one")) - {MANIFEST}
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / name).write_bytes(b"who")
    write_folder(tmp_path / "two", "thing", {"a.json": b"whole"})
    assert read_folder(tmp_path / "two", "thing") == {"a.json": b"whole"}


def test_files_of_the_user_are_never_deleted(tmp_path):
    mine = {
        "README.md": b"mine",
        "notes-2024.txt": b"mine",
        "bank.json": b"mine",
        "rows-backup.safetensors": b"mine",
        f"model-{'a' * 40}.json": b"mine",
        "manifest.json.bak": b"mine",
        ".hidden": b"mine",
    }
    (tmp_path / "sub-folder").mkdir()
    (tmp_path / "sub-folder" / f"rows-{'0' * 20}.json").write_bytes(b"mine")
    for name, data in mine.items():
        (tmp_path / name).write_bytes(data)
    for seed in range(3):
        filled(seed).save(tmp_path)
    assert content(tmp_path / "sub-folder") == {f"rows-{'0' * 20}.json": b"mine"}
    assert {name: (tmp_path / name).read_bytes() for name in mine} == mine


@pytest.mark.parametrize("step", ["_write", "_flush", "_commit", "_sweep"])
@pytest.mark.parametrize("call", [0, 1, 2, 3])
@pytest.mark.parametrize("problem", [OSError("disk"), KeyboardInterrupt()])
@pytest.mark.parametrize("after", [False, True])
def test_an_interruption_leaves_the_old_folder_or_the_new(tmp_path, monkeypatch, step, call, problem, after):
    old, new = {"a.json": b"old", "b.json": b"old too"}, {"a.json": b"new", "b.json": b"new too"}
    write_folder(tmp_path, "thing", old)
    plain, calls = getattr(folder, step), iter(range(100))

    def breaks(*args):
        this = next(calls)
        if this == call and not after:
            raise problem
        plain(*args)
        if this == call:
            raise problem

    monkeypatch.setattr(folder, step, breaks)
    try:
        write_folder(tmp_path, "thing", new)
        expected = [new]
    except type(problem):
        expected = [old, new]
    monkeypatch.undo()
    assert read_folder(tmp_path, "thing") in expected
    assert not list(tmp_path.glob("*.tmp"))


def test_a_full_disk_passes_the_error_on_and_keeps_the_old_model(tmp_path):
    old = filled(1)
    old.save(tmp_path / "bank")
    before = content(tmp_path / "bank")
    script = """
import resource, sys, numpy as np
from attnknn.bank import MemoryBank
bank = MemoryBank(64)
bank.add(np.random.default_rng(0).normal(size=(4000, 64)), np.zeros(4000, int))
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
for path in sys.argv[1:]:
    try:
        bank.save(path)
    except OSError as full:
        print("OSError", full.errno)
"""
    command = [sys.executable, "-c", script, tmp_path / "bank", tmp_path / "new"]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["OSError", "27"] * 2, done.stderr
    assert content(tmp_path / "bank") == before
    assert content(tmp_path / "new") == {}
    assert MemoryBank.load(tmp_path / "bank").ids == old.ids


# --- reading what is damaged or foreign


def refused(path, name=None):
    with pytest.raises(CorruptModel) as caught:
        MemoryBank.load(path)
    assert (name or path.name) in str(caught.value)
    return str(caught.value)


def test_a_missing_folder_or_manifest_is_named(tmp_path):
    assert "no such folder" in refused(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", MANIFEST)
    (tmp_path / "file").write_bytes(b"x")
    assert "this is a file" in refused(tmp_path / "file")


def test_every_truncation_is_refused_and_the_file_named(saved):
    for name, whole in content(saved).items():
        for length in {0, 1, len(whole) // 2, len(whole) - 1}:
            (saved / name).write_bytes(whole[:length])
            refused(saved, name)
        (saved / name).write_bytes(whole + b"\0")
        refused(saved, name)
        (saved / name).unlink()
        refused(saved, name)
        (saved / name).write_bytes(whole)
    MemoryBank.load(saved)


def test_every_single_bit_flip_is_refused_and_the_file_named(saved):
    seed = int(np.random.SeedSequence().generate_state(1)[0])
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    for name, whole in content(saved).items():
        every = 8 * len(whole)
        flips = rng.permutation(every)[: 300 if name == MANIFEST else 60].tolist()
        for bit in flips:
            damaged = bytearray(whole)
            damaged[bit // 8] ^= 1 << bit % 8
            (saved / name).write_bytes(damaged)
            with pytest.raises(CorruptModel) as caught:
                read_folder(saved, "bank")
            assert name in str(caught.value), f"bit {bit} of {name}"
        (saved / name).write_bytes(whole)
    MemoryBank.load(saved)


class Payload:
    """Touches a file when unpickled."""

    def __init__(self, target):
        self.target = str(target)

    def __reduce__(self):
        return open, (self.target, "w")


def foreign(kind, target, folder):
    if kind == "pickle":
        return pickle.dumps(Payload(target))
    if kind == "zip":  # as torch.save writes
        with zipfile.ZipFile(folder / "archive.zip", "w") as archive:
            archive.writestr("archive/data.pkl", pickle.dumps(Payload(target)))
        return (folder / "archive.zip").read_bytes()
    if kind == "numpy":
        np.save(folder / "objects.npy", np.array([Payload(target)], object), allow_pickle=True)
        return (folder / "objects.npy").read_bytes()
    return b"[" * 100_000 if kind == "deep" else b"just some text"


@pytest.mark.parametrize("kind", ["pickle", "zip", "numpy", "text", "deep"])
def test_a_foreign_file_is_refused_and_nothing_in_it_is_run(saved, tmp_path, kind):
    touched = tmp_path / "touched"
    other = foreign(kind, touched, tmp_path)
    for name, whole in content(saved).items():
        (saved / name).write_bytes(other)
        refused(saved, name)
        (saved / name).write_bytes(whole)
    (tmp_path / "model.bin").write_bytes(other)
    refused(tmp_path / "model.bin")
    assert not touched.exists()
    if kind == "pickle":
        pickle.loads(other).close()
        assert touched.exists(), "the payload itself would have touched it"


@pytest.mark.parametrize("part", ["bank.json", "rows.json", "rows.safetensors", "index.faiss"])
@pytest.mark.parametrize("kind", ["pickle", "zip", "text", "deep"])
def test_a_foreign_file_with_a_true_checksum_is_refused_too(tmp_path, kind, part):
    touched = tmp_path / "touched"
    files = filled(index="hnsw").to_files()
    write_folder(tmp_path / "bank", "bank", {**files, part: foreign(kind, touched, tmp_path)})
    with pytest.raises(CorruptModel):
        MemoryBank.load(tmp_path / "bank")
    assert not touched.exists()


@pytest.mark.parametrize("part", ["bank.json", "rows.json", "rows.safetensors"])
def test_a_manifest_that_leaves_a_file_out_is_refused(tmp_path, part):
    files = filled().to_files()
    del files[part]
    write_folder(tmp_path, "bank", files)
    with pytest.raises(CorruptModel, match="json"):
        MemoryBank.load(tmp_path)


def test_parts_of_two_banks_do_not_make_one(tmp_path):
    ours, other = filled(rows=30, index="hnsw").to_files(), filled(rows=20, index="hnsw").to_files()
    wider = filled(rows=30, dim=7, index="hnsw").to_files()
    for stranger in (other, wider):
        for part in ("rows.json", "rows.safetensors", "index.faiss"):
            write_folder(tmp_path, "bank", {**ours, part: stranger[part]})
            with pytest.raises(CorruptModel):
                MemoryBank.load(tmp_path)


@pytest.mark.parametrize("number", [FORMAT + 1, 10**9])
def test_a_future_format_asks_for_an_upgrade(saved, number):
    manifest = json.loads((saved / MANIFEST).read_text())
    seal(saved, {**manifest, "format": number})
    assert "upgrade attnknn" in refused(saved, MANIFEST)
    (saved / MANIFEST).write_text(json.dumps({"attnknn": "folder", "format": number, "who": "knows"}))
    assert "upgrade attnknn" in refused(saved, MANIFEST)


def test_a_folder_of_another_kind_is_refused(tmp_path):
    write_folder(tmp_path, "classifier", {"a.json": b"{}"})
    assert "holds a classifier, not a bank" in refused(tmp_path, MANIFEST)


@pytest.mark.parametrize(
    "name",
    ["../secret", "/etc/passwd", "..", ".", "", "sub/secret", "..\\secret", "a\0b", "x" * 300, 5, None, ["a"]],
)
def test_a_manifest_cannot_point_outside_its_folder(saved, name):
    (saved.parent / "secret").write_bytes(b"secret")
    (saved / "sub").mkdir()
    (saved / "sub" / "secret").write_bytes(b"secret")
    manifest = json.loads((saved / MANIFEST).read_text())
    entry = {"file": name, "sha256": hashlib.sha256(b"secret").hexdigest(), "bytes": 6}
    seal(saved, {**manifest, "files": {**manifest["files"], "bank.json": entry}})
    refused(saved)


@pytest.mark.parametrize("files", [None, [], "text", {"bank.json": 5}, {"bank.json": {}}, {"a": {"file": "a"}}])
def test_a_list_of_files_that_makes_no_sense_is_refused(saved, files):
    manifest = json.loads((saved / MANIFEST).read_text())
    seal(saved, {**manifest, "files": files})
    with pytest.raises(CorruptModel):
        MemoryBank.load(saved)


def test_our_own_files_hold_no_pickle(saved):
    for name, whole in content(saved).items():
        assert name.endswith((".json", ".safetensors", ".faiss")), name
        assert not whole.startswith(b"\x80"), name
        if name.endswith(".json"):
            json.loads(whole)
        with pytest.raises(Exception):  # noqa: B017 - whatever pickle says, it must not succeed
            pickle.loads(whole)


# --- several processes

WRITER = """
import sys, time
from pathlib import Path
from attnknn.bank.folder import write_folder
who, path, seconds = sys.argv[1].encode(), sys.argv[2], float(sys.argv[3])
print("ready", flush=True)
sys.stdin.readline()
turn, stop = 0, time.monotonic() + seconds
while time.monotonic() < stop:
    turn += 1
    mark = who + b" %d " % turn
    write_folder(path, "thing", {f"part_{at}.json": mark * 2000 for at in "ab"})
print(turn)
"""


def started(*arguments):
    command = [sys.executable, "-c", WRITER, *map(str, arguments)]
    writer = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT)
    assert writer.stdout.readline() == "ready\n"
    return writer


def test_two_processes_saving_one_folder_never_mix_and_a_reader_always_reads(tmp_path):
    writers = [started(who, tmp_path, 1.8) for who in ("one", "two")]
    write_folder(tmp_path, "thing", {"part_a.json": b"start", "part_b.json": b"start"})
    for writer in writers:
        writer.stdin.write("go\n")
        writer.stdin.flush()
    seen, loads = set(), 0
    while any(writer.poll() is None for writer in writers):
        files = read_folder(tmp_path, "thing")
        assert files["part_a.json"] == files["part_b.json"], "parts of two saves"
        seen.add(files["part_a.json"][:3])
        loads += 1
    turns = [int(writer.communicate()[0]) for writer in writers]
    print(f"{turns} saves, {loads} loads")
    assert min(turns) > 3
    assert loads > 10
    assert seen >= {b"one", b"two"}
    assert len(content(tmp_path)) <= 5
