"""Splits by a date or number, by groups and by a column: of tables, arrays and Dask collections."""

import dask.dataframe as dd
import h5py
import numpy as np
import pandas as pd
import pytest
from support.blocks import stored

from singa_dask import shard
from singa_dask.data.ingest import blocks
from singa_dask.data.manifest import Manifest
from singa_dask.data.sharding import shard_files
from singa_dask.data.sources import dialect
from singa_dask.data.windows import series_starts
from singa_dask.errors import ConfigError, DataError

ROWS = 120
TABLE = pd.DataFrame(
    {
        "a": np.arange(ROWS, dtype=float),
        "day": pd.Timestamp("2010-01-01") + pd.to_timedelta(np.arange(ROWS)[::-1], "D"),
        "station": np.array(list("abcdefghij"))[np.arange(ROWS) % 10],
        "part": np.where(np.arange(ROWS) % 3 == 0, "Test", "train"),
        "y": np.arange(ROWS, dtype=float),
    }
)


def rows(made):
    """The rows of the source in each split, checked to be all of them."""
    found = {split: np.sort(stored(manifest)["row"]) for split, manifest in made.items()}
    np.testing.assert_array_equal(np.sort(np.concatenate([*found.values()])), np.arange(ROWS))
    return found


@pytest.fixture(params=["csv", "parquet", "pandas", "dask", "hdf5"])
def written(request, tmp_path, monkeypatch):
    """Write the columns of TABLE with these splits, from several blocks; the manifests."""
    monkeypatch.setattr(dialect, "BLOCK_NBYTES", 1000)
    monkeypatch.setattr(blocks, "BLOCK_NBYTES", 2000)

    def write(columns=("a",), **options):
        kind, out = request.param, tmp_path / "out"
        used = TABLE[[*dict.fromkeys([*columns, "day", "station", "part", "y"])]]
        if kind in ("pandas", "dask"):
            table = (
                used.drop(columns="y") if kind == "pandas" else dd.from_pandas(used.drop(columns="y"), npartitions=4)
            )
            y = used["y"] if kind == "pandas" else dd.from_pandas(used["y"], npartitions=4)
            x = table[[*columns]]
            return shard(x, y, out, durable=False, split_data=table[["a", "day", "station", "part"]], **options)
        source = tmp_path / f"t.{kind if kind != 'hdf5' else 'h5'}"
        if kind == "hdf5":
            with h5py.File(source, "w") as file:
                for name in used.drop(columns="day"):
                    file[name] = used[name] if used[name].dtype.kind == "f" else used[name].tolist()
                days = ((used["day"] - pd.Timestamp("2010-01-01")) / pd.Timedelta(1, "D")).to_numpy("i8")
                file["day"] = days
                file["day"].attrs["units"] = "days since 2010-01-01"
        elif kind == "csv":
            used.to_csv(source, index=False)
        else:
            used.to_parquet(source, row_group_size=40)
        return shard_files(kind, out, source=source, x=columns, target="y", **options)

    return write


def test_samples_from_a_date_on_are_for_the_test(written):
    made = written(validation_from="2010-03-01", test_from="2010-04-01")
    found = rows(made)
    days = TABLE["day"].to_numpy()
    assert [*made] == ["train", "validation", "test"]
    assert days[found["train"]].max() < np.datetime64("2010-03-01") <= days[found["validation"]].min()
    assert days[found["validation"]].max() < np.datetime64("2010-04-01") <= days[found["test"]].min()
    assert made["train"].features.names in ((), ("a",))
    assert made["train"].features.mean[0] == pytest.approx(found["train"].mean())


def test_samples_from_a_number_on_are_for_the_test(written):
    found = rows(written(split_by="a", test_from=100, validation=0.1))
    assert found["test"].tolist() == [*range(100, 120)] and 7 < len(found["validation"]) < 13


def test_groups_are_whole(written):
    made = written(test_groups={"station": 0.3}, validation_groups="station")
    stations = {split: {*TABLE["station"][own]} for split, own in rows(made).items()}
    assert {split: len(own) for split, own in stations.items()} == {"train": 5, "validation": 2, "test": 3}


def test_a_column_names_the_splits(written):
    assert rows(written(split_column="part"))["test"].tolist() == [*range(0, ROWS, 3)]


