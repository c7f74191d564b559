"""The forms of what a run records. Its files are checked when they are read: they may be damaged, or anybody's."""

from __future__ import annotations

from types import NoneType
from typing import Any

# Events in events.jsonl: worker groups went back to a checkpoint; a worker group begins, at first or after a restart;
# which host saves checkpoints from now on.
REWOUND, BEGUN, SAVES = "rewound", "begun", "saves"
OUTDATED = "replica outdated"

_PHASES = ("train", "validate", "test")
_EVENTS = {
    "start": {"step": (int, NoneType)},
    REWOUND: {"step": (int, NoneType)},
    BEGUN: {"group": int, "steps": [[int]]},
    "restart": {"groups": [int], "step": int, "cause": str, "servers": [int]},
    SAVES: {"host": str},
    OUTDATED: dict.fromkeys(("server_group", "generation", "rank", "replica"), int),
}


def fits(value: Any, form: Any) -> bool:
    """Whether a value from JSON has a form: a type, a tuple of types, [form] of each element of a list, or {key: form}
    of an object's values under these keys. No bool is a number.

    >>> fits({"step": 1, "more": 2}, {"step": int}), fits([[1], 2], [[int]]), fits(True, int)
    (True, False, False)
    """
    if isinstance(form, dict):
        return isinstance(value, dict) and all(key in value and fits(value[key], of) for key, of in form.items())
    if isinstance(form, list):
        return isinstance(value, list) and all(fits(each, form[0]) for each in value)
    return isinstance(value, form) and not isinstance(value, bool)


def is_metrics(row: Any) -> bool:
    """Whether this is a row of metrics.jsonl."""
    if not fits(row, {"group": int, "phase": str, "step": int}) or row["phase"] not in _PHASES:
        return False
    return all(fits(value, (int, float, NoneType)) for key, value in row.items() if key != "phase")


def is_event(row: Any) -> bool:
    """Whether this is a row of events.jsonl."""
    if not (fits(row, {"event": str}) and fits(row, _EVENTS.get(row["event"], {}))):
        return False
    return row["event"] != BEGUN or all(len(pair) == 2 for pair in row["steps"])


def is_summary(found: Any) -> bool:
    """Whether this is the contents of summary.json."""
    if not fits(found, {"status": str, "groups": {}}):
        return False
    return all(group.isdecimal() and fits(report, {"step": int}) for group, report in found["groups"].items())
