"""What every bank promises, whatever its index and metric; one suite for all of them."""

import copy
import pickle

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist

from attnknn.bank import INDEXES, MAX_NORM, MemoryBank
from attnknn.errors import InvalidInput, UnknownId
from attnknn.ops import METRICS

DIM = 5
every_index = pytest.mark.parametrize("index", INDEXES)


@pytest.fixture(params=[(index, metric) for index in INDEXES for metric in METRICS], ids="-".join)
def kind(request):
    return dict(zip(("index", "metric"), request.param, strict=True))


def drawn(rows, seed=0, dim=DIM, offset=0.0):
    return np.random.default_rng(seed).normal(size=(rows, dim)) + offset


def filled(kind, rows=60, seed=0, offset=0.0, **columns):
    bank = MemoryBank(DIM, **kind)
    bank.add(drawn(rows, seed, offset=offset), np.arange(rows) % 3, **columns)
    return bank


def truth(queries, vectors, metric):
    """Distances by SciPy."""
    queries, vectors = np.asarray(queries, np.float64), np.asarray(vectors, np.float64)
    if metric == "ip":
        return -queries @ vectors.T
    return cdist(queries, vectors, "euclidean" if metric == "l2" else "cosine")


def state(bank):
    """All that can be seen of a bank."""
    rows = bank.live
    return (
        bank.ids,
        bank.labels(rows).tolist(),
        bank.vectors(rows).tolist(),
        bank.weights(rows).tolist(),
        bank.metadata(rows),
        bank.search(drawn(4, seed=99), 7).ids.tolist() if len(bank) else None,
    )


def agree(bank, queries, k, vectors, ids):
    """The bank finds what SciPy finds among ``vectors``."""
    near = bank.search(queries, k)
    gaps = truth(queries, vectors, bank.metric)
    order = np.argsort(gaps, axis=1, kind="stable")[:, :k]
    assert near.found.all()
    assert near.ids.tolist() == [[ids[row] for row in rows] for rows in order.tolist()]
    np.testing.assert_allclose(near.distances, np.take_along_axis(gaps, order, axis=1), rtol=1e-9, atol=1e-12)


# --- search


@pytest.mark.parametrize("offset", [0.0, 100.0, 1e4])
@pytest.mark.parametrize("rows", [1, 12, 400])
def test_finds_what_exhaustive_search_finds(kind, rows, offset):
    if kind["metric"] == "cosine" and kind["index"] != "exact":
        offset = min(offset, 100.0)  # beyond, cosines differ by less than the float32 that FAISS ranks by
    bank, queries = filled(kind, rows, offset=offset), drawn(30, seed=1, offset=offset)
    agree(bank, queries, min(rows, 9), drawn(rows, offset=offset), bank.ids)


@every_index
def test_a_large_offset_costs_no_precision(index):
    vectors, queries = drawn(5000, offset=1e7), drawn(50, seed=1, offset=1e7)
    bank = MemoryBank(DIM, index=index)
    bank.add(vectors, np.zeros(5000, int))
    near = bank.search(queries, 9).ids
    best = np.argsort(truth(queries, vectors, "l2"), axis=1)[:, :9]
    hits = [len(set(ours) & set(theirs)) for ours, theirs in zip(near.tolist(), best.tolist(), strict=True)]
    assert np.mean(hits) / 9 >= (1.0 if index in ("exact", "flat") else 0.95)


def test_an_answer_is_as_wide_as_asked_or_as_the_bank_is_long(kind):
    bank = filled(kind, 6)
    for k, width in ((1, 1), (6, 6), (7, 6), (2**31 - 1, 6)):
        near = bank.search(drawn(4, seed=1), k)
        assert near.k == width
        for column in (near.rows, near.ids, near.labels, near.distances, near.found):
            assert column.shape == (4, width)
        assert near.found.all()


