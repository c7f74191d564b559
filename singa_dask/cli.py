"""The `singa-dask` command.

Exit codes: 0 done, 1 failed, 2 the job or the command line is wrong, 130 interrupted.
"""

from __future__ import annotations

import atexit
import gc
import logging
import signal
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import cache, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from singa_dask import __version__
from singa_dask.errors import ConfigError, SingaError

if TYPE_CHECKING:
    from singa_dask.job import Job
    from singa_dask.training.prepare import Prepared

CONNECT_S = 10.0
# New objects until Python looks for garbage: by its own 700, imports would take an eighth longer.
COLLECT_AFTER = 50_000
_AS_IN_PYTHON = gc.get_threshold()

JOB = click.argument("job", type=click.Path(path_type=Path))
CLUSTER = click.option("--cluster", type=click.Path(path_type=Path), help="File with the cluster { } block to use.")
SET = click.option(
    "--set", "overrides", multiple=True, metavar="FIELD=VALUE", help="Override a field of the job; may be repeated."
)
SCHEDULER = click.option("--scheduler", metavar="ADDRESS", help="Use the Dask cluster of this scheduler.")
SCHEDULER_FILE = click.option(
    "--scheduler-file", type=click.Path(path_type=Path), help="Use the Dask cluster of this scheduler file."
)
RUN = click.option("--run", metavar="NAME", help="Which run, by its job's name or its workspace [the only one].")
CHECKPOINT = click.option(
    "--checkpoint", required=True, type=click.Path(path_type=Path), help="A checkpoint, or a run's workspace."
)


class _Interrupted(KeyboardInterrupt):
    """Ctrl-C, caught wherever it came.

    A plain KeyboardInterrupt that rises in code made from text, as that of a dataclass is, Python itself remembers:
    the process then dies of SIGINT in place of ending with its exit code, although it was caught (bpo-1054041).
    """


def _interrupt(number: int, frame: object) -> None:
    raise _Interrupted


