"""Checks of a job before anything starts: nets, data, user code, updater."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path

from singa_dask.algorithms import algorithm
from singa_dask.algorithms.measured import loss_metrics
from singa_dask.comm.codecs import codec
from singa_dask.convert.parts import some
from singa_dask.data import (
    Manifest,
    first_difference,
    vocabulary,
)
from singa_dask.data.generated import generated_manifest
from singa_dask.data.shared_files import in_place_files
from singa_dask.data.store import columns_of
from singa_dask.errors import ConfigError, Problem
from singa_dask.job import ClusterTopology, Job, active_phases, graph_phase, reads_data, runs_in
from singa_dask.job.check_names import parameter_faults, shown
from singa_dask.job.code_bundle import CodeBundle, not_kept, pack
from singa_dask.job.evaluations import PHASE_NAMES
from singa_dask.job.job_pb2 import JobProto, LayerType, Phase
from singa_dask.job.outputs import are_other_outputs
from singa_dask.job.stores import store_of
from singa_dask.job.text_paths import text_of
from singa_dask.layers import Frame, GeneratedInput, Layer, SoftmaxLoss
from singa_dask.net import LayerRow, Net, features_as_targets, labelled_inputs
from singa_dask.net.flat import GroupLayout
from singa_dask.net.rows import warn_of_mixing
from singa_dask.ops import Ops, get_ops
from singa_dask.server import Partition
from singa_dask.training.checkpoint import Checkpoint, Contents, contents_of, find
from singa_dask.training.feed import data_key, group_stream
from singa_dask.training.initial_parameters import fitting, load_parameters
from singa_dask.training.nets import make_nets
from singa_dask.training.placement import parameter_partition
from singa_dask.training.readings import check_same_order, other_scale
from singa_dask.training.resolve_data import resolve_data
from singa_dask.training.transformation import Transformation
from singa_dask.updaters import make_updater

logger = logging.getLogger(__name__)

# Layers that read symbols -> the block with their vocab_size.
VOCABULARY_CONFS: dict[int, str] = {LayerType.kOneHot: "onehot_conf", LayerType.kEmbedding: "embedding_conf"}


@dataclass(frozen=True)
class Prepared:
    """A job that can run. Its data paths are absolute, and its sample shapes are set.

    data: fingerprints of the order of samples, by phase and input layer ("train/data"), and of how they are read
    (readings.py). layers: the rows of `Net.describe`, by phase ("train", "validate", "test"). parameters: number of
    trained elements. shapes: of the whole parameters, by name. layout: where the parameters of a worker group lie.
    drawn: names of the parameters with an `init` block. updater_state: names of the updater's arrays. described: the
    columns and encoders of the training data, by input layer (`Manifest.description`). code: the user's, for workers.
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
    described: dict[str, str] = field(default_factory=dict)
    code: CodeBundle | None = None

    @property
    def contents(self) -> Contents:
        """Of its checkpoints."""
        return contents_of(self.shapes, self.updater_state)

    @property
    def partition(self) -> Partition:
        """The partition of the parameters among workers and servers."""
        return parameter_partition(self.topology, self.layout, self.job.updater)


