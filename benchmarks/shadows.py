"""What it costs to be ready for a fault, if none comes: steps after which ranks copy their slices, and steps without.

make bench BENCH=shadows                 # or: python benchmarks/shadows.py --network 1gbit --json shadows.json

Two workers of AllReduce train an example on Dask workers of this machine. With `--network`, as root, each worker is on
a host of its own (a namespace of Linux). In every other report of the run, the ranks do not write their shadows. The
first reports do not count: in the first seconds, nannies start the processes that they would fork successors from.

    cost = a step of a report with shadows / a step of the next one, without, - 1; median of the pairs
"""

from __future__ import annotations

import statistics
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
ONE_MACHINE = "one machine"


def copy_by_turns(every: int) -> None:
    """In this process, from now on, ranks copy their slices for `every` steps, and for as many they do not."""
    from singa_dask.server import Keeper

    save = Keeper.save

    def save_by_turns(keeper: Keeper, state: Any) -> None:
        if (state.version - 1) // every % 2 == 0:
            save(keeper, state)

    Keeper.save = save_by_turns  # type: ignore[method-assign]


def steps_ms(example: str, network: str, reports: int) -> list[float]:
    """Milliseconds of a step, report by report, the first one with shadows."""
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
        client.run(copy_by_turns, EVERY)
        result = train(job, client, workspace=folder / "run", display=Display(), curves=False)
        rates = result.history.samples_per_s[FIRST:]
    batch = next(layer.store_conf.batchsize[0] for layer in job.proto.neuralnet.layer if layer.HasField("store_conf"))
    return [1e3 * batch / rate for rate in rates]


def measure(example: str, network: str, pairs: int) -> dict[str, Any]:
    steps = steps_ms(example, network, 2 * pairs)
    kept, none = steps[::2], steps[1::2]
    costs = sorted(100 * (a / b - 1) for a, b in zip(kept, none, strict=True))
    lower, upper = statistics.quantiles(costs, n=4)[::2]
    return {
        "net": example,
        "network": network,
        "with_ms": round(statistics.median(kept), 2),
        "without_ms": round(statistics.median(none), 2),
        "cost_percent": round(statistics.median(costs), 1),
        "quartiles": [round(lower, 1), round(upper, 1)],
        "pairs": pairs,
    }


@click.command()
@click.option("--net", "nets", multiple=True, type=click.Choice(NETS), default=NETS)
@click.option(
    "--network", "networks", multiple=True, default=[ONE_MACHINE], help='A rate, as "1gbit". May be repeated.'
)
@click.option("--pairs", default=50, show_default=True)
@click.option("--json", "out", type=click.Path(path_type=Path), help="Write the figures here.")
def main(nets: Sequence[str], networks: Sequence[str], pairs: int, out: Path | None) -> None:
    """Train with shadows and without, by turns."""
    for network in networks:
        if network != ONE_MACHINE:
            bits_per_s(network)
    console, figures = Console(width=140), begun()
    rows = figures["shadows"] = [measure(net, network, pairs) for network in networks for net in nets]
    show(console, f"AllReduce with {WORKERS} workers, shadows written and not", rows)
    end(console, figures, out)


if __name__ == "__main__":
    main()
