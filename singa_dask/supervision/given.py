"""Data that are given to `train`: they become shards, and the job's input layers without a path read them."""

from __future__ import annotations

import logging
import math
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from singa_dask.data import Manifest, make_stream, resolve
from singa_dask.data.columns import Column, Role
from singa_dask.data.containers import is_lazy
from singa_dask.data.ingest.collections import shard
from singa_dask.data.labelled import first_array, is_labelled
from singa_dask.data.native import check_at_hand
from singa_dask.errors import ConfigError, DataError, Problem
from singa_dask.job import Job, runs_in
from singa_dask.job.job_pb2 import JobProto, LayerProto, LayerType, Phase, StoreProto
from singa_dask.job.outputs import outputs_for_classes
from singa_dask.job.stores import reads_windows
from singa_dask.job.text_paths import text_of
from singa_dask.job.user_code import code_name, searching
from singa_dask.layers import layer_class
from singa_dask.layers.base import LossLayer
from singa_dask.layers.formula import Loss

if TYPE_CHECKING:
    from distributed import Client

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Arrays:
    """(X, y) or (X, y, sample_weight). options: of `shard`. epochs: how often training reads its samples, in place of
    the steps of the job."""

    x: Any
    y: Any
    weight: Any = None
    options: Mapping[str, Any] = field(default_factory=dict)
    epochs: int | None = None

    def write(
        self,
        out: Path,
        client: Client | None,
        like: Manifest | None,
        *,
        in_order: bool,
        outputs: int | None,
        labels: bool,
        binary: bool,
    ) -> Manifest:
        """outputs: of the net for classes, if it says their number. labels: whether y are classes in any case. binary:
        whether True and False are targets, 1 and 0."""
        options = {"client": client, "sample_weight": self.weight, "overwrite": True, "like": like}
        options |= {"outputs": outputs, "labels": labels, "shuffle": not in_order}
        options |= {"targets": binary and str(getattr(self.y, "dtype", "")) == "bool", **self.options}
        return next(iter(shard(self.x, self.y, out, **options).values()))


WEIGHTS = "sample_weight"
# Of a store_conf: which samples it reads, besides the batchsize.
_SAME_SAMPLES = ("backend", "path", "shuffle", "random_skip", "validation_share")


def with_data(job: Job, data: Any, validation: Any, folder: Callable[[], Path], client: Client | None) -> Job:
    """The job whose input layers without a path read the given data.

    data: a folder of shards, a named data set, or (X, y) or (X, y, sample_weight) as `shard` takes them; where they
    have weights, the losses read these. Their order is kept if the job reads sequences. y are classes if an input
    layer has a label_shape. validation: the same, or the share of the data that is held out, by default the
    validation_share of the layers. folder: returns where shards are written.

    Raises ConfigError where the job has no such layer, and what `shard` raises.
    """
    if not any(_is_open(layer) and runs_in(layer, Phase.kTrain) for layer in job.proto.neuralnet.layer):
        hint = "Leave out the path of a kRecordInput: store_conf { batchsize: 64 }."
        raise ConfigError(Problem("data", "no input layer takes them: all have a path", hint=hint))
    stores = [layer.store_conf for layer in job.proto.neuralnet.layer if _is_open(layer)]
    share = _share_of(validation, stores)
    in_order = any(store.sequence for store in stores)
    how: dict[str, Any] = {"in_order": in_order, "outputs": outputs_for_classes(job.proto.neuralnet.layer)}
    how["labels"] = any(store.label_shape for store in stores)
    how["binary"] = LayerType.kBCELoss in {layer.type for layer in job.proto.neuralnet.layer} and not how["outputs"]
    sets = {"data": data} if share or validation is None else {"data": data, "validation": validation}
    weighted = any(map(_has_weights, sets.values()))
    written: dict[str, Path] = {}
    for what, each in sets.items():
        like = Manifest.load(written["data"]) if written else None
        written[what] = _written(_as_weighted(each) if weighted else each, what, folder, client, like, **how)
    training = written["data"]
    held_out = training if share else written.get("validation")
    factors = {what: factor_of(Manifest.load(path)) for what, path in written.items()}
    weight = factors["data"] and factors["data"].name
    for what, factor in factors.items():
        if (factor and factor.name) != weight:
            one, other = (f"the {each.role} {each.name!r}" if each else "none" for each in (factors["data"], factor))
            hint = "Write the shards of both with them, for example weights of 1, or of both without."
            raise ConfigError(Problem(what, f"has {other}, and data {one}, which losses count in both", hint=hint))
    layers: list[LayerProto] = []
    for layer in job.proto.neuralnet.layer:
        layers += _reading(layer, training, held_out, share) if _is_open(layer) else [_copied(layer)]
    if weight and in_order:
        message = f"has the weights {weight!r}, which count single records, and the job reads sequences of these"
        raise ConfigError(Problem("data", message, hint="Leave the weights out."))
    if weight:
        with searching(job.folder):
            layers = weighed(layers, weight)
    given = Job.from_proto(job.proto)
    given.folder = job.folder
    del given.proto.neuralnet.layer[:]
    given.proto.neuralnet.layer.extend(layers)
    _count(given.proto, data, validates=held_out is not None)
    return given


