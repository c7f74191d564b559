"""CSV files as a source."""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path

import pandas as pd
import pytest
from pyarrow.csv import ConvertOptions
from support.sources import read_all, write_file

from singa_dask.data.columns import Role
from singa_dask.data.schema import Reading
from singa_dask.data.sources import csv, dialect, files
from singa_dask.data.sources.source import Source
from singa_dask.errors import DataError


def loaded(tmp_path: Path, text: str, **options) -> Source:
    return csv.FORMAT.load(write_file("csv", tmp_path / "t.csv", text), **options)[""]


DAY, NOON = datetime(1970, 1, 3), datetime(1970, 1, 1, 12)


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
        ("a,b,y\n1,1,2\nx,2,3\n", {"drop": "a"}, {"b": [1, 2], "y": [2, 3]}, ("y",)),
        ("a,y\n1,2\nx,3\n", {"category": "a"}, {"a": ["1", "x"], "y": [2, 3]}, ("y",)),
        ("a,b,y\n1,,0\n,x,1\nNA,NA,2\n", {}, {"a": [1, None, None], "b": [None, "x", None], "y": [0, 1, 2]}, ("y",)),
        ("d,y\n1970-01-03,1\n1970-01-01T12:00:00,2\n", {}, {"d": [DAY, NOON], "y": [1, 2]}, ("y",)),
        ("d,y\n03.01.1970,1\n", {"date": "d=%d.%m.%Y"}, {"d": [DAY], "y": [1]}, ("y",)),
    ],
)
def test_csv_files_are_tables(tmp_path, text, options, values, y):
    source = loaded(tmp_path, text, **options)
    assert source.table and source.y == y
    assert source.x == tuple(name for name in values if name not in y)
    found = {name: column.tolist() for name, column in read_all(source).items()}
    assert {name: [None if pd.isna(v) else v for v in column] for name, column in found.items()} == values


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


def test_texts_that_are_missing_values_are_those_of_the_docs(tmp_path):
    page = Path(__file__).parents[4] / "docs" / "shard-options.md"
    marks = page.read_text().split("Missing values of a CSV file", 1)[1].split("`--category`", 1)[0]
    texts = ["", *re.findall("`(.+?)`", marks)]
    assert {*texts} == {*ConvertOptions().null_values}
    column = read_all(loaded(tmp_path, "a,y\n" + "".join(f"{text},1\n" for text in [*texts, "x"]), category="a"))["a"]
    assert pd.isna(column).tolist() == [True] * len(texts) + [False]


@pytest.mark.parametrize("quoted", [False, True])
def test_blocks_end_with_lines(tmp_path, monkeypatch, quoted):
    monkeypatch.setattr(files, "BLOCK_NBYTES", 64)
    monkeypatch.setattr(dialect, "BLOCK_NBYTES", 64)
    note = '"one, \n two"' if quoted else "one"
    text = "i,note,y\n" + "".join(f"{i},{note},{i % 3}\n" for i in range(200))
    source = loaded(tmp_path, text)
    assert len(source.blocks) > 20
    found = read_all(source)
    assert found["i"].tolist() == list(range(200))
    assert set(found["note"]) == {note.strip('"')}


def test_whole_numbers_of_the_first_block_become_fractions_in_later_ones(tmp_path, monkeypatch):
    monkeypatch.setattr(dialect, "BLOCK_NBYTES", 16)
    source = loaded(tmp_path, "a,b,y\n1,k,0\n2,l,1\n3,m,0\n0.5,n,1\n")
    assert len(source.blocks) == 2 and read_all(source)["a"].tolist() == [1, 2, 3, 0.5]


@pytest.mark.parametrize(
    ("cell", "options"),
    [
        ("1970-01-03T02:00:00+02:00", {}),
        ("1970-01-03 00:00Z", {"date": "d"}),
        ("03.01.1970 02:00 +0200", {"date": "d=%d.%m.%Y %H:%M %z"}),
    ],
)
def test_dates_with_a_time_zone_are_in_utc(tmp_path, cell, options):
    source = loaded(tmp_path, f"d,y\n{cell},1\n{cell},2\n", **options)
    assert pd.DatetimeIndex(source.blocks[0].read()["d"]).tz_localize(None).tolist() == [DAY, DAY]
    assert source.reading.types["d"] == "zoned date"


def test_columns_of_dates_have_their_own_formats(tmp_path):
    text = "a,b,c,y\n" + "".join(f"0{i}.02.2024,02.0{i}.2024 ,2024-02-0{i},1\n" for i in range(1, 8))
    days = pd.date_range("2024-02-01", periods=7).tolist()
    found = read_all(loaded(tmp_path, text, date=["a=%d.%m.%Y", "b=%m.%d.%Y"]))
    assert {name: [*found[name]] for name in "abc"} == dict.fromkeys("abc", days)
    found = read_all(loaded(tmp_path, text, date="a=%d.%m.%Y"))
    assert found["b"][0] == "02.01.2024" and [*found["a"]] == [*found["c"]] == days


