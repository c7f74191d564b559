"""The page of the outcomes in docs/."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from gate.cells import CANNOT, CONVERTED, SAME
from gate.containers import CONTAINERS
from gate.samples import SITUATIONS

PAGE = Path(__file__).parents[2] / "docs" / "containers.md"
_HEAD = """# Container by container: kept, converted, refused

The tests send the same samples through every container and every entry point. This page is made of what they saw.
There is no third case. A container that holds a situation gives the same shards, the same trained parameters (of steps
over all samples: mini-batches depend on the order of the blocks) and the same predictions as the first of its kind:
pandas for tables, NumPy for images. Or the command refuses it, with a message.

- *noted*: the samples are kept, and the manifest has a warning.
- *converted*: the container holds strings where other containers hold values with a type. The manifest has a warning.
- *does not exist*: the container cannot hold the situation.

Numbers of tables become float32. Strings become one-hot columns, in the order of their sorted categories. Dates become
days since the first one of the training samples, and time spans days. Channels come last.

"""
_ENTRIES = {
    "shard": "## Shards: `shard`, `singa-dask shard`",
    "train": "## Training: `train(data=)`, and jobs that read shards",
    "predict": "## Predictions: `Model.predict`, `singa-dask predict --data`",
}


def page(found: Mapping[str, Mapping[str, str]]) -> str:
    """The text of the page. found: outcomes by container and situation."""
    names = [container.name for container in CONTAINERS]
    parts = [_HEAD]
    for entry, title in _ENTRIES.items():
        parts += [title, "\n\n| situation | kept | refused | does not exist |\n|---|---|---|---|\n"]
        for situation in (each.name for each in SITUATIONS if each.entry == entry):
            of = {name: found[name][situation] for name in names}
            exist = [name for name in names if not of[name].startswith(CANNOT)]
            kept = [name for name in exist if of[name].startswith((SAME, CONVERTED))]
            converted = [name for name in exist if of[name].startswith(CONVERTED)]
            noted = {of[name].partition("noted: ")[2] for name in kept} - {""}
            refused = [name for name in exist if name not in kept]
            why = f"{_those(kept, exist)}{' (noted)' if noted and not converted else ''}"
            why += f"; converted, and noted: {', '.join(converted)}" if converted else ""
            cannot = ", ".join(_without(names, exist)) or "none"
            parts.append(f"| {situation} | {why} | {_those(refused, exist)} | {cannot} |\n")
        parts.append("\n")
    return "".join(parts).rstrip("\n") + "\n"


def _without(names: Sequence[str], some: Sequence[str]) -> list[str]:
    return [name for name in names if name not in some]


def _those(some: Sequence[str], of: Sequence[str]) -> str:
    rest = _without(of, some)
    if not rest:
        return "all"
    return f"all but {', '.join(rest)}" if len(rest) < len(some) / 2 else ", ".join(some) or "none"
