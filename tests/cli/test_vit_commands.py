"""``attnknn vit``: the source document's commands, what they write, and how mistakes are told."""

from __future__ import annotations

import json
import re
import shutil

import numpy as np
import pytest
import torch

from attnknn.cli import vit_flags
from attnknn.data.png import png
from attnknn.errors import InvalidInput
from attnknn.estimator import options as estimator_options
from attnknn.study import vit_run
from attnknn.study.claims import claimed
from attnknn.vit import ViTOptions, memory
from attnknn.vit.memory import least_need
from attnknn.vit.training import ViTTask

SMALL = (
    *("--resize", 16, "--patch_size", 8, "--num_layers", 2, "--d_hidden", 12, "--d_mlp", 24, "--num_heads", 2),
    *("--num_epochs", 2, "--batch_size", 16, "--device", "cpu", "--K", 3),
)
LINE = re.compile(
    r"\[Epoch \d{3}\] Time: \d+\.\d{4}s \| \[Train\] Loss: \d+\.\d{8} Accuracy: Top1: \d+\.\d{4}%, "
    r"Top5: \d+\.\d{4}% \| \[Val\] Loss: \d+\.\d{8} Accuracy: Top1: \d+\.\d{4}%, Top5: \d+\.\d{4}%"
)


def picture(random, bright):
    image = random.integers(0, 100, (20, 24, 3)).astype(np.uint8)
    image[: 10 if bright else 20, :12] += 120
    return png(image)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """A folder with two classes."""
    root, random = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for name in ("low", "tall"):
        (root / name).mkdir()
        for at in range(24):
            (root / name / f"{at}.png").write_bytes(picture(random, name == "low"))
    return root


@pytest.fixture(scope="module")
def run(tmp_path_factory, attnknn, photos):
    """A training that tests only read."""
    out = tmp_path_factory.mktemp("runs") / "convnn"
    attnknn("vit", "train", "--dataset", photos, "--layer", "ConvNNAttention", *SMALL, "--output_dir", out)
    return out


def test_a_training_writes_all_that_the_document_names(run):
    lines = (run / "train_eval_results.txt").read_text().splitlines()
    assert re.fullmatch(
        r"Model Complexity \(Profiler\): GFLOPs: \d+\.\d{8}, Trainable Parameters: \d+\.\d{8} M", lines[0]
    )
    assert LINE.fullmatch(lines[1])
    assert LINE.fullmatch(lines[2])
    assert lines[3] == ""
    assert re.fullmatch(r"Average Epoch Time: \d+\.\d{4}s", lines[4])
    assert re.fullmatch(r"Max Accuracy: \d+\.\d{4}% at Epoch [12]", lines[5])
    assert re.fullmatch(r"\[Test\] Loss: \d+\.\d{8} Accuracy: Top1: \d+\.\d{4}%, Top5: 100.0000%", lines[6])
    told = dict(line.split(": ", 1) for line in (run / "args.txt").read_text().splitlines())
    assert told["layer"] == "ConvNNAttention"
    assert told["K"] == "3"
    assert told["lr"] == "0.001"
    assert told["num_classes"] == "2"
    assert told["img_size"] == "(3, 16, 16)"
    assert told["model"] == "VIT"
    parameters = json.loads((run / "results.json").read_text())["parameters"]
    assert told["total_params"] == told["trainable_params"] == str(parameters["all"])
    assert "MultiHeadConvNNAttention" in (run / "model.txt").read_text()
    results = json.loads((run / "results.json").read_text())
    assert results["config"]["K"] == 3
    assert len(results["epochs"]) == 2
    assert results["data"] == {"name": results["data"]["name"], "train": 34, "validation": 4, "test": 10}
    assert (run / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert (run / "last.pt").is_file()
    assert (run / "best" / "manifest.json").is_file()


def test_test_gives_what_the_training_found(run, attnknn, photos):
    found = attnknn.json("vit", "test", "--output_dir", run, "--dataset", photos, "--device", "cpu")
    assert found["test"] == json.loads((run / "results.json").read_text())["test"]
    only = attnknn.json("vit", "train", "--test_only", "--output-dir", run, "--dataset", photos, "--device", "cpu")
    assert only["test"] == found["test"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("--layer", "KvtAttention"), "layer is ConvNNAttention there, KvtAttention here; leave"),
        (("--d_hidden", 192), "another model: d_hidden is 12 there, 192 here; leave"),  # though it is the default
        (("--K", 4, "--num-heads", 1), "num_heads is 2 there, 1 here; K is 3 there, 4 here; leave"),
        (("--resize", 32), "resize is 16 there, 32 here"),
        (("--seed", 3), "seed is 0 there, 3 here"),
        (("--use_amp", "--criterion", "MSE"), "criterion is CrossEntropy there, MSE here; use_amp is False there"),
    ],
)
def test_a_test_with_flags_of_another_model_is_refused_by_their_names(run, attnknn, photos, given, message):
    told = attnknn.refused("vit", "train", "--test_only", "--output_dir", run, "--dataset", photos, *given)
    assert message in told


