"""The example of a training loop of one's own, both ways in which people start it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.launch import is_open_mpi, launched, mpiexec
from support.leaks import leaks_forbidden

EXAMPLE = Path(__file__).parents[2] / "examples" / "distopt" / "train.py"
ARGS = ["--data", "digits", "--batch", "16", "--epochs", "3"]
FAILS = """
import multiprocessing
import numpy as np
from singa_dask import opt

def train(nccl_id, number, count):
    sgd = opt.DistOpt(opt.SGD(lr=0.1), nccl_id=nccl_id, local_rank=number, world_size=count)
    sgd.comm.timeout_s = 5.0
    if number:
        raise ValueError("the second process fails")
    sgd.all_reduce(np.zeros(3))

if __name__ == "__main__":
    nccl_id = opt.NcclIdHolder()
    processes = [multiprocessing.Process(target=train, args=(nccl_id, i, 2)) for i in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    codes = [process.exitcode for process in processes]
    print("exit codes:", *codes)
    raise SystemExit(any(codes))
"""
_LINE = re.compile(r"epoch (\d): test accuracy (\S+), loss (\S+), 29 steps, ([\d,]+) bytes per step and rank")


def run(environment, *args, ranks=0):
    """(accuracy, loss, bytes per step) after the last epoch."""
    start = mpiexec(ranks) if ranks else []
    environment = launched(environment) | {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    done = subprocess.run(
        [*start, sys.executable, str(EXAMPLE), *ARGS, *args],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = _LINE.findall(done.stdout)
    assert [line[0] for line in lines] == ["1", "2", "3"], done.stdout
    _, accuracy, loss, nbytes = lines[-1]
    return float(accuracy), float(loss), int(nbytes.replace(",", ""))


@pytest.fixture(scope="module")
def full(environment):
    """Three ranks of mpiexec that send everything."""
    with leaks_forbidden():
        return run(environment, "--codec", "full", ranks=3)


@pytest.mark.long
@pytest.mark.timeout(200)
def test_under_mpiexec_half_the_bytes_train_as_well(environment, full, no_leaks):
    half = run(environment, "--codec", "half", ranks=3)
    assert half[2] <= 0.501 * full[2]
    assert full[0] > 0.9 and half[0] > 0.9 and abs(full[0] - half[0]) < 0.02


@pytest.mark.long
@pytest.mark.timeout(200)
def test_launch_computes_what_mpiexec_does_in_a_tenth_of_the_bytes(environment, full, no_leaks):
    if is_open_mpi():
        pytest.skip("Open MPI cannot be started by launch")
    topk = run(environment, "--codec", "topk", "--nprocs", "3")
    assert topk == run(environment, "--codec", "topk", ranks=3)
    assert topk[0] > 0.85 and topk[2] <= 0.11 * full[2]


@pytest.mark.timeout(200)
@pytest.mark.parametrize("codec", ["partial", "threshold"])
def test_the_other_codecs_learn(environment, no_leaks, codec):
    if is_open_mpi():
        pytest.skip("Open MPI cannot be started by launch")
    assert run(environment, "--codec", codec, "--nprocs", "3", "--lr", "0.01")[0] > 0.8


@pytest.mark.timeout(200)
def test_the_tutorial_trains_alike_in_both_ways_to_launch_it(environment, no_leaks):
    """SINGA's net, loop and calls: by mpiexec, and by multiprocessing with an NcclIdHolder."""
    if is_open_mpi():
        pytest.skip("Open MPI cannot be started by multiprocessing")
    arguments = ["--data", "digits", "--batch", "16", "--epochs", "3", "--lr", "0.05"]
    lines = []
    for start, more in ((mpiexec(2), []), ([], ["--nprocs", "2"])):
        done = subprocess.run(
            [*start, sys.executable, str(EXAMPLE.parent / "tutorial.py"), *arguments, *more],
            capture_output=True,
            text=True,
            timeout=100,
            env=launched(environment) | {"OMP_NUM_THREADS": "1"},
        )
        assert done.returncode == 0, done.stdout + done.stderr
        lines.append(re.findall(r"Epoch \d: training loss (\S+), evaluation accuracy (\S+),", done.stdout))
    assert lines[0] == lines[1] and len(lines[0]) == 3
    assert float(lines[0][-1][1]) > 0.9


def test_a_process_that_fails_ends_the_others(environment, tmp_path, no_leaks):
    if is_open_mpi():
        pytest.skip("Open MPI cannot be started by multiprocessing")
    script = tmp_path / "fails.py"
    script.write_text(FAILS)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=50, env=environment)
    assert done.returncode == 1 and "the second process fails" in done.stderr and "exit codes: 1 1" in done.stdout
