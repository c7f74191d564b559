"""Whether a worker's memory suffices, before it allocates anything.

    need = (values + gradients + updater state + sums of the exchange + activations) x bytes of an element

The arrays of parameters are those of this worker: what all workers of its group have, and its own portions of what is
split. What processes have in common (the memory of a machine, of a control group) is divided among the workers there.
"""

from __future__ import annotations

import resource
from collections.abc import Mapping
from dataclasses import astuple, dataclass, fields
from math import prod
from pathlib import Path
from zlib import crc32

import numpy as np
import psutil  # type: ignore[import-untyped]

from singa_dask.comm.communicator import Communicator
from singa_dask.errors import ConfigError, Problem, reason
from singa_dask.job.job_pb2 import JobProto, Phase
from singa_dask.job.stores import store_of
from singa_dask.layers.partition import Form
from singa_dask.net import Net
from singa_dask.net.net import told_apart
from singa_dask.ops import Ops
from singa_dask.training.nets import make_nets
from singa_dask.training.placement import suits_sharing
from singa_dask.updaters import states_of

UNLIMITED = 2**62
# Address space that a worker takes besides its arrays: compiled kernels, threads, messages; 100 MB were measured.
BESIDES = 2**27
_GROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Need:
    """Bytes of the arrays that a worker allocates and uses, by kind.

    averages: while the moving averages of the parameters are evaluated, these and the parameters themselves.
    exchange: what arrives of the others' gradients, and what a codec keeps. reserved: besides, in the address space.
    """

    parameters: int
    gradients: int
    updater_state: int
    exchange: int
    activations: int
    averages: int = 0
    reserved: int = 0

    @property
    def total(self) -> int:
        return sum(astuple(self)) - self.reserved

    def __str__(self) -> str:
        names = [field.name for field in fields(self) if field.name != "reserved" and getattr(self, field.name)]
        parts = [f"{name.replace('_', ' ')} {readable(getattr(self, name))}" for name in names]
        return f"{readable(self.total)} per worker ({', '.join(parts)})"


@dataclass(frozen=True)
class Free:
    """Bytes that are free for a worker: in its address space, and of memory.

    owners: other bounds of its memory, (bytes, who has it): it is divided among the workers with the same owner.
    """

    space: int
    memory: int
    owners: tuple[tuple[int, int], ...] = ()


