"""examples/heat by the commands that its users type, on few and small samples."""

from __future__ import annotations

import subprocess
import sys

from support.commands import ROOT, example, metrics, sets


def test_generate_shard_train(singa_dask, tmp_path, no_leaks):
    program = [sys.executable, str(ROOT / "examples" / "heat" / "generate.py"), "--out", "heat.h5"]
    made = subprocess.run(
        [*program, "--samples", "200", "--cells", "16"], cwd=tmp_path, capture_output=True, text=True
    )
    assert made.returncode == 0, made.stderr
    columns = ["--x", "x", "--target", "temperature", "--channels", "first"]
    ran = singa_dask("shard", "hdf5", "--source", "heat.h5", *columns, "--test", 0.5, "--out", "shards/heat")
    assert ran.code == 0, ran.err
    short = sets(train_steps=60, validate_freq=60, test_freq=60, checkpoint_freq=0)
    ran = singa_dask("train", example("heat"), *short)
    assert ran.code == 0, ran.err
    tests = [row for row in metrics(tmp_path / "runs" / "heat-allreduce") if row["phase"] == "test"]
    assert [row["step"] for row in tests] == [0, 60]
    assert tests[1]["loss"] < 0.7 * tests[0]["loss"]