def test_labels_that_begin_with_0_are_texts(tmp_path, monkeypatch):
    source = loaded(tmp_path, "a,code\n05,007\n06,7\n", label="code")
    assert source.reading.types == {"a": "number", "code": "text"}
    assert source.notes == ("a: read as numbers, so that 05 becomes 5; --category a keeps it, as a category",)
    assert read_all(source)["code"].tolist() == ["007", "7"]
    assert loaded(tmp_path, "a,code\n05,007\n06,7\n", target="code").reading.types["code"] == "integer"
    monkeypatch.setattr(dialect, "BLOCK_NBYTES", 16)
    later = "a,code\n" + "1,7\n" * 9 + "1,007\n"
    with pytest.raises(DataError, match=r"line 11, column 'code': '007' begins with 0, .* Say --category code"):
        read_all(loaded(tmp_path, later, label="code"))
    assert set(read_all(loaded(tmp_path, later, label="code", category="code"))["code"]) == {"7", "007"}


@pytest.mark.parametrize("cell", ["01067", " 01067", '"01067"'])
def test_zeros_that_come_late_are_refused(tmp_path, monkeypatch, cell):
    monkeypatch.setattr(dialect, "BLOCK_NBYTES", 32)
    text = "zip,day,y\n" + "99817,2024-01-05,0.5\n" * 9 + f"{cell},2024-01-05,0.5\n"
    with pytest.raises(DataError, match=r"line 11, column 'zip': '01067' begins with 0, which numbers lose\. Say --c"):
        read_all(loaded(tmp_path, text, target="y"))
    assert read_all(loaded(tmp_path, text, target="y", category="zip"))["zip"].tolist()[-1] == "01067"
    assert read_all(loaded(tmp_path, text.replace("01067", "10670"), target="y"))["zip"].tolist()[-1] == 10670


def test_zeros_that_numbers_lose_are_noted(tmp_path):
    text = "zip,n,month,share,d,y\n99817,0,10,0.5,2024-01-05,1\n, 0,,1,2024-01-06,2\n 01067,1, 01,01,2024-01-07,2\n"
    assert [*loaded(tmp_path, text, target="y").notes] == [
        "zip, month: read as numbers, so that 01067 becomes 1067; --category zip keeps it, as a category"
    ]
    assert not loaded(tmp_path, text, target="y", category=["zip", "month"]).notes


@pytest.mark.parametrize(("separator", "written"), [(";", "';'"), ("\t", r"\$'\\t'"), ("|", r"'\|'"), (",", "','")])
@pytest.mark.parametrize(
    ("options", "fault"), [({"label": "sick"}, "has no column 'sick'"), ({}, "no feature col|line 2 has 2 columns")]
)
def test_another_separator_is_asked_for(tmp_path, separator, written, options, fault):
    text, wrong = "age,sick\n1.5,0\n2.5,1\n".replace(",", separator), ";" if separator == "," else ","
    asked = rf"Is the separator another one\? --separator {written}"
    told = rf"(?s)t.csv: has one column with the separator .*\. {asked} Otherwise: "
    with pytest.raises(DataError, match=rf"{told}.*({fault})"):
        loaded(tmp_path, text, separator=wrong, **options)
    if separator != ",":
        with pytest.raises(DataError, match=rf"{told}.*line 2 has 2 columns"):
            loaded(tmp_path, text.replace(".", ","), **options)
    write_file("csv", tmp_path / "t.csv", text)
    assert re.search(f"{asked}$", csv.FORMAT.listing(tmp_path / "t.csv", separator=wrong))
    assert csv.FORMAT.listing(tmp_path / "t.csv", separator=separator).split()[2:] == [
        "age",
        "number",
        "sick",
        "integer",
    ]


def test_a_given_name_in_the_first_line_makes_it_a_header(tmp_path):
    source = loaded(tmp_path, "kind,answer\na,b\n", label="answer")
    assert (source.x, source.y) == (("kind",), ("answer",))
    assert source.reading == Reading("csv", ",", True, {}, {"kind": "text", "answer": "text"})


def test_several_files_have_the_same_header(tmp_path):
    for name, text in (("b.csv", "a,y\n3,4\n"), ("a.csv", "a,y\n1,2\n")):
        (tmp_path / name).write_text(text)
    assert read_all(csv.FORMAT.load(tmp_path / "*.csv")[""])["a"].tolist() == [1, 3]
    (tmp_path / "c.csv").write_text("y,a\n1,2\n")
    with pytest.raises(DataError, match=r"c\.csv: its first line does not name the same columns as that of .*a\.csv"):
        csv.FORMAT.load(tmp_path)


WIDE = [f"c{i}" for i in range(3_000)]
CELLS = ",".join(["1"] * 3_000 + ["0"])
LATER = "a,b,y\n1,k,0\n2,l,1\n3,m,0\n"


