"""The command that measures the machines of a cluster."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from singa_dask.cli.documented import Documented
from singa_dask.cli.options import OUTPUT, reports_errors
from singa_dask.cli.scheduler import Scheduler, scheduler_options
from singa_dask.files import write_whole

if TYPE_CHECKING:
    from rich.table import Table

    from singa_dask.planning.profile import Curve, Profile
    from singa_dask.planning.work import Work

_SHOWN = {"4 KB": 4096, "1 MB": 1 << 20, "16 MB": 1 << 24}
_CODED = 4_000_000  # elements
_PASSES_S = 0.01
_ON = {"machine": "workers", "network": "hosts"}
_COLLECTIVES = {"all_reduce": "all-reduce", "reduce_scatter": "reduce-scatter", "all_gather": "all-gather"}


def _seconds(context: click.Context, option: click.Parameter, text: str) -> float:
    """Of a duration such as 60s, 2min or 90.

    >>> _seconds(None, None, "2min"), _seconds(None, None, "90")
    (120.0, 90.0)
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|min)?", text.strip())
    if found is None or not float(found[1]):
        raise click.BadParameter(f"{text!r} is not a duration. Write for example 60s or 2min.")
    return float(found[1]) * (60 if found[2] == "min" else 1)


@click.command(
    cls=Documented,
    examples=[
        ("Measure this machine:", "singa-dask profile"),
        ("Measure a cluster for longer:", "singa-dask profile --scheduler tcp://host:8786 --budget 2min"),
    ],
)
@scheduler_options
@click.option(
    "--workers",
    type=click.IntRange(1),
    help="Number of workers of the local Dask cluster [default: one per core, at least 2].",
)
@click.option(
    "--budget", default="60s", show_default=True, callback=_seconds, help="Time to measure, for example 2min."
)
@click.option("--json", "file", type=OUTPUT, help="Also write the profile to this file.")
@click.option("--show", is_flag=True, help="Print the kept profile of these machines without measuring.")
@reports_errors
def profile(
    scheduler: Scheduler,
    workers: int | None,
    budget: float,
    file: Path | None,
    show: bool,
) -> None:
    """Measure the speed of a cluster, which `plan` needs.

    Measured are kernels, collectives, servers and the loader. The figures are kept in the cache. Measure while nothing
    else runs. By default, the workers of a local Dask cluster measure. --scheduler and --scheduler-file select a
    running Dask cluster.
    """
    if workers and (scheduler.given or show):
        raise click.UsageError("--workers starts a local cluster: leave out --scheduler, --scheduler-file and --show.")
    began = time.monotonic()
    with ExitStack() as stack:
        if not show:
            scheduler.fork_workers(stack)
        from singa_dask.output.console import Console

        console = Console()
        client = scheduler.connect(stack)
        if show:
            found, place = _kept(client)
        else:
            found, kept = _measured(stack, client, workers, budget, console)
    for table in tables(found):
        console.print(table)
        console.print()
    if file:
        write_whole(file, found.to_json())
    if show:
        click.echo(f"kept in {place}")
    else:
        click.echo(f"measured in {time.monotonic() - began:.0f} s; {kept}")


def _kept(client: Any) -> tuple[Profile, Path]:
    """The kept profile of the client's machines, or of this one, and its file."""
    from singa_dask.errors import ConfigError, Problem
    from singa_dask.profiling import store
    from singa_dask.profiling.facts import facts_here

    if client is None:
        machines = facts_here()
    else:
        from singa_dask.profiling.cluster import machines_of

        machines = machines_of(client)
    key = store.key_of(machines)
    found = store.load(key)
    if found is None:
        what = f"{machines.cpu}, {machines.cores} cores, {machines.hosts} hosts"
        hint = "Run `singa-dask profile` without --show."
        raise ConfigError(Problem("profile", "none is kept of these machines and library versions", what, hint))
    return found, store.path_of(key)


def _measured(
    stack: ExitStack, client: Any, workers: int | None, budget_s: float, console: Any
) -> tuple[Profile, str]:
    """The profile, and where it is kept."""
    from singa_dask.errors import ConfigError
    from singa_dask.profiling import store
    from singa_dask.profiling.cluster import busy_beside, local_workers, machines_of, profile_cluster

    if client is None:
        client = stack.enter_context(local_workers(workers))
    key = store.key_of(machines_of(client))

    def note(text: str) -> None:
        click.echo(text, err=True)

    try:
        store.load(key)
    except ConfigError:
        note(f"the kept profile is damaged and will be replaced: {store.path_of(key)}")
    with store.locked(key, note):
        busy = busy_beside(client)
        if console.is_terminal:
            with console.status("measuring") as status:
                found = profile_cluster(
                    client, budget_s=budget_s, progress=lambda text: status.update(f"measuring: {text}")
                )
        else:
            found = profile_cluster(client, budget_s=budget_s, progress=lambda text: note(f"measuring: {text}"))
        busy = busy or busy_beside(client)
        if busy:
            used = ", ".join(map(str, busy))
            return found, f"not kept, as workers of the same hosts are in use: {used}"
        return found, f"kept in {store.save(key, found)}"