def test_groups_depend_on_the_seed_alone(tmp_path, monkeypatch):
    chosen = []
    for seed, nbytes in ((0, 1 << 20), (0, 500), (2, 1 << 20)):
        monkeypatch.setattr(blocks, "BLOCK_NBYTES", nbytes)
        made = shard(
            TABLE[["a", "station"]], TABLE["y"], tmp_path / "o", seed=seed, overwrite=True, test_groups="station"
        )
        chosen.append({*TABLE["station"][rows(made)["test"]]})
        assert made["train"].features.names == ("a",)  # what only divides is no feature
    assert chosen[0] == chosen[1] != chosen[2] and len(chosen[0]) == 2


def test_whole_numbers_are_the_same_groups_in_every_block(tmp_path):
    halves = [TABLE[["a"]].assign(g=np.arange(ROWS) % 4)[:60], TABLE[["a"]].assign(g=np.arange(ROWS) % 4.0)[60:]]
    for number, half in enumerate(halves):
        half.to_parquet(tmp_path / f"{number}.parquet")
    x = dd.from_map(pd.read_parquet, [tmp_path / "0.parquet", tmp_path / "1.parquet"])
    found = rows(shard(x, None, tmp_path / "out", test_groups={"g": 0.25}))
    assert len({*(found["test"] % 4)}) == 1


