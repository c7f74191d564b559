"""TrainOneBatch: how the gradients of one mini-batch are computed."""

from __future__ import annotations

from singa_dask.algorithms.base import KEY, TrainOneBatch
from singa_dask.algorithms.bp import BP, BPTT
from singa_dask.algorithms.cd import CD
from singa_dask.errors import ConfigError, Problem
from singa_dask.job.job_pb2 import AlgProto
from singa_dask.job.user_code import user_code

__all__ = ["BP", "BPTT", "CD", "TrainOneBatch", "algorithm"]


def algorithm(alg: AlgProto) -> TrainOneBatch:
    """The algorithm that `train_one_batch` of a job names.

    kUserAlg imports the TrainOneBatch subclass that `user_alg` names as "module:Class".
    Raises ConfigError where it names none.
    """
    built_in: dict[int, type[TrainOneBatch]] = {AlgProto.kBP: BP, AlgProto.kBPTT: BPTT, AlgProto.kCD: CD}
    if alg.alg in built_in:
        return built_in[alg.alg].from_proto(alg)
    if not alg.user_alg:
        raise ConfigError(
            Problem(f"{KEY}.alg", "kUserAlg needs user_alg", hint='Write alg: kBP, or user_alg: "module:Class".')
        )
    found = user_code(alg.user_alg, f"{KEY}.user_alg")
    if not (isinstance(found, type) and issubclass(found, TrainOneBatch)):
        raise ConfigError(Problem(f"{KEY}.user_alg", "must name a subclass of TrainOneBatch", repr(alg.user_alg)))
    return found.from_proto(alg)
