"""What becomes of one situation in one container."""

from __future__ import annotations

import json
import logging
import re
import tempfile
import warnings
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from gate.containers import CONTAINERS, Container
from gate.samples import SITUATIONS, N, Situation
from singa_dask import Job, Model, layers, load_model, shard, train, updaters
from singa_dask.data import Manifest, ShardFolder
from singa_dask.data.columns import Column, Role
from singa_dask.data.sharding import shard_files
from singa_dask.errors import ConfigError, DataError
from singa_dask.inference.blocks import channels_last
from singa_dask.inference.evaluate import model_of
from singa_dask.inference.run import predict_blocks
from singa_dask.inference.sources import blocks_of
from singa_dask.job import job_to_text
from singa_dask.job.job_pb2 import Phase
from singa_dask.monitor.progress import Display
from singa_dask.training import checkpoint as checkpoints
from singa_dask.training.prepare import prepare

SAME = "same"
CONVERTED = "converted"  # to other features, of which a note warns
DIFFERS = "differs"  # a mistake of the product, as is TRACEBACK
TRACEBACK = "traceback"
CANNOT = "cannot exist"
OUTCOMES = Path(__file__).with_name("outcomes.json")
TABLES, IMAGES = "pandas", "NumPy"  # the containers that others are compared with
QUIET = Display()
_BY_NAME = {container.name: container for container in CONTAINERS}


@dataclass(frozen=True)
class Made:
    """What shards hold: features (N, ...) with the channels last, answers by the name of their class or as numbers,
    weights, the statistics of the features, and how categories were numbered."""

    x: np.ndarray
    y: np.ndarray
    weight: np.ndarray
    moments: np.ndarray
    encoders: str
    notes: tuple[str, ...]


def outcomes() -> dict[str, dict[str, str]]:
    """Of all cells, by container and situation."""
    return {container.name: {s.name: outcome(container, s) for s in SITUATIONS} for container in CONTAINERS}


def outcome(container: Container, situation: Situation) -> str:
    """Of one cell: SAME, refused, CANNOT, or a mistake of the product."""
    needs = situation.needs if situation.images else ("numbers", *situation.needs)
    if why := next((container.lacks[need] for need in needs if need in container.lacks), ""):
        return f"{CANNOT}: {why}"
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.CRITICAL)
        try:
            return _PLAYED[situation.entry](container, situation, Path(folder))
        except (DataError, ConfigError) as error:
            return "refused: " + _plain(str(error), folder)
        except Exception as error:
            return f"{TRACEBACK}: {type(error).__name__}: {_plain(str(error), folder)}"
        finally:
            logging.disable(logging.NOTSET)


def _plain(text: str, folder: str) -> str:
    """A message without what differs between runs: folders, keys, the block that came first, the order of lists."""
    text = " ".join(text.replace(folder + "/", "").split())
    text = re.sub(r" \(In [^.]*\.\)$| The file holds: .*", "", text)
    return re.sub(r"0x[0-9a-f]+|\b[0-9a-f]{32}\b", "...", text)


# Shards


def _shard(container: Container, situation: Situation, folder: Path) -> str:
    made = _made(_sharded(container, situation, folder))
    if _of_reference(situation) == container.name:
        return _noted(SAME, made)
    return compared(made, _reference(situation), _of_reference(situation))


def compared(made: Made, reference: Made | str, name: str) -> str:
    """The outcome of samples that were taken. reference: what the container of this name made of them, or why not."""
    if not (fault := _difference(made, reference, name)):
        return _noted(SAME, made)
    more = set(made.notes) - set(() if isinstance(reference, str) else reference.notes)
    return _noted(CONVERTED, made) if more else f"{DIFFERS}: {fault}"


def _difference(made: Made, reference: Made | str, name: str) -> str:
    if isinstance(reference, str):
        return f"is taken, but {name}: {reference}"
    for what in ("x", "y", "weight") if reference.notes else ("x", "y", "weight", "moments"):
        ours, theirs = getattr(made, what), getattr(reference, what)
        if ours.shape != theirs.shape or not _equal(ours, theirs):
            return f"{what} {_few(ours)} for {_few(theirs)}"
    return "" if made.encoders == reference.encoders else f"encoders {made.encoders} for {reference.encoders}"


