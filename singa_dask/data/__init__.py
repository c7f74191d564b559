"""Data: HDF5 shards, the order of samples, and the loader, which reads ahead."""

from singa_dask.data.dask_submit import dask_submit
from singa_dask.data.loader import Loader
from singa_dask.data.manifest import Manifest
from singa_dask.data.normalise import resolve_normalisation, statistics_path
from singa_dask.data.plan import Stream, StreamConf
from singa_dask.data.resolve import resolve
from singa_dask.data.sequence import SequenceStream
from singa_dask.data.sharding import shard_files
from singa_dask.data.shards import ShardFolder, read_small
from singa_dask.data.statistics import with_statistics
from singa_dask.data.store import AnyStream, make_stream, store_info, stream_of
from singa_dask.data.vocabulary import first_difference, vocabulary
from singa_dask.data.windows import (
    WindowStream,
    breaks,
    check_lengths,
    check_step,
    keep_step,
    record_step,
    series_starts,
    trained_step,
)

__all__ = [
    "AnyStream",
    "Loader",
    "Manifest",
    "SequenceStream",
    "ShardFolder",
    "Stream",
    "StreamConf",
    "WindowStream",
    "breaks",
    "check_lengths",
    "check_step",
    "dask_submit",
    "first_difference",
    "keep_step",
    "make_stream",
    "read_small",
    "record_step",
    "resolve",
    "resolve_normalisation",
    "series_starts",
    "shard_files",
    "statistics_path",
    "store_info",
    "stream_of",
    "trained_step",
    "vocabulary",
    "with_statistics",
]
