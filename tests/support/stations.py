"""Where an updater, an activation, a metric and a file format have to be known, and what is missing there.

A station is a file, with the name of its registry; it holds names, which are spelled as those of the classes, metrics
or formats are. CONTRIBUTING.md lists the same stations.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from support import layer_cases, op_cases

from singa_dask import autograd, layers, opt, updaters
from singa_dask.algorithms import metrics
from singa_dask.convert import parts
from singa_dask.data import sharding
from singa_dask.export import onnx
from singa_dask.job import evaluations, outputs
from singa_dask.job.job_pb2 import ActivationProto, LayerType, UpdaterProto
from singa_dask.layers import activation
from singa_dask.ops import update
from singa_dask.ops.activation import ActivationOps
from singa_dask.ops.cpu.elementwise import update_kernels
from singa_dask.ops.gpu.kernels import KERNELS
from singa_dask.profiling import kernels
from singa_dask.profiling.grid import grid_jobs

ROOT = Path(__file__).parents[2]
Known = Callable[[Iterable[str]], set[str]]

# Names that a station needs not have, and why.
EXEMPT: dict[str, dict[str, set[str]]] = {
    "updater": {
        "singa_dask/loops/opt.py: Optimizer": {
            "Nesterov",
            "AdaDelta",
            "AdamMax",
        },  # SGD has nesterov; SINGA has no others
        "singa_dask/ops/update.py: RULES": {"LAMB"},  # of whole parameters: two kernels, called by its class
    },
    # SINGA's functions, and GELU
    "activation": {"singa_dask/loops/autograd.py": {"STanh", "LeakyReLU", "ELU", "SiLU"}},
}
# Metrics of which more is better.
MAXIMISED = {"accuracy", "auc", "dice", "f1", "iou", "precision", "r2", "recall"}
NO_NUMBER = {"confusion"}


def _as(spell: Callable[[str], str], held: Callable[[], Iterable[str]]) -> Known:
    """A station that spells names differently."""
    return lambda names: {name for name in names if spell(name) in set(held())}


def _in_text(path: str, spell: Callable[[str], str] = str) -> Known:
    text = (ROOT / path).read_text()
    return lambda names: {name for name in names if re.search(rf"\b{re.escape(spell(name))}\b", text)}


def _rules() -> set[str]:
    kinds = [kind for _, kind in inspect.getmembers(opt, inspect.isclass) if issubclass(kind, opt.Optimizer)]
    return {kind.rule.__name__ for kind in kinds if hasattr(kind, "rule")}


def _kernel(name: str) -> str:
    return {"AdamMax": "adamax", "LAMB": "lamb_moments"}.get(name, name.lower())


def _type(name: str) -> str:
    return f"k{name}"


def _gridded() -> set[str]:
    return {LayerType.Name(layer.type) for job in grid_jobs() for layer in job.neuralnet.layer}


STATIONS: dict[str, dict[str, Known]] = {
    "updater": {
        "singa_dask/job/job.proto": _as(_type, UpdaterProto.UpdaterType.keys),
        "singa_dask/updaters/__init__.py: BY_TYPE": _as(_type, lambda: updaters.BY_TYPE),
        "singa_dask/updaters/__init__.py: __all__": _as(str, lambda: updaters.__all__),
        "singa_dask/ops/update.py: RULES": _as(_kernel, lambda: update.RULES),
        "singa_dask/ops/cpu/elementwise/update_kernels.py": _as(_kernel, lambda: vars(update_kernels)),
        "singa_dask/ops/gpu/kernels.py: KERNELS": _as(_kernel, lambda: KERNELS),
        "singa_dask/profiling/kernels.py: RULES": _as(
            _type, lambda: [UpdaterProto.UpdaterType.Name(rule.type) for rule in kernels.RULES]
        ),
        "singa_dask/loops/opt.py: Optimizer": _as(str, _rules),
        "tests/support/op_cases.py": _as(
            lambda name: "lamb_update" if name == "LAMB" else f"{_kernel(name)}_update", lambda: op_cases.CASES
        ),
        "docs/updaters.md": _in_text("docs/updaters.md", _type),
    },
    "activation": {
        "singa_dask/job/job.proto: LayerType": _as(_type, LayerType.keys),
        "singa_dask/job/job.proto: ActivationType": _as(str.upper, ActivationProto.ActivationType.keys),
        "singa_dask/layers/activation.py: _KINDS": _as(str.upper, lambda: activation._KINDS),
        "singa_dask/layers/__init__.py": _as(str, lambda: layers.__all__),
        "singa_dask/ops/activation.py": _as(
            lambda name: name.removeprefix("Leaky").lower(), lambda: vars(ActivationOps)
        ),
        "singa_dask/export/onnx.py: _CONVERTERS": _as(str, lambda: [kind.__name__ for kind in onnx._CONVERTERS]),
        "singa_dask/convert/parts.py: _ELEMENTWISE": _as(str, lambda: [kind.__name__ for kind in parts._ELEMENTWISE]),
        "singa_dask/job/outputs.py: _NAMES": _as(str, lambda: outputs._NAMES.split()),
        "singa_dask/profiling/grid.py": _as(_type, _gridded),
        "singa_dask/loops/autograd.py": _as(str.lower, lambda: autograd.__all__),
        "tests/support/layer_cases.py": _as(str, lambda: layer_cases.CASES),
        "docs/layers.md": _in_text("docs/layers.md"),
    },
    "metric": {
        "singa_dask/algorithms/metrics.py: METRICS": _as(str, lambda: set().union(*metrics.METRICS.values())),
        "singa_dask/job/evaluations.py: _MINIMISED": _as(
            str, lambda: {*evaluations._MINIMISED, *MAXIMISED, *NO_NUMBER}
        ),
        "docs/evaluations.md": _in_text("docs/evaluations.md"),
    },
    "data format": {
        "singa_dask/data/sharding.py: FORMATS": _as(str, lambda: sharding.FORMATS),
        "singa_dask/cli/data.py": _in_text("singa_dask/cli/data.py"),
        "docs/data.md": _in_text("docs/data.md"),
    },
}


def names_of(kind: str) -> set[str]:
    """All updaters, activations, metrics or formats that there are."""
    found: Mapping[str, Callable[[], Iterable[Any]]] = {
        "updater": lambda: [each.__name__ for each in updaters.BY_TYPE.values()],
        "activation": lambda: [each.__name__ for each in activation._KINDS.values()],
        "metric": lambda: set().union(*metrics.METRICS.values()),
        "data format": lambda: sharding.FORMATS,
    }
    return set(found[kind]())


def missing(kind: str, names: Iterable[str]) -> list[str]:
    """What stations do not know of these names, each with the name."""
    wanted = set(names)
    return [
        f"{station} does not have {name}"
        for station, known in STATIONS[kind].items()
        for name in sorted(wanted - known(wanted) - EXEMPT.get(kind, {}).get(station, set()))
    ]
