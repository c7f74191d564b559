"""A progress bar for both passes."""

from __future__ import annotations

import threading
from importlib.util import find_spec
from types import TracebackType
from typing import Any


class Bar:
    """Shows what is done, how many samples and MB/s; nothing if `shown` is False. By default, it is shown on
    terminals, and in notebooks that have ipywidgets. May be used by several threads."""

    def __init__(self, shown: bool | None) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        from singa_dask.output.console import Console

        console = Console(stderr=True, force_terminal=shown)
        widgets = console.is_jupyter and find_spec("ipywidgets") is not None
        visible = console.is_terminal or widgets if shown is None else shown
        self._lock = threading.Lock()
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed} of {task.total}"),
            TextColumn("{task.fields[rows]:,} samples"),
            TextColumn("{task.fields[speed]}"),
            TimeRemainingColumn(),
            console=console,
            disable=not visible,
            transient=True,
        )
        self._task: Any = None
        self._nbytes = 0

    def __enter__(self) -> Bar:
        if not self._progress.disable:  # then rich before 14.1 prints an empty line
            self._progress.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if not self._progress.disable:
            self._progress.stop()

    def begin(self, what: str, total: int) -> None:
        """Start a pass of so many tasks."""
        if self._task is not None:
            self._progress.remove_task(self._task)
        self._nbytes = 0
        self._task = self._progress.add_task(what, total=total, rows=0, speed="")

    def advance(self, rows: int, nbytes: int, *, new: bool = True) -> None:
        """A task is done; not `new` if an earlier attempt has done it."""
        with self._lock:
            task = self._progress.tasks[-1]
            self._nbytes += nbytes if new else 0
            seconds = task.elapsed or 0.0
            speed = f"{self._nbytes / seconds / 1e6:,.0f} MB/s" if seconds and self._nbytes else ""
            self._progress.update(self._task, advance=1, rows=task.fields["rows"] + rows, speed=speed)
