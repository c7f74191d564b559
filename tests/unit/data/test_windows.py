"""Windows of time series: which records they have, in which order, and what the loader makes of them."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.shards import write_shards

from singa_dask import shard
from singa_dask.data import Loader, Manifest, StreamConf, make_stream, series_starts, store_info, stream_of
from singa_dask.data.columns import Column, Role
from singa_dask.data.manifest import Shard
from singa_dask.data.schema import Schema
from singa_dask.data.windows import Step, falls
from singa_dask.errors import ConfigError
from singa_dask.job.job_pb2 import Phase, StoreProto

COLUMNS = (Column("x", Role.FEATURE, "float32", (2,)), Column("y", Role.TARGET, "float32", ()))
CONF = StreamConf(4, 3, sequence=5, horizon=2)


def manifest_of(total, window=8):
    shard = Shard("shard-00000.h5", total, ("0" * 32,) * -(-total // window))
    return Manifest(total, Schema(COLUMNS), window, (shard,))


def starts(stream, steps):
    return np.concatenate([stream.batch(step)[:, 0] for step in range(steps)])


@st.composite
def streams(draw):
    sequence, horizon, stride = draw(st.integers(1, 9)), draw(st.integers(0, 5)), draw(st.integers(1, 4))
    ngroups, window = draw(st.integers(1, 3)), draw(st.integers(1, 9))
    total = draw(st.integers(sequence + horizon + 40 * ngroups, 300))
    form = {"sequence": sequence, "horizon": horizon, "stride": stride}
    groups = {"group": draw(st.integers(0, ngroups - 1)), "ngroups": ngroups}
    return stream_of(
        manifest_of(total, window), StreamConf(draw(st.integers(1, 9)), draw(st.integers(0, 99)), **groups, **form)
    )


@settings(max_examples=80)
@given(streams(), st.integers(0, 40), st.integers(1, 5))
def test_rows_are_windows_and_all_workers_together_have_the_batch(stream, step, nranks):
    batch, conf = stream.batch(step), stream.conf
    assert batch.shape == (conf.batchsize, conf.sequence + conf.horizon)
    assert (np.diff(batch) == 1).all() and (batch[:, 0] % conf.stride == 0).all()
    assert batch.min() >= 0 and batch.max() < stream.manifest.total
    shares = [stream.share(step, rank, nranks) for rank in range(nranks)]
    np.testing.assert_array_equal(np.concatenate([rows for _, rows in shares]), batch)
    np.testing.assert_array_equal(stream_of(stream.manifest, conf).batch(step), batch)


@settings(max_examples=40)
@given(streams())
def test_the_groups_share_the_windows_and_an_epoch_has_each_of_them_once(stream):
    conf, manifest = replace(stream.conf, batchsize=1), stream.manifest
    groups = [stream_of(manifest, replace(conf, group=group)) for group in range(conf.ngroups)]
    found = np.concatenate([starts(group, group.samples) for group in groups])
    last = manifest.total - conf.sequence - conf.horizon
    np.testing.assert_array_equal(np.sort(found), np.arange(0, last + 1, conf.stride))


def test_every_epoch_has_an_order_of_its_own_and_mixes_all_parts_of_a_series():
    stream = stream_of(manifest_of(10_000, 128), replace(CONF, batchsize=64))
    first, second = (np.concatenate([stream.run(i, i + 1) for i in range(e, e + 64)]) for e in (0, stream.samples))
    assert not np.array_equal(first, second)
    assert stream.batch(0)[:, 0].std() > 0.2 * 10_000
    other = stream_of(manifest_of(10_000, 128), replace(CONF, batchsize=64, seed=4))
    assert not np.array_equal(stream.batch(0), other.batch(0)) and stream.fingerprint != other.fingerprint


@pytest.mark.parametrize("series", [(), (37,), (10, 30, 90)])
def test_no_window_has_records_of_two_series_or_of_both_sides_of_the_cut(series):
    manifest, conf = manifest_of(120), replace(CONF, batchsize=1, series=series, validation_share=0.3)
    of_record = np.searchsorted(series, np.arange(120), side="right")
    held = np.concatenate([np.arange(n) >= n - round(0.3 * n) for n in np.bincount(of_record)])
    seen = []
    for held_out in (False, True):
        stream = stream_of(manifest, replace(conf, held_out=held_out, once=held_out, shuffle=not held_out))
        rows = np.concatenate([stream.batch(step) for step in range(stream.samples)])
        assert (held[rows] == held_out).all()
        assert (of_record[rows] == of_record[rows[:, :1]]).all()
        seen.append(len(np.unique(rows)))
    assert seen[0] == (~held).sum() or len(series) == 3  # where the first series is too short
    assert (np.diff(rows[:, 0]) > 0).all() and stream.steps == stream.samples


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"sequence": 0}, r"store_conf\.sequence: must be at least 1"),
        ({"horizon": -1, "stride": 1}, r"store_conf\.horizon: must not be negative"),
        ({"lookahead": 1}, r"store_conf\.lookahead: is not for windows"),
        ({"sequence": 49}, r"no window of 49 records and a horizon of 2 fits .* train of .*: at most 50 follow"),
        ({"validation_share": 0.1, "held_out": True}, r"held out of .*: at most 5 follow each other"),
        ({"series": tuple(range(1, 50))}, r"at most 1 follow each other.* series must follow"),
        ({"ngroups": 9}, "9 worker groups cannot share the"),
    ],
)  # fmt: skip
def test_faults_name_the_key_and_the_way_out(change, fault):
    with pytest.raises(ConfigError, match=fault):
        stream_of(manifest_of(50), replace(CONF, **change))


def test_windows_of_shuffled_records_are_refused():
    with pytest.raises(ConfigError, match=r"sequence: .*in random order. Received: 5"):
        stream_of(replace(manifest_of(50), order="shuffled, seed 0"), CONF)


@pytest.fixture
def series(tmp_path):
    """Record i of `x` holds i and -i, its target 10 i, its series i // 40."""
    numbers = np.arange(100, dtype=np.float32)
    arrays = {"x": np.stack([numbers, -numbers], 1), "station": np.arange(100) // 40}
    return shard(arrays, 10 * numbers, tmp_path / "series", nshards=3, window=8, shuffle=False)[""]


@pytest.mark.parametrize("nranks", [1, 3])
@pytest.mark.parametrize("horizon", [0, 1, 3])
def test_the_loader_reads_each_window_and_the_targets_after_it(series, pool, nranks, horizon):
    store = StoreProto(path=str(series.folder), batchsize=[7], sequence=5, horizon=horizon, stride=2, column="x")
    stream = make_stream(store, store_info(store).manifest, seed=1)
    loaders = [Loader(stream, store, pool.submit, rank, nranks) for rank in range(nranks)]
    for step in range(20):
        batches, rows = [loader.next() for loader in loaders], stream.batch(step)
        features = np.concatenate([batch.features for batch in batches])
        labels = np.concatenate([batch.labels for batch in batches])
        np.testing.assert_array_equal(features[..., 0], rows[:, :5])
        np.testing.assert_array_equal(features[..., 1], -rows[:, :5])
        np.testing.assert_array_equal(labels[..., 0], 10 * (rows[:, 5:] if horizon else rows))
    for loader in loaders:
        loader.close()


@pytest.mark.parametrize("nranks", [1, 2])
def test_the_loader_reads_samples_that_are_sequences(tmp_path, pool, nranks):
    x = np.arange(20 * 4 * 3, dtype=np.float32).reshape(20, 4, 3)
    folder = write_shards(tmp_path / "s", x, np.arange(20.0), 2, window=4).folder
    store = StoreProto(path=str(folder), batchsize=[6], time_steps=4, mean=[1, 2, 3])
    stream = make_stream(store, store_info(store).manifest, seed=1)
    loaders = [Loader(stream, store, pool.submit, rank, nranks) for rank in range(nranks)]
    stored, targets = (np.concatenate(part) for part in zip(*[_stored(folder, i) for i in range(2)], strict=True))
    for step in range(5):
        batches = [loader.next() for loader in loaders]
        features = np.concatenate([batch.features for batch in batches])
        np.testing.assert_array_equal(features, stored[stream.batch(step)] - np.float32([1, 2, 3]))
        labels = np.concatenate([batch.labels for batch in batches])
        np.testing.assert_array_equal(labels.reshape(-1), targets[stream.batch(step)])
    for loader in loaders:
        loader.close()


def _stored(folder, index):
    import h5py

    with h5py.File(folder / f"shard-{index:05d}.h5", locking=False) as file:
        return file["x"][:], file["y"][:]


def test_time_steps_are_the_first_dimension(tmp_path):
    folder = write_shards(tmp_path / "s", np.zeros((8, 4, 3), np.float32), np.zeros(8)).folder
    with pytest.raises(
        ConfigError, match=r"time_steps: must be the first dimension of .*'x'. Received: 3, .*\(4, 3\)"
    ):
        store_info(StoreProto(path=str(folder), batchsize=[2], time_steps=3))
    with pytest.raises(ConfigError, match="time_steps: 4 instead"):
        store_info(StoreProto(path=str(folder), batchsize=[2], sequence=4, shape=[3]))


def test_the_default_order_is_random_in_training_and_that_of_time_elsewhere(series):
    store = StoreProto(path=str(series.folder), batchsize=[4], sequence=5, horizon=1, column="x")
    manifest = store_info(store).manifest
    assert make_stream(store, manifest, seed=1).conf.shuffle
    held = make_stream(store, manifest, seed=1, phase=Phase.kTest, once=True)
    np.testing.assert_array_equal(starts(held, held.steps), np.arange(100 - 5))


def hourly(tmp_path, order, **columns):
    """Shards of a table with a column of dates, whose rows are in this order."""
    pd = pytest.importorskip("pandas")
    time = pd.Timestamp("2020-01-01") + pd.to_timedelta(np.asarray(order), unit="h")
    table = pd.DataFrame({"time": time, "load": np.arange(len(order), dtype="f4"), **columns})
    shard(table, np.arange(len(order)) / 7, tmp_path / "s", shuffle=False, overwrite=True)
    return Manifest.load(tmp_path / "s")


def test_records_that_are_not_in_the_order_of_their_dates_are_refused(tmp_path, caplog):
    n, order = 60, np.arange(60)
    assert series_starts(hourly(tmp_path, order)) == []
    assert series_starts(hourly(tmp_path, order, other=np.datetime64("2020-01-01") + np.roll(order, 1))) == []
    for wrong, count in (
        (order[::-1], n - 1),
        (np.roll(order, 7), 1),
        (order.reshape(2, -1).T.reshape(-1), n // 2 - 1),
    ):
        with pytest.raises(
            ConfigError,
            match=rf"in the order of time, .* time falls {count} time{'s' * (count > 1)}\. Sort the source",
        ):
            series_starts(hourly(tmp_path, wrong))
    for station in (np.repeat([1.0, 2.0], n // 2), np.repeat(["north", "south"], n // 2)):
        manifest = hourly(tmp_path, order % (n // 2), station=station)
        assert series_starts(manifest, "station") == [n // 2]
        with pytest.raises(ConfigError, match=r"time falls 1 time\. Sort"):
            series_starts(manifest)
    with pytest.raises(ConfigError, match=r"no such column.*staton.*It has: .*load, station"):
        series_starts(manifest, "staton")
    assert not caplog.records
    series_starts(hourly(tmp_path, np.where(order < 20, order, order + 48)))
    assert "time has 1 gap, which windows cross" in caplog.text


def after(step, rows=48, start="2024-01-01"):
    """Times that follow each other at this step, in minutes: one, or one for each."""
    passed = np.concatenate([[0], np.cumsum(np.broadcast_to(step, rows - 1))])
    return np.datetime64(start, "us") + (passed * 60e6).astype("m8[us]")


JITTER = np.random.default_rng(0).uniform(-15, 15, 48)
EVENTS = np.random.default_rng(0).exponential(60, (2, 400))
STEPS = {
    "an hour": after(60),
    "jitter": after(60) + (JITTER * 60e6).astype("m8[us]"),
    "a jitter of seconds": after(60) + (JITTER * 1e6).astype("m8[us]"),
    "gaps": np.delete(after(60), [*range(4, 14), 30]),
    "repeats": np.repeat(after(60), 2),
    "months": np.arange("2023-01", "2024-01", dtype="M8[M]").astype("M8[D]"),
    "months of leap years": np.arange("2023-12", "2024-08", dtype="M8[M]").astype("M8[D]"),
    "quarters": np.arange("2020", "2022", 3, dtype="M8[M]").astype("M8[D]"),
    "other quarters": np.arange("2021-10", "2022-10", 3, dtype="M8[M]").astype("M8[D]"),
    "years": np.arange("2000", "2009", dtype="M8[Y]").astype("M8[D]"),
    "years of no leap": np.arange("2001", "2004", dtype="M8[Y]").astype("M8[D]"),
    "months as numbers": np.arange("2022-06", "2024-01", dtype="M8[M]").astype("M8[D]").astype(float),
    "other months as numbers": np.arange("2023-01", "2023-06", dtype="M8[M]").astype("M8[D]").astype(float),
    "spans": after(60) - after(60)[0],
    "days in float32": ((after(60) - np.datetime64("2023-01-01")) / np.timedelta64(1, "D")).astype("f4"),
    "minutes": after(1),
    "minutes in float32 days, a year on": (400 + np.arange(600) / 1440).astype("f4"),
    "minutes in float32 days, 34 years on": (12_400 + np.arange(600) / 1440).astype("f4"),
    "numbers": np.arange(0, 480, 10),
    "events": after(EVENTS[0], 401),
    "other events": after(EVENTS[1], 401),
    **{f"{minutes} minutes": after(minutes) for minutes in (30, 50, 54, 58, 59.9, 60.1, 62, 66, 70)},
    **{f"{days} days": after(days * 1440) for days in (7, 7.1, 360, 365)},
    "11 as a number": np.arange(0, 528, 11),
}
SAME = [
    ("an hour", ["jitter", "a jitter of seconds", "gaps", "repeats", "spans", "days in float32", "59.9 minutes"]),
    ("jitter", ["an hour", "a jitter of seconds", "gaps", "60.1 minutes", "days in float32"]),
    ("months", ["months of leap years"]),
    ("quarters", ["other quarters"]),
    ("years", ["years of no leap", "365 days"]),
    ("months as numbers", ["other months as numbers"]),
    ("minutes", ["minutes in float32 days, a year on", "minutes in float32 days, 34 years on"]),
    ("events", ["other events"]),
    ("numbers", ["an hour"]),
]
OTHER = [
    ("an hour", [f"{minutes} minutes" for minutes in (30, 50, 54, 58, 62, 66, 70)]),
    ("gaps", ["50 minutes", "66 minutes"]),
    ("days in float32", ["54 minutes", "70 minutes"]),
    ("repeats", ["54 minutes", "62 minutes"]),
    ("jitter", ["30 minutes"]),
    ("months", ["quarters", "years", "7 days"]),
    ("7 days", ["7.1 days"]),
    ("years", ["360 days"]),
    ("minutes in float32 days, 34 years on", ["an hour"]),
    ("numbers", ["11 as a number"]),
]


@pytest.mark.parametrize(("one", "other"), [(one, other) for one, others in SAME for other in others])
def test_steps_are_the_same_up_to_what_clocks_and_calendars_vary(one, other):
    a, b = (Step.of(STEPS[name]) for name in (one, other))
    assert a.size > 0 and b.size > 0 and not a.differs(b) and not b.differs(a), (a, b)


@pytest.mark.parametrize(("one", "other"), [(one, other) for one, others in OTHER for other in others])
def test_other_regular_steps_differ_by_more_than_a_hundredth(one, other):
    a, b = (Step.of(STEPS[name]) for name in (one, other))
    assert a.differs(b) and b.differs(a), (a, b)


@pytest.mark.parametrize(
    ("own", "trained", "told"),
    [
        ("an hour", "numbers", "steps by 1:00:00, and by 10 in training: a number has no unit"),
        ("numbers", "an hour", "steps by 10, and by 1:00:00 in training: a number has no unit"),
        ("months as numbers", "months", "a number has no unit, so they are not compared. Give dates in both"),
        ("spans", "an hour", ""),
        ("days in float32", "an hour", ""),
        ("numbers", "11 as a number", ""),
    ],
)
def test_a_step_without_a_unit_is_told_beside_one_with_it(own, trained, told, caplog):
    Step.of(STEPS[own]).warn_of_unit(Step.of(STEPS[trained]), "X")
    assert told in caplog.text and bool(told) == bool(caplog.records)
    assert not Step.of(np.arange(9)).warn_of_unit(Step.of(STEPS["an hour"]), "X")  # it counts the records


@pytest.mark.parametrize("name", [name for name in STEPS if "float32" in name])
def test_what_float32_rounds_is_no_gap_and_no_repeat(name, caplog):
    assert not falls([("t", STEPS[name])], [], "X") and not caplog.records


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("still", [np.zeros(48), np.repeat(np.datetime64("2024-01-01"), 48)])
def test_times_that_never_change_tell_no_order(place, still, caplog):
    rising, falling = [("t", after(60))], [("t", after(60)[::-1])]
    for times in (rising, falling):
        times.insert(place, ("still", still))
    assert falls(falling, [], "X") == {"t": 47} and not falls(rising, [], "X") and not caplog.records
    assert not falls([("still", still)], [], "X") and "still repeats 47 times" in caplog.text
