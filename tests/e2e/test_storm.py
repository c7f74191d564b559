"""Storms of faults, by the benchmark's command."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

STORM = Path(__file__).parents[2] / "benchmarks" / "storm.py"

PROBE = "mount -t tmpfs none /mnt && ip link add v0 type veth peer name v1 && tc qdisc show"


def restricted():
    """Options that leave out hosts and full disks where namespaces, network cards and mounts are not allowed."""
    tools = all(map(shutil.which, ("unshare", "nsenter", "taskset", "ip", "tc")))
    if (
        tools
        and subprocess.run(["unshare", "--net", "--mount", "sh", "-c", PROBE], capture_output=True).returncode == 0
    ):
        return []
    return ["--hosts", "1", *(f"--fault={kind}" for kind in ("kill", "stop", "kill_nanny", "stop_nanny"))]


@pytest.fixture
def measure(program, tmp_path):
    """The row of figures of a benchmark."""

    def run(script, *options):
        program(STORM.with_name(script), *options, "--json", "figures.json", timeout=240)
        (row,) = json.loads((tmp_path / "figures.json").read_text())["rows"]
        assert row["ledger"].startswith("clean") and not row["left"], row
        return row

    return run


@pytest.mark.long
@pytest.mark.timeout(240)
def test_a_run_that_loses_a_host_goes_on_from_memory(measure, no_leaks):
    if restricted():
        pytest.skip("namespaces, network cards or mounts are not allowed")
    row = measure("faults.py", "--case", "host", "--steps", "600")
    assert row["restarts"] == 1, row
    assert 0 < row["repeated"] < 1499, "it lost the host after 1,500 steps, and has no checkpoint on the disk"


@pytest.mark.long
@pytest.mark.timeout(240)
@pytest.mark.parametrize("strategy", ["allreduce", "sandblaster", "downpour", "hogwild"])
def test_a_run_survives_a_storm(strategy, measure, no_leaks):
    storm = ("--seconds", "45", "--every", "8", "--calm", "0", *restricted())
    row = measure("storm.py", "--strategy", strategy, *storm)
    assert row["faults"] > 0 and row["steps_per_s"] > 0 and not row["failed"], row
