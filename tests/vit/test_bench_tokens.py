"""``attnknn vit bench``: what is measured, how it is compared, and what is refused."""

from __future__ import annotations

import json
import math

import pytest
import torch
import typer
from typer.testing import CliRunner

from attnknn.cli.errors import Commands
from attnknn.cli.vit_bench import _show, bench
from attnknn.errors import InvalidInput
from attnknn.vit import LAYERS, MultiHeadAttention, MultiHeadConvNNAttention
from attnknn.vit.bench import (
    DEFAULT,
    DIRECTIONS,
    METRICS,
    Cell,
    GatherAttention,
    PlainAttention,
    SdpaAttention,
    batch_of,
    clock_of,
    compared,
    contender,
    measure,
    measure_apart,
    run_bench,
)

pytestmark = pytest.mark.usefixtures("one_thread")

app = typer.Typer(cls=Commands, add_completion=False, pretty_exceptions_enable=False)
app.command("bench")(bench)


@app.callback()
def vit() -> None:
    """Make a group of the one command, as it is in the real one."""


def run(*args: object, code: int = 0):
    result = CliRunner().invoke(app, ["bench", *map(str, args)], prog_name="attnknn vit", catch_exceptions=False)
    assert result.exit_code == code, f"{result.stdout}\n{result.stderr}"
    return result


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """One small run, as it is printed and as it is saved."""
    path = tmp_path_factory.mktemp("results") / "vit" / "bench.json"
    args = ("--tokens", 1024, "--layers", "plain", "--device", "cpu", "--dim", 48, "--processes", 1)
    printed = json.loads(run(*args, "--commit", "abc", "--save", path, "--json").stdout)
    assert json.loads(path.read_text()) == printed
    return printed


def same_weights(layer, peer):
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    peer.load_state_dict(layer.state_dict())
    return layer.double(), peer.double()


def gradients(layer, x):
    x = x.clone().requires_grad_()
    out = layer(x)
    out.backward(torch.ones_like(out).cumsum(1))
    return [out, x.grad, *(each.grad for _, each in sorted(layer.named_parameters()))]


