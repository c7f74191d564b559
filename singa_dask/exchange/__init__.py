"""The gradient pipeline: from a worker's gradients to new parameters on every worker, bucket by bucket."""

from singa_dask.exchange.base import BucketExchange
from singa_dask.exchange.buckets import Bucket, bucket_bounds
from singa_dask.exchange.full import FullExchange
from singa_dask.exchange.shared import SharedExchange

__all__ = ["Bucket", "BucketExchange", "FullExchange", "SharedExchange", "bucket_bounds"]
