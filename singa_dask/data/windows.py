"""Windows: overlapping rows of consecutive records, in random order, with the answers of the records after them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from singa_dask.data.columns import IDENTITY, Role
from singa_dask.data.encoders import DATES, MISSING, Encoder
from singa_dask.data.manifest import Manifest, ShardWindow
from singa_dask.data.plan import BLOCK_WINDOWS, Stream, StreamConf
from singa_dask.data.sequence import check_order
from singa_dask.data.shards import ShardFolder
from singa_dask.errors import ConfigError, Problem
from singa_dask.job.job_pb2 import StoreProto

RULE = 1  # of the order of windows: increase it with every change of the order, so that old checkpoints are refused
# Windows that start within this many bytes of records, and at most so many of them, are shuffled together.
BLOCK_NBYTES = 64 << 20
MAX_BLOCK = 1 << 20
MAX_SERIES = 100_000
NANOSECONDS = np.timedelta64(106_000, "D")  # int64 has little more
SAME_STEP = 0.01  # two regular steps differ by at most this share of one
SAME_VARYING_STEP = 0.2  # months, and records whose clocks jitter, vary by less
MOST = 0.9
DAY_S = 86_400
LONG_GAP = 1.5  # times the median step between two records: one that is missing makes 2, months differ by less

logger = logging.getLogger(__name__)


class WindowStream(Stream):
    """The stream of windows of T = sequence records, whose answers are those of the H = horizon records after it.

    Windows start every `stride` records of each series. A sample is a window, and its number the one of its first
    record; all else is as in Stream. The shards hold each record once. A window and its horizon lie in one series, and
    either among the records that train or among those held out, which are the last ones of each series.

    Raises ConfigError for values out of range, if the records were shuffled, and if no window fits.
    """

    def __init__(self, manifest: Manifest, conf: StreamConf):
        _check_windows(conf)
        check_order(manifest, conf)
        self._step = max(1, conf.stride)
        super().__init__(manifest, conf)

    def _own_windows(self) -> list[ShardWindow]:
        conf, piece, found = self.conf, max(1, self.manifest.window // self._step), list[ShardWindow]()
        spans = own_spans(self.manifest, conf)
        for begin, end in spans:
            count = (end - begin - conf.sequence - conf.horizon) // self._step + 1
            for first in range(0, count, piece):
                found.append(ShardWindow(0, 0, begin + first * self._step, min(piece, count - first)))
        if not found:
            part = "are held out of" if conf.held_out else "train of"
            longest = max((end - begin for begin, end in spans), default=0)
            message = f"no window of {conf.sequence} records and a horizon of {conf.horizon} fits into those that"
            message += f" {part} {self.manifest.where}: at most {longest:,} follow each other"
            hint = "Use a shorter sequence or horizon, or more data. The records of a series must follow each other: "
            hint += "split by a date (--test-from), not at random, or hold out the last ones with validation_share."
            raise ConfigError(Problem("store_conf.sequence", message, str(conf.sequence), hint))
        return found

    @property
    def row_records(self) -> int:
        """Records in a row of a mini-batch, without its horizon."""
        return self.conf.sequence

    @property
    def block_windows(self) -> int:
        """Many, so that the windows of a mini-batch come from all parts of a series."""
        window = self.manifest.window
        return max(BLOCK_WINDOWS, min(BLOCK_NBYTES // (window * self.manifest.sample_nbytes), MAX_BLOCK // window))

    def _order(self) -> list[Any]:
        conf = self.conf
        return ["windows", RULE, conf.sequence, conf.horizon, self._step, *conf.series, *super()._order()]

    def batch(self, step: int) -> np.ndarray:
        """The record numbers of the group's mini-batch at `step`: (rows, T + H) int64."""
        return super().batch(step)[:, np.newaxis] + np.arange(self.conf.sequence + self.conf.horizon)


def own_spans(manifest: Manifest, conf: StreamConf) -> list[tuple[int, int]]:
    """The first record and the last one + 1 of what training reads of each series, or of what is held out of it."""
    bounds = [0, *conf.series, manifest.total]
    found = []
    for begin, end in pairwise(bounds):
        cut = end - round((end - begin) * conf.validation_share)
        found.append((cut, end) if conf.held_out and conf.validation_share else (begin, cut))
    return [(begin, end) for begin, end in found if begin < end]


