"""Writes a source as shards."""

from __future__ import annotations

import glob
import hashlib
import json
import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from singa_dask.data.columns import NAME_RULE, Role, is_name
from singa_dask.data.dask_client import check_client
from singa_dask.data.folders import check_free, put_folder, remove_leftovers, sync
from singa_dask.data.ingest.assemble import assemble
from singa_dask.data.ingest.facts import Part
from singa_dask.data.ingest.layout import Layout, make_layout, prepared_like
from singa_dask.data.ingest.options import MAX_CATEGORIES, Encoding, Splits
from singa_dask.data.ingest.progress import Bar
from singa_dask.data.ingest.repeats import note_repeats
from singa_dask.data.ingest.run import DaskBlock, Report, run_all
from singa_dask.data.ingest.splits import Rules, check_columns, limited
from singa_dask.data.ingest.stage import StagePlan, StagingMemory, stage, unwritable
from singa_dask.data.manifest import FILES_FILE, Manifest
from singa_dask.data.origins import Origins, write_files
from singa_dask.data.shared_files import SharedFiles, check_shared
from singa_dask.data.sources.files import Block, files_of
from singa_dask.data.sources.source import Source
from singa_dask.errors import ConfigError, DataError, NotFinite, Problem
from singa_dask.temporary import in_use

logger = logging.getLogger(__name__)

# Of the parts: those of another version are not used again.
PARTS_VERSION = 7
HELD_NBYTES = 64 << 20  # of parts that stay in the memory of this process
_SHARE = (
    "Write to a folder on a file system that all workers and this process share, or leave out client (--scheduler) "
    "to compute and write in this process."
)
ENCODING_OPTIONS = tuple(entry.name for entry in fields(Encoding))


def write(
    source: Source,
    out: str | Path,
    *,
    client: Any = None,
    nshards: int | None = None,
    window: int | None = None,
    shuffle: bool = True,
    seed: int = 0,
    missing: Any = "error",
    encode: Mapping[str, str | Sequence[str]] | None = None,
    unknown: str = "error",
    max_categories: int = MAX_CATEGORIES,
    like: Manifest | str | Path | None = None,
    outputs: int | None = None,
    places: bool = False,
    overwrite: bool = False,
    progress: bool | None = None,
    durable: bool = True,
    **splits: Any,
) -> dict[str, Manifest]:
    """Write the samples of a source as shards. Returns the manifest of each split. Each block is read once; for groups
    (`Splits`) once before, their columns alone where the source can.

    out: the folder for the shards; with several splits they go to out/train, out/validation and out/test.
    client: of a Dask cluster whose workers do the work; they must share the folder. By default, this process does it.
    nshards: of the training samples; by default they have about 64 MiB. window: samples per window.
    shuffle, seed: write the samples in a random order, which depends on the seed and the blocks only.
    missing: what replaces missing values of features, see `Encoding`. encode, unknown, max_categories: of the columns
        of a table. Fitted on the training samples, and kept in the manifest; the categories are those of all samples.
    like: a folder of shards or its manifest, such as that of the training samples, whose encoders and classes are used
        instead of new ones.
    outputs: of the net that the samples are for: labels that are integers below it keep their numbers. By default,
        the labels become 0, 1, ... if they are other numbers. places: labels are the numbers of the classes even where
        these are called by other numbers.
    progress: show a bar; by default on a terminal.
    splits: validation, test and the other options of `Splits`.
    If it is interrupted and called again, it goes on where it was. Needs room for the samples twice.
    Raises ConfigError for wrong options, DataError for bad samples or a full disk, ClusterError.
    """
    out = Path(out).expanduser().absolute()
    if client is not None:
        check_client(client)
    source = replace(source, outputs=outputs, places=places or source.places)
    source, encode = _labels_among(source, encode or {})
    encoding = Encoding(missing, dict(encode), unknown, max_categories)
    like = Manifest.load(Path(like)) if isinstance(like, str | Path) else like
    if like is None:
        encoding.check(source.x, table=source.table)
    else:
        _check_no_encoding(encoding)
        source, encoding = prepared_like(source, like)
    chosen = Splits.of(splits)
    _check_options(source, seed, shuffle)
    if chosen.given:
        check_columns(chosen, source)
    in_files = client is not None or any(isinstance(block, DaskBlock) for block in source.blocks)  # dear to compute
    memory = None if in_files else StagingMemory(HELD_NBYTES)
    work = _Work(
        source, out, StagePlan(Path(), source, encoding, seed, shuffle, Rules(chosen, source.split, seed=seed), memory)
    )
    remove_leftovers(out, work.others())
    check_free(out, overwrite)
    if client is not None:
        check_shared(client, SharedFiles(files_of(source.blocks), work.path, _SHARE))
    with work.opened():
        try:
            with Bar(progress) as bar:
                size = source.window if window is None else window
                made = _made(work, source, chosen, (nshards, size), like, client, bar, durable=durable)
                _put_in_place(made, out, overwrite, durable)
        except (DataError, ConfigError):
            work.remove()  # another call needs other samples or options
            raise
        except BaseException:
            work.leave()
            raise
        work.remove()
    return {name: replace(manifest, folder=out / name) for name, manifest in made.items()}


