"""The rows of benchmarks/gpu/steps.py: our step on the GPU, and why PyTorch's has no part where it has none."""

import sys

import pytest
from support.programs import imported


@pytest.fixture
def steps(cupy):
    with imported("steps", "benchmarks", "benchmarks/gpu") as module:
        yield module


def test_our_step_is_timed_where_pytorch_is_absent(steps, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    for few in ("FIRST", "CHUNK", "ROUNDS"):
        monkeypatch.setattr(steps, few, 1)
    row = steps.compared("transformer-12", 0, "cuda")
    assert row["ours"]["least_ms"] == row["ours"]["ms"] > 0 and len(row["ours"]["losses"]) == 1
    assert "torch" in row["PyTorch"]["absent"] and "torch" in row["PyTorch with TF32"]["absent"]
    assert "ratio" not in row and steps.told(row).startswith("transformer-12: ours ")
