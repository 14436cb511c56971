"""A training that was killed ends as if it had not been; what is not its checkpoint is refused."""

from __future__ import annotations

import copy
import hashlib
import io
import pickle
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

from attnknn.errors import CorruptModel, InvalidInput
from attnknn.train.checkpoint import FORMAT, read_checkpoint, write_checkpoint
from attnknn.train.loop import LoopOptions, run

OPTIONS = LoopOptions(epochs=6, lr=0.05, ema=0.7, weight_decay=0.01, clip=1.0, warmup=0.2, validate_first=True)
SGD = replace(OPTIONS, optimizer="sgd", momentum=0.8, ema=None, validate_first=False)


class Fit:
    """Draws from the generator and from torch, keeps batch statistics, is best in the middle."""

    steps = 3

    def __init__(self, width=8, pause=0.0):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            layers = nn.Linear(4, width), nn.BatchNorm1d(width), nn.Dropout(0.4), nn.Linear(width, 3)
            self.model = nn.Sequential(*layers)
            self.x, self.y = torch.randn(30, 4), torch.randint(3, (30,))
        self.pause = pause
        self.trained = 0

    def batches(self, random):
        return torch.randperm(30, generator=random).chunk(3)

    def losses(self, batch, random):
        time.sleep(self.pause)
        self.trained += 1
        noisy = self.x[batch] + torch.randn(len(batch), 4, generator=random)
        return {"ce": functional.cross_entropy(self.model(noisy), self.y[batch])}

    def validate(self):
        done = float(self.model[1].num_batches_tracked) / self.steps
        return {"nll": abs(done - 4) + 0.5, "right": min(done, 2) / 8}  # best at epoch 4, or first at epoch 2


def numbers(history):
    return [{name: each[name] for name in each if name != "seconds"} for each in history.epochs]


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module", params=[OPTIONS, SGD], ids=["adamw", "sgd"])
def whole(request):
    """A run that nothing interrupts, its task and options."""
    task = Fit()
    return run(task, request.param, seed=3), task, request.param


def assert_equal_runs(history, task, wanted, wanted_task):
    assert numbers(history) == numbers(wanted)
    assert (history.best_epoch, history.best_nll) == (wanted.best_epoch, wanted.best_nll)
    for ours, theirs in zip(
        task.model.state_dict().values(), wanted_task.model.state_dict().values(), strict=True
    ):
        assert ours.equal(theirs)


def stop_after(epoch):
    def on_epoch(done):
        if done["epoch"] == epoch:
            raise KeyboardInterrupt

    return on_epoch


@pytest.mark.parametrize("last", [1, 3, 5])
def test_an_interrupted_run_ends_as_if_it_had_not_been(whole, last, tmp_path):
    wanted, wanted_task, options = whole
    file = tmp_path / "new" / "run.pt"
    with pytest.raises(KeyboardInterrupt):
        run(Fit(), options, seed=3, checkpoint=file, on_epoch=stop_after(last))
    task = Fit()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(99)  # whatever the new process has drawn
        history = run(task, options, seed=3, checkpoint=file)
    assert task.trained == 3 * (6 - last)
    assert_equal_runs(history, task, wanted, wanted_task)
    assert wanted.best_epoch == 4  # neither the first nor the last: the best must have been saved too


@pytest.mark.parametrize("last", [1, 2, 3, 5])
def test_an_interrupted_run_knows_which_epoch_had_the_most_of_a_score(last, tmp_path):
    options, file, told = replace(OPTIONS, best="right", validate_first=False), tmp_path / "run.pt", []
    wanted_task, task = Fit(), Fit()
    wanted = run(wanted_task, options, seed=3)
    assert wanted.best_epoch == 2  # of those that are equal the first
    with pytest.raises(KeyboardInterrupt):
        run(Fit(), options, seed=3, checkpoint=file, on_epoch=stop_after(last))
    history = run(task, options, seed=3, checkpoint=file, on_epoch=told.append)
    assert_equal_runs(history, task, wanted, wanted_task)
    assert [each["best_epoch"] for each in told] == [2] * (6 - last)


def test_an_error_within_an_epoch_loses_that_epoch_only(whole, tmp_path):
    wanted, wanted_task, options = whole

    class Failing(Fit):
        def losses(self, batch, random):
            if self.trained == 10:
                raise OSError("the disk is gone")
            return super().losses(batch, random)

    with pytest.raises(OSError, match="disk"):
        run(Failing(), options, seed=3, checkpoint=tmp_path / "run.pt")
    task = Fit()
    history = run(task, options, seed=3, checkpoint=tmp_path / "run.pt")
    assert task.trained == 9
    assert_equal_runs(history, task, wanted, wanted_task)


