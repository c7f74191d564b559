"""Modules in the current folder that have the names of others never run, whatever the command."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.commands import COMMAND, Ran, cluster, example, run_command, sets, summary
from support.planted import known_names, plant, ran

CONSOLE = Path(sys.executable).with_name("singa-dask")
SHORT = sets(train_steps=4, disp_freq=2, test_freq=0, test_steps=0, checkpoint_freq=0)


@pytest.fixture
def console(environment, tmp_path):
    """Run the installed script `singa-dask` in a folder in which every known name is planted: none of these runs."""
    plant(tmp_path, known_names())

    def run(*args: object, command: Sequence[object] = (CONSOLE,), code: int | None = 0) -> Ran:
        told = run_command([*command, *args], cwd=tmp_path, env=environment, code=code, timeout=200)
        assert ran(tmp_path) == [], args
        return told

    return run


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
    console("--version")
    console("check", example())
    console("train", "job.conf", "--cluster", cluster(), *SHORT, "--workspace", "run")
    assert summary(tmp_path / "run")["step"] == 4


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_planted_modules_run_under_no_command(console, tmp_path, no_leaks):
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
        console(*command)
    nowhere = ("--scheduler", "tcp://127.0.0.1:1")
    refused: list[tuple[object, ...]] = [
        ("sample", example()),
        ("new", "nothing"),
        ("attach", "nothing"),
        ("leave", 0, *nowhere),
        *((command, *nowhere) for command in ("profile", "join", "stop")),
    ]
    for command in refused:
        assert "Traceback" not in console(*command, code=None).err, command
    for command in (("check", example()), ("train", example(), *few, "--workspace", "safe")):
        console(*command, command=COMMAND)