def _noted(text: str, made: Made) -> str:
    return text if not made.notes else f"{text}, and noted: {'; '.join(made.notes)}"


def _equal(ours: np.ndarray, theirs: np.ndarray) -> bool:
    if "U" in ours.dtype.kind + theirs.dtype.kind:
        return bool((ours.astype(str) == theirs.astype(str)).all())
    return np.allclose(ours, theirs, rtol=1e-6, atol=1e-6)


def _few(values: np.ndarray) -> str:
    return f"{values.shape} {values.reshape(-1)[:4].tolist()}"


def _sharded(container: Container, situation: Situation, folder: Path) -> Manifest:
    out, options = folder / "shards", dict(situation.options)
    if container.store is not None:
        path, reading = container.store(folder, situation.x, situation.y, situation.weight)
        how: dict[str, Any] = {"in_place": True} if container.in_place else {"shuffle": False}
        (made,) = shard_files(container.format, out, source=path, **reading, **options, **how).values()
        return made
    x, y, weight = container.held(situation.x, situation.y, situation.weight)
    (made,) = shard(x, y, out, sample_weight=weight, shuffle=False, **options).values()
    return made


def _made(manifest: Manifest) -> Made:
    shards = ShardFolder(manifest)

    def values(column: Column) -> np.ndarray:
        read = [shards.reader(i).column(column.name) for i in range(len(manifest.shards))]
        return channels_last(np.concatenate(read).reshape(-1, *column.shape), column)

    features = [column for column in manifest.columns if column.role is Role.FEATURE]
    parts = [values(column).astype(np.float32) for column in features]
    x = parts[0] if len(parts) == 1 and parts[0].ndim > 2 else np.column_stack(parts)
    answers = [column for column in manifest.columns if column.role in (Role.LABEL, Role.TARGET)]
    named = [np.array(c.classes)[values(c)] if isinstance(c.classes, tuple) else values(c) for c in answers]
    weights = [values(column) for column in manifest.columns if column.role is Role.WEIGHT]
    return Made(
        x,
        np.column_stack(named) if named else np.zeros(0),
        weights[0] if weights else np.zeros(0),
        np.array([[*column.mean, *column.std] for column in features])
        .reshape(len(features), 2, -1)
        .swapaxes(0, 1)
        .reshape(2, -1),
        json.dumps([each.to_json() for each in manifest.encoders if each.kind != "number"]),
        manifest.notes,
    )


def _of_reference(situation: Situation) -> str:
    return IMAGES if situation.images else TABLES


@cache
def _kept_reference(index: int) -> Made | str:
    return taken(_BY_NAME[_of_reference(SITUATIONS[index])], SITUATIONS[index])


