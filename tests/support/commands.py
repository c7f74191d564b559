"""What end-to-end tests share: the examples, and reading what a run leaves behind."""

from __future__ import annotations

import gc
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import chdir, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import psutil
from click.testing import CliRunner

from singa_dask.cli import main
from singa_dask.cluster.stop_signals import FOR_THE_DRIVER
from singa_dask.supervision.audit import audit
from singa_dask.training.checkpoint import newest

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-P", "-m", "singa_dask"]


def audited(workspace: Path) -> list[dict[str, Any]]:
    """The groups of a clean audit. The command and Python must say the same."""
    made = audit(workspace)
    ran = CliRunner().invoke(main, ["audit", str(workspace), "--json"])
    assert ran.output == made.to_json() + "\n"
    assert made.clean and ran.exit_code == 0, made.to_json()
    groups: list[dict[str, Any]] = json.loads(ran.output)["groups"]
    return groups


@dataclass
class Ran:
    """A command that ended."""

    code: int
    out: str
    err: str

    @property
    def last_line(self) -> str:
        return self.out.rstrip().splitlines()[-1]

    def with_code(self, code: int | None) -> Ran:
        """Itself, if it ended with this code."""
        assert code in (None, self.code), self.out + self.err
        return self


def run_command(
    command: Sequence[object], *, cwd: Path | None = None, env: dict[str, str] | None = None, code: int | None = 0,
    timeout: float = 100, **options: Any,
) -> Ran:  # fmt: skip
    """Run a command to its end. code: how it must end; None where the caller looks itself."""
    done = subprocess.run(
        [*map(str, command)], cwd=cwd, env=env, capture_output=True, text=True, timeout=timeout, **options
    )
    return Ran(done.returncode, done.stdout, done.stderr).with_code(code)


def run(*args: object, cwd: Path, env: dict[str, str], code: int | None = None, timeout: float = 100) -> Ran:
    """Run `singa-dask ARGS` to its end."""
    return run_command([*COMMAND, *args], cwd=cwd, env=env, code=code, timeout=timeout)


@contextmanager
def command_undone() -> Iterator[None]:
    """What the command changes in its process is as before afterwards."""
    logger, threshold = logging.getLogger("singa_dask"), gc.get_threshold()
    before, level = [*logger.handlers], logger.level
    on_signals = {number: signal.getsignal(number) for number in FOR_THE_DRIVER}
    streams = sys.stdout, sys.stderr
    try:
        yield
    finally:
        sys.stdout, sys.stderr = streams
        logger.handlers[:] = before
        logger.setLevel(level)
        gc.set_threshold(*threshold)
        for number, handler in on_signals.items():
            signal.signal(number, handler)


def run_here(*args: object, cwd: Path, env: dict[str, str], code: int | None = None) -> Ran:
    """Run `singa-dask ARGS` in this process: for calls that start no other process."""
    with command_undone(), chdir(cwd):
        done = CliRunner().invoke(main, [*map(str, args)], env=env, prog_name="singa-dask")
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exc_info
    return Ran(done.exit_code, done.stdout, done.stderr).with_code(code)


@contextmanager
def started(
    *args: object, folder: Path, env: dict[str, str], command: Sequence[object] = COMMAND
) -> Iterator[subprocess.Popen]:
    """`singa-dask ARGS`, or another command, in a process group of its own, as a terminal would start it. Its output
    is in the file `log`."""
    with open(folder / "log", "w") as log:
        process = subprocess.Popen(
            [*map(str, command), *map(str, args)],
            cwd=folder, env=env, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def kill_and_see_others_end(process: subprocess.Popen, within: float = 60) -> None:
    """Kill a process; those that it has started end then by themselves."""
    family = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.communicate(timeout=within)
    assert not psutil.wait_procs(family, timeout=within)[1]


def first_line(process: subprocess.Popen, within: float = 60) -> Any:
    """What a process says first; empty where it ends without a word, as it does after `within` seconds."""
    patience = threading.Timer(within, process.kill)
    patience.start()
    try:
        return process.stdout.readline()  # type: ignore[union-attr]
    finally:
        patience.cancel()


def said(folder: Path) -> str:
    """What the command that `started` runs has printed so far."""
    log = folder / "log"
    return log.read_text() if log.exists() else ""


def wait_until(condition: Callable[[], object], process: subprocess.Popen, folder: Path, within: float = 60) -> None:
    """Wait for a condition; fails when the process, whose output is in `log`, ends or takes longer than `within` s."""

    def holds() -> object:
        held = condition()
        assert held or process.poll() is None, said(folder)
        return held

    wait_for(holds, lambda: said(folder), within)


def wait_for(condition: Callable[[], object], trouble: Callable[[], object] = str, within: float = 60) -> None:
    """Wait for a condition; fails with what `trouble` says after `within` seconds."""
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, trouble()
        time.sleep(0.05)


def example(job: str = "digits") -> Path:
    return ROOT / "examples" / job / "job.conf"


def cluster(name: str = "allreduce") -> Path:
    return ROOT / "examples" / "clusters" / f"{name}.conf"


def sets(**values: object) -> list[str]:
    """--set options; "__" stands for "."."""
    return [part for key, value in values.items() for part in ("--set", f"{key.replace('__', '.')}={value}")]


def summary(workspace: Path) -> dict:
    return json.loads((workspace / "summary.json").read_text())


def parameters(workspace: Path) -> dict[str, np.ndarray]:
    """The parameters of the newest checkpoint."""
    with h5py.File(newest(workspace / "checkpoint")[0].path) as file:
        return {name: array[()] for name, array in file["parameters"].items()}


def metrics(workspace: Path) -> list[dict]:
    return list(_rows(workspace / "metrics.jsonl"))


def events(workspace: Path) -> list[dict]:
    return list(_rows(workspace / "events.jsonl"))


def _rows(path: Path) -> Iterator[dict]:
    """The whole lines of a file that may be written just now."""
    for line in path.read_text().splitlines(keepends=True) if path.exists() else ():
        if line.endswith("\n"):
            yield json.loads(line)
