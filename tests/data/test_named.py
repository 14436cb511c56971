import os
from pathlib import Path

import numpy as np
import pytest

from attnknn.data import NAMED, as_table, duplicate_groups, load_named, verify
from attnknn.errors import InvalidInput, MissingData

FILES = sorted(name for name, source in NAMED.items() if source.files)
PLACES = {
    "cifar10": "the CIFAR page of the University of Toronto",
    "cifar100": "the CIFAR page of the University of Toronto",
    "mnist": "the MNIST database",
    "fashion-mnist": "Zalando Research",
}
needs_files = pytest.mark.skipif(not os.environ.get("ATTNKNN_DATA"), reason="ATTNKNN_DATA is not set")


@pytest.mark.parametrize(
    ("name", "shape", "classes"),
    [
        ("iris", (150, 4), 3),
        ("wine", (178, 13), 3),
        ("breast-cancer", (569, 30), 2),
        ("digits", (1797, 64), 10),
    ],
)
def test_sets_of_scikit_learn_need_no_files(name, shape, classes, monkeypatch):
    monkeypatch.delenv("ATTNKNN_DATA", raising=False)
    data = load_named(name)
    assert (data.name, data.X.shape, len(np.unique(data.y))) == (name, shape, classes)
    assert len(data.y) == len(data.X)
    assert (data.train_rows, data.test_rows) == (None, None)
    assert data.image_shape == ((8, 8) if name == "digits" else None)
    assert verify(name) == [(name, True, "comes with scikit-learn")]


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(InvalidInput, match="'nope'; try one of: iris, wine, "):
        load_named("nope")
    with pytest.raises(InvalidInput, match="'nope'"):
        verify("nope")


@pytest.mark.parametrize("name", FILES)
def test_a_missing_folder_or_file_says_what_where_and_how(name, tmp_path, monkeypatch):
    monkeypatch.delenv("ATTNKNN_DATA", raising=False)
    first = NAMED[name].files[0][0]
    for given, problem in [
        (None, "no data folder"),
        (tmp_path / "no", "does not exist"),
        (tmp_path, "absent"),
    ]:
        with pytest.raises(MissingData) as caught:
            load_named(name, given)
        place = PLACES.get(name, "UCI Machine Learning Repository")
        for part in (problem, first, place, NAMED[name].title, "--data-dir"):
            assert part in str(caught.value)
        assert "ATTNKNN_DATA" in str(caught.value)
        assert [(file, ok) for file, ok, _ in verify(name, given)] == [(f, False) for f, _ in NAMED[name].files]


@pytest.mark.parametrize("name", FILES)
def test_a_changed_file_is_refused_before_it_is_read(name, tmp_path):
    for file, _ in NAMED[name].files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_bytes(b"1,2\n")
    file, expected = NAMED[name].files[0]
    with pytest.raises(InvalidInput) as caught:
        load_named(name, tmp_path)
    assert str(tmp_path / file) in str(caught.value)
    assert f"expected SHA-256 {expected}, found " in str(caught.value)
    assert not any(ok for _, ok, _ in verify(name, tmp_path))


def test_the_folder_may_come_from_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("ATTNKNN_DATA", str(tmp_path))
    with pytest.raises(MissingData, match=str(tmp_path)):
        load_named("letter")


@pytest.mark.data
@needs_files
@pytest.mark.parametrize(
    ("name", "shape", "labels"),
    [
        ("adult", (48_842, 14), {"<=50K", ">50K"}),
        ("wine-quality-red", (1_599, 11), set(range(3, 9))),
        ("wine-quality-red-good", (1_599, 11), {"good", "plain"}),
        ("wine-quality-white", (4_898, 11), set(range(3, 10))),
        ("wine-quality-white-good", (4_898, 11), {"good", "plain"}),
        ("bank-marketing", (41_188, 19), {"no", "yes"}),
        ("letter", (20_000, 16), set("ABCDEFGHIJKLMNOPQRSTUVWXYZ")),
        ("german-credit", (1_000, 20), {"good", "bad"}),
    ],
)
def test_the_original_files_load_in_full(name, shape, labels):
    data = load_named(name, Path(os.environ["ATTNKNN_DATA"]))
    assert data.X.shape == shape
    assert set(data.y.tolist()) == labels
    assert data.target not in data.X.columns
    assert len(as_table(data.X)) == len(data.y)
    assert all(ok for _, ok, _ in verify(name))


@pytest.mark.data
@needs_files
def test_adult_keeps_the_official_split_and_its_missing_values():
    data = load_named("adult")
    assert (len(data.train_rows), len(data.test_rows)) == (32_561, 16_281)
    assert data.train_rows.tolist() + data.test_rows.tolist() == list(range(48_842))
    # adult.names: 24.78 % and 24.43 % earn more than 50K among rows without unknowns
    complete = ~data.X.isna().any(axis=1).to_numpy()
    rows = np.arange(48_842)
    for part, count, share in [(data.train_rows, 30_162, 0.2478), (data.test_rows, 15_060, None)]:
        known = complete & np.isin(rows, part)
        assert known.sum() == count
        assert share is None or np.mean(data.y[known] == ">50K") > share - 0.002
    kinds = {column.name: column.kind for column in as_table(data.X).columns}
    assert [name for name, kind in kinds.items() if kind == "numeric"] == [
        "age",
        "fnlwgt",
        "education-num",
        "capital-gain",
        "capital-loss",
        "hours-per-week",
    ]
    assert not data.X.isin(["?"]).any(axis=None)


@pytest.mark.data
@needs_files
def test_red_wine_has_its_240_duplicates():
    data = load_named("wine-quality-red")
    groups = duplicate_groups(data.X)
    assert len(groups) - len(np.unique(groups)) == 240
    assert ((load_named("wine-quality-red-good").y == "good") == (data.y >= 6)).all()


@pytest.mark.data
@needs_files
def test_german_credit_has_700_good_loans_and_numbers_where_german_names_says():
    data = load_named("german-credit")
    assert (data.y == "good").sum() == 700
    kinds = [column.kind for column in as_table(data.X).columns]
    assert [at + 1 for at, kind in enumerate(kinds) if kind == "numeric"] == [2, 5, 8, 11, 13, 16, 18]


@pytest.mark.data
@needs_files
def test_bank_marketing_leaves_the_duration_out():
    assert "duration" not in load_named("bank-marketing").X.columns
