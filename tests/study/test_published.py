"""Numbers of others: whole, well-formed, and as their documents have them."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import astuple

import pytest

from attnknn.bank.index import INDEXES
from attnknn.data import NAMED
from attnknn.study.methods import METHODS
from attnknn.study.published import Claim, Published, claims, published
from attnknn.study.recipe import BASELINES, ON_IMAGES
from attnknn.vit import LAYERS

STUDIES = {"main", "k-sweep", "noise", "imbalance", "efficiency", "theory", "ablation", "calibration", "vit"}
SHARES = {"accuracy", "auc", "f1_macro", "ece", "accuracy_retained"}
COSTS = {
    "attention_ms_per_query",
    "build_seconds",
    "epoch_seconds",
    "gflops",
    "overhead_ms_per_query",
    "parameters",
    "search_ms_per_query",
    "train_seconds",
}
ALL_WEIGHTS = "knn"
"""Stands for every way of weighing, where a document gives one number for all."""

OTHERS = {
    "airbench94",
    "airbench96",
    "SupCon",
    "focal loss",
    "cross-entropy",
    "SCE",
    "DivideMix",
    "long-tail methods, lowest",
    "long-tail methods, highest",
    "TabR",
    "TabR, PLR-lite",
    "TabR, ensemble",
    "ModernNCA",
    "XGBoost",
    "CatBoost",
    "best of all methods",
}
"""Methods that only others ran."""

COLLECTED = "attn-knn.md"
REPORT = "attn-knn report"
RELEASE = "attn-knn release"
CONVNN = "convnn-attention results"


def named(entry: Published) -> str:
    return f"{entry.place}: {entry.method} {dict(entry.setting)} {entry.metric}"


def test_every_entry_has_the_types_that_it_says():
    for each in published():
        texts = (each.document, each.place, each.study, each.data, each.method, each.metric)
        assert all(isinstance(text, str) and text.strip() == text != "" for text in texts), named(each)
        assert isinstance(each.setting, dict), named(each)
        assert type(each.value) in (int, float), named(each)
        assert each.note is None or each.note, named(each)


def test_studies_data_sets_and_metrics_are_known():
    for each in published():
        assert each.study in STUDIES, named(each)
        assert each.data in NAMED, named(each)
        assert each.metric in SHARES | COSTS | {"nll"}, named(each)


def test_methods_bear_our_names():
    ours = {*ON_IMAGES, ALL_WEIGHTS}
    known = {"vit": set(LAYERS), "efficiency": ours | set(INDEXES)}
    for each in published():
        further = {*BASELINES, *OTHERS} if each.document == COLLECTED else set()
        assert each.method in known.get(each.study, ours) | further, named(each)
    assert not OTHERS & set(METHODS)


def test_shares_are_fractions_and_nothing_is_negative():
    for each in published():
        assert 0 <= each.value <= (1 if each.metric in SHARES else float("inf")), named(each)


def test_no_number_stands_twice_in_one_place():
    keys = Counter(json.dumps(astuple(each)[:7], sort_keys=True) for each in published())
    assert [key for key, count in keys.items() if count > 1] == []


def test_filters_part_the_whole():
    everything = published()
    assert sum(len(published(study)) for study in STUDIES) == len(everything)
    assert sum(len(published(data=data)) for data in NAMED) == len(everything)
    both = published("noise", "cifar10")
    assert both == tuple(each for each in everything if (each.study, each.data) == ("noise", "cifar10")) != ()
    assert published("main", "letter") == published("new-class") == ()


# Copied by hand: document, part of the place, study, method, part of the setting, metric, value.
BY_HAND = [
    (REPORT, "Experiment 1-3", "main", "distance", {"k": 10}, "ece", 0.0347),
    (REPORT, "Experiment 4", "k-sweep", "uniform", {"k": 50}, "accuracy", 0.8978),
    (REPORT, "Experiment 4", "noise", "attention", {"noise": 0.3}, "accuracy", 0.8918),
    (REPORT, "Experiment 4", "imbalance", "distance", {"tail": 0.01}, "accuracy", 0.8881),
    (REPORT, "Experiment 5", "main", "cnn", {}, "accuracy", 0.9512),
    (REPORT, "Experiment 5", "main", "attention+tta", {"k": 16}, "nll", 0.967),
    (REPORT, "Progression, experiment 6", "calibration", "attention+tta", {"k": 16}, "ece", 0.0379),
    (REPORT, "Part V:", "theory", "uniform", {"k": 1}, "nll", 2.101),
    (REPORT, "Part VII:", "efficiency", "hnsw", {"k": 10}, "build_seconds", 41.1),
    (REPORT, "Part VII:", "efficiency", "flat", {"metric": "ip"}, "search_ms_per_query", 0.027),
    ("attn-knn method description", "", "efficiency", "attention", {}, "overhead_ms_per_query", 1.0),
    ("attn-knn notebook of experiment 3", "1.9", "main", "attention+tta+k-ensemble", {}, "nll", 0.4324),
    ("attn-knn notebook of experiment 3", "1.9", "main", "attention+tta", {"k": 10}, "accuracy", 0.9091),
    ("attn-knn notebook", "1.14", "main", "attention", {"epoch": 1}, "accuracy", 0.7385),
    (RELEASE, "Main Results", "main", "attention", {"k": 16}, "accuracy", 0.9155),
    (RELEASE, "Noise", "noise", "attention", {"noise": 0.3}, "accuracy", 0.905),
    (COLLECTED, "section 9", "main", "sklearn-knn", {}, "accuracy", 0.834),
    (COLLECTED, "section 9", "main", "ModernNCA", {}, "accuracy", 0.8728),
    (COLLECTED, "section 9", "main", "lightgbm", {"reported": "highest"}, "accuracy", 0.8741),
    (COLLECTED, "section 9", "main", "cnn", {"backbone": "resnet50"}, "ece", 0.0135),
    (COLLECTED, "section 9", "noise", "DivideMix", {"noise": 0.5, "kind": "symmetric"}, "accuracy", 0.946),
    (COLLECTED, "section 9", "imbalance", "long-tail methods, highest", {"tail": 0.01}, "accuracy", 0.849),
    (CONVNN, "CIFAR10/", "vit", "Attention", {"num_heads": 3}, "accuracy", 0.783691),
    (CONVNN, "CIFAR100/", "vit", "KvtAttention", {"K": 36}, "accuracy", 0.51875),
    (CONVNN, "CIFAR10/", "vit", "LocalAttention", {"num_heads": 3}, "epoch_seconds", 70.33),
]


@pytest.mark.parametrize(
    "fact", BY_HAND, ids=lambda fact: "-".join((*fact[0].split()[1:], fact[2], fact[3], fact[5]))
)
def test_numbers_are_those_of_the_documents(fact):
    document, place, study, method, setting, metric, value = fact
    found = [
        each.value
        for each in published(study)
        if (each.document, each.method, each.metric) == (document, method, metric)
        and place in each.place
        and setting.items() <= each.setting.items()
    ]
    assert found == [value]


def test_wrong_labels_and_long_tails_are_marked_as_those_of_the_bank_alone():
    for each in (*published("noise"), *published("imbalance")):
        if each.document == COLLECTED:  # by others, who learned from them
            assert "bank_only" not in each.setting
            continue
        changed = each.setting.get("noise", 0) > 0 or each.setting.get("tail", 1) < 1
        assert each.setting.get("bank_only", False) == changed, named(each)
        assert not changed or "the bank" in str(each.note), named(each)


@pytest.mark.parametrize(
    ("name", "figures"),
    [
        ("calibration", ("78 %", ".1297", ".0283")),
        ("robustness", ("30 %", "86.85 %", "86.80 %")),
        ("accuracy", (".03", ".38")),
        ("overhead", ("1 ms",)),
    ],
)
def test_every_claim_is_there_with_its_figures(name, figures):
    found = claims()
    assert sorted(found) == ["accuracy", "calibration", "overhead", "robustness"]
    claim = found[name]
    assert isinstance(claim, Claim)
    assert (claim.name, claim.document) == (name, REPORT)
    assert all(figure in claim.claim for figure in figures)
    assert claim.place.endswith("Claim Validation Summary")
    assert claim.note