def test_every_column_of_an_answer_speaks_of_the_same_row(kind):
    bank = filled(kind, 40, ids=[f"row {at}" for at in range(40)])
    near = bank.search(drawn(7, seed=1), 5)
    assert near.ids.tolist() == [bank.names(rows) for rows in near.rows]
    np.testing.assert_array_equal(near.labels, bank.labels(near.rows))
    np.testing.assert_array_equal(bank.rows(near.ids[0]), near.rows[0])
    for query, rows in enumerate(near.rows):
        gaps = truth(drawn(7, seed=1)[[query]], bank.vectors(rows), bank.metric)[0]
        np.testing.assert_allclose(near.distances[query], gaps, rtol=1e-9, atol=1e-12)
    assert (np.diff(near.distances, axis=1) >= 0).all()


@pytest.mark.parametrize("copies", [3, 200])
def test_equal_vectors_are_found_in_the_order_they_were_added(kind, copies):
    bank = MemoryBank(DIM, **kind)
    bank.add(np.concatenate([np.ones((copies, DIM)), -np.ones((copies, DIM))]), np.zeros(2 * copies, int))
    near = bank.search(np.full((25, DIM), 0.7), 3)
    if kind["index"] == "hnsw":  # a graph reaches only some of many equal points
        np.testing.assert_array_equal(near.distances, near.distances[:, :1].repeat(3, axis=1))
    else:
        assert near.ids.tolist() == [[0, 1, 2]] * 25


def test_what_is_not_found_cannot_be_mistaken_for_a_row(kind):
    bank = filled(kind, 4, groups=[0, 0, 0, 1])
    near = bank.search(drawn(2, seed=1), 4, exclude=[0, None])
    assert near.found.tolist() == [[True, False, False, False], [True] * 4]
    lost = ~near.found
    assert np.isinf(near.distances[lost]).all()
    assert near.ids[lost].tolist() == [None] * 3
    for column in (near.rows, near.labels):
        with pytest.raises(IndexError):
            np.zeros(10)[column[lost]]
        with pytest.raises(IndexError):
            torch.zeros(10)[torch.from_numpy(column[lost])]


def test_an_empty_bank_answers_with_nothing(kind):
    bank = MemoryBank(DIM, **kind)
    assert len(bank) == 0
    assert bank.search(drawn(3), 5).ids.shape == (3, 0)
    bank.add(drawn(2), [0, 1])
    bank.remove([0, 1])
    assert bank.search(drawn(3), 5).rows.shape == (3, 0)
    assert bank.add(drawn(1), [0]) == [2]
    assert bank.search(drawn(1), 5).ids.tolist() == [[2]]


def test_no_queries_get_no_answers(kind):
    assert filled(kind).search(np.empty((0, DIM)), 3).ids.shape == (0, 3)


@pytest.mark.parametrize("k", [np.int64(2), np.int32(2), np.uint8(2)])
def test_a_numpy_integer_is_a_k(kind, k):
    assert filled(kind).search(drawn(1), k).k == 2


@every_index
@pytest.mark.parametrize("k", [True, False, 0, -1, 2.0, np.float64(2), 10**26, 2**31, None, "2"])
def test_any_other_k_is_refused_with_the_range(index, k):
    with pytest.raises(InvalidInput, match="k must be an integer from 1 to 2147483647"):
        filled({"index": index}).search(drawn(1), k)


# --- leave-out


def test_an_excluded_id_is_not_found_by_its_query_alone(kind):
    bank, vectors = filled(kind, 50), drawn(50)
    near = bank.search(vectors, 50, exclude=[*range(49), None])
    for query in range(49):
        expected = set(range(50)) - {query}
        assert set(near.ids[query][near.found[query]]) == expected
    assert near.found[49].all()


def test_the_group_of_an_excluded_id_goes_with_it_unless_told_otherwise(kind):
    groups = np.array([0, 0, 1, 1, -1, -1] * 5)
    bank, vectors = filled(kind, 30, groups=groups), drawn(30)
    for by_group in (True, False):
        near = bank.search(vectors, 30, exclude=bank.ids, by_group=by_group)
        for query in range(30):
            out = {query}
            if by_group and groups[query] >= 0:
                out |= set(np.flatnonzero(groups == groups[query]).tolist())
            assert set(near.ids[query][near.found[query]]) == set(range(30)) - out


