"""The folder with the results of a run.

job.conf          the job as it ran
metrics.jsonl     all displayed metrics, one flat JSON object per line (history.py)
events.jsonl      each start and restart of the run, the step with which each worker group begins, and each return
                  to a checkpoint, one JSON object per line
summary.json      final metrics, topology, speed; or the cause of the failure
curves.png        loss and accuracy over the steps
confusion-test.png, parity-test.png   what the last evaluation compared
checkpoint/       step-00000500.h5 ..., best.h5
data/             the shards of arrays that were given to `train`
.run              the id of the run
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from singa_dask.errors import CheckpointError, ConfigError, Problem
from singa_dask.training.checkpoint import UNFINISHED
from singa_dask.training.line_file import LineFile, write_whole

# Events in events.jsonl: worker groups went back to a checkpoint; a worker group begins, at first or after a restart.
REWOUND, BEGUN = "rewound", "begun"


class Workspace:
    """Paths and files of one run. `folder` is absolute; all hosts must share it."""

    def __init__(self, folder: Path):
        self.folder = Path(folder).absolute()
        self.checkpoints = self.folder / "checkpoint"
        self.metrics = self.folder / "metrics.jsonl"
        self.events = self.folder / "events.jsonl"
        self.summary = self.folder / "summary.json"
        self.curves = self.folder / "curves.png"
        self.job = self.folder / "job.conf"
        self.data = self.folder / "data"
        self._id = self.folder / ".run"
        self._metric_lines, self._event_lines = LineFile(self.metrics), LineFile(self.events)
        self.aside: Path | None = None

    @classmethod
    def of(cls, run: str | Path) -> Workspace:
        """The workspace of a run: its folder, or the folder's name in runs/. Raises ConfigError if there is none."""
        for folder in (Path(run), Path("runs") / run):
            if cls(folder).job.is_file():
                return cls(folder)
        hint = "Give the workspace of a run, or its name in runs/."
        raise ConfigError(Problem("RUN", f"neither {run} nor runs/{run} is the folder of a run", str(run), hint))

    @property
    def id(self) -> str:
        """The id of the run in the folder, which it keeps when it resumes or the folder is renamed; "" if none."""
        return self._id.read_text() if self._id.exists() else ""

    def find(self, run: str) -> Path:
        """The folder of the run with this id: this one, or the one to which a later run has moved it.

        Raises CheckpointError if it is in none of them.
        """
        for folder in (self.folder, *self._moved()):
            if Workspace(folder).id == run:
                return folder
        raise CheckpointError(
            f"the run {run} is neither in {self.folder} nor in {self.folder}-1, -2 ...: its folder was removed, moved "
            "elsewhere, or taken by a run after it."
        )

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder. Raises ConfigError if another run uses it or it cannot be created."""
        path = self.folder.with_name(f".{self.folder.name}.lock")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = open(path, "w")  # noqa: SIM115 - held open, and with it the lock, until the end
        except OSError as error:
            raise self._unwritable(error) from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            hint = "Wait for it, or pass another --workspace."
            raise ConfigError(Problem("workspace", "another run is using it", str(self.folder), hint)) from None
        try:
            yield
        finally:
            file.close()

    def check_own(self) -> None:
        """Raise ConfigError if the folder has files but no run: this run would overwrite some, and the next one would
        move them."""
        if not self.folder.is_dir() or self.checkpoints.is_dir() or self.metrics.exists():
            return
        if there := sorted(name for name in os.listdir(self.folder) if not name.startswith(".")):
            some = ", ".join(there[:3]) + (" ..." if there[3:] else "")
            hint = f"Pass an empty or new folder, for example {self.folder / 'run'}."
            raise ConfigError(Problem("workspace", f"{self.folder} holds files that are not from a run", some, hint))

    def set_aside(self) -> Path | None:
        """Rename a folder with checkpoints to <folder>-1 (2, 3 ...), and return the new name."""
        if not any(self.checkpoints.glob("*.h5")):
            return None
        names = (self.folder.with_name(f"{self.folder.name}-{n}") for n in count(1))
        free = next(name for name in names if not name.exists())
        try:
            self.folder.rename(free)
        except OSError as error:
            raise self._unwritable(error) from error
        return free

    def new_data(self, *, resume: bool) -> Path:
        """The folder for the shards of given data, of which a run that does not resume finds none."""
        with self.locked():
            self.check_own()
            try:
                if not resume:
                    self.aside = self.set_aside()
                    shutil.rmtree(self.data, ignore_errors=True)
                self.checkpoints.mkdir(parents=True, exist_ok=True)  # the folder belongs to a run from now on
                self.data.mkdir(exist_ok=True)
            except OSError as error:
                raise self._unwritable(error) from error
        return self.data

    def earlier(self) -> str:
        """The folders of earlier runs of this workspace, for an error: " (moved to ...)", or ""."""
        moved = [str(folder) for folder in self._moved() if any(folder.glob("checkpoint/*.h5"))]
        return f" (moved to {', '.join(moved)})" if moved else ""

    def _moved(self) -> list[Path]:
        """The folders to which `set_aside` may have moved earlier runs."""
        return sorted(self.folder.parent.glob(f"{self.folder.name}-*"))

    def open(self, job_text: str, *, resumes: bool = False) -> None:
        """Prepare the folder for a new run, or for one that resumes: with the metrics and events that it has.

        Raises ConfigError if the folder cannot be written.
        """
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            for half in self.checkpoints.glob(UNFINISHED):  # left by a process that was killed while saving
                half.unlink(missing_ok=True)
            self._metric_lines.replace(list(self.rows()) if resumes else [])
            self._event_lines.replace(list(self.told()) if resumes else [])
            self.must_write()
            self.summary.unlink(missing_ok=True)
            for picture in (self.curves, *self.folder.glob("*confusion-*.png"), *self.folder.glob("*parity-*.png")):
                picture.unlink(missing_ok=True)
            self.job.write_text(job_text)
            if not (resumes and self.id):
                self._id.write_text(uuid.uuid4().hex[:12])
        except OSError as error:
            raise self._unwritable(error) from error

    def rewind(self, step: int | None, groups: Iterable[int] | None = None) -> None:
        """Remove the metrics that worker groups (None: all) will measure again after `step` (None: the start)."""
        back = None if groups is None else set(groups)

        def stays(row: Mapping[str, Any]) -> bool:
            if back is not None and row["group"] not in back:
                return True
            return step is not None and (row["step"] < step or (row["step"] == step and row["phase"] == "train"))

        self._metric_lines.replace(list(filter(stays, self.rows())))

    def append(self, row: Mapping[str, Any]) -> None:
        """Add a line to metrics.jsonl. It waits in memory if it cannot be written."""
        self._metric_lines.append(row)

    def rows(self) -> Iterator[dict[str, Any]]:
        """The lines of metrics.jsonl, without a last line that a crash truncated."""
        return self._metric_lines.rows()

    def tell(self, event: str, **about: Any) -> None:
        """Add a line to events.jsonl."""
        self._event_lines.append({"event": event, **about})

    def told(self) -> list[dict[str, Any]]:
        """The lines of events.jsonl."""
        return list(self._event_lines.rows())

    def read_summary(self) -> dict[str, Any]:
        """The contents of summary.json; empty while the run goes on, or if its driver was killed."""
        return json.loads(self.summary.read_text()) if self.summary.exists() else {}

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write summary.json atomically."""
        write_whole(self.summary, json.dumps(summary, indent=2) + "\n")

    @property
    def unwritten(self) -> OSError | None:
        """Why lines wait in memory; None if none do."""
        return self._metric_lines.fault or self._event_lines.fault

    def must_write(self) -> None:
        """Write all lines that wait in memory. Raises OSError if that is not possible."""
        for lines in (self._metric_lines, self._event_lines):
            lines.write()
            if lines.fault is not None:
                raise lines.fault

    def _unwritable(self, error: OSError) -> ConfigError:
        message, hint = f"cannot be written ({error.strerror})", "Pass another --workspace."
        return ConfigError(Problem("workspace", message, str(self.folder), hint))