def test_a_test_takes_flags_that_agree_or_that_the_model_does_not_read(run, attnknn, photos):
    given = ("--layer", "ConvNNAttention", *SMALL, "--window_size", 7, "--kernel_size", 3, "--lr", 0.5)
    attnknn("vit", "train", "--test_only", "--output_dir", run, "--dataset", photos, *given)
    base = ("vit", "test", "--output_dir", run, "--dataset", photos, "--device", "cpu")
    attnknn(*base, "--resize", 16)
    assert "resize is 16 there, 224 here" in attnknn.refused(*base, "--resize", 224)


def test_a_finished_training_is_not_done_again(run, attnknn, photos):
    before = json.loads((run / "results.json").read_text())["epochs"]
    attnknn("vit", "train", "--dataset", photos, "--layer", "ConvNNAttention", *SMALL, "--output-dir", run)
    assert json.loads((run / "results.json").read_text())["epochs"] == before
    told = attnknn.refused(
        *("vit", "train", "--dataset", photos, "--layer", "ConvNNAttention", *SMALL, "--output-dir", run),
        *("--lr", 0.5),
    )
    assert "another training" in told
    assert "lr is 0.001 there, 0.5 here" in told
    assert len(told) < 500
    assert "lr: 0.001" in (run / "args.txt").read_text()  # of the run that is there


@pytest.mark.parametrize(
    ("given", "messages"),
    [
        (("--K", 2), ["another training: K is 3 there, 2 here; choose another folder (--output_dir)"]),
        (("--layer", "KvtAttention"), ["layer is ConvNNAttention there, KvtAttention here; choose"]),
        (
            ("--d_hidden", 24, "--batch_size", 8),
            ["d_hidden is 12 there, 24 here; batch_size is 16 there, 8 here; c"],
        ),
        (("--resize", 24), ["img_size is 16 there, 24 here"]),
        (("--noise", 0.5, "--seed", 3), ["noise is 0.0 there, 0.5 here", "seed is 0 there, 3 here"]),
        (("--select", "loss"), ["another training: select is accuracy there, loss here; choose"]),
        (
            ("--num_epochs", 3, "--use_amp"),
            ["num_epochs is 2 there, 3 here; use_amp is False there, True here; choose"],
        ),
        (("--scheduler", "step"), ["scheduler is none there, step here; lr_step is None there, 20 here"]),
    ],
)
def test_what_another_run_in_the_folder_differs_in_is_told_by_name(run, attnknn, photos, given, messages):
    before = (run / "last.pt").read_bytes()
    base = ("--dataset", photos, "--layer", "ConvNNAttention", *SMALL, "--output_dir", run)
    told = attnknn.refused("vit", "train", *base, *given)
    assert all(each in told for each in messages), told
    assert not re.search(r"[0-9a-f]{32}", told)
    assert (run / "last.pt").read_bytes() == before


