"""Which exchange a job asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from singa_dask.comm.codecs import Threshold, codec
from singa_dask.comm.communicator import Communicator
from singa_dask.exchange.base import BucketExchange
from singa_dask.exchange.buckets import Bucket
from singa_dask.exchange.coded import CodedValues
from singa_dask.exchange.full import FullExchange
from singa_dask.exchange.threshold import ThresholdValues


def bucket_exchange(
    comm: Communicator,
    buckets: Sequence[Bucket],
    settings: Mapping[str, Any],
    dtype: Any = np.float32,
    *,
    uncoded: np.ndarray | None = None,
    frozen: np.ndarray | None = None,
    shared: bool = False,
) -> BucketExchange:
    """The exchange that a job's cluster block asks for. settings: of `codecs.codec`, with `name`; the rest as
    CodedValues and ThresholdValues have it.

    A rank on its own sends nothing, so nothing is lost. Raises ConfigError where the settings are wrong.
    """
    if settings["name"] == "kFull":
        return FullExchange(comm, buckets)
    made = codec(**settings)
    if comm.size == 1:
        return FullExchange(comm, buckets)
    if isinstance(made, Threshold):
        return ThresholdValues(comm, buckets, made, dtype, shared=shared, uncoded=uncoded, frozen=frozen)
    return CodedValues(comm, buckets, made, dtype, uncoded=uncoded, frozen=frozen)
