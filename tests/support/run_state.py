"""The state of a run in short, and whether its phases agree with the rest of it."""

from __future__ import annotations

from typing import Any

from singa_dask.supervision import events as ev
from singa_dask.supervision.facts import Fact
from singa_dask.supervision.phases import CheckpointSearch, Course, Lead, Operation, Phase, Status
from singa_dask.supervision.run_state import RunState

_OPERATIONS = {
    ev.FormRequest: Operation.FORMING,
    ev.Close: Operation.CLOSING,
    ev.TellLead: Operation.TELLING,
    type(None): Operation.NONE,
}


def contradictions(run: RunState) -> list[Any]:
    """The phases that contradict the rest of the state."""
    lead = run.members.worker_groups[0].phase
    forming = any(member.phase is Phase.FORMING for member in run.members.all())
    holds = {
        run.course.phase: bool(run.stopped) or run.course.phase is not Course.STOPPING,
        run.operation.phase: run.operation.phase is _OPERATIONS[type(run.request)]
        and (run.over or forming == (run.operation.phase is Operation.FORMING)),
        run.status.phase: run.status.phase is Status.NONE or run.asked.number > 0,
        run.checkpoint.phase: run.found is None or run.checkpoint.phase is CheckpointSearch.KNOWN,
        run.lead.phase: run.lead.phase is not Lead.TOLD or lead not in (Phase.DOWN, Phase.FORMING, Phase.CLOSING),
    }
    return [phase for phase, truth in holds.items() if not truth]


def in_short(what: Fact | BaseException) -> str:
    """The code, and Dask workers that it names; the type of an error."""
    if not isinstance(what, Fact):
        return type(what).__name__
    return " ".join([what.code.name.lower().replace("_", " "), *what.figures.get("where", ())])
