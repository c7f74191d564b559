"""Checkpoints: HDF5 files that h5py can read, written atomically and verified by hash when loaded.

    /parameters/<name>            values
    /updater/<state>/<name>       the updater's state, parameter by parameter
    /carried/<layer>/<number>     state of recurrent layers for the next mini-batch, one row per row
    /unsent/rank <r>/<name>       residual of a rank's codec, of its gradients
    /unsent/pushes/<name>         residual of the codec of gradients sent to servers
    /unsent/values/<name>         the values that all ranks have, which differ from the servers' by these' residuals
    /ledgers                      which gradients the parameters contain, as JSON, one row per worker
    /job                          the job, as text
    /described                    columns and encoders of the input layers, as JSON
    /code                         the user's own code, a CodeBundle
    /decisions                    what evaluations have decided so far, as JSON
    attributes                    format, step, seed, data (fingerprints, JSON), run (its id), sha256

The loader's position is the step: the samples of mini-batch k are a function of (data, seed, k) alone.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from operator import index
from pathlib import Path
from typing import Any, TypeAlias
from zlib import crc32

import numpy as np

from singa_dask.data.folders import sync
from singa_dask.errors import CheckpointError, reason, way_out
from singa_dask.exchange.sharded import Gathered
from singa_dask.files import FILE, FOLDER, NotAFile, kind_of, replacing
from singa_dask.job.code_bundle import CodeBundle
from singa_dask.job.job_pb2 import Phase
from singa_dask.memory.owner import CHECKPOINT, Owner, Saved, Version
from singa_dask.server.ledger import Ledger
from singa_dask.training import checkpoint_file
from singa_dask.training.checkpoint_file import SavedArray
from singa_dask.training.feed import data_key
from singa_dask.training.saving_host import saved_elsewhere
from singa_dask.updaters import EMA

logger = logging.getLogger(__name__)

FORMAT = "singa_dask checkpoint 1"
BEST = "best.h5"
UNFINISHED = ".*.h5.*.tmp"
_NAME = re.compile(r"step-(\d+)\.h5")


# By parameter: its shape, and the names of the updater's arrays for it.
Contents: TypeAlias = Mapping[str, tuple[tuple[int, ...], tuple[str, ...]]]


@dataclass
class Checkpoint:
    """Everything that a run needs to continue as if it had never stopped.

    step: completed training steps. data: fingerprints of the order of samples, by phase and input layer. carried:
    state of recurrent layers, by layer. residuals: those of codecs, by "rank <r>", of "pushes" to servers, and all
    ranks' "values". ledgers: of the workers' slices. Arrays are whole: saved ones if it was loaded, Gathered ones of a
    group that saves it. described: columns and encoders of the data, by input layer, as JSON (`Manifest.description`).
    code: the user's, of the net. decisions: the state of Decisions. run: the id of the run, "" if it is of none.
    """

    step: int
    seed: int
    job: str
    parameters: Mapping[str, Any]
    updater: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    data: Mapping[str, str] = field(default_factory=dict)
    carried: Mapping[str, list[Any]] = field(default_factory=dict)
    residuals: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    ledgers: Any = None
    described: Mapping[str, str] = field(default_factory=dict)
    code: CodeBundle | None = None
    decisions: Mapping[str, Any] = field(default_factory=dict)
    run: str = ""

    @property
    def ledger(self) -> Ledger:
        """Which gradients the parameters contain."""
        texts = [] if self.ledgers is None else [row.tobytes() for row in np.asarray(self.ledgers)]
        return Ledger.joint(Ledger.decode(json.loads(text)) for text in texts if text.strip())

    @property
    def contents(self) -> Contents:
        """Of which parameters it is, and what it has of them."""

        def states(name: str, shape: tuple[int, ...]) -> tuple[str, ...]:
            return tuple(sorted(of for of, its in self.updater.items() if name in its and its[name].shape == shape))

        return {name: (array.shape, states(name, array.shape)) for name, array in self.parameters.items()}

    @property
    def trained(self) -> Mapping[str, Any]:
        """The parameters that evaluations and predictions use: their moving averages, if the updater keeps them."""
        return self.updater.get(EMA, self.parameters)

    @property
    def own_nbytes(self) -> int:
        """Bytes of this rank's shards of what is gathered."""
        return sum(array.own_nbytes for array in _arrays(self).values() if isinstance(array, Gathered))

    def taken(self) -> Checkpoint:
        """The same with copies of this rank's shards as they are now."""
        copies = {id(array): array.taken() for array in _arrays(self).values() if isinstance(array, Gathered)}

        def taken(found: Any) -> Any:
            if isinstance(found, Mapping):
                return {name: taken(each) for name, each in found.items()}
            return [taken(each) for each in found] if isinstance(found, list) else copies.get(id(found), found)

        kinds = ("parameters", "updater", "carried", "residuals", "ledgers")
        return replace(self, **{kind: taken(getattr(self, kind)) for kind in kinds})


