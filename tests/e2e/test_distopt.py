"""The example of a training loop of one's own, both ways in which people start it."""

import re
import sys

import pytest
from support.commands import ROOT, run_command
from support.launch import is_open_mpi, launched, mpiexec

EXAMPLES = ROOT / "examples" / "distopt"
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

pytestmark = pytest.mark.timeout(200)


def run(environment, script, *args, ranks=0):
    """The output of an example, started by mpiexec where ranks are given."""
    command = [*(mpiexec(ranks) if ranks else []), sys.executable, EXAMPLES / script, *ARGS, *args]
    one = {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    return run_command(command, env=launched(environment) | one).out


def trained(environment, *args, ranks=0):
    """(accuracy, loss, bytes per step) after the last epoch."""
    lines = _LINE.findall(run(environment, "train.py", *args, ranks=ranks))
    assert [line[0] for line in lines] == ["1", "2", "3"]
    _, accuracy, loss, nbytes = lines[-1]
    return float(accuracy), float(loss), int(nbytes.replace(",", ""))


@pytest.fixture
def pmi():
    if is_open_mpi():
        pytest.skip("Open MPI can be started neither by launch nor by multiprocessing")


@pytest.mark.long
def test_codecs_train_as_well_with_fewer_bytes_by_mpiexec_and_by_launch(environment, pmi, no_leaks):
    full, half, topk = (trained(environment, "--codec", codec, ranks=3) for codec in ("full", "half", "topk"))
    assert full[0] > 0.9 and half[0] > 0.9 and abs(full[0] - half[0]) < 0.02 and topk[0] > 0.85
    assert half[2] <= 0.501 * full[2] and topk[2] <= 0.11 * full[2]
    assert topk == trained(environment, "--codec", "topk", "--nprocs", "3")
    for codec in ("partial", "threshold"):
        assert trained(environment, "--codec", codec, "--nprocs", "3", "--lr", "0.01")[0] > 0.8


def test_the_tutorial_trains_alike_in_both_ways_to_launch_it(environment, pmi, no_leaks):
    """SINGA's net, loop and calls: by mpiexec, and by multiprocessing with an NcclIdHolder."""
    told = [
        run(environment, "tutorial.py", "--lr", "0.05", ranks=2),
        run(environment, "tutorial.py", "--lr", "0.05", "--nprocs", "2"),
    ]
    lines = [re.findall(r"Epoch \d: training loss (\S+), evaluation accuracy (\S+),", out) for out in told]
    assert lines[0] == lines[1] and len(lines[0]) == 3
    assert float(lines[0][-1][1]) > 0.9


def test_a_process_that_fails_ends_the_others(program, pmi, tmp_path, no_leaks):
    (tmp_path / "fails.py").write_text(FAILS)
    done = program("fails.py", code=1)
    assert "the second process fails" in done.err and "exit codes: 1 1" in done.out
