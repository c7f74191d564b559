"""What the commands share: options, loading a job, errors as exit codes."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from click.shell_completion import CompletionItem

from singa_dask.errors import CheckpointError, ConfigError, SingaError, lack
from singa_dask.files import FILE, LINK, kind_of

logger = logging.getLogger(__name__)

if TYPE_CHECKING:
    from singa_dask.job import Job, JobProto
    from singa_dask.job.code_bundle import CodeBundle
    from singa_dask.training.checkpoint import Checkpoint
    from singa_dask.training.workspace import Workspace

PATH = click.Path(path_type=Path)


class OutputFile(click.Path):
    """A file to write. No link is one, which another user may have made, and nothing that is there but no file."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path: Path = super().convert(value, param, ctx)  # type: ignore[assignment]
        kind = kind_of(path, follow=False)
        if kind == LINK:
            self.fail(f"'{path}' is a symbolic link. Name the file itself: {os.path.realpath(path)}", param, ctx)
        if kind not in (None, FILE):
            self.fail(f"'{path}' is {kind}, not a file.", param, ctx)
        return path


class RunFolder(click.ParamType):
    """The folder of a run, or its name in runs/, which a shell completes. Also a job name or a checkpoint file, where
    the command takes these."""

    name = "run"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        names = sorted(path.parent.name for path in Path("runs").glob("*/job.conf"))
        items = [CompletionItem(name) for name in names if name.startswith(incomplete)]
        return [*items, CompletionItem(incomplete, type="file")]


OUTPUT = OutputFile()
JOB = click.argument("job", type=PATH)
RUN = click.argument("run", type=RunFolder())
ACTIVE_RUN = click.argument("run", required=False, type=RunFolder())
CLUSTER = click.option(
    "--cluster", type=PATH, metavar="FILE", help="Replace the job's cluster { } block by the one in this file."
)
SET = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="FIELD=VALUE",
    help="Override a field of the job, for example updater.learning_rate.base_lr=0.1. FIELD=[] clears a list. "
    "Repeatable.",
)
CHECKPOINT = click.option(
    "--checkpoint",
    type=PATH,
    help="With a job file as RUN: the checkpoint file, or the folder of the run that has it.",
)
TRUST = click.option(
    "--trust-code", is_flag=True, help="Run the code in the checkpoint, although another user wrote it."
)


def job_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The argument JOB, --cluster and --set."""
    return JOB(CLUSTER(SET(command)))


def run_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The argument RUN of a trained net, with --cluster, --set, --checkpoint and --trust-code."""
    return RUN(CLUSTER(SET(CHECKPOINT(TRUST(command)))))


class TrainedJob(NamedTuple):
    """A job whose net was trained, and the user's code that it needs."""

    job: JobProto
    code: CodeBundle | None


def reports_errors(command: Callable[..., Any]) -> Callable[..., Any]:
    """Print the package's errors on standard error and exit with their code."""

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
        except (MemoryError, OSError) as error:
            if (text := lack(error)) is None:
                raise
            click.echo(f"error: {text}", err=True)
            sys.exit(1)
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            sys.exit(130)

    return wrapped


def load(path: Path, overrides: tuple[str, ...], cluster: Path | None, run: Path | None = None) -> Job:
    """The job of a file. run: see `find_code`."""
    from singa_dask.job import Job

    job = Job.from_file(path, overrides=overrides, cluster=cluster)
    find_code(job, run)
    return job


def find_code(job: Job, run: Path | None = None) -> None:
    """Until the command ends, the modules of a job's own code are searched beside its file and in the current folder.

    run: a workspace or checkpoint, which others may have made: no code is taken from its folder.
    """
    from singa_dask.job.code_bundle import named_code
    from singa_dask.job.user_code import searching

    if any(named_code(job.proto)):
        here = Path.cwd()
        strange = run is not None and not {here, *here.parents}.isdisjoint(_folders_of(run))
        searched = searching(job.folder, None if strange else here)
        click.get_current_context().with_resource(searched)


