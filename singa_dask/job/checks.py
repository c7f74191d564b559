"""Checks of a job that need only its message: no files, no shapes, no cluster."""

from __future__ import annotations

import re

from singa_dask.errors import ConfigError
from singa_dask.job.check_evaluations import check_evaluations
from singa_dask.job.check_fields import check_fields
from singa_dask.job.check_graph import check_graph
from singa_dask.job.check_layers import check_layers
from singa_dask.job.check_names import check_names
from singa_dask.job.check_partition import check_partition
from singa_dask.job.check_updater import check_updater
from singa_dask.job.check_user import check_user
from singa_dask.job.findings import Findings
from singa_dask.job.gpus import on_cpus
from singa_dask.job.job_pb2 import AlgProto, JobProto, Phase
from singa_dask.job.locate import Locate
from singa_dask.job.paths import Path
from singa_dask.job.phases import active_phases, graph_phase
from singa_dask.job.schedule import seconds_in
from singa_dask.job.topology import ClusterTopology
from singa_dask.job.unroll import MAX_STEPS, plain


def check_job(job: JobProto, locate: Locate | None = None, *, training: bool = True) -> None:
    """Raise ConfigError with all problems of the job that its message shows.

    locate: the place of a field in the text, for line numbers (`Positions.find` of read_job).
    training: False for a job that is only tested or sampled from. It may lack fields that training needs.
    """
    findings = Findings(job, locate)
    _check_required(findings)
    check_names(findings)
    _check_run(findings, training)
    check_fields(findings)
    if job.HasField("updater"):
        check_updater(findings)
    elif training:
        findings.missing(("updater",), "updater { type: kSGD learning_rate { type: kFixed base_lr: 0.01 } }")
    if training:
        check_evaluations(findings)
    _check_cluster(findings)
    if not (job.neuralnet.layer or job.neuralnet.layer_group):
        findings.missing(("neuralnet",), "neuralnet { layer { ... } }", "has no layers")
    else:
        check_layers(findings)
        check_partition(findings)
        layers = plain(job.neuralnet).layer
        if max((layer.unroll_len for layer in layers), default=1) <= MAX_STEPS:
            check_graph(findings, active_phases(job) if training else [graph_phase(layers, Phase.kTest)])
    findings.raise_any()


def _check_run(findings: Findings, training: bool) -> None:
    """Check the job's own fields."""
    job = findings.job
    for field, bounds, fits in (
        ("checkpoint_every", " above 0", lambda seconds: seconds > 0),
        ("memory_checkpoint_every", "", lambda seconds: seconds >= 0),
        ("orphan_timeout", " of at least a minute", lambda seconds: seconds >= 60),
    ):
        time, default = getattr(job, field), job.DESCRIPTOR.fields_by_name[field].default_value
        if time != default and not fits(seconds_in(time)):
            findings.add((field,), f"must be a time{bounds}, with its unit", repr(time), 'For example "60s" or "10m".')
    if training and job.compute != JobProto.kFloat32 and on_cpus(job.gpu):
        hint = "Leave gpu or compute out."
        received = JobProto.Compute.Name(job.compute)
        findings.add(("compute",), "needs GPUs: CPUs multiply in float32", received, hint)
    if training and not job.HasField("train_steps"):
        findings.missing(("train_steps",), "train_steps: 1000")
    if job.step and not job.resume:
        hint = "Write resume: true to continue from the newest checkpoint of the workspace."
        findings.add(("step",), "only a resumed run starts at a step other than 0", str(job.step), hint)
    for place, number in enumerate(() if on_cpus(job.gpu) else job.gpu):
        if number < 0:
            hint = "Write -1 alone, or gpu=[], to compute on CPUs."
            findings.add(("gpu", place), "must not be negative", str(number), hint)
    if training and job.train_one_batch.alg == AlgProto.kUserAlg and not job.train_one_batch.user_alg:
        path: Path = ("train_one_batch", "alg") if job.HasField("train_one_batch") else ("train_one_batch",)
        findings.missing(path, "train_one_batch { alg: kBP }")
    check_user(findings, job.train_one_batch, ("train_one_batch",), "alg", "user_alg")
    if job.train_one_batch.HasField("cd_conf") and job.train_one_batch.alg in (AlgProto.kBP, AlgProto.kBPTT):
        name = AlgProto.AlgType.Name(job.train_one_batch.alg)
        findings.add(("train_one_batch", "cd_conf"), f"needs alg: kCD, not {name}", hint="Leave it out.")


def _check_cluster(findings: Findings) -> None:
    try:
        ClusterTopology.from_proto(findings.job.cluster)
    except ConfigError as error:
        for p in error.problems:
            findings.add(tuple(p.key.split(".")), p.message, p.received, p.hint)
    cluster = findings.job.cluster
    several = cluster.nworker_groups > 1 and cluster.nworkers_per_procs > cluster.nworkers_per_group > 0
    if several and cluster.share_memory:
        message = (
            "is not supported for worker groups in one process (nworkers_per_procs above nworkers_per_group): every "
            "worker has a process of its own, and groups share parameters by servers"
        )
        hint = "Leave nworkers_per_procs out."
        findings.add(("cluster", "share_memory"), message, "true", hint)


_INITIALISATION_PART = re.compile(r"([^.\[\]]+)(?:\[(\d+)\])?")


def _check_required(findings: Findings) -> None:
    """Check the fields that the schema requires."""
    for text in findings.job.FindInitializationErrors():
        path: Path = ()
        for name, index in _INITIALISATION_PART.findall(text):
            path = (*path, name, int(index)) if index else (*path, name)
        findings.missing(path, f"{path[-1]}: VALUE")
