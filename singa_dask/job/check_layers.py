"""Checks of single layers: type, settings, parameters, data."""

from __future__ import annotations

import re
from typing import Any

from singa_dask.job.check_user import check_code, check_user
from singa_dask.job.findings import Findings
from singa_dask.job.job_pb2 import AlgProto, LayerProto, ParamGenProto, Phase, StoreProto
from singa_dask.job.layer_types import (
    CONF,
    DEPRECATED,
    INSERTED,
    LOSSES,
    REQUIRED,
    SOURCES,
    parameter_roles,
    type_name,
)
from singa_dask.job.paths import Path, layers_of
from singa_dask.job.stores import reads_windows, store_of

_CONF_FIELDS = [f.name for f in LayerProto.DESCRIPTOR.fields if f.name.endswith("_conf") and f.message_type]
_NAMED_SET = re.compile(r"dataset:[\w.-]+/[\w.-]+")
_UNIFORM = (ParamGenProto.kUniform, ParamGenProto.kUniformSqrtFanIn, ParamGenProto.kUniformSqrtFanInOut)


def check_layers(findings: Findings) -> None:
    """Check every layer on its own."""
    for path, layer in layers_of(findings.job):
        _check_type(findings, path, layer)
        _check_phases(findings, path, layer)
        if type_name(layer) in DEPRECATED:
            continue  # its settings cannot be checked
        _check_confs(findings, path, layer)
        _check_source_count(findings, path, layer)
        _check_params(findings, path, layer)
        if type_name(layer) in SOURCES:
            conf = CONF[type_name(layer)]
            _check_data(findings, (*path, conf), store_of(layer))
            if conf == "store_conf":
                _check_store(findings, (*path, conf), layer.store_conf)
        for conf in ("convolution_conf", "pooling_conf"):
            if layer.HasField(conf):
                _check_padding(findings, (*path, conf), getattr(layer, conf))


def _check_type(findings: Findings, path: Path, layer: LayerProto) -> None:
    if type_name(layer) in DEPRECATED:
        message = "SINGA deprecated this layer type; singa_dask does not have it"
        findings.add((*path, "type"), message, type_name(layer), DEPRECATED[type_name(layer)])
    if type_name(layer) in INSERTED:
        message = f"is inserted by the {INSERTED[type_name(layer)]}; a job must not have it"
        findings.add((*path, "type"), message, type_name(layer), "Leave the layer out.")
    check_user(findings, layer, path, example="kReLU")


def _check_phases(findings: Findings, path: Path, layer: LayerProto) -> None:
    if layer.include and layer.exclude:
        findings.add((*path, "exclude"), "include and exclude exclude each other: give one of them", "both")
    for field in ("include", "exclude"):
        if Phase.kUnknown in getattr(layer, field):
            findings.add((*path, field), "is no phase", "kUnknown", "Use kTrain, kVal or kTest.")
    for field, default, setter in (
        ("partition_id", 0, "partitioning"),
        ("num_partitions", 1, "partitioning"),
        ("unroll_index", 0, "unrolling"),
        ("num_instances", 1, "unrolling"),
    ):
        if getattr(layer, field) != default:
            value = str(getattr(layer, field))
            findings.add((*path, field), f"is set by the {setter}; a job must not set it", value, "Leave it out.")


def _check_confs(findings: Findings, path: Path, layer: LayerProto) -> None:
    """Check that required fields are given, and that no block is given that the type does not read."""
    name = type_name(layer)
    for field, example in REQUIRED.get(name, {}).items():
        conf, block = CONF[name], getattr(layer, CONF[name])
        given = field in (f.name for f, _ in block.ListFields())
        if not given or getattr(block, field) == "":
            why = f"is missing: {name} needs it"
            findings.missing((*path, conf, field), f"{conf} {{ {field}: {example} }}", why)
    for conf in _CONF_FIELDS:
        if layer.HasField(conf) and conf != CONF.get(name):
            hint = f"It reads {CONF[name]}." if name in CONF else "Leave it out."
            if name == "kUserLayer":
                if not layer.user_type:
                    continue  # the missing type is reported elsewhere
                hint = "Its settings are a JSON object in user_conf."
            findings.add((*path, conf), f"is not read by {name}", hint=hint)


def _check_source_count(findings: Findings, path: Path, layer: LayerProto) -> None:
    name, n = type_name(layer), len(layer.srclayers)
    if name in SOURCES:
        if n:
            hint = "Leave srclayers out."
            findings.add((*path, "srclayers"), f"{name} reads data, not layers", ", ".join(layer.srclayers), hint)
    elif name in LOSSES or name == "kAccuracy":
        if not 2 <= n <= 2 + (name in LOSSES):
            received = ", ".join(layer.srclayers) or "none"
            hint = 'For example srclayers: "ip2" srclayers: "data".'
            third = "; a third one may give weights" * (name in LOSSES)
            message = f"{name} needs two sources: a prediction and a label{third}"
            findings.add((*path, "srclayers"), message, received, hint)
    elif n == 0 and name not in ("kUserLayer", "kRNNDummy") and not (name == "kDummy" and layer.dummy_conf.input):
        findings.missing((*path, "srclayers"), 'srclayers: "the layer before"', "is missing: the layer has no source")