@pytest.mark.parametrize("block_nbytes", [16, 1 << 25])
@pytest.mark.parametrize(
    ("text", "options", "fault"),
    [
        ("", {}, "is empty"),
        ("label,a\n", {"header": True}, "no samples"),
        ("1,2\n3\n", {}, "line 2 has 1 columns, but the first line has 2"),
        ("1,2\n3,4,5\n", {}, "line 2 has 3 columns, but the first line has 2"),
        ("label,a\n1,2\n0,oops\n", {}, "line 3, column 'a': 'oops' is not a number"),
        ("label,a\n1,1_000\n0,2\n", {}, "line 2, column 'a': '1_000' is not a number"),
        ("lbl,a\n1,2\n", {"label": "lab"}, r"no column 'lab'\. Did you mean lbl"),
        ("1\n2\n", {}, "no feature columns besides '0'"),
        ("1,2\n", {"separator": "ab"}, "separator"),
        ("a,a\n1,2\n", {}, "two columns named 'a'"),
        ("a,y,label\n1,2,3\n", {}, "which column holds the classes"),
        ("t,y\n10:30,1\n11:30,0\n", {}, "column 't' holds times of day.*--category, .* --drop"),
        ("a,y\n07:30:00,2\n", {"date": "a"}, "holds no dates of ISO 8601"),
        (
            "d,y\n01.02.2024,1\n\n,1\n2024-02-01,2\n",
            {"date": "d=%d.%m.%Y"},
            "line 5, column 'd': '2024-02-01' is no date of the format '%d.%m.%Y'.*--date d=FORMAT",
        ),
        ('a,y\n"p,1\n' + "q,2\n" * 99, {}, "cannot be read|has 1 columns|not closed"),
        ("t,y\n2024-01-01T10:00Z,1\n2024-01-01T11:00,2\n", {}, "line 3, column 't': .*T11:00' has no time zone"),
        ("t,y\n" + "2024-01-01T10:00,1\n" * 3 + "2024-01-01T10:00+02,2\n", {}, "line 5, .*has a time zone.*have none"),
        (LATER + " ,n,1\n", {}, "line 5, column 'a': ' ' is not a number"),
        (LATER + "oops,n,1\n", {}, r"line 5, column 'a': 'oops' is not a number.*--category a"),
        (LATER + "4,n,1\n4,n,z\n", {}, r"line 6, column 'y': 'z' is not a number"),
        (LATER + "4,n\n", {}, "line 5 has 2 columns, but the first line has 3"),
        (b"a,y\n\xff\xfe,1\n", {}, "not a UTF-8"),
        (("a,y\n" + "z" * 100 + ",1\n").encode("utf-16"), {}, "not a UTF-8"),
        (b"\x1f\x8b\x08\x00\x00\x00", {}, "is compressed.*gunzip"),
        (",".join([*WIDE, "c7"]) + f"\n{CELLS}", {}, "two columns named 'c7'"),
        (",".join([*WIDE, "y"]) + f"\n{CELLS}\n{CELLS[:-4]},x,0", {}, "line 3, column 'c2999': 'x' is not a number"),
        (",".join([*WIDE, "y"]) + f"\n{CELLS}", {"label": "d"}, r"no column 'd'\. .*c0, .* and 2,\d\d\d more"),
        ("a,label\n" + "x" * 200_000 + ",1\n", {}, r"a cell of line 2 has more than 131,072 characters.*quotation"),
    ],
)  # fmt: skip
def test_faults_of_csv_files_name_the_line(tmp_path, monkeypatch, text, options, fault, block_nbytes):
    path = write_file("csv", tmp_path / "t.csv", text)
    monkeypatch.setattr(dialect, "BLOCK_NBYTES", block_nbytes)
    with pytest.raises(DataError, match=fault) as refused:
        read_all(csv.FORMAT.load(path, **options)[""])
    assert len(str(refused.value)) < 1500


@pytest.mark.parametrize(("most", "lines"), [(100, 99), (400_000, 110_000)])
def test_open_quotation_marks_do_not_take_memory_or_time(tmp_path, monkeypatch, most, lines):
    monkeypatch.setattr(dialect, "BLOCK_NBYTES", 64)
    monkeypatch.setattr(dialect, "_MAX_OPEN_QUOTE", most)
    with pytest.raises(DataError, match="a quotation mark after line 2 is not closed"):
        loaded(tmp_path, "a,y\n" + 'q",2\n' + "q,2\n" * lines)


def test_lines_longer_than_a_megabyte(tmp_path, monkeypatch):
    for module in (csv, dialect):
        monkeypatch.setattr(module, "SAMPLE_NBYTES", 100)
    names = [f"column{i}" for i in range(100)]
    text = "\n".join(map(",".join, (names, ["1"] * 100, ["2"] * 100)))
    source = loaded(tmp_path, text, label="column99")
    assert source.x == tuple(names[:-1]) and source.blocks[0].read()["column98"].tolist() == [1, 2]
    monkeypatch.setattr(dialect, "BLOCK_NBYTES", 600)
    with pytest.raises(DataError, match=r"t\.csv: its first line has more than 600 bytes"):
        loaded(tmp_path, text)
