"""The command that writes shards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from singa_dask.cli.options import PATH, reports_errors


def _size(context: click.Context, option: click.Parameter, value: str | None) -> tuple[int, int] | None:
    if value is None:
        return None
    height, x, width = value.partition("x")
    if not (x and height.isdigit() and width.isdigit()):
        raise click.BadParameter(f"{value!r} is not a valid size. Write HEIGHTxWIDTH, for example 32x32.")
    return int(height), int(width)


def _column(context: click.Context, option: click.Parameter, value: str | None) -> str | int | None:
    return int(value) if value and value.removeprefix("-").isdigit() else value


@click.command()
@click.argument("what", metavar="DATASET|csv|images|npz|text")
@click.option("--out", required=True, type=PATH, help="Folder for the shards.")
@click.option("--shards", default=1, show_default=True, help="Number of shard files per split.")
@click.option("--source", type=PATH, help="File or folder to read (csv, images, npz, text).")
@click.option("--label", callback=_column, help="csv: name or index of the label column (0: first, -1: last).")
@click.option("--header/--no-header", default=None, help="csv: whether the first line names the columns.")
@click.option("--separator", help="csv: the separator between values.")
@click.option("--resize", metavar="HEIGHTxWIDTH", callback=_size, help="images: resize every image to this size.")
@click.option("--vocab", type=PATH, help="text: the vocabulary, as a file of characters or a folder of text shards.")
@click.option("--unit", type=click.Choice(["char", "word"]), help="text: what a symbol is [default: char].")
@click.option("--vocab-size", type=click.IntRange(2), help='text: words in the vocabulary; the rest become "<unk>".')
@click.option(
    "--validation",
    type=click.FloatRange(0, 1, max_open=True),
    help="text: fraction, taken from the end, that becomes the validation split [default: 0].",
)
@click.option(
    "--window",
    type=click.IntRange(1),
    help="Samples that are read, hashed and shuffled together [default: from the sample size].",
)
@click.option("--shuffle/--no-shuffle", default=None, help="Write samples in random order [default: training data].")
@click.option("--overwrite", is_flag=True, help="Replace existing shards.")
@reports_errors
def shard(what: str, out: Path, shards: int, source: Path | None, overwrite: bool, **options: Any) -> None:
    """Write a data set as HDF5 shards.

    DATASET is a named data set: digits, mnist, cifar10 or tinyshakespeare. csv, images, npz and text are formats of
    your own files in --source.
    """
    from singa_dask.data import shard as write

    given = {key: value for key, value in options.items() if value is not None}
    for split, manifest in write(what, out, shards, source=source, overwrite=overwrite, **given).items():
        shape = "x".join(map(str, manifest.features.shape))
        click.echo(f"{out / split}: {manifest.total:,} samples of {shape} in {len(manifest.shards)} shards")