def series_starts(manifest: Manifest, name: str = "", records: int = 1) -> list[int]:
    """The first record of each series but the first one: where another file of the source begins, rows of the source
    are missing, or the values of column `name` change. Warns of series with fewer records than that.

    Raises ConfigError if the shards have no such column of single numbers, its values do not tell the series apart,
    there are too many, or dates are not in their order.
    """
    found = np.union1d(*breaks(manifest))
    if name:
        found = np.union1d(found, changes(_series_of(manifest, name)))
    if len(found) >= MAX_SERIES:
        hint = "Write the records of each series one after the other, and split them by a date: --test-from."
        message = f"at most {MAX_SERIES:,} series are possible, and {manifest.where} has {len(found) + 1:,}"
        raise ConfigError(Problem("store_conf.series", message, name or "no column", hint))
    starts = [int(start) for start in found]
    _check_times(manifest, starts)
    warn_of_short(np.diff([0, *starts, manifest.total]), records, manifest.where)
    return starts


def warn_of_short(lengths: np.ndarray, records: int, where: str) -> None:
    """Warn of series that have too few records for a window. lengths: of all series."""
    if 0 < (short := int((lengths < records).sum())) < len(lengths):
        message = (
            "%s: %d of %d series have fewer than %d records, and no window. Keep the records of each series together."
        )
        logger.warning(message, where, short, len(lengths), records)


def changes(values: np.ndarray) -> np.ndarray:
    """The records (N, ...) before which the values change."""
    differ = values[1:] != values[:-1]
    return np.flatnonzero(differ.reshape(len(differ), -1).any(axis=1)) + 1


def _check_times(manifest: Manifest, starts: Sequence[int]) -> None:
    """Raise ConfigError if there are dates, and none is in its order within each series."""
    if late := falls(_dates(manifest), starts, manifest.where):
        told = ", ".join(f"{name} falls {count:,} time{'s' * (count > 1)}" for name, count in late.items())
        message = f"reads windows of records in the order of time, and those of {manifest.where} are not: {told}"
        hint = "Sort the source by time, or by series and time, with a column of numbers for series."
        raise ConfigError(Problem("store_conf.sequence", message, hint=hint))


class Step(NamedTuple):
    """The time from one record to the next: the median in seconds, or as a number without a unit; 0 if it is unknown.
    varies: whether fewer than nine of ten steps are it up to 1 %, without gaps and repeats."""

    size: float = 0.0
    unit: str = ""
    varies: bool = False

    @classmethod
    def of(cls, times: np.ndarray, starts: Sequence[int] = ()) -> Step:
        """That of times (N,): dates, time spans, days in float32, or numbers. starts: of the series but the first
        one."""
        steps = steps_within(times, starts)
        unit, grain = "" if times.dtype.kind in "iuf" and times.dtype != np.float32 else "s", grain_of(times)
        if times.dtype.kind in "mM":
            steps, grain = (each / np.timedelta64(1, "s") for each in (steps, grain))
        elif unit:
            steps, grain = (each.astype(np.float64) * DAY_S for each in (steps, grain))
        if not len(rising := steps[steps > 0]):
            return cls()
        median = np.median(rising)
        near = steps[np.abs(steps - median) <= SAME_STEP * median + grain]
        size = near.mean() if len(near) else median
        return cls(float(size), unit, bool(len(near) < MOST * (rising <= LONG_GAP * median + grain).sum()))

    def differs(self, trained: Step) -> bool:
        """Whether it is another one than in training, if both are known and have a unit or none."""
        share = SAME_VARYING_STEP if self.varies or trained.varies else SAME_STEP
        known = self.size > 0 and trained.size > 0 and self.unit == trained.unit
        return known and not 1 / (1 + share) <= self.size / trained.size <= 1 + share

    def warn_of_unit(self, trained: Step, where: str) -> None:
        """Log that the steps cannot be compared where only one has a unit, unless the other one counts records."""
        sizes = {each.unit: each.size for each in (self, trained) if each.size}
        if len(sizes) > 1 and sizes[""] != 1:
            message = "%s steps by %s, and by %s in training: a number has no unit, so they are not compared. "
            logger.warning(message + "Give dates in both.", where, self, trained)

    def __str__(self) -> str:
        long = self.unit and self.size >= 1
        return str(timedelta(seconds=self.size)) if long else f"{self.size:g}{' s' * bool(self.unit)}"