def _folders_of(run: Path) -> set[Path]:
    """The folders of a run that is named by its workspace, the folder of its checkpoints, or one of them."""
    folder = run if run.is_dir() else run.parent
    places = {Path(os.path.abspath(folder)), folder.resolve()}
    return {place.resolve() for place in places | {p.parent for p in places if p.name == "checkpoint"}}


def load_run(workspace: Workspace, *, trust_code: bool) -> Job:
    """The job of a run that is to go on. Until the command ends, its own code is what the newest checkpoint keeps."""
    from singa_dask.job import Job
    from singa_dask.job.code_bundle import named_code
    from singa_dask.training import checkpoint as checkpoints
    from singa_dask.training.kept_code import code_of

    job = Job.from_file(workspace.job)
    job.folder = None  # which is that of the run
    find_code(job, workspace.folder)
    newest = checkpoints.newest(workspace.checkpoints)[0] if any(named_code(job.proto)) else None
    if newest is not None:
        code = code_of(checkpoints.load(newest.path), newest.path, trust=trust_code)
        click.get_current_context().with_resource(code)
    return job


def trained(
    run: str,
    overrides: tuple[str, ...],
    cluster: Path | None,
    phase: int | None,
    checkpoint: Path | None,
    *,
    trust_code: bool,
) -> tuple[TrainedJob, Path]:
    """The job of `run`, prepared for one phase, and its checkpoint file.

    run: a job file, with `checkpoint`; or a checkpoint file, or the folder of a run or its name in runs/, with its own
    job. phase: None to predict
    other data than the job's; a job file must then still find its training data. Until the command ends, code that the
    job lacks is that of the checkpoint.
    """
    from singa_dask.job import Job
    from singa_dask.training import checkpoint as checkpoints
    from singa_dask.training.kept_code import code_of
    from singa_dask.training.prepare import prepare, training_data
    from singa_dask.training.readings import check_steps, other_scale

    path = _located(run)
    own = path.is_dir() or path.suffix == ".h5"
    if own and checkpoint:
        raise click.UsageError(f"--checkpoint goes with a job file, but {path} is a checkpoint itself: leave one out.")
    if not own and not checkpoint:
        load(path, overrides, cluster)
        raise click.UsageError(f"{path} is a job file: give --checkpoint, or name a run or a checkpoint instead.")
    file = checkpoints.find(checkpoint or path)
    found = checkpoints.load(file)
    if own:
        job = Job.from_text(found.job, overrides, cluster)
        find_code(job, path)
    else:
        job = load(path, overrides, cluster, checkpoint)
    code = code_of(found, file, trust=trust_code, job=None if own else job)
    kept = click.get_current_context().with_resource(code)
    if own and phase is None:
        return TrainedJob(job.proto, kept), file
    prepared = prepare(job, phases=[] if phase is None else [phase], before=found)
    for said in other_scale(f"the parameters of {file}", found.job, prepared.job):
        logger.warning("%s.", said)
    check_steps(found.job, prepared.job)
    if phase is not None and training_data(prepared.data) != training_data(found.data):
        _check_shards(found, file)
    return TrainedJob(prepared.job, prepared.code), file


def _located(run: str) -> Path:
    """The path that RUN names. Raises ConfigError if there is none."""
    from singa_dask.training.workspace import no_run, places_of

    for path in places_of(run):
        if os.path.lexists(path):
            return path
    raise no_run(run, "the folder of a run, its name in runs/, a checkpoint or a job file")


def _check_shards(found: Checkpoint, file: Path) -> None:
    """Raise CheckpointError if a checkpoint's own job finds other training data than it was trained with."""
    from singa_dask.job import Job
    from singa_dask.training.prepare import prepare, training_data

    if training_data(prepare(Job.from_text(found.job), phases=[]).data) != training_data(found.data):
        raise CheckpointError(
            f"{file} was trained with other shards than those that its job finds now, so that samples to evaluate may "
            "be samples of its training. Write the shards again as they were, or name other data: predict --data."
        )
