"""Which host saved the checkpoints of a run, for those who look for them on another one."""

from __future__ import annotations

from pathlib import Path
from socket import gethostname

from singa_dask.training.forms import SAVES, is_event
from singa_dask.training.line_file import LineFile

EVENTS = "events.jsonl"


def saved_elsewhere(folder: Path) -> str:
    """A sentence for a run in this folder whose checkpoints are not here; "" if its record names no other host."""
    hosts = [event["host"] for event in LineFile(folder / EVENTS, is_event).rows() if event["event"] == SAVES]
    if not hosts or hosts[-1] == gethostname():
        return ""
    there = f"The last one was saved on host {hosts[-1]}, and is not here"
    return f"{there}: run the command there, or copy {folder / 'checkpoint'} from there."
