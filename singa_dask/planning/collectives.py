"""What collectives take, for any number of ranks: from curves, or from a network's bandwidth and latency."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log2

from singa_dask.errors import ConfigError, Problem
from singa_dask.planning.prediction import Machines
from singa_dask.planning.profile import Curve, Profile
from singa_dask.planning.work import Collective

# Below this many bytes a collective takes no longer than an empty one.
SMALL = 4096


@dataclass(frozen=True)
class Cost:
    """Elapsed seconds, and seconds of a core among them."""

    seconds: float
    cpu: float


class Collectives:
    """Costs of operations between the workers of a group, which lie on as few hosts as `machines` allows.

    An operation that was measured with N ranks is carried over to n ranks by what each of them sends and by the number
    of rounds, with V(n) the bytes that a rank sends (`Collective.sent`) and log2 n rounds (Thakur et al. 2005):

        seconds(n, bytes) = latency (log2 n / log2 N - 1) + seconds(N, bytes V(n) / V(N))

    A network with a bandwidth and latency that are given is added to what the operation takes on one machine.
    """

    def __init__(self, profile: Profile, machines: Machines) -> None:
        self._profile, self._machines = profile, machines

    def where(self, ranks: int) -> str:
        """Where so many workers lie: "machine" or "network"."""
        return "machine" if self._machines.hosts_for(ranks) == 1 else "network"

    def cost(self, operation: str, nbytes: float, ranks: int) -> Cost:
        """Of one call. nbytes: as in `work.Collective`."""
        if ranks == 1:
            return Cost(0.0, 0.0)
        where = self.where(ranks)
        if where == "network" and self._machines.bandwidth is not None:
            return self._on_network(operation, nbytes, ranks)
        return self._measured(operation, where, nbytes, ranks)

    def wire(self, nbytes: float) -> float:
        """Seconds in which the network of a host, whose bandwidth is given, carries so many bytes one way.

        Ranks of one host send to each other within it: rings of ranks cross a host's network once each way.
        """
        return 0.0 if self._machines.bandwidth is None else 8 * nbytes / self._machines.bandwidth

    def _on_network(self, operation: str, nbytes: float, ranks: int) -> Cost:
        assert self._machines.bandwidth is not None
        here = min(ranks, max(2, int(self._machines.cores)))
        local = self._measured(operation, "machine", nbytes, here)
        wire = self.wire(Collective(operation, nbytes).sent(ranks))
        latency = _rounds(operation, ranks) * (self._machines.latency or 0.0)
        return Cost(local.seconds + wire + latency, min(local.cpu, local.seconds))

    def _measured(self, operation: str, where: str, nbytes: float, ranks: int) -> Cost:
        numbers = self._profile.numbers(f"{operation} {where}")
        if not numbers:
            message = f"has no {operation} of several workers ({where})"
            hint = "Run `singa-dask profile` on this cluster, or give --bandwidth and --latency."
            raise ConfigError(Problem("profile", message, hint=hint))
        nearest = min(numbers, key=lambda n: abs(log2(n / ranks)))
        curve = self._profile.curves[f"{operation} {where} {nearest}"]
        if nearest == ranks:
            return Cost(curve.seconds(nbytes), curve.cpu(nbytes))
        alike = nbytes * Collective(operation, 1.0).sent(ranks) / Collective(operation, 1.0).sent(nearest)
        rounds = _rounds(operation, ranks) / _rounds(operation, nearest)
        more = self._latency(curve) * (rounds - 1)
        return Cost(max(0.0, curve.seconds(alike) + more), max(0.0, curve.cpu(alike)))

    @staticmethod
    def _latency(curve: Curve) -> float:
        return curve.seconds(SMALL)


def _rounds(operation: str, ranks: int) -> int:
    return (2 if operation == "all_reduce" else 1) * ceil(log2(ranks))
