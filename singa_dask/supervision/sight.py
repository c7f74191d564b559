"""What this process and the Dask workers of a run see of each other's files.

The workers that a run begins with must see its files; others that come and do not are left out. A checkpoint counts
once this process sees it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from socket import gethostname
from typing import TYPE_CHECKING, Any

from singa_dask.data.shared_files import SharedFiles, View, check_shared, in_words, other_views
from singa_dask.errors import CheckpointError, ClusterError, ConfigError
from singa_dask.training.forms import SAVES

if TYPE_CHECKING:
    from distributed import Client

    from singa_dask.cluster import WorkerInfo

# How late a file may come in sight that another machine has written.
SEEN_S = 10.0
_LOOK_S = 0.1
_SHARE = "Name a workspace on a file system that this machine and all workers share."


class Sight:
    """Who sees the workspace and the files of a run. It remembers nannies, as their workers come and go."""

    def __init__(self, client: Client, workspace: Path, files: Sequence[Path]) -> None:
        self._client, self._shared = client, SharedFiles(files, workspace, _SHARE)
        self._seeing: set[str] = set()
        self._blind: set[str] = set()

    def check(self, workers: Sequence[WorkerInfo]) -> None:
        """Raise ClusterError unless all of these see the files."""
        check_shared(self._client, self._shared, [info.address for info in workers])
        self._seeing.update(map(_lasting, workers))

    def seeing(self, workers: Sequence[WorkerInfo]) -> tuple[list[WorkerInfo], str]:
        """Those that see the files, and what the user is told of others. Free ones that are new are asked."""
        views: dict[str, View] = {}
        new = [w for w in workers if not w.group and _lasting(w) not in self._seeing | self._blind]
        if new:
            unasked = {info.address for info in new}
            with suppress(ClusterError, ConfigError):  # they are asked again
                views, unasked = other_views(self._client, self._shared, unasked), set()
            self._blind.update(_lasting(info) for info in new if info.address in views)
            self._seeing.update(_lasting(info) for info in new if info.address not in views.keys() | unasked)
        seeing = [info for info in workers if info.group or _lasting(info) in self._seeing]
        return seeing, f"left out: {in_words(views)}" if views else ""


class Witness:
    """Believes workers that they have saved a checkpoint once this process sees it. believe: takes the event then.
    record: which host saves."""

    def __init__(self, believe: Callable[[dict[str, Any]], None], record: Callable[..., None]) -> None:
        self._believe, self._record = believe, record
        self._host, self._recorded = "", ""
        self._waiting: deque[dict[str, Any]] = deque()

    def hear(self, event: dict[str, Any]) -> bool:
        """Take an event of a worker; returns whether that is all. Else `settle` must be called in the run's thread."""
        self._host = event["host"]
        if self._waiting or not _is_there(_path_of(event)):
            self._waiting.append(event)
        else:
            self._believe(event)
        return not self._waiting and self._recorded == self._host

    def settle(self) -> None:
        """Wait until everything is believed. Raises CheckpointError where a checkpoint does not come in sight."""
        if self._host != self._recorded:
            self._recorded = self._host
            self._record(SAVES, host=self._host)
        while self._waiting:
            event, deadline = self._waiting[0], time.monotonic() + SEEN_S
            path = _path_of(event)
            while not _is_there(path):
                if time.monotonic() > deadline:
                    raise CheckpointError(
                        f"{path}: host {event['host']} has saved this checkpoint, and {gethostname()} does not see "
                        "it. Copy it from there, and name a workspace on a file system that both share."
                    )
                time.sleep(_LOOK_S)
            self._believe(event)
            self._waiting.popleft()


def _path_of(event: dict[str, Any]) -> Path:
    return Path(event["path"] if event["kind"] == "checkpoint" else event["best"]["checkpoint"])


def _is_there(path: Path) -> bool:
    """Whether the checkpoint is there, or one after it, for which it may have been removed."""
    return path.exists() or any(other.name > path.name for other in path.parent.glob("step-*.h5"))


def _lasting(info: WorkerInfo) -> str:
    return info.nanny or info.address
