"""Whether a worker's memory suffices, before it allocates anything.

    need = (values + gradients + updater state + sums of the exchange + activations) x bytes of an element

The arrays of parameters are those of this worker: what all workers of its group have, and its own shards of what is
split. What processes have in common (the memory of a machine, of a control group, of a GPU) is divided among the
workers there.
"""

from __future__ import annotations

import resource
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from math import prod
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import psutil  # type: ignore[import-untyped]

from singa_dask.comm.communicator import Communicator
from singa_dask.comm.objects import all_gather_objects
from singa_dask.errors import ConfigError, Problem, reason
from singa_dask.job.job_pb2 import JobProto, Phase
from singa_dask.job.stores import store_of
from singa_dask.layers.base import Layer
from singa_dask.layers.partition import Sharding
from singa_dask.net import Net
from singa_dask.net.setup import told_apart
from singa_dask.ops import Ops
from singa_dask.ops.gpu.visible import identity_of, in_words
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
    exchange: what arrives of the others' gradients, and what a codec keeps. workspace: of convolutions on a GPU.
    reserved: besides, in the address space.
    """

    parameters: int
    gradients: int
    updater_state: int
    exchange: int
    activations: int
    workspace: int = 0
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

    @property
    def numbers(self) -> list[int]:
        """All of them, in this order."""
        return [self.space, self.memory, *(number for owner in self.owners for number in owner)]


def need_of(
    nets: Mapping[int, Net],
    job: JobProto,
    workers: int,
    *,
    in_process_servers: bool,
    shares: bool,
    resumes: bool = False,
    on_device: bool = False,
    batch: int | None = None,
) -> Need:
    """What each of a group of `workers` allocates, on its GPU if it has one.

    nets: its nets of all phases, which need not be allocated. in_process_servers: whether the updater's state is in
    the worker's process. shares: whether all workers of the group are on one machine and share values and gradients.
    resumes: whether it begins with a checkpoint. on_device: whether gradients travel from GPU to GPU. batch: of
    mini-batches that have more samples by the job.
    """
    train = nets[Phase.kTrain]
    itemsize = np.dtype(train.ops.dtype).itemsize
    common = itemsize * sum(param.size for param in train.params if param.shard is None)
    own = itemsize * sum(param.size for param in train.params if param.shard is not None)
    states = len(states_of(job.updater))
    exchanged = 0 if shares or workers == 1 else common
    kept = 2 * exchanged // workers  # the own part of the sums, and MPI's buffer for what it adds
    if job.cluster.codec != job.cluster.kFull:  # the servers' values, and a residual
        kept = 2 * exchanged
    if train.ops.device != "cpu":  # what is not on the host: the sums, and new values of servers elsewhere
        coded = job.cluster.codec != job.cluster.kFull  # then there are the servers' values, and a residual
        kept = (exchanged * (1 + coded) + (0 if in_process_servers else common)) if on_device else exchanged * coded
    # Values to begin with; updater states of a checkpoint. Workers that cannot share memory exchange messages.
    unused = common + common * (workers > 1) + (states * (common + own) if resumes else 0)
    return Need(
        parameters=(common // workers if shares else common) + own,
        gradients=common + own,
        updater_state=states * (common // workers + own) if in_process_servers else 0,
        exchange=kept,
        activations=itemsize * sum(_activations(net, workers, batch) for net in nets.values()),
        workspace=itemsize * sum(_workspace(net, workers, batch) for net in nets.values()),
        averages=2 * (common + own) if job.updater.ema_decay else 0,
        reserved=unused + (common - common // workers if shares else 0),
    )


def _activations(net: Net, workers: int, most: int | None) -> int:
    """Elements of all outputs for this worker's rows, and of as many gradients if the net is trained. most: samples of
    a mini-batch."""
    elements = 0
    for name, layer in net.layers.items():
        shapes = net.shapes[name]
        size = sum(map(prod, shapes)) if told_apart(layer, shapes) else prod(shapes)
        copies = 2 if net.phase == Phase.kTrain and name not in net.input_layers else 1
        elements += copies * _rows(net, layer, workers, most) * layer.steps * size
    return elements


def _workspace(net: Net, workers: int, most: int | None) -> int:
    """Elements of the memory that layers of a net on a GPU keep, and of that which the others have in common for one
    call."""
    if net.ops.device == "cpu":  # of the size of its caches
        return 0
    kept = common = 0
    for layer in net.layers.values():
        rows = _rows(net, layer, workers, most) * layer.steps
        own = layer.kept_size(net.ops, rows) if net.phase == Phase.kTrain else 0
        kept, common = kept + own, common if own else max(common, layer.scratch_size(net.ops, rows))
    return kept + common


def _rows(net: Net, layer: Layer, workers: int, most: int | None) -> int:
    """Samples that a worker computes in a layer."""
    batch = batch_of(net) if most is None else min(most, batch_of(net))
    return -(-batch // workers) if layer.partition.makes == Sharding.BATCH else batch


def batch_of(net: Net) -> int:
    """Samples of the largest mini-batch of a net."""
    stores = [store_of(net.layers[name].proto) for name in net.input_layers]
    return max((max(store.batchsize, default=1) for store in stores), default=1)


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


def free_on_gpu(ops: Any) -> Free:
    """What is free for this process on its GPU, which others may use too."""
    limit, free = ops.free_memory()
    gpu = crc32(identity_of(ops.device_id).encode())
    return Free(UNLIMITED, UNLIMITED if limit is None else limit, ((free, gpu),))


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
    on_device: bool = False,
    dask_limit: int | None = None,
) -> None:
    """Check that memory suffices for every worker's replica of the job: of its GPU, or of the host. Collective, before
    they allocate.

    in_process_servers, resumes, on_device: see need_of. dask_limit: see free_here. The host's is not checked for
    workers on GPUs. Raises ConfigError on every worker if the memory of any of them does not suffice.
    """
    shares = comm.size > 1 and suits_sharing(job, ops) and comm.one_machine()
    settings = {"in_process_servers": in_process_servers, "resumes": resumes, "on_device": on_device}
    nets = make_nets(job, ops, comm.rank, comm.size, allocate=False)
    need = need_of(nets, job, comm.size, shares=shares, **settings)
    on_gpu = ops.device != "cpu"
    free = free_on_gpu(ops) if on_gpu else free_here(dask_limit)
    reserved_here = 0 if on_gpu else need.reserved
    needed = [min(nbytes, UNLIMITED // 2) for nbytes in (need.total, reserved_here)]  # both together have 63 bits
    table = _by_rank(comm, [*needed, *free.numbers])
    total, reserved, space = table[:, 0], table[:, 1], table[:, 2]
    memory = divided(table[:, 3:])
    missing = np.maximum(total - memory, total + reserved - space)
    rank = int(missing.argmax())
    if missing[rank] <= 0:
        return
    left = Free(int(space[rank]), int(memory[rank]))
    text, has, whose = f"needs {need}", left.memory, f"rank {rank}"
    if missing[rank] > total[rank] - has:
        text, has = f"{text} and {readable(need.reserved)} of address space besides", left.space
    if on_gpu:
        whose = f"{all_gather_objects(comm, in_words(ops.device_id))[rank]}, of rank {rank},"
    text = f"{text}; {whose} has {readable(has)} free: {readable(missing[rank])} are missing"

    def fits(each: JobProto, workers: int, its: Mapping[int, Net], batch: int | None = None) -> Need | None:
        """What a worker needs, if there is so much."""
        need = need_of(its, each, workers, shares=shares and each is job, batch=batch, **settings)
        beside = 0 if on_gpu else need.reserved
        return need if need.total <= left.memory and need.total + beside <= left.space else None

    raise ConfigError(Problem("neuralnet", text, hint=_way_out(job, ops, comm.size, nets, fits)))


def ran_out(error: MemoryError, job: JobProto, workers: int, *, in_process_servers: bool) -> str:
    """What to say of a worker that asked for memory in vain, though `check_memory` had found enough."""
    nets = make_nets(job, Ops(), 0, workers, allocate=False)
    need = need_of(nets, job, workers, in_process_servers=in_process_servers, shares=False)
    text = f"memory ran out ({reason(error)}): the net needs {need}, besides data and libraries"
    return f"{text}. Use a smaller batchsize, fewer workers per machine or GPU, or more memory."


def has_room(comm: Communicator, nbytes: int, dask_limit: int | None = None) -> bool:
    """Whether every worker could allocate so many bytes, its own number, and leave half of what is free. Collective.

    dask_limit: see free_here.
    """
    table = _by_rank(comm, [nbytes, *free_here(dask_limit).numbers])
    return bool((2 * table[:, 0] <= np.minimum(table[:, 1], divided(table[:, 2:]))).all())


def has_room_here(nbytes: int, dask_limit: int | None = None) -> bool:
    """Whether this process could allocate so many bytes, and leave half of what is free. dask_limit: see free_here."""
    free = free_here(dask_limit)
    return 2 * nbytes <= min(free.space, free.memory, *(bound for bound, _ in free.owners))


def _by_rank(comm: Communicator, own: Sequence[int]) -> np.ndarray:
    """Every rank's numbers, in a row each. Collective."""
    table = np.zeros((comm.size, len(own)), np.int64)
    table[comm.rank] = own
    comm.all_gather(table.reshape(-1), [len(own)] * comm.size)
    return table


