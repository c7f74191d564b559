"""Stages of a run: programs with a time limit, of whose end nothing else depends."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PASSED, FAILED, LATE = "passed", "failed", "late"
# Between SIGTERM at the limit and SIGKILL.
GRACE_S = 3.0
# Environment variable that tells a stage its limit.
LIMIT = "STAGE_LIMIT_S"


@dataclass(frozen=True)
class Stage:
    """command: arguments of Python. needs: modules, executables, or "gpu". prefix: a program that runs Python. paths:
    folders for its imports, beside the checkout. variables: of its environment. skip: why not to run it, or ""."""

    name: str
    limit_s: float
    command: Sequence[str | Path]
    needs: Sequence[str] = ()
    prefix: Sequence[str | Path] = ()
    paths: Sequence[Path] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    skip: Callable[[], str] = str


class Missing:
    """What a machine lacks. machine: what facts.py has found; empty if it has failed, and then nothing is missing."""

    EXECUTABLES = ("compute-sanitizer", "ncu")

    def __init__(self, machine: Mapping[str, Any]) -> None:
        self._machine = machine

    def reason(self, needs: Sequence[str]) -> str:
        """Why a stage cannot run; "" if it can."""
        return next(filter(None, map(self._why, needs)), "")

    def _why(self, need: str) -> str:
        if need in self.EXECUTABLES:
            return "" if shutil.which(need) else f"{need} is not on the PATH"
        if not self._machine:
            return ""
        if need == "gpu":
            return (
                ""
                if self._machine["devices"]
                else f"no GPU: {self._machine['faults'].get('devices', 'CUDA sees none')}"
            )
        return "" if self._machine["modules"].get(need) else f"{need} is not installed"


def run_stage(stage: Stage, limit_s: float, log: Path, folder: Path, variables: Mapping[str, str]) -> dict[str, Any]:
    """Run a stage in `folder`, with its output in `log`; returns how it ended. At its limit all its processes end."""
    environment = {**os.environ, **variables, **stage.variables, LIMIT: str(limit_s)}
    paths = [*map(str, stage.paths), str(folder), *filter(None, [environment.get("PYTHONPATH")])]
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    command = [*map(str, stage.prefix), sys.executable, *map(str, stage.command)]
    began, code, reason = time.monotonic(), None, ""
    try:
        with log.open("wb") as output:
            options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": subprocess.STDOUT}
            process = subprocess.Popen(command, cwd=folder, env=environment, start_new_session=True, **options)
            code = _ended(process, limit_s)
    except OSError as error:
        reason = str(error)
    status = PASSED if code == 0 else LATE if code is None and not reason else FAILED
    if status == LATE:
        reason = f"ended at its limit; last line: {last_line(log)}"
    elif status == FAILED:
        reason = reason or f"exit code {code}; last line: {last_line(log)}"
    seconds = time.monotonic() - began
    told = {"stage": stage.name, "status": status, "reason": reason, "exit_code": code}
    return {**told, "seconds": seconds, "limit_s": limit_s, "output": log.name}


def _ended(process: subprocess.Popen[bytes], limit_s: float) -> int | None:
    """The exit code; None if the process had to be ended. Afterwards nothing of its process group is there."""
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
        return None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def last_line(log: Path) -> str:
    """The last line of a stage's output that is not empty."""
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()] if log.exists() else []
    return lines[-1].strip() if lines else ""
