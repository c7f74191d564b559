"""The nets that PyTorch's users write, against PyTorch's numbers."""

from __future__ import annotations

import numpy as np
import pytest
from peers import drawn, expected
from peers.nets import NETS, REASONS, ROWS

NUMBERS = np.load(expected.FILE)


def test_the_list_refuses_nothing_else():
    """What the nets are called by their users, and the reasons for which one is refused."""
    assert len(ROWS) == 43
    refused = {reason for net in NETS.values() for reason in (net.loop, net.model, net.job) if reason}
    assert refused == set(REASONS)
    assert sum(net.own for net in NETS.values()) <= 4


def test_pytorchs_numbers_are_few():
    assert expected.FILE.stat().st_size < 2_000_000


@pytest.mark.parametrize("name", [name for name, net in NETS.items() if not net.loop])
def test_pytorchs_numbers_are_of_this_list(name):
    """Its losses, and a sketch of each gradient and each parameter; what float32 changes is little."""
    assert NUMBERS[f"{name}/losses"].shape == (drawn.STEPS,)
    for kind in ("gradients", "state"):
        sizes, off = NUMBERS[f"{name}/{kind}/sizes"], NUMBERS[f"{name}/{kind}/off"]
        assert len(NUMBERS[f"{name}/{kind}/names"]) == len(sizes) == len(off) > 0
        assert len(NUMBERS[f"{name}/{kind}/sketches"]) == np.minimum(8, sizes).sum() + 2 * len(sizes)
        assert 0 < off.max() < 1e-3
