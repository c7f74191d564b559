"""Checkpoints: HDF5 files that h5py can read, written atomically and verified by hash when loaded.

    /parameters/<name>            values
    /updater/<state>/<name>       the updater's state, parameter by parameter
    /carried/<layer>/<number>     state of recurrent layers for the next mini-batch, one row per row
    /unsent/rank <r>/<name>       residual of a rank's codec; /unsent/values/<name>: the values that all ranks have;
                                  the servers' values differ from them by the servers' residuals
    attributes                    format, step, seed, job (text), data (fingerprints, JSON), sha256

The loader's position is the step: the samples of mini-batch k are a function of (data, seed, k) alone.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path

import h5py
import numpy as np

from singa_dask.data.writer import sync
from singa_dask.errors import CheckpointError

FORMAT = "singa_dask checkpoint 1"
UNFINISHED = ".step-*.tmp"
_NAME = re.compile(r"step-(\d+)\.h5")


@dataclass
class Checkpoint:
    """Everything that a run needs to continue as if it had never stopped.

    step: completed training steps. data: fingerprints of the order of samples, by phase and input layer. carried:
    state of recurrent layers, by layer. residuals: those of codecs, by "rank <r>", and all ranks' "values".
    """

    step: int
    seed: int
    job: str
    parameters: Mapping[str, np.ndarray]
    updater: Mapping[str, Mapping[str, np.ndarray]] = field(default_factory=dict)
    data: Mapping[str, str] = field(default_factory=dict)
    carried: Mapping[str, list[np.ndarray]] = field(default_factory=dict)
    residuals: Mapping[str, Mapping[str, np.ndarray]] = field(default_factory=dict)


def path_of(folder: Path, step: int) -> Path:
    """The path of the checkpoint after `step` steps."""
    return folder / f"step-{step:08d}.h5"


def save(checkpoint: Checkpoint, path: Path) -> Path:
    """Write a checkpoint to a temporary file, sync it, and rename it, so that readers never see a partial file.

    Raises CheckpointError (disk full, no permission); the temporary file is removed.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        image = _image(checkpoint)
        with open(temporary, "wb") as file:
            file.write(image)
        sync(temporary)
        os.replace(temporary, path)
        sync(path.parent)
    except OSError as error:
        raise CheckpointError(
            f"{path}: could not be written: {error}. Free space or choose another --workspace."
        ) from error
    finally:
        temporary.unlink(missing_ok=True)
    return path


def load(path: Path) -> Checkpoint:
    """Read a checkpoint and verify its hash.

    Raises CheckpointError if the file is missing, not a checkpoint, truncated or changed.
    """
    path = Path(path)
    if not path.is_file():
        raise CheckpointError(f"{path}: checkpoint not found.")
    try:
        with h5py.File(path, "r") as file:
            return _read(file, path)
    except (OSError, KeyError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"{path}: not a readable checkpoint ({error}). Use an older one.") from error


def intact(path: Path) -> bool:
    """Whether the file is a valid checkpoint."""
    try:
        load(path)
    except CheckpointError:
        return False
    return True


def load_parameters(paths: Iterable[str]) -> dict[str, np.ndarray]:
    """The parameters of several checkpoints (files or workspaces). Later ones override earlier ones."""
    parameters: dict[str, np.ndarray] = {}
    for path in paths:
        parameters.update(load(find(Path(path))).parameters)
    return parameters


def fitting(
    given: Mapping[str, np.ndarray], shapes: Mapping[str, tuple[int, ...]], drawn: Set[str]
) -> dict[str, np.ndarray]:
    """The given parameters that initialise a net, matched by name.

    shapes: of the net's parameters; drawn: names of those with an `init` block, which need no given value. Raises
    CheckpointError with everything that is missing or has the wrong shape.
    """
    missing = [name for name in shapes if name not in given and name not in drawn]
    unused = [name for name in given if name not in shapes]
    faults = [
        f"{name} has shape {given[name].shape}, in this net {shape}"
        for name, shape in shapes.items()
        if name in given and given[name].shape != shape
    ]
    if missing:
        faults.append(f"neither given nor initialised by an init block: {', '.join(missing)}")
    if not faults and not given.keys() & shapes.keys():
        faults.append(f"none belongs to this net, which has {', '.join(shapes)}")
    if faults:
        rest = [f"not in this net: {', '.join(unused)}"] if unused else []
        raise CheckpointError(f"checkpoint_path: its parameters do not fit. {'; '.join([*faults, *rest])}.")
    return {name: given[name] for name in shapes if name in given}


@dataclass(frozen=True)
class Found:
    """A valid checkpoint: its path, its completed steps, and its contents without arrays."""

    path: Path
    step: int
    data: Mapping[str, str]
    shapes: Mapping[str, tuple[int, ...]]
    updater_state: tuple[str, ...]


def misfits(saved: Mapping[str, tuple[int, ...]], wanted: Mapping[str, tuple[int, ...]]) -> list[str]:
    """The differences between the shapes `saved` in a checkpoint and those `wanted` by a net."""
    return [
        f"parameter {name!r}: {saved.get(name, 'none')} in the checkpoint, {wanted.get(name, 'none')} in this job"
        for name in sorted(saved.keys() | wanted.keys())
        if saved.get(name) != wanted.get(name)
    ]


