"""What a rank of a worker group is given: the driver's plans, and what surrounds it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from singa_dask.job.code_bundle import CodeBundle
from singa_dask.memory.owner import Saved
from singa_dask.memory.store import Store
from singa_dask.server import Link


@dataclass(frozen=True)
class GroupPlan:
    """The plan of one worker group.

    number: from 0; generation: grows whenever the group is restarted. puts: whether it gives its servers their first
    parameters, from the checkpoint `resume` if there is one. first: step to begin with, unless the servers know a
    later one. fresh: whether the servers are new, and have no parameters. in_process_servers: whether every server is
    in the process of the only worker that uses it. cores: of each worker's process.
    left: the shadows of the ranks that it replaces, from which it goes on if they are still there. nannies: that may
    keep its newest checkpoint in memory, as for group_checkpoints.MemoryCheckpoints. gpus: of each worker, by its
    number in the worker's process, None where it has none left; () where they compute on CPUs.
    """

    number: int = 0
    generation: int = 0
    puts: bool = True
    resume: tuple[Saved, ...] = ()
    first: int = 0
    fresh: bool = True
    in_process_servers: bool = True
    cores: tuple[int, ...] = ()
    left: tuple[Saved, ...] = ()
    nannies: tuple[tuple[str, str], ...] = ()
    gpus: tuple[int | None, ...] = ()

    @property
    def leads(self) -> bool:
        """Whether it tests, validates and saves for the whole job."""
        return self.number == 0


@dataclass(frozen=True)
class WorkerPlan:
    """The driver's plan for every rank of a group.

    job: serialised JobProto, its data paths absolute. data, described: of the data, as in `Prepared`. code: the user's
    own. decided: by the evaluations of this run so far, `Decisions.state`. run: its id. trace: the steps that are
    traced, from, to.
    """

    job: bytes
    checkpoints: Path
    data: Mapping[str, str] = field(default_factory=dict)
    group: GroupPlan = GroupPlan()
    code: CodeBundle | None = None
    described: Mapping[str, str] = field(default_factory=dict)
    decided: Mapping[str, Any] = field(default_factory=dict)
    run: str = ""
    trace: tuple[int, int] | None = None


@dataclass
class RankServices:
    """What surrounds a rank; tests supply their own.

    submit: runs a loading task ahead of time. emit: sends an event to the driver. stop_requested: whether the driver
    asked for an early, clean end; regroup_requested: that the group leave after a step, to be formed again. links: to
    the servers of the group; None where these are in the workers' processes. servers_elsewhere: whether one is on
    another machine. others_ended: whether all other worker groups have ended. cores: for this rank. memory_limit:
    bytes from which on the Dask worker loads no more data; None for no limit. holder: has a shadow outlive the
    process, deposits: checkpoints in memory; None where nothing can. address: of the Dask worker, "" without one.
    """

    submit: Callable[..., Any]
    emit: Callable[[dict[str, Any]], None] = lambda event: None
    stop_requested: Callable[[], bool] = lambda: False
    regroup_requested: Callable[[], bool] = lambda: False
    links: Callable[[], Mapping[int, Link]] | None = None
    servers_elsewhere: Callable[[], bool] = lambda: False
    others_ended: Callable[[], bool] = lambda: True
    cores: int = 1
    memory_limit: int | None = None
    holder: Store | None = None
    deposits: Store | None = None
    address: str = ""
