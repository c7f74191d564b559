"""What a net of the list needs and has not yet, by the way in which it is trained. Whoever adds it removes it here."""

from __future__ import annotations

MODES = ("loop", "model", "job")
Unmet = dict[str, str]


def _in_nets(missing: str) -> Unmet:
    return {"model": missing, "job": missing}


STEPS = {"model": "labels of each time step"}

UNMET: dict[str, Unmet] = {
    "siamese": {
        "model": "losses that say what they read of an input layer",
        "job": "rounding of a formula as PyTorch rounds",
    },
    "lstm_tagger": STEPS,
    "bilstm_tagger": STEPS,
    "bilstm_lengths": STEPS | {"job": "lengths beside labels of each time step"},
    "seq2seq_gru": _in_nets("sources of unequal lengths, indices, matmul of batches"),
    "seq2seq_lstm": _in_nets("one time step of a sequence"),
    "gpt": STEPS,
    "gpt_tied": STEPS,
    "rotary": STEPS,
    "embedding_bag": _in_nets("comparisons, where, sum"),
    "pinn": _in_nets("gradients for inputs"),
    "gradient_penalty": _in_nets("gradients for inputs"),
    "graph_net": _in_nets("matmul of batches, mean"),
    "ctc": _in_nets("several labels of a sample"),
    "mixup": _in_nets("shares of classes that are computed"),
    "weight_norm": _in_nets("sqrt, power, sum, transpose, parameters of a Module's own"),
}
