"""Checkpoints: whole or not at all, readable with plain h5py, and verified."""

import os
import signal
import subprocess
import sys
import textwrap

import h5py
import numpy as np
import pytest
from support.commands import first_line

from singa_dask.errors import CheckpointError
from singa_dask.training import checkpoint as checkpoints
from singa_dask.training.checkpoint import Checkpoint, load, newest, path_of, save


def example(step=7):
    draw = np.random.default_rng(step)
    return Checkpoint(
        step=step,
        seed=2**63 + 1,
        job='name: "x"\n' * 20_000,
        parameters={"w": draw.standard_normal((3, 4)).astype(np.float32), "b": np.zeros(0, np.float32)},
        updater={"momentum": {"w": draw.standard_normal((3, 4)).astype(np.float32), "b": np.zeros(0, np.float32)}},
        data={"data": "abc"},
    )


def test_what_is_saved_is_what_is_loaded(tmp_path):
    saved = example()
    loaded = load(save(saved, path_of(tmp_path, 7)))
    assert (loaded.step, loaded.seed, loaded.job, loaded.data) == (7, 2**63 + 1, saved.job, {"data": "abc"})
    for name, value in saved.parameters.items():
        np.testing.assert_array_equal(loaded.parameters[name], value)
        assert loaded.parameters[name].dtype == value.dtype
        np.testing.assert_array_equal(loaded.updater["momentum"][name], saved.updater["momentum"][name])


def test_plain_h5py_reads_it(tmp_path):
    saved = example()
    with h5py.File(save(saved, tmp_path / "c.h5"), "r") as file:
        np.testing.assert_array_equal(file["parameters/w"][()], saved.parameters["w"])
        assert file.attrs["step"] == 7


def test_nothing_but_the_checkpoint_is_left(tmp_path):
    save(example(), path_of(tmp_path, 7))
    assert [p.name for p in tmp_path.iterdir()] == ["step-00000007.h5"]


@pytest.mark.parametrize("where", range(0, 100, 7))
def test_a_changed_byte_or_a_cut_is_noticed(tmp_path, where):
    path = save(example(), tmp_path / "c.h5")
    good = path.read_bytes()
    values = good.index(example().parameters["w"].tobytes())
    flipped = bytearray(good)
    flipped[values + where % 48] ^= 1
    path.write_bytes(flipped)
    with pytest.raises(CheckpointError, match="match its hash"):
        load(path)
    path.write_bytes(good[: len(good) * where // 100])
    with pytest.raises(CheckpointError, match="not a readable checkpoint"):
        load(path)


def test_a_changed_attribute_is_noticed(tmp_path):
    path = save(example(), tmp_path / "c.h5")
    with h5py.File(path, "r+") as file:
        file.attrs["step"] = 8
    with pytest.raises(CheckpointError, match="match its hash"):
        load(path)


def test_other_files_are_refused(tmp_path):
    with pytest.raises(CheckpointError, match="checkpoint not found"):
        load(tmp_path / "missing.h5")
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["x"] = 1
    with pytest.raises(CheckpointError, match="expected 'singa_dask checkpoint 1'"):
        load(tmp_path / "other.h5")


def test_the_newest_valid_one_is_found(tmp_path):
    assert newest(tmp_path) == (None, [])
    for step in (5, 10, 100):
        save(example(step), path_of(tmp_path, step))
    path_of(tmp_path, 100).write_bytes(b"half")
    found, faults = newest(tmp_path)
    assert (found.path, found.step, found.data) == (path_of(tmp_path, 10), 10, {"data": "abc"})
    assert len(faults) == 1
    assert "step-00000100.h5" in faults[0]


def test_a_full_disk_leaves_the_old_one(tmp_path, monkeypatch):
    path = save(example(), tmp_path / "c.h5")
    before = path.read_bytes()

    def no_space(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoints.os, "fsync", no_space)
    with pytest.raises(CheckpointError, match="No space left"):
        save(example(8), path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_disk_that_fills_up_half_way_leaves_the_old_one(tmp_path):
    """With a real limit on the size of files: HDF5 itself would crash the process."""
    program = textwrap.dedent(
        f"""
        import resource, signal, numpy as np
        from pathlib import Path
        from singa_dask.errors import CheckpointError
        from singa_dask.training.checkpoint import Checkpoint, save
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        path = Path({str(tmp_path)!r}) / "step-00000001.h5"
        save(Checkpoint(1, 0, "", {{"w": np.zeros(10, np.float32)}}), path)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        for _ in range(2):
            try:
                save(Checkpoint(2, 0, "", {{"w": np.zeros(1_000_000, np.float32)}}), path)
            except CheckpointError as error:
                print(error)
        """
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("could not be written: ") == 2
    found, faults = newest(tmp_path)
    assert (found.step, faults) == (1, [])
    assert [p.name for p in tmp_path.iterdir()] == ["step-00000001.h5"]


@pytest.mark.timeout(60)
def test_kill_at_any_moment_of_a_save_leaves_a_valid_one(tmp_path):
    """A process that saves in a loop is killed at arbitrary moments; what is there always loads."""
    program = textwrap.dedent(
        f"""
        import sys, numpy as np
        from pathlib import Path
        from singa_dask.training.checkpoint import Checkpoint, path_of, save
        folder = Path({str(tmp_path)!r})
        for step in range(1, 10_000):
            save(Checkpoint(step, 0, "", {{"w": np.full(200_000, step, np.float32)}}), path_of(folder, 1 + step % 2))
            if step == 1: print("saved", flush=True)
        """
    )
    draw = np.random.default_rng(0)
    for _ in range(4):
        process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
        try:
            assert first_line(process) == b"saved\n"
            process.stdout.close()
            try:
                process.wait(timeout=draw.uniform(0.0, 0.05))
            except subprocess.TimeoutExpired:
                os.kill(process.pid, signal.SIGKILL)
        finally:
            process.kill()
            process.wait()
        found, faults = newest(tmp_path)
        assert found is not None
        assert not faults