def record_step(manifest: Manifest, starts: Sequence[int]) -> Step:
    """The step of records: of the times that the shards keep, else of the first column of dates that rises; of numbers
    if there are no dates. starts: of the series but the first one."""
    found = [
        Step.of(times, starts)
        for name, times in _dates(manifest)
        if not falls([(name, times)], starts, "", warns=False)
    ]
    known = [step for step in found if step.size]
    return next((step for step in known if step.unit), known[0] if known else Step())


def check_step(manifest: Manifest, starts: Sequence[int], trained: Step) -> None:
    """Raise ConfigError if the records follow each other at another step than in training, if both are known."""
    check_same_step(record_step(manifest, starts), trained, manifest.where)


def check_same_step(own: Step, trained: Step, where: str) -> None:
    """Raise ConfigError for two different steps, if both are known. where: the records are that have their own."""
    own.warn_of_unit(trained, where)
    if own.differs(trained):
        message = f"reads windows of records that are {own} apart, and those of training {trained}"
        hint = "Resample the records to the step of training."
        raise ConfigError(Problem("store_conf.sequence", message, where, hint))


def trained_step(store: StoreProto) -> Step:
    """The step of the records of training, which its store_conf keeps."""
    return Step(store.record_step, store.record_unit, store.record_varies)


def keep_step(store: StoreProto, step: Step) -> None:
    """As `trained_step` reads it."""
    store.record_step, store.record_unit, store.record_varies = step


def grain_of(times: np.ndarray) -> Any:
    """The difference of floating-point numbers next to each other, at the largest one; else 0."""
    if times.dtype.kind != "f":
        return np.zeros((), np.diff(times[:0]).dtype)
    return np.spacing(np.abs(times[np.isfinite(times)]).max(initial=0))


def steps_within(times: np.ndarray, starts: Sequence[int]) -> np.ndarray:
    """The differences of times (N,) within the series."""
    return np.delete(np.diff(times), [start - 1 for start in starts if 0 < start < len(times)])


def falls(
    dates: Iterable[tuple[str, np.ndarray]], starts: Sequence[int], where: str, *, warns: bool = True
) -> dict[str, int]:
    """How often each of several times (N,) falls within a series; none if one of them does not, whose gaps and repeats
    are warned of. Times that never change tell no order beside others. starts: of the series but the first one."""
    late: dict[str, int] = {}
    known = [(name, steps_within(times, starts), grain_of(times)) for name, times in dates]
    moving = [each for each in known if (each[1] != np.zeros((), each[1].dtype)).any()]
    for name, steps, grain in moving or known:
        still = np.zeros((), steps.dtype)
        if not (count := int((~(steps >= still)).sum())):  # missing times included
            usual = np.median(steps) if len(steps) else still
            gaps = int((steps > LONG_GAP * usual + grain).sum())
            if gaps and warns:
                message = "%s: %s has %s, which windows cross. Number the parts between gaps in a column for series."
                logger.warning(message, where, name, f"{gaps:,} gap{'s' * (gaps > 1)}")
            if warns and not still < usual <= grain and (repeats := int((steps == still).sum())):
                message = (
                    "%s: %s repeats %s times, and windows mix those. Sort by series, and give a column of series."
                )
                logger.warning(message, where, name, f"{repeats:,}")
            return {}
        late[name] = count
    return late


def _series_of(manifest: Manifest, name: str) -> np.ndarray:
    """What tells the series apart: a column of shards, or one of the table of which their features are made.

    Raises ConfigError for numbers that float32 rounds.
    """
    values, known = None, True
    for encoder, places in _encoded(manifest):
        if encoder.column == name:
            values = _values(manifest, manifest.features.name, places)
            coded = values.any(axis=1) if encoder.kind == "onehot" else values[:, 0] != MISSING
            known = not encoder.categorical or bool(coded.all())
    values = _numbers(manifest, name, "series") if values is None else values
    exact = values.dtype.kind != "f" or bool((np.abs(values) < 2.0 ** (np.finfo(values.dtype).nmant + 1)).all())
    if known and exact and (values.dtype != np.float32 or (values == np.round(values)).all()):
        return values
    numbers = f"{'fractions' if exact else 'integers'} that {values.dtype} rounds"
    what = numbers if known else "unknown categories, which are not told apart"
    hint = "Number the series from 0 on, in the order of their records: pandas.factorize(ids)[0]."
    raise ConfigError(Problem("store_conf.series", f"{manifest.where} has {what}", name, hint))


