"""Checks of a job before anything starts: nets, data, user code, updater."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

from singa_dask.algorithms import algorithm
from singa_dask.algorithms.measured import loss_metrics
from singa_dask.comm.codecs import codec
from singa_dask.data import (
    AnyStream,
    Manifest,
    first_difference,
    read_small,
    resolve,
    statistics_path,
    store_info,
    vocabulary,
)
from singa_dask.errors import ConfigError, DataError, Problem
from singa_dask.job import ClusterTopology, Job, active_phases, runs_in
from singa_dask.job.code_bundle import CodeBundle, pack
from singa_dask.job.job_pb2 import CharRNNProto, JobProto, LayerProto, LayerType, Phase, StoreProto
from singa_dask.job.layer_types import CONF
from singa_dask.job.stores import store_of
from singa_dask.layers import Frame, SoftmaxLoss
from singa_dask.net import LayerRow, Net
from singa_dask.net.flat import GroupLayout
from singa_dask.ops import Ops
from singa_dask.server import Partition
from singa_dask.training.checkpoint import fitting, load_parameters
from singa_dask.training.feed import data_key, group_stream
from singa_dask.training.frequencies import PHASE_NAMES
from singa_dask.training.nets import make_nets
from singa_dask.training.placement import parameter_partition
from singa_dask.updaters import make_updater

logger = logging.getLogger(__name__)

MAX_MEAN_NBYTES = 1 << 30
# Layers that read symbols -> the block with their vocab_size.
_VOCABULARY_CONFS: dict[int, str] = {LayerType.kOneHot: "onehot_conf", LayerType.kEmbedding: "embedding_conf"}


@dataclass(frozen=True)
class Prepared:
    """A job that can run. Its data paths are absolute, and its sample shapes are set.

    data: fingerprints of the order of samples, by phase and input layer ("train/data"). layers: the rows of
    `Net.describe`, by phase ("train", "validate", "test"). parameters: number of trained elements. shapes: of the
    whole parameters, by name. layout: where the parameters of a worker group lie. drawn: names of the parameters with
    an `init` block. updater_state: names of the updater's arrays. code: user code for the workers.
    """

    job: JobProto
    topology: ClusterTopology
    data: dict[str, str]
    layers: dict[str, list[LayerRow]]
    parameters: int
    shapes: dict[str, tuple[int, ...]]
    layout: GroupLayout
    drawn: frozenset[str]
    updater_state: tuple[str, ...]
    code: CodeBundle | None = None

    @property
    def partition(self) -> Partition:
        """The partition of the parameters among workers and servers."""
        return parameter_partition(self.topology, self.layout)


def prepare(job: Job, *, with_data: bool = True, phases: Sequence[int] | None = None) -> Prepared:
    """Check a job and build its nets once, in plain NumPy.

    with_data: also find the shards (and create those of named data sets), and take the sample shapes from them.
    phases: to prepare besides kTrain; by default those that the job evaluates.
    Raises ConfigError with every problem found.
    """
    job.check()
    ready = JobProto()
    ready.CopyFrom(job.proto)
    ready.neuralnet.CopyFrom(job.net)
    if ready.cluster.nworkers_per_procs > 1:
        message = "cluster.nworkers_per_procs: %d is ignored: every worker has a process of its own"
        logger.warning(message, ready.cluster.nworkers_per_procs)
    ready.checkpoint_path[:] = [str(Path(path).absolute()) for path in ready.checkpoint_path]
    entered = list(dict.fromkeys((Phase.kTrain, *(active_phases(ready) if phases is None else phases))))
    try:
        topology = job.topology
        codec(topology.codec, sparsity=topology.sparsity)
        code = pack(ready, job.folder)
        data: dict[str, str] = {}
        if with_data:
            data = _resolve_data(ready, entered)
            _check_vocabularies(ready, entered)
        else:
            for layer in ready.neuralnet.layer:
                layer.rgbimage_conf.ClearField("meanfile")
        nets = _build_nets(ready, entered, topology.nworkers_per_group)
        if phases is None:  # predictions need no labels
            _check_labels(nets)
        _check_classes(nets)
        for phase in entered[1:] or entered:  # those that are measured
            loss_metrics(nets[phase], ready.metric)
        algorithm(ready.train_one_batch).check(nets[Phase.kTrain])
        updater = make_updater(ready.updater, nets[Phase.kTrain].ops)
    except ConfigError as error:
        raise job.located(error) from error
    net = nets[Phase.kTrain]
    updater.bind(net.flat.entries, 0, 0)
    return Prepared(
        job=ready,
        topology=topology,
        data=data,
        layers={PHASE_NAMES[phase]: net.describe() for phase, net in nets.items()},
        parameters=sum(prod(param.whole_shape) for param in net.params),
        shapes={param.name: param.whole_shape for param in net.params},
        layout=GroupLayout.of(net.flat, net.own, topology.nworkers_per_group),
        drawn=net.drawn,
        updater_state=tuple(updater.state),
        code=code,
    )


def has_shapes(job: Job, phase: int) -> bool:
    """Whether the job gives the sample shapes of all input layers of this phase and of kTrain."""
    inputs = (layer for layer in job.net.layer if not layer.srclayers)
    return all(store_of(layer).shape for layer in inputs if runs_in(layer, phase) or runs_in(layer, Phase.kTrain))


def check_given(prepared: Prepared) -> None:
    """Check that the checkpoints of `checkpoint_path` exist and fit. Raises CheckpointError."""
    if prepared.job.checkpoint_path:
        fitting(load_parameters(prepared.job.checkpoint_path), prepared.shapes, prepared.drawn)


def training_data(data: Mapping[str, str]) -> dict[str, str]:
    """The fingerprints of the training data."""
    return {key: value for key, value in data.items() if key.startswith(data_key(Phase.kTrain, ""))}


def _build_nets(job: JobProto, phases: Sequence[int], workers: int) -> dict[int, Net]:
    """The net of every phase, as the first of a group's workers will build it; parameters have no memory here."""
    nets = make_nets(job, Ops(), 0, workers, phases=phases, allocate=False)
    nets[Phase.kTrain].check_initial_values(job.seed)
    for net in nets.values():
        for name in net.input_layers:
            if not net.layers[name].proto.HasField("store_conf"):
                message, hint = (
                    "reads no shards; user-defined input layers are not yet supported",
                    "Let it read a kRecordInput.",
                )
                raise net.layers[name].problem(message, hint=hint)
    return nets


