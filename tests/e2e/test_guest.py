"""What a run leaves to its machine when it is killed, and what it does about its user's own faults."""

import os
import signal
import sys

import pytest
from support.commands import example, kill_and_see_others_end, run, said, sets, started, summary, wait_until

pytestmark = pytest.mark.timeout(240)

LONG = sets(train_steps=100_000, test_freq=0, test_steps=0, checkpoint_freq=50, disp_freq=20)

_OWN = """
import time
from singa_dask.layers import Layer

class Own(Layer):
    def setup(self, x):
        self.calls = 0
        return x

    def forward(self, ctx, x):
        self.calls += 1
        if self.calls > 120:
            {does}
        return x

    def backward(self, ctx, dy):
        return dy
"""

_SCRIPT = """
import signal
from singa_dask import ClusterTopology, Job, layers, train, updaters
from own import Own

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    net = [layers.RecordInput(path="dataset:digits/train", batchsize=96), Own(), layers.InnerProduct(num_output=10)]
    job = Job(name="own", layers=[*net, layers.SoftmaxLoss()], updater=updaters.SGD(lr=0.05), train_steps=100_000,
              checkpoint_freq=50, disp_freq=20)
    print(train(job, cluster=ClusterTopology.allreduce(2), workspace="run", patience_s=3.0))
"""


@pytest.fixture
def begin(environment, tmp_path):
    """Starts a script that trains with a layer which does something at step 120."""

    def start(does):
        (tmp_path / "own.py").write_text(_OWN.format(does=does))
        (tmp_path / "train.py").write_text(_SCRIPT)
        return started(folder=tmp_path, env=environment, command=[sys.executable, "train.py"])

    return start


@pytest.mark.long
def test_ranks_that_make_no_step_are_named_and_the_first_signal_ends_them(begin, tmp_path, no_leaks):
    with begin("while True: time.sleep(0.01)") as process:
        wait_until(lambda: "has made no step for" in said(tmp_path), process, tmp_path, 90)
        assert "in forward" in said(tmp_path) and "own.py:" in said(tmp_path)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0, said(tmp_path)
    told = summary(tmp_path / "run")
    assert (told["status"], told["stopped_by"]) == ("interrupted", "SIGTERM")
    assert told["checkpoint"].endswith("step-00000100.h5") and os.path.exists(told["checkpoint"])
    assert "Traceback" not in said(tmp_path) and "go on with --resume" in said(tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("error", ["KeyboardInterrupt", "SystemExit(3)"])
def test_an_exception_that_would_end_a_process_ends_the_run_with_a_sentence(begin, tmp_path, error):
    with begin(f"raise {error}") as process:
        assert process.wait(timeout=100) == 1, said(tmp_path)
    lines = said(tmp_path).splitlines()
    assert lines[-1].startswith("singa_dask.errors.TrainingError: rank ")
    assert f"{error.partition('(')[0]}" in lines[-1] and "own.py:" in lines[-1]
    assert not any("distributed" in line for line in lines)


@pytest.mark.long
def test_what_a_killed_run_has_left_is_removed_by_the_next_one(environment, tmp_path, temporary, no_leaks):
    (temporary / "dask-scratch-space").mkdir(mode=0o777)  # somebody else's
    env = {**environment, "TMPDIR": str(temporary)}
    with started("train", example(), "--workspace", tmp_path / "run", *LONG, folder=tmp_path, env=env) as process:
        wait_until(lambda: "saved" in said(tmp_path), process, tmp_path)
        kill_and_see_others_end(process)
    assert len(list(temporary.iterdir())) > 1
    run("train", example(), "--workspace", "again", *sets(train_steps=1), cwd=tmp_path, env=env, code=0)
    assert [path.name for path in temporary.iterdir()] == ["dask-scratch-space"]
    assert not list((temporary / "dask-scratch-space").iterdir())


def test_workers_that_cannot_start_say_why(singa_dask, environment):
    ran = singa_dask("train", example(), env={**environment, "NUMBA_NUM_THREADS": "0"}, code=1)
    (error,) = [line for line in ran.err.splitlines() if line.startswith("error: ")]
    assert "ValueError: Number of threads specified must be > 0. Workers take over " in error
    assert "NUMBA_NUM_THREADS" in error and "__main__" not in error
    assert "Traceback" not in ran.err and len(ran.err.splitlines()) < 4
