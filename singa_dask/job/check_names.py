"""Checks of names: that of the job is a folder's, those of layers and parameters are keys of checkpoints."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator

from singa_dask.job.findings import Findings
from singa_dask.job.paths import MAX_NAME_NBYTES, Path, layers_of

_SHOWN = 60


def check_names(findings: Findings) -> None:
    """Check the names that a job gives."""
    name = findings.job.name
    if not name.strip():
        findings.missing(("name",), 'name: "my-job"')
    elif "/" in name or name in (".", ".."):
        message = "is used as a folder name: it must not contain a slash or be . or .."
        findings.add(("name",), message, shown(name), "Rename the job.")
    elif fault := _text_fault(name):
        findings.add(("name",), f"is used as a folder name: it {fault}", shown(name), "Rename the job.")
    parameters: dict[str, Path] = {}
    for path, layer in layers_of(findings.job):
        if layer.HasField("name") and (fault := key_fault(layer.name)):
            findings.add((*path, "name"), fault, shown(layer.name), "Rename the layer.")
        for i, param in enumerate(layer.param):
            if param.name:
                parameters.setdefault(param.name, (*path, "param", i, "name"))
    for name, fault in parameter_faults(parameters):
        findings.add(parameters[name], fault, shown(name), "Rename the parameter.")


def parameter_faults(names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """The names among those of all parameters that checkpoints cannot have, and why."""
    names = dict.fromkeys(names)
    for name in names:
        parts = name.split("/")
        outer = next((o for i in range(1, len(parts)) if (o := "/".join(parts[:i])) in names), None)
        if fault := key_fault(name):
            yield name, fault
        elif outer is not None:
            yield name, f"{shown(outer)} is a parameter, and so cannot be a folder of them"


def key_fault(name: str) -> str | None:
    """Why a name cannot be a key of checkpoints, whose parts are between slashes; None if it can."""
    parts = name.split("/")
    if fault := _text_fault(name):
        return fault
    if not name or "" in (parts[0], parts[-1]):
        return "must not begin or end with a slash" if name else "must not be empty"
    if "" in parts:
        return "must not have two slashes in a row"
    return "must not have . or .. between slashes" if {".", ".."} & {*parts} else None


def shown(name: str) -> str:
    """A name for messages, which may be long and hold anything."""
    return repr(name if len(name) <= _SHOWN else f"{name[: _SHOWN - 3]}...")


def _text_fault(name: str) -> str | None:
    if len(name.encode()) > MAX_NAME_NBYTES:
        return f"must have at most {MAX_NAME_NBYTES} bytes"
    control = any(unicodedata.category(character) == "Cc" for character in name)
    return "must not contain control characters" if control else None
