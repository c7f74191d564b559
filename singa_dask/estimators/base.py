"""What Classifier and Regressor share: from their parameters to a job, and from arrays to a trained model."""

from __future__ import annotations

import copy
import math
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import KW_ONLY, dataclass, replace
from numbers import Real
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from sklearn.base import clone
from sklearn.utils import check_random_state

from singa_dask.data.containers import is_table
from singa_dask.data.windows import keep_step
from singa_dask.errors import ConfigError, Problem, check_count
from singa_dask.estimators import arrays
from singa_dask.estimators.inputs import EstimatorInputs
from singa_dask.estimators.nets import from_input_to_loss, layers_for
from singa_dask.estimators.sequences import (
    LENGTH,
    Padded,
    inputs_of,
    read_lengths,
    set_time_steps,
)
from singa_dask.estimators.windows import Windows, first_dated
from singa_dask.inference.evaluate import load_model
from singa_dask.inference.model import Model
from singa_dask.job import Job, runs_in
from singa_dask.job.fields import assign
from singa_dask.job.job_pb2 import JobProto, LayerType, LRGenProto, Phase, StoreProto
from singa_dask.job.stores import reads_windows
from singa_dask.job.topology import cluster_message
from singa_dask.layers import layer_class
from singa_dask.layers.base import LossLayer
from singa_dask.layers.module import Module
from singa_dask.monitor.progress import Display
from singa_dask.supervision.driver import train
from singa_dask.supervision.given import Arrays, epoch_of
from singa_dask.temporary import NOT_KEPT
from singa_dask.training import checkpoint as checkpoints
from singa_dask.updaters import Adam, Updater

EPOCHS, BATCH_SIZE, LEARNING_RATE = 100, 64, 0.002
# Parameters that clones share: a client cannot be copied, and the others are not changed.
_SHARED = ("net", "updater", "transform", "callbacks", "client", "cluster")
_OWN_SCALE = ("mean_value", "std_value", "mean_file", "std_file", "normalise")
_SCALE = ("mean", "std", "target_mean", "target_std")
_READING = ("normalise", "channels", "missing")  # parameters that say what the net sees of a sample


class Examples(NamedTuple):
    """What to train on. data: as `train` takes it, with x, y and the weight, arrays or Dask collections, in it. scale:
    fields of store_conf that normalise."""

    data: Arrays
    x: Any
    y: Any
    weight: Any
    scale: Mapping[str, Any]