def prepare(
    job: Job, *, with_data: bool = True, phases: Sequence[int] | None = None, before: Checkpoint | None = None
) -> Prepared:
    """Check a job and build its nets once, in plain NumPy.

    with_data: also find the shards (and create those of named data sets), and take the sample shapes from them. If
    False, no data file is opened: neither shards nor mean images nor vocabularies.
    phases: to prepare besides kTrain; by default those that the job evaluates. before: the checkpoint to evaluate.
    Raises ConfigError with every problem found.
    """
    job.check()
    ready = JobProto()
    ready.CopyFrom(job.proto)
    ready.neuralnet.CopyFrom(job.net)
    if ready.cluster.nworkers_per_procs > 1:
        message = "cluster.nworkers_per_procs: %d is ignored: every worker has a process of its own"
        logger.warning(message, ready.cluster.nworkers_per_procs)
    ready.checkpoint_path[:] = [text_of(Path(path).absolute(), "checkpoint_path") for path in ready.checkpoint_path]
    entered = list(dict.fromkeys((Phase.kTrain, *(active_phases(ready) if phases is None else phases))))
    if phases is None:
        _warn_of_unused_data(ready)
    try:
        topology = job.topology
        codec(topology.codec, sparsity=topology.sparsity)
        code = pack(ready, job.folder)
        for problem in not_kept(ready, job.folder):
            logger.warning("%s", problem)
        data: dict[str, str] = {}
        described: dict[str, str] = {}
        if with_data:
            read = list(dict.fromkeys(graph_phase(ready.neuralnet.layer, phase) for phase in entered))
            data, described = resolve_data(ready, read, before)
            _check_vocabularies(ready, read)
        else:
            for layer in ready.neuralnet.layer:
                layer.rgbimage_conf.ClearField("meanfile")
        nets = _build_nets(ready, entered, topology.nworkers_per_group)
        _check_nets(ready, nets, with_data=with_data, predicts=phases is not None)
        data |= _generated_data(ready, nets)
        updater = make_updater(ready.updater, nets[Phase.kTrain].ops)
        train = nets[Phase.kTrain]
        updater.check_fits([param.name for param in train.params], [param.name for param in train.own.params])
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
        described=described,
        code=code and code.signed(),
    )


def has_shapes(job: Job, phase: int) -> bool:
    """Whether the job gives the sample shapes of all input layers of this phase and of kTrain."""
    inputs = (layer for layer in job.net.layer if not layer.srclayers)
    return all(store_of(layer).shape for layer in inputs if runs_in(layer, phase) or runs_in(layer, Phase.kTrain))


def check_given(prepared: Prepared) -> tuple[str, ...]:
    """Check that the files of `checkpoint_path` exist and fit; what is to be said of them. Raises CheckpointError, and
    ConfigError for tensors that do not fit."""
    paths = prepared.job.checkpoint_path
    if not paths:
        return ()
    net = Net(prepared.job.neuralnet, Phase.kTrain, get_ops("cpu"), allocate=False)
    said: list[str] = []

    def compare(path: Path, checkpoint: Checkpoint) -> None:
        check_same_order(path, checkpoint.described, prepared.described)
        said.extend(other_scale(f"the parameters of {path}", checkpoint.job, prepared.job))

    given = fitting(load_parameters(paths, net, compare), prepared.shapes, prepared.drawn)
    drawn = [name for name in prepared.shapes if name not in given]
    rest = f"; drawn: {some(drawn)}" if drawn else ""
    return f"{len(given)} of {len(prepared.shapes)} initial parameters are from {', '.join(paths)}{rest}", *said


def files_named(prepared: Prepared) -> list[Path]:
    """What the job names and workers read: folders of shards, the files of those that are read in place, mean images,
    vocabularies and checkpoints."""
    job, files = prepared.job, []
    phases = {graph_phase(job.neuralnet.layer, phase) for phase in active_phases(job)}
    for layer in job.neuralnet.layer:
        if not any(runs_in(layer, phase) for phase in phases):
            continue
        store = store_of(layer)
        if store.path and not layer.srclayers:
            files += [Path(store.path), *in_place_files(Path(store.path))]
        files += [Path(name) for name in (layer.rgbimage_conf.meanfile, layer.char_rnn_conf.vocab_path) if name]
    return files + [find(Path(path)) for path in job.checkpoint_path]


def training_data(data: Mapping[str, str]) -> dict[str, str]:
    """The fingerprints of the training data."""
    return {key: value for key, value in data.items() if key.startswith(data_key(Phase.kTrain, ""))}


