"""The command that predicts."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from singa_dask.cli.documented import Documented
from singa_dask.cli.options import (
    OUTPUT,
    reports_errors,
    run_options,
    trained,
)
from singa_dask.cli.scheduler import Scheduler, scheduler_options


@click.command(
    cls=Documented,
    examples=[
        ("Predict the test data of a run:", "singa-dask predict runs/digits-allreduce"),
        (
            "Predict a table that has no answers:",
            "singa-dask predict runs/wine-allreduce --data new.csv --out predictions.parquet",
        ),
    ],
)
@run_options
@click.option(
    "--data",
    metavar="FOLDER|FILE",
    help="What to predict: shards, dataset:NAME/SPLIT, or files that `shard` reads [default: the job's test data].",
)
@click.option(
    "--x",
    multiple=True,
    metavar="NAME",
    help="With --data: a column of features or, in files of arrays, a dataset or COLUMN=DATASET. Repeatable.",
)
@click.option(
    "--y",
    multiple=True,
    metavar="NAME",
    help="With --data: labels or targets to write next to the predictions. Repeatable.",
)
@click.option(
    "--date",
    multiple=True,
    metavar="NAME=FORMAT",
    help="With --data, csv: dates, for example day=%d.%m.%Y. Repeatable.",
)
@click.option("--category", multiple=True, metavar="NAME", help="With --data, csv: a column of strings. Repeatable.")
@click.option("--header/--no-header", default=None, help="With --data, csv: whether the first line names the columns.")
@click.option("--separator", help="With --data, csv: the separator between values [default: that of training].")
@click.option(
    "--out",
    type=OUTPUT,
    default=Path("predictions.csv"),
    show_default=True,
    help="File to write: .csv, .parquet, .h5, .hdf5 or .nc.",
)
@scheduler_options
@click.option(
    "--workers",
    type=click.IntRange(1),
    help="Number of processes of a local Dask cluster [default: none, predict in this process].",
)
@reports_errors
def predict(
    run: str,
    cluster: Path | None,
    overrides: tuple[str, ...],
    checkpoint: Path | None,
    data: str | None,
    out: Path,
    scheduler: Scheduler,
    workers: int | None,
    trust_code: bool,
    **columns: Any,
) -> None:
    """Write the predictions of a trained net.

    RUN is the folder of a run (its best checkpoint if the job has keep_best, else its newest), its name in runs/, or a
    checkpoint file. It may also be a job file, with --checkpoint.
    """
    if data is None and any(value not in (None, ()) for value in columns.values()):
        raise click.UsageError("--x, --y and the options of reading are for --data: give it too.")
    if workers and scheduler.given:
        raise click.UsageError("--workers starts a local cluster: leave out --scheduler and --scheduler-file.")
    with ExitStack() as stack:
        if workers:
            scheduler.fork_workers(stack)
        from singa_dask.inference import evaluate
        from singa_dask.inference.blocks import own_blocks
        from singa_dask.inference.files import check_format
        from singa_dask.inference.run import predict_blocks
        from singa_dask.inference.sources import blocks_of
        from singa_dask.job.job_pb2 import Phase

        check_format(out)
        phase = Phase.kTest if data is None else None
        ready, path = trained(run, overrides, cluster, phase, checkpoint, trust_code=trust_code)
        here = not (workers or scheduler.given)
        model = evaluate.model_of(ready.job, ready.code, path, here=here)
        scratch = stack.enter_context(TemporaryDirectory(prefix=".singa_dask-", dir=None if here else out.parent))
        blocks = own_blocks(model) if data is None else blocks_of(model, data, scratch=Path(scratch), **columns)
        client = scheduler.connect(stack)
        if workers:
            from singa_dask.cluster import local_cluster

            client = stack.enter_context(local_cluster(workers))
        count = predict_blocks(model, blocks, out, client)
    click.echo(f"{path}: wrote {count} predictions to {out}")
