"""Jobs in Python."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from singa_dask.errors import ConfigError, Problem, nearest
from singa_dask.job.assemble import assemble
from singa_dask.job.checks import check_job
from singa_dask.job.fields import assign, assign_all
from singa_dask.job.job_pb2 import (
    AlgProto,
    ClusterProto,
    EarlyStoppingProto,
    JobProto,
    LayerProto,
    NetProto,
    UpdaterProto,
)
from singa_dask.job.locate import Positions, locate_problems
from singa_dask.job.text import job_to_text, read_job
from singa_dask.job.topology import ClusterTopology, cluster_message
from singa_dask.job.unroll import flat

_ALGORITHMS = [value.name for value in AlgProto.AlgType.DESCRIPTOR.values]
_KEYWORDS = {field.name for field in JobProto.DESCRIPTOR.fields if field.message_type is None}
_OF_THE_NET = {field.name for field in NetProto.DESCRIPTOR.fields if field.message_type is None}
# What users of PyTorch's trainers write for what is not offered, and what to do.
_ABSENT = {
    **dict.fromkeys(
        ("accumulate", "accumulate_grad_batches", "gradient_accumulation_steps"),
        ("gradient accumulation is not offered", "Use a larger batchsize, which the workers of a group share."),
    ),
    **dict.fromkeys(
        ("dtype", "precision", "amp", "fp16", "bf16"),
        ("16-bit computing is not offered", "Jobs compute in float32; gradients travel in 16 bits with codec: kHalf."),
    ),
    "gradient_checkpointing": ("activation checkpointing is not offered", "Use a smaller batchsize, or more workers."),
}
_BLOCKS = {"neuralnet": "layers=[...]", "train_one_batch": "alg=", "layer": "layers=[...]"}


class Job:
    """A job, built in Python or read from text; `proto` is the message that both build.

    >>> Job(
    ...     name="digits",
    ...     train_steps=500,
    ...     layers=[
    ...         RecordInput(path="dataset:digits/train", batchsize=64, shape=[64]),
    ...         InnerProduct(num_output=10),
    ...         SoftmaxLoss(),
    ...     ],
    ...     updater=SGD(lr=0.1),
    ...     cluster=ClusterTopology.allreduce(3),
    ... )                                                                    # doctest: +SKIP

    layers: a list, in which a layer without sources reads the layer before it, or the last layers of a graph; see
    docs/job-python.md. updater: an object such as SGD(lr=0.1). Messages work for both.
    alg: a name of AlgType ("kBP"), "module:Name" of user code, or an AlgProto.
    fields: any other field of the job or the net (test_freq=100, gpu=[0, 1], unroll_len=50, ...); early_stopping is a
    mapping, {"patience": 5} or {} for the defaults.

    Raises ConfigError for unknown fields and wrong values. check() checks the job as a whole.
    """

    def __init__(
        self,
        *,
        name: str,
        layers: Any,
        updater: Any,
        train_steps: int,
        cluster: ClusterTopology | ClusterProto | None = None,
        alg: str | AlgProto = "kBP",
        **fields: Any,
    ):
        self.proto = JobProto()
        self.positions = Positions()
        self.folder: Path | None = None
        self.proto.neuralnet.SetInParent()
        for key, value in {"name": name, "train_steps": train_steps, **fields}.items():
            _set_field(self.proto, key, value)
        self.proto.train_one_batch.CopyFrom(_algorithm(alg))
        listed = list(layers) if isinstance(layers, Iterable) else [layers]
        for i, layer in enumerate(listed):
            if isinstance(layer, type):
                raise ConfigError(Problem(f"layers[{i}]", "is a class", layer.__name__, f"Write {layer.__name__}()."))
            if not hasattr(layer, "placed"):  # a Module
                _message(layer, LayerProto, f"layers[{i}]", "InnerProduct(...)")
        self.proto.neuralnet.layer.extend(assemble(listed))
        self.proto.updater.CopyFrom(_message(updater, UpdaterProto, "updater", "SGD(...)"))
        if cluster is not None:
            self.proto.cluster.CopyFrom(cluster_message(cluster))

    @classmethod
    def from_proto(cls, proto: JobProto, positions: Positions | None = None) -> Job:
        """The job of a message, which is copied."""
        job = cls.__new__(cls)
        job.proto = JobProto()
        job.proto.CopyFrom(proto)
        job.positions = positions or Positions()
        job.folder = None
        return job

    @classmethod
    def from_text(cls, text: str, overrides: Iterable[str] = (), cluster: str | Path | None = None) -> Job:
        """The job of a text; see load_job."""
        return cls.from_proto(*read_job(text if "\n" in text else f"{text}\n", overrides, cluster))

    @classmethod
    def from_file(cls, path: str | Path, overrides: Iterable[str] = (), cluster: str | Path | None = None) -> Job:
        """The job of a file; see load_job. Its folder is searched for user modules."""
        job = cls.from_proto(*read_job(Path(path), overrides, cluster))
        job.folder = Path(path).absolute().parent
        return job

    def to_text(self) -> str:
        """The job as text, from which from_text builds an equal job."""
        return job_to_text(self.proto)

    def check(self, *, training: bool = True) -> None:
        """Raise ConfigError with all problems of the job; see check_job."""
        check_job(self.proto, self.positions.find, training=training)

    def located(self, error: ConfigError) -> ConfigError:
        """The same error with the line of each layer that it names, for a job read from text."""
        return locate_problems(error, self.proto, self.positions.find)

    @property
    def name(self) -> str:
        return self.proto.name

    @property
    def net(self) -> NetProto:
        """The net without layer groups; every layer has the net's unroll_len."""
        return flat(self.proto.neuralnet)

    @property
    def topology(self) -> ClusterTopology:
        """How training is distributed. Raises ConfigError if the job's cluster is impossible."""
        return ClusterTopology.from_proto(self.proto.cluster)

    def __eq__(self, other: object) -> bool:
        return self.proto == other.proto if isinstance(other, Job) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # a job can change

    def __repr__(self) -> str:
        layers = len(self.proto.neuralnet.layer)
        updater = self.proto.updater
        kind = updater.user_type or UpdaterProto.UpdaterType.Name(updater.type)
        try:
            where = self.topology.describe()
        except ConfigError:
            where = "impossible topology"
        steps = f"{self.proto.train_steps} steps"
        return f"<Job {self.name!r}: {layers} layer{'s' * (layers != 1)}, {kind}, {steps}, {where}>"


