"""CSV files as a source."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.sources import read_all

from singa_dask.data.columns import Role
from singa_dask.data.sources import csv, files
from singa_dask.data.sources.source import Source
from singa_dask.data.sources.tables import check_distinct
from singa_dask.errors import ConfigError, DataError


def loaded(tmp_path: Path, text: str, **options) -> Source:
    (tmp_path / "t.csv").write_text(text, encoding="utf-8")
    return csv.load(tmp_path / "t.csv", **options)[""]


@pytest.mark.parametrize(
    ("text", "options", "values", "y"),
    [
        ("1,2,3\n0,4,5\n", {}, {"1": [2, 4], "2": [3, 5], "0": [1, 0]}, ("0",)),  # SINGA: the label comes first
        ("a,b,label\n1,2,1\n3,4,0\n", {}, {"a": [1, 3], "b": [2, 4], "label": [1, 0]}, ("label",)),
        ("a,b,kind\n1,2,x\n3,4, w \n", {"label": "kind"}, {"a": [1, 3], "b": [2, 4], "kind": ["x", "w"]}, ("kind",)),
        ("1;x\r\n3;w\r\n", {"label": -1, "separator": ";"}, {"0": [1, 3], "1": ["x", "w"]}, ("1",)),
        ("1,2,9\n3,4,8\n", {"label": 1, "header": True}, {"2": [4], "9": [8], "1": [3]}, ("1",)),
        ("a,b\n", {"header": False, "label": "0", "category": 1}, {"1": ["b"], "0": ["a"]}, ("0",)),
        ("\ufeff1,2\n\n0,-3e2\n", {}, {"1": [2, -300], "0": [1, 0]}, ("0",)),
        ('"1"," 2"\n"0","3"', {"label": "0"}, {"1": [2, 3], "0": [1, 0]}, ("0",)),
        ("1,2\n3,4\n", {"label": "none"}, {"0": [1, 3], "1": [2, 4]}, ()),
        ("a,b,y\n1,2,3\n", {"x": "b"}, {"b": [2], "y": [3]}, ("y",)),
        ("id,b,y\n1,2,3\n", {"drop": ["id"]}, {"b": [2], "y": [3]}, ("y",)),
        ("a,label\ntrue,1\nfalse,2\n", {}, {"a": [True, False], "label": [1, 2]}, ("label",)),
        ('a,y\n"p\nq",1\n"r""s",2\n', {}, {"a": ["p\nq", 'r"s'], "y": [1, 2]}, ("y",)),
        ("a,y\n1,2\nx,3\n", {"category": "a"}, {"a": ["1", "x"], "y": [2, 3]}, ("y",)),
    ],
)
def test_csv_files_are_tables(tmp_path, text, options, values, y):
    source = loaded(tmp_path, text, **options)
    assert source.table and source.y == y
    assert source.x == tuple(name for name in values if name not in y)
    assert {name: column.tolist() for name, column in read_all(source).items()} == values


def test_missing_values_stay_missing(tmp_path):
    found = loaded(tmp_path, "a,b,y\n1,,0\n,x,1\nNA,NA,2\n").blocks[0].read()
    assert found["a"].isna().tolist() == [False, True, True]
    assert found["b"].isna().tolist() == [True, False, True]


@pytest.mark.parametrize(
    ("text", "options", "days"),
    [
        ("d,y\n1970-01-03,1\n1970-01-01T12:00:00,2\n", {}, [2, 0.5]),
        ("d,y\n03.01.1970,1\n02.02.1970,2\n", {"date": "d=%d.%m.%Y"}, [2, 32]),
    ],
)
def test_dates_are_recognised_or_have_a_format(tmp_path, text, options, days):
    found = read_all(loaded(tmp_path, text, **options))["d"]
    assert ((found - np.datetime64(0, "D")) / np.timedelta64(1, "D")).tolist() == days


@pytest.mark.parametrize(
    ("text", "options", "role"),
    [
        ("a,price\n1,2.5\n3,1\n", {"label": "price"}, Role.TARGET),
        ("0.5,1\n1.5,2\n", {"label": 0, "header": False}, Role.TARGET),
        ("a,price\n1,2\n3,1\n", {"label": "price"}, Role.LABEL),
        ("a,price\n1,2\n3,1\n", {"target": "price"}, Role.TARGET),
        ("a,price\n1,2.5\n3,1\n", {"y": "price"}, None),
    ],
)
def test_labels_with_fractions_are_targets(tmp_path, text, options, role):
    source = loaded(tmp_path, text, **options)
    assert source.roles.get(source.y[0]) == role
    moved = "label" in options and role == Role.TARGET
    assert [note for note in source.notes if "is a target (regression)" in note] == [*source.notes]
    assert bool(source.notes) == moved


@pytest.mark.parametrize("quoted", [False, True])
def test_blocks_end_with_lines(tmp_path, monkeypatch, quoted):
    monkeypatch.setattr(files, "BLOCK_NBYTES", 64)
    monkeypatch.setattr(csv, "BLOCK_NBYTES", 64)
    note = '"one, \n two"' if quoted else "one"
    text = "i,note,y\n" + "".join(f"{i},{note},{i % 3}\n" for i in range(200))
    source = loaded(tmp_path, text)
    assert len(source.blocks) > 20
    found = read_all(source)
    assert found["i"].tolist() == list(range(200))
    assert set(found["note"]) == {note.strip('"')}


def test_later_blocks_are_read_as_the_first_one(tmp_path, monkeypatch):
    monkeypatch.setattr(csv, "BLOCK_NBYTES", 16)
    source = loaded(tmp_path, "a,b,y\n1,k,0\n2,l,1\n3,m,0\n0.5,n,1\n")
    assert len(source.blocks) == 2
    assert read_all(source)["a"].dtype == np.float64
    with pytest.raises(DataError, match=r"line 5, column 'a': 'oops' is not a number.*--category a"):
        read_all(loaded(tmp_path, "a,b,y\n1,k,0\n2,l,1\n3,m,0\noops,n,1\n"))
    with pytest.raises(DataError, match=r"line 6, column 'y': 'z' is not a number"):
        read_all(loaded(tmp_path, "a,b,y\n1,k,0\n2,l,1\n3,m,0\n4,n,1\n4,n,z\n"))
    with pytest.raises(DataError, match="line 5 has 2 columns, but the first line has 3"):
        read_all(loaded(tmp_path, "a,b,y\n1,k,0\n2,l,1\n3,m,0\n4,n\n"))


def test_several_files_have_the_same_header(tmp_path):
    for name, text in (("b.csv", "a,y\n3,4\n"), ("a.csv", "a,y\n1,2\n")):
        (tmp_path / name).write_text(text)
    assert read_all(csv.load(tmp_path / "*.csv")[""])["a"].tolist() == [1, 3]
    (tmp_path / "c.csv").write_text("y,a\n1,2\n")
    with pytest.raises(DataError, match=r"c\.csv: its first line does not name the same columns as that of .*a\.csv"):
        csv.load(tmp_path)


@pytest.mark.parametrize(
    ("text", "options", "fault"),
    [
        ("", {}, "is empty"),
        ("label,a\n", {"header": True}, "no samples"),
        ("1,2\n3\n", {}, "line 2 has 1 columns, but the first line has 2"),
        ("1,2\n3,4,5\n", {}, "line 2 has 3 columns, but the first line has 2"),
        ("label,a\n1,2\n0,oops\n", {}, "line 3, column 'a': 'oops' is not a number"),
        ("lbl,a\n1,2\n", {"label": "lab"}, r"no column 'lab'\. Did you mean lbl"),
        ("1,2\n1,2\n", {"label": 2}, r"columns 0 to 1\. Received: 2"),
        ("1\n2\n", {}, "no feature columns besides '0'"),
        ("1,2\n", {"separator": "ab"}, "separator"),
        ("a,a\n1,2\n", {}, "two columns named 'a'"),
        ("a,b\n1,2\n", {}, r"which column holds the classes \(--label NAME\).*\n.*\n  a  whole number"),
        ("a,y,label\n1,2,3\n", {}, "which column holds the classes"),
        ("a,y\n07:30:00,2\n", {"date": "a"}, "lines from 2 on cannot be read"),
        ('a,y\n"p,1\n' + "q,2\n" * 99, {}, "cannot be read|has 1 columns|not closed"),
    ],
)
def test_faults_of_csv_files_name_the_line(tmp_path, text, options, fault):
    with pytest.raises(DataError, match=fault):
        read_all(loaded(tmp_path, text, **options))


def test_a_column_that_is_used_cannot_be_dropped(tmp_path):
    with pytest.raises(ConfigError, match="drop: the column is also used"):
        loaded(tmp_path, "a,y\n1,2\n", drop=["y"])


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"a,y\n\xff\xfe,1\n", "not a UTF-8"),
        (b"\x1f\x8b\x08\x00\x00\x00", "is compressed.*gunzip"),
        (("a,y\n" + "z" * 100 + ",1\n").encode("utf-16"), "not a UTF-8"),
    ],
)
def test_other_encodings_are_errors(tmp_path, data, fault):
    (tmp_path / "t.csv").write_bytes(data)
    with pytest.raises(DataError, match=fault):
        csv.load(tmp_path / "t.csv")


def test_open_quotation_marks_do_not_fill_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(csv, "BLOCK_NBYTES", 64)
    monkeypatch.setattr(csv, "_MAX_OPEN_QUOTE", 100)
    with pytest.raises(DataError, match=r"a quotation mark after line 2 is not closed"):
        loaded(tmp_path, "a,y\n" + 'q",2\n' + "q,2\n" * 99)


def test_tables_of_very_many_columns(tmp_path):
    names = [f"c{i}" for i in range(200_000)]
    check_distinct("t.csv", names)
    with pytest.raises(DataError, match="two columns named 'c7'"):
        check_distinct("t.csv", [*names, "c7"])
    wide = [*names[:10_000], "label"]
    cells = ["1"] * 10_000 + ["0"]
    bad = ["1"] * 9_999 + ["x", "0"]
    with pytest.raises(DataError, match="line 3, column 'c9999': 'x' is not a number") as refused:
        loaded(tmp_path, "\n".join(map(",".join, (wide, cells, bad))))
    assert len(str(refused.value)) < 500
    with pytest.raises(DataError, match=r"has no column 'd'\. .*c0, .* and 9,\d\d\d more") as refused:
        loaded(tmp_path, "\n".join(map(",".join, (wide, cells))), label="d")
    assert len(str(refused.value)) < 1500


def test_lines_longer_than_a_megabyte(tmp_path, monkeypatch):
    monkeypatch.setattr(csv, "SAMPLE_NBYTES", 100)
    names = [f"column{i}" for i in range(100)]
    rows = [names, ["1"] * 100, ["2"] * 100]
    source = loaded(tmp_path, "\n".join(map(",".join, rows)), label="column99")
    assert source.x == tuple(names[:-1]) and source.blocks[0].read()["column98"].tolist() == [1, 2]
    monkeypatch.setattr(csv, "BLOCK_NBYTES", 600)
    with pytest.raises(DataError, match=r"t\.csv: its first line has more than 600 bytes"):
        loaded(tmp_path, "\n".join(map(",".join, rows)))


def test_cells_longer_than_python_reads_are_said_to_be(tmp_path):
    with pytest.raises(DataError, match=r"a cell of line 2 has more than 131,072 characters.*quotation mark"):
        loaded(tmp_path, "a,label\n" + "x" * 200_000 + ",1\n")


def test_open_quotation_marks_do_not_take_time(tmp_path, monkeypatch):
    monkeypatch.setattr(csv, "BLOCK_NBYTES", 64)
    monkeypatch.setattr(csv, "_MAX_OPEN_QUOTE", 400_000)
    with pytest.raises(DataError, match="a quotation mark after line 2 is not closed"):
        loaded(tmp_path, "a,y\n" + 'q",2\n' + "q,2\n" * 110_000)


def test_files_that_shrink_are_errors(tmp_path):
    source = loaded(tmp_path, "a,y\n1,2\n3,4\n")
    (tmp_path / "t.csv").write_text("a,y\n")
    with pytest.raises(DataError, match="was truncated"):
        read_all(source)


def test_a_missing_library_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow.csv", None)
    with pytest.raises(DataError, match=re.escape("pip install '.[tables]'")):
        loaded(tmp_path, "1,2\n")


def test_values_agree_with_pandas(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"f": rng.standard_normal(300), "i": rng.integers(-9, 9, 300), "y": rng.integers(0, 3, 300)})
    frame.to_csv(tmp_path / "t.csv", index=False)
    found = read_all(csv.load(tmp_path / "t.csv")[""])
    for name in frame:
        np.testing.assert_array_equal(found[name], frame[name])