def test_excluding_what_the_bank_does_not_hold_is_refused(kind):
    bank = filled(kind, 5)
    with pytest.raises(UnknownId, match="'ghost'"):
        bank.search(drawn(1), 2, exclude=["ghost"])
    with pytest.raises(InvalidInput, match="each of 2 queries"):
        bank.search(drawn(2), 2, exclude=[0])


# --- edits


def test_a_removed_row_is_never_found_again(kind):
    bank, vectors = filled(kind, 80), drawn(80)
    gone = list(range(0, 80, 3))
    bank.remove(gone)
    kept = [at for at in range(80) if at % 3]
    assert bank.ids == kept
    assert len(bank) == len(kept)
    assert not any(name in bank for name in gone)
    agree(bank, drawn(10, seed=1), 8, vectors[kept], kept)


@pytest.mark.parametrize("rows", [1000, 3000])
def test_rows_are_still_found_when_all_that_were_nearer_are_gone(kind, rows):
    vectors = drawn(rows, seed=3, dim=DIM)
    bank = MemoryBank(DIM, **kind)
    bank.add(vectors, np.zeros(rows, int))
    query = drawn(1, seed=4)
    order = np.argsort(truth(query, vectors, bank.metric)[0], kind="stable")
    bank.remove(order[: rows - 100].tolist())
    near = bank.search(query, 5)
    assert near.found.all()
    assert near.ids[0].tolist() == order[rows - 100 :][:5].tolist()


def test_a_k_of_the_whole_bank_finds_the_whole_bank(kind):
    vectors = drawn(2500, seed=3)
    bank = MemoryBank(DIM, **kind)
    bank.add(vectors, np.zeros(2500, int))
    near = bank.search(drawn(3, seed=4), 2500)
    assert near.found.all()
    assert all(len(set(ids)) == 2500 for ids in near.ids.tolist())


def test_removing_what_is_not_there_changes_nothing(kind):
    bank = filled(kind, 10)
    before = state(bank)
    with pytest.raises(UnknownId, match="holds no id 'ghost'"):
        bank.remove([3, "ghost"])
    assert state(bank) == before


def test_a_removed_id_can_be_added_again(kind):
    bank = filled(kind, 10)
    bank.remove([4])
    bank.add(drawn(1, seed=8), [2], ids=[4])
    near = bank.search(drawn(1, seed=8), 1)
    assert near.ids.tolist() == ([[4]] if bank.metric != "ip" else near.ids.tolist())
    assert bank.labels(bank.rows([4])).tolist() == [2]


def test_a_moved_row_is_found_at_its_new_place_only(kind):
    bank, vectors = filled(kind, 40), drawn(40)
    for turn in range(5):
        moved = [turn, 20 + turn, 39]
        fresh = drawn(3, seed=50 + turn)
        vectors[moved] = fresh
        bank.update(moved, vectors=fresh)
        agree(bank, np.concatenate([drawn(10, seed=1), fresh]), 8, vectors, list(range(40)))
    np.testing.assert_array_equal(bank.vectors(bank.live), vectors)


@every_index
def test_moving_rows_for_ever_does_not_grow_the_index_for_ever(index):
    bank, vectors = filled({"index": index}, 10), drawn(10)
    bank.remove([9])
    for turn in range(400):
        vectors[:9] = drawn(9, seed=turn)
        bank.update(list(range(9)), vectors=vectors[:9])
    agree(bank, drawn(5, seed=1000), 5, vectors[:9], bank.ids)
    if index != "exact":
        assert bank._index._index.ntotal <= 2048


