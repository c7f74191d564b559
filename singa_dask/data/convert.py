"""Conversion of raw files to shards, as in `singa-dask shard`."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from singa_dask.data.catalogue import Recipe, load_recipe, recipe_names
from singa_dask.data.converters import cifar10, csv, digits, idx, images, npz, text
from singa_dask.data.converters.split import Split
from singa_dask.data.fetch import raw_files
from singa_dask.data.folders import replace_folder
from singa_dask.data.manifest import Manifest, warn_of_note
from singa_dask.data.writer import write_shards
from singa_dask.errors import ConfigError, DataError, Problem, nearest

logger = logging.getLogger(__name__)

RECIPE_FORMATS: Mapping[str, Callable[[Recipe, dict[str, Path]], dict[str, Split]]] = {
    "digits": digits.load,
    "idx": idx.load,
    "cifar10": cifar10.load,
    "text": text.load_recipe,
}
FILE_FORMATS: Mapping[str, Callable[..., dict[str, Split]]] = {
    "csv": csv.load,
    "images": images.load,
    "npz": npz.load,
    "text": text.load,
}


def shard(
    what: str,
    out: str | Path,
    nshards: int = 1,
    *,
    source: str | Path | None = None,
    window: int | None = None,
    shuffle: bool | None = None,
    overwrite: bool = False,
    **options: Any,
) -> dict[str, Manifest]:
    """Write a named data set, or files in a known format, as shards. Returns the manifest of each split.

    what: a named data set (digits, mnist, cifar10, ...) or a format (csv, images, npz, text).
    out: the folder for the shards; with several splits, they go to out/train, out/test.
    source: the file or folder to read; a named data set is found or downloaded.
    window: samples per window; write_shards has a default. shuffle: write the samples in a random, reproducible order;
        by default only the training split is shuffled, and text keeps its order.
    options: of the format. csv: label, header, separator. images: resize. text: vocab, unit, vocab_size, validation.
    Raises ConfigError for unknown names and options, DataError for bad files.
    """
    writing: dict[str, Any] = {"window": window, "shuffle": shuffle, "overwrite": overwrite}
    if what in FILE_FORMATS:
        load = FILE_FORMATS[what]
        _check_options(what, options, load)
        if source is None:
            raise ConfigError(Problem("source", f"is missing: {what} needs a file or folder to read", "nothing"))
        splits = load(Path(source).expanduser().absolute(), **options)
        return _write(splits, Path(out), nshards, **writing)
    names = recipe_names()
    if what not in names:
        valid = [*names, *FILE_FORMATS]
        message = "is neither a named data set nor a format"
        raise ConfigError(Problem("shard", message, repr(what), nearest(what, valid)))
    _check_options(what, options, None)
    return shard_recipe(load_recipe(what), Path(out), nshards, source, **writing)


def shard_recipe(
    recipe: Recipe, out: Path, nshards: int, source: str | Path | None = None, **writing: Any
) -> dict[str, Manifest]:
    """Write a named data set as shards to out/<split>. writing: window, shuffle and overwrite of `shard`.

    Raises DataError.
    """
    if recipe.format not in RECIPE_FORMATS:
        raise DataError(
            f"{recipe.name}.toml: format {recipe.format!r} is unknown. {nearest(recipe.format, RECIPE_FORMATS)}"
        )
    splits = RECIPE_FORMATS[recipe.format](recipe, raw_files(recipe, source))
    return _write(splits, out, nshards, **writing)


def _check_options(what: str, options: Mapping[str, Any], load: Callable[..., Any] | None) -> None:
    valid = list(inspect.signature(load).parameters)[1:] if load else []
    for key, value in options.items():
        if key not in valid:
            hint = nearest(key, valid) or f"{what} has no options."
            raise ConfigError(Problem(key, f"is not an option of {what}", f"{key}={value!r}", hint))


def _write(
    splits: Mapping[str, Split],
    out: Path,
    nshards: int,
    window: int | None = None,
    shuffle: bool | None = None,
    overwrite: bool = False,
) -> dict[str, Manifest]:
    out = out.absolute()
    if shuffle and any(split.ordered for split in splits.values()):
        raise ConfigError(Problem("shuffle", "text cannot be shuffled", "true", "Leave it out."))
    with replace_folder(out, overwrite) as folder:
        for name, split in splits.items():
            for note in split.notes:
                warn_of_note(out if name else out.parent, note)
            mixed = name in ("", "train") and not split.ordered if shuffle is None else shuffle
            write_shards(
                folder / name,
                split.features,
                split.labels,
                min(nshards, len(split)),
                classes=split.classes,
                window=window or split.window,
                shuffle_seed=0 if mixed else None,
                notes=split.notes,
                overwrite=True,
            )
    return {name: Manifest.load(out / name) for name in splits}
