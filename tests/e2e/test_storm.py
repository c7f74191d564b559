"""Storms of faults, by the benchmark's command."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

STORM = Path(__file__).parents[2] / "benchmarks" / "storm.py"


@pytest.mark.long
@pytest.mark.timeout(240)
@pytest.mark.parametrize("framework", ["allreduce", "sandblaster", "downpour", "hogwild"])
def test_a_run_survives_a_storm(framework, environment, tmp_path, no_leaks):
    figures = tmp_path / "figures.json"
    options = ("--framework", framework, "--seconds", "45", "--every", "8", "--calm", "0", "--json", str(figures))
    storm = subprocess.run([sys.executable, STORM, *options], env=environment, capture_output=True, text=True)
    assert storm.returncode == 0, storm.stdout + storm.stderr
    (row,) = json.loads(figures.read_text())["rows"]
    assert row["faults"] > 0 and row["steps_per_s"] > 0
    assert row["ledger"].startswith("clean") and not row["failed"] and not row["left"], row
