"""Hosts on one machine: a set of namespaces each, whose virtual network cards are joined by a bridge on the first one.

Each has its own name, processes, shared memory, loopback and /dev/shm, so that MPI cannot but use the network between
them. Files they share, as the nodes of a cluster do, but for folders that are made private.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.commands import COMMAND, first_line, said

CARD = "eth9"
_NAMESPACES = ["--net", "--mount", "--uts", "--ipc", "--pid"]
_SETUP = "hostname {name} && mount -t tmpfs shm /dev/shm && mount -t sysfs sys /sys && ip link set lo up && echo ready"


@dataclass
class Host:
    """Namespaces, held by a first process. address: its IP on the network between the hosts."""

    name: str
    address: str
    holder: subprocess.Popen

    @property
    def init(self) -> int:
        """The first process; everything on the host dies with it."""
        return psutil.Process(self.holder.pid).children()[0].pid

    def run(self, *args: object) -> str:
        """What ARGS print on this host. Raises CalledProcessError when they fail."""
        return subprocess.run(self._enter(*args), check=True, capture_output=True, text=True, timeout=20).stdout

    def start(self, folder: Path, *args: object, **options: Any) -> subprocess.Popen:
        """Start ARGS on this host, in a folder."""
        # nsenter would start them in the root folder.
        return subprocess.Popen(self._enter("env", "--chdir", folder, *args), **options)

    def launcher(self, folder: Path) -> Path:
        """A program that runs commands on this host as ssh would: its own options, a name, and the command."""
        script = folder / f"on-{self.name}"
        enter = " ".join(self._enter("env", "--chdir", folder))
        script.write_text(
            f'#!/bin/sh\nwhile [ "$1" != {self.address} ]; do shift; done\nshift\nexec {enter} sh -c "$*"\n'
        )
        script.chmod(0o755)
        return script

    def processes(self) -> list[psutil.Process]:
        """What runs on this host."""
        mine = self._namespace(self.init)
        return [process for process in psutil.process_iter() if self._namespace(process.pid) == mine]

    def make_private(self, folder: Path) -> None:
        """Give the host a folder of its own in this place, which is empty."""
        self.run("mount", "-t", "tmpfs", "private", folder)

    def crash(self) -> None:
        """Kill everything that runs on the host. Its network card stays, as the other end would go with it."""
        for process in self.processes():
            if process.pid != self.init:
                process.kill()

    def received(self) -> int:
        """Bytes that have come from the other host."""
        return int(self.run("cat", f"/sys/class/net/{CARD}/statistics/rx_bytes"))

    def link(self, state: str) -> None:
        """Plug the network in ("up") or cut it ("down")."""
        self.run("ip", "link", "set", CARD, state)

    def wait_for_link(self) -> None:
        """Wait until the card is in use: the kernel takes up to a second, and until then MPI passes it over."""
        deadline = time.monotonic() + 10
        while self.run("cat", f"/sys/class/net/{CARD}/operstate").strip() != "up":
            assert time.monotonic() < deadline, f"the network of host {self.name} does not come up"
            time.sleep(0.02)

    def segments(self) -> list[str]:
        """MPI's shared memory on this host."""
        return [name for name in self.run("ls", "/dev/shm").split() if name.startswith(("mpich_shm_", "ucx_"))]

    def close(self) -> None:
        """Kill everything on the host; with its last process it is gone, its network card too."""
        self.holder.kill()
        self.holder.wait(timeout=10)

    def _enter(self, *args: object) -> list[str]:
        return ["nsenter", "--target", str(self.init), *_NAMESPACES, *map(str, args)]

    @staticmethod
    def _namespace(pid: int) -> str | None:
        try:
            return os.readlink(f"/proc/{pid}/ns/pid")
        except OSError:
            return None


