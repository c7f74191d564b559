"""Modules in the current folder that have the names of others never run, whatever the command."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from support.commands import cluster, example, sets, summary
from support.planted import known_names, plant, ran

CONSOLE = Path(sys.executable).with_name("singa-dask")
SHORT = sets(train_steps=4, disp_freq=2, test_freq=0, test_steps=0, checkpoint_freq=0)


@pytest.fixture
def console(environment, tmp_path):
    """Run the installed script `singa-dask` in a folder in which every known name is planted."""
    plant(tmp_path, known_names())

    def run(*args: object, timeout: float = 100) -> subprocess.CompletedProcess[str]:
        command = [CONSOLE, *map(str, args)]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=timeout)

    return run


def test_planted_modules_do_not_run(console, tmp_path, no_leaks):
    assert console("--version").returncode == 0
    checked = console("check", example())
    assert (checked.returncode, ran(tmp_path)) == (0, []), checked.stderr
    trained = console("train", example(), "--cluster", cluster(), *SHORT, "--workspace", "run")
    assert (trained.returncode, ran(tmp_path)) == (0, []), trained.stderr
    assert summary(tmp_path / "run")["step"] == 4


def test_a_job_with_code_of_its_own_runs_it_and_no_planted_module(console, tmp_path, no_leaks):
    """The user's own module imports what is planted beside it; so do the workers, when it runs there."""
    (tmp_path / "own_layers.py").write_text(
        "import stringprep\n"
        "from singa_dask.layers import Layer\n"
        "class Same(Layer):\n"
        "    def setup(self, *src):\n"
        "        return self.sources(src)[0]\n"
        "    def forward(self, ctx, *x):\n"
        "        import colorsys, own_later\n"
        "        return own_later.same(x[0])\n"
        "    def backward(self, ctx, dy):\n"
        "        return dy\n"
    )
    (tmp_path / "own_later.py").write_text("def same(x): return x\n")
    (tmp_path / "job.conf").write_text(
        example().read_text().replace('"relu2" type: kReLU', '"relu2" user_type: "own_layers:Same"')
    )
    trained = console("train", "job.conf", "--cluster", cluster(), *SHORT, "--workspace", "run")
    assert (trained.returncode, ran(tmp_path)) == (0, []), trained.stderr


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_planted_modules_run_under_no_command(console, environment, tmp_path, no_leaks):
    """Every command, those that start processes among them, and `python -P -m singa_dask`."""
    (tmp_path / "points.csv").write_text("kind,x,y\n" + "".join(f"{'ab'[i % 2]},{i % 7},{i % 5}\n" for i in range(60)))
    few = ("--cluster", cluster(), *SHORT)
    commands: list[tuple[object, ...]] = [
        ("--version",),
        ("--help",),
        ("check", example(), *few),
        ("show", example(), "--out", "net.svg"),
        ("shard", "csv", "--source", "points.csv", "--label", "kind", "--out", "points", "--workers", 2),
        ("new", "points", "--out", "job.conf"),
        ("check", "job.conf"),
        ("train", example(), *few, "--workspace", "run"),
        ("train", example(), *few, *sets(train_steps=6), "--workspace", "run", "--resume"),
        ("train", example(), "--cluster", cluster("downpour"), *SHORT, "--workspace", "down"),
        ("attach", "run"),
        ("audit", "run"),
        ("test", "run"),
        ("predict", "run", "--out", "p.csv"),
        ("predict", "run", "--out", "p.h5", "--workers", 2),
        ("export", "run", "--onnx", "net.onnx"),
        ("plan", example(), "--workers", "1,2"),
        ("train", example(), *sets(train_steps=4, test_steps=0), "--workspace", "auto", "--cluster", "auto"),
    ]
    for command in commands:
        done = console(*command, timeout=200)
        assert (done.returncode, ran(tmp_path)) == (0, []), (command, done.stderr)
    refused: list[tuple[object, ...]] = [
        ("sample", example()),
        ("new", "nothing"),
        ("profile", "--scheduler", "tcp://127.0.0.1:1"),
        *((command, "--scheduler", "tcp://127.0.0.1:1") for command in ("join", "stop")),
        ("leave", 0, "--scheduler", "tcp://127.0.0.1:1"),
        ("attach", "nothing"),
    ]
    for command in refused:
        done = console(*command)
        assert "Traceback" not in done.stderr and ran(tmp_path) == [], (command, done.stderr)
    safe = partial(subprocess.run, cwd=tmp_path, env=environment, capture_output=True, timeout=200)
    for command in (("check", example()), ("train", example(), *few, "--workspace", "safe")):
        done = safe([sys.executable, "-P", "-m", "singa_dask", *map(str, command)])
        assert (done.returncode, ran(tmp_path)) == (0, []), done.stderr