def path_of(folder: Path, step: int) -> Path:
    """The path of the checkpoint after `step` steps."""
    return folder / f"step-{step:08d}.h5"


def save(checkpoint: Checkpoint, path: Path) -> Path:
    """Write a checkpoint to a temporary file, sync it, and rename it, so that readers never see a partial file.

    Arrays that are gathered come block by block from the other ranks, which `contribute`. So must this one if saving
    fails: others wait for it.
    Raises CheckpointError (disk full, no permission); the temporary file is removed.
    """
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            write(checkpoint, temporary)
            sync(temporary)
        sync(path.parent)
    except checkpoint_file.DiskFull as error:
        raise CheckpointError(f"{path}: {error}. Free space or choose another --workspace.") from error
    except OSError as error:
        raise CheckpointError(f"{path}: could not be written: {error}. Choose another --workspace.") from error
    return path


def write(checkpoint: Checkpoint, path: Path) -> None:
    """Write a checkpoint to a file, as `save` does to its temporary file."""
    attributes = {
        "format": FORMAT,
        "step": checkpoint.step,
        "seed": np.uint64(checkpoint.seed),
        "data": json.dumps(dict(checkpoint.data), sort_keys=True),
        "run": checkpoint.run,
    }
    checkpoint_file.write(path, attributes, _arrays(checkpoint))


def nbytes_of(checkpoint: Checkpoint) -> int:
    """Bytes of its file, about."""
    return checkpoint_file.nbytes_of(_arrays(checkpoint))


def contribute(checkpoint: Checkpoint) -> None:
    """Take part in gathering what is left of a checkpoint that the first rank saves."""
    for array in _arrays(checkpoint).values():
        if isinstance(array, Gathered):
            deque(array.blocks(), maxlen=0)


def load(path: Path) -> Checkpoint:
    """Read a checkpoint and verify its hash.

    Raises CheckpointError if the file is missing, not a checkpoint, truncated or changed.
    """
    path = Path(path)
    try:
        loaded = _checkpoint(*checkpoint_file.read(path, FORMAT))
        _ = loaded.ledger  # it is JSON, too
        return loaded
    except FileNotFoundError:
        raise CheckpointError(f"{path}: checkpoint not found.") from None
    except NotAFile as error:
        raise CheckpointError(f"{path}: is {error.kind}, not a checkpoint.") from None
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from None
    except Exception as error:  # the file may hold anything
        help_ = way_out(error, "Use an older one.")
        raise CheckpointError(f"{path}: not a readable checkpoint ({reason(error)}). {help_}") from error


