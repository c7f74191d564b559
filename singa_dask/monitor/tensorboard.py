"""The callback that writes a run's metrics for TensorBoard."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from singa_dask.errors import ConfigError, Problem
from singa_dask.supervision.callbacks import Callback, RunEvent


class TensorBoard(Callback):
    """Writes the metrics of all worker groups, and the waits of all ranks, for TensorBoard.

    logdir: by default the folder "tensorboard" in the run's workspace. TensorBoard shows its folders as runs:
    group-<g>/train, group-<g>/rank-<r> (wait, loading), validate, test.
    Raises ConfigError if tensorboard is not installed.
    """

    def __init__(self, logdir: str | Path | None = None) -> None:
        try:
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ImportError as error:
            hint = "Run: pip install 'singa-dask[tensorboard]'."
            raise ConfigError(Problem("tensorboard", f"cannot be imported ({error})", hint=hint)) from error
        self._logdir, self._open = logdir, EventFileWriter
        self._writers: dict[str, _Writer] = {}

    def on_step(self, event: RunEvent) -> None:
        group = f"group-{event.group}"
        servers = {f"server/{name}": value for name, value in event.server.items()}
        self._write(f"{group}/train", event, {**event.metrics, "samples_per_s": event.samples_per_s, **servers})
        for rank, (wait, loading) in enumerate(zip(event.wait, event.loading, strict=True)):
            self._write(f"{group}/rank-{rank}", event, {"wait": wait, "loading": loading})

    def on_test(self, event: RunEvent) -> None:
        self._write(event.phase, event, event.metrics)

    def on_end(self, event: RunEvent) -> None:
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()

    def _write(self, name: str, event: RunEvent, values: Mapping[str, float]) -> None:
        if name not in self._writers:
            folder = Path(self._logdir) if self._logdir else event.workspace / "tensorboard"
            self._writers[name] = _Writer(self._open(str(folder / name)))
        self._writers[name].write(event.step, event.time, values)


class _Writer:
    """One folder of event files."""

    def __init__(self, file: Any) -> None:
        self._file, self._step = file, -1

    def write(self, step: int, time: float, values: Mapping[str, float]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary

        if self._step < 0 or step <= self._step:  # TensorBoard forgets what a resumed or restarted run measures again
            self._file.add_event(Event(step=step, wall_time=time, session_log=SessionLog(status=SessionLog.START)))
        self._step = step
        scalars = [Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        self._file.add_event(Event(step=step, wall_time=time, summary=Summary(value=scalars)))
        self._file.flush()

    def close(self) -> None:
        self._file.close()
