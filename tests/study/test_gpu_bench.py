"""The bench of the fused kernels: what it reports, what it refuses; its numbers are of a GPU."""

from __future__ import annotations

import math

import pytest
import torch

from attnknn.cli import bench
from attnknn.errors import AttnKNNError
from attnknn.study import gpu_bench
from attnknn.study.gpu_bench import ATTENTIONS, SEARCHES, AttentionSize, SearchSize, TrainingSize, run_gpu_bench

SEARCH, ATTENTION = SearchSize(500, 100, 16, 4), AttentionSize(30, 2, 2, 8, 3)
TRAINING = TrainingSize(40, pixels=16, epochs=2, compiled=False)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(gpu_bench, "_LEAST_SECONDS", 0.0)


def measured(**changed):
    given = {"trainings": [], "device": "cpu", "backend": "torch", **changed}
    return run_gpu_bench([SEARCH], [ATTENTION], **given)


def test_the_report_has_a_number_for_everything():
    said = []
    report = measured(trainings=[TRAINING], say=said.append)
    assert said == ["search 500x100x16", "attention N=30", "epoch of 40 images"]
    trained = report["milliseconds"]["epoch of 40 images"]
    assert set(trained) == {"ours", "cnn"}
    assert all(0 < each < math.inf for each in trained.values())
    search, attention = report["milliseconds"]["search 500x100x16"], report["milliseconds"]["attention N=30"]
    assert set(search) == {"ours", "ours, float32", "torch", "floor"}
    assert all(0 < each < math.inf for each in search.values())
    assert report["share_of_floor"]["search 500x100x16"] == search["floor"] / search["ours"]
    for direction in ("forward", "backward"):
        assert set(attention[direction]) == {"ours", "gather", "sdpa"}
        assert all(0 < each < math.inf for each in attention[direction].values())
        assert set(report["mib"]["attention N=30"][direction]) == {"ours", "gather", "sdpa"}
    assert report["config"]["searches"][0] == {"keys": 500, "queries": 100, "dim": 16, "k": 4}


def test_the_command_shows_a_table_of_each_kind(capsys):
    bench.show(measured(trainings=[TRAINING]))
    shown = capsys.readouterr().out.split()  # a narrow screen parts words
    assert {"floor", "sdpa,", "epoch"} <= set(shown)


def test_the_sizes_are_those_of_the_published_table():
    assert [each.name for each in SEARCHES] == ["search 50000x50000x256", "search 1281167x10000x256"]
    assert [each.name for each in ATTENTIONS] == [f"attention N={count}" for count in (197, 1024, 4096, 16384)]


def test_a_search_that_finds_other_neighbors_is_refused(monkeypatch):
    right = gpu_bench.exact_topk

    def shifted(queries, keys, k, backend):
        found = right(queries, keys, k)
        return found._replace(rows=found.rows + (len(queries) == 100))

    monkeypatch.setattr(gpu_bench, "exact_topk", shifted)
    monkeypatch.setattr(gpu_bench, "_CHECKED", 50)
    with pytest.raises(AttnKNNError, match="the torch search of 500 keys finds other neighbors than torch"):
        measured()


def test_attention_that_keeps_other_tokens_is_refused(monkeypatch):
    right, asked = gpu_bench.knn_attention, []

    def turned(*given, **options):
        asked.append(options)
        out, kept = right(*given, **options)
        return out, kept.flip(-1) if len(asked) == 1 else kept

    monkeypatch.setattr(gpu_bench, "knn_attention", turned)
    with pytest.raises(AttnKNNError, match="token attention keeps other tokens than torch"):
        measured()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_the_kernels_are_measured():
    report = run_gpu_bench([SearchSize(5000, 500, 64, 16)], [AttentionSize(100, 4)], [])
    assert report["mib"]["attention N=100"]["backward"]["ours"] > 0
