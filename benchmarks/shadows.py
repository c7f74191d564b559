"""What it costs to be ready for a fault, if none comes: runs whose ranks keep shadows, and runs whose ranks do not.

make bench BENCH=shadows                 # or: python benchmarks/shadows.py --network 1gbit --json shadows.json

Two workers of AllReduce train an example on Dask workers of this machine, by turns with nannies and without: ranks
without a nanny keep no shadow. With `--network`, as root, each worker is on a host of its own (a namespace of Linux).
A run's step is the median of the reports of its second half: in the first seconds, nannies start the processes that
they would fork successors from, on the same cores.

    cost = a step with shadows / a step without - 1; median of the pairs
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
EVERY, REPORTS = 20, 20  # steps of a report, and reports of a run
ONE_MACHINE = "one machine"


def step_ms(example: str, network: str, *, shadows: bool) -> float:
    """Milliseconds of a step in a run of its own."""
    settings = [f"train_steps={EVERY * REPORTS}", f"disp_freq={EVERY}", "test_freq=0", "checkpoint_freq=0"]
    settings += ["validate_freq=0", f"cluster.nworkers_per_group={WORKERS}", f"cluster.nservers_per_group={WORKERS}"]
    job = Job.from_file(EXAMPLES / example / "job.conf", overrides=settings)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        hosts = stack.enter_context(joined_hosts(WORKERS, home=True)) if network != ONE_MACHINE else ()
        for host in hosts:
            host.limit(network)
        workers = Workers(WORKERS, folder, hosts, nannies=shadows)
        stack.callback(workers.end)
        client = stack.enter_context(connected(workers, WORKERS))
        result = train(job, client, workspace=folder / "run", display=Display(), curves=False)
        rates = result.history.samples_per_s[REPORTS // 2 :]
    batch = next(layer.store_conf.batchsize[0] for layer in job.proto.neuralnet.layer if layer.HasField("store_conf"))
    return statistics.median(1e3 * batch / rate for rate in rates)


def measure(example: str, network: str, pairs: int) -> dict[str, Any]:
    kept, none = [], []
    for number in range(pairs):
        for shadows in (True, False) if number % 2 else (False, True):
            (kept if shadows else none).append(step_ms(example, network, shadows=shadows))
    costs = [a / b - 1 for a, b in zip(kept, none, strict=True)]
    return {
        "net": example,
        "network": network,
        "with_ms": round(statistics.median(kept), 2),
        "without_ms": round(statistics.median(none), 2),
        "cost_percent": round(100 * statistics.median(costs), 1),
        "pairs": [round(100 * cost, 1) for cost in costs],
    }


@click.command()
@click.option("--net", "nets", multiple=True, type=click.Choice(NETS), default=NETS)
@click.option(
    "--network", "networks", multiple=True, default=[ONE_MACHINE], help='A rate, as "1gbit". May be repeated.'
)
@click.option("--pairs", default=5, show_default=True)
@click.option("--json", "out", type=click.Path(path_type=Path), help="Write the figures here.")
def main(nets: Sequence[str], networks: Sequence[str], pairs: int, out: Path | None) -> None:
    """Train with and without shadows."""
    for network in networks:
        if network != ONE_MACHINE:
            bits_per_s(network)
    console, figures = Console(width=140), begun()
    rows = figures["shadows"] = [measure(net, network, pairs) for network in networks for net in nets]
    show(console, f"AllReduce with {WORKERS} workers, shadows kept and not", rows)
    end(console, figures, out)


if __name__ == "__main__":
    main()
