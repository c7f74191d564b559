"""The folder with the results of a run.

job.conf          the job as it ran
metrics.jsonl     all displayed metrics, one flat JSON object per line (history.py)
events.jsonl      each start and restart of the run, the step with which each worker group begins, each return to
                  a checkpoint, and which host saves checkpoints, one JSON object per line
summary.json      final metrics, topology, speed; or the cause of the failure
curves.png        loss and accuracy over the steps
confusion-test.png, parity-test.png   what the last evaluation compared
trace.pftrace     what ranks and servers did in some steps, for Perfetto
checkpoint/       step-00000500.h5 ..., best.h5
data/             the shards of arrays that were given to `train`
.run              the id of the run
"""

from __future__ import annotations

import fcntl
import glob
import json
import logging
import os
import re
import shutil
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

from singa_dask.data.shared_files import PROBES
from singa_dask.errors import CheckpointError, ConfigError, Problem, nearest
from singa_dask.files import FILE, FOLDER, LOST_LINK, is_at, kind_of, open_lock, read_text, unlinked, write_whole
from singa_dask.temporary import NOT_KEPT, remove_abandoned
from singa_dask.training.checkpoint import UNFINISHED
from singa_dask.training.forms import is_event, is_metrics, is_summary
from singa_dask.training.line_file import LineFile
from singa_dask.training.saving_host import EVENTS

logger = logging.getLogger(__name__)

RUNS = Path("runs")  # where runs are if no other folder is given
_ID = re.compile(r"[0-9a-f]{12}")