def test_options_that_nothing_reads_are_no_other_training(run, attnknn, photos, tmp_path):
    own = shutil.copytree(run, tmp_path / "run")
    base = ("--dataset", photos, "--layer", "ConvNNAttention", *SMALL, "--output_dir", own)
    attnknn("vit", "train", *base, "--lr_gamma", 0.5, "--lr_step", 3, "--momentum", 0.1)
    attnknn("vit", "train", *base, "--kernel_size", 5, "--window_size", 3, "--sparse_mode", "local")


def test_of_two_trainings_at_once_in_one_folder_the_second_is_refused(attnknn, photos, tmp_path):
    given = ("vit", "train", "--dataset", photos, *SMALL, "--num_epochs", 1, "--output_dir", tmp_path / "run")
    with claimed(tmp_path / "run" / vit_run.CLAIM) as mine:
        assert mine
        told = attnknn.refused(*given)
        assert [file.name for file in (tmp_path / "run").iterdir()] == [vit_run.CLAIM]
    assert f"another training writes to {tmp_path / 'run'}: wait until" in told
    assert told.endswith("(--output_dir)")
    attnknn(*given)


def test_a_training_claims_its_folder_until_it_ends(attnknn, photos, tmp_path, monkeypatch):
    batches, found = ViTTask.batches, []

    def watched(task, random):
        with claimed(tmp_path / vit_run.CLAIM) as mine:
            found.append(mine)
        return batches(task, random)

    monkeypatch.setattr(ViTTask, "batches", watched)
    attnknn("vit", "train", "--dataset", photos, *SMALL, "--output_dir", tmp_path)
    assert found == [False, False]
    with claimed(tmp_path / vit_run.CLAIM) as mine:
        assert mine


def test_what_a_plain_layer_does_not_read_is_no_other_training(attnknn, photos, tmp_path):
    given = ("vit", "train", "--dataset", photos, *SMALL, "--num_epochs", 1, "--output_dir", tmp_path / "run")
    attnknn(*given)
    before = (tmp_path / "run" / "last.pt").read_bytes()
    attnknn(*given, "--K", 5, "--magnitude_type", "cosine")
    assert (tmp_path / "run" / "last.pt").read_bytes() == before


def test_other_images_are_told_apart_by_a_short_word(run, attnknn, photos, tmp_path):
    other = shutil.copytree(photos, tmp_path / "photos")
    (other / "low" / "0.png").write_bytes((other / "low" / "1.png").read_bytes())
    base = ("--layer", "ConvNNAttention", *SMALL, "--output_dir", run)
    told = attnknn.refused("vit", "train", "--dataset", other, *base)
    assert re.search(r"another training: data is [0-9a-f]{12} there, [0-9a-f]{12} here; choose", told)


def test_a_set_that_is_absent_is_told_with_the_flag_of_this_command(attnknn, tmp_path, monkeypatch):
    monkeypatch.delenv("ATTNKNN_DATA", raising=False)
    given = ("--dataset", "cifar10", "--data_path", tmp_path, *SMALL, "--output_dir", tmp_path / "run")
    told = attnknn.refused("vit", "train", *given)
    assert "--data_path" in told
    assert "--data-dir" not in told


@pytest.mark.parametrize("select", ["accuracy", "loss"])
def test_a_training_that_was_killed_leaves_the_best_epoch_so_far(attnknn, photos, tmp_path, monkeypatch, select):
    given = ("--dataset", photos, *SMALL, "--lr", 1e-5, "--select", select)
    attnknn("vit", "train", *given, "--num_epochs", 3, "--output_dir", tmp_path / "whole")
    whole = json.loads((tmp_path / "whole" / "results.json").read_text())
    chosen = [each["validation_top1" if select == "accuracy" else "validation_nll"] for each in whole["epochs"]]
    best = max(chosen) if select == "accuracy" else min(chosen)
    assert whole["best_epoch"] == 1 + chosen.index(best)
    batches, begun = ViTTask.batches, []

    def killed(task, random):
        begun.append(1)
        if len(begun) == 4:
            raise KeyboardInterrupt
        return batches(task, random)

    with monkeypatch.context() as patched:
        patched.setattr(ViTTask, "batches", killed)
        attnknn("vit", "train", *given, "--num_epochs", 9, "--output_dir", tmp_path / "part", code=130)
    assert not (tmp_path / "part" / "results.json").exists()
    asked = ("vit", "test", "--dataset", photos, "--device", "cpu", "--output_dir", tmp_path / "part")
    assert attnknn.json(*asked)["test"] == whole["test"]