def _dates(manifest: Manifest) -> Iterator[tuple[str, np.ndarray]]:
    """The times of the records, exactly; and the columns of dates by their names, in days, float32."""
    for column in manifest.columns:
        if column.role is Role.TIME:
            times = _values(manifest, column.name)
            yield column.name, _since_first(*times.T) if column.shape else times[:, 0]
    for encoder, places in _encoded(manifest):
        if encoder.kind in DATES:
            yield encoder.column, _values(manifest, manifest.features.name, places)[:, 0]


def _since_first(days: np.ndarray, nanoseconds: np.ndarray) -> np.ndarray:
    """The times since the first one: in nanoseconds, in microseconds if they span centuries."""
    passed = days.view("m8[D]") - np.fmin.reduce(days.view("m8[D]"))  # the others may be missing
    unit = "m8[us]" if (passed > NANOSECONDS).any() else "m8[ns]"
    return passed.astype(unit) + nanoseconds.view("m8[ns]").astype(unit)


def _encoded(manifest: Manifest) -> Iterator[tuple[Encoder, slice]]:
    """The columns of a table, and their places among the features."""
    ends = np.cumsum([0, *(len(encoder.names) for encoder in manifest.encoders)]).tolist()
    yield from zip(manifest.encoders, map(slice, ends, ends[1:]), strict=False)


def breaks(manifest: Manifest) -> tuple[np.ndarray, np.ndarray]:
    """The records before which another file of the source begins, and those before which rows of it are missing."""
    if manifest.in_place:
        return manifest.shard_starts[1:-1], np.empty(0, np.int64)
    columns = {column.role: column.name for column in manifest.columns if column.role in IDENTITY}
    rows = np.diff(_values(manifest, columns[Role.ROW])[:, 0]) if Role.ROW in columns else np.empty(0)
    files = np.diff(_values(manifest, columns[Role.FILE])[:, 0]) if Role.FILE in columns else np.zeros_like(rows)
    return np.flatnonzero(files) + 1, np.flatnonzero((files == 0) & (rows != 1)) + 1


def check_lengths(manifest: Manifest, name: str, steps: int) -> None:
    """Raise ConfigError unless column `name` holds integers from 1 to `steps`."""
    lengths = _numbers(manifest, name, "lengths")
    wrong = np.flatnonzero((lengths < 1) | (lengths > steps) | (lengths != np.floor(lengths)))
    if len(wrong):
        message = f"column {name!r} of {manifest.where} must hold integers from 1 to {steps}, the time_steps"
        hint = f"Sample {wrong[0]} is the first of {len(wrong):,} with another one."
        raise ConfigError(Problem("store_conf.lengths", message, f"{lengths[wrong[0]]:g}", hint))


def _numbers(manifest: Manifest, name: str, field: str) -> np.ndarray:
    columns = [column.name for column in manifest.columns if column.values == 1]
    if name not in columns:
        tabular = [encoder.column for encoder in manifest.encoders] if field == "series" else []
        hint = f"It has: {', '.join([*columns, *tabular]) or 'none'}."
        message = f"{manifest.where} has no such column of one number per record"
        raise ConfigError(Problem(f"store_conf.{field}", message, name, hint))
    return _values(manifest, name)[:, 0]


def _values(manifest: Manifest, name: str, places: slice = slice(None)) -> np.ndarray:
    """The values of a column of vectors at these places: (records, places)."""
    shards = ShardFolder(manifest)
    parts = [shards.reader(i).column(name) for i in range(len(manifest.shards))]
    return np.concatenate([part.reshape(len(part), -1)[:, places] for part in parts])


def _check_windows(conf: StreamConf) -> None:
    if conf.sequence < 1:
        hint = "Give the number of records of a window, for example sequence: 48."
        raise ConfigError(Problem("store_conf.sequence", "must be at least 1", str(conf.sequence), hint))
    for name in ("horizon", "stride"):
        if getattr(conf, name) < 0:
            raise ConfigError(Problem(f"store_conf.{name}", "must not be negative", str(getattr(conf, name))))
    if conf.lookahead:
        message, hint = "is not for windows, whose answers are those of the horizon", "Leave it out."
        raise ConfigError(Problem("store_conf.lookahead", message, str(conf.lookahead), hint))