def _check_labels(nets: Mapping[int, Net]) -> None:
    """Check that layers that read labels read data with labels."""
    for net in nets.values():
        for name, layer in net.layers.items():
            for first in net.labels_from(name):
                if first.name in net.input_layers and not store_of(first.proto).has_label:
                    message, hint = f"reads labels from {first.name!r}, which has none", "Leave has_label out."
                    raise layer.problem(message, "has_label: false", hint)


def _check_classes(nets: Mapping[int, Net]) -> None:
    """Check that a loss has an output for every class of its data."""
    for net in nets.values():
        for layer in net.layers.values():
            if not isinstance(layer, SoftmaxLoss):
                continue
            (first,) = net.labels_from(layer.name)
            if isinstance(first, Frame):  # the labels of a sequence
                first = net.layers[first.proto.srclayers[0]]
            folder = Path(first.proto.store_conf.path)
            if first.name not in net.input_layers or not folder.is_absolute():  # without data it is not resolved
                continue
            classes, outputs = Manifest.load(folder).num_classes, net.whole_shapes[layer.name][-1]
            if classes is not None and classes > outputs:
                hint = f"Let {layer.proto.srclayers[0]!r} have {classes} outputs."
                raise layer.problem(f"the data of {first.name!r} have {classes} classes", f"{outputs} outputs", hint)


def _check_vocabularies(job: JobProto, phases: Sequence[int]) -> None:
    """Check that all texts have the same vocabulary, and layers a vocab_size for all symbols. Raises ConfigError."""
    problems: list[Problem] = []
    texts = [layer for layer in job.neuralnet.layer if layer.type == LayerType.kCharRNN]
    texts = [layer for layer in texts if any(runs_in(layer, phase) for phase in phases)]
    for text in texts[1:]:
        first, path = texts[0].char_rnn_conf.path, text.char_rnn_conf.path
        difference = first_difference(vocabulary(path), vocabulary(first))
        if difference:
            hint = f"Rewrite its shards with --vocab {first}."
            message = f"its vocabulary differs from {first}: {difference}"
            problems.append(Problem(f"layer {text.name!r}.char_rnn_conf.path", message, path, hint))
    for phase in phases:
        layers = {layer.name: layer for layer in job.neuralnet.layer if runs_in(layer, phase)}
        for layer in layers.values():
            conf = _VOCABULARY_CONFS.get(layer.type)
            source = layers.get(layer.srclayers[0]) if layer.srclayers else None
            if conf is None or source is None or source.srclayers:
                continue
            store, size = store_of(source), getattr(layer, conf).vocab_size
            manifest = Manifest.load(Path(store.path)) if store.sequence and store.path else None
            symbols = None if manifest is None or manifest.has_labels else manifest.num_classes
            if symbols is not None and symbols > size:
                key = f"layer {layer.name!r}.{conf}.vocab_size"
                message = f"the text of {source.name!r} has {symbols} different symbols"
                problems.append(Problem(key, message, str(size), f"Use {symbols}."))
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)))


