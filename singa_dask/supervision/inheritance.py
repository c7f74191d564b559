"""What a driver takes over from a lost one, besides checkpoints. No IO."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from singa_dask.server.ledger import Ledger
from singa_dask.supervision.facts import Code, Fact, fact
from singa_dask.training.forms import OUTDATED

if TYPE_CHECKING:
    from singa_dask.memory.owner import Saved
    from singa_dask.supervision.events import Inherited
    from singa_dask.supervision.members import Members


def inherit(
    members: Members, left: Mapping[str, tuple[Saved, ...]], inherited: Inherited, saved: Ledger | None
) -> Fact | None:
    """Have servers go on from what those of an earlier start have left, unless the newest checkpoint, whose ledger is
    `saved`, contains more updates. Returns why it does not count, None if it does.

    A server group of which something is missing takes over a neighbour's parameters.
    """
    if not inherited.fits:
        return fact(Code.MISFIT)
    groups = [g for g in members.server_groups if str(g) in inherited.ledgers and g.counts(left[str(g)], 0)]
    if not groups:
        return fact(Code.TORN, torn=inherited.torn) if inherited.torn else fact(Code.GONE)
    contained = Ledger.joint(inherited.ledgers[str(group)] for group in groups)
    if saved is not None and contained.updates < saved.updates:
        return fact(Code.FEWER)
    for group in groups:
        group.left = left[str(group)]
    return None


def recall(members: Members, events: Iterable[Mapping[str, Any]]) -> None:
    """Know the outdated replicas that earlier drivers have recorded."""
    for lost in events:
        if lost["event"] == OUTDATED and lost["server_group"] < len(members.server_groups):
            outdated = members.server_groups[lost["server_group"]].outdated
            outdated[lost["generation"], lost["rank"]] = lost["replica"]
