"""``attnknn vit``: the source document's commands, what they write, and how mistakes are told."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from attnknn.cli import vit_flags
from attnknn.data.png import png

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


def test_a_folder_is_dealt_out_for_the_test_as_it_was_for_the_training(attnknn, photos, tmp_path):
    given = ("--dataset", photos, *SMALL, "--seed", 5, "--output_dir", tmp_path / "run")
    attnknn("vit", "train", *given)
    found = attnknn.json("vit", "test", "--dataset", photos, "--device", "cpu", "--output_dir", tmp_path / "run")
    assert found["test"] == json.loads((tmp_path / "run" / "results.json").read_text())["test"]


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
    ],
)
def test_mistakes_are_told_in_one_line(attnknn, tmp_path, given, message):
    assert message in attnknn.refused("vit", "train", *given, "--device", "cpu", "--output_dir", tmp_path / "run")
    assert not (tmp_path / "run").exists()


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
    "sample_padding": ("--sampling_type", "spatial", "--num_samples", 1),
    "eval_sampling": ("--sampling_type", "random", "--num_samples", 2),
    "kernel_size": ("--layer", "BranchConv"),
    "branch_ratio": ("--layer", "BranchAttention", "--d_hidden", 16),
    "window_size": ("--layer", "LocalAttention"),
    "sparse_mode": ("--layer", "SparseAttention", "--sparse_context_window", 2),
    "sparse_context_window": ("--layer", "SparseAttention", "--sparse_mode", "local"),
    "momentum": ("--optimizer", "sgd"),
    "lr_step": ("--scheduler", "step"),
    "lr_gamma": ("--scheduler", "step", "--lr_step", 1),
}
VALUES = {
    "num_samples": 2,
    "sample_padding": 0,
    "eval_sampling": "all",
    "kernel_size": 3,
    "branch_ratio": 0.25,
    "window_size": 1,
    "sparse_mode": "strided",
    "sparse_context_window": 4,
    "momentum": 0.1,
    "lr_step": 1,
    "lr_gamma": 0.9,
}


def outcome(attnknn, photos, out, *given):
    base = ("--dataset", photos, "--layer", "ConvNNAttention", *SMALL)
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


@pytest.mark.parametrize("name", [*OTHER, *(name for name in VALUES if name != "sample_padding")])
def test_every_flag_changes_what_comes_out(attnknn, photos, tmp_path, usual, name):
    value, beside = (OTHER | VALUES)[name], BESIDE.get(name, ())
    flag = (f"--{name}",) if value is None else (f"--{name}", value)
    assert outcome(attnknn, photos, tmp_path / "other", *beside, *flag) != usual(*beside)
