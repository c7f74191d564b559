"""Whether Dask workers see the files that this process sees: asked before any work, whose result may be lost else."""

from __future__ import annotations

import hashlib
import os
import socket
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from singa_dask.data.dask_client import import_on_workers
from singa_dask.data.dask_demand import demand
from singa_dask.data.manifest import MANIFEST_FILE, Manifest
from singa_dask.errors import ClusterError, ConfigError, Problem
from singa_dask.files import regular

WORKERS_TIMEOUT_S = 30.0  # for workers that are just starting
ANSWER_S = 10.0
PROBES = ".probe-*"
_HEAD_NBYTES = 1 << 20  # of a file, which tell it from another one of its size
_MAX_HOSTS = 5
_COPY = "Put it on a file system that all machines share, or copy it to this path on each of them."


@dataclass(frozen=True)
class SharedFiles:
    """What Dask workers must see under the same paths as this process.

    files: that they read, also copies; a folder of shards stands for its manifest. folder: into which they write and
    from which this process reads, None if there is none; share: how to have it shared, for an error.
    """

    files: Sequence[Path] = ()
    folder: Path | None = None
    share: str = ""


class View(NamedTuple):
    """What a worker sees otherwise. host: its name; path: of the file or folder; how: "do not see"; hint: the way
    out."""

    host: str
    path: str
    how: str
    hint: str = _COPY


def check_shared(client: Any, shared: SharedFiles, workers: Iterable[str] | None = None) -> None:
    """Raise ClusterError unless these workers of the cluster, by default all, see the files as this process does."""
    if workers is None:
        try:
            with demand(client) as ask:
                ask(1, 1)
                client.wait_for_workers(1, timeout=WORKERS_TIMEOUT_S)
        except TimeoutError as error:
            message = f"the Dask cluster has had no workers for {WORKERS_TIMEOUT_S:g} s"
            more = "Start some: `dask worker`, client.cluster.scale(1) or client.cluster.adapt(minimum=1)."
            raise ClusterError(f"{message}. {more}") from error
    if views := other_views(client, shared, workers):
        raise ClusterError(in_words(views))


def other_views(client: Any, shared: SharedFiles, workers: Iterable[str] | None = None) -> dict[str, View]:
    """The workers, by address, that do not see the files as this process does.

    Raises ClusterError if workers do not answer or cannot run singa_dask, ConfigError if this process cannot write to
    the folder.
    """
    asked = None if workers is None else list(workers)
    files = {str(path): _facts(path) for path in dict.fromkeys(shared.files) if path.exists()}
    with _probe(shared.folder) as probe:
        try:
            import_on_workers(client, asked, ANSWER_S)
            options = {"workers": asked, "on_error": "return", "callback_timeout": ANSWER_S}
            found = client.run(_look, files, probe, **options)
        except OSError as error:
            why = str(error) or f"no answer within {ANSWER_S:g} s"
            raise ClusterError(
                f"the Dask workers do not say which files they see ({why}). Start them again."
            ) from error
        if probe and not os.path.isdir(os.path.dirname(probe)):
            hint = "Give each run a workspace of its own, or start one after the other."
            raise ClusterError(
                f"{shared.folder}: was removed in the meantime, as by another run in the same workspace. {hint}"
            )
    views = {}
    for address, view in found.items():
        if isinstance(view, Exception) and not isinstance(view, OSError):
            raise ClusterError(
                f"the Dask workers cannot run singa_dask ({type(view).__name__}: {view}). Install the same version "
                "on them."
            ) from view
        if isinstance(view, View):  # else the worker sees everything, or has just been lost
            views[address] = view if view.path in files else view._replace(hint=shared.share)
    return views


def in_words(views: Mapping[str, View]) -> str:
    """What is wrong, for an error: of one path, on all hosts that it is wrong on."""
    first = next(iter(views.values()))
    hosts: dict[str, list[str]] = defaultdict(list)
    for address, view in views.items():
        if (view.path, view.how) == (first.path, first.how):
            hosts[view.host].append(address)
    names = [f"{host} ({of[0]})" for host, of in hosts.items()]
    rest = f" and {len(names) - _MAX_HOSTS} more hosts" if len(names) > _MAX_HOSTS else ""
    return f"{first.path}: the Dask workers on {', '.join(names[:_MAX_HOSTS])}{rest} {first.how}. {first.hint}"


def in_place_files(folder: Path) -> list[Path]:
    """The files outside of a folder of shards that hold its samples."""
    manifest = Manifest.load(folder)
    return [manifest.path_in(shard.file) for shard in manifest.shards] if manifest.in_place else []


def _look(files: Mapping[str, str], probe: str) -> View | None:
    """On a worker: the first difference."""
    host = socket.gethostname()
    if probe:
        folder = os.path.dirname(probe)
        with suppress(OSError):  # NFS looks up anew what has been renamed in a folder that is opened
            os.close(os.open(os.path.dirname(folder), os.O_RDONLY))
        if not os.path.exists(probe):
            return View(host, folder, "do not share this folder")
        try:
            own = f"{probe}-{uuid.uuid4().hex}"  # workers can be threads of one process
            with open(own, "x", encoding="utf-8"):
                os.unlink(own)
        except OSError as error:
            return View(host, folder, f"cannot write to this folder ({error.strerror})")
    for path, facts in files.items():
        try:
            same = _facts(Path(path)) == facts
        except OSError as error:
            return View(host, path, f"do not see it ({error.strerror})")
        if not same:
            return View(host, path, "see something else under this path")
    return None


def _facts(path: Path) -> str:
    """What tells a file, or a folder of shards, from another one. Raises OSError."""
    if path.is_dir():
        path = path / MANIFEST_FILE
        if not path.exists():
            return "folder"
    with open(path, "rb", opener=regular) as file:
        digest = hashlib.blake2b(file.read(_HEAD_NBYTES), digest_size=16).hexdigest()
        return f"{os.fstat(file.fileno()).st_size}/{digest}"


@contextmanager
def _probe(folder: Path | None) -> Iterator[str]:
    """A new file in the folder, which is made for it; "" without a folder."""
    if folder is None:
        yield ""
        return
    probe, new = folder / PROBES.replace("*", uuid.uuid4().hex), not folder.exists()
    real = Path(os.path.realpath(folder))
    try:
        real.mkdir(parents=True, exist_ok=True)
        probe.touch()
    except OSError as error:
        hint = "Name a folder that can be."
        raise ConfigError(Problem(str(folder), f"cannot be written ({error.strerror})", hint=hint)) from error
    try:
        yield str(probe)
    finally:
        probe.unlink(missing_ok=True)
        if new:
            with suppress(OSError):
                real.rmdir()
