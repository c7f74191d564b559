"""A test that takes too long fails, and no other."""

import subprocess
import sys

from support.commands import ROOT

TESTS = """
import signal, time

def test_before(): pass

def test_that_can_be_interrupted(): time.sleep(60)

def test_between(): pass

def test_that_cannot_be_interrupted():
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
    time.sleep(60)

def test_after(): pass
"""


def test_a_test_over_its_deadline_fails_alone_even_if_it_cannot_be_interrupted(tmp_path):
    (tmp_path / "test_some.py").write_text(TESTS)
    options = ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(tmp_path), "-n", "1", "--dist", "worksteal"]
    deadlines = ["-o", "timeout=1", "-o", "faulthandler_timeout=10", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *options, *deadlines, str(tmp_path)]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert ran.returncode == 1 and "2 failed, 3 passed" in ran.stdout, ran.stdout + ran.stderr
    failed = [line for line in ran.stdout.splitlines() if line.startswith("FAILED")]
    assert "test_that_can_be_interrupted - Failed: Timeout" in failed[0], failed
    assert "test_that_cannot_be_interrupted" in failed[1], failed