# --- contenders ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("k", [1, 9, 40])
def test_the_gather_computes_what_our_layer_does_and_the_same_gradients(heads, k):
    torch.manual_seed(heads)
    layer, peer = same_weights(MultiHeadConvNNAttention(24, heads, K=k), GatherAttention(24, heads, k))
    x = torch.randn(2, 17, 24, dtype=torch.float64)
    for ours, theirs in zip(gradients(layer, x), gradients(peer, x), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("kind", [PlainAttention, SdpaAttention])
def test_plain_attention_is_attention_by_either_kernel(kind):
    torch.manual_seed(0)
    layer, peer = same_weights(MultiHeadAttention(24, 3), kind(24, 3))
    x = torch.randn(2, 17, 24, dtype=torch.float64)
    for ours, theirs in zip(gradients(layer, x), gradients(peer, x), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_every_layer_and_every_peer_can_be_measured_in_both_directions():
    for kind in ("plain", "sdpa", "gather", *LAYERS):
        found = measure(Cell(kind, 17, "seconds", dim=24, K=3, least=0.0))
        assert set(found) == set(DIRECTIONS), kind
        assert all(0 < seconds < math.inf for seconds in found.values()), kind


def test_a_name_has_three_heads_unless_it_says_otherwise():
    assert str(contender("gather")) == "gather:3"
    assert contender("ConvNNAttention:1").made(24, 9).num_heads == 1
    assert all(str(contender(name)) == name for name in DEFAULT)


@pytest.mark.parametrize("name", ["", "convnn", "plain:", "plain:0", "plain:-1", "plain:3:3", "sdpa:x"])
def test_a_name_that_means_nothing_is_refused(name):
    with pytest.raises(InvalidInput, match=r"no layer is called|number of heads"):
        contender(name)


def test_batches_hold_eight_two_and_one_sequence():
    assert [batch_of(tokens) for tokens in (1, 197, 1024, 4096, 100_000)] == [8, 8, 2, 1, 1]


def test_cpu_time_is_taken_only_where_one_thread_computes():
    assert clock_of("cpu", 1) == "cpu"
    assert clock_of("cpu", 2) == clock_of("cuda", 1) == "wall"


# --- comparison ---------------------------------------------------------------------------------------------


def test_ratios_are_of_the_medians():
    ours = [{"forward": value, "forward_backward": 10 * value} for value in (9.0, 1.0, 2.0)]
    plain = [{"forward": value, "forward_backward": value} for value in (4.0, 100.0, 1.0)]
    still = [{"forward": 0.0, "forward_backward": math.nan}]
    taken = {
        Cell("plain:3", 5, "seconds"): plain, Cell("plain:3", 5, "mib"): still,
        Cell("KvtAttention:1", 5, "seconds"): ours, Cell("KvtAttention:1", 5, "mib"): ours,
    }  # fmt: skip
    found = compared(taken)["KvtAttention:1"]["5"]
    assert found["forward"]["seconds"] == {"median": 2.0, "low": 1.0, "high": 9.0, "values": [9.0, 1.0, 2.0]}
    assert set(found["forward"]["ratios"]) == {"plain:3"}
    assert found["forward"]["ratios"]["plain:3"]["seconds"] == 0.5
    assert found["forward_backward"]["ratios"]["plain:3"]["seconds"] == 5.0
    assert math.isnan(found["forward"]["ratios"]["plain:3"]["mib"])
    assert math.isnan(found["forward_backward"]["ratios"]["plain:3"]["mib"])


def test_a_report_has_the_schema_of_results(report):
    record = ("command", "commit", "source_hash", "environment")
    assert list(report) == [*record, "config", "seeds", "seconds", "methods"]
    assert report["commit"] == "abc"
    assert report["environment"]["device"] == "cpu"
    assert report["environment"]["versions"]["torch"] == torch.__version__
    assert report["seconds"]["total"] > 0
    assert report["config"] == {
        "dim": 48, "K": 9, "batch": {"1024": 2}, "device": "cpu", "threads": 1, "clock": "cpu", "processes": 1,
    }  # fmt: skip
    assert list(report["methods"]) == ["plain:3"]
    assert list(report["methods"]["plain:3"]) == ["1024"]
    both = report["methods"]["plain:3"]["1024"]
    assert set(both) == set(DIRECTIONS)
    for found in both.values():
        assert found["ratios"]["plain:3"]["seconds"] == 1.0
        assert found["seconds"]["values"] == [found["seconds"]["median"]]
        assert len(found["mib"]["values"]) == 1
    assert both["forward"]["seconds"]["median"] > 0


def test_plain_attention_holds_its_scores_and_sdpa_does_not(report):
    scores = 2 * 3 * 1024**2 * 4 / 2**20
    sdpa = measure_apart(Cell("sdpa:3", 1024, "mib", dim=48))
    for direction in DIRECTIONS:
        plain = report["methods"]["plain:3"]["1024"][direction]["mib"]["median"]
        if plain is None:
            pytest.skip("this system does not say how much memory a process takes")
        assert 2 * scores < plain < 5 * scores  # before the softmax and after, and little else
        assert sdpa[direction] < scores / 2


def test_a_table_shows_every_contender_and_its_ratio(report, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "60")
    fast, slow = dict.fromkeys(DIRECTIONS, 0.001), dict.fromkeys(DIRECTIONS, 0.004)
    cells = {Cell(name, 1024, metric): [slow] for name in ("plain:3", "gather:1") for metric in METRICS}
    _show({**report, "methods": compared({**cells, Cell("gather:1", 1024, "seconds"): [fast]})})
    head, *lines = capsys.readouterr().out.splitlines()
    assert head == "cpu: CPU time, threads 1, dim 48, K 9; medians over 1 processes"
    assert max(map(len, lines)) <= 60
    assert [line.split() for line in lines if "gather:1" in line] == [
        ["gather:1", "1.0", "0.25", "0.0", "1.00"]
    ] * 2
    assert [line for line in lines if "tokens" in line] == [
        f"1024 tokens, batch 2, {said}" for said in ("forward", "forward + backward")
    ]


# --- mistakes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--tokens", "few"], "197,1024"),
        (["--tokens", "197,0"], "above 0"),
        (["--tokens", ""], "above 0"),
        (["--layers", "convnn"], "ConvNNAttention"),
        (["--layers", "plain:many"], "plain:1"),
        (["--layers", ","], "no layer is named"),
        (["--layers", "KvtAttention:5"], "num_heads must divide dim"),
        (["--dim", "64"], "num_heads must divide dim"),
        (["--K", "0"], "--K"),
        (["--processes", "0"], "--processes"),
        (["--threads", "0"], "--threads"),
        (["--device", "toaster"], "toaster"),
        (["--save", "."], "names a file"),
    ],
)  # fmt: skip
def test_a_bad_option_is_refused_in_one_line(args, said):
    result = run(*args, code=2)
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert said in result.stderr


def test_what_a_layer_refuses_once_it_runs_is_said_with_its_name():
    with pytest.raises(InvalidInput, match=r"NeighborhoodAttention2D:3 could not .* 15 tokens are no square grid"):
        measure_apart(Cell("NeighborhoodAttention2D:3", 15, "seconds", dim=24))


def test_tokens_must_be_a_number_above_zero():
    with pytest.raises(InvalidInput, match="tokens must be a whole number"):
        run_bench(["plain"], [0])
