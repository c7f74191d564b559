"""A Slurm of two nodes on this machine, in a folder of its own. Nothing is installed."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from support.commands import run_command, wait_for

_DAEMONS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "scancel", "squeue", "sinfo")
_PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"
# A requeued job waits for as long as credentials are valid: 120 s by default.
_CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=5
SlurmctldPort={ports[0]}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmdSpoolDir={folder}/spool.%n
StateSaveLocation={folder}/state
MailProg=/bin/true
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
KillWait=20
ReturnToService=2
SlurmdParameters=config_overrides
SchedulerParameters=bf_interval=1,sched_interval=1
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=8 RealMemory=100000 State=UNKNOWN
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=8 RealMemory=100000 State=UNKNOWN
PartitionName=low Nodes=ALL Default=YES PriorityTier=1
PartitionName=high Nodes=ALL PriorityTier=10 PreemptMode=off
"""


def missing() -> str:
    """Why there can be no Slurm here; "" if there can be one."""
    if absent := [name for name in _DAEMONS if shutil.which(name, path=_PATH) is None]:
        return f"not in PATH: {', '.join(absent)}"
    if os.geteuid():
        return "Slurm's daemons need root"
    try:
        socket.getaddrinfo("127.0.0.1", 1, flags=socket.AI_ADDRCONFIG)
    except OSError:
        return "Slurm needs an address other than that of loopback"
    return ""


class Slurm:
    """Its commands, which tests type. folder: with its configuration and logs."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder = folder
        self.environment = {name: value for name, value in environment.items() if not name.startswith("SLURM_")}
        self.environment |= {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": _PATH}

    def call(self, *command: object) -> str:
        return run_command(command, cwd=self.folder, env=self.environment, timeout=60).out.strip()

    def about(self, job: str) -> dict[str, str]:
        """What scontrol says of a job."""
        return dict(re.findall(r"(\S+?)=(\S*)", self.call("scontrol", "-o", "show", "job", job)))

    def state(self, job: str) -> str:
        return self.about(job)["JobState"]

    def ended(self, job: str) -> bool:
        """Whether it holds no node any more."""
        return self.state(job) not in ("PENDING", "RUNNING", "COMPLETING", "SUSPENDED", "CONFIGURING")

    def processes(self, job: str, rank: int) -> list[psutil.Process]:
        """Those of a task of a job, or of mpiexec's rank, the oldest first."""
        found = []
        for process in psutil.process_iter():
            try:
                there = process.environ()
            except psutil.Error:
                continue
            number = there.get("PMI_RANK") or there.get("SLURM_PROCID")
            own = (there.get("SLURM_CONF"), there.get("SLURM_JOB_ID")) == (self.environment["SLURM_CONF"], job)
            if own and number == str(rank) and process.name() in ("python", "singa-dask", "dask-mpi"):
                found.append(process)
        return sorted(found, key=psutil.Process.create_time)


@contextmanager
def slurm(folder: Path, environment: dict[str, str]) -> Iterator[Slurm]:
    """A Slurm that ends with the context, and all its jobs with it."""
    made = Slurm(folder, environment)
    _configure(folder)
    munge = folder / "munge"
    own = ["socket", "key-file", "pid-file", "log-file", "seed-file"]
    munged = ["munged", "--foreground", "--force", *(f"--{name}={munge / name.split('-')[0]}" for name in own)]
    daemons = [munged, ["slurmctld", "-D"], ["slurmd", "-D", "-N", "n1"], ["slurmd", "-D", "-N", "n2"]]
    started = []
    with open(folder / "daemons.log", "w") as log:
        try:
            for command in daemons:
                started.append(subprocess.Popen(command, env=made.environment, stdout=log, stderr=log, cwd=folder))
                if command is munged:
                    wait_for((munge / "socket").exists, (folder / "daemons.log").read_text)
            wait_for(lambda: _idle(made), (folder / "daemons.log").read_text)
            yield made
        finally:
            _end_jobs(made)
            for process in reversed(started):
                process.terminate()
            for process in started:
                try:
                    process.wait(20)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


def _configure(folder: Path) -> None:
    for name in ("munge", "state", "spool.n1", "spool.n2"):
        (folder / name).mkdir()
    (folder / "munge").chmod(0o711)
    key = folder / "munge" / "key"
    key.touch(0o600)
    key.write_bytes(os.urandom(128))
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    host = socket.gethostname()
    (folder / "slurm.conf").write_text(_CONFIGURATION.format(host=host, folder=folder, ports=ports))


def _idle(made: Slurm) -> bool:
    try:
        return set(made.call("sinfo", "-h", "-N", "-o", "%T").split()) == {"idle"}
    except AssertionError:
        return False


def _end_jobs(made: Slurm) -> None:
    try:
        made.call("scancel", "--user=root")
        wait_for(lambda: not made.call("squeue", "-h"), lambda: "jobs do not end", within=60)
    except (AssertionError, subprocess.TimeoutExpired):
        made.call("scancel", "--user=root", "--signal=KILL", "--full")
