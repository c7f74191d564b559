"""What a network takes of the processors of its hosts."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tools.contest import FOLDER, environment
from tools.network import Host, bits_per_s

MEASURED_S, TIMEOUT_S = 1.0, 30.0


def carrying_s_per_mb(hosts: Sequence[Host], rate: str) -> float:
    """Seconds of a host's cores for a megabyte sent while another is received, at this rate and over plain sockets."""
    nbytes = round(MEASURED_S * bits_per_s(rate) / 8)
    traffic = [sys.executable, str(FOLDER / "contestants" / "traffic.py"), hosts[0].address, str(nbytes)]
    ends: list[subprocess.Popen] = []
    try:
        for host, more in zip(hosts, (["listen"], []), strict=True):
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            ends.append(subprocess.Popen(host.command([*traffic, *more]), text=True, env=environment(1), **pipes))
            assert ends[-1].stdout is not None
            if ends[-1].stdout.readline() != "ready\n":
                raise RuntimeError(f"`{' '.join(traffic)}` does not begin; see its message above")
        before = _busy_s()
        time.sleep(MEASURED_S)
        rest = (_busy_s() - before) / MEASURED_S
        before, began = _busy_s(), time.monotonic()
        for end in ends:
            assert end.stdin is not None
            end.stdin.write("begin\n")
            end.stdin.flush()
        for end in ends:
            if end.wait(TIMEOUT_S) != 0:
                raise RuntimeError(f"`{' '.join(traffic)}` failed; see its message above")
        busy = _busy_s() - before - rest * (time.monotonic() - began)
        return max(0.0, busy / len(hosts) / (nbytes / 1e6))
    finally:
        for end in ends:
            end.kill()
            end.wait()


def _busy_s() -> float:
    """Seconds so far in which the machine's cores were not idle, up to a constant."""
    lines = Path("/proc/stat").read_text().splitlines()
    cores = [line.split() for line in lines if line.startswith("cpu") and line[3].isdigit()]
    idle = sum(int(columns[4]) + int(columns[5]) for columns in cores) / os.sysconf("SC_CLK_TCK")
    return len(cores) * time.monotonic() - idle