CHILD = """
import sys
sys.path.insert(0, sys.argv[1])
import torch
torch.set_num_threads(1)
from pathlib import Path
from test_checkpoint import OPTIONS, Fit, run
said = lambda done: print(int(done["epoch"]), flush=True)
run(Fit(pause=0.05), OPTIONS, seed=3, checkpoint=Path(sys.argv[2]), on_epoch=said)
"""


def test_a_killed_process_leaves_what_the_next_one_continues(tmp_path):
    file = tmp_path / "run.pt"
    arguments = [sys.executable, "-c", CHILD, str(Path(__file__).parent), str(file)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as child:
        for line in child.stdout:
            if line.strip() == "2":
                time.sleep(0.07)  # into the steps of the third epoch
                child.send_signal(signal.SIGKILL)
                break
    assert child.returncode == -signal.SIGKILL
    (tmp_path / "run.pt.tmp").write_bytes(b"half of")  # as a kill while it saves would leave it
    wanted_task, task = Fit(), Fit()
    wanted = run(wanted_task, OPTIONS, seed=3)
    history = run(task, OPTIONS, seed=3, checkpoint=file)
    assert 0 < task.trained <= 12
    assert_equal_runs(history, task, wanted, wanted_task)
    assert [each.name for each in tmp_path.iterdir()] == ["run.pt"]


def test_a_finished_run_returns_at_once(whole, tmp_path):
    wanted, wanted_task, options = whole
    file = tmp_path / "run.pt"
    run(Fit(), options, seed=3, checkpoint=file)
    before, task = file.read_bytes(), Fit()
    history = run(task, options, seed=3, checkpoint=file, on_epoch=stop_after(6))
    assert task.trained == 0
    assert file.read_bytes() == before
    assert_equal_runs(history, task, wanted, wanted_task)


def test_a_run_that_stopped_early_stays_stopped(tmp_path):
    options = replace(OPTIONS, epochs=20, patience=2)
    histories = [run(Fit(), options, seed=3, checkpoint=tmp_path / "run.pt") for _ in range(2)]
    assert histories[0] == histories[1]
    assert histories[0].stopped_early
    assert len(histories[0].epochs) == 7  # 0 to 6, the best being 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"fingerprint": "other"}, "fingerprint is data there, other here"),
        ({"seed": 4}, "seed is 3 there, 4 here"),
        ({"options": replace(OPTIONS, lr=0.1)}, r"lr is 0\.05 there, 0\.1 here"),
        ({"options": replace(OPTIONS, lr_scales={"0": 0.5})}, r"lr_scales is \{\} there, \{'0': 0\.5\} here"),
        (
            {"options": replace(OPTIONS, ema=None, epochs=9)},
            "epochs is 6 there, 9 here; ema is 0.7 there, None here",
        ),
        ({"task": Fit(width=9)}, r"model is Sequential with 9 tensors \(\w+\) there, Sequential .* here"),
    ],
)
def test_the_checkpoint_of_another_training_is_refused_with_the_reason(change, message, tmp_path):
    given = {"task": Fit(), "options": OPTIONS, "seed": 3, "fingerprint": "data"}
    file = tmp_path / "run.pt"
    with pytest.raises(KeyboardInterrupt):
        run(**given, checkpoint=file, on_epoch=stop_after(0))
    before = file.read_bytes()
    only = f"of another training: {message}; choose another folder"  # nothing else is said to differ
    with pytest.raises(InvalidInput, match=only) as refused:
        run(**(given | change), checkpoint=file)
    assert str(file) in str(refused.value)
    assert file.read_bytes() == before


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"layer": "b"}, "layer is a there, b here"),
        ({"K": 4, "data": "cd"}, "K is 3 there, 4 here; data is ab there, cd here"),
        ({"task": Fit(width=9), "K": 4}, "K is 3 there, 4 here"),  # and with it the model
    ],
)
def test_what_has_a_name_is_told_by_its_name(tmp_path, other, message):
    named, file = {"layer": "a", "K": 3, "data": "ab"}, tmp_path / "run.pt"
    with pytest.raises(KeyboardInterrupt):
        run(Fit(), OPTIONS, seed=3, fingerprint=named, checkpoint=file, on_epoch=stop_after(0))
    task = other.get("task", Fit())
    changed = {**named, **{name: each for name, each in other.items() if name != "task"}}
    with pytest.raises(InvalidInput, match=f"of another training: {message}; choose another folder"):
        run(task, OPTIONS, seed=3, fingerprint=changed, checkpoint=file)
    run(Fit(), OPTIONS, seed=3, fingerprint=named, checkpoint=file)


