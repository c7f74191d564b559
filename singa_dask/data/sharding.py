"""Named data sets and files become shards, as by `singa-dask shard`."""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from singa_dask.data.catalogue import Recipe, load_recipe, recipe_names
from singa_dask.data.converters import cifar10, digits, idx, text
from singa_dask.data.fetch import raw_files
from singa_dask.data.folders import replace_folder
from singa_dask.data.in_place import index
from singa_dask.data.ingest.options import SHARES, SPLIT_OPTIONS, Splits
from singa_dask.data.ingest.repeats import note_repeats
from singa_dask.data.ingest.write import ENCODING_OPTIONS, write
from singa_dask.data.manifest import Manifest
from singa_dask.data.sources import csv, hdf5, images, kvfile, netcdf, npz, parquet, zarr
from singa_dask.data.sources.patches import PATCH_OPTIONS, Patches
from singa_dask.data.sources.source import Format, Source
from singa_dask.errors import ConfigError, DataError, Problem, nearest

logger = logging.getLogger(__name__)

RECIPE_FORMATS: Mapping[str, Callable[[Recipe, dict[str, Path]], dict[str, Source]]] = {
    "digits": digits.load,
    "idx": idx.load,
    "cifar10": cifar10.load,
    "text": text.load_recipe,
}
FORMATS: Mapping[str, Format] = {
    each.FORMAT.name: each.FORMAT for each in (csv, hdf5, images, kvfile, netcdf, npz, parquet, zarr)
}
TEXT = "text"
_WRITING = ("client", "seed", "missing", "encode", "unknown", "max_categories", "progress", *SPLIT_OPTIONS)


def shard_files(
    what: str,
    out: str | Path,
    nshards: int | None = None,
    *,
    source: str | Path | None = None,
    window: int | None = None,
    shuffle: bool | None = None,
    overwrite: bool = False,
    in_place: bool = False,
    **options: Any,
) -> dict[str, Manifest]:
    """Write a named data set, or files in a known format, as shards. Returns the manifest of each split.

    what: a named data set (digits, mnist, cifar10, ...) or a format (csv, hdf5, parquet, ...).
    out: the folder for the shards; with several splits, they go to out/train, out/test.
    source: the files to read: a path, a folder or a pattern; a named data set is found or downloaded.
    window, nshards: as of `write`. shuffle: write the samples in a random, reproducible order; by default text and
        samples without labels keep their order, and so do the other splits than training that the source has itself.
    in_place: HDF5 files are not copied; `out` gets a manifest that names them.
    options: of the reader in `singa_dask.data.sources`, such as x, y, label, target; and of `write`, such as client,
        missing, and those of `Splits`: validation, test, test_from, test_groups, ... Of arrays: patch, stride and nan,
        as of `singa_dask.shard`. text: vocab, unit, vocab_size, validation.
    Raises ConfigError for unknown names and options, DataError for bad files.
    """
    out = Path(out).expanduser().absolute()
    if out.is_symlink():  # it stays one
        out = Path(os.path.realpath(out))
    if what in (*FORMATS, TEXT) and source is None:
        raise ConfigError(Problem("source", f"is missing: {what} needs a file or folder to read", "nothing"))
    if in_place and what != "hdf5":
        raise ConfigError(Problem("in_place", "is for hdf5 only", what, "Leave it out, or write the data as HDF5."))
    if what in FORMATS:
        reading, writing = _divided(what, options, in_place)
        sources = FORMATS[what].load(source or "", **reading)
        if in_place:
            return _index(sources, out, window, overwrite)
        return _write_sources(sources, out, nshards, shuffle, window=window, overwrite=overwrite, **writing)
    if what == TEXT:
        _check_options(what, options, [*inspect.signature(text.load).parameters][1:])
        sources = text.load(Path(source or "").expanduser().absolute(), **options)
        return _write_sources(sources, out, nshards, shuffle, overwrite=overwrite, window=window)
    names = recipe_names()
    if what not in names:
        message = "is neither a named data set nor a format"
        raise ConfigError(Problem("shard", message, repr(what), nearest(what, [*names, *FORMATS, TEXT])))
    _check_options(what, options, ())
    recipe = load_recipe(what)
    return shard_recipe(recipe, out, nshards, source, window=window, shuffle=shuffle, overwrite=overwrite)


