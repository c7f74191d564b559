"""Which exchange a job asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from singa_dask.comm.codecs import codec
from singa_dask.comm.codecs.on_device import on_device
from singa_dask.comm.communicator import Communicator
from singa_dask.exchange.base import BucketExchange
from singa_dask.exchange.buckets import Bucket
from singa_dask.exchange.coded import CodedValues
from singa_dask.exchange.full import FullExchange
from singa_dask.ops import Ops


def bucket_exchange(
    comm: Communicator,
    buckets: Sequence[Bucket],
    settings: Mapping[str, Any],
    dtype: Any = np.float32,
    *,
    uncoded: np.ndarray | None = None,
    frozen: np.ndarray | None = None,
    ops: Ops | None = None,
) -> BucketExchange:
    """The exchange that a job's cluster block asks for. settings: of `codecs.codec`, with `name`. ops: of a GPU
    on which the arrays are; None for the host. The rest as for CodedValues.

    A rank on its own sends nothing, so nothing is lost. Raises ConfigError where the settings are wrong.
    """
    if settings["name"] == "kFull":
        return FullExchange(comm, buckets)
    made = codec(**settings)
    if comm.size == 1:
        return FullExchange(comm, buckets)
    made = made if ops is None else on_device(made, ops)
    return CodedValues(comm, buckets, made, dtype, uncoded=uncoded, frozen=frozen)
