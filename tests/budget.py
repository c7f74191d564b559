"""`make test-budget`: fails for tests and shared fixtures that took more CPU time than they may in `make test`.

python tests/budget.py .reports/unit.xml .reports/runs.xml
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

HERE = Path(__file__).parent
ONE_S, SEVERAL_S = 1.0, 10.0


def costs(report: Path) -> Iterator[tuple[float, float, str]]:
    """CPU seconds, how many there may be, and the name of each test and of each shared fixture."""
    for case in ElementTree.parse(report).iter("testcase"):
        room = case.get("classname", "")  # which what a lost worker ran has not, nor any costs
        name = f"{room}::{case.get('name')}"
        for known in case.iter("property"):
            what, cost_s = known.attrib["name"], float(known.attrib["value"])
            most_s = ONE_S if what == "one process" else SEVERAL_S
            yield cost_s, most_s, f"{room}: {what}" if what.startswith("fixture") else name


def main(*reports: Path) -> str:
    """What is wrong, if anything."""
    newest = max(path.stat().st_mtime for path in HERE.rglob("*.py"))
    for report in reports:
        if not report.exists() or report.stat().st_mtime < newest:
            return f"{report} is missing or older than the tests: run `make test` first"
    found = sorted((each for report in reports for each in costs(report)), reverse=True)
    for cost_s, _, name in found[:10]:
        print(f"{cost_s:6.2f} s  {name}")
    over = [f"  {name}: {cost_s:.2f} s, at most {most_s:g}" for cost_s, most_s, name in found if cost_s > most_s]
    return "\n".join(["these take more CPU time than they may:", *over]) if over else ""


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:])) or 0)
