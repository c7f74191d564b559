"""Hosts on one machine, joined by a switch, their bandwidth limited: namespaces of Linux, and `tc` (needs root)."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

CARD, SWITCH = "exchange0", "switch0"
SWITCH_ADDRESS, HOME_ADDRESS = "10.213.78.254", "10.213.78.253"
TOOLS = ("ip", "tc", "nsenter", "taskset", "unshare")
_NAMESPACES = ("--net", "--ipc", "--mount")
# MPI looks for network cards in /sys, which shows those of where it was mounted. Shared memory tells hosts apart.
_SETUP = "mount -t sysfs sys /sys && mount -t tmpfs shm /dev/shm && ip link set lo up && echo ready && exec cat"


class NotHere(Exception):
    """This machine, or this user, cannot make such a network; the message says why."""


@dataclass
class Host:
    """A network of its own, memory that is shared with no other, and as many of the machine's cores as any other host.

    It goes when `holder` does, or this process. port: the switch, as the id of its process, and the host's card there.
    """

    address: str
    holder: subprocess.Popen
    cores: list[int]
    port: tuple[int, str]

    def command(self, arguments: Sequence[str]) -> list[str]:
        """What runs `arguments` on this host."""
        pinned = ["taskset", "--cpu-list", ",".join(map(str, self.cores))]
        return [*pinned, *_inside(self.holder.pid, arguments)]

    def at_switch(self, arguments: Sequence[str]) -> list[str]:
        """What runs `arguments` at the switch, from where all hosts are reached, on any core."""
        return _inside(self.port[0], arguments)

    def run(self, *arguments: str) -> str:
        """What `arguments` print on this host. Raises NotHere where they fail."""
        return _ran(self.command(arguments))

    def limit(self, rate: str, *, even: bool = False) -> None:
        """Let so much through its network card in each direction, as "100mbit".

        What is sent after a rest passes at once up to a burst of 128 KB: below the 64 KB that TCP hands down at once
        Linux would have to cut them up, at the expense of the processors. even: TCP hands down 16 KB, and a burst has
        20 KB, which is closer to a network that always takes as long.
        """
        switch, port = self.port
        limit = ["root", "tbf", "rate", rate, "burst", "20kb" if even else "128kb", "limit", "1mb"]
        size = ["gso_max_size", "16384" if even else "65536"]
        self.run("ip", "link", "set", "dev", CARD, *size)
        self.run("tc", "qdisc", "replace", "dev", CARD, *limit)
        _ran(_inside(switch, ["ip", "link", "set", "dev", port, *size]))
        _ran(_inside(switch, ["tc", "qdisc", "replace", "dev", port, *limit]))

    def cut(self, *, off: bool) -> None:
        """Take it off the network, or put it back."""
        switch, port = self.port
        _ran(_inside(switch, ["ip", "link", "set", "dev", port, "down" if off else "up"]))

    def wait_up(self) -> None:
        """Until the network card is: Linux takes up to a second, and MPI would do without the card."""
        deadline = time.monotonic() + 10
        while self.run("cat", f"/sys/class/net/{CARD}/operstate").strip() != "up":
            if time.monotonic() > deadline:
                raise NotHere("the virtual network cards do not come up")
            time.sleep(0.05)

    def sent(self) -> int:
        """Bytes that have left by its network card."""
        columns = self.run("cat", "/proc/net/dev").partition(f"{CARD}:")[2].split()
        return int(columns[8])

    @contextmanager
    def network(self) -> Iterator[None]:
        """Sockets that this thread makes meanwhile are the host's."""
        with open("/proc/thread-self/ns/net") as home, open(f"/proc/{self.holder.pid}/ns/net") as here:
            _enter(here.fileno())
            try:
                yield
            finally:
                _enter(home.fileno())


@contextmanager
def joined_hosts(count: int, *, home: bool = False) -> Iterator[list[Host]]:
    """Hosts that reach each other and nobody else. Raises NotHere where that is not allowed.

    home: they reach this process too, at HOME_ADDRESS.
    """
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        raise NotHere(f"limited networks need the commands {', '.join(missing)} (packages iproute2 and util-linux)")
    if os.geteuid() != 0:
        raise NotHere("limited networks need root, for namespaces and tc")
    holders: list[subprocess.Popen] = []
    hosts: list[Host] = []
    cores = sorted(os.sched_getaffinity(0))
    try:
        holders.append(_holder())
        switch = holders[0].pid
        _ran(_inside(switch, ["ip", "link", "add", SWITCH, "type", "bridge"]))
        _ran(_inside(switch, ["ip", "link", "set", SWITCH, "up"]))
        _ran(_inside(switch, ["ip", "address", "add", f"{SWITCH_ADDRESS}/24", "dev", SWITCH]))
        if home:
            _ran(["ip", "link", "add", "home0", "type", "veth", "peer", "name", "home", "netns", str(switch)])
            _ran(_inside(switch, ["ip", "link", "set", "home", "master", SWITCH, "up"]))
            _ran(["ip", "address", "add", f"{HOME_ADDRESS}/24", "dev", "home0"])
            _ran(["ip", "link", "set", "home0", "up"])
        for number in range(count):
            holders.append(_holder())
            port = f"port{number}"
            own = cores[number::count] or [cores[number % len(cores)]]
            hosts.append(Host(f"10.213.78.{number + 1}", holders[-1], own, (switch, port)))
            cards = ["netns", str(holders[-1].pid), "type", "veth", "peer", "name", port, "netns", str(switch)]
            _ran(["ip", "link", "add", CARD, *cards])
            _ran(_inside(switch, ["ip", "link", "set", port, "master", SWITCH, "up"]))
            hosts[-1].run("ip", "address", "add", f"{hosts[-1].address}/24", "dev", CARD)
            hosts[-1].run("ip", "link", "set", CARD, "up")
        for host in hosts:
            host.wait_up()
        yield hosts
    finally:
        if home:
            subprocess.run(["ip", "link", "delete", "home0"], capture_output=True, timeout=20)
        for holder in holders:
            holder.kill()
            holder.wait()


def bits_per_s(rate: str) -> float:
    """What `tc` takes a rate for. Raises ValueError for what is none.

    >>> bits_per_s("100mbit")
    100000000.0
    """
    found = re.fullmatch(r"(\d+)(k|m|g|)bit", rate)
    if found is None:
        raise ValueError(f"a rate is an integer of kbit, mbit or gbit. Received: {rate}.")
    return float(found[1]) * 1000.0 ** ("", "k", "m", "g").index(found[2])


def congestion() -> str:
    """How TCP shares a network here; new namespaces take it over."""
    return Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()


def _inside(holder: int, arguments: Sequence[str]) -> list[str]:
    return ["nsenter", "--target", str(holder), *_NAMESPACES, *arguments]


def _holder() -> subprocess.Popen:
    command = ["unshare", *_NAMESPACES, "sh", "-c", _SETUP]
    holder = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    if holder.stdout.readline().strip() != "ready":
        _, why = holder.communicate(timeout=10)
        raise NotHere(f"namespaces are not allowed here: {why.strip()}")
    return holder


def _ran(command: Sequence[str]) -> str:
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if ran.returncode != 0:
        raise NotHere(f"`{' '.join(command)}` failed: {ran.stderr.strip()}")
    return ran.stdout


def _enter(descriptor: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, 0) != 0:
        raise NotHere(f"a network namespace cannot be entered: {os.strerror(ctypes.get_errno())}")