def test_a_folder_is_dealt_out_for_the_test_as_it_was_for_the_training(attnknn, photos, tmp_path):
    given = ("--dataset", photos, *SMALL, "--seed", 5, "--output_dir", tmp_path / "run")
    attnknn("vit", "train", *given)
    found = attnknn.json("vit", "test", "--dataset", photos, "--device", "cpu", "--output_dir", tmp_path / "run")
    assert found["test"] == json.loads((tmp_path / "run" / "results.json").read_text())["test"]


@pytest.mark.parametrize("scheduler", ["none", "plateau"])
def test_a_squared_error_is_not_called_a_likelihood(attnknn, photos, tmp_path, monkeypatch, scheduler):
    drawn, draw = [], vit_run.training_curves
    monkeypatch.setattr(vit_run, "training_curves", lambda *given: drawn.append(given[0]) or draw(*given))
    base = ("--dataset", photos, *SMALL, "--criterion", "MSE", "--select", "loss", "--scheduler", scheduler)
    for _ in range(2):  # the second goes on from the checkpoint
        attnknn("vit", "train", *base, "--output_dir", tmp_path)
        results = json.loads((tmp_path / "results.json").read_text())
        losses = [each["validation_mse"] for each in results["epochs"]]
        assert "nll" not in (tmp_path / "results.json").read_text()
        assert results["best_epoch"] == 1 + losses.index(min(losses))
        log = (tmp_path / "train_eval_results.txt").read_text()
        assert [f"{loss:.8f}" for loss in losses] == re.findall(r"\[Val\] Loss: (\S+)", log)
        assert [each["validation_mse"] for each in drawn.pop()] == losses


@pytest.mark.parametrize("said", ["false", "FALSE", "False"])
def test_true_and_false_may_be_written_in_any_case(attnknn, photos, tmp_path, said):
    given = ("--layer", "ConvNNAttention", "--softmax_topk_val", said, "--coordinate_encoding", said.swapcase())
    attnknn("vit", "train", "--dataset", photos, *SMALL, "--num_epochs", 1, *given, "--output_dir", tmp_path)
    config = json.loads((tmp_path / "results.json").read_text())["config"]
    assert (config["softmax_topk_val"], config["coordinate_encoding"]) == (False, False)
    base = ("vit", "test", "--dataset", photos, "--output_dir", tmp_path, "--device", "cpu")
    assert attnknn.json(*base)["test"]
    other = ("vit", "train", "--test_only", *base[2:], "--coordinate_encoding", "tRUE")
    assert "coordinate_encoding is False there, True here" in attnknn.refused(*other)


def test_too_few_images_are_told(attnknn, tmp_path):
    random = np.random.default_rng(0)
    for name in ("a$b", "c"):
        (tmp_path / "few" / name).mkdir(parents=True)
        (tmp_path / "few" / name / "0.png").write_bytes(picture(random, True))
    told = attnknn.refused("vit", "train", "--dataset", tmp_path / "few", *SMALL, "--output_dir", tmp_path / "run")
    assert "there must be more" in told


def test_layers_are_listed_with_their_options(attnknn):
    found = attnknn.json("vit", "layers")["layers"]
    names = [each["layer"] for each in found]
    assert names == list(vit_flags.MODEL[0].kind)
    options = {each["layer"]: each["options"] for each in found}
    assert "sparse_mode" in options["SparseAttention"]
    assert "K" in options["KvtAttention"]
    assert "ConvNNAttention" in attnknn("vit", "layers").stdout


