"""Commands on a job's net: check, show, test, sample, export."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from singa_dask.cli.documented import Documented
from singa_dask.cli.options import (
    JOB,
    OUTPUT,
    PATH,
    SET,
    job_options,
    load,
    reports_errors,
    run_options,
    trained,
)
from singa_dask.cli.strategy import StrategyOptions, strategy_options
from singa_dask.output.streams import for_data

if TYPE_CHECKING:
    from singa_dask.job import Job, JobProto

PHASES = ("train", "validate", "test")


@click.command(
    cls=Documented,
    examples=[
        ("Check a job for three workers:", "singa-dask check job.conf --workers 3"),
        ("Check a job whose data are elsewhere:", "singa-dask check job.conf --no-data"),
    ],
)
@job_options
@strategy_options
@click.option("--no-data", is_flag=True, help="Open no data file; the job must state the shapes of its samples.")
@reports_errors
def check(job: Path, cluster: Path | None, overrides: tuple[str, ...], wanted: StrategyOptions, no_data: bool) -> None:
    """Check a job and print its net.

    Printed are the layers with their shapes, parameters and partitioning, and what workers send each other.
    """
    from singa_dask.cluster.bootstrap import mpi_library
    from singa_dask.monitor.net_tables import net_tables
    from singa_dask.monitor.traffic import Traffic
    from singa_dask.output.console import Console
    from singa_dask.training.prepare import check_given, prepare

    loaded = load(job, wanted.overrides(cluster, overrides), cluster)
    prepared = prepare(_partitioned(loaded, with_data=not no_data), with_data=not no_data)
    if not no_data:
        check_given(prepared)
    console = Console()
    for table in net_tables(prepared):
        console.print(table)
    held = [sum(s.size for s in prepared.partition.of_server(i)) for i in range(prepared.topology.nservers_per_group)]
    slices = ", ".join(f"{size:,}" for size in held)
    traffic, rows = Traffic.of(prepared, "train"), prepared.layers["train"]
    within = "each worker computes its own rows of the mini-batch"
    if any(map(traffic.of_layer, rows)):
        within = "; ".join(traffic.summary(rows, prepared.topology.codec))
    click.echo(f"elements per server: {slices}; {within}")
    if prepared.topology.nprocesses > 1:
        click.echo(f"MPI library: {mpi_library()}")
    if no_data:
        click.echo(_unseen(prepared.job))
    verdict = "valid, its data were not opened" if no_data else "ready to run"
    click.echo(f"{prepared.job.name}: {verdict}; {prepared.topology.describe()}")


@click.command(
    cls=Documented,
    examples=[("Draw the net as three workers train it:", "singa-dask show job.conf --workers 3 --out net.png")],
)
@job_options
@strategy_options
@click.option("--phase", type=click.Choice(PHASES), default=PHASES[0], show_default=True, help="Which net to draw.")
@click.option("--out", type=OUTPUT, default=Path("net.svg"), show_default=True, help="SVG or PNG file to write.")
@reports_errors
def show(
    job: Path, cluster: Path | None, overrides: tuple[str, ...], wanted: StrategyOptions, phase: str, out: Path
) -> None:
    """Draw the net of a job.

    Drawn are shapes, parameters, partitioning, and the bytes that workers send each other. The shapes of samples are
    those of the job; only if it has none they are taken from the shards.
    """
    from singa_dask.job import active_phases
    from singa_dask.job.job_pb2 import Phase
    from singa_dask.monitor.figures import check_format
    from singa_dask.monitor.net_picture import draw_net
    from singa_dask.training.prepare import has_shapes, prepare

    check_format(out)
    loaded = load(job, wanted.overrides(cluster, overrides), cluster)
    number = {"train": Phase.kTrain, "validate": Phase.kVal, "test": Phase.kTest}[phase]
    shown = all(has_shapes(loaded, each) for each in (number, *active_phases(loaded.proto)))
    loaded = _partitioned(loaded, with_data=not shown)
    prepared = prepare(loaded, with_data=not has_shapes(loaded, number), phases=[number])
    click.echo(f"{out}: {draw_net(prepared, phase, out)}")


def _unseen(job: JobProto) -> str:
    """What a check without data has not looked at."""
    from singa_dask.job.stores import store_of

    paths = dict.fromkeys(path for layer in job.neuralnet.layer if (path := store_of(layer).path))
    files = f"{', '.join(paths)} and other files that the job names" if paths else "the files that the job names"
    return f"not looked at: {files}; whether they are there and fit: format, shapes, types, classes, statistics"


def _partitioned(job: Job, *, with_data: bool) -> Job:
    """The job with a partition, if it leaves that to the cost model. Prints the choice."""
    from singa_dask.planning.partition import is_open
    from singa_dask.supervision.partitioning import resolve_by_cache

    if not is_open(job.proto):
        return job

    return resolve_by_cache(job, click.echo, with_data=with_data)


@click.command(
    cls=Documented,
    examples=[
        ("Evaluate a run:", "singa-dask test runs/digits-allreduce"),
        ("Evaluate a checkpoint, with pictures:", "singa-dask test step-500.h5 --pictures pictures"),
    ],
)
@run_options
@click.option("--validation", is_flag=True, help="Evaluate on the validation data instead of the test data.")
@click.option("--pictures", type=PATH, help='Folder for a confusion matrix (metric: "confusion") or a parity plot.')
@reports_errors
def test(
    run: str,
    cluster: Path | None,
    overrides: tuple[str, ...],
    checkpoint: Path | None,
    trust_code: bool,
    validation: bool,
    pictures: Path | None,
) -> None:
    """Evaluate a trained net on its whole test set.

    RUN is the folder of a run (its best checkpoint if the job has keep_best, else its newest), its name in runs/, or a
    checkpoint file. It may also be a job file, with --checkpoint. The job's test_steps does not count; --set
    test_steps=N evaluates N mini-batches.
    """
    from singa_dask.inference import evaluate
    from singa_dask.job.evaluations import PHASE_NAMES
    from singa_dask.job.job_pb2 import Phase
    from singa_dask.monitor.lines import format_metrics
    from singa_dask.supervision.pictures import draw_pictures
    from singa_dask.training import checkpoint as checkpoints

    phase = Phase.kVal if validation else Phase.kTest
    overrides = ("test_steps=0", "validate_steps=0", *overrides)
    ready, path = trained(run, overrides, cluster, phase, checkpoint, trust_code=trust_code)
    measured = evaluate.measure(ready.job, path, phase)
    name = PHASE_NAMES[phase]
    click.echo(f"{name} {format_metrics(measured.numbers)}; {path}")
    if pictures is not None:
        pictures.mkdir(parents=True, exist_ok=True)
        described = checkpoints.load(path).described
        for picture in draw_pictures({name: measured.details}, ready.job, described, pictures):
            click.echo(f"drawn: {picture}")


@click.command(
    cls=Documented,
    examples=[
        (
            "Generate 200 characters with a run of examples/char-rnn:",
            "singa-dask sample job.conf --checkpoint runs/char-rnn-allreduce --length 200",
        )
    ],
)
@JOB
@SET
@click.option(
    "--checkpoint", type=PATH, help="Checkpoint file or folder of a run [default: the job's checkpoint_path]."
)
@click.option(
    "--length", type=click.IntRange(0), default=500, show_default=True, help="Number of symbols to generate."
)
@click.option(
    "--temperature",
    type=click.FloatRange(0),
    default=1.0,
    show_default=True,
    help="Below 1 favours likely symbols, above 1 adds variety; 0 always takes the most likely one.",
)
@click.option(
    "--primer",
    default="",
    show_default=False,
    metavar="TEXT",
    help="Text that the net reads first [default: a random symbol].",
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the random choices.")
@reports_errors
def sample(job: Path, overrides: tuple[str, ...], checkpoint: Path | None, primer: str, **drawing: Any) -> None:
    """Generate text with a net that was trained on text."""
    from singa_dask.training.sample import Sampler

    sampler = Sampler(load(job, overrides, None, checkpoint), [checkpoint] if checkpoint else [])
    written = sampler.write(primer=primer, **drawing)
    output = for_data(sys.stdout)
    output.write(primer + (sampler.separator if primer else ""))
    for symbol in written:
        output.write(symbol + sampler.separator)
        output.flush()
        if output.fault is not None:
            return  # nobody reads on
    output.write("\n")


@click.command(
    cls=Documented,
    examples=[("Export the net of a run:", "singa-dask export runs/digits-allreduce --onnx digits.onnx")],
)
@run_options
@click.option("--onnx", "out", type=OUTPUT, required=True, help="ONNX file to write.")
@click.option(
    "--output",
    "outputs",
    multiple=True,
    metavar="LAYER",
    help="Layer whose output the model returns [default: predictions]. Repeatable.",
)
@reports_errors
def export(
    run: str,
    cluster: Path | None,
    overrides: tuple[str, ...],
    checkpoint: Path | None,
    trust_code: bool,
    out: Path,
    outputs: tuple[str, ...],
) -> None:
    """Export a trained net as an ONNX model.

    RUN is the folder of a run (its best checkpoint if the job has keep_best, else its newest), its name in runs/, or a
    checkpoint file. It may also be a job file, with --checkpoint.

    The model takes raw samples: normalisation is part of it.
    """
    from singa_dask.export.onnx import save
    from singa_dask.inference import evaluate
    from singa_dask.job.job_pb2 import Phase

    ready, path = trained(run, overrides, cluster, None, checkpoint, trust_code=trust_code)
    net = evaluate.restore_net(ready.job, Phase.kTest, path)
    model = save(net, out, outputs, ready.job.name, "--onnx")
    inputs = ", ".join(value.name for value in model.graph.input)
    results = ", ".join(value.name for value in model.graph.output)
    click.echo(f"{path} exported to {out}: inputs {inputs}; outputs {results}")
