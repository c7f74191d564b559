"""Print what differs from outcomes.json, or write it."""

from __future__ import annotations

import json
import sys

from gate.cells import OUTCOMES, outcomes
from gate.page import PAGE, page


def main() -> int:
    found = outcomes()
    if "--write" in sys.argv:
        OUTCOMES.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        PAGE.write_text(page(found), encoding="utf-8")
        return 0
    known = json.loads(OUTCOMES.read_text(encoding="utf-8"))
    differ = 0
    for container, of in found.items():
        for situation, outcome in of.items():
            if outcome != known.get(container, {}).get(situation):
                differ += 1
                print(f"{container} | {situation}\n  was {known.get(container, {}).get(situation)}\n  is  {outcome}")
    return differ > 0


if __name__ == "__main__":
    sys.exit(main())
