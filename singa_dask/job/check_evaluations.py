"""Checks of what rests on evaluations: early stopping, the best checkpoint, learning rates that fall on a plateau."""

from __future__ import annotations

from typing import Any

from singa_dask.job.evaluations import PHASE_NAMES, watched_metrics
from singa_dask.job.findings import Findings
from singa_dask.job.job_pb2 import Phase
from singa_dask.job.paths import Path
from singa_dask.job.phases import active_phases

_EVALUATED = {PHASE_NAMES[phase]: phase for phase in (Phase.kVal, Phase.kTest)}


def check_evaluations(findings: Findings) -> None:
    """Check that the job runs the evaluations on whose metrics decisions rest."""
    active = active_phases(findings.job)
    for path, metric in watched_metrics(findings.job).items():
        phase, _, name = metric.partition(".")
        block = path[:-1]
        if block and not _has(findings, path):  # the default
            if len(active) == 1:
                message = "needs an evaluation, and this job has none: validate_freq and test_freq are 0"
                findings.add(block, message, hint="Write validate_freq: 100, with an input layer for kVal.")
        elif phase not in _EVALUATED or not name:
            message = "must name a metric of an evaluation: validate or test, a dot, the metric"
            findings.add(path, message, repr(metric), 'For example "validate.loss" or "test.accuracy".')
        elif _EVALUATED[phase] not in active:
            message = f"needs the {phase} evaluation, which this job does not run: {phase}_freq is 0"
            hint = f"Write {phase}_freq: 100, with an input layer for {Phase.Name(_EVALUATED[phase])}."
            findings.add(path, message, metric, hint)


def _has(findings: Findings, path: Path) -> bool:
    message: Any = findings.job
    for part in path[:-1]:
        message = message[part] if isinstance(part, int) else getattr(message, part)
    return bool(message.HasField(path[-1]))
