"""A small job, and predictions for it without a cost model."""

from __future__ import annotations

from typing import Any

from singa_dask.job import ClusterTopology, JobProto
from singa_dask.job.assemble import assemble
from singa_dask.layers import InnerProduct, Layer, RecordInput, SoftmaxLoss, STanh
from singa_dask.planning.candidates import with_cluster
from singa_dask.planning.prediction import Candidate, Prediction
from singa_dask.planning.profile import Curve, LayerSample, Point, Profile
from singa_dask.planning.rates import passes_work
from singa_dask.planning.work import worker_step

MB = 1_000_000


def job_of(layers: list[Layer], topology: ClusterTopology, dim: int = 0) -> JobProto:
    """These layers under SGD. dim: partition_dim of the net."""
    job = JobProto(name="points", train_steps=8)
    job.neuralnet.layer.extend(assemble(layers))
    if dim:
        job.neuralnet.partition_dim = dim
    job.train_one_batch.alg = job.train_one_batch.kBP
    job.updater.type = job.updater.kSGD
    job.updater.learning_rate.type = job.updater.learning_rate.kFixed
    job.cluster.CopyFrom(topology.to_proto())
    return job


def mlp(batch: int = 32, hidden: int = 64, **settings: Any) -> JobProto:
    """A net of two InnerProducts. settings: of the second one."""
    layers = [
        RecordInput("data", path="nowhere", shape=[8], batchsize=batch),
        InnerProduct("fc1", num_output=hidden),
        STanh("tanh1"),
        InnerProduct("fc2", num_output=5, **settings),
        SoftmaxLoss("loss"),
    ]
    job = job_of(layers, ClusterTopology())
    job.ClearField("cluster")
    return job


def predicted(topology: ClusterTopology, rate: float, *, partition: str = "dim 0", **more: Any) -> Prediction:
    """A prediction of `rate` samples/s, three quarters of whose steps are computing."""
    job = with_cluster(mlp(), topology.to_proto())
    if partition == "dim 1":
        job.neuralnet.partition_dim = 1
    step_s = 32 * topology.nworker_groups / rate
    given = {"parts": {"layers": 0.75 * step_s, "exchange": 0.25 * step_s}, "sent": 2.0 * MB, "memory": 100 * MB}
    return Prediction(Candidate(job, partition), step_s, rate, **given | more)


def curves_of(*rules: str) -> dict[str, Curve]:
    """All curves of one machine, for these types of updaters."""

    def line(start: float, slope: float) -> Curve:
        return Curve.of(Point(size, start + slope * size) for size in (0, 1 << 20))

    names = [*_EVERY, *(f"update {rule}" for rule in rules)]
    collectives = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "barrier", "exchange_neighbours")
    curves = {f"{name} {concurrency}": line(1e-6, 1e-9) for name in names for concurrency in (1, 2)}
    curves |= {f"{name} machine 2": line(1e-5, 1e-9) for name in collectives}
    return curves | {"barrier shared 2": line(1e-6, 0.0)}


def profile_of(job: JobProto, cores: int = 2) -> Profile:
    """A profile with which the cost model predicts this job on one machine."""
    step = worker_step(with_cluster(job, ClusterTopology().to_proto()))
    works = {*(call.work for call in step.calls), passes_work(job, step)}
    samples = [
        LayerSample(work, 1e-3, 2e-3, concurrency, threads)
        for work in works
        for concurrency, threads in ((1, 2), (2, 1))
    ]
    return Profile(host="here", cpu="some", cores=cores, layers=samples, curves=curves_of("kSGD"))


_CODECS = [f"{way} {codec}" for way in ("encode", "decode") for codec in ("kHalf -", "kTopK 0.05")]
_EVERY = ["sum", "load", "loop", "round_trip machine", "serve machine", *_CODECS]
