"""Callbacks: code of the user's own that follows a run, in the driver."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from singa_dask.errors import ConfigError, Problem, TrainingError

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunEvent:
    """Something that happened in a run.

    kind: "step", "test", "checkpoint", "restart" or "end".
    job: the name of the job.
    workspace: the folder of the run.
    group: the number of the worker group.
    step: steps that the group has made.
    steps: steps that it will make.
    time: seconds since 1970.
    phase: of "step" and "test": "train", "validate" or "test".
    metrics: of "step" (every `disp_freq` steps) and "test", and of "end" those of the final test.
    samples_per_s: of "step": since the last one.
    wait, loading: of "step": shares of the time in which each rank waited for other ranks, and for data.
    server: of "step": the traffic with servers.
    path: of "checkpoint" and "end": the (last) checkpoint.
    cause: of "restart", and of "end" after a failure.
    status: of "end": "completed", "interrupted" or "failed".
    """

    kind: str
    job: str
    workspace: Path
    steps: int
    group: int = 0
    step: int = 0
    time: float = field(default_factory=time.time)
    phase: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)
    samples_per_s: float = 0.0
    wait: tuple[float, ...] = ()
    loading: tuple[float, ...] = ()
    server: Mapping[str, float] = field(default_factory=dict)
    path: Path | None = None
    cause: str = ""
    status: str = ""


class Callback:
    """Base of callbacks: override what you need. See RunEvent for what each method gets."""

    def on_step(self, event: RunEvent) -> None:
        """A worker group has made `disp_freq` more steps, or its last ones."""

    def on_test(self, event: RunEvent) -> None:
        """The parameters were tested or validated."""

    def on_checkpoint(self, event: RunEvent) -> None:
        """A checkpoint was saved."""

    def on_restart(self, event: RunEvent) -> None:
        """A worker group was lost and is formed again."""

    def on_end(self, event: RunEvent) -> None:
        """The run has ended, and its record is written. Called once, also after a failure."""


class Callbacks:
    """Calls the callbacks of one run, each with every event, in order.

    steps: that the run will make. error: of the first callback that raised. It is called only once more, at the end of
    the run; the others go on.
    """

    def __init__(
        self, callbacks: Sequence[Callback | Callable[[RunEvent], Any]], job: str, workspace: Path, steps: int
    ) -> None:
        self._callbacks = [_checked(callback) for callback in _listed(callbacks)]
        self._event = partial(RunEvent, job=job, workspace=workspace)
        self.steps = steps
        self._due: deque[RunEvent] = deque()
        self._failed: set[int] = set()
        self.error: TrainingError | None = None

    def put(self, kind: str, **fields: Any) -> None:
        """Have `call` tell of an event. From any thread."""
        if self._callbacks:
            self._due.append(self._event(kind, steps=self.steps, **fields))

    def put_from_worker(self, event: Mapping[str, Any]) -> bool:
        """The same for an event that a worker group has sent; False if it is not one for callbacks."""
        names = ("group", "step", "time", "phase", "metrics", "samples_per_s", "server")
        given = {name: event[name] for name in names if name in event}
        match event["kind"]:
            case "metrics":
                shares = {name: tuple(event[name]) for name in ("wait", "loading") if name in event}
                self.put("step" if event["phase"] == "train" else "test", **given, **shares)
            case "checkpoint":
                self.put("checkpoint", **given, path=Path(event["path"]))
            case _:
                return False
        return bool(self._callbacks)

    def call(self) -> None:
        """Tell of all events so far, in the calling thread."""
        while self._due:
            event = self._due.popleft()
            for number, callback in enumerate(self._callbacks):
                if number not in self._failed or event.kind == "end":
                    self._call(number, callback, event)

    def _call(self, number: int, callback: Any, event: RunEvent) -> None:
        name = f"on_{event.kind}"
        try:
            (getattr(callback, name) if isinstance(callback, Callback) else callback)(event)
        except (Exception, SystemExit) as error:
            self._failed.add(number)
            whose = f"{type(callback).__name__}.{name}" if isinstance(callback, Callback) else _name(callback)
            text = f"the callback {whose} raised {type(error).__name__} at step {event.step} ({event.kind}): {error}"
            if self.error is not None:
                return logger.error("%s", text)
            self.error = TrainingError(text)
            self.error.__cause__ = error


def _listed(callbacks: Any) -> Sequence[Any]:
    if isinstance(callbacks, Callback) or callable(callbacks):
        raise _refused("must be a list", callbacks, "Write callbacks=[...].")
    return list(callbacks)


def _checked(callback: Any) -> Any:
    if isinstance(callback, type) and issubclass(callback, Callback):
        raise _refused("must be objects, not classes", callback, f"Write {callback.__name__}().")
    if not isinstance(callback, Callback) and not callable(callback):
        raise _refused("must be functions, or objects of classes derived from singa_dask.Callback", callback, "")
    return callback


def _refused(message: str, callback: Any, hint: str) -> ConfigError:
    return ConfigError(Problem("callbacks", message, repr(callback), hint))


def _name(function: Any) -> str:
    return getattr(function, "__qualname__", repr(function))