def shard_recipe(
    recipe: Recipe,
    out: Path,
    nshards: int | None = None,
    source: str | Path | None = None,
    *,
    shuffle: bool | None = None,
    **writing: Any,
) -> dict[str, Manifest]:
    """Write a named data set as shards to out/<split>. writing: window and overwrite of `shard_files`.

    Raises DataError.
    """
    if recipe.format not in RECIPE_FORMATS:
        raise DataError(
            f"{recipe.name}.toml: format {recipe.format!r} is unknown. {nearest(recipe.format, RECIPE_FORMATS)}"
        )
    sources = RECIPE_FORMATS[recipe.format](recipe, raw_files(recipe, source))
    return _write_sources(sources, out.absolute(), nshards, shuffle, **writing)


def _divided(what: str, options: Mapping[str, Any], in_place: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options that read files of a format, and those that write shards. Raises ConfigError."""
    rules, cut = Splits.of({key: options[key] for key in SPLIT_OPTIONS if key in options}), Patches.of(options)
    own = FORMATS[what].options
    if rules.columns and "split" not in own:
        key, value = next((key, value) for key, value in rules.given.items() if key not in SHARES)
        hint = f"It is for tables and arrays. Use {' and '.join(SHARES)}."
        raise ConfigError(Problem(key, f"needs a column, and {what} has none", repr(value), hint))
    if cut and (in_place or "cut" not in own):
        received = "in_place" if in_place else what
        hint = "Leave it out, or write the fields as HDF5, netCDF or Zarr, without in_place (--in-place)."
        raise ConfigError(Problem("patch", "is for arrays that are copied", received, hint))
    if in_place and rules.given:
        key, value = next(iter(rules.given.items()))
        hint = "Leave it out, or in_place (--in-place)."
        raise ConfigError(Problem(key, "needs the samples in shards of their own", repr(value), hint))
    left = {key: value for key, value in options.items() if key not in PATCH_OPTIONS}
    if in_place and (key := next((key for key in left if key in _WRITING), "")):
        hint = "Leave it out, or in_place (--in-place): the samples are then copied into shards."
        raise ConfigError(
            Problem(key, "is of samples that are written, and in_place reads them as they lie", hint=hint)
        )
    _check_options(what, left, own if in_place else (*own, *_WRITING))
    reading = {key: value for key, value in left.items() if key not in _WRITING}
    reading |= ({"split": rules.columns} if rules.columns else {}) | ({"cut": cut} if cut else {})
    return reading, {key: value for key, value in left.items() if key in _WRITING}


def _check_options(what: str, options: Mapping[str, Any], valid: Sequence[str]) -> None:
    for key, value in options.items():
        if key not in valid:
            hint = nearest(key, valid) or f"{what} has no options."
            raise ConfigError(Problem(key, f"is not an option of {what}", f"{key}={value!r}", hint))


def _write_sources(
    sources: Mapping[str, Source],
    out: Path,
    nshards: int | None,
    shuffle: bool | None,
    overwrite: bool = False,
    **writing: Any,
) -> dict[str, Manifest]:
    if "" in sources:
        # Without labels, samples are to be predicted: their order tells which is which.
        mixed = bool(sources[""].y) and not sources[""].ordered if shuffle is None else shuffle
        return write(sources[""], out, nshards=nshards, shuffle=mixed, overwrite=overwrite, **writing)
    for share in SPLIT_OPTIONS:
        if writing.get(share):
            message = f"divides all samples, but the source has the splits {', '.join(sources)} already"
            hint = "Leave it out, name one split with --x and --y, or set store_conf.validation_share in the job."
            raise ConfigError(Problem(share, message, str(writing[share]), hint))
    written: dict[str, Manifest] = {}
    with replace_folder(out, overwrite) as folder:
        for split, source in sources.items():  # "train" is the first
            mixed = split == "train" and not source.ordered if shuffle is None else shuffle
            (made,) = write(source, folder / split, nshards=nshards, shuffle=mixed, **writing).values()
            if "like" not in writing:  # the other splits have its encoders and classes
                writing = {key: writing[key] for key in writing if key not in ENCODING_OPTIONS} | {"like": made}
            written[split] = made
        if not any(source.ordered for source in sources.values()):  # the records of a series are not samples
            written = note_repeats(written, writing.get("client"), lambda *_: None, durable=True)
    return {split: replace(manifest, folder=out / split) for split, manifest in written.items()}


def _index(sources: Mapping[str, Source], out: Path, window: int | None, overwrite: bool) -> dict[str, Manifest]:
    """Manifests of HDF5 files as they lie."""
    (split, source), *others = sources.items()
    if others:
        message = f"needs one split, but the source has {', '.join(sources)}"
        raise ConfigError(Problem("in_place", message, "true", "Name one split with --x and --y."))
    return {split: index(source, out / split, window, overwrite)}
