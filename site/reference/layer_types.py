"""The layers: what they compute, from their docstrings; their settings, from job.proto."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

from reference import job_file
from reference.docstrings import as_markdown
from reference.markdown import escaped, table
from singa_dask.job.job_pb2 import LayerProto, LayerType
from singa_dask.job.layer_types import CONF, DEPRECATED, INSERTED, SPELLINGS, parameter_roles, split_axes
from singa_dask.layers import Layer
from singa_dask.layers.registry import built_in

# The numbers of LayerType, in hundreds.
FAMILIES = {0: "Input layers", 1: "Neurons", 2: "Losses", 3: "Output layers", 4: "Connections"}


def layers() -> Iterator[tuple[str, type[Layer]]]:
    """Type and class of the layers that a job may have, by family."""
    for kind, cls in sorted(built_in().items(), key=lambda item: LayerType.Value(item[0]) // 100):
        if kind not in SPELLINGS and kind not in INSERTED:
            yield kind, cls


def page() -> str:
    """All layers, by family."""
    parts, family, shown = [], None, dict[str, str]()
    for kind, cls in layers():
        if family != (family := LayerType.Value(kind) // 100):
            parts.append(f"## {FAMILIES[family]}")
        parts += [f"### {cls.__name__} {{ #{cls.__name__.lower()} }}", f"`type: {kind}`", *_facts(kind, cls, shown)]
    parts += ["## Other names", "Job files of Apache SINGA may also have these."]
    parts.append(table(["type", "the same as"], ([f"`{old}`", f"`{new}`"] for old, new in SPELLINGS.items())))
    parts += ["These types are refused.", table(["type", "instead"], _refused())]
    return "\n\n".join(part for part in parts if part)


def _refused() -> Iterator[list[str]]:
    for kind, hint in DEPRECATED.items():
        yield [f"`{kind}`", escaped(hint)]
    for kind, by in INSERTED.items():
        yield [f"`{kind}`", f"Inserted by {by} the net."]


def _facts(kind: str, cls: type[Layer], shown: dict[str, str]) -> Iterator[str]:
    """What a layer computes, its parameters and settings. shown: blocks whose table is there already, and whose."""
    said, block = inspect.getdoc(cls) or "", CONF.get(kind)
    if block and block not in shown:  # the table says more
        said = re.sub(rf"\b{block}: .*?\.(?=\s+[A-Z`(]|\s*$)", "", said, flags=re.DOTALL)
    yield as_markdown(said, set())
    proto = LayerProto(name="layer", type=LayerType.Value(kind))
    roles, axes = parameter_roles(proto), split_axes(proto)
    if roles:
        along = [" or ".join(names.values()) for names in axes or ()]
        split = (f" (`partition_dim` can split its {names})" if names else "" for names in along)
        named = ", ".join(f"`{role}`{how}" for role, how in zip(roles, split, strict=True))
        yield f"Names of the parameters: {named}."
    if block in shown:
        yield f"The settings are in the block `{block}`, as those of [{shown[block]}](#{shown[block].lower()})."
    elif block:
        shown[block] = cls.__name__
        yield f"Settings, in the block `{block}`:"
        yield job_file.settings(LayerProto.DESCRIPTOR.fields_by_name[block].message_type.name)