@pytest.mark.parametrize("kind", ["csv", "npz", "pandas"])
def test_large_whole_numbers_are_groups_of_their_own(tmp_path, kind):
    a, g = np.arange(80.0), 2**60 + np.arange(80) // 2
    options = {"x": "a", "test_groups": {"g": 0.25}, "shuffle": False}
    if kind == "pandas":
        made = shard(pd.DataFrame({"a": a, "g": g}), None, tmp_path / "out", test_groups={"g": 0.25})
    elif kind == "csv":
        pd.DataFrame({"a": a, "g": g, "y": a / 2}).to_csv(tmp_path / "t.csv", index=False)
        made = shard_files("csv", tmp_path / "out", source=tmp_path / "t.csv", target="y", **options)
    else:
        np.savez(tmp_path / "t.npz", a=a, g=g, y=a / 2)
        made = shard_files("npz", tmp_path / "out", source=tmp_path / "t.npz", target="y", **options)
    assert {split: np.unique(stored(manifest)["row"] // 2).size for split, manifest in made.items()} == {
        "train": 30,
        "test": 10,
    }


FIRST = 1_790_000_000_000_000_000  # float64 has multiples of 256 there
CLOSE = FIRST + np.arange(40) * 50
# A column that steps by less than a float64 of it, and values from which on its rows are for the test.
EXACT = {
    "integers": (CLOSE, [FIRST + 1001, int(CLOSE[21]), str(CLOSE[21]), np.int64(FIRST + 1050)]),
    "unsigned": (CLOSE.astype(np.uint64), [FIRST + 1001, np.uint64(CLOSE[21])]),
    "objects": (CLOSE.astype(object), [FIRST + 1001]),
    "dates": (CLOSE.astype("M8[ns]"), [pd.Timestamp(FIRST + 1001), str(pd.Timestamp(FIRST + 1050))]),
    "zoned dates": (pd.to_datetime(CLOSE, utc=True), [f"{pd.Timestamp(FIRST + 1001)}+00:00"]),
    "timedeltas": (CLOSE.astype("m8[ns]"), [pd.Timedelta(FIRST + 1001), np.timedelta64(FIRST + 1050, "ns")]),
}


@pytest.mark.parametrize(
    ("container", "kind"),
    [*(("pandas", kind) for kind in EXACT), ("csv", "integers"), ("parquet", "integers"), ("parquet", "dates")],
)
def test_where_a_split_begins_is_not_rounded(tmp_path, container, kind):
    column, ends = EXACT[kind]
    table = pd.DataFrame({"a": np.arange(40.0), "at": column, "y": np.arange(40.0)})
    for number, end in enumerate(ends):
        out = tmp_path / str(number)
        how = {"test_from": end, "split_by": "at", "shuffle": False}
        if container == "pandas":
            made = shard(table[["a", "at"]], table["y"], out, **how)
        else:
            getattr(table, f"to_{container}")(tmp_path / "t", index=False)
            made = shard_files(container, out, source=tmp_path / "t", target="y", **how)
        assert np.sort(stored(made["test"])["row"]).tolist() == [*range(21, 40)]


def test_groups_and_splits_of_bytes_are_utf8(tmp_path):
    towns = ["Z\xfcrich", "K\xf6ln", "Bern"]
    data = {"a": np.arange(90.0), "y": np.arange(90.0), "g": np.array([town.encode() for town in towns] * 30)}
    np.savez(tmp_path / "t.npz", **data)
    found = []
    for g in (data["g"], np.array(towns * 30)):
        np.savez(tmp_path / "t.npz", **{**data, "g": g})
        options = {"x": "a", "target": "y", "overwrite": True}
        made = shard_files("npz", tmp_path / "out", source=tmp_path / "t.npz", test_groups="g", **options)
        found.append(np.sort(stored(made["test"])["row"]).tolist())
        with pytest.raises(ConfigError, match=r"column 'g' holds no name of a split.*'Bern'"):
            shard_files("npz", tmp_path / "out", source=tmp_path / "t.npz", split_column="g", **options)
    assert found[0] == found[1] and len(found[0]) == 30


def test_a_column_may_be_called_0(tmp_path):
    x = pd.DataFrame({0: np.arange(ROWS), 1: TABLE["day"], 2: TABLE["part"], 3: TABLE["a"]})
    found = rows(shard(x, None, tmp_path / "out", split_by=0, test_from=100))
    assert found["test"].tolist() == [*range(100, ROWS)]
    x = x[[2, 3]].rename(columns={2: 0})
    assert len(rows(shard(x, None, tmp_path / "out", split_column=0, overwrite=True))["test"]) == ROWS / 3


SPAN = pd.Series(pd.to_timedelta(np.arange(ROWS), "D"))
ZONED = pd.Series(pd.date_range("2024-01-01", periods=ROWS, freq="h", tz="Europe/Zurich"))  # the first is 23:00 UTC


@pytest.mark.parametrize(
    ("day", "start", "first"),
    [
        (SPAN, "30", 30),
        (SPAN, 30.5, 31),
        (SPAN, pd.Timedelta("30D"), 30),
        (SPAN, np.timedelta64(30, "D"), 30),
        (ZONED, pd.Timestamp("2024-01-02", tz="Europe/Zurich"), 24),
        (ZONED, "2024-01-02T00:00+01:00", 24),
        (ZONED, "2024-01-02", 25),
        (TABLE["day"][::-1].reset_index(drop=True), "2010-02", 31),
        (TABLE["day"][::-1].reset_index(drop=True), np.datetime64("2010-02-01T00"), 31),
    ],
)
def test_where_a_split_begins(tmp_path, day, start, first):
    table = pd.DataFrame({"a": TABLE["a"], "t": day})
    found = rows(shard(table, None, tmp_path / "out", split_by="t", test_from=start))
    assert found["test"].tolist() == [*range(first, ROWS)]


def test_the_only_dates_stay_a_feature(tmp_path):
    made = shard(TABLE[["a", "day"]], TABLE["y"], tmp_path / "out", test_from="2010-04-01", shuffle=False)
    assert made["train"].features.names == ("a", "day")
    assert (np.diff(stored(made["test"])["row"]) > 0).all()
    assert (
        made["train"].order
        != shard(TABLE[["a", "day"]], TABLE["y"], tmp_path / "other", test_from="2010-03-01", shuffle=False)[
            "train"
        ].order
    )


def test_windows_know_the_order_of_dates_that_only_split(tmp_path, caplog):
    table = TABLE.assign(day=TABLE["day"][::-1].to_numpy(), number=np.arange(ROWS))
    gap = table["day"].where(table["number"] < 20, table["day"] + SPAN[9])
    twice = table["day"].where(table["number"] != 7, table["day"][6])
    options = {"source": tmp_path / "t.csv", "x": ["a"], "target": "y", "split_by": "day", "test_from": "2010-04-01"}
    for written, by, told in (
        (table, {}, ""),
        (table.assign(day=gap), {}, "time has 1 gap"),
        (table.assign(day=twice), {}, "time repeats 1 times"),
        (table[::-1], {}, "time falls 89 times"),
        (table[::-1], {"split_by": "number", "test_from": 90}, "time falls 89 times"),
        (table[::-1], {"shuffle": True}, ""),
    ):
        caplog.clear()
        written.to_csv(tmp_path / "t.csv", index=False)
        made = shard_files("csv", tmp_path / "out", **{**options, "shuffle": False, "overwrite": True, **by})
        if "falls" in told:
            with pytest.raises(ConfigError, match=told):
                series_starts(Manifest.load(made["train"].folder))
        else:
            series_starts(Manifest.load(made["train"].folder))
            assert told in caplog.text and bool(told) == bool(caplog.records)


def test_groups_on_a_cluster(tmp_path):
    from distributed import Client

    with Client(processes=False, n_workers=1, dashboard_address=None) as client:
        x = dd.from_pandas(TABLE[["a", "station"]], npartitions=4)
        there = rows(shard(x, None, tmp_path / "there", client=client, test_groups="station"))
    here = rows(shard(TABLE[["a", "station"]], None, tmp_path / "here", test_groups="station"))
    assert there["test"].tolist() == here["test"].tolist()


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"test": 0.2, "test_from": "2010-02-01"}, "test_from: and test both make the test samples"),
        ({"test_from": "2010-02-01", "test_groups": "station"}, "test_groups: and test_from both make"),
        ({"split_column": "part", "validation": 0.1}, "validation: cannot be set together with split_column"),
        ({"test_groups": "statoin"}, "test_groups: names a column that X does not have.*'statoin'.*station"),
        ({"split_by": "a"}, "split_by: is for validation_from and test_from"),
        ({"test_from": "2030-01-01"}, "test_from: gets none of 120 samples.*2030-01-01"),
        ({"test_from": "2000-01-01"}, "test_from: leaves none of the 120 samples to train.*2000-01-01"),
        ({"test_from": "soon"}, "test_from: must be a date such as 2010-01-31, .*, as column 'day' has them.*soon"),
        ({"test_from": pd.NaT}, "test_from: must be a date such as 2010-01-31"),
        ({"test_from": "2010-02-01T00:00Z"}, "test_from: must be a date such as 2010-01-31, without a time zone"),
        ({"split_by": "a", "test_from": "2010-01-01"}, "test_from: must be a number"),
        ({"split_by": "station", "test_from": 3}, "split_by: holds texts, which have no order"),
        ({"validation_from": "2010-03-01", "test_from": "2010-02-01"}, "validation_from: must be before test_from"),
        ({"test_groups": {"station": 0.99}}, "test_groups: leaves none of the 10 groups of 'station' to train"),
        ({"test_groups": {"station": 2}}, "test_groups: must be a column, or one with a share between 0 and 1"),
        ({"split_column": "station"}, "split_column: column 'station' holds no name of a split.*'a'.*validation"),
        ({"split_column": "a"}, "split_column: column 'a' holds no name of a split"),
        ({"test": 1.5}, "test: must be a share"),
    ],
)
def test_splits_that_cannot_be_are_named(tmp_path, options, fault):
    with pytest.raises(ConfigError, match=f"(?s){fault}"):
        shard(TABLE.drop(columns="y"), TABLE["y"], tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_missing_values_belong_to_no_split(tmp_path):
    for name, value in (("station", None), ("a", np.nan), ("day", pd.NaT)):
        table = TABLE.drop(columns=["y", "part"]).copy()
        table.loc[7, name] = value
        options = (
            {"test_groups": name}
            if name == "station"
            else {"split_by": name, "test_from": 5 if name == "a" else "2010-02-01"}
        )
        with pytest.raises(
            DataError, match=rf"column '{name}': says which split.*1 value\(s\) are missing, the first in row 7"
        ):
            shard(table, None, tmp_path / "out", **options)


def test_sources_without_columns_refuse_rules(tmp_path):
    with pytest.raises(ConfigError, match=r"(?s)test: needs the samples in shards of their own.*0.2"):
        shard_files("hdf5", tmp_path / "out", source=tmp_path, x="x", in_place=True, test=0.2)
    with pytest.raises(ConfigError, match="test_groups: needs a column, and images has none"):
        shard_files("images", tmp_path / "out", source=tmp_path, test_groups="station")
    TABLE[["a", "y"]].to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(DataError, match=r"has no column of dates\. Say which column splits the samples: --split-by"):
        shard_files("csv", tmp_path / "out", source=tmp_path / "t.csv", target="y", test_from="2010-01-01")
    (tmp_path / "n.csv").write_text("10115,1\n10117,2\n")
    with pytest.raises(DataError, match=r"has no column 'y'.*The file has no header: use these numbers"):
        shard_files("csv", tmp_path / "out", source=tmp_path / "n.csv", target="y")
    with pytest.raises(DataError, match="has no column 'station'"):
        shard_files("csv", tmp_path / "out", source=tmp_path / "t.csv", target="y", test_groups="station")
    with pytest.raises(ConfigError, match=r"(?s)split_by: is missing, and X has not one column of dates"):
        shard(TABLE[["a"]], TABLE["y"], tmp_path / "out", test_from="2010-01-01")
