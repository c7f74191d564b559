"""Commands that start a run or change an active one: train, join, leave, stop."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from singa_dask.cli.documented import Documented
from singa_dask.cli.options import (
    ACTIVE_RUN,
    PATH,
    RUN,
    TRUST,
    job_options,
    load,
    load_run,
    reports_errors,
)
from singa_dask.cli.scheduler import Scheduler, scheduler_options
from singa_dask.cli.signals import StopSignals
from singa_dask.cli.strategy import StrategyOptions, strategy_options
from singa_dask.output.streams import Output

if TYPE_CHECKING:
    from singa_dask.job import Job
    from singa_dask.supervision.driver import Result

_PYTHONS_THRESHOLD = gc.get_threshold()
AUTO = Path("auto")


def driving_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of commands that drive a run."""
    options = (
        click.option(
            "--max-restarts",
            type=click.IntRange(0),
            default=3,
            show_default=True,
            help="How often a worker group is restarted without progress after it lost a worker.",
        ),
        click.option(
            "--max-queue",
            "max_queue_s",
            metavar="SECONDS",
            type=click.FloatRange(0),
            help="Wait at most this long for Dask workers that other runs use [default: until those runs end].",
        ),
        click.option(
            "--tensorboard", is_flag=True, help="Also write the metrics for TensorBoard, to RUN/tensorboard."
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


@click.command(
    cls=Documented,
    examples=[
        ("Train with three workers on this machine:", "singa-dask train job.conf --workers 3"),
        (
            "Train asynchronously on a running Dask cluster:",
            "singa-dask train job.conf --workers 4 --strategy downpour --scheduler tcp://host:8786",
        ),
        ("Trace the steps 100 to 109 for Perfetto:", "singa-dask train job.conf --workers 3 --trace 100:110"),
        ("Continue a run that was interrupted:", "singa-dask train job.conf --workers 3 --resume"),
    ],
)
@job_options
@strategy_options
@click.option("--workspace", type=PATH, metavar="RUN", help="Folder of the run [default: runs/<job>-<strategy>].")
@click.option(
    "--init",
    type=PATH,
    metavar="RUN|FILE",
    help="Start with the parameters of another run, a checkpoint file, or a .safetensors file of PyTorch.",
)
@click.option("--resume", is_flag=True, help="Resume from the newest valid checkpoint of the run.")
@click.option(
    "--trace",
    metavar="STEPS",
    help="Write a trace of these steps for Perfetto to RUN/trace.pftrace: 100:110, or 20 for 20 after the first 10.",
)
@scheduler_options
@click.option(
    "--mpi", is_flag=True, help="Train inside mpiexec or srun: rank 0 is the driver, the others are workers."
)
@click.option(
    "--interface",
    metavar="NAME",
    help="With --mpi: the network interface for Dask, for example ib0 [default: the default route].",
)
@driving_options
@reports_errors
def train(
    job: Path,
    cluster: Path | None,
    overrides: tuple[str, ...],
    wanted: StrategyOptions,
    init: Path | None,
    scheduler: Scheduler,
    mpi: bool,
    interface: str | None,
    **driving: Any,
) -> None:
    """Train the net of a job file.

    By default, workers run on a local Dask cluster. --scheduler and --scheduler-file select a running Dask cluster.
    --mpi starts one inside an MPI job. --workers, --strategy and --servers say how training is distributed; without
    them, the job's cluster { } block does. --cluster auto takes the topology and the partition that `singa-dask plan`
    recommends.
    """
    signals = StopSignals.handled()
    auto = cluster == AUTO
    overrides = wanted.overrides(cluster, overrides)
    overrides += () if init is None else ("checkpoint_path=[]", f"checkpoint_path={init}")
    resumed = driving["workspace"] if driving["resume"] else None
    loaded = cache(lambda: load(job, overrides, None if auto else cluster, resumed))
    with ExitStack() as stack:
        if mpi:
            gc.set_threshold(*_PYTHONS_THRESHOLD)  # ranks train in this process
            client = _join_mpi(stack, lambda: _needed(loaded(), auto), interface, scheduler.given)
            if client is None:  # this rank was a worker
                Output.of(sys.stdout).told = True  # rank 0 tells of a lost output
                return signals.over()
        elif interface:
            raise click.UsageError(
                "--interface needs --mpi; otherwise give --interface to Dask's own scheduler and workers."
            )
        else:
            scheduler.fork_workers(stack)
            loaded()
            client = scheduler.connect(stack)
        from singa_dask.monitor.progress import LineDisplay

        # MPI launchers may give their ranks a terminal that nobody watches.
        display = LineDisplay() if mpi else None
        result = _drive(signals, loaded(), client, cluster="auto" if auto else None, display=display, **driving)
    _conclude(result, **driving)


@click.command(
    cls=Documented,
    examples=[
        (
            "Take over a run on a Dask cluster:",
            "singa-dask attach runs/digits-allreduce --scheduler tcp://host:8786",
        )
    ],
)
@RUN
@scheduler_options
@driving_options
@TRUST
@reports_errors
def attach(run: str, scheduler: Scheduler, trust_code: bool, **driving: Any) -> None:
    """Take over a run whose driver was lost.

    RUN is the folder of the run, or its name in runs/. Its Dask workers hold its state in memory for ten minutes,
    or the orphan_timeout of its job. The run resumes from there: at most one step is repeated, and no update is lost
    that servers had acknowledged. Without that memory, it resumes from its newest checkpoint.
    """
    signals = StopSignals.handled()
    from singa_dask.training.workspace import Workspace

    workspace = Workspace.of(run)
    with ExitStack() as stack:
        if not scheduler.given:
            message = "No --scheduler is given: the run resumes from its newest checkpoint, on a local Dask cluster."
            click.echo(message, err=True)
        scheduler.fork_workers(stack)
        client = scheduler.connect(stack)
        job = load_run(workspace, trust_code=trust_code)
        result = _drive(signals, job, client, workspace=workspace.folder, resume=True, **driving)
    _conclude(result, **driving)


def _drive(signals: StopSignals, job: Job, client: Any, *, tensorboard: bool, **driving: Any) -> Result:
    from singa_dask.monitor.tensorboard import TensorBoard
    from singa_dask.supervision import driver

    try:
        return driver.train(job, client, callbacks=[TensorBoard()] if tensorboard else [], **driving)
    finally:
        signals.over()


def _conclude(result: Result, *, tensorboard: bool, **_: Any) -> None:
    """Say what a run reached, and end with the exit status for it."""
    from singa_dask.monitor.progress import LineDisplay

    display = LineDisplay()
    if tensorboard:
        display.say(f"tensorboard --logdir {result.workspace / 'tensorboard'}")
    display.say(str(result))
    if result.interrupted:
        sys.exit(130)


@click.command(
    cls=Documented,
    examples=[
        ("Add a worker group to the only active run:", "singa-dask join --scheduler tcp://host:8786"),
        ("Add one to a certain run:", "singa-dask join digits --scheduler tcp://host:8786"),
    ],
)
@ACTIVE_RUN
@scheduler_options
@reports_errors
def join(run: str | None, scheduler: Scheduler) -> None:
    """Add a worker group to an active asynchronous run.

    The group starts on free workers of the run's Dask cluster. RUN is the folder or the job name of the run. It may be
    left out if only one run is active.
    """
    _ask_run(scheduler, "join", run)


@click.command(
    cls=Documented,
    examples=[("Remove worker group 2:", "singa-dask leave 2 --scheduler tcp://host:8786")],
)
@click.argument("group", type=click.IntRange(0))
@ACTIVE_RUN
@scheduler_options
@reports_errors
def leave(group: int, run: str | None, scheduler: Scheduler) -> None:
    """Remove a worker group from an active asynchronous run.

    GROUP is the number of the worker group. It finishes its current step and leaves. The other groups continue. RUN is
    the folder or the job name of the run. It may be left out if only one run is active.
    """
    _ask_run(scheduler, "leave", run, group=group)


@click.command(
    cls=Documented,
    examples=[("Stop a run:", "singa-dask stop runs/digits-allreduce --scheduler tcp://host:8786")],
)
@ACTIVE_RUN
@scheduler_options
@reports_errors
def stop(run: str | None, scheduler: Scheduler) -> None:
    """Stop an active run after its current step, with a checkpoint.

    RUN is the folder or the job name of the run. It may be left out if only one run is active.
    """
    _ask_run(scheduler, "stop", run)


def _ask_run(scheduler: Scheduler, op: str, run: str | None, **more: Any) -> None:
    from singa_dask.supervision.control import ask_run

    if not scheduler.given:
        raise click.UsageError("Give the run's Dask cluster: --scheduler ADDRESS or --scheduler-file FILE.")
    with ExitStack() as stack:
        click.echo(ask_run(scheduler.connect(stack), op, run, **more))


def _needed(job: Job, auto: bool) -> int:
    """Processes of the job, at least."""
    return 1 if auto else job.topology.nprocesses


def _join_mpi(stack: ExitStack, needed: Callable[[], int], interface: str | None, other: bool) -> Any:
    """On rank 0 a client of the Dask cluster inside this MPI job; on other ranks None, when the job has ended."""
    from singa_dask.cluster.mpi_world import mpi_world

    def checked() -> int:
        if other:
            raise click.UsageError("--mpi starts its own Dask cluster: leave out --scheduler and --scheduler-file.")
        return needed()

    return stack.enter_context(mpi_world(checked, interface=interface))