def _checkpoint(attributes: Mapping[str, Any], arrays: Mapping[str, SavedArray]) -> Checkpoint:
    """The checkpoint in a file. Raises what it likes where the file holds something else."""
    kinds: dict[str, dict[str, SavedArray]] = {"parameters": {}, "updater": {}, "carried": {}, "unsent": {}}
    for key, array in arrays.items():
        kind, _, name = key.partition("/")
        kinds.setdefault(kind, {})[name] = array
    carried: dict[str, list[SavedArray]] = {}
    for name, array in kinds["carried"].items():
        carried.setdefault(name.rpartition("/")[0], []).append(array)
    return Checkpoint(
        step=index(attributes["step"]),
        seed=index(attributes["seed"]),
        job=_bytes(arrays["job"]).decode(),
        parameters=kinds["parameters"],
        updater=_by_first(kinds["updater"]),
        data=_fields(attributes["data"]),
        carried=carried,
        residuals=_by_first(kinds["unsent"]),
        ledgers=arrays.get("ledgers"),
        described=_fields(_bytes(arrays["described"])) if "described" in arrays else {},
        code=CodeBundle.from_bytes(_bytes(arrays["code"])) if "code" in arrays else None,
        decisions=_fields(_bytes(arrays["decisions"])) if "decisions" in arrays else {},
        run=str(attributes.get("run", "")),
    )


def _fields(text: str | bytes) -> dict[str, Any]:
    fields = json.loads(text)
    if not isinstance(fields, dict):
        raise TypeError(f"{type(fields).__name__} in the place of a JSON object")
    return fields


def intact(path: Path, run: str) -> bool:
    """Whether the file is a valid checkpoint of this run."""
    try:
        return load(path).run == run
    except CheckpointError:
        return False


def keep_newest(folder: Path, count: int, step: int) -> None:
    """Of the checkpoints of at most `step` steps, remove those of the fewest until `count` are left, besides the best
    one. Those of more steps stay: the run has resumed from an earlier one, so they are damaged."""
    steps = {path: steps for path, steps in _numbered(folder).items() if steps <= step}
    for path in sorted(steps, key=lambda path: steps[path])[:-count]:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:  # what was saved counts
            logger.warning("%s: could not be removed: %s", path, error)


@dataclass(frozen=True)
class Found:
    """A valid checkpoint without its arrays: its completed steps, and what it is of. copies: where it is, in a file or
    in the memory of nannies."""

    step: int
    data: Mapping[str, str]
    contents: Contents
    decisions: Mapping[str, Any] = field(default_factory=dict)
    job: str = ""
    ledger: Ledger = field(default_factory=Ledger)
    copies: tuple[Saved, ...] = ()

    @property
    def path(self) -> Path:
        """The file."""
        return Path(self.copies[0].holder)

    @property
    def in_memory(self) -> bool:
        """Whether it is in the memory of nannies."""
        return any(copy.regions for copy in self.copies)


def contents_of(shapes: Mapping[str, tuple[int, ...]], states: Iterable[str] = ()) -> Contents:
    """Of a job whose updater has the same arrays for each parameter."""
    return {name: (shape, tuple(sorted(states))) for name, shape in shapes.items()}


def misfits(saved: Contents, wanted: Contents) -> list[str]:
    """The differences between what is `saved` in a checkpoint and what a job has."""
    faults = []
    for name in sorted(saved.keys() | wanted.keys()):
        (shape, states), (other, others) = (of.get(name, ("none", ())) for of in (saved, wanted))
        if shape != other:
            faults.append(f"parameter {name!r}: {shape} in the checkpoint, {other} in this job")
        elif states != others:
            said = (", ".join(of) or "none" for of in (states, others))
            faults.append("updater state: {} in the checkpoint, {} in this job".format(*said))
    return list(dict.fromkeys(faults))


def newest(folder: Path) -> tuple[Found | None, list[str]]:
    """The valid checkpoint with the most steps in `folder`, maybe the best one, and the faults of newer ones."""
    steps = _numbered(folder)
    faults: list[str] = []
    best = Path(folder) / BEST
    found = _valid(best, faults) if os.path.lexists(best) else None
    for path in sorted(steps, key=lambda path: steps[path], reverse=True):
        if found is not None and found.step > steps[path]:
            break
        if checkpoint := _valid(path, faults):
            return checkpoint, faults
    return found, faults


def _numbered(folder: Path) -> dict[Path, int]:
    """The checkpoints after so many steps."""
    return {p: int(name[1]) for p in Path(folder).glob("step-*.h5") if (name := _NAME.fullmatch(p.name))}