def test_a_new_label_leaves_all_else_as_it_was(kind):
    bank = filled(kind, 10)
    before = bank.search(drawn(2, seed=1), 10)
    bank.update([3, 5], labels=[7, 8])
    after = bank.search(drawn(2, seed=1), 10)
    assert after.ids.tolist() == before.ids.tolist()
    expected = {**{at: at % 3 for at in range(10)}, 3: 7, 5: 8}
    assert after.labels.tolist() == [[expected[name] for name in names] for names in after.ids]


def test_a_refused_update_changes_nothing(kind):
    bank = filled(kind, 10)
    before = state(bank)
    for ids, vectors, labels in (
        ([1, 1], drawn(2), [0, 0]),
        ([1, "ghost"], drawn(2), [0, 0]),
        ([1, 2], drawn(1), [0, 0]),
        ([1, 2], drawn(2), [0]),
        ([1], np.full((1, DIM), np.nan), [5]),
        ([1], drawn(1), [-1]),
    ):
        with pytest.raises((InvalidInput, UnknownId)):
            bank.update(ids, vectors=vectors, labels=labels)
        assert state(bank) == before


def test_answers_hold_their_ids_after_later_edits(kind):
    bank = filled(kind, 3000)
    near = bank.search(drawn(3, seed=1), 5)
    expected = [bank.names(rows) for rows in near.rows]
    bank.remove(list(range(2500)))  # enough to make the bank compact
    bank.add(drawn(4, seed=2), [0] * 4)
    assert near.ids.tolist() == expected


def test_many_small_additions_equal_one_large(kind):
    whole, bit_by_bit = filled(kind, 90), MemoryBank(DIM, **kind)
    for at in range(0, 90, 7):
        part = slice(at, at + 7)
        bit_by_bit.add(drawn(90)[part], (np.arange(90) % 3)[part])
    assert state(bit_by_bit) == state(whole)


# --- ids


@every_index
@pytest.mark.parametrize("ids", [["a", "b", "c"], [5, -3, 10**30], ["1", 1, "01"], ["", "\u202eab", "<script>"]])
def test_ids_come_back_as_they_were_given(index, ids, tmp_path):
    bank = MemoryBank(DIM, index=index)
    assert bank.add(drawn(3), [0, 1, 2], ids=ids) == ids
    bank.save(tmp_path / "bank")
    for held in (bank, MemoryBank.load(tmp_path / "bank")):
        assert held.ids == ids
        assert [type(name) for name in held.ids] == [type(name) for name in ids]
        near = held.search(drawn(3), 1)
        assert near.ids.ravel().tolist() == ids
        assert all(name in held for name in ids)


def test_ids_of_numpy_are_plain_ones():
    bank = MemoryBank(DIM)
    assert bank.add(drawn(2), [0, 1], ids=np.array([7, 8])) == [7, 8]
    assert bank.add(drawn(1, 5), [0], ids=np.array(["x"])) == ["x"]
    assert [type(name) for name in bank.ids] == [int, int, str]
    assert np.int64(7) in bank
    assert np.str_("x") in bank
    bank.remove(np.array([7]))
    assert bank.ids == [8, "x"]


@pytest.mark.parametrize("name", [True, 1.0, None, b"x", ("a",)])
def test_anything_else_is_no_id(name):
    bank = MemoryBank(DIM)
    with pytest.raises(InvalidInput, match="an id is a string or an integer"):
        bank.add(drawn(1), [0], ids=[name])
    assert name not in bank


def test_true_is_not_the_id_one():
    bank = MemoryBank(DIM)
    bank.add(drawn(1), [0], ids=[1])
    assert True not in bank


@every_index
def test_an_accent_typed_two_ways_is_one_id(index):
    composed, decomposed = "caf\u00e9", "cafe\u0301"
    bank = MemoryBank(DIM, index=index)
    assert bank.add(drawn(1), [0], ids=[decomposed]) == [decomposed]
    assert bank.ids == [decomposed]  # stored as given
    assert composed in bank
    with pytest.raises(InvalidInput, match="already holds"):
        bank.add(drawn(1), [0], ids=[composed])
    with pytest.raises(InvalidInput, match="given twice"):
        MemoryBank(DIM).add(drawn(2), [0, 0], ids=[composed, decomposed])
    bank.remove([composed])
    assert len(bank) == 0


