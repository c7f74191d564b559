"""Costs of the parts of a step on given machines, from the curves of a profile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

from singa_dask.comm.codecs import Codec, codec
from singa_dask.errors import ConfigError, Problem
from singa_dask.job import ClusterTopology
from singa_dask.job.job_pb2 import JobProto
from singa_dask.planning.collectives import Collectives
from singa_dask.planning.prediction import Machines
from singa_dask.planning.profile import Curve, Point, Profile, coding_name, rule_name
from singa_dask.planning.rates import Rate, Rates, passes_work, spread_work, update_work
from singa_dask.planning.work import NBYTES, Work, WorkerStep


@dataclass(frozen=True)
class ServerReply:
    """An update of servers in other processes: seconds until the reply, in which a server is busy for `busy`, and its
    network card for `card`; seconds of a core of the worker, `cpu`, and of the server, `served`."""

    seconds: float
    busy: float
    card: float
    cpu: float
    served: float


@dataclass(frozen=True)
class Exchange:
    """Of two servers: seconds until it is answered; seconds of cores of both sides together, `cpu`; and seconds in
    which the network card of either is busy, `card`."""

    seconds: float
    cpu: float
    card: float


def conditions(job: JobProto, machines: Machines) -> tuple[int, int]:
    """Under which the layers of a job compute: workers on a host, and the threads of each (Placement.cores)."""
    topology = ClusterTopology.from_proto(job.cluster)
    threads = int(machines.cores) // machines.beside(topology)
    if job.HasField("num_openblas_threads"):
        threads = job.num_openblas_threads
    return machines.packed(topology), max(1, threads)


class Costs:
    """concurrency: processes of the job that compute at once on a host; each has `threads`.

    share: cores of a worker, below 1 where there are more workers than cores. contention: the speed of a worker's two
    threads while both compute (see Timeline).
    """

    def __init__(
        self, job: JobProto, work: WorkerStep, profile: Profile, machines: Machines, concurrency: int
    ) -> None:
        self.profile, self.machines, self.concurrency = profile, machines, concurrency
        self.job, self.topology = job, ClusterTopology.from_proto(job.cluster)
        _, self.threads = conditions(job, machines)
        self.rates = Rates(profile, machines.cores)
        self.collectives = Collectives(profile, machines)
        self.rule, self.clips = rule_name(job.updater), bool(job.updater.clip_norm)
        self.codec: Codec | None = None
        if self.topology.codec != "kFull":
            self.codec = codec(self.topology.codec, sparsity=self.topology.sparsity)
        self._whole_update = self.layer(update_work(job, work))
        self._elements = work.replicated + work.own
        self.spread = self._known(spread_work(job, work))
        self.share = machines.cores / concurrency
        self.slower = max(1.0, 1 / self.share)
        self.contention = min(1.0, max(self.share, 1.0) / (self.threads + 1))

    def layer(self, work: Work) -> Rate:
        """Of a layer's calls."""
        return self.rates.layer(work, self.concurrency, self.threads)

    def passes(self, step: WorkerStep) -> float:
        """Of the algorithm besides the calls of the layers."""
        rate = self.layer(passes_work(self.job, step))
        return rate.forward + rate.backward

    def _known(self, work: Work) -> float:
        """Seconds of what was measured, else 0."""
        rate = self.layer(work)
        return rate.forward if rate.known else 0.0

    def curve(self, name: str, size: float) -> float:
        """Seconds by the curve of this name for the concurrency, or for the nearest smaller one that was measured."""
        numbers = self.profile.numbers(name)
        if not numbers:
            hint = "Run `singa-dask profile` on this cluster."
            raise ConfigError(Problem("profile", "lacks a measurement", name, hint))
        fitting = [n for n in numbers if n <= min(self.concurrency, self.machines.cores)] or numbers[:1]
        return self.slower * self.profile.curves[f"{name} {fitting[-1]}"].seconds(size)

    def update(self, elements: float) -> float:
        """Of the updater, in the process that has these elements: as between the steps of this job where that was
        measured, and of the way there and back."""
        if not elements:
            return 0.0
        if not self._whole_update.known:
            return self.curve(f"update {self.rule}", elements)
        return self.curve(f"update {self.rule}", 0) + elements / self._elements * self._whole_update.forward

    def add(self, nbytes: float) -> float:
        """Of adding another rank's gradient in shared memory."""
        return self.curve("sum", nbytes)

    def coding(self, way: str, elements: float) -> float:
        """way: "encode" or "decode"."""
        if self.codec is None or not elements:
            return 0.0
        return self.curve(f"{way} {coding_name(self.topology.codec, self.topology.sparsity)}", elements)

    def nbytes(self, elements: float) -> float:
        """Bytes of so many elements as they travel."""
        if self.codec is None or not elements:
            return float(NBYTES * elements)
        return float(self.codec.max_nbytes(int(elements)))

    def loading(self, values: float) -> float:
        """Of a core that a worker's step loses to its loading threads: none where a core is free for them."""
        if self.concurrency < self.machines.cores or not values:
            return 0.0
        return self.curve("load", values)

    def loop(self, passes: float) -> float:
        """Of what a step does besides its parts, and of what interrupts passes that take so many seconds."""
        return self.curve("loop", passes / self.slower)

    def unevenness(self, ranks: int) -> float:
        """By how much the slowest of so many workers exceeds the mean: they wait for it in every step.

        As the largest of n draws from a normal distribution: Phi^-1((n - 3/8) / (n + 1/4)) standard deviations
        (Blom 1958).
        """
        return self.spread * NormalDist().inv_cdf((ranks - 3 / 8) / (ranks + 1 / 4)) if ranks > 1 else 0.0

    def meeting(self, ranks: int) -> float:
        """Of a meeting of ranks of one host that are ready at once."""
        return self.collectives.cost("barrier", 0, ranks).seconds

    def apart(self, ranks: int, computed: float) -> float:
        """How far apart ranks are ready that have computed for so many seconds. Those that share cores take turns in
        slices of time."""
        measured = self.profile.numbers("barrier shared")
        if self.topology.nworker_groups > 1:  # those of other groups take turns with them
            ranks = max(ranks, self.machines.packed(self.topology))
        if self.collectives.where(ranks) != "machine" or ranks <= self.machines.cores or not measured:
            return 0.0
        curves = ((n, self.profile.curves[f"barrier shared {n}"]) for n in measured)
        own = computed / self.slower
        points = (Point(n, curve.seconds(min(own, curve.points[-1].size))) for n, curve in curves)
        return Curve.of(points).seconds(ranks)

    def shared(self, elements: float, ranks: int) -> float | None:
        """Of the exchange of so many elements in memory that ranks share, with their update; None where that was not
        measured."""
        measured = self.profile.numbers("shared")
        points = [Point(n, self.profile.curves[f"shared {n}"].seconds(elements)) for n in measured]
        return Curve.of(points).seconds(ranks) if points else None

    def reply(self, messages: Sequence[int], clients: int, ranks: int) -> ServerReply:
        """Of an update whose messages have so many elements, each for a server that `clients` workers push to at once.

        All go out by the worker's network, and the replies, which are not coded, come back by it. ranks: all processes
        of the job, which decide whether servers lie on the workers' hosts.
        """
        where = self.collectives.where(ranks)
        if where == "network" and not self.profile.numbers("round_trip network"):
            where = "machine"
        numbers = self.profile.numbers(f"round_trip {where}")
        if not numbers:
            hint = "Run `singa-dask profile` on this cluster."
            raise ConfigError(Problem("profile", "lacks a server's round trip", where, hint))
        nearest = min(numbers, key=lambda n: abs(n - clients))
        more = max(1.0, clients / nearest)
        out, back = (sum(map(of, messages)) for of in (self.nbytes, lambda elements: NBYTES * elements))
        trip = self.profile.curves[f"round_trip {where} {nearest}"]
        serve = self.profile.curves[f"serve {where} {nearest}"]
        largest = max(messages)
        each = (self.nbytes(largest) + NBYTES * largest) / 2
        update = self.update(largest) + self.coding("decode", largest)
        busy = served = clients * (serve.cpu(each) + update)
        card = clients * self._card(max(self.nbytes(largest), NBYTES * largest), where)
        seconds = trip.seconds((out + back) / 2) * more + update
        if self.machines.bandwidth is not None and self.machines.hosts_for(ranks) > 1:
            wire = self.collectives.wire
            seconds += wire(out) + wire(back) + 2 * (self.machines.latency or 0.0)
            busy = max(busy, card)
        return ServerReply(max(seconds, busy), busy, card, trip.cpu((out + back) / 2), served)

    def _card(self, nbytes: float, where: str) -> float:
        """Seconds in which a server's network card is busy with so many bytes in each direction."""
        if self.machines.bandwidth is not None:
            return self.collectives.wire(nbytes)
        measured = self.profile.curves.get(f"round_trip {where} 1") if where == "network" else None
        return measured.seconds(nbytes) / 2 if measured else 0.0

    def neighbours(self, nbytes: float, ranks: int) -> Exchange:
        """Of an exchange of so many bytes between two server groups."""
        where = self.collectives.where(ranks)
        name = f"exchange_neighbours {where} 2"
        card = self._card(nbytes, where)
        if name in self.profile.curves:
            curve = self.profile.curves[name]
            return Exchange(curve.seconds(nbytes), 2 * curve.cpu(nbytes), card)
        reply = self.reply([int(nbytes / NBYTES)], 1, ranks)
        return Exchange(reply.seconds, reply.served + reply.cpu, card)
