"""--workers, --strategy and --servers: how training is distributed, in place of a cluster block."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

if TYPE_CHECKING:
    from singa_dask.job import ClusterTopology

NAMES = ("allreduce", "sandblaster", "downpour", "hogwild")
# The numbers of a cluster block that form the strategy. The block's other fields, such as codec, remain the job's.
_NUMBERS = (
    "nworker_groups",
    "nserver_groups",
    "nworkers_per_group",
    "nservers_per_group",
    "nservers_per_procs",
    "server_worker_separate",
)


class StrategyOptions(NamedTuple):
    """What these options say; None where one is not given."""

    strategy: str | None = None
    workers: int | None = None
    servers: int | None = None

    def __str__(self) -> str:
        given = ((name, value) for name, value in self._asdict().items() if value is not None)
        return " ".join(f"--{name} {value}" for name, value in given)

    def overrides(self, cluster: Path | None, overrides: tuple[str, ...]) -> tuple[str, ...]:
        """Overrides of the job that bring this topology about, before the given ones.

        Raises click.UsageError if --cluster or --set say the same, or if the numbers do not fit the strategy.
        """
        if not str(self):
            return overrides
        if cluster is not None:
            raise click.UsageError(
                f"{self} and --cluster {cluster} both say how training is distributed: leave one out."
            )
        fields = [f"cluster.{name}" for name in _NUMBERS]
        for override in overrides:
            if override.partition("=")[0].strip() in ("cluster", *fields):
                message = f"{self} and --set {override} both say how training is distributed: leave one out."
                raise click.UsageError(message)
        topology = self.topology()
        values = (str(getattr(topology, name)).lower() for name in _NUMBERS)
        return (*(f"{field}={value}" for field, value in zip(fields, values, strict=True)), *overrides)

    def topology(self) -> ClusterTopology:
        """The topology. Where a number is not given, it has that of the constructor. Raises click.UsageError."""
        from singa_dask.job import ClusterTopology

        strategy = self.strategy or ("allreduce" if self.servers is None else "sandblaster")
        if self.servers is not None and strategy in ("allreduce", "hogwild"):
            message = (
                f"--strategy {strategy} has its servers in the workers, which contradicts --servers {self.servers}"
            )
            raise click.UsageError(f"{message}: leave out --servers, or use sandblaster or downpour.")
        if self.workers == 1 and strategy in ("downpour", "hogwild"):
            message = f"--strategy {strategy} trains several workers asynchronously, which contradicts --workers 1"
            raise click.UsageError(f"{message}: use --workers 2 or more, or --strategy allreduce.")
        servers = {} if self.servers is None else {"nservers": self.servers}
        workers = {} if self.workers is None else {"nworkers": self.workers}
        match strategy:
            case "allreduce":
                return ClusterTopology.allreduce(**workers)
            case "sandblaster":
                return ClusterTopology.sandblaster(**workers, **servers)
            case "downpour":
                return ClusterTopology.downpour(self.workers or 2, 1, **servers)
            case _:
                return ClusterTopology.hogwild(**workers)


def strategy_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """--workers, --strategy and --servers, which the command gets as `wanted`."""

    @wraps(command)
    def wrapped(*args: Any, strategy: str | None, workers: int | None, servers: int | None, **kwargs: Any) -> Any:
        return command(*args, wanted=StrategyOptions(strategy, workers, servers), **kwargs)

    options = (
        click.option("--workers", type=click.IntRange(1), help="Number of workers [default: 3; downpour: 2]."),
        click.option(
            "--strategy",
            type=click.Choice(NAMES),
            help="How workers train together, in place of a cluster { } block. With downpour and hogwild, each "
            "worker is a group of its own [default: allreduce; with --servers sandblaster].",
        ),
        click.option(
            "--servers", type=click.IntRange(1), help="Sandblaster, downpour: number of servers [default: 2]."
        ),
    )
    for option in reversed(options):
        wrapped = option(wrapped)
    return wrapped
