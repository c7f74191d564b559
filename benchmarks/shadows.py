"""What it costs to be ready for a fault, if none comes: copies of each rank's state, and checkpoints in memory.

make bench BENCH=shadows                 # or: python benchmarks/shadows.py --network 1gbit --json shadows.json

Two workers of AllReduce train an example on Dask workers of this machine. With `--network`, as root, each worker is on
a host of its own (a namespace of Linux). Reports come in pairs: only in the first of each pair, the run is ready for a
fault. The first reports do not count: in the first seconds, nannies start the processes that they would fork
successors from.

    shadows      ranks copy their slices after each step.
                 cost_percent = a step of the first report / a step of the second - 1; median of the pairs
    checkpoints  with --network: the first rank begins to keep one checkpoint in the memory of two nannies.
                 checkpoint_ms = what the first report takes longer than the second; median of the pairs
                 every_s = seconds between two checkpoints, as a job without settings has them
                 cost_percent = checkpoint_ms / every_s
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
from rich.console import Console
from tools.network import bits_per_s, joined_hosts
from tools.report import begun, end, show
from tools.victims import Workers, connected

from singa_dask import Job, train
from singa_dask.monitor.progress import Display

EXAMPLES = Path(__file__).parent.parent / "examples"
NETS = ("mnist", "mnist-mlp")
WORKERS = 2
EVERY, FIRST = 20, 10  # steps of a report, and reports that do not count
SHARE, AT_MOST_S = 0.02, 300.0  # of the time that checkpoints in memory may take; seconds between two of them
ONE_MACHINE = "one machine"


def copy_by_turns(every: int) -> None:
    """In this process, from now on, ranks copy their slices for `every` steps, and for as many they do not."""
    from singa_dask.server import Keeper

    save = Keeper.save

    def save_by_turns(keeper: Keeper, state: Any) -> None:
        if (state.version - 1) // every % 2 == 0:
            save(keeper, state)

    Keeper.save = save_by_turns  # type: ignore[method-assign]


def keep_by_turns(every: int) -> None:
    """In this process, from now on, a checkpoint in memory is due once in 2 `every` steps."""
    from singa_dask.training.group_checkpoints import MemoryCheckpoints as Kept

    put, steps = Kept.put, itertools.count()
    Kept.written_s = []  # type: ignore[attr-defined]

    def timed(kept: Kept, *arguments: Any) -> None:
        began = time.perf_counter()
        put(kept, *arguments)
        Kept.written_s.append(time.perf_counter() - began)  # type: ignore[attr-defined]

    Kept.put = timed  # type: ignore[method-assign]
    Kept.due = property(lambda _: next(steps) % (2 * every) == 1)  # type: ignore[assignment, method-assign]


def written_s() -> list[float]:
    """The seconds in which each checkpoint in memory was written in this process."""
    from singa_dask.training.group_checkpoints import MemoryCheckpoints as Kept

    return getattr(Kept, "written_s", [])


WAYS = {"shadows": copy_by_turns, "checkpoints": keep_by_turns}


def steps_ms(way: str, example: str, network: str, reports: int) -> tuple[list[float], list[float]]:
    """Milliseconds of a step, report by report, the first one ready; seconds in which checkpoints were written."""
    settings = [f"train_steps={EVERY * (FIRST + reports)}", f"disp_freq={EVERY}", "test_freq=0", "checkpoint_freq=0"]
    settings += ["validate_freq=0", f"cluster.nworkers_per_group={WORKERS}", f"cluster.nservers_per_group={WORKERS}"]
    job = Job.from_file(EXAMPLES / example / "job.conf", overrides=settings)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        hosts = stack.enter_context(joined_hosts(WORKERS, home=True)) if network != ONE_MACHINE else ()
        for host in hosts:
            host.limit(network)
        workers = Workers(WORKERS, folder, hosts)
        stack.callback(workers.end)
        client = stack.enter_context(connected(workers, WORKERS))
        client.run(WAYS[way], EVERY)
        result = train(job, client, workspace=folder / "run", display=Display(), curves=False)
        rates = result.history.samples_per_s[FIRST:]
        written = [seconds for each in client.run(written_s).values() for seconds in each]
    batch = next(layer.store_conf.batchsize[0] for layer in job.proto.neuralnet.layer if layer.HasField("store_conf"))
    return [1e3 * batch / rate for rate in rates], written


def measure(way: str, example: str, network: str, pairs: int) -> dict[str, Any]:
    steps, written = steps_ms(way, example, network, 2 * pairs)
    kept, none = steps[::2], steps[1::2]
    row = {
        "net": example,
        "network": network,
        "with_ms": round(statistics.median(kept), 2),
        "without_ms": round(statistics.median(none), 2),
    }
    if way == "shadows":
        costs = [100 * (a / b - 1) for a, b in zip(kept, none, strict=True)]
    else:
        every_s = min(max(10.0, statistics.median(written) / SHARE), AT_MOST_S)
        row["checkpoint_ms"] = round(EVERY * statistics.median(a - b for a, b in zip(kept, none, strict=True)), 1)
        row["written_s"], row["every_s"] = round(statistics.median(written), 2), round(every_s, 1)
        costs = [EVERY * (a - b) / every_s / 10 for a, b in zip(kept, none, strict=True)]
    lower, upper = statistics.quantiles(costs, n=4)[::2]
    return row | {
        "cost_percent": round(statistics.median(costs), 1),
        "quartiles": [round(lower, 1), round(upper, 1)],
        "pairs": pairs,
    }


@click.command()
@click.option("--way", "ways", multiple=True, type=click.Choice(list(WAYS)), default=["shadows"])
@click.option("--net", "nets", multiple=True, type=click.Choice(NETS), default=NETS)
@click.option(
    "--network", "networks", multiple=True, default=[ONE_MACHINE], help='A rate, as "1gbit". May be repeated.'
)
@click.option("--pairs", default=50, show_default=True)
@click.option("--json", "out", type=click.Path(path_type=Path), help="Write the figures here.")
def main(ways: Sequence[str], nets: Sequence[str], networks: Sequence[str], pairs: int, out: Path | None) -> None:
    """Train ready for a fault and not, by turns."""
    for network in networks:
        if network != ONE_MACHINE:
            bits_per_s(network)
        elif "checkpoints" in ways:
            raise click.UsageError("Checkpoints are kept in memory on several hosts only. Add --network 1gbit.")
    console, figures = Console(width=160), begun()
    for way in ways:
        rows = figures[way] = [measure(way, net, network, pairs) for network in networks for net in nets]
        show(console, f"AllReduce with {WORKERS} workers, with {way} and without", rows)
    end(console, figures, out)


if __name__ == "__main__":
    main()