def test_options_count_whether_they_have_a_name_or_not(tmp_path):
    file = tmp_path / "run.pt"
    with pytest.raises(KeyboardInterrupt):
        run(Fit(), OPTIONS, seed=3, fingerprint={"data": "ab"}, checkpoint=file, on_epoch=stop_after(0))
    changed = replace(OPTIONS, lr=0.1)
    with pytest.raises(
        InvalidInput, match=r"of another training: loop is \{.*'lr': 0\.05.* there, \{.*'lr': 0\.1"
    ):
        run(Fit(), changed, seed=3, fingerprint={"data": "ab"}, checkpoint=file)


@pytest.mark.parametrize("name", ["seed", "loop", "model"])
def test_a_fingerprint_cannot_stand_for_what_is_compared_anyway(name):
    with pytest.raises(InvalidInput, match=f"fingerprint must not name '{name}'"):
        run(Fit(), OPTIONS, seed=3, fingerprint={name: 1})


def damaged(content):
    yield b""
    yield b"hello"
    yield content[: len(content) // 2]
    yield content + b"\0"
    for at in range(0, len(content), len(content) // 11):
        yield content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :]


def test_a_damaged_file_is_named_whatever_the_damage(tmp_path):
    file = tmp_path / "run.pt"
    with pytest.raises(KeyboardInterrupt):
        run(Fit(), OPTIONS, seed=3, checkpoint=file, on_epoch=stop_after(0))
    for content in damaged(file.read_bytes()):
        file.write_bytes(content)
        task = Fit()
        with pytest.raises(CorruptModel, match=r"run\.pt"):
            run(task, OPTIONS, seed=3, checkpoint=file)
        assert task.trained == 0
        assert file.read_bytes() == content


class Mischief:
    def __reduce__(self):
        return Path.touch, (Path("mischief"),)


def test_a_forged_file_runs_no_code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    held = io.BytesIO()
    torch.save({"identity": {}, "state": Mischief()}, held)
    for body in (held.getvalue(), pickle.dumps(Mischief())):
        digest = hashlib.sha256(body).hexdigest()
        Path("run.pt").write_bytes(f"attnknn checkpoint {FORMAT} {digest}\n".encode() + body)
        with pytest.raises(CorruptModel, match=r"run\.pt cannot be read"):
            read_checkpoint(Path("run.pt"), {})
        assert not Path("mischief").exists()


def test_a_checkpoint_of_an_older_version_is_told_as_such(tmp_path):
    file = tmp_path / "run.pt"
    file.write_bytes(f"attnknn checkpoint {FORMAT - 1} {'0' * 64}\n".encode())
    with pytest.raises(CorruptModel, match=rf"has format {FORMAT - 1}, this version reads {FORMAT} .*remove it"):
        read_checkpoint(file, {})


def test_a_save_that_fails_leaves_the_one_before(tmp_path, monkeypatch):
    file = tmp_path / "run.pt"
    write_checkpoint(file, {"seed": "1"}, {"value": torch.arange(3)})

    def full(handle):
        raise OSError("no space left")

    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", full)
        with pytest.raises(OSError, match="no space"):
            write_checkpoint(file, {"seed": "1"}, {"value": torch.arange(4)})
    assert read_checkpoint(file, {"seed": "1"})["value"].tolist() == [0, 1, 2]
    write_checkpoint(file, {"seed": "1"}, {"value": torch.arange(5)})
    assert len(read_checkpoint(file, {"seed": "1"})["value"]) == 5


def test_a_state_comes_back_as_it_was(tmp_path):
    state = {
        "tensor": torch.randn(2, 3),
        "list": [1, 2.5, None, "text"],
        "nested": {"flag": True, "inf": float("inf")},
    }
    write_checkpoint(tmp_path / "x.pt", {}, copy.deepcopy(state))
    back = read_checkpoint(tmp_path / "x.pt", {})
    assert back.pop("tensor").equal(state.pop("tensor"))
    assert back == state
    assert read_checkpoint(tmp_path / "absent.pt", {}) is None
