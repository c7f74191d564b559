"""Optimisers for training loops of one's own, under Apache SINGA's names: `from singa_dask import opt`."""

from singa_dask.distopt import DistOpt, NcclIdHolder
from singa_dask.updaters import SGD, AdaGrad, Adam, AdamW, RMSProp

__all__ = ["SGD", "AdaGrad", "Adam", "AdamW", "DistOpt", "NcclIdHolder", "RMSProp"]
