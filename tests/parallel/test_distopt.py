"""DistOpt in real processes: those of mpiexec and those of launch; what is left when a rank fails."""

import re
import sys
import threading

import pytest
from support.commands import kill_and_see_others_end, run_command, started, wait_until
from support.launch import is_open_mpi, launched, mpiexec

from singa_dask import launch
from singa_dask.errors import ConfigError

_COMMON = """
import os, signal, sys, time
import numpy as np
from singa_dask import DistOpt, Model, data_partition, launch
from singa_dask.layers import InnerProduct, RecordInput, ReLU, SoftmaxLoss
from singa_dask.updaters import SGD

def build():
    model = Model([RecordInput(shape=[12]), InnerProduct(num_output=9), ReLU(), InnerProduct(num_output=4),
                   SoftmaxLoss()], seed=0)
    return model, DistOpt(SGD(lr=0.1, momentum=0.9), model)

def train(steps=6, method="backward_and_update", fail=None, settings={}):
    draw = np.random.default_rng(5)
    x, y = draw.normal(size=(60, 12)).astype(np.float32), draw.integers(0, 4, 60)
    model, opt = build()
    x, y = data_partition(x, y, opt.rank_in_global, opt.world_size)
    for step in range(steps):
        if step == 3 and fail is not None and opt.rank_in_global == 1:
            fail()
        getattr(opt, method)(model(x, y), **settings)
    return opt.rank_in_global, opt.world_size, opt.rank_in_local, float(np.abs(model.net.flat.values).sum())

def alone():
    from singa_dask.comm import SoloCommunicator
    from singa_dask.loops.distopt.worlds import enter
    enter(SoloCommunicator())
    return train()

def raises():
    raise ValueError("bad batch")

def dies():
    os.kill(os.getpid(), signal.SIGKILL)

def stops():
    os.kill(os.getpid(), signal.SIGSTOP)

class Unpicklable(Exception):
    def __init__(self, a, b):
        super().__init__("two")

def raises_what_cannot_travel():
    raise Unpicklable(1, 2)
"""


@pytest.fixture
def run(tmp_path):
    """Runs a script that begins with the common part, under mpiexec where ranks are given."""

    def run(body, ranks=0, code=0):
        (tmp_path / "script.py").write_text(_COMMON + body)
        command = [*(mpiexec(ranks) if ranks else []), sys.executable, "script.py"]
        return run_command(command, cwd=tmp_path, env=launched(), code=code)

    return run


def guarded(call):
    return f"\nif __name__ == '__main__':\n    {call}\n"


needs_pmi = pytest.mark.usefixtures("pmi")


@pytest.fixture
def pmi():
    if is_open_mpi():
        pytest.skip("Open MPI cannot be started by launch")


def test_under_mpiexec_all_ranks_have_the_same_parameters_and_may_end_at_different_times(run, tmp_path, no_leaks):
    methods = ["backward_and_update", "backward_and_update_half", "backward_and_sparse_update"]
    # Into files: what ranks print may be mixed on its way.
    body = f"""
for method in {methods}:
    out = train(method=method)
    open(f"{{method}}-{{out[0]}}.out", "w").write(repr(out))
if out[0] == 0: time.sleep(1); print('late', flush=True)
"""
    done = run(body, ranks=3)
    for method in methods:
        told = [eval((tmp_path / f"{method}-{rank}.out").read_text()) for rank in range(3)]
        assert [out[:3] for out in told] == [(0, 3, 0), (1, 3, 1), (2, 3, 2)], method
        assert len({out[3] for out in told}) == 1, method
    assert "late" in done.out and "TERMINATION" not in done.out + done.err


def test_under_mpiexec_a_partitioned_model_trains_as_alone(run, tmp_path, no_leaks):
    body = """
from singa_dask.comm import SoloCommunicator
x, y = np.random.default_rng(5).normal(size=(40, 12)), np.arange(40) % 4
def train(comm, rows):
    model = Model([RecordInput(shape=[12]), InnerProduct(num_output=9), ReLU(), InnerProduct(num_output=4),
                   SoftmaxLoss()], partition_dim=1, dtype=np.float64)
    opt = DistOpt(SGD(lr=0.1, momentum=0.9), model, comm)
    for step in range(4):
        opt.backward_and_update(model(x[rows], y[rows]))
    return opt.rank_in_global, model.net.own.size, model.state_dict(), model.predict(x[rows], batchsize=7)

bounds = [0, 9, 20, 40]
from singa_dask.loops.distopt import world
rank, size, values, likely = train(None, slice(bounds[world().rank], bounds[world().rank + 1]))
_, alone, expected, scores = train(SoloCommunicator(), slice(None))
for name, value in expected.items():
    np.testing.assert_allclose(values[name], value, rtol=1e-6, atol=1e-9)
np.testing.assert_allclose(likely, scores[bounds[rank] : bounds[rank + 1]], rtol=1e-6)
open(f"{rank}.out", "w").write(f"{size} {alone}")
"""
    run(body, ranks=3)
    sizes = [(tmp_path / f"{rank}.out").read_text().split() for rank in range(3)]
    assert all(int(own) > 0 and int(alone) == 0 for own, alone in sizes)