class Workspace:
    """Paths and files of one run. `folder` is absolute; all hosts must share it. It may be a link to a folder."""

    def __init__(self, folder: Path):
        self.folder = Path(folder).absolute()
        self.checkpoints = self.folder / "checkpoint"
        self.metrics = self.folder / "metrics.jsonl"
        self.events = self.folder / EVENTS
        self.summary = self.folder / "summary.json"
        self.curves = self.folder / "curves.png"
        self.trace = self.folder / "trace.pftrace"
        self.job = self.folder / "job.conf"
        self.data = self.folder / "data"
        self._id = self.folder / ".run"
        self.metric_lines, self.event_lines = LineFile(self.metrics, is_metrics), LineFile(self.events, is_event)
        self.aside: Path | None = None
        # Of a run that this object has opened.
        self._held: dict[Path, int] = {}  # locked files
        self._until = ExitStack()  # unlocks those of `new_data`
        self._job_text, self._own_id = "", ""
        self._fault: OSError | None = None

    @classmethod
    def of(cls, run: str | Path) -> Workspace:
        """The workspace of a run: its folder, or the folder's name in runs/. Raises ConfigError if there is none."""
        for folder in places_of(run):
            if (kind := kind_of(cls(folder).job)) not in (None, FILE):
                message, hint = f"is not the folder of a run: its job.conf is {kind}, not a file", "Name another run."
                raise ConfigError(Problem("RUN", message, str(folder), hint))
            if kind:
                return cls(folder)
        raise no_run(run)

    @property
    def id(self) -> str:
        """The id of the run in the folder, which it keeps when it resumes or the folder is renamed; "" if none."""
        return self._own_id or self._read_id()

    def _read_id(self) -> str:
        try:
            found = read_text(self._id, at_most=100)
        except (OSError, UnicodeDecodeError):
            return ""
        return found if _ID.fullmatch(found) else ""

    def find(self, run: str) -> Path:
        """The folder of the run with this id: this one, or the one to which a later run has moved it.

        Raises CheckpointError if it is in none of them.
        """
        for folder in (self.folder, *self._moved()):
            if Workspace(folder).id == run:
                return folder
        why = "its folder was removed, moved elsewhere, or taken by a run after it."
        if self.folder.parent.name.startswith(NOT_KEPT):
            why = "an estimator without a workspace keeps no files. Give it workspace='runs/name' to keep them; "
            why += "result_.summary and history_ have the metrics."
        raise CheckpointError(f"the run {run} is neither in {self.folder} nor in {self.folder}-1, -2 ...: {why}")

    @property
    def _real(self) -> Path:
        """The folder, or the one to which it is a link."""
        return Path(os.path.realpath(self.folder)) if self.folder.is_symlink() else self.folder

    @property
    def _lock(self) -> Path:
        return self._real.with_name(f".{self._real.name}.lock")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder, if this object has not. Raises ConfigError if another run uses it or it cannot be created.

        Two files are locked: one beside the folder, and the run's id in it. To remove one of them frees nothing.
        """
        if self._held:
            yield
            return
        try:
            try:
                self._lock.parent.mkdir(parents=True, exist_ok=True)
                self._hold(self._lock)
                if kind_of(self._id):
                    self._hold(self._id)
            except OSError as error:
                raise self._unwritable(error) from error
            yield
        finally:
            for descriptor in self._held.values():
                os.close(descriptor)
            self._held, self._own_id = {}, ""
            self.metric_lines.close()
            self.event_lines.close()

    def in_use(self) -> bool:
        """Whether a run has locked the folder. Always false on a file system without locks."""
        try:
            descriptor = os.open(self._id, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        finally:
            os.close(descriptor)
        return False

    def _hold(self, path: Path) -> None:
        """Lock a file, if the file system has locks. Raises OSError; ConfigError if another run has locked it."""
        while not (path in self._held and is_at(self._held[path], path)):
            descriptor = open_lock(path)
            try:
                self._lock_file(descriptor)
            except BlockingIOError:
                os.close(descriptor)
                raise self._in_use() from None
            except OSError as error:
                if not self._held:
                    message = "%s: cannot be locked (%s): a second run in this folder would not be refused"
                    logger.warning(message, self.folder, error.strerror)
            if path in self._held:
                os.close(self._held[path])
            self._held[path] = descriptor

    @staticmethod
    def _lock_file(descriptor: int) -> None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # perhaps by `in_use`, for a moment
            time.sleep(0.05)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def check_own(self) -> None:
        """Raise ConfigError if the folder has files but no run: this run would overwrite some, and the next one would
        move them."""
        if (kind := kind_of(self.folder)) not in (None, FOLDER, LOST_LINK):
            raise ConfigError(Problem("workspace", f"is {kind}, not a folder", str(self.folder), "Name another one."))
        if kind != FOLDER or self.checkpoints.is_dir() or self.metrics.exists():
            return
        if there := sorted(name for name in os.listdir(self.folder) if not name.startswith(".")):
            some = ", ".join(there[:3]) + (" ..." if there[3:] else "")
            hint = f"Pass an empty or new folder, for example {self.folder / 'run'}."
            raise ConfigError(Problem("workspace", f"{self.folder} holds files that are not from a run", some, hint))

    def set_aside(self) -> Path | None:
        """Rename a folder with checkpoints to <folder>-1 (2, 3 ...), and return the new name.

        A link to a folder stays: the folder to which it leads is renamed, and `open` makes another.
        """
        if not any(self.checkpoints.glob("*.h5")):
            return None
        real = self._real
        names = (real.with_name(f"{real.name}-{n}") for n in count(1))
        free = next(name for name in names if not os.path.lexists(name))
        try:
            real.rename(free)
        except OSError as error:
            raise self._unwritable(error) from error
        if self._id in self._held:  # that run does not go on
            os.close(self._held.pop(self._id))
        return free

    def new_data(self, *, resume: bool) -> Path:
        """The folder for the shards of given data, of which a run that does not resume finds none. It stays locked
        until the end of `restored_if_refused`."""
        self._until.enter_context(self.locked())
        self.check_own()
        try:
            if not resume:
                self.aside = self.set_aside()
                shutil.rmtree(self.data, ignore_errors=True)
            self._make()  # the folder belongs to a run from now on
            self.data.mkdir(exist_ok=True)
            remove_abandoned(self.data.glob(".*"))
        except OSError as error:
            raise self._unwritable(error) from error
        return self.data

    @contextmanager
    def restored_if_refused(self) -> Iterator[None]:
        """Put the run back that `new_data` has set aside, if the block raises before `open`."""
        with self._until:
            try:
                yield
            except BaseException:
                if self.aside is not None and kind_of(self.job) is None:
                    with suppress(OSError):
                        shutil.rmtree(self._real)
                        self.aside.rename(self._real)
                raise

    def earlier(self) -> str:
        """The folders of earlier runs of this workspace, for an error: " (moved to ...)", or ""."""
        moved = [str(folder) for folder in self._moved() if any(folder.glob("checkpoint/*.h5"))]
        return f" (moved to {', '.join(moved)})" if moved else ""

    def _moved(self) -> list[Path]:
        """The folders to which `set_aside` may have moved earlier runs."""
        return sorted(self._real.parent.glob(f"{glob.escape(self._real.name)}-*"))

    def _make(self) -> None:
        self._real.mkdir(parents=True, exist_ok=True)
        self.checkpoints.mkdir(exist_ok=True)

    def open(self, job_text: str, *, resumes: bool = False) -> None:
        """Prepare the folder for a new run, or for one that resumes: with the metrics and events that it has.

        Raises ConfigError if the folder cannot be written.
        """
        try:
            self._make()
            for left in (*self.checkpoints.glob(UNFINISHED), *self.folder.glob(PROBES)):  # by killed processes
                left.unlink(missing_ok=True)
            for lines in (self.metric_lines, self.event_lines):
                rows, faults = lines.read() if resumes else ([], [])
                for fault in faults:
                    logger.warning("%s.", fault)
                lines.replace(rows)
            self.must_write()
            self.summary.unlink(missing_ok=True)
            for picture in (self.curves, *self.folder.glob("*confusion-*.png"), *self.folder.glob("*parity-*.png")):
                picture.unlink(missing_ok=True)
            if not resumes:
                self.trace.unlink(missing_ok=True)
            self._own_id = (self._read_id() if resumes else "") or uuid.uuid4().hex[:12]
            self._job_text = job_text
            self._write_name()
        except OSError as error:
            raise self._unwritable(error) from error

    def _write_name(self) -> None:
        """Write what the folder says of the run itself: its job, and its id, which is locked."""
        write_whole(self.job, self._job_text)
        if self._held:
            self._hold(self._id)
        with open(self._id, "w", encoding="utf-8", opener=unlinked) as file:
            file.write(self._own_id)

    def _look(self) -> None:
        """Write again what was removed of a folder that is locked. Raises ConfigError if another run has taken it."""
        if not (self._held and self._own_id):
            return
        gone = [path for path, descriptor in self._held.items() if not is_at(descriptor, path)]
        gone += [lines.path for lines in (self.metric_lines, self.event_lines) if lines.vanished]
        gone += [] if kind_of(self.job) else [self.job]
        if not gone:
            self._fault = None
            return
        names = ", ".join(path.name for path in gone)
        what = f"{names} was removed" if self._real.is_dir() else "was removed with its checkpoints"
        try:
            self._make()
            self._hold(self._lock)
            if self._read_id() not in ("", self._own_id):
                raise self._in_use()
            self._write_name()
        except ConfigError:
            message, hint = "was removed, and another run has taken it", "This run ends, and leaves nothing in it."
            raise ConfigError(Problem("workspace", message, str(self.folder), hint)) from None
        except OSError as error:
            self._fault = error
            return
        logger.warning("%s: %s during the run, and is written again.", self.folder, what)
        for lines in (self.metric_lines, self.event_lines):
            lines.write()

    def rewind(self, step: int | None, groups: Iterable[int] | None = None) -> None:
        """Remove the metrics that worker groups (None: all) will measure again after `step` (None: the start)."""
        back = None if groups is None else set(groups)

        def stays(row: Mapping[str, Any]) -> bool:
            if back is not None and row["group"] not in back:
                return True
            return step is not None and (row["step"] < step or (row["step"] == step and row["phase"] == "train"))

        self._look()
        self.metric_lines.replace(list(filter(stays, self.rows())))

    def append(self, row: Mapping[str, Any]) -> None:
        """Add a line to metrics.jsonl. It waits in memory if it cannot be written."""
        self._look()
        self.metric_lines.append(row)

    def rows(self) -> Iterator[dict[str, Any]]:
        """The lines of metrics.jsonl, without damaged ones."""
        return self.metric_lines.rows()

    def tell(self, event: str, **about: Any) -> None:
        """Add a line to events.jsonl."""
        self._look()
        self.event_lines.append({"event": event, **about})

    def told(self) -> list[dict[str, Any]]:
        """The lines of events.jsonl."""
        return list(self.event_lines.rows())

    def read_summary(self) -> tuple[dict[str, Any], list[str]]:
        """The contents of summary.json, and a sentence if it is damaged; empty while the run goes on, or if its driver
        was killed."""
        try:
            found = json.loads(read_text(self.summary))
        except FileNotFoundError:
            return {}, []
        except OSError as error:
            return {}, [f"{self.summary}: cannot be read ({error.strerror})"]
        except (ValueError, RecursionError):
            found = None
        return (found, []) if is_summary(found) else ({}, [f"{self.summary}: is damaged, and left out"])

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write summary.json atomically."""
        self._look()
        write_whole(self.summary, json.dumps(summary, indent=2) + "\n")

    @property
    def unwritten(self) -> OSError | None:
        """Why lines wait in memory; None if none do."""
        return self._fault or self.metric_lines.fault or self.event_lines.fault

    def must_write(self) -> None:
        """Write all lines that wait in memory. Raises OSError if that is not possible."""
        self._look()
        for lines in (self.metric_lines, self.event_lines):
            lines.write()
            if lines.fault is not None:
                raise lines.fault

    def _in_use(self) -> ConfigError:
        hint = "Wait for it, or pass another --workspace."
        return ConfigError(Problem("workspace", "another run is using it", str(self.folder), hint))

    def _unwritable(self, error: OSError) -> ConfigError:
        where = f"{error.filename}: " if error.filename else ""
        message, hint = f"cannot be written ({where}{error.strerror})", "Pass another --workspace."
        return ConfigError(Problem("workspace", message, str(self.folder), hint))


def places_of(run: str | Path) -> tuple[Path, ...]:
    """The paths that RUN may name: its own, and, if it is a bare name, that in runs/."""
    path = Path(run)
    return (path,) if len(path.parts) > 1 else (path, RUNS / path)


def no_run(run: str | Path, expected: str = "the folder of a run, or its name in runs/") -> ConfigError:
    """The error if RUN names nothing that was expected."""
    there = [path for path in places_of(run) if path.exists()]
    fault = f"{there[0]} has no job.conf" if there else f"there is no {' or '.join(map(str, places_of(run)))}"
    near = nearest(Path(run).name, (path.parent.name for path in RUNS.glob("*/job.conf")))
    hint = near if near.startswith("Did") else "`singa-dask train` writes such folders."
    return ConfigError(Problem("RUN", f"{fault}; expected {expected}", hint=hint))