def test_ids_left_out_are_numbers_that_are_free(kind):
    bank = MemoryBank(DIM, **kind)
    bank.add(drawn(1), [0], ids=[1])
    assert bank.add(drawn(3), [0, 1, 2]) == [0, 2, 3]
    bank.remove([3])
    assert bank.add(drawn(1), [0]) == [4]  # a number is never given twice


def test_a_number_is_not_given_twice_after_loading_either(kind, tmp_path):
    bank = filled(kind, 4)
    bank.remove([3])
    bank.save(tmp_path / "bank")
    assert MemoryBank.load(tmp_path / "bank").add(drawn(1), [0]) == [4]


@pytest.mark.parametrize("ids", [[100, 3], ["x", "x"], [100], [100, 101, 102], [100, True]])
def test_a_refused_addition_changes_nothing(kind, ids):
    bank = filled(kind, 10)
    before = state(bank)
    with pytest.raises(InvalidInput):
        bank.add(drawn(2), [0, 1], ids=ids)
    assert state(bank) == before
    assert bank.add(drawn(1), [0]) == [10]


# --- input


@every_index
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_named_by_row_and_column(index, value):
    bank, vectors = filled({"index": index}), drawn(8)
    vectors[6, 2] = value
    for call in (lambda: bank.add(vectors, [0] * 8), lambda: bank.search(vectors, 2)):
        with pytest.raises(InvalidInput, match="NaN or infinity at row 6 column 2"):
            call()
    assert len(bank) == 60


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_vector_at_the_norm_bound_is_found_and_one_beyond_it_refused(kind, dtype):
    bank, vectors = filled(kind), drawn(2, seed=5)
    long = (MAX_NORM * 0.999 * vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(dtype)
    bank.add(long, [0, 1], ids=["long", "longer"])
    near = bank.search(long, 62)
    assert near.found.all()
    assert near.ids[:, 0].tolist() == ["long", "longer"]
    for factor in (1.01, 1e15):
        beyond = long.copy()
        beyond[1] *= dtype(factor)
        with pytest.raises(InvalidInput, match=r"row 1 has length .*the limit is 1e\+18"):
            bank.add(beyond, [0, 1])
    with pytest.raises(InvalidInput, match="limit"):
        bank.search(np.full((1, DIM), 1e300), 1)


def test_the_wrong_width_is_refused_with_both_widths(kind):
    bank = filled(kind)
    for call in (lambda: bank.add(drawn(2, dim=3), [0, 1]), lambda: bank.search(drawn(2, dim=3), 1)):
        with pytest.raises(InvalidInput, match=rf"\(n, {DIM}\), got \(2, 3\)"):
            call()
    with pytest.raises(InvalidInput, match=r"got \(5,\)"):
        bank.search(np.zeros(DIM), 1)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"labels": [0]}, "expected 2 labels"),
        ({"labels": [0, -1]}, "0 or more, got -1"),
        ({"labels": [0.0, 1.0]}, "integers, got dtype float64"),
        ({"labels": ["a", "b"]}, "integers"),
        ({"labels": [0, 10**26]}, "integers"),
        ({"labels": np.array([0, 2**64 - 1], np.uint64)}, "labels"),
        ({"groups": [1]}, "2 integer groups"),
        ({"groups": [1.5, 2]}, "2 integer groups"),
        ({"weights": [1.0]}, "expected 2 weights"),
        ({"weights": [1.0, -1.0]}, "finite and not negative"),
        ({"weights": [1.0, np.nan]}, "finite and not negative"),
        ({"metadata": [{}]}, "2 vectors, but 1 metadata"),
        ({"metadata": [None, {"a": object()}]}, "metadata of row 1 cannot be saved"),
        ({"metadata": ["text", None]}, "metadata of row 0"),
        ({"vectors": [["a"] * DIM] * 2}, "must be numbers"),
        ({"vectors": np.zeros((2, DIM), complex)}, "must be numbers"),
    ],
)
def test_a_column_that_does_not_fit_is_refused(columns, message):
    bank = filled({})
    with pytest.raises(InvalidInput, match=message):
        bank.add(**{"vectors": drawn(2), "labels": [0, 1], **columns})
    assert len(bank) == 60