def _made(
    work: _Work,
    source: Source,
    splits: Splits,
    sizes: tuple[int | None, int | None],
    like: Manifest | None,
    client: Any,
    bar: Bar,
    *,
    durable: bool,
) -> dict[str, Manifest]:
    """The splits, written in the folder of the work. sizes: the number of shards, and samples per window."""
    work.check_room(source.nbytes)
    work.divide(source, client, bar)
    parts = work.stage(source, client, bar)
    source = replace(source, notes=(*source.notes, *_of_patches(source, parts, splits)))
    origins = Origins([block.spans for block in source.blocks], numbered=source.blocks[0].numbered)
    layout = _layout_of(work.plan, source, parts, *sizes, origins, like)
    made = assemble(layout, work.path, client, bar, trains=like is None, durable=durable)
    if origins.files:
        for manifest in made.values():
            write_files(manifest.path_in(FILES_FILE), origins.files)
    if len(made) > 1:
        bar.begin("comparing", sum(layout.nshards))
        made = note_repeats(made, client, lambda *_: bar.advance(0, 0), durable=durable)
    return made


def _layout_of(plan: StagePlan, source: Source, *options: Any) -> Layout:
    try:
        return make_layout(plan, source, *options)
    except NotFinite as error:
        if not source.cuttings:
            raise
        hint = 'Leave out the patches that hold them: nan="drop" (--nan drop). Or fill them, or mask targets.'
        column, what, count, first, _ = error.args
        if source.cuttings[0].patches.drop:
            hint = (
                'nan="drop" (--nan drop) leaves out missing values alone. Turn these into NaN: '
                "numpy.where(numpy.isfinite(X), X, numpy.nan). Or fill them, or mask targets."
            )
        raise NotFinite(column, what, count, first, hint) from None


def _of_patches(source: Source, parts: Sequence[Part], splits: Splits) -> list[str]:
    """What to say of samples that are patches. Raises DataError if none is left."""
    if not source.cuttings:
        return []
    total, kept = (sum(each.total for each in all_of) for all_of in (source.cuttings, parts))
    if not kept:
        raise DataError(f"{source.name}: each of {total:,} patches holds a missing value. Make patch smaller.")
    overlap, shares = any(each.overlaps for each in source.cuttings), splits.validation + splits.test
    notes = source.cuttings[0].patches.notes(total, kept, shares, overlap)
    for note in notes[kept == total : None if shares else 1]:
        logger.warning("%s.", note)
    return notes


def _labels_among(source: Source, encode: Mapping[str, Any]) -> tuple[Source, Mapping[str, Any]]:
    """The source with those columns of y that hold categories as labels, a list of which are the classes in order; and
    the other columns."""
    labels = {name: how for name, how in encode.items() if name in source.y}
    for name in labels:
        if source.roles.get(name) is Role.TARGET:
            raise ConfigError(Problem("encode", "names a target, which holds numbers", repr(name), "Leave it out."))
    roles = {**source.roles, **dict.fromkeys(labels, Role.LABEL)}
    classes = {**source.classes, **{n: tuple(how) for n, how in labels.items() if not isinstance(how, str)}}
    return replace(source, roles=roles, classes=classes), {n: how for n, how in encode.items() if n not in labels}


def _check_no_encoding(encoding: Encoding) -> None:
    for key in ENCODING_OPTIONS:
        if getattr(encoding, key) != getattr(Encoding(), key):
            hint = "Leave it out: the encoders are those of the other folder."
            raise ConfigError(Problem(key, "cannot be set together with like", repr(getattr(encoding, key)), hint))