@dataclass(eq=False, repr=False)
class Estimator(EstimatorInputs):
    """A net with the interface of scikit-learn. Subclasses say what y is. Parameters: see Classifier."""

    net: Any = None
    _: KW_ONLY
    epochs: int | None = None
    batch_size: int | None = None
    learning_rate: float | None = None
    updater: Any = None
    validation: Any = None
    transform: Any = None
    patience: int | None = None
    normalise: bool = True
    channels: Any = None
    missing: Any = "error"
    random_state: Any = None
    workspace: str | Path | None = None
    callbacks: Any = ()
    client: Any = None
    cluster: Any = None
    gpu: Any = None
    verbose: bool = False

    classifies: ClassVar[bool]
    in_float64: ClassVar[bool] = False  # whether the model predicts so

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The parameters by name. deep: also those of parameters with a method `get_params`. The settings of an
        updater, such as updater__lr, can be set, but are not listed."""
        held = {name: vars(self)[name] for name in self._get_param_names()}
        more = {name: value for name, value in held.items() if deep and hasattr(value, "get_params")}
        return held | {f"{name}__{key}": it for name, of in more.items() for key, it in of.get_params().items()}

    def set_params(self, **params: Any) -> Self:
        """Set parameters by name. updater__lr and the like: settings of a copy of the updater, which clones share.

        Raises ValueError for settings of what has none.
        """
        own = {key: params.pop(key) for key in [*params] if "__" in key and not hasattr(self._held(key), "set_params")}
        super().set_params(**params)
        for key, value in own.items():
            name, _, setting = key.partition("__")
            if not isinstance(held := self._held(key), Updater):
                hint = "Give one, such as updater=SGD(lr=0.1), or set learning_rate." if name == "updater" else ""
                raise ValueError(f"{key}: {name} is {held!r}, which has no settings. {hint}".rstrip())
            setattr(self, name, held.with_settings(**{setting: value}))
        return self

    def _held(self, key: str) -> Any:
        return vars(self).get(key.partition("__")[0])

    def __sklearn_clone__(self) -> Self:
        given = self.get_params(deep=False)
        made = type(self)(**{k: v if k in _SHARED else clone(v, safe=False) for k, v in given.items()})
        if hasattr(self, "_metadata_request"):  # by set_fit_request and the like
            made._metadata_request = copy.deepcopy(self._metadata_request)
        return made

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "client": None}  # it belongs to its process

    # What subclasses implement

    def _describe_answers(self, y: Any, classes: Any) -> None:
        """Keep what later calls need to know of y, and of the `classes` of partial_fit."""
        raise NotImplementedError

    def _answers(self, y: Any) -> Any:
        """What the shards hold of y: class numbers or targets."""
        return y

    def _outputs(self) -> int:
        """Outputs of a net for y."""
        raise NotImplementedError

    def _set_loss(self, proto: JobProto, examples: Examples) -> None:
        """Set what the parameters say about the loss layer."""

    def _options(self) -> dict[str, Any]:
        """How `shard` writes the labels or targets."""
        raise NotImplementedError

    # Training

    def _fit(
        self, x: Any, y: Any, weight: Any, *, epochs: int | None = None, goes_on: bool = False, classes: Any = None
    ) -> Self:
        """Train. epochs: of one call of several, in place of the parameter; it counts weights as they are and has no
        validation. goes_on: from the parameters of the model. classes: all of them, if they are told."""
        self._check_parameters(goes_on=goes_on)
        x, y, weight = self._taken(x, y, weight, first=not goes_on)
        if not goes_on:
            self._describe_answers(y, classes)
            self._steps = {}
        examples = self._examples(x, y, weight, goes_on=goes_on, scaled=epochs is None)
        with self._folder() as folder, ExitStack() as stack:
            job, wanted = self._job(examples, epochs, self.n_iter_ if goes_on else 0)
            validation = self.validation if epochs is None else None
            if isinstance(validation, tuple):
                x, y, weight = self._taken(*validation, first=False)
                self._series(x, self._index, fits=True)
                answers = self._answers(y)
                weight = None if weight is None else arrays.weights_of(weight, answers, scaled=True)
                validation = self._arrays(x, answers, weight)
            if goes_on:
                start = folder.with_name(f".{folder.name}.start.h5")
                state = checkpoints.Checkpoint(0, job.proto.seed, "", self.model_.state_dict())
                job.proto.checkpoint_path[:] = [str(checkpoints.save(state, start))]
                stack.callback(start.unlink, missing_ok=True)
            self.result_ = train(
                job,
                self.client,
                data=replace(examples.data, epochs=wanted),
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
            dtype = np.float64 if self.in_float64 else np.float32
            self.model_: Model = load_model(best if best.exists() else folder, dtype=dtype)
            store = self.model_.known.store(self.model_.net.input_layers[0])
            self._scale = {name: list(getattr(store, name)) for name in _SCALE if getattr(store, name)}
            samples, batch = epoch_of(Job.from_file(folder / "job.conf").proto)
        before: int = self.n_iter_ if goes_on else 0
        self.n_iter_: int = before + max(1, self.result_.summary["step"] * batch // samples)
        return self

    def _check_parameters(self, *, goes_on: bool) -> None:
        """Raise ConfigError for numbers that cannot be, and for samples that are read otherwise than in earlier calls,
        before the data are read."""
        reading = {name: getattr(self, name) for name in _READING}
        for name, before in self._reading.items() if goes_on else ():
            if reading[name] != before:
                message = "is other than in the earlier call, and the net goes on with samples that are read as there"
                hint = f"set_params({name}={before!r}), or fit, which trains new parameters."
                raise ConfigError(Problem(name, message, repr(reading[name]), hint))
        self._reading: dict[str, Any] = reading
        for name in ("epochs", "batch_size", "patience"):
            if (value := getattr(self, name)) is not None:
                check_count(name, value)
        rate = self.learning_rate
        if rate is not None and not (isinstance(rate, Real) and not isinstance(rate, bool) and 0 <= rate < math.inf):
            raise ConfigError(Problem("learning_rate", "must be a number of at least 0", repr(rate)))

    @contextmanager
    def _folder(self) -> Iterator[Path]:
        """The folder of a run: the workspace, else one that is removed; for workers in the current folder, which they
        are more likely to share."""
        if self.workspace is not None:
            yield Path(self.workspace).absolute()
        else:
            place = None if self.client is None else Path.cwd()
            with tempfile.TemporaryDirectory(prefix=NOT_KEPT, dir=place) as folder:
                yield Path(folder) / "run"

    def _job(self, examples: Examples, epochs: int | None, before: int) -> tuple[Job, int | None]:
        """The job without its data, and how often it reads these, None if it says that itself. before: the epochs of
        earlier calls, on which the seed depends: each has an order of samples and random draws of its own."""
        given = self._given_job(examples)
        own = given is self.net or isinstance(self.net, str | Path)
        proto = JobProto()
        proto.CopyFrom(given.proto)
        if own and (self.updater is not None or self.learning_rate is not None):
            proto.updater.CopyFrom(self._updater().proto)
        _keep_inputs_of_training(proto)
        set_time_steps(proto, tuple(examples.x.shape[1:]))
        self._windows = next((w for layer in inputs_of(proto) if (w := Windows.of(layer.store_conf))), None)
        self._series(examples.x, self._index, fits=True)
        scale = examples.scale
        kinds = map(layer_class, proto.neuralnet.layer)
        if any(issubclass(kind, LossLayer) and not kind.takes_units for kind in kinds):
            scale = {name: value for name, value in scale.items() if "target" not in name}
        for layer in inputs_of(proto):
            self._read(layer.store_conf, scale, validates=epochs is None)
            if self._steps and reads_windows(layer.store_conf):
                keep_step(layer.store_conf, first_dated(self._steps)[1])
        wanted = next((number for number in (epochs, self.epochs) if number is not None), None if own else EPOCHS)
        if isinstance(examples.x, Padded):
            read_lengths(proto)
        self._set_loss(proto, examples)
        if epochs is not None and proto.updater.ema_decay:
            message = "is not for partial_fit: each call would begin with the averages, not with the parameters"
            hint = "Leave it out, or train with fit."
            raise ConfigError(Problem("updater.ema_decay", message, f"{proto.updater.ema_decay:g}", hint))
        if epochs is not None:  # without a validation
            proto.ClearField("early_stopping")
            proto.ClearField("keep_best")
            if proto.updater.learning_rate.type == LRGenProto.kReduceOnPlateau:
                proto.updater.learning_rate.type = LRGenProto.kFixed
        elif self.patience is not None:
            shared = any(layer.store_conf.validation_share for layer in inputs_of(proto))
            if self.validation is None and not shared and not proto.early_stopping.metric:
                hint = "Give validation=0.1, or a set: validation=(X, y)."
                raise ConfigError(Problem("patience", "is of a validation, and there is none", hint=hint))
            proto.early_stopping.patience = self.patience
            proto.keep_best = proto.keep_best or "validate.loss"
        seeds = check_random_state(self.random_state).randint(np.iinfo(np.int32).max, size=before + 1)
        proto.seed = int(seeds[-1])
        if self.cluster is not None:
            proto.cluster.CopyFrom(cluster_message(self.cluster))
        if self.gpu is not None:
            proto.ClearField("gpu")
            assign(proto, "gpu", self.gpu, "gpu")
        job = Job.from_proto(proto)
        job.folder = given.folder if own else None  # of the user's own layers
        return job, wanted

    def _updater(self) -> Any:
        if self.updater is not None and self.learning_rate is not None:
            hint = "Give one of them: the updater has a learning rate of its own."
            raise ConfigError(Problem("learning_rate", "is given, and an updater too", str(self.learning_rate), hint))
        return self.updater or Adam(lr=LEARNING_RATE if self.learning_rate is None else self.learning_rate)

    def _given_job(self, examples: Examples | None = None) -> Job:
        """The job that is given, or one of the layers. examples: for which a net is made if none is given."""
        if isinstance(self.net, Job | str | Path):
            return self.net if isinstance(self.net, Job) else Job.from_file(self.net)
        if examples is not None and self.net is None:
            shape, target = (
                arrays.column_of(of, name, self._channels(name)).net_shape
                for of, name in ((examples.x, "X"), (examples.y, "y"))
            )
            outputs = self._outputs()
            layers: list[Any] = list(layers_for(shape, outputs, classify=self.classifies, target=target))
        else:
            layers = [self.net] if isinstance(self.net, Module) else list(self.net)
        placed = from_input_to_loss(layers, classify=self.classifies)
        return Job(name=type(self).__name__.lower(), layers=placed, updater=self._updater(), train_steps=1)

    def _read(self, store: StoreProto, scale: Mapping[str, Any], *, validates: bool) -> None:
        """Let an input layer read the examples. validates: whether it may hold some of them out."""
        store.ClearField("path")
        if not validates:
            store.ClearField("validation_share")
        if self.batch_size is not None or not store.batchsize:
            store.batchsize[:] = [BATCH_SIZE if self.batch_size is None else self.batch_size]
        if self.normalise and not any(store.HasField(name) for name in _OWN_SCALE):
            for name, value in scale.items():
                assign(store, name, value, f"store_conf.{name}")

    # Data

    def _examples(self, x: Any, y: Any, weight: Any, *, goes_on: bool, scaled: bool) -> Examples:
        """The samples as `train` takes them. goes_on: described and normalised as those before. scaled: let the
        weights have the mean 1."""
        arrays.check_samples(x)
        answers = self._answers(y)
        weight = None if weight is None else arrays.weights_of(weight, answers, scaled=scaled)
        like = {"like": self._known()} if goes_on and not isinstance(x, Padded) else {"missing": self.missing}
        scale = self._scale if goes_on else {"normalise": True, "normalise_target": True}
        return Examples(self._arrays(x, answers, weight, **like), x, y, weight, scale)

    def _channels(self, name: str) -> str | None:
        """Where X or y have their channels if that is known: the variables of a Dataset are the last axis."""
        labels = self._labels["Xy".index(name)]
        return "last" if self.channels is None and labels is not None and labels.variables else self.channels

    def _arrays(self, x: Any, answers: Any, weight: Any = None, **how: Any) -> Arrays:
        """how: what says how missing values are filled; nothing for a validation set, which is filled likewise."""
        options: dict[str, Any] = {"durable": self.workspace is not None, "progress": None if self.verbose else False}
        options |= self._options() | how
        if isinstance(x, Padded):
            if self._fills:
                message, hint = "is not for sequences of different lengths", "Fill them before."
                raise ConfigError(Problem("missing", message, repr(self.missing), hint))
            return Arrays({"x": x.x, LENGTH: x.lengths}, answers, weight, options)
        x = self._named(x)
        named = self._tabular or hasattr(self, "feature_names_in_")
        if not (is_table(x) and named):
            images = {"X": x} if is_table(answers) or len(answers.shape) <= 3 else {"X": x, "y": answers}
            options["channels"] = {
                name.lower(): arrays.column_of(of, name, self._channels(name)).channels for name, of in images.items()
            }
        x, answers = (  # so that the model knows their dimensions too
            of.of(each) if of is not None and len(of.dims) == getattr(each, "ndim", 0) else each
            for of, each in zip(self._labels, (x, answers), strict=True)
        )
        x = {"x": x} if is_table(x) and not named else x  # one column
        return Arrays(x, {"y": answers} if is_table(answers) else answers, weight, options)


def _transform(self: Estimator) -> Any:
    """As given. Without one there is no such attribute: scikit-learn takes what has one for a transformer."""
    if (given := vars(self)["transform"]) is None:
        raise AttributeError("transform is not given")
    return given


Estimator.transform = property(_transform, lambda self, given: vars(self).update(transform=given))


def _keep_inputs_of_training(proto: JobProto) -> None:
    """Remove the input layers of other phases, and the evaluations that read them: the data are given."""
    layers = proto.neuralnet.layer
    for place in reversed(range(len(layers))):
        if layers[place].type == LayerType.kRecordInput and not runs_in(layers[place], Phase.kTrain):
            del layers[place]
    for layer in inputs_of(proto):
        layer.ClearField("include")
        layer.ClearField("exclude")
    for field in ("test_freq", "test_steps", "validate_freq", "validate_steps", "checkpoint_path", "resume"):
        proto.ClearField(field)