def _check_nets(job: JobProto, nets: Mapping[int, Net], *, with_data: bool, predicts: bool) -> None:
    """Raise ConfigError where the nets do not fit their data, the metrics or the algorithm."""
    if not predicts:  # which needs no labels
        _check_labels(nets)
        _warn_of_features_as_targets(nets)
    _check_transforms(job, nets[Phase.kTrain])
    if with_data:
        _check_classes(nets)
    for phase in () if predicts else [*nets][1:]:
        warn_of_mixing(nets[phase])
    for phase in [*nets][1:] or nets:  # those that are measured
        loss_metrics(nets[phase], job.metric)
    algorithm(job.train_one_batch).check(nets[Phase.kTrain])


def _check_transforms(job: JobProto, train: Net) -> None:
    """Check that the transform of the job exists, and belongs to the training. Raises ConfigError."""
    for layer in job.neuralnet.layer:
        if layer.store_conf.transform and not runs_in(layer, Phase.kTrain):
            key, hint = f"layer {layer.name!r}.store_conf.transform", "Leave it out."
            message = "changes the mini-batches of training, and this layer has no part in it"
            raise ConfigError(Problem(key, message, layer.store_conf.transform, hint))
    Transformation.of(train, job.seed)


def _warn_of_unused_data(job: JobProto) -> None:
    """Warn of input layers for the validation only, in a job that does not validate."""
    for layer in job.neuralnet.layer:
        if reads_data(layer) and list(layer.include) == [Phase.kVal] and job.validate_freq == 0:
            why = "validate_freq is 0. Write validate_freq: 100, or another number of steps"
            logger.warning("layer %r reads validation data, but nothing evaluates them: %s", layer.name, why)


def _build_nets(job: JobProto, phases: Sequence[int], workers: int) -> dict[int, Net]:
    """The net of every phase, as the first of a group's workers will build it; parameters have no memory here."""
    nets = make_nets(job, Ops(), 0, workers, phases=phases, allocate=False)
    problems = [
        Problem("neuralnet", f"the parameter {shown(name)} {fault}", hint="Rename it where its layer declares it.")
        for net in nets.values()
        for name, fault in parameter_faults(param.name for param in net.params)
    ]
    if problems:
        raise ConfigError(dict.fromkeys(problems))
    nets[Phase.kTrain].check_initial_values(job.seed)
    for net in nets.values():
        for name in net.input_layers:
            layer = net.input_layer(name)
            if not (isinstance(layer, GeneratedInput) or layer.proto.HasField("store_conf")):
                raise layer.problem("reads no shards and generates no samples", hint="Derive it from GeneratedInput.")
    return nets


def _generated_data(job: JobProto, nets: Mapping[int, Net]) -> dict[str, str]:
    """The fingerprints of samples that layers generate. Raises ConfigError if they do not pair with those of the other
    input layers of a net."""
    found, workers = {}, job.cluster.nworkers_per_group
    for phase, net in nets.items():
        inputs = [net.input_layer(name) for name in net.input_layers]
        totals = {}
        for layer in inputs:
            if isinstance(layer, GeneratedInput):
                manifest = generated_manifest(layer)
                key = graph_phase(job.neuralnet.layer, phase)
                found[data_key(key, layer.name)] = group_stream(job, layer.conf, manifest, key).fingerprint
                totals[layer.name] = manifest.total, list(layer.conf.batchsize)
                if min(layer.conf.batchsize) < workers:
                    message = f"batchsize is shared by the {workers} workers of a group"
                    raise layer.problem(message, min(layer.conf.batchsize), f"Use {workers} or more.")
        if totals and (len(totals) < len(inputs) or len({str(total) for total in totals.values()}) > 1):
            hint = "Let one layer generate all features, and other layers cut them."
            message = (
                "input layers must generate equally many samples, in mini-batches of one size, and read no shards"
            )
            raise ConfigError(Problem("neuralnet", message, ", ".join(net.input_layers), hint))
    return found


