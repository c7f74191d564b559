"""Dates and large integers in the columns of tables: what they become, and what is said. A table of writings."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from singa_dask import Job, layers, load_model, shard, train, updaters
from singa_dask.cli import main
from singa_dask.data import Manifest, shard_files
from singa_dask.data.sources import csv
from singa_dask.data.sources.source import Wanted
from singa_dask.errors import DataError

N = 30
DAYS = pd.date_range("2020-01-01", periods=N, freq="11D")
IDS = np.arange(N) * 7 + 20_000_001
LOSES = "lose digits, because nets compute in float32: 20000001 becomes 20000000. Leave out"
# The column; as a CSV file and a DataFrame have it: what it becomes, and what a note says.
WRITINGS = {
    "ISO 8601": (DAYS.strftime("%Y-%m-%d"), ("date", ""), ("onehot", "--date c=%Y-%m-%d")),
    "months": (DAYS.strftime("%Y-%m"), ("date", "--category c keeps"), ("onehot", "--date c=%Y-%m ")),
    "days without hyphens": (
        DAYS.strftime("%Y%m%d").astype(int),
        *[
            (
                "number",
                "look like dates, such as 20200101, which becomes 20200100. Dates become days with --date c=%Y%m%d",
            )
        ]
        * 2,
    ),
    "times without hyphens": (DAYS.strftime("%Y%m%dT%H%M"), *[("onehot", "--date c=%Y%m%dT%H%M ")] * 2),
    "names of months": (DAYS.strftime("%d-%b-%Y"), *[("onehot", "--date c=%d-%b-%Y (csv)")] * 2),
    "long names of months": (DAYS.strftime("%d %B %Y"), *[("onehot", "--date c=%d %B %Y (csv)")] * 2),
    "weeks": (DAYS.strftime("%G-W%V-%u"), *[("onehot", "Dates become days with pandas.to_datetime")] * 2),
    "years of two digits": (DAYS.strftime("%y-%m-%d"), *[("onehot", "--date c=%d-%m-%y or %y-%m-%d (csv)")] * 2),
    "days or months first": (
        pd.date_range("2020-01-01", periods=12).strftime("%d/%m/%Y").repeat(3)[:N],
        *[("onehot", "--date c=%d/%m/%Y or %m/%d/%Y (csv)")] * 2,
    ),
    **{
        f"numbers such as {form.format(1.5)}": (
            [form.format(i + 0.5) for i in range(N)],
            *[("onehot", f"look like numbers, such as {form.format(0.5)!r}")] * 2,
        )
        for form in ("${}", "\u2212{}", "({})", "'{}'", "{}D+00", "{} %")
    },
    "numbers of rows": (IDS, *[("number", LOSES)] * 2),
    "the same, some missing": (np.where(IDS % 2, IDS, np.nan), *[("number", LOSES)] * 2),
    "the same as floats": (IDS * 1.0, *[("number", LOSES)] * 2),
    "the same with fractions": (IDS + 0.5, *[("number", "")] * 2),
    "small numbers": (np.arange(N) * 9, *[("number", "")] * 2),
    "years": (DAYS.year + np.arange(N), *[("number", "")] * 2),
}


def table(c):
    return pd.DataFrame({"c": c, "y": np.arange(N) * 1.5})


# A CSV file that trains, lines of a later one, and what its refusal says.
LATER = {
    "other truth": ("c,y\ntrue,1\nfalse,2\n", "yes,1\n", "line 2, column 'c': 'yes' is not true or false"),
    "truth as a number": ("c,y\nTrue,1\nFalse,2\n", "1.0,1\n", "'1.0' is not true or false"),
    "truth and a space": ("c,y\nTrue,1\nFalse,2\n", "True,1\n False,2\n", "line 3, column 'c': ' False' is not true"),
    "another format": ("c,y\n2024-01-02,1\n2024-01-03,2\n", "3.1.2024,1\n", "'3.1.2024' is not a date of ISO 8601"),
    "a word": (
        "c,y\n2024-01-02,1\n2024-01-03,2\n",
        "2024-01-04,1\nsoon,2\n",
        "line 3, column 'c': 'soon' is not a date",
    ),
}


@pytest.mark.parametrize("case", LATER)
def test_a_cell_of_another_kind_is_named(tmp_path, case):
    first, later, said = LATER[case]
    (tmp_path / "a.csv").write_text(first)
    (tmp_path / "b.csv").write_text("c,y\n" + later)
    (source,) = csv.read(str(tmp_path / "a.csv"), Wanted(y=("y",))).values()
    with pytest.raises(DataError) as refused:
        csv.read(str(tmp_path / "b.csv"), Wanted(y=("y",)), types=source.reading.types)
    assert said in str(refused.value)


def test_lines_that_end_with_cr_alone_are_named(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"c,y\r1,2\r3,4\r")
    with pytest.raises(DataError, match=r"has no samples\. Its lines end with CR alone"):
        shard_files("csv", tmp_path / "s", source=str(tmp_path / "a.csv"))


def test_formats_that_arrow_does_not_read_are_refused(tmp_path):
    (tmp_path / "a.csv").write_text("c,y\n2024-W04-7,1\n2024-W05-7,2\n")
    with pytest.raises(DataError, match=r"--date c=%G-W%V-%u: %G is not read from CSV files"):
        shard_files("csv", tmp_path / "s", source=str(tmp_path / "a.csv"), target="y", date="c=%G-W%V-%u")


@pytest.mark.parametrize("container", ["csv", "pandas", "parquet"])
@pytest.mark.parametrize("writing", WRITINGS)
def test_what_a_column_becomes_is_right_or_said(tmp_path, writing, container):
    column, *expected = WRITINGS[writing]
    given, missing = table(column), {"missing": "mean"} if "missing" in writing else {}
    if container == "pandas":
        made = shard(given.drop(columns="y"), given.y, tmp_path / "s", **missing)[""]
    else:
        file = str(tmp_path / f"t.{container}")
        getattr(given, f"to_{container}")(file, index=False)
        made = shard_files(container, tmp_path / "s", source=file, target="y", **missing)[""]
    kind, said = expected[container != "csv"]
    notes = [note for note in made.notes if "another text in every sample" not in note]
    assert made.encoders[0].kind == kind and len(notes) == bool(said) and all(said in note for note in notes)


def test_arrays_of_numbers_that_are_rounded_are_told(tmp_path):
    for values, told in ((IDS, True), (IDS * 1.0, True), (IDS + 0.5, False), (IDS.astype("f4"), False)):
        made = shard(values[:, None], np.arange(N) * 1.5, tmp_path / "s", overwrite=True)[""]
        assert any(LOSES in note for note in made.notes) == told


def test_months_are_read_as_in_training(tmp_path):
    table(WRITINGS["months"][0]).to_csv(tmp_path / "t.csv", index=False)
    shard_files("csv", tmp_path / "s", source=str(tmp_path / "t.csv"), target="y")
    data = layers.RecordInput(path=str(tmp_path / "s"), batchsize=10, normalise=True)
    net = [data, layers.InnerProduct(num_output=1), layers.EuclideanLoss()]
    job = Job(name="j", layers=net, updater=updaters.SGD(lr=0.1), train_steps=3, seed=1)
    run = train(job, processes=False, workspace=tmp_path / "run", curves=False).workspace
    out = CliRunner().invoke(
        main, ["predict", str(run), "--data", str(tmp_path / "t.csv"), "--out", str(tmp_path / "p.csv")]
    )
    assert out.exit_code == 0, out.output
    months = pd.DataFrame({"c": pd.to_datetime(WRITINGS["months"][0])})
    found = pd.read_csv(tmp_path / "p.csv")
    assert np.allclose(found.iloc[:, -1], np.ravel(load_model(run).predict(months)), rtol=1e-5)
    (tmp_path / "t.csv").write_text("c\n2020-01\n2020-01-05\n")
    out = CliRunner().invoke(
        main, ["predict", str(run), "--data", str(tmp_path / "t.csv"), "--out", str(tmp_path / "q.csv")]
    )
    assert "line 3, column 'c': '2020-01-05' is no date of the format '%Y-%m'" in out.output


def test_months_divide_samples_and_name_classes(tmp_path):
    table(WRITINGS["months"][0]).to_csv(tmp_path / "t.csv", index=False)
    made = shard_files("csv", tmp_path / "s", source=str(tmp_path / "t.csv"), target="y", test_from="2020-07")
    assert made["test"].total == (DAYS >= "2020-07").sum()
    shard_files("csv", tmp_path / "l", source=str(tmp_path / "t.csv"), label="c", x="y")
    assert Manifest.load(tmp_path / "l").targets.classes[:2] == ("2020-01", "2020-02")
