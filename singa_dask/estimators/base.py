"""What Classifier and Regressor share: from their parameters to a job, and from arrays to a trained model."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, clone
from sklearn.utils import Tags, check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from singa_dask.data.columns import Column, stored_dtype
from singa_dask.data.containers import dense, is_lazy, is_table, native
from singa_dask.data.labelled import (
    VARIABLE,
    Labels,
    as_table,
    dims_of,
    is_labelled,
    labelled,
    labels_of,
    ordered,
    paired,
    stacked,
)
from singa_dask.data.manifest import Manifest
from singa_dask.data.manifest_reader import read_description
from singa_dask.errors import ConfigError, Problem, nearest
from singa_dask.estimators.arrays import feature_column, rows_of
from singa_dask.estimators.nets import layers_for
from singa_dask.estimators.sequences import LENGTH, Padded, is_ragged
from singa_dask.estimators.windows import Windows, check_order, index_of
from singa_dask.inference.evaluate import load_model
from singa_dask.inference.model import Model
from singa_dask.job import Job, runs_in
from singa_dask.job.fields import assign
from singa_dask.job.job_pb2 import JobProto, LayerProto, LayerType, Phase, StoreProto
from singa_dask.job.layer_types import SOURCES, type_name
from singa_dask.job.outputs import outputs_for_classes
from singa_dask.job.topology import cluster_message
from singa_dask.layers import EuclideanLoss, LossLayer, RecordInput, SoftmaxLoss, layer_class
from singa_dask.layers.module import Module
from singa_dask.monitor.progress import Display
from singa_dask.supervision.driver import train
from singa_dask.supervision.given import Arrays
from singa_dask.training import checkpoint as checkpoints
from singa_dask.updaters import Adam

EPOCHS, BATCH_SIZE, LEARNING_RATE = 100, 64, 0.002
# Parameters that clones share: a client cannot be copied, and the others are not changed.
_SHARED = ("net", "updater", "transform", "callbacks", "client", "cluster")
_OWN_SCALE = ("mean_value", "std_value", "mean_file", "std_file", "normalise")
_SCALE = ("mean", "std", "target_mean", "target_std")


@dataclass(frozen=True)
class Examples:
    """What to train on. data: as `train` takes it. x, y: the arrays or Dask collections in it. scale: fields of
    store_conf that normalise."""

    data: Any
    x: Any
    y: Any
    scale: Mapping[str, Any]

    @cached_property
    def rows(self) -> int:
        """How many samples there are. Raises ValueError if there are none."""
        rows = rows_of(self.x)
        if not rows:
            raise ValueError("X must have samples. Received: 0. If it is filtered, check what the filter keeps.")
        return rows

    @property
    def column(self) -> Column:
        return feature_column(self.x)


class Estimator(BaseEstimator):
    """A net with the interface of scikit-learn. Subclasses say what y is.

    Parameters: see Classifier.
    """

    model_: Model
    _windows: Windows | None
    _index: Any
    _labels: tuple[Labels | None, ...]
    _ragged: bool = False
    _dtype: Any = np.float32
    """In which the model predicts."""

    def __init__(
        self,
        net: Any = None,
        *,
        epochs: int | None = None,
        batch_size: int | None = None,
        learning_rate: float | None = None,
        updater: Any = None,
        validation: Any = None,
        transform: Any = None,
        patience: int | None = None,
        normalise: bool = True,
        missing: Any = "error",
        random_state: Any = None,
        workspace: str | Path | None = None,
        callbacks: Any = (),
        client: Any = None,
        cluster: Any = None,
        verbose: bool = False,
    ) -> None:
        self.net = net
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.updater = updater
        self.validation = validation
        self.transform = transform
        self.patience = patience
        self.normalise = normalise
        self.missing = missing
        self.random_state = random_state
        self.workspace = workspace
        self.callbacks = callbacks
        self.client = client
        self.cluster = cluster
        self.verbose = verbose

    @property
    def transform(self) -> Any:
        """As given. Without one there is no such attribute: scikit-learn takes what has one for a transformer."""
        if (given := vars(self)["transform"]) is None:
            raise AttributeError("transform is not given")
        return given

    @transform.setter
    def transform(self, given: Any) -> None:
        self.__dict__["transform"] = given

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The parameters by name. deep: also those of parameters that have some, such as an updater's."""
        held = {name: vars(self)[name] for name in self._get_param_names()}
        more = {name: value for name, value in held.items() if deep and hasattr(value, "get_params")}
        return held | {f"{name}__{key}": it for name, of in more.items() for key, it in of.get_params().items()}

    def __sklearn_clone__(self) -> Self:
        given = self.get_params(deep=False)
        return type(self)(**{k: v if k in _SHARED else clone(v, safe=False) for k, v in given.items()})

    def __getstate__(self) -> dict[str, Any]:
        # A client belongs to its process.
        return {**super().__getstate__(), "client": None}

    # What subclasses implement

    def _checked_answers(self, x: Any, y: Any, *, first: bool) -> tuple[Any, Any]:
        """NumPy arrays of features and of labels or targets, checked as scikit-learn does."""
        raise NotImplementedError

    def _answers(self, y: Any) -> Any:
        """What the shards hold of y: class numbers or targets."""
        raise NotImplementedError

    def _outputs(self, y: Any) -> tuple[int, bool]:
        """Outputs of the net, and whether they are classes."""
        raise NotImplementedError

    def _set_loss(self, proto: JobProto, y: Any) -> None:
        """Set what the parameters say about the loss layer."""

    def _options(self) -> dict[str, Any]:
        """How `shard` writes the labels or targets."""
        raise NotImplementedError

    # Training

    def _train(self, examples: Examples, validation: Any, *, epochs: int | None = None, goes_on: bool = False) -> Self:
        """Fit to these examples. epochs: instead of the parameter's. goes_on: from the parameters of the model."""
        with self._folder() as folder, ExitStack() as stack:
            job, batch, samples = self._job(examples, epochs)
            if goes_on:
                start = folder.with_name(f".{folder.name}.start.h5")
                state = checkpoints.Checkpoint(0, job.proto.seed, "", self.model_.state_dict())
                job.proto.checkpoint_path[:] = [str(checkpoints.save(state, start))]
                stack.callback(start.unlink, missing_ok=True)
            self.result_ = train(
                job,
                self.client,
                data=examples.data,
                validation=validation,
                transform=vars(self)["transform"],
                processes=self.client is not None,
                workspace=folder,
                callbacks=self.callbacks,
                display=None if self.verbose else Display(),
                curves=self.workspace is not None,
            )
            self.history_ = self.result_.history
            best = folder / "checkpoint" / checkpoints.BEST
            self.model_ = load_model(best if best.exists() else folder, dtype=self._dtype)
            net = self.model_.net
            store = net.layers[net.input_layers[0]].proto.store_conf
            self._scale = {name: list(getattr(store, name)) for name in _SCALE if getattr(store, name)}
        self.n_iter_ = max(1, self.result_.summary["step"] * batch // samples)
        return self

    @contextmanager
    def _folder(self) -> Iterator[Path]:
        """The folder of a run: the workspace, else one that is removed; for workers in the current folder, which they
        are more likely to share."""
        if self.workspace is not None:
            yield Path(self.workspace).absolute()
            return
        place = None if self.client is None else Path.cwd()
        with tempfile.TemporaryDirectory(prefix=".singa_dask-", dir=place) as folder:
            yield Path(folder) / "run"

    def _job(self, examples: Examples, epochs: int | None) -> tuple[Job, int, int]:
        """The job without its data, its mini-batch, and the samples of an epoch."""
        given = Job.from_file(self.net) if isinstance(self.net, str | Path) else self.net
        own = isinstance(given, Job)
        proto = JobProto()
        if own:
            proto.CopyFrom(given.proto)
            if self.updater is not None or self.learning_rate is not None:
                proto.updater.CopyFrom(self._updater().proto)
        else:
            layers, updater = self._layers(examples), self._updater()
            proto.CopyFrom(Job(name=type(self).__name__.lower(), layers=layers, updater=updater, train_steps=1).proto)
        _keep_inputs_of_training(proto)
        _set_time_steps(proto, examples.column.shape)
        self._windows = next((w for layer in _inputs(proto) if (w := Windows.of(layer.store_conf))), None)
        if self._windows is not None:
            check_order(self._index)
        batch = max((self._read(layer.store_conf, examples) for layer in _inputs(proto)), default=1)
        samples = max((_samples(layer.store_conf, examples.rows) for layer in _inputs(proto)), default=1)
        if not own or self.epochs is not None or epochs is not None:
            wanted = next((number for number in (epochs, self.epochs) if number is not None), EPOCHS)
            proto.train_steps = max(1, math.ceil(wanted * samples / batch))
            proto.disp_freq = max(1, samples // batch)
        if isinstance(examples.x, Padded):
            _read_lengths(proto)
        self._set_loss(proto, examples.y)
        self._set_stopping(proto)
        proto.seed = int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))
        if self.cluster is not None:
            proto.cluster.CopyFrom(cluster_message(self.cluster))
        job = Job.from_proto(proto)
        job.folder = given.folder if own else None  # of the user's own layers
        if self.client is None and job.topology.nprocesses > 1:
            hint = "Give client=Client(...), or leave out the cluster."
            raise ConfigError(Problem("cluster", "needs Dask workers, and there is no client", hint=hint))
        return job, batch, samples

    def _updater(self) -> Any:
        if self.updater is None:
            return Adam(lr=LEARNING_RATE if self.learning_rate is None else self.learning_rate)
        if self.learning_rate is not None:
            hint = "Give one of them: the updater has a learning rate of its own."
            raise ConfigError(Problem("learning_rate", "is given, and an updater too", str(self.learning_rate), hint))
        return self.updater

    def _layers(self, examples: Examples) -> list[Any]:
        """All layers, from the input to the loss."""
        outputs, classify = self._outputs(examples.y)
        layers: list[Any] = []
        if self.net is None:
            target = feature_column(examples.y).net_shape
            layers = layers_for(examples.column.net_shape, outputs, classify=classify, target=target)
        else:
            layers = [self.net] if isinstance(self.net, Module) else list(self.net)
        return _from_input_to_loss(layers, classify=classify)

    def _outputs_for_classes(self) -> int | None:
        """The outputs of a given net for classes, if it says their number."""
        if self.net is None:
            return None
        given = Job.from_file(self.net) if isinstance(self.net, str | Path) else self.net
        if not isinstance(given, Job):
            layers = [self.net] if isinstance(self.net, Module) else list(self.net)
            placed = _from_input_to_loss(layers, classify=True)
            given = Job(name="net", layers=placed, updater=Adam(lr=LEARNING_RATE), train_steps=1)
        return outputs_for_classes(given.proto.neuralnet.layer)

    def _read(self, store: StoreProto, examples: Examples) -> int:
        """Let an input layer read these examples. Returns the mini-batch."""
        store.ClearField("path")
        store.ClearField("validation_share")
        batch = self.batch_size
        if batch is None:
            batch = store.batchsize[0] if store.batchsize else BATCH_SIZE
        store.batchsize[:] = [min(batch, examples.rows)]
        if self.normalise and not any(store.HasField(name) for name in _OWN_SCALE):
            for name, value in examples.scale.items():
                assign(store, name, value, f"store_conf.{name}")
        return store.batchsize[0]

    def _set_stopping(self, proto: JobProto) -> None:
        if self.patience is None:
            return
        if self.validation is None and not proto.early_stopping.metric:
            hint = "Give validation=0.1, or a set: validation=(X, y)."
            raise ConfigError(Problem("patience", "is of a validation, and there is none", str(self.patience), hint))
        proto.early_stopping.patience = self.patience
        proto.keep_best = proto.keep_best or "validate.loss"

    # Data

    def _examples(self, x: Any, y: Any, weight: Any, *, goes_on: bool = False) -> Examples:
        """The samples as `train` takes them. goes_on: normalised as those before."""
        answers = self._answers(y)
        scale: Mapping[str, Any] = {"normalise": True, "normalise_target": True}
        known = self._known() if goes_on else None
        fills = self._fills or (known is not None and known.features.fill is not None)
        filling = {} if not fills else {"missing": self.missing} if known is None else {"like": known}
        if is_lazy(x):
            options = self._options() | ({"like": known} if known and known.encoders else filling)
            if known and not known.encoders and is_table(x):  # it was an array before
                x = x.to_dask_array()
            data: Any = Arrays(x, answers, weight, options)
        else:
            if weight is not None:
                weight = _check_sample_weight(weight, answers, ensure_non_negative=True)
                if not weight.any():
                    raise ValueError("sample_weight must have at least one non-zero number.")
                weight = weight / weight.mean()
            data = self._arrays(x, answers, weight, filling)
        return Examples(data, x, y, self._scale if goes_on else scale)

    def _arrays(
        self, x: Any, answers: np.ndarray, weight: np.ndarray | None = None, filling: Mapping[str, Any] | None = None
    ) -> Arrays:
        """filling: what says how missing values are filled; None for a validation set, which is filled likewise."""
        if isinstance(x, Padded):
            if self._fills:
                hint = "Fill them before."
                raise ConfigError(
                    Problem("missing", "is not for sequences of different lengths", repr(self.missing), hint)
                )
            return Arrays({"x": x.x, LENGTH: x.lengths}, answers, weight, self._options())
        options = {"channels": feature_column(x).channels, "durable": self.workspace is not None}
        options |= {"progress": None if self.verbose else False}
        return Arrays(x, answers, weight, {**options, **self._options(), **(filling or {})})

    @property
    def _fills(self) -> bool:
        return self.missing != "error"

    @property
    def _finite(self) -> bool | str:
        """What scikit-learn asks of X."""
        return "allow-nan" if self._fills else True

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self._fills
        return tags

    def _validation_set(self) -> Any:
        if not isinstance(self.validation, tuple):
            return self.validation
        x, y = self._taken(*self.validation, first=False)
        if is_lazy(x):
            return Arrays(x, self._answers(y), options=self._options())
        return self._arrays(x, self._answers(y))

    def _taken(self, x: Any, y: Any, *, first: bool) -> tuple[Any, Any]:
        """Features and labels or targets: NumPy arrays, checked as scikit-learn does, or Dask collections."""
        self._index = index_of(x)
        x, y = self._without_labels(x, y, first=first)
        x, y = _known_container(x), _known_container(y)
        if is_lazy(y) and is_table(y):
            y = y[y.columns[0]] if len(y.columns) == 1 else y.to_dask_array()
        if not is_lazy(x):
            x, lengths = self._padded(x, first=first)
            x, y = self._checked_answers(x, y, first=first)
            if stored_dtype(x.dtype) is None:
                x = x.astype(np.float64)
            x = x if lengths is None else Padded(x, lengths)
        elif first:
            self.n_features_in_ = int(x.shape[1])
            if is_table(x):
                self.feature_names_in_ = np.asarray(x.columns, dtype=object)
        else:
            x = self._by_name(x)
        if first:
            self._sample_shape = tuple(map(int, x.shape[1:]))
        return x, y

    def _without_labels(self, x: Any, y: Any, *, first: bool = False) -> tuple[Any, Any]:
        """The values of DataArrays, and of Datasets with their variables as channels; all else as it is."""
        x = as_table(x) if is_labelled(x) else x
        fitted = (None, None) if first else self._labels
        x, y = (
            stacked(each, what, of.variables if of else ()) if is_labelled(each) else each
            for each, what, of in zip((x, y), "Xy", fitted, strict=True)
        )
        if is_labelled(x) and is_labelled(y):
            x, y = paired(x, y)
        if first:
            self._labels = tuple(
                labels_of(each, each[VARIABLE].values.tolist() if VARIABLE in each.coords else ())
                if is_labelled(each)
                else None
                for each in (x, y)
            )
        else:
            x, y = (
                ordered(each, of, what) if is_labelled(each) and of else each
                for each, what, of in zip((x, y), "Xy", fitted, strict=True)
            )
        return tuple(each.data if is_labelled(each) else each for each in (x, y))

    def _labelled(self, predicted: Any, x: Any, last: str = "output", classes: Any = None) -> Any:
        """Predictions as a DataArray if x is one or a Dataset. last: the name of their last axis, of the classes."""
        of, answers = self._labels
        if not is_labelled(x) or of is None or self._windows is not None:
            return predicted
        x = ordered(stacked(x, "X", of.variables), of, "X")
        rank = predicted.ndim - 1 - (classes is not None)
        if answers is not None and len(answers.dims) - 1 == rank:
            dims, coords, name = (
                (*answers.dims[1:], *([last] if classes is not None else [])),
                answers.coords,
                answers.name,
            )
        else:
            dims, coords, name = dims_of(x, predicted.shape[1:], last), {}, None
        return labelled(predicted, x, dims, coords if classes is None else {**coords, last: classes}, name)

    def _padded(self, x: Any, *, first: bool) -> tuple[Any, np.ndarray | None]:
        """Sequences of different lengths as one array, and their lengths; other x as they are."""
        if first:
            self._ragged = is_ragged(x)
        if not self._ragged:
            return x, None
        padded = Padded.of(x, None if first else self._sample_shape[0])
        return padded.x, padded.lengths

    def _known(self) -> Manifest:
        """The description of the data so far."""
        schema = read_description(self.model_.described[self.model_.net.input_layers[0]])
        return Manifest(0, schema, 1, ())

    def _by_name(self, x: Any) -> Any:
        """The columns of a DataFrame as in `fit`, whatever their order. Raises ValueError if one is missing."""
        names = getattr(self, "feature_names_in_", None)
        if names is None or not is_table(x):
            return x
        missing = [str(name) for name in names if name not in x.columns]
        if missing:
            hint = nearest(missing[0], map(str, x.columns))
            raise ValueError(f"X lacks the columns {', '.join(missing)}, to which it was fitted. {hint}")
        return x[list(names)]

    def _checked(self, x: Any) -> Any:
        """x to predict for. A Dask collection stays lazy."""
        check_is_fitted(self, "model_")
        x = _known_container(self._without_labels(x, None)[0])
        if is_lazy(x):
            return self._by_name(x)
        x, lengths = self._padded(x, first=False)
        x = validate_data(self, x, reset=False, allow_nd=True, dtype="numeric", ensure_all_finite=self._finite)
        if x.shape[1:] != self._sample_shape:
            raise ValueError(f"X has samples of shape {x.shape[1:]}, but it was fitted to {self._sample_shape}.")
        return x if lengths is None else {self.model_.net.input_layers[0]: x, LENGTH: lengths[:, np.newaxis]}

    def _output(self, x: Any) -> Any:
        """The net's output for every row, lazily for a Dask collection; for every window if the net reads these."""
        checked = self._checked(x)
        if self._windows is None:
            return self.model_.predict(checked)
        check_order(index_of(x))
        return self.model_.predict(self._windows.features(checked))