def taken(container: Container, situation: Situation) -> Made | str:
    """What becomes of samples, or why they are refused."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            return _made(_sharded(container, situation, Path(folder)))
        except (DataError, ConfigError) as error:
            return "refused: " + _plain(str(error), folder)


def _reference(situation: Situation) -> Made | str:
    return _kept_reference(_index(situation))


def _index(situation: Situation) -> int:
    return next(i for i, each in enumerate(SITUATIONS) if each is situation)


# Predictions


def _predict(container: Container, situation: Situation, folder: Path) -> str:
    model = _model(situation)
    try:
        expected: Any = _predicted(model, _BY_NAME[_of_reference(situation)], situation, folder / "reference")
    except (DataError, ConfigError) as error:
        expected = str(error)
    found = _predicted(model, container, situation, folder)
    if isinstance(expected, str):
        return f"{DIFFERS}: is taken, but {_of_reference(situation)} is refused: {expected}"
    if found.shape != expected.shape or not np.allclose(found, expected, rtol=1e-5, atol=1e-4, equal_nan=True):
        return f"{DIFFERS}: {_few(found)} for {_few(expected)}"
    return SAME


def _predicted(model: Model, container: Container, situation: Situation, folder: Path) -> np.ndarray:
    if container.store is None:
        held = container.held(situation.new, None, None)[0]
        predicted = model.predict(held)
        return np.asarray(predicted.compute() if hasattr(predicted, "compute") else predicted)
    folder.mkdir(exist_ok=True)
    path, reading = container.store(folder, situation.new, None, None)
    if container.in_place:
        reading = {key: value for key, value in reading.items() if value is not None}
        shard_files(container.format, folder / "new", source=path, in_place=True, **reading)
        path, reading = folder / "new", {}
    x = () if not situation.images else tuple(reading.get("x") or ())
    predict_blocks(model, blocks_of(model, str(path), x), folder / "out.h5")
    with h5py.File(folder / "out.h5") as out:
        group = out[next(iter(model.outputs))]
        return np.asarray(group["probabilities" if "probabilities" in group else "prediction"])


def _model(situation: Situation) -> Model:
    """A linear net over samples like those of the situation, in which every column has another weight."""
    return _kept_model(next(i for i, each in enumerate(SITUATIONS) if each.x is situation.x))


_FOLDERS: list[tempfile.TemporaryDirectory] = []


@cache
def _kept_model(index: int) -> Model:
    situation = SITUATIONS[index]
    _FOLDERS.append(tempfile.TemporaryDirectory())
    folder = Path(_FOLDERS[-1].name)
    _sharded(_BY_NAME[_of_reference(situation)], situation, folder)
    net = _net(situation, path=str(folder / "shards"), batchsize=8)
    job = Job(name="gate", layers=net, updater=updaters.SGD(lr=0.1), train_steps=1, seed=5)
    prepared = prepare(job, phases=[Phase.kTest])
    state = {
        name: np.arange(1, array.size + 1, dtype=np.float32).reshape(array.shape) / array.size
        for name, array in Model(prepared.job.neuralnet, seed=5).state_dict().items()
    }
    saved = checkpoints.Checkpoint(
        1, 5, job_to_text(prepared.job), state, described=prepared.described, code=prepared.code
    )
    path = checkpoints.save(saved, checkpoints.path_of(folder / "run" / "checkpoint", 1))
    return model_of(prepared.job, prepared.code, path)


# Training


def _train(container: Container, situation: Situation, folder: Path) -> str:
    expected = _trained_reference(_index(situation))
    found = _trained(container, situation, folder)
    return (
        SAME
        if np.allclose(found, expected, rtol=1e-4, atol=1e-5)
        else f"{DIFFERS}: {_few(found)} for {_few(expected)}"
    )


def _trained(container: Container, situation: Situation, folder: Path) -> np.ndarray:
    """The parameters after two steps over all samples, whose order then does not matter."""
    data: Any = folder / "shards"
    if container.store is not None:
        _sharded(container, situation, folder)
    else:
        data = tuple(each for each in container.held(situation.x, situation.y, situation.weight) if each is not None)
    job = Job(name="gate", layers=_net(situation, batchsize=N), updater=updaters.SGD(lr=0.01), train_steps=2, seed=5)
    result = train(job, data=data, processes=False, workspace=folder / "run", curves=False, display=QUIET)
    return np.concatenate([each.ravel() for _, each in sorted(load_model(result.workspace).state_dict().items())])


@cache
def _trained_reference(index: int) -> np.ndarray:
    situation = SITUATIONS[index]
    with tempfile.TemporaryDirectory() as folder:
        return _trained(_BY_NAME[_of_reference(situation)], situation, Path(folder))


def _net(situation: Situation, **store: Any) -> tuple[Any, ...]:
    """A linear net for the answers of a situation."""
    classes = np.ndim(situation.y) == 1 and np.asarray(situation.y).dtype.kind in "iO"
    last = layers.SoftmaxLoss() if classes else layers.EuclideanLoss()
    return layers.RecordInput(**store), layers.InnerProduct(num_output=4 if classes else 1), last


_PLAYED = {"shard": _shard, "train": _train, "predict": _predict}
ENTRIES = tuple(_PLAYED)
