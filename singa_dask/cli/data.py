"""The commands that write shards and describe data."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from singa_dask.cli.documented import Documented
from singa_dask.cli.options import PATH, reports_errors
from singa_dask.cli.scheduler import Scheduler, scheduler_options
from singa_dask.cli.signals import StopSignals

if TYPE_CHECKING:
    from singa_dask.data import Manifest


def _size(context: click.Context, option: click.Parameter, value: str | None) -> tuple[int, int] | None:
    if value is None:
        return None
    height, x, width = value.partition("x")
    if not (x and height.isdigit() and width.isdigit()):
        raise click.BadParameter(f"{value!r} is not a valid size. Write HEIGHTxWIDTH, for example 32x32.")
    return int(height), int(width)


def _fill(context: click.Context, option: click.Parameter, values: Sequence[str]) -> Any:
    """A way to fill missing values, or such ways by column."""
    by_column = dict(value.split("=", 1) for value in values if "=" in value)
    if (by_column and len(by_column) < len(values)) or (len(values) > 1 and not by_column):
        raise click.BadParameter("give one VALUE for all columns, or COLUMN=VALUE for each of some columns.")
    ways = {column: _number(value) for column, value in by_column.items()}
    return ways or (_number(values[0]) if values else None)


def _number(value: str) -> float | str:
    try:
        return float(value)
    except ValueError:
        return value


def _groups(context: click.Context, option: click.Parameter, value: str | None) -> Any:
    """A column, or a column with a share."""
    column, has_share, share = (value or "").partition("=")
    return {column: _number(share)} if has_share else value


def _categories(context: click.Context, option: click.Parameter, values: Sequence[str]) -> dict[str, Any] | None:
    found: dict[str, Any] = {}
    for value in values:
        column, has_order, order = value.partition("=")
        found[column] = order.split(",") if has_order else "onehot"
    return found or None


@click.command(
    cls=Documented,
    examples=[
        ("List what a file holds:", "singa-dask shard csv --source wine.csv"),
        (
            "Write shards, with shares for validation and for a test:",
            "singa-dask shard csv --source wine.csv --label quality --validation 0.1 --test 0.1 --out shards",
        ),
        ("Write shards of a named data set:", "singa-dask shard mnist --out mnist"),
    ],
)
@click.argument("what", metavar="DATASET|FORMAT")
@click.argument("more", nargs=-1, metavar="")
@click.option("--out", type=PATH, help="Folder for the shards [default: none, list what the source holds].")
@click.option("--source", type=PATH, help="File or folder to read, or a pattern in quotation marks: 'runs/*.h5'.")
@click.option("--x", multiple=True, metavar="NAME", help="Dataset or column of features. Repeatable.")
@click.option(
    "--y",
    multiple=True,
    metavar="NAME",
    help="Dataset or column of labels or targets, as its values tell. Repeatable.",
)
@click.option(
    "--label", multiple=True, metavar="NAME", help='Like --y, for classes; "none" if there are no labels. Repeatable.'
)
@click.option("--target", multiple=True, metavar="NAME", help="Like --y, for numbers to predict. Repeatable.")
@click.option("--weight", metavar="NAME", help="Dataset or column of the weights of the samples.")
@click.option(
    "--mask", metavar="NAME", help="Dataset or column that says which targets count (1) and which do not (0)."
)
@click.option(
    "--channels", type=click.Choice(["first", "last", "none"]), help="Position of the channels axis in a sample."
)
@click.option(
    "--patch", type=click.IntRange(1), help="Arrays: cut fields into square patches of this side, one per sample."
)
@click.option(
    "--stride", type=click.IntRange(1), help="Distance from one patch to the next [default: the side of a patch]."
)
@click.option(
    "--nan",
    type=click.Choice(["error", "drop"]),
    help="Patches with a missing value: an error, or leave them out [default: error].",
)
@click.option("--drop", multiple=True, metavar="NAME", help="Tables: a column to ignore. Repeatable.")
@click.option(
    "--missing",
    multiple=True,
    metavar="[NAME=]VALUE",
    callback=_fill,
    help="Replacement of missing features: mean or a number; in tables also median or most_frequent; in arrays also "
    "mask, the mean, and channels that mark which values were there [default: an error].",
)
@click.option(
    "--category",
    multiple=True,
    metavar="NAME[=A,B,...]",
    callback=_categories,
    help="Tables: a numeric column of categories; with a list, they become 0, 1, ... in its order. Repeatable.",
)
@click.option("--date", multiple=True, metavar="NAME=FORMAT", help="csv: dates, for example day=%d.%m.%Y. Repeatable.")
@click.option("--header/--no-header", default=None, help="csv: whether the first line names the columns.")
@click.option("--separator", help="csv: the separator between values.")
@click.option(
    "--resize", metavar="HEIGHTxWIDTH", callback=_size, help="images: the size to which each image is resized."
)
@click.option("--allow-virtual", is_flag=True, help="hdf5: read also external files to which the source refers.")
@click.option("--in-place", is_flag=True, help="hdf5: write a manifest only; training reads the files themselves.")
@click.option("--vocab", type=PATH, help="text: the vocabulary, as a file of characters or a folder of text shards.")
@click.option(
    "--unit", type=click.Choice(["char", "word"]), help="text: symbols are characters or words [default: char]."
)
@click.option("--vocab-size", type=click.IntRange(2), help='text: words in the vocabulary; the rest become "<unk>".')
@click.option(
    "--validation",
    type=click.FloatRange(0, 1, max_open=True),
    help="Share of the samples for validation, drawn at random; the end of a text [default: 0].",
)
@click.option(
    "--test", type=click.FloatRange(0, 1, max_open=True), help="Share of the samples for a test [default: 0]."
)
@click.option("--validation-from", metavar="VALUE", help="First date or number of the validation samples.")
@click.option("--test-from", metavar="VALUE", help="First date or number of the test samples.")
@click.option(
    "--split-by", metavar="NAME", help="Column of the two options above [default: the only column of dates]."
)
@click.option(
    "--validation-groups",
    metavar="NAME[=SHARE]",
    callback=_groups,
    help="Column of groups: this share of them is for validation, with all their samples [share: 0.2].",
)
@click.option(
    "--test-groups",
    metavar="NAME[=SHARE]",
    callback=_groups,
    help="Column of groups: this share of them is for the test, with all their samples [share: 0.2].",
)
@click.option("--split-column", metavar="NAME", help="Column that holds train, validation or test for each sample.")
@click.option("--seed", type=click.IntRange(0), help="Seed of the random order and of random shares [default: 0].")
@click.option("--shards", type=click.IntRange(1), help="Number of shard files per split [default: from their size].")
@click.option(
    "--window",
    type=click.IntRange(1),
    help="Number of samples that are read, hashed and shuffled together [default: from the sample size].",
)
@click.option(
    "--shuffle/--no-shuffle", default=None, help="Write samples in random order [default: training data with labels]."
)
@click.option("--overwrite", is_flag=True, help="Replace existing shards.")
@click.option(
    "--workers", type=click.IntRange(1), help="Number of processes of this machine [default: none, use threads]."
)
@scheduler_options
@reports_errors
def shard(
    what: str,
    more: tuple[str, ...],
    out: Path | None,
    shards: int | None,
    category: dict[str, Any] | None,
    workers: int | None,
    scheduler: Scheduler,
    **options: Any,
) -> None:
    """Write a data set as HDF5 shards, which training reads.

    FORMAT is that of your files in --source: csv, hdf5, images, kvfile (SINGA 0.3), netcdf, npz, parquet, text or
    zarr. DATASET is a named data set: digits, mnist, cifar10 or tinyshakespeare.

    If the command is interrupted and called again, it continues where it stopped.
    """
    StopSignals.handled()
    if more:
        raise click.UsageError(f"{more[0]!r} is one file too many. Put a pattern in quotation marks: --source '*.h5'.")
    if workers and scheduler.given:
        raise click.UsageError("--workers starts a cluster of its own: leave out --scheduler and --scheduler-file.")
    from singa_dask.data.sharding import FORMATS, shard_files
    from singa_dask.inference.describe import describe_schema as lines_of

    if out is None:
        if options["source"] is None or what not in FORMATS or FORMATS[what].contents is None:
            raise click.UsageError("Missing option '--out': the folder for the shards.")
        keys = ("separator", "header") if what == "csv" else ()
        reading = {key: options[key] for key in keys if options[key] is not None}
        click.echo(f"{FORMATS[what].listing(options['source'], **reading)}\nAdd --out FOLDER to write shards.")
        return
    given = {key: value for key, value in options.items() if value is not None and value != () and value is not False}
    given |= {key: value for key, value in options.items() if key in ("header", "shuffle") and value is not None}
    if category:
        given["encode"] = category
    if category and what == "csv":
        given["category"] = tuple(category)
    with ExitStack() as stack:
        if workers:
            from singa_dask.cluster.local_dask import local_cluster

            given["client"] = stack.enter_context(local_cluster(workers))
        elif scheduler.given:
            given["client"] = scheduler.connect(stack)
        made = shard_files(what, out, shards, **given)
    for split, manifest in made.items():
        click.echo(f"{out / split}: {manifest.total:,} samples in {_files(manifest)}")
    schema = next(iter(made.values())).schema
    for line in lines_of(schema):
        click.echo(line)
    if "channels" not in given and any(len(column.shape) > 2 for column in schema.columns):
        click.echo("  If the channels are not there, say --channels first, last or none.")
    for note in dict.fromkeys(note for manifest in made.values() for note in manifest.notes):
        click.echo(f"  Note: {note}.")
    click.echo(f"Next: singa-dask new {out} --out job.conf")


@click.command(
    cls=Documented,
    examples=[
        ("Describe a folder of shards:", "singa-dask describe shards/train"),
        ("Describe the data of a run:", "singa-dask describe runs/digits-allreduce"),
    ],
)
@click.argument("what", metavar="SHARDS|RUN|FILE")
@reports_errors
def describe(what: str) -> None:
    """Describe the samples of a data set.

    Listed are the columns with their types, categories and classes, and how the source was read. SHARDS is a folder of
    shards, or dataset:NAME/SPLIT. RUN is the folder of a run, or a checkpoint file; described are its training data,
    by input layer. FILE has a format that `shard` reads; its columns are listed.
    """
    from singa_dask.inference.describe import describe as lines_of

    for line in lines_of(what):
        click.echo(line)


def _files(manifest: Manifest) -> str:
    count = len(manifest.shards)
    order = "in random order" if manifest.shuffled else "in the order of the source"
    if manifest.in_place:
        return f"{count} file{'s' if count > 1 else ''}, read in place"
    return f"{count} shard{'s' if count > 1 else ''}, {order}"