def _count(proto: JobProto, data: Any, *, validates: bool) -> None:
    """Set the steps that depend on the samples of training, and mini-batches of Arrays that are larger."""
    stores = [layer.store_conf for layer in proto.neuralnet.layer if layer.type == LayerType.kRecordInput]
    samples, batch = epoch_of(proto)
    if isinstance(data, Arrays) and samples < batch:
        for store in stores:
            store.batchsize[:] = [samples]
        batch = samples
    if isinstance(data, Arrays) and data.epochs is not None:
        proto.train_steps = math.ceil(data.epochs * samples / batch)
        proto.disp_freq = max(1, samples // batch)
    if validates and not proto.validate_freq:
        proto.validate_freq = max(1, samples // batch)


def check_goes_on(job: Job, workspace: Path) -> None:
    """Raise ConfigError if the run in the workspace was given data, which the job lacks now."""
    if any(_is_open(layer) and runs_in(layer, Phase.kTrain) for layer in job.proto.neuralnet.layer):
        message = "is missing: the earlier run was given data, and its job has no path"
        raise ConfigError(Problem("data", message, f"resume of {workspace}", "Give the same data again."))


def with_transform(job: Job, transform: Any) -> Job:
    """The job whose first input layer of training has this transform. Raises ConfigError."""
    if not hasattr(transform, "__qualname__") or isinstance(transform, type):
        hint = "Give a function; one of your own can call several."
        raise ConfigError(Problem("transform", "must be a function f(batch, rng)", repr(transform), hint))
    given = Job.from_proto(job.proto)
    given.folder = job.folder
    for layer in given.proto.neuralnet.layer:
        if layer.HasField("store_conf") and runs_in(layer, Phase.kTrain):
            layer.store_conf.transform = code_name(transform)
            return given
    raise ConfigError(Problem("transform", "needs an input layer that reads shards", hint="Leave it out."))


def _is_open(layer: LayerProto) -> bool:
    return layer.type == LayerType.kRecordInput and not layer.store_conf.path


def _copied(layer: LayerProto) -> LayerProto:
    copied = LayerProto()
    copied.CopyFrom(layer)
    return copied


def _share(validation: Any) -> float:
    """The share of the data that is held out, 0.0 if `validation` is not a share."""
    if not isinstance(validation, int | float | np.floating) or isinstance(validation, bool):
        return 0.0
    if not 0 < validation < 1:
        hint = "For example 0.1, or a set: (X, y)."
        raise ConfigError(Problem("validation", "a share must lie between 0 and 1", str(validation), hint))
    return float(np.float32(validation))  # as a store_conf has it


def _share_of(validation: Any, stores: Sequence[StoreProto]) -> float:
    """The share that is held out: that of the input layers, unless `validation` is given."""
    own = max((store.validation_share for store in stores), default=0.0)
    share = own if validation is None else _share(validation)
    if others := {store.validation_share for store in stores} - {0.0, share}:
        why = f"another layer has {share:g}" if validation is None else "the argument validation is given"
        logger.warning("store_conf.validation_share: %g is ignored, because %s. Leave one out.", max(others), why)
    return share


def factor_of(manifest: Manifest) -> Column | None:
    """The column that losses must read to count samples or values as it says: a mask, else weights.

    Raises ConfigError if there are both: a loss reads one.
    """
    found = [column for role in (Role.MASK, Role.WEIGHT) for column in manifest.columns if column.role is role]
    if len({column.role for column in found}) > 1:
        message = "has weights and a mask, but a loss reads one of them"
        hint = "Leave one out: a mask says which values of a target count, weights how much a sample counts."
        raise ConfigError(Problem("data", message, str(manifest.folder), hint))
    return found[0] if found else None


def _has_weights(data: Any) -> bool:
    if isinstance(data, str | os.PathLike):
        factor = factor_of(Manifest.load(resolve(os.fspath(data))))
        return factor is not None and factor.role is Role.WEIGHT
    return data.weight is not None if isinstance(data, Arrays) else isinstance(data, tuple) and len(data) == 3


def _as_weighted(data: Any) -> Any:
    """A set with a weight of 1 for each sample, if it has none."""
    if isinstance(data, Arrays) and data.weight is None:
        return replace(data, weight=_ones(data.x))
    if isinstance(data, tuple) and len(data) == 2:
        return *data, _ones(data[0])
    return data


def _ones(x: Any) -> Any:
    """A weight of 1 for each sample, lazily for those of Dask."""
    check_at_hand("X", x)
    if is_labelled(x):
        return np.ones(first_array(x).shape[0], np.float32)
    if isinstance(x, Mapping):
        return _ones(next(iter(x.values())))
    if hasattr(x, "map_partitions"):
        return x.map_partitions(_ones, meta=_ones(x._meta))
    if is_lazy(x):
        return x.map_blocks(_ones, dtype=np.float32, drop_axis=[*range(1, x.ndim)])
    ones = np.ones(x.shape[0] if hasattr(x, "shape") else len(x), np.float32)
    return type(x.index.to_series())(ones, x.index) if hasattr(x, "iloc") else ones


def _written(
    data: Any,
    what: str,
    folder: Callable[[], Path],
    client: Client | None,
    like: Manifest | None = None,
    **how: Any,
) -> Path:
    """The folder of shards with these data. like: that of the training data, with their encoders and classes."""
    if isinstance(data, str | os.PathLike):
        return resolve(os.fspath(data))
    if isinstance(data, tuple) and len(data) in (2, 3):
        data = Arrays(*data)
    if not isinstance(data, Arrays):
        check_at_hand(what, data)
        hint = "Give a folder of shards, (X, y), or (X, y, sample_weight)."
        raise ConfigError(Problem(what, "is not a data set", type(data).__name__, hint))
    new = folder() / f".{what}.{os.getpid()}"
    try:
        manifest = data.write(new, client, like, **how)
    except DataError as error:
        if like is None:
            raise
        raise DataError(f"{what}: {error}") from error
    # Named after its content: what a job file names cannot become other data.
    final = new.with_name(f"{what}-{manifest.digest[:12]}")
    if final.exists():
        shutil.rmtree(new)
    else:
        os.replace(new, final)
    return final


def _reading(layer: LayerProto, training: Path, held_out: Path | None, share: float) -> list[LayerProto]:
    """An input layer that reads the data of its phases; one for training and a validation set becomes two."""
    layer = _copied(layer)
    trains, validates = runs_in(layer, Phase.kTrain), runs_in(layer, Phase.kVal)
    if not trains and held_out is None:
        message, hint = "does not run in training, and there are no other data for it", "Give validation too."
        raise ConfigError(Problem(f"layer {layer.name!r}", message, "data without validation", hint))
    layer.store_conf.path = text_of(training if trains or held_out is None else held_out, "data")
    layer.store_conf.validation_share = share
    if share or held_out is None or not (trains and validates):
        return [layer]
    other = _copied(layer)
    other.ClearField("exclude")
    tests = runs_in(layer, Phase.kTest)
    other.include[:] = [Phase.kVal, *[Phase.kTest] * tests]
    other.store_conf.ClearField("transform")
    other.store_conf.path = text_of(held_out, "validation")
    for phase in other.include:
        if phase in layer.include:
            layer.include.remove(phase)
        elif not layer.include:
            layer.exclude.append(phase)
    return [layer, other]


def epoch_of(job: JobProto) -> tuple[int, int]:
    """The samples that the first input layer reads in an epoch of training, and in a step."""
    inputs = (layer for layer in job.neuralnet.layer if layer.type == LayerType.kRecordInput)
    store = next(layer.store_conf for layer in inputs if runs_in(layer, Phase.kTrain))
    stream = make_stream(store, Manifest.load(Path(store.path)), seed=0, phase=Phase.kTrain)
    records = 1 if reads_windows(store) else max(1, store.sequence)
    return stream.samples, store.batchsize[0] * records


def weighed(layers: list[LayerProto], column: str) -> list[LayerProto]:
    """The layers, whose losses read the weights of the samples from input layers beside the first ones.

    Raises ConfigError for a loss of the user's own that would not count them.
    """
    first = next(layer.name for layer in layers if layer.type == LayerType.kRecordInput)
    found: list[LayerProto] = []
    for layer in layers:
        found.append(layer)
        if len(layer.srclayers) < 3 and layer_class(layer).is_loss:
            _check_weighs(layer)
            layer.srclayers.append(WEIGHTS)
        if layer.name == first:
            weights = LayerProto(name=WEIGHTS, type=layer.type, include=layer.include, exclude=layer.exclude)
            for field in _SAME_SAMPLES:
                if layer.store_conf.HasField(field):
                    setattr(weights.store_conf, field, getattr(layer.store_conf, field))
            weights.store_conf.batchsize[:] = layer.store_conf.batchsize
            weights.store_conf.column, weights.store_conf.has_label = column, False
            found.append(weights)
    return found


def _check_weighs(layer: LayerProto) -> None:
    """Raise ConfigError if a loss of two sources does not read weights from a third one."""
    kind = layer_class(layer)
    assert issubclass(kind, LossLayer)
    if len(layer.srclayers) < 2 or not kind.reads_weights(layer):
        message = "is a loss of your own that reads no weights, and the samples have weights or a mask"
        hint = "Let it read them from a third source, num_sources = (2, 3), or leave them out."
        if issubclass(kind, Loss):
            hint = "Let the function take them as a third argument, def loss(x, y, weight), or leave them out."
        raise ConfigError(Problem(f"layer {layer.name!r}", message, kind.__name__, hint))
