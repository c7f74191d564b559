"""An audit as text: what each worker group has trained, what the parameters contain, and the verdict."""

from __future__ import annotations

from collections.abc import Iterable

from rich.table import Table
from rich.text import Text

from singa_dask.output.console import Console
from singa_dask.supervision.audit import Audit, GroupAudit

SHOWN = 4  # ranges in a cell


def print_audit(console: Console, audit: Audit) -> None:
    """Print an audit: a row per worker group, what is damaged, why steps are missing, and the verdict."""
    console.print(
        Text(f"{audit.workspace}: {audit.status}; {audit.checkpoint.name}, step {audit.step}\n"), style="italic"
    )
    console.print(audit_table(audit))
    console.print()
    for fault in audit.damaged:
        console.print(Text(f"{fault}.", style="bold red"))
    for group in audit.groups:
        for gap in group.missing:
            what = "missing in some parameters" if gap.partly else "missing"
            steps = format_steps([(gap.first, gap.stop)])
            line = f"group {_name(audit, group)}, {steps}: {what}: {gap.why or 'no reason is known'}"
            console.print(Text(line, style="" if gap.why else "bold red"))
    console.print(Text(audit.verdict, style="bold" if audit.clean else "bold red"))


def audit_table(audit: Audit) -> Table:
    """The steps of each worker group."""
    table = Table(box=None, pad_edge=False)
    for heading in ("group", "trained", "contained", "missing", "twice"):
        table.add_column(heading, overflow="fold")
    for group in audit.groups:
        gaps = [(gap.first, gap.stop) for gap in group.missing]
        trained = [(group.start, group.trained)] if group.start < group.trained else []
        cells = (format_steps(ranges) for ranges in (trained, group.contained, gaps, group.twice))
        table.add_row(_name(audit, group), *cells)
    return table


def format_steps(ranges: Iterable[tuple[int, int]]) -> str:
    """
    >>> format_steps([(0, 40), (45, 46)])
    '0-39, 45'
    """
    found = [f"{first}-{stop - 1}" if stop - first > 1 else str(first) for first, stop in ranges]
    more = [f"{len(found) - SHOWN} more"] * (len(found) > SHOWN)
    return ", ".join([*found[:SHOWN], *more]) or "-"


def _name(audit: Audit, group: GroupAudit) -> str:
    """The number of a group; with the number of groups where the run had several of these."""
    same = all(other.assignment == group.assignment for other in audit.groups)
    return str(group.group) if same else f"{group.group} of {group.assignment.groups}"