def _reports_errors(command: Callable[..., Any]) -> Callable[..., Any]:
    """Turn the project's errors into lines on standard error and an exit code."""

    @wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        try:
            return command(*args, **kwargs)
        except ConfigError as error:
            for problem in error.problems:
                click.echo(f"error: {problem}", err=True)
            sys.exit(2)
        except SingaError as error:
            click.echo(f"error: {error}", err=True)
            sys.exit(1)
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            sys.exit(130)

    return wrapped


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="singa-dask")
def main() -> None:
    """Train nets on a Dask cluster; how training is distributed is a block of the job."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # in the background it is ignored
        signal.signal(signal.SIGINT, _interrupt)
    gc.set_threshold(COLLECT_AFTER)
    # Called last. Python would look through all that was imported before it ends: a quarter of a second.
    atexit.register(gc.freeze)
    # Not the root logger: Dask would then tell all it does.
    handler = logging.StreamHandler()
    # A console script has not the current folder on its path, where a job's user_type may lie; workers inherit it.
    sys.path.insert(0, "")
    logger = logging.getLogger("singa_dask")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)


@main.command()
@JOB
@CLUSTER
@SET
@click.option("--workspace", type=click.Path(path_type=Path), help="Folder for the results [runs/<job>-<framework>].")
@click.option("--resume", is_flag=True, help="Go on from the newest valid checkpoint of the workspace.")
@SCHEDULER
@SCHEDULER_FILE
@click.option("--mpi", is_flag=True, help="The command runs under mpiexec or srun: rank 0 drives, the others work.")
@click.option("--interface", metavar="NAME", help="With --mpi: the network that Dask uses, as ib0 [default route].")
@click.option(
    "--max-restarts",
    type=click.IntRange(0),
    default=3,
    show_default=True,
    help="How often a group that lost a worker is re-formed.",
)
@_reports_errors
def train(
    job: Path,
    cluster: Path | None,
    overrides: tuple[str, ...],
    workspace: Path | None,
    resume: bool,
    scheduler: str | None,
    scheduler_file: Path | None,
    mpi: bool,
    interface: str | None,
    max_restarts: int,
) -> None:
    """Train JOB: on a local Dask cluster of its own, on the one that --scheduler names, or as an MPI job (--mpi)."""
    # Batch systems stop jobs with SIGTERM: save, as for Ctrl-C. Open MPI's mpiexec passes only SIGUSR1 on in peace.
    for number in (signal.SIGTERM, signal.SIGUSR1)[: 2 if mpi else 1]:
        signal.signal(number, _interrupt)
    load = cache(lambda: _load(job, overrides, cluster))
    with ExitStack() as stack:
        if mpi:
            gc.set_threshold(*_AS_IN_PYTHON)  # ranks train in this process
            client = _join_mpi(stack, lambda: load().topology.nprocesses, interface, scheduler or scheduler_file)
            if client is None:
                return  # this rank has been a worker
        elif interface:
            raise click.UsageError(
                "--interface is for --mpi; elsewhere Dask's scheduler and workers have that option."
            )
        else:
            if scheduler is None and scheduler_file is None:
                _fork_workers(stack)
            load()
            client = _connect(stack, scheduler, scheduler_file)
        from singa_dask.monitor.progress import LineDisplay
        from singa_dask.supervision import driver

        # Launchers may give their ranks a terminal that nobody sits at.
        display = LineDisplay() if mpi else None
        result = driver.train(
            load(), client, workspace=workspace, resume=resume, max_restarts=max_restarts, display=display
        )
    click.echo(str(result))
    if result.interrupted:
        sys.exit(130)


@main.command()
@SCHEDULER
@SCHEDULER_FILE
@RUN
@_reports_errors
def join(scheduler: str | None, scheduler_file: Path | None, run: str | None) -> None:
    """Add a worker group, on free workers of the Dask cluster, to the asynchronous run that is under way there."""
    _ask_run(scheduler, scheduler_file, "join", run)


@main.command()
@click.argument("group", type=click.IntRange(0))
@SCHEDULER
@SCHEDULER_FILE
@RUN
@_reports_errors
def leave(group: int, scheduler: str | None, scheduler_file: Path | None, run: str | None) -> None:
    """Let worker group GROUP of the asynchronous run that is under way end after its step; the others go on."""
    _ask_run(scheduler, scheduler_file, "leave", run, group=group)


@main.command()
@JOB
@CLUSTER
@SET
@click.option("--no-data", is_flag=True, help="Leave the data files out of it.")
@_reports_errors
def check(job: Path, cluster: Path | None, overrides: tuple[str, ...], no_data: bool) -> None:
    """Say whether JOB would run here, and print its net: shapes, parameters, partition."""
    from singa_dask.cluster import mpi_library
    from singa_dask.monitor.net_tables import net_tables
    from singa_dask.training.prepare import check_given, prepare

    prepared = prepare(_load(job, overrides, cluster), with_data=not no_data)
    if not no_data:
        check_given(prepared)
    _print(*net_tables(prepared))
    held = [sum(s.size for s in prepared.partition.of_server(i)) for i in range(prepared.topology.nservers_per_group)]
    slices = ", ".join(f"{size:,}" for size in held)
    click.echo(f"servers hold {slices} elements; each worker computes on its rows of the mini-batch")
    if prepared.topology.nprocesses > 1:
        click.echo(f"the group would talk through {mpi_library()}")
    click.echo(f"{prepared.job.name}: ready to run; {prepared.topology.describe()}")


def _size(context: click.Context, option: click.Parameter, value: str | None) -> tuple[int, int] | None:
    if value is None:
        return None
    height, x, width = value.partition("x")
    if not (x and height.isdigit() and width.isdigit()):
        raise click.BadParameter(f"{value!r} is no size. Write for instance 32x32.")
    return int(height), int(width)


def _column(context: click.Context, option: click.Parameter, value: str | None) -> str | int | None:
    return int(value) if value and value.removeprefix("-").isdigit() else value


@main.command()
@click.argument("what", metavar="DATASET|csv|images|npz|text")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder for the shards.")
@click.option("--shards", default=1, show_default=True, help="How many files to divide the samples into.")
@click.option("--source", type=click.Path(path_type=Path), help="The file or folder to read (csv, images, npz, text).")
@click.option("--label", callback=_column, help="csv: name or number (from 0; -1: last) of the column with the label.")
@click.option("--header/--no-header", default=None, help="csv: whether the first line names the columns.")
@click.option("--separator", help="csv: what stands between two values.")
@click.option("--resize", metavar="HEIGHTxWIDTH", callback=_size, help="images: bring every image to this size.")
@click.option(
    "--vocab", type=click.Path(path_type=Path), help="text: file whose characters, in order, are all there are."
)
@click.option("--unit", type=click.Choice(["char", "word"]), help="text: what a sample is [char].")
@click.option("--vocab-size", type=click.IntRange(2), help='text: words to tell apart; the rarer ones are "<unk>".')
@click.option(
    "--validation",
    type=click.FloatRange(0, 1, max_open=True),
    help="text: share of it, its end, for a split of its own [0].",
)
@click.option("--window", type=click.IntRange(1), help="Samples that are read, hashed and shuffled together [chosen].")
@click.option("--shuffle/--no-shuffle", default=None, help="Write the samples in a random order [training data].")
@click.option("--overwrite", is_flag=True, help="Replace shards that are there already.")
@_reports_errors
def shard(what: str, out: Path, shards: int, source: Path | None, overwrite: bool, **options: Any) -> None:
    """Write HDF5 shards: of a named data set (digits, mnist, cifar10, tinyshakespeare) or of files of your own."""
    from singa_dask.data import shard as write

    given = {key: value for key, value in options.items() if value is not None}
    for split, manifest in write(what, out, shards, source=source, overwrite=overwrite, **given).items():
        shape = "x".join(map(str, manifest.shape))
        click.echo(f"{out / split}: {manifest.total:,} samples of {shape} in {len(manifest.shards)} shards")


@main.command()
@JOB
@CLUSTER
@SET
@CHECKPOINT
@click.option("--validation", is_flag=True, help="Use the validation data instead of the test data.")
@_reports_errors
def test(job: Path, cluster: Path | None, overrides: tuple[str, ...], checkpoint: Path, validation: bool) -> None:
    """Measure a checkpoint of JOB on its test data."""
    from singa_dask.job.job_pb2 import Phase
    from singa_dask.monitor.progress import format_metrics
    from singa_dask.training import evaluate
    from singa_dask.training.checkpoint import find

    phase = Phase.kVal if validation else Phase.kTest
    prepared = _prepare(job, overrides, cluster, phase)
    path = find(checkpoint)
    metrics = evaluate.measure(prepared.job, path, phase)
    click.echo(f"{'validate' if validation else 'test'} {format_metrics(metrics)}; {path}")


@main.command()
@JOB
@CLUSTER
@SET
@CHECKPOINT
@click.option("--out", type=click.Path(path_type=Path), default=Path("predictions.csv"), show_default=True)
@_reports_errors
def predict(job: Path, cluster: Path | None, overrides: tuple[str, ...], checkpoint: Path, out: Path) -> None:
    """Write what a checkpoint of JOB predicts for each sample of its test data, as CSV."""
    from singa_dask.job.job_pb2 import Phase
    from singa_dask.training import evaluate
    from singa_dask.training.checkpoint import find

    prepared = _prepare(job, overrides, cluster, Phase.kTest)
    path = find(checkpoint)
    lines = evaluate.predict(prepared.job, path, out)
    click.echo(f"{lines} predictions by {path} in {out}")


@main.command()
@JOB
@SET
@click.option(
    "--checkpoint",
    type=click.Path(path_type=Path),
    help="A checkpoint, or a run's workspace [the job's checkpoint_path].",
)
@click.option("--length", type=click.IntRange(0), default=500, show_default=True, help="How many symbols.")
@click.option(
    "--temperature",
    type=click.FloatRange(0),
    default=1.0,
    show_default=True,
    help="Below 1 likelier, above 1 more varied text; 0: always the likeliest symbol.",
)
@click.option("--primer", default="", metavar="TEXT", help="What the net reads first [a random symbol].")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the draws.")
@_reports_errors
def sample(
    job: Path,
    overrides: tuple[str, ...],
    checkpoint: Path | None,
    length: int,
    temperature: float,
    primer: str,
    seed: int,
) -> None:
    """Let a checkpoint of JOB, a recurrent net that was trained on a text, write one."""
    from singa_dask.training.sample import Sampler

    sampler = Sampler(_load(job, overrides, None), [checkpoint] if checkpoint else [])
    written = sampler.write(length, temperature=temperature, primer=primer, seed=seed)
    click.echo(primer + (sampler.separator if primer else ""), nl=False)
    for symbol in written:
        click.echo(symbol + sampler.separator, nl=False)
    click.echo()


@main.command()
@JOB
@CLUSTER
@SET
@CHECKPOINT
@click.option("--onnx", "out", type=click.Path(path_type=Path), required=True, help="The file to write.")
@click.option("--output", "outputs", multiple=True, metavar="LAYER", help="What it gives. Default: the predictions.")
@_reports_errors
def export(
    job: Path,
    cluster: Path | None,
    overrides: tuple[str, ...],
    checkpoint: Path,
    out: Path,
    outputs: tuple[str, ...],
) -> None:
    """Write a checkpoint of JOB as an ONNX model, which takes raw samples."""
    from singa_dask.errors import ConfigError, Problem
    from singa_dask.job.job_pb2 import Phase
    from singa_dask.training import evaluate
    from singa_dask.training.checkpoint import find

    try:
        import onnx

        from singa_dask.export.onnx import export as to_onnx
    except ImportError as error:
        raise ConfigError(Problem("--onnx", str(error), hint="pip install 'singa-dask[onnx]'.")) from error
    prepared = _prepare(job, overrides, cluster, Phase.kTest)
    path = find(checkpoint)
    net = evaluate.restore_net(prepared.job, Phase.kTest, path)
    model = to_onnx(net, list(dict.fromkeys(outputs)) or [net.scores()[0]], prepared.job.name)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        onnx.save(model, out)
    except OSError as error:
        raise ConfigError(Problem("--onnx", f"cannot be written ({error.strerror})", str(out))) from error
    gives = ", ".join(result.name for result in model.graph.output)
    takes = ", ".join(given.name for given in model.graph.input)
    click.echo(f"{path} as ONNX in {out}: takes {takes}, gives {gives}")


def _load(path: Path, overrides: tuple[str, ...], cluster: Path | None) -> Job:
    from singa_dask.job import Job

    return Job.from_file(path, overrides=overrides, cluster=cluster)


def _prepare(path: Path, overrides: tuple[str, ...], cluster: Path | None, phase: int) -> Prepared:
    from singa_dask.training.prepare import prepare

    return prepare(_load(path, overrides, cluster), phases=[phase])


def _fork_workers(stack: ExitStack) -> None:
    """Let local workers be forked from a process that begins now to import what they need: seconds less to wait.

    Only the command does: a program of the user's may have chosen otherwise for its own Dask clusters.
    """
    from singa_dask.cluster.fork_server import fork_server

    stack.enter_context(fork_server())
    import dask  # it takes a while: not before that process is under way

    stack.enter_context(dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"}))


def _connect(stack: ExitStack, scheduler: str | None, scheduler_file: Path | None) -> Any:
    """A client of the named cluster, or None for a local one."""
    if scheduler is None and scheduler_file is None:
        return None
    from distributed import Client

    from singa_dask.errors import ClusterError

    if scheduler and scheduler_file:
        raise click.UsageError("--scheduler and --scheduler-file name one cluster each: give one of them.")
    # Dask would wait for the file for ever. A scheduler that was started just now may not have written it yet.
    deadline = time.monotonic() + CONNECT_S
    while scheduler_file and not scheduler_file.exists():
        if time.monotonic() > deadline:
            raise ClusterError(f"{scheduler_file}: no scheduler has written this file within {CONNECT_S:g} s.")
        time.sleep(0.1)
    try:
        client = Client(scheduler, scheduler_file=scheduler_file and str(scheduler_file), timeout=CONNECT_S)
    except (OSError, TimeoutError, ValueError, AssertionError) as error:  # the last: a file that names no scheduler
        where = scheduler or scheduler_file
        raise ClusterError(f"No Dask scheduler answers at {where} ({error}). Is it running, and reachable?") from error
    return stack.enter_context(client)


def _ask_run(scheduler: str | None, scheduler_file: Path | None, op: str, run: str | None, **more: Any) -> None:
    from singa_dask.supervision.control import ask_run

    if scheduler is None and scheduler_file is None:
        raise click.UsageError("Say on which Dask cluster the run is: --scheduler ADDRESS, or --scheduler-file FILE.")
    with ExitStack() as stack:
        click.echo(ask_run(_connect(stack, scheduler, scheduler_file), op, run, **more))


def _join_mpi(stack: ExitStack, needed: Callable[[], int], interface: str | None, other: object) -> Any:
    """A client of the cluster that this MPI job is, on rank 0; on other ranks None, when the job is over."""
    from singa_dask.cluster.mpi_world import mpi_world

    def checked() -> int:
        if other:
            raise click.UsageError("--mpi makes a cluster of its own: leave --scheduler and --scheduler-file out.")
        return needed()

    return stack.enter_context(mpi_world(checked, interface=interface))


def _print(*parts: Any) -> None:
    from rich.console import Console

    console = Console()
    for part in parts:
        console.print(part)
