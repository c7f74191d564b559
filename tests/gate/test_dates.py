"""Dates and large integers in the columns of tables: what they become, and what is said. A table of writings."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from singa_dask import Job, layers, load_model, shard, train, updaters
from singa_dask.cli import main
from singa_dask.data import Manifest, shard_files

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
    "numbers of rows": (IDS, *[("number", LOSES)] * 2),
    "the same, some missing": (np.where(IDS % 2, IDS, np.nan), *[("number", LOSES)] * 2),
    "the same as floats": (IDS * 1.0, *[("number", LOSES)] * 2),
    "the same with fractions": (IDS + 0.5, *[("number", "")] * 2),
    "small numbers": (np.arange(N) * 9, *[("number", "")] * 2),
    "years": (DAYS.year + np.arange(N), *[("number", "")] * 2),
}


def table(c):
    return pd.DataFrame({"c": c, "y": np.arange(N) * 1.5})


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
