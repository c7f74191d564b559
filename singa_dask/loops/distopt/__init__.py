"""Data parallelism for a training loop of one's own: a model, an updater over all ranks, and processes for them."""

from singa_dask.loops.distopt.dist_opt import DistOpt
from singa_dask.loops.distopt.launcher import launch
from singa_dask.loops.distopt.nccl_id import NcclIdHolder
from singa_dask.loops.distopt.partition import data_partition
from singa_dask.loops.distopt.worlds import world

__all__ = ["DistOpt", "NcclIdHolder", "data_partition", "launch", "world"]