@every_index
def test_a_vector_keeps_the_precision_it_came_in(index, tmp_path):
    fine = drawn(9) + 1e-12
    for dtype in (np.float64, np.float32):
        bank = MemoryBank(DIM, index=index)
        bank.add(fine.astype(dtype), [0] * 9)
        bank.save(tmp_path / dtype.__name__)
        for held in (bank, MemoryBank.load(tmp_path / dtype.__name__)):
            assert held.vectors(held.live).dtype == dtype
            np.testing.assert_array_equal(held.vectors(held.live), fine.astype(dtype))


@every_index
def test_float64_added_to_float32_loses_nothing_of_either(index):
    first, second = drawn(9).astype(np.float32), drawn(9, seed=1)
    bank = MemoryBank(DIM, index=index)
    bank.add(first, [0] * 9)
    bank.add(second, [1] * 9)
    bank.update([0], vectors=second[:1] + 1)
    expected = np.concatenate([first.astype(np.float64), second])
    expected[0] = second[0] + 1
    np.testing.assert_array_equal(bank.vectors(bank.live), expected)
    agree(bank, drawn(5, seed=2), 5, expected, bank.ids)


def read_only(array, folder):
    array.flags.writeable = False
    return array


def mapped(array, folder):
    np.save(folder / "vectors.npy", array)
    return np.load(folder / "vectors.npy", mmap_mode="r")


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "laid_out",
    [
        read_only,
        mapped,
        lambda array, folder: np.asfortranarray(array),
        lambda array, folder: np.repeat(array, 2, axis=1)[:, ::2],
        lambda array, folder: array[::-1][::-1],
        lambda array, folder: array.tolist(),
        lambda array, folder: torch.from_numpy(array),
        lambda array, folder: array.astype(array.dtype.newbyteorder()),
    ],
    ids=["read-only", "memory-mapped", "F-ordered", "strided", "reversed", "list", "torch", "byte-swapped"],
)
@every_index
def test_input_laid_out_in_any_way_works_and_stays_untouched(index, laid_out, dtype, tmp_path):
    plain = drawn(30).astype(dtype)
    given = laid_out(plain.copy(), tmp_path)
    bank = MemoryBank(DIM, index=index)
    bank.add(given, [0] * 30)
    near = bank.search(given, 3)
    bank.update([0], vectors=given[1:2])
    bank.update([0], vectors=given[0:1])
    bank.remove([29])
    np.testing.assert_array_equal(np.asarray(given), plain)
    reference = MemoryBank(DIM, index=index)
    reference.add(plain, [0] * 30)
    assert near.ids.tolist() == reference.search(plain, 3).ids.tolist()


@every_index
@pytest.mark.parametrize("dtype", [np.int64, np.uint8, bool, np.float16])
def test_other_numbers_are_vectors_too(index, dtype):
    vectors = (np.abs(drawn(9)) * 3).astype(dtype)
    bank = MemoryBank(DIM, index=index)
    bank.add(vectors, [0] * 9)
    np.testing.assert_array_equal(bank.vectors(bank.live), vectors.astype(np.float64))


def test_what_was_added_is_a_copy(kind):
    vectors, labels = drawn(20), np.zeros(20, int)
    bank = MemoryBank(DIM, **kind)
    bank.add(vectors, labels)
    before = state(bank)
    vectors[:] = 9
    labels[:] = 9
    bank.vectors(bank.live)[:] = 9
    bank.labels(bank.live)[:] = 9
    bank.search(drawn(2), 3).labels[:] = 9
    assert state(bank) == before


