"""The command that predicts."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from singa_dask.cli.options import (
    OUTPUT,
    PATH,
    TRUST,
    connect,
    job_options,
    reports_errors,
    scheduler_options,
    trained,
)
from singa_dask.cli.run import fork_workers


@click.command()
@job_options
@click.option(
    "--checkpoint",
    type=PATH,
    help="Checkpoint file, or workspace (its best one with keep_best, else its newest), if JOB is a job file.",
)
@click.option(
    "--data",
    metavar="FOLDER|FILE",
    help="What to predict: shards, dataset:NAME/SPLIT, or files of a format of `shard` [default: JOB's test data].",
)
@click.option(
    "--x",
    multiple=True,
    metavar="NAME",
    help="With --data: a column or dataset of features, or COLUMN=DATASET; repeatable.",
)
@click.option("--y", multiple=True, metavar="NAME", help="With --data: labels or targets to write too; repeatable.")
@click.option(
    "--date",
    multiple=True,
    metavar="NAME=FORMAT",
    help="With --data, csv: dates, for example day=%d.%m.%Y. Repeatable.",
)
@click.option("--category", multiple=True, metavar="NAME", help="With --data, csv: a column of texts. Repeatable.")
@click.option("--header/--no-header", default=None, help="With --data, csv: whether the first line names the columns.")
@click.option("--separator", help="With --data, csv: the separator [default: as in training].")
@click.option(
    "--out",
    type=OUTPUT,
    default=Path("predictions.csv"),
    show_default=True,
    help="File to write: .csv, .parquet, .h5, .hdf5 or .nc.",
)
@scheduler_options
@click.option("--workers", type=click.IntRange(1), help="Predict in so many processes of a local Dask cluster.")
@TRUST
@reports_errors
def predict(
    job: Path,
    cluster: Path | None,
    overrides: tuple[str, ...],
    checkpoint: Path | None,
    data: str | None,
    out: Path,
    scheduler: str | None,
    scheduler_file: Path | None,
    workers: int | None,
    trust_code: bool,
    **columns: Any,
) -> None:
    """Write the predictions of a trained net.

    JOB is the workspace of a run, or a checkpoint file. It may also be a job file, with --checkpoint.
    """
    if data is None and any(value not in (None, ()) for value in columns.values()):
        raise click.UsageError("--x, --y and the options of reading are for --data: give it too.")
    if workers and (scheduler or scheduler_file):
        raise click.UsageError("--workers starts a local cluster: leave out --scheduler and --scheduler-file.")
    with ExitStack() as stack:
        if workers:
            fork_workers(stack)
        from singa_dask.inference import evaluate
        from singa_dask.inference.blocks import own_blocks
        from singa_dask.inference.files import check_format
        from singa_dask.inference.run import predict_blocks
        from singa_dask.inference.sources import blocks_of
        from singa_dask.job.job_pb2 import Phase

        check_format(out)
        phase = Phase.kTest if data is None else None
        ready, path = trained(job, overrides, cluster, phase, checkpoint, trust_code=trust_code)
        here = not (workers or scheduler or scheduler_file)
        model = evaluate.model_of(ready.job, ready.code, path, here=here)
        blocks = own_blocks(model) if data is None else blocks_of(model, data, **columns)
        client = connect(stack, scheduler, scheduler_file)
        if workers:
            from singa_dask.cluster import local_cluster

            client = stack.enter_context(local_cluster(workers))
        count = predict_blocks(model, blocks, out, client)
    click.echo(f"{path}: wrote {count} predictions to {out}")