def _set_time_steps(proto: JobProto, shape: tuple[int, ...]) -> None:
    """Let a net that computes over time read samples of this shape as sequences, unless the job says how."""
    layers = [*proto.neuralnet.layer, *(layer for group in proto.neuralnet.layer_group for layer in group.layer)]
    said = any(layer.store_conf.sequence or layer.store_conf.time_steps or layer.unroll_len > 1 for layer in layers)
    if said or proto.neuralnet.unroll_len > 1 or len(shape) < 2:
        return
    recurrent = [layer for layer in layers if layer_class(layer).recurrent]
    if not (recurrent or (len(shape) == 2 and any(layer_class(layer).across_steps for layer in layers))):
        return
    for layer in recurrent:
        layer.unroll_len = shape[0]
    for layer in _inputs(proto):
        layer.store_conf.time_steps = shape[0]


def _read_lengths(proto: JobProto) -> None:
    """Let the input layers read sequences of different lengths."""
    layers = _inputs(proto)
    if not all(layer.store_conf.time_steps for layer in layers):
        hint = "Use recurrent layers or causal attention, or give sequences of one length."
        raise ConfigError(Problem("X", "has sequences of different lengths, and the net has no time steps", hint=hint))
    for layer in layers:
        layer.store_conf.column, layer.store_conf.lengths = "x", LENGTH
    length = LayerProto(name=LENGTH, type=LayerType.kRecordInput)
    length.store_conf.column, length.store_conf.has_label = LENGTH, False
    length.store_conf.batchsize[:] = layers[0].store_conf.batchsize
    proto.neuralnet.layer.append(length)