@pytest.mark.parametrize("options", [{"dim": 0}, {"dim": 2.0}, {"dim": True}, {"index": "tree"}, {"metric": "l1"}])
def test_a_bank_of_unknown_make_is_refused(options):
    with pytest.raises(InvalidInput, match="must be"):
        MemoryBank(**{"dim": DIM, **options})


@pytest.mark.parametrize("rows", [[-1], [10], [2.0], [[0, 99]]])
def test_rows_that_are_not_there_are_refused(rows):
    bank = filled({}, 10)
    for read in (bank.vectors, bank.labels, bank.weights, bank.reliability):
        with pytest.raises(InvalidInput, match="row"):
            read(rows)


def test_the_rows_of_removed_ids_are_refused():
    bank = filled({}, 10)
    rows = bank.rows([3, 4])
    bank.remove([4])
    with pytest.raises(InvalidInput, match="no such row"):
        bank.vectors(rows)


# --- weights and metadata


@every_index
def test_weights_come_with_the_answer_where_any_differs_from_one(index, tmp_path):
    weights = np.linspace(0, 3, 20)
    bank = filled({"index": index}, 20, weights=weights)
    bank.save(tmp_path / "bank")
    for held in (bank, MemoryBank.load(tmp_path / "bank")):
        near = held.search(drawn(4, seed=1), 6)
        np.testing.assert_array_equal(near.weights, weights[near.rows])
        np.testing.assert_array_equal(held.weights(near.rows), weights[near.rows])
    assert filled({"index": index}).search(drawn(1), 2).weights is None


METADATA = [{"name": "Zoë", "nested": {"list": [1, 2.5, None, True]}}, None, {}, {"": "=cmd"}]


@every_index
@pytest.mark.parametrize("metadata", [METADATA, [{}] * 4, [None] * 4])
def test_metadata_stays_with_its_row(index, metadata, tmp_path):
    bank = filled({"index": index}, 4, metadata=metadata)
    bank.save(tmp_path / "all")
    assert MemoryBank.load(tmp_path / "all").metadata([0, 1, 2, 3]) == metadata
    bank.remove([1])
    bank.save(tmp_path / "less")
    assert MemoryBank.load(tmp_path / "less").metadata([0, 1, 2]) == [metadata[0], *metadata[2:]]


# --- save, load, copy