def _valid(path: Path, faults: list[str]) -> Found | None:
    """A checkpoint, unless it is not valid, which is added to `faults`."""
    try:
        return found(path)
    except CheckpointError as error:
        faults.append(str(error))
        return None


def found(path: Path) -> Found:
    """The checkpoint in a file. Raises CheckpointError as `load` does."""
    checkpoint = load(path)
    of = checkpoint.data, checkpoint.contents, checkpoint.decisions, checkpoint.job, checkpoint.ledger
    found = Found(checkpoint.step, *of)
    version = Version(checkpoint.run, 0, checkpoint.step)
    where = Saved(Owner(CHECKPOINT), version, (), model_of(found.contents, found.data), found, str(path))
    return replace(found, copies=(where,))


def model_of(contents: Contents, data: Mapping[str, str]) -> int:
    """The same for state that groups of any size can resume from. data: fingerprints; those of training count."""
    training = sorted((key, value) for key, value in data.items() if key.startswith(data_key(Phase.kTrain, "")))
    return crc32(repr((sorted(contents.items()), training)).encode())


def find(where: Path) -> Path:
    """`where` itself, or the checkpoint of the workspace or folder `where`: the best one if the job keeps it
    (`keep_best`), else the newest valid one.

    Raises CheckpointError if there is none.
    """
    if (kind := kind_of(where)) == FILE:
        return where
    if kind not in (None, FOLDER):
        raise CheckpointError(f"{where}: is {kind}, neither a checkpoint nor the folder of a run.")
    for folder in (where / "checkpoint", where):
        if os.path.lexists(folder / BEST):
            return folder / BEST
        found, faults = newest(folder)
        if found:
            return found.path
        if faults:
            raise CheckpointError("No valid checkpoint: " + " ".join(faults))
    way_out = saved_elsewhere(where) or "Give the folder of a run, a .h5 or a .safetensors file."
    raise CheckpointError(f"{where}: no checkpoint found. {way_out}")


def _arrays(checkpoint: Checkpoint) -> dict[str, Any]:
    """All arrays by their names in the file, each parameter followed by its updater state."""
    kinds = {"parameters": checkpoint.parameters, **{f"updater/{key}": of for key, of in checkpoint.updater.items()}}
    names = dict.fromkeys(name for of_kind in kinds.values() for name in of_kind)
    arrays = {f"{kind}/{name}": of_kind[name] for name in names for kind, of_kind in kinds.items() if name in of_kind}
    for layer, carried in checkpoint.carried.items():
        for i, value in enumerate(carried):
            arrays[f"carried/{layer}/{i}"] = value
    for key, kept in checkpoint.residuals.items():
        for name, value in kept.items():
            arrays[f"unsent/{key}/{name}"] = value
    if checkpoint.ledgers is not None:  # known once the parameters were gathered
        arrays["ledgers"] = checkpoint.ledgers
    # A long text would exceed HDF5's limit of 64 KB for attributes.
    texts = {"job": checkpoint.job.encode()}
    for name in ("described", "decisions"):
        texts[name] = json.dumps(dict(getattr(checkpoint, name))).encode()
    if checkpoint.code:
        texts["code"] = checkpoint.code.to_bytes()
    return arrays | {name: np.frombuffer(text or b" ", np.uint8) for name, text in texts.items()}


def ledger_row(ledger: Ledger) -> np.ndarray:
    """A ledger as a row of `Checkpoint.ledgers`."""
    return np.frombuffer(json.dumps(ledger.encode()).encode(), np.uint8)


def _bytes(array: SavedArray) -> bytes:
    return np.asarray(array).tobytes()


def _by_first(arrays: Mapping[str, SavedArray]) -> dict[str, dict[str, SavedArray]]:
    """The arrays by the first part of their names, then by the rest."""
    found: dict[str, dict[str, SavedArray]] = {}
    for key, array in arrays.items():
        first, _, rest = key.partition("/")
        found.setdefault(first, {})[rest] = array
    return found