def _check_options(source: Source, seed: int, shuffle: bool) -> None:
    if source.ordered and shuffle:
        hint = "Set shuffle to False."
        raise ConfigError(Problem("shuffle", f"the order of the samples of {source.name} matters", "true", hint))
    if not source.blocks:
        raise DataError(f"{source.name}: holds no samples. Check what is read.")
    if seed < 0:
        raise ConfigError(Problem("seed", "must not be negative", str(seed)))
    for name in source.roles:
        if name not in source.y:
            raise ConfigError(Problem("labels", "or targets name a column that y does not have", repr(name)))
    for names in (source.y,) if source.table else (source.x, source.y):
        for name in names if len(names) > 1 else ():  # a single one is called x or y
            if not is_name(name):
                message = f"each of several must be called by {NAME_RULE}, and not . or .."
                raise ConfigError(Problem("columns", message, repr(name), "Rename it in the source."))


class _Work:
    """A folder next to `out` with what is done already. Its name tells source and options."""

    def __init__(self, source: Source, out: Path, plan: StagePlan) -> None:
        told = [
            PARTS_VERSION,
            [block.key for block in source.blocks],
            [source.x, source.y, source.weight, source.mask, source.table],
            [sorted(source.roles.items()), sorted(source.channels.items()), sorted(source.turns.items())],
            [plan.encoding.missing, dict(plan.encoding.encode), plan.seed, plan.shuffle, plan.rules.splits],
        ]
        digest = hashlib.blake2b(json.dumps(told, default=repr).encode(), digest_size=8).hexdigest()
        self.out = out
        self.path = out.parent / f".{out.name}.parts-{digest}"
        self.resumable = not any(block.local for block in source.blocks)
        self.plan = replace(plan, folder=self.path, source=replace(source, blocks=()))

    def others(self) -> list[Path]:
        """The folders of attempts with other samples or options."""
        name = glob.escape(self.path.name.rpartition("-")[0])
        return [path for path in self.path.parent.glob(f"{name}-*") if path != self.path]

    def opened(self) -> AbstractContextManager[None]:
        """Make the folder; inside, this process uses it."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise unwritable(self.path, error) from error
        return in_use(self.path)

    def check_room(self, nbytes: int) -> None:
        """Raises DataError if so many bytes do not fit on the disk, those that are there already included."""
        free = shutil.disk_usage(self.path).free + sum(path.stat().st_size for path in self.path.glob("*.part"))
        if nbytes > free:
            sizes = f"has {free / 1e9:,.1f} GB free, and the samples need {nbytes / 1e9:,.1f} GB, twice"
            raise DataError(f"{self.out}: its disk {sizes}. Free space, or write elsewhere.")

    def divide(self, source: Source, client: Any, bar: Bar) -> None:
        """Find out which groups are in which split, if some are to be."""

        def visit(function: Callable[..., Any], blocks: Sequence[Block]) -> dict[int, Any]:
            bar.begin("finding groups", len(blocks))
            return self._run(function, dict(enumerate(blocks)), client, lambda *_: bar.advance(0, 0))

        if self.plan.rules.splits.given:
            self.plan = replace(self.plan, rules=limited(self.plan.rules, source, visit))

    def stage(self, source: Source, client: Any, bar: Bar) -> list[Part]:
        """The first pass."""
        bar.begin("reading", len(source.blocks))
        done = self._staged()
        for part in done.values():
            bar.advance(part.total, part.nbytes, new=False)
        if done:
            logger.warning("%s: goes on where it was: %s of %s blocks.", self.path, len(done), len(source.blocks))
        left = {index: block for index, block in enumerate(source.blocks) if index not in done}
        done |= self._run(
            partial(stage, self.plan), left, client, lambda _, part: bar.advance(part.total, part.nbytes)
        )
        return [done[index] for index in range(len(source.blocks))]

    def _run(
        self, function: Callable[[int, Block], Any], blocks: Mapping[int, Block], client: Any, report: Report
    ) -> dict[int, Any]:
        names = {index: block.key for index, block in blocks.items()}
        return run_all(function, {index: (index, block) for index, block in blocks.items()}, client, report, names)

    def _staged(self) -> dict[int, Part]:
        """The parts in files that are there and complete."""
        found = {int(path.stem): Part.load(path) for path in self.path.glob("*.part")}
        return {index: part for index, part in found.items() if part is not None}

    def leave(self) -> None:
        """Keep what the same call could resume from, and say so."""
        if self.resumable and self._staged():
            logger.warning("%s: what is done is kept. The same command resumes from there.", self.path)
        else:
            self.remove()

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


def _put_in_place(made: Mapping[str, Manifest], out: Path, overwrite: bool, durable: bool) -> None:
    folders = [manifest.path_in("") for manifest in made.values()]
    whole = folders[0] if "" in made else folders[0].parent
    for folder in {*folders, whole} if durable else ():
        sync(folder)
    check_free(out, overwrite)
    put_folder(whole, out)
    if durable:
        sync(out.parent)
