import builtins

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from attnknn.data import read_table_file
from attnknn.errors import InvalidInput, MissingData, MissingExtra


@pytest.fixture
def write(tmp_path):
    def to_file(content, name="rows.csv"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return to_file


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("bom", ["", "\ufeff"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_reads_every_separator_with_quotes_and_gaps(write, separator, bom, end):
    lines = [["a", "näme", "y"], ["1", '"x, y; z"', "u"], ["", "NA", "v"], ["3", '"q""q"', "u"]]
    frame, y = read_table_file(write(bom + end.join(map(separator.join, lines)) + end), "y")
    assert list(frame.columns) == ["a", "näme"]
    np.testing.assert_array_equal(frame["a"], [1.0, np.nan, 3.0])
    assert frame["näme"].isna().tolist() == [False, True, False]
    assert frame["näme"].tolist()[0::2] == ["x, y; z", 'q"q']
    assert y.tolist() == ["u", "v", "u"]
    assert y.dtype.kind == "U"


def test_without_a_target_every_column_is_a_feature(write):
    frame, y = read_table_file(write("a,b\n1,2\n"))
    assert (list(frame.columns), y) == (["a", "b"], None)


def test_labels_keep_their_type(write):
    assert read_table_file(write("a,y\n1,3\n1,4\n"), "y")[1].dtype == np.int64
    assert read_table_file(write("a,y\n1,True\n1,False\n"), "y")[1].dtype == np.bool_


def test_parquet_reads_like_the_frame_that_was_written(tmp_path):
    frame = pd.DataFrame({"a": [1.5, None], "c": pd.Categorical(["u", "v"]), "y": pd.array([1, 2], "Int64")})
    frame.to_parquet(tmp_path / "t.parquet")
    features, y = read_table_file(tmp_path / "t.parquet", "y")
    pd.testing.assert_frame_equal(features, frame[["a", "c"]])
    assert (y.tolist(), y.dtype) == ([1, 2], np.int64)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b" \n\n", "is empty"),
        (b"\xef\xbb\xbf", "is empty"),
        (b"\x00\x01\x02", "binary zeros"),
        (b"a,b\n\xff\xfe,2\n", "not UTF-8 text.*byte 4"),
        ("a,b\n1,2\n".encode("utf-16"), "not UTF-8|binary"),
        (b"a,b\n", "no rows"),
        (b"a,b\n1,2\n1,2,3\n", "line 3: 3 fields, but the header has 2"),
        (b"a,b\n1,2\n1\n", "line 3: 1 fields"),
        (b"a,b\n1,2,3\n4,5,6\n", "line 2: 3 fields"),
        (b"a,a\n1,2\n", "'a' appears more than once"),
        (b'a,b\n"1,2\n', "rows.csv"),
    ],
)
def test_text_that_is_no_table_is_refused_with_the_file_and_the_reason(write, content, message):
    path = write(content)
    with pytest.raises(InvalidInput, match=message) as caught:
        read_table_file(path)
    assert str(path) in str(caught.value)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.binary(max_size=60), st.sampled_from(["rows.csv", "rows.parquet"]))
def test_no_bytes_make_anything_but_a_table_or_our_error(write, content, name):
    try:
        frame, _ = read_table_file(write(content, name))
    except InvalidInput:
        return
    assert len(frame)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.text(st.sampled_from('a1,;\t"\n\r '), max_size=40))
def test_no_text_makes_anything_but_a_table_or_our_error(write, content):
    try:
        frame, _ = read_table_file(write(content))
    except InvalidInput:
        return
    assert len(frame)


def test_the_target_must_be_there_and_complete(write):
    path = write("a,y\n1,u\n2,\n3,NA\n")
    with pytest.raises(InvalidInput, match="no column 'z'; its columns are: a, y"):
        read_table_file(path, "z")
    with pytest.raises(InvalidInput, match=r"'y' is missing in 2 rows \(1, 2, counted from 0\)"):
        read_table_file(path, "y")
    with pytest.raises(InvalidInput, match="no column besides"):
        read_table_file(write("y\n1\n"), "y")


def test_a_target_of_lists_or_dates_is_refused(tmp_path):
    for values in ([[1], [1, 2]], [[1], [2]], pd.to_datetime(["2020-01-01", "2020-01-02"])):
        pd.DataFrame({"a": [1, 2], "y": values}).to_parquet(tmp_path / "t.parquet")
        with pytest.raises(InvalidInput, match="neither numbers nor text"):
            read_table_file(tmp_path / "t.parquet", "y")


def test_absent_files_folders_and_unknown_extensions_are_named(tmp_path, write):
    with pytest.raises(MissingData, match=r"no such file: .*gone\.csv"):
        read_table_file(tmp_path / "gone.csv")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(InvalidInput, match="not a file"):
        read_table_file(tmp_path / "folder.csv")
    with pytest.raises(InvalidInput, match=r"'\.xlsx'; expected one of: \.csv"):
        read_table_file(write(b"x", "t.xlsx"))


def test_parquet_without_pyarrow_says_what_to_install(write, monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.partition(".")[0] == "pyarrow":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    path = write(b"PAR1", "t.parquet")
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtra, match=r"pip install 'attnknn\[parquet\]'"):
        read_table_file(path)


def test_a_column_of_numbers_with_one_word_far_down_reads_without_a_warning(write):
    rows = "\n".join(["1"] * 50_000 + ["word"])
    frame, _ = read_table_file(write(f"a\n{rows}\n"))
    assert len(frame) == 50_001