def need_of(
    nets: Mapping[int, Net],
    job: JobProto,
    workers: int,
    *,
    in_process_servers: bool,
    shares: bool,
    resumes: bool = False,
) -> Need:
    """What each of a group of `workers` allocates.

    nets: its nets of all phases, which need not be allocated. in_process_servers: whether the updater's state is in
    the worker's process. shares: whether all workers of the group are on one machine and share values and gradients.
    resumes: whether it begins with a checkpoint.
    """
    train = nets[Phase.kTrain]
    itemsize = np.dtype(train.ops.dtype).itemsize
    common = itemsize * sum(param.size for param in train.params if param.portion is None)
    own = itemsize * sum(param.size for param in train.params if param.portion is not None)
    states = len(states_of(job.updater))
    exchanged = 0 if shares or workers == 1 else common
    kept = 2 * exchanged // workers  # the own part of the sums, and MPI's buffer for what it adds
    if job.cluster.codec != job.cluster.kFull:  # the servers' values, and a residual
        kept = 2 * exchanged
    # Values to begin with; updater states of a checkpoint. Workers that cannot share memory exchange messages.
    unused = common + common * (workers > 1) + (states * (common + own) if resumes else 0)
    return Need(
        parameters=(common // workers if shares else common) + own,
        gradients=common + own,
        updater_state=states * (common // workers + own) if in_process_servers else 0,
        exchange=kept,
        activations=itemsize * sum(_activations(net, workers) for net in nets.values()),
        averages=2 * (common + own) if job.updater.ema_decay else 0,
        reserved=unused + (common - common // workers if shares else 0),
    )


def _activations(net: Net, workers: int) -> int:
    """Elements of all outputs for this worker's rows, and of as many gradients if the net is trained."""
    stores = [store_of(net.layers[name].proto) for name in net.input_layers]
    batch = max((max(store.batchsize, default=1) for store in stores), default=1)
    elements = 0
    for name, layer in net.layers.items():
        rows = -(-batch // workers) if layer.partition.makes == Form.ROWS else batch
        shapes = net.shapes[name]
        size = sum(map(prod, shapes)) if told_apart(layer, shapes) else prod(shapes)
        copies = 2 if net.phase == Phase.kTrain and name not in net.input_layers else 1
        elements += copies * rows * layer.steps * size
    return elements


def free_here(dask_limit: int | None = None) -> Free:
    """What is free for this process: as the system and Dask bound it, its control group, and the machine.

    dask_limit: bytes of memory from which on the Dask worker pauses; None for no limit.
    """
    process, machine = psutil.Process().memory_info(), _machine()
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    space = UNLIMITED if soft == resource.RLIM_INFINITY else max(0, soft - process.vms - BESIDES)
    memory = UNLIMITED if dask_limit is None else max(0, dask_limit - process.rss)
    group, free = control_group(Path("/proc/self/cgroup"), _GROUPS)
    owners = (free, crc32(f"{machine} {group}".encode())), (psutil.virtual_memory().available, machine)
    return Free(space, memory, owners)


def control_group(membership: Path, mounted: Path) -> tuple[int, int]:
    """The control group that leaves a process the least memory: (number of its folder, free bytes).

    membership: /proc/PID/cgroup. mounted: where control groups are. Files that the system caches count as free.
    """
    least = 0, UNLIMITED
    for line in membership.read_text(encoding="utf-8").splitlines() if membership.exists() else ():
        number, kinds, path = line.split(":", 2)
        if number == "0":
            root, names = mounted, ("memory.max", "memory.current", "inactive_file")
        elif "memory" in kinds.split(","):
            root = mounted / "memory"
            names = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
        else:
            continue
        folder = root / path.lstrip("/")
        # In a container its own group is the root, though the process has the name that it has outside.
        for each in (folder, *folder.parents) if folder.exists() else (root,):
            free = _free_in(each, *names)
            least = min(least, (each.stat().st_ino, free), key=lambda found: found[1]) if free is not None else least
            if each == root:
                break
    return least


def _free_in(folder: Path, limit: str, use: str, cached: str) -> int | None:
    """Free bytes of a control group; None where it has no limit."""
    if not (folder / limit).exists() or (folder / limit).read_text().strip() == "max":
        return None
    statistics = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    used = int((folder / use).read_text()) - int(statistics.get(cached, 0))
    return max(0, int((folder / limit).read_text()) - used)


def _machine() -> int:
    boot = Path("/proc/sys/kernel/random/boot_id")
    return crc32(boot.read_bytes()) if boot.exists() else 0


def check_memory(
    job: JobProto,
    comm: Communicator,
    ops: Ops,
    *,
    in_process_servers: bool,
    resumes: bool = False,
    dask_limit: int | None = None,
) -> None:
    """Check that the host's memory suffices for every worker's replica of the job. Collective, before they allocate.

    in_process_servers, resumes: see need_of. dask_limit: see free_here. Memory of GPUs is not checked.
    Raises ConfigError on every worker if the memory of any of them does not suffice.
    """
    if ops.device != "cpu":
        return
    shares = comm.size > 1 and suits_sharing(job, ops) and comm.one_machine()
    nets = make_nets(job, ops, comm.rank, comm.size, allocate=False)
    need = need_of(nets, job, comm.size, in_process_servers=in_process_servers, shares=shares, resumes=resumes)
    free = free_here(dask_limit)
    needed = [min(nbytes, UNLIMITED // 2) for nbytes in (need.total, need.reserved)]  # both together have 63 bits
    own = [*needed, free.space, free.memory, *(number for owner in free.owners for number in owner)]
    table = np.zeros((comm.size, len(own)), np.int64)
    table[comm.rank] = own
    comm.all_gather(table.reshape(-1), [len(own)] * comm.size)
    total, reserved, space = table[:, 0], table[:, 1], table[:, 2]
    memory = divided(table[:, 3:])
    missing = np.maximum(total - memory, total + reserved - space)
    rank = int(missing.argmax())
    if missing[rank] <= 0:
        return
    text, has = f"needs {need}", int(memory[rank])
    if missing[rank] > total[rank] - has:
        text, has = f"{text} and {readable(need.reserved)} of address space besides", int(space[rank])
    text = f"{text}; rank {rank} has {readable(has)} free: {readable(missing[rank])} are missing"
    left = Free(int(space[rank]), int(memory[rank]))
    raise ConfigError(Problem("neuralnet", text, hint=_way_out(job, ops, comm.size, left, in_process_servers)))


def ran_out(error: MemoryError, job: JobProto, workers: int, *, in_process_servers: bool) -> str:
    """What to say of a worker that asked for memory in vain, though `check_memory` had found enough."""
    nets = make_nets(job, Ops(), 0, workers, allocate=False)
    need = need_of(nets, job, workers, in_process_servers=in_process_servers, shares=False)
    text = f"memory ran out ({reason(error)}): the net needs {need}, besides data and libraries"
    return f"{text}. Use a smaller batchsize, fewer workers per machine, or more memory."


def has_room(comm: Communicator, nbytes: int, dask_limit: int | None = None) -> bool:
    """Whether every worker could allocate so many bytes, its own number, and leave half of what is free. Collective.

    dask_limit: see free_here.
    """
    free = free_here(dask_limit)
    own = [nbytes, free.space, free.memory, *(number for owner in free.owners for number in owner)]
    table = np.zeros((comm.size, len(own)), np.int64)
    table[comm.rank] = own
    comm.all_gather(table.reshape(-1), [len(own)] * comm.size)
    return bool((2 * table[:, 0] <= np.minimum(table[:, 1], divided(table[:, 2:]))).all())


def has_room_here(nbytes: int, dask_limit: int | None = None) -> bool:
    """Whether this process could allocate so many bytes, and leave half of what is free. dask_limit: see free_here."""
    free = free_here(dask_limit)
    return 2 * nbytes <= min(free.space, free.memory, *(bound for bound, _ in free.owners))


def divided(table: np.ndarray) -> np.ndarray:
    """The memory of each worker. table: by worker, `memory` and `owners` of its Free."""
    memory = table[:, 0].copy()
    for column in range(1, table.shape[1], 2):
        bounds, owners = table[:, column], table[:, column + 1]
        together = np.array([(owners == owner).sum() for owner in owners])
        memory = np.minimum(memory, bounds // together)
    return memory


def _way_out(job: JobProto, ops: Ops, workers: int, free: Free, in_process_servers: bool) -> str:
    """What a user can do: the smallest number of workers, of those tried, over which the net fits if it is split."""
    split = JobProto()
    split.CopyFrom(job)
    split.neuralnet.partition_dim = 1
    for size in (count * workers for count in (1, 2, 4, 8, 16, 32) if count * workers > 1):
        try:
            nets = make_nets(split, ops, 0, size, allocate=False)
        except ConfigError:
            break
        need = need_of(nets, split, size, in_process_servers=in_process_servers, shares=False)
        if need.total <= free.memory and need.total + need.reserved <= free.space:
            spread = ", if no more of them share a machine than now" if size > workers else ""
            each = readable(need.total)
            return f"Split it: with neuralnet.partition_dim: 1, each of {size} workers needs {each}{spread}."
    return "Use a smaller batchsize, or workers with more memory."


def readable(nbytes: float) -> str:
    """
    >>> readable(5_200_000_000), readable(48_310_000), readable(5_200)
    ('5.2 GB', '48.3 MB', '5.2 kB')
    """
    if nbytes >= 1e9:
        return f"{nbytes / 1e9:.1f} GB"
    return f"{nbytes / 1e6:.1f} MB" if nbytes >= 1e5 else f"{nbytes / 1e3:.1f} kB"


def format_nbytes(nbytes: float) -> str:
    """
    >>> format_nbytes(2_348_000)
    '2.35 MB'
    """
    unit = "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if nbytes < 999.5:
            break
        nbytes, unit = nbytes / 1000, larger
    return f"{nbytes:.3g} {unit}"
