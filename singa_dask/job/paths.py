"""Paths of fields: how errors and overrides name a field of a job.

In code they are tuples of field names and positions. In text they have dots, and layers appear by name:

    ("neuralnet", "layer", 2, "convolution_conf", "num_filters")
    neuralnet.layer[conv1].convolution_conf.num_filters
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping

from singa_dask.job.job_pb2 import JobProto, LayerProto

Path = tuple[str | int, ...]

# A file's name has 255 at most, with what is put before and behind it.
MAX_NAME_NBYTES = 200
# A layer name that can replace a position in brackets.
_NAME = re.compile(rf"(?!\d+$)[^\[\]=\x00-\x1f\x7f-\x9f]{{1,{MAX_NAME_NBYTES}}}")


def layers_of(job: JobProto) -> Iterator[tuple[Path, LayerProto]]:
    """Every layer of a job with its path."""
    for i, layer in enumerate(job.neuralnet.layer):
        yield ("neuralnet", "layer", i), layer
    for g, group in enumerate(job.neuralnet.layer_group):
        for i, layer in enumerate(group.layer):
            yield ("neuralnet", "layer_group", g, "layer", i), layer


def layer_names(job: JobProto) -> dict[Path, str]:
    """The names of the layers that a path can name, by path."""
    return callable_names({path: layer.name for path, layer in layers_of(job)})


def callable_names(names: Mapping[Path, str]) -> dict[Path, str]:
    """The names that are unique and cannot be read as a position."""
    count = Counter(names.values())
    return {path: name for path, name in names.items() if count[name] == 1 and _NAME.fullmatch(name)}


def format_path(path: Path, names: Mapping[Path, str]) -> str:
    """The path as text. names: of the layers, by path.

    >>> format_path(("neuralnet", "layer", 2, "type"), {("neuralnet", "layer", 2): "conv1"})
    'neuralnet.layer[conv1].type'
    """
    text = ""
    for i, part in enumerate(path):
        if isinstance(part, int):
            text += f"[{names.get(path[: i + 1], part)}]"
        else:
            text += f".{part}" if text else part
    return text
