"""The command `singa-dask shard`: its options, and what it says."""

from __future__ import annotations

import signal
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner, Result
from support.commands import command_undone

from singa_dask.cli.data import shard
from singa_dask.data import Manifest
from singa_dask.data.ingest import assemble, write

DRAW = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch) -> Path:
    """The current folder, with an HDF5 file of one's own and a table."""
    monkeypatch.chdir(tmp_path)
    with h5py.File("mine.h5", "w") as file:
        file.create_dataset("data/X", data=DRAW.standard_normal((60, 3, 8, 8)).astype("f4"), compression="gzip")
        file["data/y"] = DRAW.standard_normal(60)
        file["flat/X"] = DRAW.standard_normal((60, 8))
    pd.DataFrame(
        {
            "rooms": DRAW.integers(1, 4, 90),
            "place": ["sea", "hill", "city"] * 30,
            "built": ["03.01.1970", "04.01.1970", "05.01.1970"] * 30,
            "age": [1.0, 2.0, np.nan] * 30,
            "price": DRAW.random(90),
        }
    ).to_csv("houses.csv", index=False)
    return tmp_path


def ran(*arguments: object) -> Result:
    return CliRunner().invoke(shard, [str(argument) for argument in arguments])


def test_columns_and_the_next_command_are_told():
    said = ran("hdf5", "--source", "mine.h5", "--x", "data/X", "--y", "data/y", "--out", "out", "--test", 0.1)
    assert said.exit_code == 0, said.output
    lines = said.output.splitlines()
    assert lines[:3] == [
        "out/train: 54 samples in 1 shard, in random order",
        "out/test: 6 samples in 1 shard, in random order",
        "  x  feature  float32 (3, 8, 8), channels first",
    ]
    assert lines[3].startswith("  y  target   float64, mean ") and lines[4] == "  read from: hdf5"
    assert lines[-2:] == [
        "  If the channels are not there, say --channels first, last or none.",
        "Next: singa-dask new out --out job.conf",
    ]
    said = ran("hdf5", "--source", "mine.h5", "--x", "data/X", "--channels", "last", "--out", "last")
    assert "last: 60 samples in 1 shard, in the order of the source" in said.output
    assert "float32 (3, 8, 8), channels last\n" in said.output and "say --channels" not in said.output


def test_encoders_of_tables_are_told():
    options = ["--missing", "age=mean", "--category", "rooms", "--category", "place=hill,city,sea"]
    said = ran(
        "csv", "--source", "houses.csv", "--label", "price", "--date", "built=%d.%m.%Y", *options, "--out", "out"
    )
    assert said.exit_code == 0, said.output
    lines = said.output.splitlines()
    assert lines[1:6] == [
        "  x  feature  float32 (6,)",
        "    rooms  3 categories, one-hot: 1, 2, 3; others are an error; missing: an error",
        "    place  3 categories, numbered: hill, city, sea; others are an error; missing: an error",
        "    built  date, days since 1970-01-03; missing: an error",
        "    age    number; missing: 1.5",
    ]
    assert "  formats of dates: built=%d.%m.%Y" in lines
    assert (
        lines[-2] == "  Note: column 'price' holds numbers with fractions: it is a target (regression), not a label."
    )
    features = Manifest.load("out").features
    assert features.names == ("rooms=1", "rooms=2", "rooms=3", "place", "built", "age")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--label", "place", "--x", "rooms", "--x", "price"], "  y  label    int64, 3 classes: city, hill, sea"),
        (
            ["--target", "price", "--drop", "built", "--missing", "7"],
            "    age    number; missing: 7.0",
        ),
    ],
)
def test_what_became_of_a_column_is_told(arguments, line):
    said = ran("csv", "--source", "houses.csv", *arguments, "--out", "out")
    assert line in said.output.splitlines(), said.output


def test_without_out_the_source_is_listed():
    said = ran("hdf5", "--source", "mine.h5")
    assert said.exit_code == 0
    assert "  data/X  float32 (60, 3, 8, 8)  gzip, chunks" in said.output
    assert said.output.endswith("Add --out FOLDER to write shards.\n")
    assert "  built  text" in ran("csv", "--source", "houses.csv").output
    said = ran("csv", "--source", "houses.csv", "--separator", ";").output
    assert "  0  text\nIs the separator another one? --separator ','\nAdd --out" in said
    assert "column '0': 'rooms' is not a number" in ran("csv", "--source", "houses.csv", "--no-header").output
    for arguments in (["hdf5"], ["images", "--source", "."], ["digits"]):
        said = ran(*arguments)
        assert said.exit_code == 2 and "Missing option '--out'" in said.output


def test_hdf5_files_can_stay_where_they_are():
    said = ran("hdf5", "--source", "mine.h5", "--x", "flat/X", "--y", "data/y", "--in-place", "--out", "out")
    assert "out: 60 samples in 1 file, read in place" in said.output


@pytest.mark.parametrize(
    ("arguments", "code", "fault"),
    [
        (["hdf5", "--source", "a.h5", "b.h5"], 2, "'b.h5' is one file too many. Put a pattern in quotation marks"),
        (["hdf5", "--source", "mine.h5", "--x", "data/X", "--in-place"], 1, "Leave out --in-place"),
        (["hdf5", "--source", "mine.h5"], 1, "say which datasets are the features (--x)"),
        (["csv", "--source", "houses.csv"], 1, "say which column holds the classes (--label NAME)"),
        (["csv", "--source", "houses.csv", "--target", "price"], 1, "column 'age': 30 value(s) are missing"),
        (["csv", "--source", "houses.csv", "--missing", "1", "--missing", "age=2"], 2, "one VALUE for all columns"),
        (["csv", "--source", "houses.csv", "--missing", "1", "--missing", "2"], 2, "one VALUE for all columns"),
        (["images", "--source", ".", "--resize", "3"], 2, "is not a valid size. Write HEIGHTxWIDTH"),
        (["hdf5", "--source", "mine.h5", "--resize", "3x3"], 2, "resize: is not an option of hdf5"),
        (["digits", "--workers", "2", "--scheduler", "tcp://x"], 2, "--workers starts a cluster of its own"),
    ],
)
def test_errors_tell_the_way_out(folder, arguments, code, fault):
    said = ran(*arguments, "--out", "out")
    assert (said.exit_code, fault in said.output) == (code, True), said.output
    assert not (folder / "out").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_command_in_order_and_the_next_one_goes_on(folder, monkeypatch, caplog, number):
    for name in "pqrs":
        pd.DataFrame({"a": DRAW.random(9), "b": DRAW.random(9)}).to_csv(f"{name}.csv", index=False)
    arguments, finish = ("csv", "--source", "[p-s].csv", "--target", "b", "--out", "out"), assemble.finish

    def signalled(*args, **options):
        signal.raise_signal(number)
        return finish(*args, **options)

    def fatal(*args):
        pytest.fail("the signal would have killed the process")

    with command_undone():
        signal.signal(number, fatal)
        monkeypatch.setattr(signal, "SIG_DFL", fatal)
        monkeypatch.setattr(write, "HELD_NBYTES", 0)
        monkeypatch.setattr(assemble, "finish", signalled)
        said = ran(*arguments)
    assert said.exit_code == 130 and said.stderr.splitlines()[-1] == "interrupted"
    (kept,) = folder.glob(".out.parts-*")
    assert f"{kept}: what is done is kept. The same command resumes from there." in caplog.text
    monkeypatch.setattr(assemble, "finish", finish)
    said = ran(*arguments)
    assert said.exit_code == 0 and not list(folder.glob(".out.*"))
