"""Storms of faults, by the benchmark's command."""

import json
import shutil
import subprocess
import sys
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


@pytest.mark.long
@pytest.mark.timeout(240)
def test_a_run_that_loses_a_host_goes_on_from_memory(environment, tmp_path, no_leaks):
    if restricted():
        pytest.skip("namespaces, network cards or mounts are not allowed")
    figures, faults = tmp_path / "figures.json", STORM.with_name("faults.py")
    command = [sys.executable, faults, "--case", "host", "--steps", "600", "--json", figures]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    (row,) = json.loads(figures.read_text())["rows"]
    assert row["restarts"] == 1 and row["ledger"].startswith("clean") and not row["left"], row
    assert 0 < row["repeated"] < 1499, "it lost the host after 1,500 steps, and has no checkpoint on the disk"


@pytest.mark.long
@pytest.mark.timeout(240)
@pytest.mark.parametrize("framework", ["allreduce", "sandblaster", "downpour", "hogwild"])
def test_a_run_survives_a_storm(framework, environment, tmp_path, no_leaks):
    figures = tmp_path / "figures.json"
    options = (
        "--framework",
        framework,
        "--seconds",
        "45",
        "--every",
        "8",
        "--calm",
        "0",
        "--json",
        str(figures),
        *restricted(),
    )
    storm = subprocess.run([sys.executable, STORM, *options], env=environment, capture_output=True, text=True)
    assert storm.returncode == 0, storm.stdout + storm.stderr
    (row,) = json.loads(figures.read_text())["rows"]
    assert row["faults"] > 0 and row["steps_per_s"] > 0
    assert row["ledger"].startswith("clean") and not row["failed"] and not row["left"], row
