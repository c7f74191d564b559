"""Creates the stream of a StreamConf."""

from __future__ import annotations

from singa_dask.data.manifest import Manifest
from singa_dask.data.plan import Stream, StreamConf
from singa_dask.data.sequence import SequenceStream
from singa_dask.data.windows import WindowStream
from singa_dask.job.stores import reads_windows

AnyStream = Stream | SequenceStream


def stream_of(manifest: Manifest, conf: StreamConf) -> AnyStream:
    """The stream of `conf`: of windows if it sets `horizon` or `stride`, else of sequences if it sets `sequence`, else
    of single samples.

    Raises ConfigError.
    """
    if reads_windows(conf):
        return WindowStream(manifest, conf)
    return SequenceStream(manifest, conf) if conf.sequence or conf.lookahead else Stream(manifest, conf)
