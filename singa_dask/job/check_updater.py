"""Checks of the updater and its learning rate."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from singa_dask.job.check_user import check_user
from singa_dask.job.evaluations import plateaus
from singa_dask.job.findings import Findings
from singa_dask.job.job_pb2 import LRGenProto, UpdaterProto
from singa_dask.job.paths import Path

_RATE: Path = ("updater", "learning_rate")
_EXAMPLE_RATE = "learning_rate { type: kFixed base_lr: 0.01 }"

_Conf = tuple[str, str | None]

# The block with a type's own settings, with an example if it is required.
_UPDATER_CONF: dict[int, _Conf] = {
    UpdaterProto.kRMSProp: ("rmsprop_conf", "rmsprop_conf { rho: 0.9 }"),
    UpdaterProto.kAdaDelta: ("adadelta_conf", None),
    UpdaterProto.kAdam: ("adam_conf", None),
    UpdaterProto.kAdamMax: ("adammax_conf", None),
    UpdaterProto.kAdamW: ("adamw_conf", None),
    UpdaterProto.kLAMB: ("lamb_conf", None),
}
_RATE_CONF: dict[int, _Conf] = {
    LRGenProto.kStep: ("step_conf", "step_conf { gamma: 0.1 change_freq: 1000 }"),
    LRGenProto.kLinear: ("linear_conf", "linear_conf { change_freq: 1000 final_lr: 0.001 }"),
    LRGenProto.kExponential: ("exponential_conf", "exponential_conf { change_freq: 1000 }"),
    LRGenProto.kInverse: ("inverse_conf", "inverse_conf { gamma: 0.0001 pow: 0.75 }"),
    LRGenProto.kInverseT: ("inverset_conf", "inverset_conf { final_lr: 1000 }"),
    LRGenProto.kReduceOnPlateau: ("reduceonplateau_conf", None),
    LRGenProto.kFixedStep: ("fixedstep_conf", "fixedstep_conf { step: [0, 1000] step_lr: [0.01, 0.001] }"),
    LRGenProto.kCosine: ("cosine_conf", "cosine_conf { change_freq: 1000 }"),
    LRGenProto.kOneCycle: ("onecycle_conf", "onecycle_conf { change_freq: 1000 }"),
    LRGenProto.kSequential: (
        "sequential_conf",
        "sequential_conf { schedule { type: kFixed } steps: 1000 schedule { type: kFixed base_lr: 0.001 } }",
    ),
}


def check_updater(findings: Findings) -> None:
    """Check the updater's type, settings and learning rate."""
    updater = findings.job.updater
    check_user(findings, updater, ("updater",), example="kSGD")
    _check_conf(findings, updater, ("updater",), UpdaterProto.UpdaterType, _UPDATER_CONF)
    divides = updater.type not in (UpdaterProto.kUserUpdater, UpdaterProto.kSGD, UpdaterProto.kNesterov)
    if divides and updater.delta == 0:
        findings.add(("updater", "delta"), "must be above 0 for this updater, which divides by it", "0")
    if updater.clip_low != updater.clip_high and not updater.clip_low < 0 < updater.clip_high:
        given = "clip_low" if updater.HasField("clip_low") else "clip_high"
        received = f"clip_low={updater.clip_low:g}, clip_high={updater.clip_high:g}"
        message = "gradients need a range that contains 0: clip_low below 0, clip_high above 0"
        findings.add(("updater", given), message, received, "Write clip_low: -5 clip_high: 5.")
    for i, group in enumerate(updater.group):
        if not group.match:
            findings.missing(("updater", "group", i, "match"), 'match: "*_bias"')
    if not updater.HasField("learning_rate"):
        findings.missing(_RATE, _EXAMPLE_RATE)
    else:
        _check_rate(findings, updater.learning_rate)


def _check_rate(findings: Findings, rate: LRGenProto, path: Path = _RATE) -> None:
    check_user(findings, rate, path, example="kFixed")
    _check_conf(findings, rate, path, LRGenProto.ChangeMethod, _RATE_CONF)
    if rate.HasField("warmup_factor") and not rate.warmup_steps:
        message, hint = "is the beginning of a warm-up, and warmup_steps is 0", "Write warmup_steps: 500."
        findings.add((*path, "warmup_factor"), message, f"{rate.warmup_factor:g}", hint)
    if rate.type == LRGenProto.kFixedStep and rate.HasField("fixedstep_conf"):
        steps, rates = list(rate.fixedstep_conf.step), list(rate.fixedstep_conf.step_lr)
        _check_fixed_steps(findings, steps, rates, (*path, "fixedstep_conf"))
    if rate.type == LRGenProto.kSequential and rate.HasField("sequential_conf"):
        _check_sequence(findings, rate, (*path, "sequential_conf"))
    if rate.type == LRGenProto.kOneCycle and rate.HasField("onecycle_conf"):
        conf = rate.onecycle_conf
        if conf.rise * conf.change_freq <= 1:
            hint = "Leave it out for 0.3."
            findings.add((*path, "onecycle_conf", "rise"), "must be more than 1 / change_freq", f"{conf.rise:g}", hint)
    if rate.type == LRGenProto.kReduceOnPlateau:
        conf, path = rate.reduceonplateau_conf, (*path, "reduceonplateau_conf")
        if conf.factor == 0:
            findings.add((*path, "factor"), "must be above 0 and below 1", "0")
        if conf.min_lr > rate.base_lr:
            message = f"must be at most base_lr, {rate.base_lr:g}"
            findings.add((*path, "min_lr"), message, f"{conf.min_lr:g}")


def _check_sequence(findings: Findings, rate: LRGenProto, path: Path) -> None:
    conf = rate.sequential_conf
    if not conf.schedule:
        findings.missing((*path, "schedule"), "schedule { type: kFixed base_lr: 0.01 }")
    elif len(conf.steps) != len(conf.schedule) - 1:
        message = f"must be one less than the schedules, of which there are {len(conf.schedule)}"
        received = f"{len(conf.steps)} steps"
        findings.add((*path, "steps"), message, received, "Write steps: 1000 after each schedule but the last.")
    for i, each in enumerate(conf.schedule):
        _check_rate(findings, each, (*path, "schedule", i))
    for where, _ in list(plateaus(rate, path[:-1]))[1:]:
        message, hint = "is the second one: a run counts one kind of reductions", "Use kReduceOnPlateau once."
        findings.add(where[:-1], message, "kReduceOnPlateau", hint)


def _check_fixed_steps(findings: Findings, steps: list[int], rates: list[float], path: Path) -> None:
    if not steps:
        findings.missing((*path, "step"), "step: 0 step_lr: 0.01")
    elif len(steps) != len(rates):
        received = f"{len(steps)} step, {len(rates)} step_lr"
        findings.add(path, "must have as many step_lr as step", received)
    if any(later <= earlier for earlier, later in pairwise(steps)):
        findings.add((*path, "step"), "must be in ascending order", str(steps))


def _check_conf(
    findings: Findings, message: UpdaterProto | LRGenProto, path: Path, enum: Any, confs: Mapping[int, _Conf]
) -> None:
    """Check that a required block is given, and that no block is given that the type does not read."""
    type_name = enum.Name(message.type)
    for kind, (conf, example) in confs.items():
        given = message.HasField(conf)
        if kind == message.type and example and not given:
            findings.missing((*path, conf), example, f"is missing: {type_name} needs it")
        elif kind != message.type and given:
            hint = f"It belongs to {enum.Name(kind)}."
            findings.add((*path, conf), f"is not read by {type_name}", hint=hint)