def newest(folder: Path) -> tuple[Found | None, list[str]]:
    """The valid checkpoint with the most steps in `folder`, and the faults of newer ones."""
    found = sorted(
        (p for p in Path(folder).glob("step-*.h5") if _NAME.fullmatch(p.name)),
        key=lambda p: int(_NAME.fullmatch(p.name)[1]),  # type: ignore[index]
        reverse=True,
    )
    faults: list[str] = []
    for path in found:
        try:
            checkpoint = load(path)
            shapes = {name: value.shape for name, value in checkpoint.parameters.items()}
            return Found(path, checkpoint.step, checkpoint.data, shapes, tuple(checkpoint.updater)), faults
        except CheckpointError as error:
            faults.append(str(error))
    return None, faults


def find(where: Path) -> Path:
    """`where` itself, or the newest valid checkpoint in the workspace or folder `where`.

    Raises CheckpointError if there is none.
    """
    if where.is_file():
        return where
    for folder in (where / "checkpoint", where):
        found, faults = newest(folder)
        if found:
            return found.path
        if faults:
            raise CheckpointError("No valid checkpoint: " + " ".join(faults))
    raise CheckpointError(f"{where}: no checkpoint found. Give the workspace of a run, or a .h5 file.")


def _image(checkpoint: Checkpoint) -> bytes:
    """The bytes of the file, built in memory: on a full disk HDF5 would fail half-way or crash."""
    with h5py.File("checkpoint", "w", driver="core", backing_store=False) as file:
        _write(file, checkpoint)
        file.flush()
        return file.id.get_file_image()


def _write(file: h5py.File, checkpoint: Checkpoint) -> None:
    for name, value in checkpoint.parameters.items():
        file.create_dataset(f"parameters/{name}", data=value)
    for state, arrays in checkpoint.updater.items():
        for name, value in arrays.items():
            file.create_dataset(f"updater/{state}/{name}", data=value)
    for layer, carried in checkpoint.carried.items():
        for i, value in enumerate(carried):
            file.create_dataset(f"carried/{layer}/{i}", data=value)
    for key, arrays in checkpoint.residuals.items():
        for name, value in arrays.items():
            file.create_dataset(f"unsent/{key}/{name}", data=value)
    file.attrs["format"] = FORMAT
    file.attrs["step"] = checkpoint.step
    file.attrs["seed"] = np.uint64(checkpoint.seed)
    file.attrs["data"] = json.dumps(dict(checkpoint.data), sort_keys=True)
    # A long text would exceed HDF5's limit of 64 KB for attributes.
    file.create_dataset("job", data=np.frombuffer(checkpoint.job.encode() or b" ", np.uint8))
    file.attrs["sha256"] = _digest(file)


def _read(file: h5py.File, path: Path) -> Checkpoint:
    if file.attrs.get("format") != FORMAT:
        raise CheckpointError(f"{path}: format {file.attrs.get('format')!r}, expected {FORMAT!r}.")
    if file.attrs.get("sha256") != _digest(file):
        raise CheckpointError(
            f"{path}: its contents do not match its hash: the file was changed or damaged. Use an older checkpoint."
        )
    arrays = _arrays(file)
    parameters: dict[str, np.ndarray] = {}
    updater: dict[str, dict[str, np.ndarray]] = {}
    carried: dict[str, list[np.ndarray]] = {}
    residuals: dict[str, dict[str, np.ndarray]] = {}
    for key, dataset in arrays.items():
        kind, _, name = key.partition("/")
        if kind == "parameters":
            parameters[name] = dataset[()]
        elif kind == "updater":
            state, _, name = name.partition("/")
            updater.setdefault(state, {})[name] = dataset[()]
        elif kind == "carried":
            carried.setdefault(name.rpartition("/")[0], []).append(dataset[()])
        elif kind == "unsent":
            key, _, name = name.partition("/")
            residuals.setdefault(key, {})[name] = dataset[()]
    return Checkpoint(
        step=int(file.attrs["step"]),
        seed=int(file.attrs["seed"]),
        job=arrays["job"][()].tobytes().decode(),
        parameters=parameters,
        updater=updater,
        data=json.loads(file.attrs["data"]),
        carried=carried,
        residuals=residuals,
    )


def _arrays(file: h5py.File) -> dict[str, h5py.Dataset]:
    found: dict[str, h5py.Dataset] = {}

    def visit(name: str, item: object) -> None:
        if isinstance(item, h5py.Dataset):
            if item.is_virtual or item.external:
                raise CheckpointError(f"{file.filename}: {name} is stored outside the file. Use an older checkpoint.")
            found[name] = item

    file.visititems(visit)  # sorted by name; never follows soft or external links
    return found


def _digest(file: h5py.File) -> str:
    digest = hashlib.sha256()
    for key in ("format", "step", "seed", "data"):
        digest.update(f"{key}={file.attrs[key]}\n".encode())
    for name, dataset in _arrays(file).items():
        digest.update(f"{name} {dataset.dtype.str} {dataset.shape}\n".encode())
        digest.update(np.ascontiguousarray(dataset[()]).data.cast("B") if dataset.size else b"")
    return digest.hexdigest()