def _set_field(job: JobProto, key: str, value: Any) -> None:
    if key == "early_stopping":
        return _set_early_stopping(job, value)
    if key in _ABSENT:
        message, hint = _ABSENT[key]
        raise ConfigError(Problem(key, message, f"{key}={value!r}", hint))
    if key not in _KEYWORDS and key not in _OF_THE_NET:
        valid = {*_KEYWORDS, *_OF_THE_NET, "layers", "updater", "cluster", "alg", "early_stopping"}
        hint = f"Use {_BLOCKS[key]}." if key in _BLOCKS else nearest(key, valid)
        raise ConfigError(Problem(key, "a job has no such field", f"{key}={value!r}", hint))
    assign(job.neuralnet if key in _OF_THE_NET else job, key, value, key)


def _set_early_stopping(job: JobProto, value: Any) -> None:
    if isinstance(value, EarlyStoppingProto):
        job.early_stopping.CopyFrom(value)
    elif isinstance(value, Mapping):
        job.early_stopping.SetInParent()
        assign_all(job.early_stopping, value, "early_stopping", "early stopping")
    else:
        hint = 'Write early_stopping={"patience": 5}, or {} for the defaults.'
        raise ConfigError(Problem("early_stopping", "expected a mapping", repr(value), hint))


def _algorithm(alg: Any) -> AlgProto:
    alg = getattr(alg, "proto", alg)  # of a description, for example CD(cd_k=2)
    if isinstance(alg, AlgProto):
        return alg
    if isinstance(alg, str):
        if alg in _ALGORITHMS:
            return AlgProto(alg=alg)
        if ":" in alg:
            return AlgProto(user_alg=alg)
    names = [name for name in _ALGORITHMS if name != "kUserAlg"]
    raise ConfigError(Problem("alg", "unknown algorithm", repr(alg), nearest(str(alg), names)))


def _message(value: Any, kind: Any, key: str, example: str) -> Any:
    """The message of a description, an object with `.proto`."""
    message = getattr(value, "proto", value)
    if key == "updater" and isinstance(value, list | tuple):
        hint = "Give groups of parameters rates of their own by `group`, or write a training loop of your own."
        raise ConfigError(Problem(key, "alternating optimizers are not offered in jobs", repr(value), hint))
    if not isinstance(message, kind):
        hint = f"For example {example}, or a {kind.DESCRIPTOR.name}."
        raise ConfigError(Problem(key, "has the wrong type", repr(value), hint))
    return message