def tables(profile: Profile) -> Iterator[Table]:
    """What a reader may want to know of a profile: rates of computing, and seconds of what workers exchange."""
    cores = f"{profile.cores} core{'s' * (profile.cores > 1)}"
    hosts = f"{profile.hosts} hosts of {cores} each" if profile.hosts > 1 else cores
    yield _computing(profile, f"{profile.cpu}, {hosts}: each process computes")
    sizes = _SHOWN.items()
    rows = [(f"{label} of {of}", name, size) for name, label in _COLLECTIVES.items() for of, size in sizes]
    rows.append(("barrier", "barrier", 0))
    yield from _times(profile, "Workers exchange", "all_reduce", lambda where, n: f"{n} {_ON[where]}", rows)

    def clients(where: str, n: int) -> str:
        return f"{n} worker{'s' * (n > 1)}{', network' * (where == 'network')}"

    rows = [(f"update of {of}", "round_trip", size) for of, size in sizes]
    yield from _times(profile, "A server answers", "round_trip", clients, rows)


def _times(
    profile: Profile, title: str, known: str, heading: Callable[[str, int], str], rows: Sequence[tuple[str, str, int]]
) -> Iterator[Table]:
    """A table of rows (label, curve, size), with a column wherever the curve `known` was measured."""
    columns = [(where, n) for where in _ON for n in profile.numbers(f"{known} {where}")]
    if columns:
        table = _table(title, ["", *(heading(*column) for column in columns)])
        for label, name, size in rows:
            table.add_row(label, *(_time(profile.curves.get(f"{name} {where} {n}"), size) for where, n in columns))
        yield table


def _table(title: str, columns: Sequence[str]) -> Table:
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for i, column in enumerate(columns):
        table.add_column(column, justify="right" if i else "left", no_wrap=True)
    return table


def _computing(profile: Profile, title: str) -> Table:
    concurrencies = profile.numbers("sum")
    table = _table(title, ["", *(f"{n} process{'es at once' * (n > 1)}" for n in concurrencies), ""])
    for label, work in _products(profile, concurrencies):
        samples = {s.concurrency: s for s in profile.layers if s.work == work}
        rates = [_number(work.operations / samples[n].forward / 1e9) if n in samples else "" for n in concurrencies]
        table.add_row(label, *rates, "GFLOP/s")

    def add(label: str, name: str, size: float, unit: str, amount: float) -> None:
        curves = [profile.curves.get(f"{name} {n}") for n in concurrencies]
        if any(curves):
            table.add_row(label, *(_number(amount / c.seconds(size)) if c else "" for c in curves), unit)

    largest = profile.curves[f"sum {concurrencies[0]}"].points[-1].size
    add("memory: a sum of two arrays", "sum", largest, "GB/s", 3 * largest / 1e9)
    add("update kNesterov", "update kNesterov", 1e6, "million elements/s", 1)
    for codec in ("kHalf -", "kBFloat16 -", "kTopK 0.05"):
        add(f"encode {codec.removesuffix(' -')}", f"encode {codec}", _CODED, "GB/s", 4 * _CODED / 1e9)
    add("load, per core", "load", 1e5, "million values/s", 0.1)
    loops = [_time(profile.curves.get(f"loop {n}"), _PASSES_S) for n in concurrencies]
    table.add_row(f"a step with passes of {1e3 * _PASSES_S:g} ms, besides its parts", *loops)
    return table


def _products(profile: Profile, concurrencies: Sequence[int]) -> Iterator[tuple[str, Work]]:
    """Some layers with products: of few, of more and of many rows the one with most parameters. Of those that were
    measured with every concurrency."""
    measured = [{s.work for s in profile.layers if s.concurrency == concurrency} for concurrency in concurrencies]
    common = set.intersection(*measured)
    for kind in ("InnerProduct", "Convolution"):
        works = [work for work in common if work.kind.split()[0] == kind]
        rows = sorted({work.rows for work in works})
        for count in sorted({rows[0], rows[len(rows) // 2], rows[-1]} if rows else ()):
            yield _label(max((work for work in works if work.rows == count), key=lambda work: work.params))


def _label(work: Work) -> tuple[str, Work]:
    window = re.search(r"kernel=(\d+)", work.kind)
    if window is None:
        return f"product {work.rows} x {work.inputs} x {work.outputs}", work
    return f"convolution {window[1]} x {window[1]}, {work.rows} image{'s' * (work.rows > 1)}", work


def _number(value: float) -> str:
    """
    >>> _number(0.1234), _number(2372.3)
    ('0.123', '2,372')
    """
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _time(curve: Curve | None, size: float) -> str:
    """Of a curve at a size; behind its last point with a sign that it is extrapolated.

    >>> from singa_dask.planning.profile import Curve, Point
    >>> _time(Curve((Point(0, 2e-5), Point(10, 4e-3))), 10), _time(Curve((Point(1, 0.5),)), 2)
    ('4 ms', '~1 s')
    """
    if curve is None:
        return ""
    seconds, sign = curve.seconds(size), "~" if size > curve.points[-1].size else ""
    factor, unit = next((f, unit) for f, unit in ((1e6, "us"), (1e3, "ms"), (1, "s")) if seconds * f < 999.5 or f == 1)
    return f"{sign}{seconds * factor:.3g} {unit}"
