"""What a run's last line says."""

from __future__ import annotations

from pathlib import Path

import pytest

from singa_dask.supervision.driver import Result


@pytest.mark.parametrize(
    ("checkpoint", "says"),
    [
        (None, "stopped at step 0; 2 s; see runs/digits"),
        ("runs/digits/checkpoint/step-00000000.h5", "stopped at step 0; go on with --resume; 2 s; see runs/digits"),
    ],
)
def test_only_a_run_that_saved_says_that_it_can_be_resumed(checkpoint, says):
    summary = {
        "status": "interrupted",
        "step": 0,
        "checkpoint": checkpoint,
        "samples_per_s": 0.0,
        "wall_s": 2.0,
        **{phase: {} for phase in ("test", "validate", "train")},
    }
    assert str(Result(summary, Path("runs/digits"))) == says
