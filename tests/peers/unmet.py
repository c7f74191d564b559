"""What a net of the list needs and has not yet, by the way in which it is trained. Whoever adds it removes it here."""

from __future__ import annotations

MODES = ("loop", "model", "job")
Unmet = dict[str, str]


def _in_nets(missing: str) -> Unmet:
    return {"model": missing, "job": missing}


STEPS = {"model": "labels of each time step"}

UNMET: dict[str, Unmet] = {
    "lstm_tagger": STEPS,
    "bilstm_tagger": STEPS,
    "bilstm_lengths": STEPS | {"job": "lengths beside labels of each time step"},
    "seq2seq_gru": _in_nets("sources of unequal lengths, indices, matmul of batches"),
    "seq2seq_lstm": _in_nets("one time step of a sequence"),
    "gpt": STEPS,
    "gpt_tied": STEPS,
    "rotary": STEPS,
    "ctc": {"job": "several labels of a sample"},
}