def _check_params(findings: Findings, path: Path, layer: LayerProto) -> None:
    roles = parameter_roles(layer)
    if roles is not None and len(layer.param) > len(roles):
        has = f"has {len(roles)} parameters ({', '.join(roles)})" if roles else "has no parameters"
        received = f"{len(layer.param)} param blocks"
        findings.add((*path, "param", len(roles)), f"{type_name(layer)} {has}", received, "Leave the others out.")
    for i, param in enumerate(layer.param):
        if not param.HasField("init"):
            continue
        init, where = param.init, (*path, "param", i, "init")
        check_user(findings, init, where, example="kGaussian", kind="function")
        if init.type in _UNIFORM and init.low > init.high:
            findings.add((*where, "low"), "must not be above high", f"low={init.low:g}, high={init.high:g}")


def _check_data(findings: Findings, where: Path, store: StoreProto) -> None:
    """Check the loader's settings. store: from `store_of`; where: the block they come from."""
    if store.path.startswith("dataset:") and not _NAMED_SET.fullmatch(store.path):
        hint = 'For example "dataset:mnist/train".'
        findings.add((*where, "path"), 'a named data set is spelled "dataset:NAME/SPLIT"', store.path, hint)
    workers = findings.job.cluster.nworkers_per_group
    for i, size in enumerate(store.batchsize):
        if 1 <= size < workers:
            message = f"is shared by the {workers} workers of a group, and each needs at least one sample"
            entry = (i,) if where[-1] == "store_conf" else ()
            findings.add((*where, "batchsize", *entry), message, str(size), f"Use {workers} or more.")


def _check_store(findings: Findings, where: Path, store: StoreProto) -> None:
    groups = findings.job.cluster.nworker_groups
    if len(store.shape) > 4:
        hint = "Write the shape of one sample: features; height, width; or channels and 2 or 3 dimensions."
        findings.add((*where, "shape"), "must have at most 4 dimensions", str(list(store.shape)), hint)
    if len(store.batchsize) not in (0, 1, groups) and groups >= 1:
        hint = f"Give one for all, or {groups}."
        received = f"{len(store.batchsize)} entries"
        findings.add((*where, "batchsize"), "must have one entry per worker group, or one for all", received, hint)
    windows = reads_windows(store)
    if store.sequence > 0 and store.shuffle and not windows:
        message = "sequences cannot be shuffled: they keep the order of the records"
        findings.add((*where, "shuffle"), message, "true", "Leave out shuffle or sequence.")
    if store.transform:
        check_code(findings, store.transform, (*where, "transform"))
    if store.lookahead > 0 and store.sequence == 0:
        hint = "Give the number of records per row, for example sequence: 50."
        findings.add((*where, "lookahead"), "needs sequence", str(store.lookahead), hint)
    for name in ("horizon", "stride"):
        if getattr(store, name) > 0 and store.sequence == 0:
            hint = "Give the number of records of a window, for example sequence: 48."
            findings.add((*where, name), "needs sequence", str(getattr(store, name)), hint)
    if store.lookahead > 0 and windows:
        message, hint = "is not for windows, whose answers are those of the horizon", "Leave it out."
        findings.add((*where, "lookahead"), message, str(store.lookahead), hint)
    if store.series and not windows:
        hint = "Add horizon, or stride: sequences that continue from step to step are one series."
        findings.add((*where, "series"), "needs windows", store.series, hint)
    if store.time_steps > 0 and store.sequence > 0:
        hint = "Keep time_steps if each sample is a sequence, or sequence if its records are samples."
        findings.add((*where, "time_steps"), "excludes sequence", str(store.time_steps), hint)
    if store.lengths and not store.time_steps:
        hint = "Samples are then sequences of at most time_steps: T steps."
        findings.add((*where, "lengths"), "needs time_steps", store.lengths, hint)
    if (windows or store.time_steps) and findings.job.train_one_batch.alg == AlgProto.kBPTT:
        message = "is not for kBPTT: a mini-batch does not continue the previous one"
        name = "time_steps" if store.time_steps else "horizon" if store.horizon else "stride"
        findings.add((*where, name), message, str(getattr(store, name)), "Write train_one_batch { alg: kBP }.")


def _check_padding(findings: Findings, path: Path, window: Any) -> None:
    """Check that no window covers padding alone. A missing field of an axis defaults to the common one."""
    fields = window.DESCRIPTOR.fields_by_name

    def name(key: str, axis: str) -> str:
        return key + axis if key + axis in fields and window.HasField(key + axis) else key

    volumes = any(field.name.endswith("_z") for field, _ in window.ListFields())
    for axis in ("_x", "_y", *(("_z",) if volumes else ())):
        pad, kernel, dilation = (name(key, axis) for key in ("pad", "kernel", "dilation"))
        spread = getattr(window, dilation) if dilation in fields else 1
        if getattr(window, pad) > (getattr(window, kernel) - 1) * spread >= 0:
            received = f"{pad}={getattr(window, pad)}, {kernel}={getattr(window, kernel)}"
            if spread == 1:
                findings.add((*path, pad), f"must be smaller than {kernel}", received)
            else:
                must = f"must be at most ({kernel} - 1) {dilation}"
                findings.add((*path, pad), must, f"{received}, {dilation}={spread}")
