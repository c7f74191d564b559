"""Data parallelism for a training loop of one's own: a model, an updater over all ranks, and processes for them."""

from singa_dask.distopt.dist_opt import DistOpt
from singa_dask.distopt.launcher import launch
from singa_dask.distopt.nccl_id import NcclIdHolder
from singa_dask.distopt.partition import data_partition
from singa_dask.distopt.worlds import world

__all__ = ["DistOpt", "NcclIdHolder", "data_partition", "launch", "world"]
