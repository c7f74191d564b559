"""singa_dask: distributed training of neural networks on Dask, where the distribution is configuration.

from singa_dask import ClusterTopology, Job, layers, train, updaters
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

__all__ = [
    "Callback",
    "Classifier",
    "ClusterTopology",
    "DistOpt",
    "Job",
    "Logger",
    "MlflowTracker",
    "Model",
    "Module",
    "Plan",
    "Regressor",
    "Result",
    "RunEvent",
    "TensorBoard",
    "__version__",
    "audit",
    "autograd",
    "check_layer",
    "convert",
    "data_partition",
    "device",
    "launch",
    "layer",
    "layers",
    "load",
    "load_model",
    "model",
    "opt",
    "plan",
    "plot_confusion",
    "plot_parity",
    "shard",
    "sonnx",
    "tensor",
    "train",
    "transforms",
    "updaters",
]

if TYPE_CHECKING:
    from singa_dask import convert, layers, transforms, updaters
    from singa_dask.data.ingest.collections import shard
    from singa_dask.data.load import load
    from singa_dask.estimators.classifier import Classifier
    from singa_dask.estimators.regressor import Regressor
    from singa_dask.inference.evaluate import load_model
    from singa_dask.inference.model import Model
    from singa_dask.job import ClusterTopology, Job
    from singa_dask.layers.module import Module
    from singa_dask.loops import autograd, layer, model, opt, sonnx
    from singa_dask.loops.distopt import DistOpt, data_partition, launch
    from singa_dask.monitor.logger import Logger
    from singa_dask.monitor.mlflow import MlflowTracker
    from singa_dask.monitor.plots import plot_confusion, plot_parity
    from singa_dask.monitor.tensorboard import TensorBoard
    from singa_dask.net.check_layer import check_layer
    from singa_dask.supervision.audit import audit
    from singa_dask.supervision.callbacks import Callback, RunEvent
    from singa_dask.supervision.driver import Result, train
    from singa_dask.supervision.plan import Plan, plan
    from singa_dask.tensors import device, tensor

# Loaded when first used: `singa-dask --help` must not wait for Dask and Numba.
_LAZY_MODULES = {
    "autograd": "singa_dask.loops.autograd",
    "convert": "singa_dask.convert",
    "device": "singa_dask.tensors.device",
    "layer": "singa_dask.loops.layer",
    "layers": "singa_dask.layers",
    "model": "singa_dask.loops.model",
    "opt": "singa_dask.loops.opt",
    "sonnx": "singa_dask.loops.sonnx",
    "tensor": "singa_dask.tensors.tensor",
    "transforms": "singa_dask.transforms",
    "updaters": "singa_dask.updaters",
}
_LAZY = {
    "Callback": "singa_dask.supervision.callbacks",
    "Classifier": "singa_dask.estimators.classifier",
    "ClusterTopology": "singa_dask.job",
    "DistOpt": "singa_dask.loops.distopt",
    "Job": "singa_dask.job",
    "Logger": "singa_dask.monitor.logger",
    "MlflowTracker": "singa_dask.monitor.mlflow",
    "Model": "singa_dask.inference.model",
    "Module": "singa_dask.layers.module",
    "Plan": "singa_dask.supervision.plan",
    "Regressor": "singa_dask.estimators.regressor",
    "Result": "singa_dask.supervision.driver",
    "RunEvent": "singa_dask.supervision.callbacks",
    "TensorBoard": "singa_dask.monitor.tensorboard",
    "audit": "singa_dask.supervision.audit",
    "check_layer": "singa_dask.net.check_layer",
    "data_partition": "singa_dask.loops.distopt",
    "launch": "singa_dask.loops.distopt",
    "load": "singa_dask.data.load",
    "load_model": "singa_dask.inference.evaluate",
    "plan": "singa_dask.supervision.plan",
    "plot_confusion": "singa_dask.monitor.plots",
    "plot_parity": "singa_dask.monitor.plots",
    "shard": "singa_dask.data.ingest.collections",
    "train": "singa_dask.supervision.driver",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        try:
            return getattr(importlib.import_module(_LAZY[name]), name)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] == "sklearn":
                message = f"{name} needs scikit-learn: pip install 'singa_dask[estimators]'"
                raise ModuleNotFoundError(message, name="sklearn") from error
            raise
    if name in _LAZY_MODULES:
        return importlib.import_module(_LAZY_MODULES[name])
    raise AttributeError(f"module 'singa_dask' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
