"""Who leaves a run, and how it ends: what worker group 0, the lead, hears of the others, and who is stopped. No IO."""

from __future__ import annotations

from singa_dask.supervision import events as ev
from singa_dask.supervision.facts import Code, Fact, fact
from singa_dask.supervision.phases import Lead, Phase
from singa_dask.supervision.run_state import RunState


class Ending:
    """The end of a run. fault: why the last exchange between server groups failed, until that is assigned with."""

    def __init__(self, run: RunState) -> None:
        self.run, self.members, self.fault = run, run.members, ""

    def stop(self, by: str, early: bool) -> None:
        """Somebody wants the run to stop."""
        self.run.course.move("stop")
        self.run.stopped = by
        for group in self.members.running():
            if group.number > 0 or not early:
                self.run.do(ev.Stop(group.number))
        if not early:  # after the stop, as it may take a while to write it
            self.run.tell(Code.STOPPING, by=by)

    def leave(self, number: int) -> Fact:
        """Somebody wants a worker group to end. Returns what to answer."""
        group = next((group for group in self.members.working() if group.number == number), None)
        if group is None:
            return fact(Code.NOT_AT_WORK, group=number)
        if number == 0:
            return fact(Code.LEAD_STAYS)
        if group.phase is not Phase.RUNNING:
            return fact(Code.BEING_FORMED, group)
        group.leaving = True
        self.run.do(ev.Stop(number))
        return fact(Code.LEAVES, group)

    @property
    def others_ended(self) -> bool:
        """Whether all worker groups but the lead have ended."""
        return all(group.phase is Phase.ENDED for group in self.members.worker_groups[1:])

    def tell_lead(self, *, pending: bool) -> None:
        """Tell the lead whether all others have ended, if it believes something else. pending: whether a loss waits
        for a decision: then servers may lack something yet."""
        if not self.run.idle or self.fault or self.members.worker_groups[0].phase is not Phase.RUNNING:
            return
        if self.run.lead.phase is not Lead.UNAWARE and not self.others_ended:
            self.run.begin("tell", ev.TellLead(False))
        elif self.others_ended and self.run.lead.phase is not Lead.TOLD and not pending:
            numbers = tuple(group.number for group in self.members.serving())
            along = (*numbers[:-1], *numbers[-3::-1])  # along the line, and back
            self.run.begin("tell", ev.TellLead(True, along))

    def lead_told(self, event: ev.LeadTold) -> None:
        """The lead was told, or could not be."""
        self.fault = event.fault
        self.run.answered()
        if event.heard:
            self.run.lead.move("told" if event.ended else "told otherwise")

    def without_exchange(self, *, complete: bool) -> None:
        """Have the lead end though the last exchange failed. complete: no process is silent; else the loss is assigned
        with first, and the exchange is repeated."""
        if self.fault and self.run.idle and complete:
            self.run.tell(Code.EXCHANGE_FAILED, cause=self.fault)
            self.run.begin("tell", ev.TellLead(True))
        self.fault = ""
