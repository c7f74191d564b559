"""Windows of the records that an estimator is given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self

import numpy as np

from singa_dask.data.containers import is_lazy, is_table
from singa_dask.data.times import instants
from singa_dask.data.windows import Step, changes, falls, warn_of_short
from singa_dask.errors import ConfigError, Problem
from singa_dask.job.job_pb2 import StoreProto
from singa_dask.job.stores import reads_windows

INDEX = "its index"


def steps_of(index: Any, dates: Mapping[str, Any], starts: Sequence[int]) -> dict[str, Step]:
    """The steps within the series of what tells the time of records: an index of times or numbers, and columns of
    dates that rise. starts: of the series but the first one."""
    times = instants(index)
    found = [] if times is None else [(INDEX, times.to_numpy())]
    found += [(name, of) for name, of in _times(dates) if not falls([(name, of)], starts, "X", warns=False)]
    steps = {name: Step.of(of, starts) for name, of in found}
    return {name: step for name, step in steps.items() if step.size}


def check_steps(steps: Mapping[str, Step], trained: Mapping[str, Step]) -> None:
    """Raise ValueError if the records follow each other at another step than those of training."""
    pairs = [(name, step, trained[name]) for name, step in steps.items() if name in trained]
    pairs = [pair for pair in pairs if pair[1].unit == pair[2].unit] or pairs
    if not pairs and steps and trained:
        pairs = [(*first_dated(steps), first_dated(trained)[1])]
    for name, step, known in pairs:
        step.warn_of_unit(known, f"X: {name}")
        if step.differs(known):
            how = "('1h')" if name == INDEX else f"('1h', on={name})"
            way_out = ", or leave out the index: X.to_numpy()" if name == INDEX else ""
            hint = f"Resample it, for example X.resample{how}.mean(){way_out}."
            raise ValueError(f"X: {name} steps by {step}, and by {known} in training, so windows differ. {hint}")


def first_dated(steps: Mapping[str, Step]) -> tuple[str, Step]:
    """The name and the step of the first one with dates, else of the first one."""
    return next((each for each in steps.items() if each[1].unit), next(iter(steps.items())))


def at_hand(index: Any) -> Any:
    """The index of records in memory; None for numbers of Dask, which often begin anew in each partition."""
    if not is_lazy(index):
        return index
    return None if getattr(index.dtype, "kind", "") in "iufb" else index.compute()


def dates_of(x: Any) -> dict[str, Any]:
    """The columns of dates of a table, in memory."""
    if not is_table(x):
        return {}
    names = [name for name, dtype in zip(x.columns, x.dtypes, strict=True) if str(dtype).startswith("datetime64")]
    table = x[names].compute() if names and is_lazy(x) else x
    return {str(name): table[name] for name in names}


def check_order(index: Any, dates: Mapping[str, Any], starts: Sequence[int], *, warns: bool = True) -> None:
    """Warn of gaps and repeats. dates: the columns of dates of a table. starts: of the series but the first one.
    warns: False where training does.

    Raises ValueError if the index of records, or each of the dates, falls within a series, or other levels of the
    index change there.
    """
    for place, level in enumerate(getattr(index, "names", ())[:-1]):
        if not {*changes(index.get_level_values(place).to_numpy()).tolist()} <= {*starts}:
            told = f"level {place}" if level is None else repr(level)
            hint = "Name its levels first: X.rename_axis(['series', 'time'])." if level is None else ""
            level = "series" if level is None else level
            hint = f"{hint} Name the column of it: X.reset_index({level!r}) and RecordInput(series={level!r})."
            raise ValueError(f"X: windows would cross from one {told} of its index to the next. {hint.strip()}")
    late = falls(_times(dates), starts, "X")
    name = next(iter(late), INDEX)
    times = instants(index)
    if times is not None:
        rises = not falls([(INDEX, times.to_numpy())], starts, "X", warns=warns)
    else:
        spans = [] if index is None else pairwise([0, *starts, len(index)])
        rises = all(index[begin:end].is_monotonic_increasing for begin, end in spans)
    if late or not rises:
        hint = "Sort it by time, or by series and time with RecordInput(series=COLUMN); split it with TimeSeriesSplit."
        raise ValueError(f"X: {name} does not rise, and the net reads windows in the order of time. {hint}")


def _times(dates: Mapping[str, Any]) -> Iterator[tuple[str, np.ndarray]]:
    import pandas

    for name, date in dates.items():
        yield repr(name), pandas.to_datetime(date, utc=True).dt.tz_localize(None).to_numpy()


@dataclass(frozen=True)
class Windows:
    """Of T = sequence consecutive records, with the answers of the H = horizon records after them, all of one series.
    series: the column that tells these apart, if there is one."""

    sequence: int
    horizon: int
    stride: int
    series: str = ""

    @classmethod
    def of(cls, store: StoreProto) -> Self | None:
        """Those that an input layer reads, if any. Raises ConfigError if they have no horizon."""
        if not reads_windows(store):
            return None
        if store.horizon < 1:
            message, hint = "is missing: how many values of y after a window are predicted", "For example horizon=24."
            raise ConfigError(Problem("store_conf.horizon", message, str(store.horizon), hint))
        return cls(store.sequence, store.horizon, max(1, store.stride), store.series)

    def starts(self, x: Any, names: Sequence[str]) -> list[int]:
        """The first record of each series of X but the first one. names: of the columns of an array.

        Raises ConfigError if there is no such column.
        """
        if not self.series:
            return []
        names = [str(name) for name in x.columns] if is_table(x) else list(names)
        if self.series not in names:
            message = "X has no such column, which tells the series apart"
            hint = f"It has: {', '.join(names) or 'no names; give a DataFrame'}."
            raise ConfigError(Problem("store_conf.series", message, self.series, hint))
        place = names.index(self.series)
        values = x[x.columns[place]] if is_table(x) else x[:, place]
        return changes(np.asarray(values.compute() if is_lazy(values) else values)).tolist()

    def count(self, rows: int, starts: Sequence[int]) -> int:
        """How many windows of `rows` records training reads."""
        more = self.sequence + self.horizon - 1
        return sum(len(range(begin, end - more, self.stride)) for begin, end in pairwise([0, *starts, rows]))

    def _firsts(self, rows: int, starts: Sequence[int], records: int) -> np.ndarray:
        """The records from which on so many records follow each other in one series."""
        spans = pairwise([0, *starts, rows])
        return np.concatenate([np.arange(begin, end - records + 1) for begin, end in spans])

    def features(self, x: Any, starts: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """All windows of records x (N, ...), with none left out by the stride: (N - T + 1, T, ...), a view; and the
        places of those that lie in one series.

        Raises ValueError if there are none.
        """
        lengths = np.diff([0, *starts, len(x)])
        if max(lengths) < self.sequence:
            told = f"{len(x)} records" + f", at most {max(lengths)} in a series" * bool(starts)
            hint = "Give more" + ", and the records of each series one after the other" * bool(starts)
            raise ValueError(f"X has {told}, but the net reads windows of {self.sequence}. {hint}.")
        warn_of_short(lengths, self.sequence, "X")
        seen = np.lib.stride_tricks.sliding_window_view(x, self.sequence, axis=0)
        return np.moveaxis(seen, -1, 1), self._firsts(len(x), starts, self.sequence)

    def pair(
        self, predicted: np.ndarray, records: int, y: Any, sample_weight: Any, starts: Sequence[int]
    ) -> tuple[np.ndarray, np.ndarray]:
        """The predictions for windows whose horizon is in y (N, ...), and the answers there, one row for each of them.
        records: in X.

        Raises ValueError if there are none, y has not one row for each record, or sample_weight is given.
        """
        if sample_weight is not None:
            raise ValueError("sample_weight counts single records, and the net reads windows: leave it out.")
        y = np.asarray(y)
        if len(y) != records:
            raise ValueError(f"X has {records} records, but y has {len(y)}. Give y a row for each record of X.")
        needed = self.sequence + self.horizon
        if not self.count(len(y), starts):
            raise ValueError(f"A window and its horizon are {needed} records, but y has {len(y)}. Give more.")
        answered = self._firsts(len(y), starts, needed)
        after = np.lib.stride_tricks.sliding_window_view(y[self.sequence :], self.horizon, axis=0)
        places = np.isin(self._firsts(len(y), starts, self.sequence), answered)
        return predicted[places], np.moveaxis(after[answered], -1, 1)