def _resolve_data(job: JobProto, phases: Sequence[int]) -> dict[str, str]:
    """Make data paths absolute and set sample shapes. Returns the fingerprints."""
    fingerprints: dict[str, str] = {}
    problems: list[Problem] = []
    for phase in phases:
        batches: dict[str, int] = {}
        for layer in job.neuralnet.layer:
            if not runs_in(layer, phase):
                continue
            try:
                if layer.rgbimage_conf.meanfile:
                    _resolve_mean(layer)
                if layer.type == LayerType.kCharRNN:
                    _resolve_text(layer.char_rnn_conf)
                if layer.type == LayerType.kCharRNNOutput:
                    layer.char_rnn_conf.vocabulary[:] = vocabulary(layer.char_rnn_conf.vocab_path)
                store = store_of(layer)
                if store.path and not layer.srclayers:
                    stream = _resolve_store(store, phase, job)
                    if layer.HasField("store_conf"):
                        layer.store_conf.CopyFrom(store)
                    fingerprints[data_key(phase, layer.name)] = stream.fingerprint
                    batches[layer.name] = stream.batchsize
            except ConfigError as error:
                problems.extend(replace(p, key=_key_in(layer, p.key)) for p in error.problems)
            except DataError as error:
                problems.append(Problem(f"layer {layer.name!r}", str(error)))
        if len(set(batches.values())) > 1:
            hint = "All input layers must have the same batchsize."
            problems.append(Problem("neuralnet", "input layers differ in batchsize", str(batches), hint))
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)))  # phases share layers
    return fingerprints


def _resolve_mean(layer: LayerProto) -> None:
    """Make the path of an ImagePreprocess layer's mean image absolute, and check the file."""
    path = statistics_path(layer.rgbimage_conf.meanfile)
    read_small(path, "mean", MAX_MEAN_NBYTES)
    layer.rgbimage_conf.meanfile = str(path)


def _key_in(layer: LayerProto, key: str) -> str:
    """The key of a data fault in the layer's own block."""
    if layer.type == LayerType.kCharRNN:
        key = key.replace("store_conf.sequence", "store_conf.unroll_len").replace("store_conf", "char_rnn_conf")
    block = CONF.get(LayerType.Name(layer.type), "store_conf")
    return key.replace(block, f"layer {layer.name!r}.{block}", 1)


def _resolve_text(conf: CharRNNProto) -> None:
    """Make the paths of a text absolute, and check the text and its vocabulary."""
    if Path(conf.path).expanduser().is_file():
        out = Path(conf.path).with_suffix("")
        hint = f"Run `singa-dask shard text --source {conf.path} --out {out}.shards`, and name that folder."
        raise ConfigError(Problem("char_rnn_conf.path", "must be a folder of shards, not a text", conf.path, hint))
    folder = resolve(conf.path)
    symbols = vocabulary(folder)
    conf.path = str(folder)
    if not conf.vocab_path:
        return
    difference = first_difference(vocabulary(conf.vocab_path), symbols)
    if difference is not None:
        hint = f"Leave it out, or rewrite the shards with --vocab {conf.vocab_path}."
        message = f"differs from the vocabulary of {folder}: {difference}"
        raise ConfigError(Problem("char_rnn_conf.vocab_path", message, conf.vocab_path, hint))
    if not conf.vocab_path.startswith("dataset:"):
        conf.vocab_path = str(Path(conf.vocab_path).expanduser().absolute())


def _resolve_store(store: StoreProto, phase: int, job: JobProto) -> AnyStream:
    info = store_info(store)
    stream = group_stream(job, store, info.manifest, phase)
    store.path = str(info.path)
    store.shape[:] = info.shape
    for name in ("mean_file", "std_file"):
        if getattr(store, name):
            setattr(store, name, str(statistics_path(getattr(store, name))))
    return stream
