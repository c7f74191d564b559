"""What tests cost is recorded, and compared with what they may."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

TESTS = Path(__file__).parents[1]
CASE = '<testcase classname="tests.a" name="test"><properties><property name="{}" value="{}"/></properties></testcase>'
CONFTEST = """
from support.costs import Costs
def pytest_configure(config): config.pluginmanager.register(Costs())
"""
BURN = """
import subprocess, sys, time
import pytest

BURN = "import time\\nwhile time.process_time() < 0.3: pass"

@pytest.fixture(scope="module")
def shared():
    until = time.process_time() + 0.3
    while time.process_time() < until:
        pass

def test_alone(shared): pass
def test_with_a_child(): subprocess.run([sys.executable, "-c", BURN])
"""


def judged(*reports: Path) -> subprocess.CompletedProcess:
    command = [sys.executable, TESTS / "budget.py", *reports]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    ("what", "cost_s", "over"),
    [
        ("one process", 0.9, []),
        ("one process", 1.1, ["tests.a::test: 1.10 s, at most 1"]),
        ("several processes", 9.0, []),
        ("several processes", 11.0, ["tests.a::test: 11.00 s, at most 10"]),
        ("fixture shared", 11.0, ["tests.a: fixture shared: 11.00 s, at most 10"]),
    ],
)
def test_what_costs_too_much_is_named(tmp_path, what, cost_s, over):
    report = tmp_path / "report.xml"
    report.write_text(f"<testsuite>{CASE.format(what, cost_s)}<testcase name='lost'/></testsuite>")
    ran = judged(report)
    assert (ran.returncode, [line.strip() for line in ran.stderr.splitlines()[1:]]) == (bool(over), over)
    assert "tests.a" in ran.stdout, "among the dearest"


def test_there_must_be_a_record_of_these_tests(tmp_path):
    ran = judged(tmp_path / "none.xml")
    assert ran.returncode == 1 and "run `make test` first" in ran.stderr


def test_the_costs_of_children_and_of_shared_fixtures_are_recorded(tmp_path):
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_some.py").write_text(BURN)
    report = tmp_path / "report.xml"
    options = ["-c", TESTS.parent / "pyproject.toml", "--rootdir", tmp_path, "--junitxml", report, tmp_path]
    subprocess.run(
        [sys.executable, "-m", "pytest", *options], cwd=tmp_path, check=True, capture_output=True, timeout=60
    )
    found = {known.get("name"): float(known.get("value", 0)) for known in ElementTree.parse(report).iter("property")}
    assert found["fixture shared"] > 0.2 > found["one process"] and found["several processes"] > 0.2, found
