"""Dask clusters for benchmarks, with a driver that is told what to do line by line: on this machine, or on hosts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import Any

from singa_dask.cluster.fork_server import MALLOC
from tools.contest import FOLDER, UNSET, read
from tools.network import SWITCH_ADDRESS, Host

PROGRAM = "plan_cluster"
ENDING_S = 10.0
# What docs/cluster.md recommends.
WORKER = {
    **MALLOC,
    "DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED": "False",
    "DASK_DISTRIBUTED__ADMIN__TICK__INTERVAL": "1s",
}


class Silent(Exception):
    """The driver of a cluster ended, or did not answer in time."""


@dataclass
class Driver:
    """The driver's process, programs/plan_cluster.py."""

    process: subprocess.Popen

    def ask(self, line: Mapping[str, Any], within_s: float) -> Mapping[str, Any]:
        """What it answers to a line. Raises Silent, and it is of no use any more, where it does not in time."""
        _write(self.process, line)
        killer = threading.Timer(within_s, self.process.kill)
        killer.start()
        try:
            return read(self.process)
        except SystemExit as error:
            raise Silent(f"no answer within {within_s:g} s, or {error}") from None
        finally:
            killer.cancel()


@contextmanager
def dask_cluster(workers: int, hosts: Sequence[Host] = ()) -> Iterator[Driver]:
    """A cluster of so many Dask workers, and its driver. hosts: of the workers, one each; the driver and the scheduler
    are at the switch then. Without hosts all are on this machine."""
    program = [sys.executable, str(FOLDER / "programs" / f"{PROGRAM}.py")]
    plan = {"workers": workers, **({"host": SWITCH_ADDRESS} if hosts else {})}
    started: list[subprocess.Popen] = []
    with TemporaryDirectory() as folder:
        try:
            command = hosts[0].at_switch(program) if hosts else program
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            started.append(_started(command, {}, **pipes))
            driver = Driver(started[0])
            _write(driver.process, plan)
            if hosts:
                scheduler = read(driver.process)["scheduler"]
                for host in hosts:
                    worker = [sys.executable, "-m", "distributed.cli.dask_worker", scheduler, "--host", host.address]
                    worker += ["--nworkers", "1", "--nthreads", "1", "--memory-limit", "0", "--no-dashboard"]
                    worker += ["--death-timeout", "20"]
                    worker += ["--local-directory", f"{folder}/{host.address}"]
                    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
                    started.append(_started(host.command(worker), WORKER, **quiet))
            read(driver.process)
            yield driver
        finally:
            for process in reversed(started):
                _end(process)


def _started(command: Sequence[str], more: Mapping[str, str], **pipes: Any) -> subprocess.Popen:
    path = os.pathsep.join(filter(None, [str(FOLDER), os.environ.get("PYTHONPATH")]))
    found = {key: value for key, value in os.environ.items() if key not in UNSET}
    # A session of its own: what it has started ends with it.
    return subprocess.Popen(command, env={**found, **more, "PYTHONPATH": path}, start_new_session=True, **pipes)


def _end(process: subprocess.Popen) -> None:
    with suppress(OSError, ValueError):
        if process.stdin is not None:
            process.stdin.close()  # the driver closes its cluster then
        else:
            process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(ENDING_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _write(process: subprocess.Popen, line: Mapping[str, Any]) -> None:
    assert process.stdin is not None
    try:
        process.stdin.write(json.dumps(line) + "\n")
        process.stdin.flush()
    except OSError as error:
        raise Silent(f"the driver has ended: {error}") from None