def divided(table: np.ndarray) -> np.ndarray:
    """The memory of each worker. table: by worker, `memory` and `owners` of its Free."""
    memory = table[:, 0].copy()
    for column in range(1, table.shape[1], 2):
        bounds, owners = table[:, column], table[:, column + 1]
        together = np.array([(owners == owner).sum() for owner in owners])
        memory = np.minimum(memory, bounds // together)
    return memory


def _way_out(job: JobProto, ops: Ops, workers: int, nets: Mapping[int, Net], fits: Callable[..., Need | None]) -> str:
    """What a user can do: the largest mini-batch that fits; the smallest number of workers, of those tried, over which
    the net fits if it is split."""
    ways = []
    largest = max(map(batch_of, nets.values()))
    fitting = bisect_left(range(workers, largest), True, key=lambda batch: fits(job, workers, nets, batch) is None)
    if batch := fitting + workers - 1 if fitting else 0:
        found = fits(job, workers, nets, batch)
        assert found is not None
        ways.append(f"With batchsize {batch} at most, each worker needs {readable(found.total)}.")
    split = JobProto()
    split.CopyFrom(job)
    split.neuralnet.partition_dim = 1
    for size in (count * workers for count in (1, 2, 4, 8, 16, 32) if count * workers > 1):
        try:
            found = fits(split, size, make_nets(split, ops, 0, size, allocate=False))
        except ConfigError:
            break
        if found is not None:
            spread = ", if no more of them share a machine than now" if size > workers else ""
            each = readable(found.total)
            ways.append(f"Split it: with neuralnet.partition_dim: 1, each of {size} workers needs {each}{spread}.")
            break
    return " ".join(ways) or f"Use {'workers' if ops.device == 'cpu' else 'GPUs'} with more memory."


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