@pytest.mark.parametrize(("how", "says"), [("raises", "bad batch"), ("dies", "")])
def test_under_mpiexec_a_lost_rank_ends_the_job(run, no_leaks, how, says):
    done = run(f"\ntrain(steps=10**6, fail={how})\n", ranks=3, code=None)
    assert done.code != 0 and says in done.err


def test_under_mpiexec_a_late_rank_is_named_by_all_others(run, tmp_path, no_leaks):
    body = """
from singa_dask.loops.distopt.worlds import world
from singa_dask.errors import ClusterError
comm = world(timeout_s=60.0)
comm.barrier()
comm.timeout_s = 2.0
if comm.rank != 1:
    try:
        comm.all_reduce(np.ones(100_000))
    except ClusterError as error:
        open(f"{comm.rank}.out", "w").write(str(error))
while not (os.path.exists("0.out") and os.path.exists("2.out")):
    time.sleep(0.1)
os._exit(0)
"""
    run(body, ranks=3, code=None)
    for rank in (0, 2):
        expected = rf"rank {rank}: all_reduce did not finish within \d+\.\d s; rank 1 is lost, stopped or late\. .+"
        assert re.fullmatch(expected, (tmp_path / f"{rank}.out").read_text())


def test_processes_of_another_launcher_are_told_that_they_are_alone(run, no_leaks, monkeypatch):
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "3")
    done = run("\ntrain()\n", code=1)
    assert "3 processes were started, and each is alone in an MPI world of its own" in done.err


@needs_pmi
def test_launch_gives_what_every_rank_returns_and_serial_training_agrees(run, no_leaks):
    done = run(guarded("print(launch(train, 3)); print(launch(train, 1)); print(launch(alone, 1))"))
    three, one, alone = map(eval, done.out.splitlines())
    assert [out[:3] for out in three] == [(0, 3, 0), (1, 3, 1), (2, 3, 2)]
    assert len({out[3] for out in three}) == 1
    assert one == alone and one[0][:3] == (0, 1, 0)
    assert three[0][3] == pytest.approx(one[0][3], rel=1e-5)


@needs_pmi
def test_launch_names_the_rank_that_failed_and_can_be_called_again(run, no_leaks):
    body = """
    for nprocs, how in ((2, raises), (2, raises_what_cannot_travel), (3, dies)):
        try:
            launch(train, nprocs, 10**6, "backward_and_update", how)
        except Exception as error:
            print(type(error).__name__, error, "cause", type(error.__cause__).__name__, error.__cause__)
    print(len(launch(train, 2)))
"""
    done = run("\nif __name__ == '__main__':" + body)
    raised, unpicklable, died = done.out.split("ClusterError ")[1:]
    assert "rank 1 of 2 raised ValueError: bad batch" in raised and "cause ValueError bad batch" in raised
    assert "rank 1 of 2 raised Unpicklable: two" in unpicklable
    assert "rank 1 of 3 was killed by signal 9" in died and died.endswith("\n2\n")


@needs_pmi
@pytest.mark.long
def test_launch_says_which_rank_does_not_answer(run, no_leaks):
    call = "launch(train, 3, 10**6, 'backward_and_update', stops, timeout_s=2.0)"
    done = run(guarded(call), code=None)
    assert "no answer from rank 1" in done.err and "CommTimeout" in done.err


@needs_pmi
def test_ranks_end_when_the_process_that_launched_them_is_killed(tmp_path, no_leaks):
    body = """
def train_on():
    open(f"{train()[0]}.began", "w").close()
    train(10**9)
"""
    (tmp_path / "script.py").write_text(_COMMON + body + guarded("launch(train_on, 2)"))
    command = [sys.executable, "script.py"]
    with started(folder=tmp_path, env=launched(), command=command) as process:
        wait_until(lambda: len(list(tmp_path.glob("*.began"))) == 2, process, tmp_path)
        kill_and_see_others_end(process)


@needs_pmi
def test_launch_without_a_guard_says_so(run, no_leaks):
    assert 'if __name__ == "__main__"' in run("\nprint(launch(train, 2))\n", code=1).err


def test_launch_refuses_what_cannot_be_sent():
    with pytest.raises(ConfigError, match="cannot be sent to other processes"):
        launch(print, 2, threading.Lock())
    with pytest.raises(ConfigError, match=r"nprocs: must be an integer of at least 1. Received: 0"):
        launch(print, 0)


def test_neither_dask_nor_mpi_is_loaded_for_a_loop_of_ones_own():
    program = (
        "import sys; from singa_dask import DistOpt, Model, launch, updaters;"
        "print([m for m in ('mpi4py.MPI', 'distributed', 'dask') if m in sys.modules])"
    )
    assert run_command([sys.executable, "-c", program]).out.strip() == "[]"
