"""What a net of the list needs and has not yet, by the way in which it is trained. Whoever adds it removes it here."""

from __future__ import annotations

MODES = ("loop", "model", "job")
Unmet = dict[str, str]


def _in_nets(missing: str) -> Unmet:
    return {"model": missing, "job": missing}


UNMET: dict[str, Unmet] = {
}
