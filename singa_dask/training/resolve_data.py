"""The data of a job: finds them, and puts what the job takes from them into the job."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from singa_dask.data import (
    AnyStream,
    Manifest,
    breaks,
    check_lengths,
    check_step,
    first_difference,
    keep_step,
    read_small,
    record_step,
    resolve,
    resolve_normalisation,
    series_starts,
    statistics_path,
    store_info,
    trained_step,
    vocabulary,
    with_statistics,
)
from singa_dask.data.columns import Column, Role
from singa_dask.data.store import StoreInfo
from singa_dask.errors import ConfigError, DataError, Problem
from singa_dask.job import Job, reads_data, runs_in
from singa_dask.job.evaluations import PHASE_NAMES
from singa_dask.job.job_pb2 import CharRNNProto, JobProto, LayerProto, LayerType, Phase, StoreProto
from singa_dask.job.layer_types import CONF
from singa_dask.job.stores import reads_windows, store_of
from singa_dask.job.text_paths import text_of
from singa_dask.training.checkpoint import Checkpoint
from singa_dask.training.feed import data_key, group_stream
from singa_dask.training.readings import fingerprint, reading_key, scale_of

logger = logging.getLogger(__name__)

MAX_MEAN_NBYTES = 1 << 30
# Fields of store_conf on which the places of samples depend.
_ORDERING = ("shuffle", "random_skip", "sequence", "lookahead", "horizon", "stride", "series", "validation_share")


def resolve_data(
    job: JobProto, phases: Sequence[int], before: Checkpoint | None = None
) -> tuple[dict[str, str], dict[str, str]]:
    """Make data paths absolute, and set the shapes of samples and targets and the numbers of the normalisation.

    phases: kTrain first. before: what the parameters are of, if the job only evaluates. Returns the fingerprints and
    the descriptions of `Prepared`. Raises ConfigError with every problem found.
    """
    resolver = _Resolver(job, before)
    for phase in phases:
        resolver.enter(phase)
    resolver.take_over()
    if resolver.problems:
        raise ConfigError(list(dict.fromkeys(resolver.problems)))  # phases share layers
    return resolver.fingerprints, resolver.described


@dataclass
class _Resolver:
    job: JobProto
    before: Checkpoint | None
    fingerprints: dict[str, str] = field(default_factory=dict)
    described: dict[str, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    # The input layers that train, by name: their data and store_conf.
    trained: dict[str, tuple[StoreInfo, StoreProto]] = field(default_factory=dict)

    def enter(self, phase: int) -> None:
        """Resolve the layers of a phase."""
        inputs: dict[str, tuple[StoreInfo, AnyStream]] = {}
        for layer in self.job.neuralnet.layer:
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
                    inputs[layer.name] = self._resolve_store(layer.name, store, phase)
                    if layer.HasField("store_conf"):
                        layer.store_conf.CopyFrom(store)
            except ConfigError as error:
                self.problems.extend(replace(p, key=_key_in(layer, p.key)) for p in error.problems)
            except DataError as error:
                self.problems.append(Problem(f"layer {layer.name!r}", str(error)))
        self._check_batches({name: stream.batchsize for name, (_, stream) in inputs.items()})
        self._check_pairs(inputs)
        if phase == Phase.kTrain:
            self._check_factors([info for info, _ in inputs.values()])

    def _check_factors(self, infos: Sequence[StoreInfo]) -> None:
        """Check that masks and weights of the training data are read."""
        for manifest in {info.manifest.digest: info.manifest for info in infos if info.labels}.values():
            read = {info.column.name for info in infos if info.manifest.digest == manifest.digest}
            for column in manifest.columns:
                if column.role not in (Role.MASK, Role.WEIGHT) or column.name in read:
                    continue
                message = f"{manifest.folder} has the {column.role} {column.name!r}, but no layer reads it"
                hint = (
                    f"Add a kRecordInput with column: {column.name!r} and has_label: false, "
                    "and name it as the third source of the loss."
                )
                if column.role is Role.MASK:  # what it hides is stored as 0
                    self.problems.append(Problem("neuralnet", message, hint=hint))
                else:
                    logger.warning("%s: every sample counts the same. %s", message, hint)

    def take_over(self) -> None:
        """Give input layers of phases that were not entered the shapes and normalisation of the training layer of the
        same name: a model of this job has them too, and needs no data of theirs."""
        for layer in self.job.neuralnet.layer:
            if not layer.HasField("store_conf") or not reads_data(layer):
                continue
            store, trained = layer.store_conf, self.trained.get(layer.name, (None, None))[1]
            if trained is None or store.shape or store.column != trained.column:
                continue
            for name in ("shape", "target_shape", "label_shape"):
                getattr(store, name)[:] = getattr(trained, name)
            for flag, names in (("normalise", ("mean", "std")), ("normalise_target", ("target_mean", "target_std"))):
                for name in names if getattr(store, flag) else ():
                    getattr(store, name)[:] = getattr(trained, name)
                store.ClearField(flag)

    def _resolve_store(self, name: str, store: StoreProto, phase: int) -> tuple[StoreInfo, AnyStream]:
        info = store_info(store)
        in_order = not info.manifest.shuffled  # the stream refuses other sequences
        if in_order and reads_windows(store):
            store.series_start[:] = series_starts(info.manifest, store.series, store.sequence + store.horizon)
            if phase == Phase.kTrain:
                step = record_step(info.manifest, store.series_start)
                keep_step(store, step if step.size else trained_step(store))  # an estimator knows that of its index
            else:
                trained = self.trained.get(name, (None, store))[1]
                check_step(info.manifest, store.series_start, trained_step(trained))
                keep_step(store, trained_step(trained))
        elif in_order and store.sequence and len(missing := breaks(info.manifest)[1]):
            message = f"reads sequences, and rows of the source are missing before {len(missing):,} records"
            hint = "Split by a date (--test-from), not at random, or hold out the last ones with validation_share."
            raise ConfigError(Problem("store_conf.sequence", f"{message} of {info.path}", str(store.sequence), hint))
        if store.lengths:
            check_lengths(info.manifest, store.lengths, store.time_steps)
        stream = group_stream(self.job, store, info.manifest, phase)
        store.path = text_of(info.path, "store_conf.path")
        store.shape[:] = info.shape
        if store.horizon > 1 and info.labels is not None and info.labels.role is Role.LABEL:
            message = "must be 1 for labels that are classes: a row has one of them"
            hint = "The label of a record can be that of a later one: shift them before you write the shards."
            raise ConfigError(Problem("store_conf.horizon", message, str(store.horizon), hint))
        if store.horizon and info.column.role in (Role.MASK, Role.WEIGHT):
            message = f"is of windows, and {info.column.name!r} is a {info.column.role}, which counts single records"
            hint = "Leave the mask or weights out of the shards."
            raise ConfigError(Problem("store_conf.horizon", message, str(store.horizon), hint))
        if phase == Phase.kTrain:
            _warn_of_training(info, store)
            info = _with_statistics(info, store, stream)
        fitted, trained = self.trained.get(name, (info, store))
        if fitted is not info:
            _check_as_trained(info, fitted, store, trained)
        labels = info.labels or fitted.labels  # what a net predicts without labels is what it was trained for
        targets = labels is not None and labels.role is not Role.LABEL
        shape = labels.job_shape if labels is not None and targets else ()
        positions = labels.job_shape if labels is not None and labels.of_positions else ()
        _check_answers(store, "target_shape", "targets", shape, info)
        _check_answers(store, "label_shape", "labels", positions, info)
        store.target_shape[:] = shape
        store.label_shape[:] = positions
        resolve_normalisation(store, info.column, fitted.column, fitted.labels if targets else None)
        self.fingerprints[data_key(phase, name)] = stream.fingerprint
        if phase == Phase.kTrain:
            self.trained[name] = info, store
            self.described[name] = info.manifest.description
            self.fingerprints[reading_key(name)] = fingerprint(store)
            return info, stream
        if fitted is not info and not store.validation_share and info.manifest.digest == self._trained_on(name):
            message = "the %s metrics are of the training data: layer %r reads %s in both phases"
            logger.warning(message, PHASE_NAMES[phase], name, info.path)
        if name in self.trained and scale_of(store) != scale_of(self.trained[name][1]):
            message = "layer %r normalises the samples of phase %s otherwise than those of training"
            logger.warning(message, name, PHASE_NAMES[phase])
        return info, stream

    def _trained_on(self, name: str) -> str:
        """The digest of the data with which this layer trained the parameters: an override may name others."""
        key = data_key(Phase.kTrain, name)
        if self.before is None or self.before.data.get(key) == self.fingerprints[key]:
            return self.trained[name][0].manifest.digest
        layers = Job.from_text(self.before.job).net.layer
        return next(
            (
                Manifest.load(Path(store_of(layer).path)).digest
                for layer in layers
                if layer.name == name and runs_in(layer, Phase.kTrain)
            ),
            "",
        )

    def _check_batches(self, batches: dict[str, int]) -> None:
        if len(set(batches.values())) > 1:
            hint = "All input layers must have the same batchsize."
            self.problems.append(Problem("neuralnet", "input layers differ in batchsize", str(batches), hint))

    def _check_pairs(self, inputs: dict[str, tuple[StoreInfo, AnyStream]]) -> None:
        """Check that the n-th samples of all input layers belong together."""
        if not inputs:
            return
        (first, (info, stream)), *others = inputs.items()
        for name, (other, its_stream) in others:
            for what, mine, its in _pairing(info, stream, other, its_stream):
                if mine != its:
                    message = f"pairs its samples with those of {first!r}, but their {what} differ"
                    hint = "Write both into the same shards, as two columns, and name them in store_conf.column."
                    self.problems.append(Problem(f"layer {name!r}", message, f"{mine} and {its}", hint))
                    break


def _warn_of_training(info: StoreInfo, store: StoreProto) -> None:
    """Warn of records that may be sequences, and of held-out samples that share values with those that train."""
    if store.sequence and info.column.shape[:-1] == (store.sequence,):
        message = "%s: a record has %s values, and a row is %d such records. If a record is a sequence, use time_steps"
        logger.warning(message, info.path, info.column.shape, store.sequence)
    if store.validation_share and info.manifest.overlaps:
        message = (
            "%s: the patches overlap, and those that validation_share: %g holds out share values with those that "
            "train. Split the shards by records (--split-by), or validate on shards of another field"
        )
        logger.warning(message, info.path, store.validation_share)


def _with_statistics(info: StoreInfo, store: StoreProto, stream: AnyStream) -> StoreInfo:
    """The data with statistics that the manifest does not have: of single time steps, and without the samples that are
    held out."""
    if (store.time_steps or store.validation_share) and store.normalise:
        info = replace(info, column=with_statistics(info.column, stream.manifest, stream.conf, store.lengths))
    if store.validation_share and store.normalise_target and info.labels is not None:
        info = replace(info, labels=with_statistics(info.labels, stream.manifest, stream.conf))
    return info


def _check_as_trained(info: StoreInfo, fitted: StoreInfo, store: StoreProto, trained: StoreProto) -> None:
    """Check that samples mean the same as those of training, and are others. Raises ConfigError."""
    hint = "Write both at once (--validation, --test), or in Python with like= the manifest of the training data."
    if info.manifest.encoders != fitted.manifest.encoders:
        message = f"encodes the columns of its table otherwise than {fitted.path}"
        raise ConfigError(Problem("store_conf.path", message, str(info.path), hint))
    if not info.column.filled_like(fitted.column):
        message = f"fills missing values of {info.column.name!r} otherwise than {fitted.path}"
        raise ConfigError(Problem("store_conf.path", message, str(info.path), hint))
    names, known = (_class_names(of.labels) for of in (info, fitted))
    if names and known and names != known[: len(names)]:
        message = f"has other classes, or in another order, than {fitted.path}"
        raise ConfigError(Problem("store_conf.path", message, ", ".join(names[:8]), hint))
    same = info.manifest.digest == fitted.manifest.digest
    if same and store.validation_share != trained.validation_share:
        message = "must be equal for training and other phases that read the same shards"
        received = f"{trained.validation_share:g} in training, {store.validation_share:g} here"
        raise ConfigError(Problem("store_conf.validation_share", message, received, "Set it in both layers."))


def _class_names(labels: Column | None) -> tuple[str, ...]:
    classes = labels.classes if labels is not None else None
    return tuple(map(str, range(classes))) if isinstance(classes, int) else classes or ()


def _check_answers(store: StoreProto, field: str, what: str, shape: Sequence[int], info: StoreInfo) -> None:
    """Check the target_shape or label_shape that a job gives. what: its values; shape: theirs in the shards, empty if
    there are none."""
    given = list(getattr(store, field))
    if given and given != list(shape):
        others = {"targets": "labels that are classes, or none", "labels": "one label for each sample, or targets"}
        has = f"has {what} of shape {list(shape)}" if shape else f"has {others[what]}"
        ways = {"targets": "--target NAME` writes numbers as targets", "labels": "--label NAME` writes them as labels"}
        hint = f"Leave it out: it is taken from the shards. `singa-dask shard ... {ways[what]}."
        raise ConfigError(Problem(f"store_conf.{field}", f"{info.path} {has}", str(given), hint))


def _pairing(info: StoreInfo, stream: AnyStream, other: StoreInfo, its: AnyStream) -> list[tuple[str, Any, Any]]:
    """What must be equal for two inputs to have the same samples in the same places: name and both values."""
    mine, theirs = info.manifest, other.manifest
    orders = (mine.order, theirs.order) if mine.order and theirs.order else ("", "")
    windows = [tuple((window.start, window.samples) for window in m.windows) for m in (mine, theirs)]
    same = mine.digest == theirs.digest or windows[0] == windows[1]
    return [
        ("numbers of samples", mine.total, theirs.total),
        ("windows", *((0, 0) if same else map(_windows, (mine, theirs)))),
        ("orders", *orders),
        *((name, getattr(stream.conf, name), getattr(its.conf, name)) for name in _ORDERING),
    ]


def _windows(manifest: Manifest) -> str:
    return f"{len(manifest.shards)} shard(s) with windows of {manifest.window} samples"


def _resolve_mean(layer: LayerProto) -> None:
    """Make the path of an ImagePreprocess layer's mean image absolute, and check the file."""
    path = statistics_path(layer.rgbimage_conf.meanfile)
    read_small(path, "mean", MAX_MEAN_NBYTES)
    layer.rgbimage_conf.meanfile = text_of(path, "rgbimage_conf.meanfile")


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
        vocab = f" --vocab {conf.vocab_path}" * bool(conf.vocab_path)
        hint = f"Run `singa-dask shard text --source {conf.path}{vocab} --out {out}.shards`, and name that folder."
        raise ConfigError(Problem("char_rnn_conf.path", "must be a folder of shards, not a text", conf.path, hint))
    folder = resolve(conf.path)
    symbols = vocabulary(folder)
    conf.path = text_of(folder, "char_rnn_conf.path")
    if not conf.vocab_path:
        return
    difference = first_difference(vocabulary(conf.vocab_path), symbols)
    if difference is not None:
        hint = f"Leave it out, or rewrite the shards with --vocab {conf.vocab_path}."
        message = f"differs from the vocabulary of {folder}: {difference}"
        raise ConfigError(Problem("char_rnn_conf.vocab_path", message, conf.vocab_path, hint))
    if not conf.vocab_path.startswith("dataset:"):
        vocab_path = Path(conf.vocab_path).expanduser().absolute()
        conf.vocab_path = text_of(vocab_path, "char_rnn_conf.vocab_path")