def edited(kind, offset=50.0):
    """A bank with a past: added to twice, moved, relabeled, removed from."""
    bank = filled(kind, 200, offset=offset, groups=np.arange(200) // 2, weights=np.linspace(0, 1, 200))
    bank.add(drawn(50, seed=7, offset=2 * offset), [1] * 50, ids=[f"late {at}" for at in range(50)])
    bank.update([3, 4, 5], vectors=drawn(3, seed=8, offset=offset))
    bank.update([6], labels=[2])
    return bank


WAYS = {
    "save": lambda bank, folder: (bank.save(folder / "bank"), MemoryBank.load(folder / "bank"))[1],
    "pickle": lambda bank, folder: pickle.loads(pickle.dumps(bank)),
    "deepcopy": lambda bank, folder: copy.deepcopy(bank),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("removed", [[], [0, 7, "late 3"]])
def test_a_bank_read_back_is_the_bank_that_was_kept(kind, way, removed, tmp_path):
    bank = edited(kind)
    bank.remove(removed)
    queries = np.concatenate([drawn(20, seed=1, offset=50.0), drawn(20, seed=2, offset=100.0)])
    before = bank.search(queries, 6, exclude=[10, None] * 20)
    held = WAYS[way](bank, tmp_path)
    assert (held.dim, held.index, held.metric, len(held)) == (bank.dim, bank.index, bank.metric, len(bank))
    assert state(held)[:-1] == state(bank)[:-1]
    after = held.search(queries, 6, exclude=[10, None] * 20)
    assert after.ids.tolist() == before.ids.tolist()
    np.testing.assert_array_equal(after.distances, before.distances)
    rows = held.rows(bank.ids)
    np.testing.assert_array_equal(held.reliability(rows), bank.reliability(bank.live))
    agree(held, queries, 6, bank.vectors(bank.live), bank.ids)


def test_a_copy_goes_its_own_way(kind):
    bank = filled(kind, 30)
    before = state(bank)
    twin = copy.deepcopy(bank)
    twin.remove([0, 1, 2])
    twin.update([5], vectors=drawn(1, seed=70), labels=[9])
    assert state(bank) == before


def test_an_empty_bank_can_be_kept(kind, tmp_path):
    MemoryBank(DIM, **kind).save(tmp_path / "bank")
    bank = MemoryBank.load(tmp_path / "bank")
    assert bank.add(drawn(3), [0, 1, 2]) == [0, 1, 2]
    assert bank.search(drawn(3), 1).found.all()


def test_a_loaded_bank_can_be_edited_like_any_other(kind, tmp_path):
    edited(kind).save(tmp_path / "bank")
    bank = MemoryBank.load(tmp_path / "bank")
    bank.add(drawn(10, seed=20, offset=50.0), [0] * 10)
    bank.remove([0, 1])
    bank.update([2], vectors=drawn(1, seed=21, offset=50.0))
    agree(bank, drawn(9, seed=22, offset=50.0), 7, bank.vectors(bank.live), bank.ids)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_bytes_of_a_removed_row_are_nowhere_in_a_saved_folder(kind, dtype, tmp_path):
    bank = MemoryBank(DIM, **kind)
    vectors = drawn(40).astype(dtype)
    secret = {"who": "a-name-not-to-be-kept"}
    bank.add(vectors, [0] * 40, ids=[f"person {at}" for at in range(40)], metadata=[secret] + [None] * 39)
    bank.update(["person 1"], vectors=vectors[2:3] + 1)

    def anywhere(needle):
        return any(needle in file.read_bytes() for file in (tmp_path / "bank").iterdir())

    bank.save(tmp_path / "bank")
    assert anywhere(vectors[0].tobytes())
    assert anywhere(b"a-name-not-to-be-kept")
    bank.remove(["person 0"])
    bank.save(tmp_path / "fresh")
    bank.save(tmp_path / "bank")
    bank.save(tmp_path / "bank")  # files of the manifest before go with the next save
    for folder in ("fresh", "bank"):
        for file in (tmp_path / folder).iterdir():
            content = file.read_bytes()
            gone = vectors[0].tobytes(), vectors[0].astype(np.float32).tobytes(), b"not-to-be", b"person 0"
            for needle in gone:
                assert needle not in content, f"{file.name} still holds {needle[:12]!r}"
            assert vectors[1].astype(np.float32).tobytes() not in content, "the place a row has left"


# --- recall


@pytest.mark.slow
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("index", ["hnsw", "ivf"])
def test_approximate_indexes_recall_95_percent_of_20000_clustered_vectors(index, metric):
    rng = np.random.default_rng(12)
    centers = 4 * rng.normal(size=(100, 64))
    drawn_from = centers[rng.integers(0, 100, 20_500)] + rng.normal(size=(20_500, 64))
    vectors, queries = drawn_from[:20_000].astype(np.float32), drawn_from[20_000:].astype(np.float32)
    bank = MemoryBank(64, index=index, metric=metric)
    bank.add(vectors, np.zeros(20_000, int))
    near = bank.search(queries, 10)
    gaps = truth(queries, vectors, metric)
    best = np.argpartition(gaps, 10, axis=1)[:, :10]
    hits = [len(set(ours) & set(theirs)) for ours, theirs in zip(near.rows.tolist(), best.tolist(), strict=True)]
    assert np.mean(hits) / 10 >= 0.95