@dataclass
class DaskOnHosts:
    """A Dask scheduler on the first host, and workers where they are started. folder: of commands and logs."""

    hosts: list[Host]
    folder: Path
    environment: dict[str, str]

    @property
    def scheduler(self) -> str:
        return f"tcp://{self.hosts[0].address}:8786"

    def start(self, on: int, log: str, *args: object) -> subprocess.Popen:
        with open(self.folder / log, "w") as file:
            options = {"env": self.environment, "stdout": file, "stderr": subprocess.STDOUT}
            return self.hosts[on].start(self.folder, *args, **options)

    def workers(self, on: int, count: int = 1) -> None:
        """Start so many workers on a host, with a nanny each."""
        worker = [sys.executable, "-m", "distributed.cli.dask_worker", self.scheduler, "--no-dashboard"]
        options = ["--nworkers", count, "--nthreads", 1, "--memory-limit", 0, "--host", self.hosts[on].address]
        self.start(on, f"workers-{on}.log", *worker, *options)

    def singa_dask(self, *args: object, on: int = 0) -> subprocess.Popen:
        """Start `singa-dask ARGS` on a host, with its output in the file `log`."""
        return self.start(on, "log", *COMMAND, *args)

    def run(self, *args: object, on: int = 0) -> tuple[int, str]:
        """The exit code and the output of `singa-dask ARGS` on a host."""
        return self.singa_dask(*args, on=on).wait(timeout=200), said(self.folder)


@contextmanager
def dask_on(folder: Path, *names: str, workers: int = 1, **variables: str) -> Iterator[DaskOnHosts]:
    """Hosts with a scheduler on the first one, and so many workers on each."""
    with hosts_named(*names) as hosts:
        environment = {**os.environ, "SINGA_DASK_CACHE": str(folder / "cache"), **variables}
        dask = DaskOnHosts(hosts, folder, environment)
        where = ["--no-dashboard", "--port", 8786, "--host", hosts[0].address]
        dask.start(0, "scheduler.log", sys.executable, "-m", "distributed.cli.dask_scheduler", *where)
        for number in range(len(hosts)):
            dask.workers(number, workers)
        yield dask


@contextmanager
def hosts_named(*names: str) -> Iterator[list[Host]]:
    """Hosts that reach each other, and nobody else. Skips the test where that is not allowed."""
    hosts: list[Host] = []
    try:
        for i, name in enumerate(names, start=1):
            hosts.append(Host(name, f"10.213.77.{i}", _holder(name)))
        first = hosts[0]
        _add_link(first, "bridge", "type", "bridge")
        first.run("ip", "link", "set", "bridge", "up")
        for host in hosts:
            port = f"to-{host.name}"
            _add_link(first, port, "type", "veth", "peer", "name", CARD, "netns", host.init)
            first.run("ip", "link", "set", port, "master", "bridge", "up")
        for host in hosts:
            host.run("ip", "address", "add", f"{host.address}/24", "dev", CARD)
            host.link("up")
        for host in hosts:
            host.wait_for_link()
        yield hosts
    finally:
        for host in hosts:
            host.close()


def _add_link(host: Host, name: str, *kind: object) -> None:
    command = ["ip", "link", "add", name, "netns", host.init, *kind]
    made = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=20)
    if made.returncode != 0:
        pytest.skip(f"virtual network cards are not allowed here: {made.stderr.strip()}")


def _holder(name: str) -> subprocess.Popen:
    tools = [tool for tool in ("unshare", "nsenter", "ip") if shutil.which(tool) is None]
    if tools:
        pytest.skip(f"two hosts need the commands {', '.join(tools)}")
    options = [*_NAMESPACES, "--mount-proc", "--fork", "--kill-child"]
    command = ["unshare", *options, "sh", "-c", f"{_SETUP.format(name=name)} && exec sleep 600"]
    holder = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if first_line(holder, 20).strip() != "ready":
        _, why = holder.communicate(timeout=10)
        pytest.skip(f"namespaces are not allowed here (root is needed): {why.strip()}")
    return holder