def _check_labels(nets: Mapping[int, Net]) -> None:
    """Check that layers that read labels read data with labels."""
    for net in nets.values():
        for name, layer in net.layers.items():
            for first in net.labels_from(name):
                if first.name in net.input_layers and not store_of(first.proto).has_label:
                    message, hint = f"reads labels from {first.name!r}, which has none", "Leave has_label out."
                    raise layer.problem(message, "has_label: false", hint)


def _warn_of_features_as_targets(nets: Mapping[int, Net]) -> None:
    """Warn where a loss takes samples as its target although their data have labels, which no layer reads."""
    found = {pair for net in nets.values() for pair in features_as_targets(net).items()}
    read = {source for net in nets.values() for source in labelled_inputs(net)}
    for name, source in sorted(found):
        if source not in read and any(
            source in net.layers and _has_labels(net.layers[source]) for net in nets.values()
        ):
            logger.warning(
                "layer %r takes the samples of %r as its target, not their labels. If this is meant, as in an "
                "autoencoder, set has_label: false. If the labels are numbers to predict, write the shards with "
                "`singa-dask shard ... --target NAME`.",
                name,
                source,
            )


def _has_labels(layer: Layer) -> bool:
    store = store_of(layer.proto)
    return bool(store.path) and store.has_label


def _check_classes(nets: Mapping[int, Net]) -> None:
    """Check that a loss has an output for every class of its data, and warn of labels that lost their numbers."""
    numbered: list[tuple[str, str, int]] = []
    for net in nets.values():
        for layer in net.layers.values():
            if not isinstance(layer, SoftmaxLoss):
                continue
            (first,) = net.labels_from(layer.name)
            if isinstance(first, Frame):  # the labels of a sequence
                first = net.layers[first.proto.srclayers[0]]
            if first.name not in net.input_layers or isinstance(first, GeneratedInput):
                continue
            store = first.proto.store_conf
            column, labels = columns_of(store, Manifest.load(Path(store.path)))
            named, outputs = labels or column, net.whole_shapes[layer.name][-1]
            classes = named.num_classes
            conf = layer.proto.softmaxloss_conf
            ignores = conf.HasField("ignore_label") and conf.ignore_label >= outputs
            names = named.classes if isinstance(named.classes, tuple) and conf.HasField("ignore_label") else ()
            if (ignored := str(conf.ignore_label)) in names and names.index(ignored) != conf.ignore_label:
                what = f"is the name of class {names.index(ignored)} in the data of {first.name!r}, not its number"
                raise layer.problem(f"ignore_label {what}", ignored, f"Write {names.index(ignored)}.")
            if classes is not None and classes > outputs and not ignores:
                hint = f"Let {layer.proto.srclayers[0]!r} have {classes} outputs."
                raise layer.problem(f"the data of {first.name!r} have {classes} classes", f"{outputs} outputs", hint)
            if are_other_outputs(named.classes, outputs):
                numbered.append((store.path, ", ".join(named.classes[:8]), outputs))
    for told in dict.fromkeys(numbered):  # phases share data
        message = "%s: its labels %s are the classes 0, 1, ..., though the net has outputs with their numbers, of %s."
        logger.warning(f"{message} To keep the numbers, write the shards with --category NAME=0,1,2,...", *told)


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
            conf = VOCABULARY_CONFS.get(layer.type)
            source = layers.get(layer.srclayers[0]) if layer.srclayers else None
            if conf is None or source is None or source.srclayers:
                continue
            store, size = store_of(source), getattr(layer, conf).vocab_size
            manifest = Manifest.load(Path(store.path)) if store.sequence and store.path else None
            symbols = None if manifest is None or manifest.targets else manifest.features.num_classes
            if symbols is not None and symbols > size:
                key = f"layer {layer.name!r}.{conf}.vocab_size"
                message = f"the text of {source.name!r} has {symbols} different symbols"
                problems.append(Problem(key, message, str(size), f"Use {symbols}."))
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)))