def test_what_is_kept_can_be_looked_at(run, attnknn, photos, tmp_path):
    out = tmp_path / "kept.svg"
    attnknn("vit", "show", run, photos / "low" / "0.png", "--token", "1,0", "--out", out)
    assert out.read_text().count("<svg") == 1
    assert "1,2" in attnknn.refused("vit", "show", run, photos / "low" / "0.png", "--token", "1,2", "--out", out)
    assert "row and column" in attnknn.refused("vit", "show", run, photos / "low" / "0.png", "--token", "x")
    assert "heads 0 to 1" in attnknn.refused("vit", "show", run, photos / "low" / "0.png", "--head", 7)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("--similarity_type", "Col"), "--similarity_type does not exist"),
        (("--aggregation-type", "Col"), "--aggregation_type does not exist"),
        (("--compile_mode", "reduce-memory"), "reduce-memory is no mode of torch.compile"),
        (("--layer", "Conv"), "'Conv' is not one of"),
        (("--num_heads", 5), "5"),
        (("--K", 0, "--layer", "ConvNNAttention"), "K must be"),
        (("--dataset", "no-such-set"), "no folder and no set of images is called 'no-such-set'"),
        (("--dataset", "iris"), "iris is a table"),
        (("--dataset", "imagenet", "--data_path", "no-such-folder"), "no ImageNet in no-such-folder"),
        (("--num_epochs", 0), "epochs"),
        (("--branch_ratio", 0.33, "--layer", "BranchAttention", "--num_heads", 4), "branch"),
        (("--resize", 0), "img_size"),
        (("--d_hidden", 0), "d_hidden must be"),
        (("--d_mlp", -5), "d_mlp must be"),
        (("--seed", 10**22), "--seed must be from 0"),
        (("--softmax_topk_val", "maybe"), "'maybe' is not one of"),
        (("--select", "top5"), "'top5' is not one of"),
        (("--d_hidden", 3_000_000), "GiB of memory, and cpu has"),
        (("--resize", 100_000, "--patch_size", 1), "GiB of memory, and cpu has"),
        (("--resize", 2 * 10**9), "no machine holds such a model"),
        (("--num_layers", 10**8), "GiB of memory, and cpu has"),
    ],
)
def test_mistakes_are_told_in_one_line(attnknn, tmp_path, given, message):
    assert message in attnknn.refused("vit", "train", *given, "--device", "cpu", "--output_dir", tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("below", ["", "runs/new"])
def test_a_file_in_the_place_of_the_folder_is_told_before_data_is_read(attnknn, tmp_path, below):
    (tmp_path / "notes").write_text("mine")
    given = ("--dataset", "no-such-set", *SMALL, "--output_dir", tmp_path / "notes" / below)
    assert "notes is a file; --output_dir names a folder" in attnknn.refused("vit", "train", *given)
    assert (tmp_path / "notes").read_text() == "mine"


@pytest.mark.parametrize("side", [3, 2000])
def test_a_side_that_files_are_not_brought_to_is_told_by_its_flag(attnknn, photos, tmp_path, side):
    given = (*SMALL, "--resize", side, "--output_dir", tmp_path / "run")
    assert f"--resize {side}: files are brought" in attnknn.refused("vit", "train", "--dataset", photos, *given)


def test_a_batch_that_no_memory_holds_is_told_in_one_line(attnknn, photos, tmp_path, monkeypatch):
    given = ("vit", "train", "--dataset", photos, *SMALL, "--num_epochs", 1, "--output_dir", tmp_path / "run")
    config = {"img_size": 16, "patch_size": 8, "num_layers": 2, "d_hidden": 12, "d_mlp": 24, "num_heads": 2}
    there = least_need(config, ViTOptions(batch_size=8), rows=34, held=4).total
    monkeypatch.setattr(memory, "memory_of", lambda device: there)
    told = attnknn.refused(*given, "--batch_size", 10**7)
    assert "to train with 34 images in a batch takes at least" in told
    assert "a smaller batch_size" in told
    assert not (tmp_path / "run").exists()
    attnknn(*given, "--batch_size", 8)


ALLOCATIONS = [
    (lambda: torch.empty(2**50), "4,194,304.0 GiB more were asked for"),
    (lambda: torch.empty(2**31, 2**31), "not enough memory: smaller batches"),
    (lambda: np.empty(2**50), "8.00 PiB more were asked for"),
    (lambda: raise_(MemoryError()), "not enough memory: smaller batches"),
    (
        lambda: raise_(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has")),
        "20.00 GiB more were asked for",
    ),
    (lambda: raise_(RuntimeError("CUDA error: out of memory\nCUDA kernel errors might")), "smaller batches"),
]


def raise_(problem):
    raise problem


@pytest.mark.parametrize(("allocate", "message"), ALLOCATIONS)
def test_memory_that_runs_out_is_told_in_one_line(attnknn, photos, tmp_path, monkeypatch, allocate, message):
    monkeypatch.setattr(ViTTask, "losses", lambda *given: allocate())
    given = ("vit", "train", "--dataset", photos, *SMALL, "--output_dir", tmp_path / "run")
    told = attnknn.refused(*given)
    assert told.startswith("error: there is not enough memory")
    assert message in told


def test_errors_that_are_none_of_memory_are_not_hidden(attnknn, photos, tmp_path, monkeypatch):
    monkeypatch.setattr(ViTTask, "losses", lambda *given: raise_(RuntimeError("the sizes of tensors must match")))
    with pytest.raises(RuntimeError, match="sizes of tensors"):
        attnknn("vit", "train", "--dataset", photos, *SMALL, "--output_dir", tmp_path / "run")


def test_a_model_that_is_not_there(attnknn, tmp_path):
    assert "no trained ViT in" in attnknn.refused("vit", "test", "--output_dir", tmp_path, "--device", "cpu")
    assert "no trained ViT in" in attnknn.refused("vit", "show", tmp_path, tmp_path / "a.png")


DOCUMENTED = {
    "layer": "Attention",
    "patch_size": 16,
    "num_layers": 12,
    "num_heads": 3,
    "d_hidden": 192,
    "d_mlp": 768,
    "dropout": 0.1,
    "attention_dropout": 0.1,
    "convolution_type": "depthwise",
    "softmax_topk_val": True,
    "K": 9,
    "sampling_type": "all",
    "num_samples": -1,
    "sample_padding": 0,
    "magnitude_type": "matmul",
    "coordinate_encoding": False,
    "kernel_size": 9,
    "branch_ratio": 0.5,
    "dataset": "cifar10",
    "resize": 224,
    "augment": False,
    "noise": 0.0,
    "batch_size": 256,
    "num_epochs": 150,
    "use_amp": False,
    "use_compiled": False,
    "compile_mode": "default",
    "clip_grad_norm": 1.0,
    "criterion": "CrossEntropy",
    "optimizer": "adamw",
    "lr": 1e-3,
    "weight_decay": 1e-6,
    "momentum": 0.9,
    "scheduler": "none",
    "lr_step": 20,
    "lr_gamma": 0.1,
    "seed": 0,
    "test_only": False,
}


def test_defaults_are_those_of_the_document():
    every = (*vit_flags.MODEL, *vit_flags.DATA, *vit_flags.TRAINING, *vit_flags.SYSTEM, vit_flags.TEST_ONLY)
    found = {flag.name: flag.default for flag in every}
    assert {name: found[name] for name in DOCUMENTED} == DOCUMENTED
    assert {"data_path", "device", "output_dir"} <= found.keys()


OTHER = {
    "layer": "KvtAttention",
    "patch_size": 4,
    "num_layers": 1,
    "num_heads": 3,
    "d_hidden": 24,
    "d_mlp": 36,
    "dropout": 0.3,
    "attention_dropout": 0.3,
    "pool": "mean",
    "positions": "learned",
    "final_norm": None,
    "convolution_type": "standard",
    "softmax_topk_val": "False",
    "K": 2,
    "sampling_type": "random",
    "magnitude_type": "cosine",
    "coordinate_encoding": "True",
    "resize": 24,
    "seed": 5,
    "augment": None,
    "noise": 0.5,
    "batch_size": 20,
    "num_epochs": 1,
    "use_amp": None,
    "clip_grad_norm": 0.01,
    "criterion": "MSE",
    "optimizer": "adam",
    "lr": 0.01,
    "weight_decay": 0.5,
    "scheduler": "cosine",
}
BESIDE = {
    "num_samples": ("--sampling_type", "random"),
    "sample_padding": ("--sampling_type", "spatial", "--num_samples", 2, "--resize", 32),
    "eval_sampling": ("--sampling_type", "random", "--num_samples", 2),
    "kernel_size": ("--layer", "BranchConv"),
    "branch_ratio": ("--layer", "BranchAttention", "--d_hidden", 16),
    "window_size": ("--layer", "LocalAttention"),
    "sparse_mode": ("--layer", "SparseAttention", "--sparse_context_window", 2),
    "sparse_context_window": ("--layer", "SparseAttention", "--sparse_mode", "local"),
    "momentum": ("--optimizer", "sgd"),
    "select": ("--lr", 1e-5, "--num_epochs", 3),  # too little to change an answer: the loss falls, all else stays
    "lr_step": ("--scheduler", "step"),
    "lr_gamma": ("--scheduler", "step", "--lr_step", 1),
}
VALUES = {
    "num_samples": 2,
    "sample_padding": 1,
    "eval_sampling": "all",
    "kernel_size": 3,
    "branch_ratio": 0.25,
    "window_size": 1,
    "sparse_mode": "strided",
    "sparse_context_window": 4,
    "momentum": 0.1,
    "select": "accuracy",
    "lr_step": 1,
    "lr_gamma": 0.9,
}


def outcome(attnknn, photos, out, *given):
    base = ("--dataset", photos, "--layer", "ConvNNAttention", *SMALL, "--select", "loss")
    attnknn("vit", "train", *base, *given, "--output_dir", out)
    found = json.loads((out / "results.json").read_text())
    return [each["loss_total"] for each in found["epochs"]], found["test"]["loss"], found["flops"]["total"]


@pytest.fixture(scope="module")
def usual(attnknn, photos, tmp_path_factory):
    """What comes out without a change, of each set of flags that go beside one."""
    known = {}

    def found(*beside):
        if beside not in known:
            known[beside] = outcome(attnknn, photos, tmp_path_factory.mktemp("usual") / "run", *beside)
        return known[beside]

    return found


@pytest.mark.parametrize("name", [*OTHER, *VALUES])
def test_every_flag_changes_what_comes_out(attnknn, photos, tmp_path, usual, name):
    value, beside = (OTHER | VALUES)[name], BESIDE.get(name, ())
    flag = (f"--{name}",) if value is None else (f"--{name}", value)
    assert outcome(attnknn, photos, tmp_path / "other", *beside, *flag) != usual(*beside)


SEEN_ELSEWHERE = {
    *("dataset", "data_path", "output_dir", "test_only"),  # by what is read and written
    *("device", "use_compiled", "compile_mode"),  # by what torch is asked for
}


def test_no_flag_is_left_out_of_these_tests():
    every = (*vit_flags.MODEL, *vit_flags.DATA, *vit_flags.TRAINING, *vit_flags.SYSTEM, vit_flags.TEST_ONLY)
    assert {flag.name for flag in every} == OTHER.keys() | VALUES.keys() | SEEN_ELSEWHERE


@pytest.fixture(scope="module")
def others(tmp_path_factory):
    """Two folders of data, each with a small ImageNet of its own."""
    root = tmp_path_factory.mktemp("others")
    for number, home in enumerate(("one", "two")):
        random = np.random.default_rng(number)
        for part, count in (("train", 12), ("val", 3)):
            for name in ("low", "tall"):
                folder = root / home / "imagenet" / part / name
                folder.mkdir(parents=True)
                for at in range(count):
                    (folder / f"{at}.png").write_bytes(picture(random, name == "low"))
    return root


def test_dataset_and_data_path_say_what_is_learned_from(attnknn, photos, tmp_path, usual, others):
    other = others / "one" / "imagenet"
    by_name = outcome(attnknn, photos, tmp_path / "name", "--dataset", "imagenet", "--data_path", others / "one")
    assert by_name == outcome(attnknn, photos, tmp_path / "folder", "--dataset", other)
    assert by_name != usual()
    elsewhere = ("--dataset", "imagenet", "--data_path", others / "two")
    assert outcome(attnknn, photos, tmp_path / "elsewhere", *elsewhere) != by_name


def test_a_folder_of_images_is_looked_for_in_data_path_too(attnknn, photos, tmp_path, others, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = ("--dataset", "own", "--data_path", tmp_path / "data")
    told = attnknn.refused("vit", "train", *SMALL, *given, "--output_dir", tmp_path / "run")
    assert f"no folder and no set of images is called 'own', nor is there {tmp_path / 'data' / 'own'}" in told
    for folder in (photos, others / "one" / "imagenet"):  # dealt out, and with parts of its own
        (tmp_path / "data").mkdir(exist_ok=True)
        link = tmp_path / "data" / "own"
        link.unlink(missing_ok=True)
        link.symlink_to(folder)
        found = outcome(attnknn, photos, tmp_path / folder.name / "data", *given)
        assert found == outcome(attnknn, photos, tmp_path / folder.name / "plain", "--dataset", folder)
    (tmp_path / "own").symlink_to(photos)  # one that stands here comes before
    here = outcome(attnknn, photos, tmp_path / "here", *given)
    assert here == outcome(attnknn, photos, tmp_path / "usual", "--dataset", photos) != found


def test_output_dir_and_test_only_say_what_is_written(attnknn, photos, tmp_path):
    given = ("--dataset", photos, *SMALL, "--num_epochs", 1)
    attnknn("vit", "train", *given, "--output_dir", tmp_path / "here")
    assert [each.name for each in tmp_path.iterdir()] == ["here"]
    files = {each: each.stat().st_mtime_ns for each in (tmp_path / "here").rglob("*")}
    attnknn("vit", "train", "--test_only", *given, "--output_dir", tmp_path / "here")
    assert {each: each.stat().st_mtime_ns for each in (tmp_path / "here").rglob("*")} == files
    attnknn("vit", "train", *given, "--output_dir", tmp_path / "there")
    assert {each.name for each in (tmp_path / "there").iterdir()} == {
        each.name for each in files if each.parent.name == "here"
    }


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ((), []),
        (("--compile_mode", "max-autotune"), []),
        (("--use_compiled",), [("TransformerEncoder", None)] * 2),
        (("--use_compiled", "--compile_mode", "max-autotune"), [("ViT", "max-autotune")]),
        (("--use_compiled", "--compile-mode", "reduce-overhead"), [("ViT", "reduce-overhead")]),
    ],
)
def test_the_compiler_is_given_the_model_and_the_mode(attnknn, photos, tmp_path, monkeypatch, given, expected):
    asked = []

    def compiled(part, mode=None):
        asked.append((type(part).__name__, mode))
        return part

    monkeypatch.setattr(torch, "compile", compiled)
    base = ("--dataset", photos, *SMALL, "--num_epochs", 1, "--output_dir", tmp_path / "run")
    attnknn("vit", "train", *base, *given)
    assert asked == expected


@pytest.mark.parametrize("device", ["cpu", "cuda", "mps"])
def test_the_training_is_given_the_device(attnknn, photos, tmp_path, monkeypatch, device):
    asked = []

    def run_vit(*given, device, **more):
        asked.append((device, more["asked"]["device"]))
        raise InvalidInput("far enough")

    monkeypatch.setattr(vit_run, "run_vit", run_vit)
    monkeypatch.setattr(estimator_options, "training_device", lambda name, given: name)
    monkeypatch.setattr(memory, "memory_of", lambda device: 2**40)
    given = ("--dataset", photos, *SMALL, "--output_dir", tmp_path / "run", "--device", device)
    assert "far enough" in attnknn.refused("vit", "train", *given)
    assert asked == [(device, device)]
