"""TrainOneBatch: how the gradients of one mini-batch are computed."""

from __future__ import annotations

from singa_dask.algorithms.base import KEY, TrainOneBatch
from singa_dask.algorithms.bp import BP, BPTT
from singa_dask.algorithms.cd import CD
from singa_dask.job.description import class_of
from singa_dask.job.job_pb2 import AlgProto

__all__ = ["BP", "BPTT", "CD", "TrainOneBatch", "algorithm"]


BY_TYPE: dict[str, type[TrainOneBatch]] = {cls.type: cls for cls in (BP, BPTT, CD)}


def algorithm(alg: AlgProto) -> TrainOneBatch:
    """The algorithm of a job's `train_one_batch`. kUserAlg imports the class that `user_alg` names as "module:Class".

    Raises ConfigError if it names none.
    """
    return class_of(alg, BY_TYPE, TrainOneBatch, KEY).from_proto(alg)