def _samples(store: StoreProto, rows: int) -> int:
    """The samples that an input layer reads in an epoch of `rows` records."""
    windows = Windows.of(store)
    return rows if windows is None else max(1, windows.count(rows))


def _known_container(x: Any) -> Any:
    """In place of a masked array or a table of another library, which scikit-learn reads otherwise, what it knows."""
    x = native(x)
    return dense(x) if isinstance(x, np.ma.MaskedArray) else x


def _inputs(proto: JobProto) -> list[LayerProto]:
    return [layer for layer in proto.neuralnet.layer if layer.type == LayerType.kRecordInput]


def _keep_inputs_of_training(proto: JobProto) -> None:
    """Remove the input layers of other phases, and the evaluations that read them: the data are given."""
    kept = [
        layer
        for layer in proto.neuralnet.layer
        if layer.type != LayerType.kRecordInput or runs_in(layer, Phase.kTrain)
    ]
    layers = [LayerProto.FromString(layer.SerializeToString()) for layer in kept]
    for layer in layers:
        if layer.type == LayerType.kRecordInput:
            layer.ClearField("include")
            layer.ClearField("exclude")
    del proto.neuralnet.layer[:]
    proto.neuralnet.layer.extend(layers)
    for field in ("test_freq", "test_steps", "validate_freq", "validate_steps", "checkpoint_path", "resume"):
        proto.ClearField(field)


def _from_input_to_loss(layers: list[Any], *, classify: bool) -> list[Any]:
    """All layers of a net, with an input layer and a loss if they are missing."""
    first: Any = layers[0] if layers else None
    if first is None or isinstance(first, Module) or type_name(getattr(first, "proto", first)) not in SOURCES:
        layers.insert(0, RecordInput("data"))
    placed: list[Any] = []
    for layer in layers:
        placed += layer.placed(placed) if isinstance(layer, Module) else (layer,)
    if not any(isinstance(layer, LossLayer) for layer in placed):
        placed.append(SoftmaxLoss() if classify else EuclideanLoss())
    return placed
