"""Checkpoints: whole or not at all, readable with plain h5py, verified, and with the ledgers of the servers."""

import hashlib
import subprocess
import sys
import textwrap
import tracemalloc
from types import SimpleNamespace
from unittest.mock import Mock

import h5py
import numpy as np
import pytest
from support.limits import few_files, small_disk
from support.trained import assert_alike

from singa_dask.comm import SoloCommunicator, run_threads
from singa_dask.errors import CheckpointError, ClusterError
from singa_dask.exchange import sharded
from singa_dask.exchange.sharded import Gathered
from singa_dask.job.code_bundle import CodeBundle
from singa_dask.layers.partition import ArrayShard
from singa_dask.server.ledger import Ledger
from singa_dask.training import checkpoint as checkpoints
from singa_dask.training import checkpoint_file
from singa_dask.training.checkpoint import Checkpoint, contribute, load, newest, path_of, save
from singa_dask.training.group_state import _Servers


def example(step=7):
    draw = np.random.default_rng(step)
    return Checkpoint(
        step=step,
        seed=2**63 + 1,
        job='name: "x"\n' * 20_000,
        parameters={"w": draw.standard_normal((3, 4)).astype(np.float32), "b": np.zeros(0, np.float32)},
        updater={"momentum": {"w": draw.standard_normal((3, 4)).astype(np.float32), "b": np.zeros(0, np.float32)}},
        data={"data": "abc"},
        described={"data": '{"columns": []}'},
        code=CodeBundle("3.11", b"pickled\n\0code", "signature"),
    )


def test_what_is_saved_is_what_is_loaded(tmp_path):
    saved = example()
    loaded = load(save(saved, path_of(tmp_path, 7)))
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000007.h5"]
    assert (loaded.step, loaded.seed, loaded.job, loaded.data) == (7, 2**63 + 1, saved.job, {"data": "abc"})
    assert (loaded.described, loaded.code) == (saved.described, saved.code)
    assert_alike(loaded, saved)
    assert all(loaded.parameters[name].dtype == value.dtype for name, value in saved.parameters.items())


def test_a_checkpoint_without_description_and_code_is_loaded(tmp_path):
    attributes = {"format": "singa_dask checkpoint 1", "step": 3, "seed": np.uint64(1), "data": "{}"}
    arrays = {"parameters/w": np.ones(2, np.float32), "job": np.frombuffer(b'name: "x"', np.uint8)}
    checkpoint_file.write(tmp_path / "early.h5", attributes, arrays)
    loaded = load(tmp_path / "early.h5")
    assert (loaded.step, loaded.job, loaded.described, loaded.code) == (3, 'name: "x"', {}, None)


@pytest.mark.parametrize(
    ("attributes", "arrays"),
    [
        ({"step": [1, 2]}, {}),
        ({"step": 1e300}, {}),
        ({"step": "three"}, {}),
        ({"seed": np.zeros(0)}, {}),
        ({"data": "["}, {}),
        ({"data": "[" * 100_000}, {}),
        ({"data": "3"}, {}),
        ({}, {"job": b"\xff"}),
        ({}, {"described": b"{"}),
        ({}, {"decisions": b"[1]"}),
        ({}, {"code": b"no code"}),
        ({}, {"ledgers": b"[3]"}),
    ],
)
def test_contents_of_other_kinds_are_no_checkpoint(tmp_path, attributes, arrays):
    """Though its hash is right."""
    attributes = {"format": "singa_dask checkpoint 1", "step": 3, "seed": np.uint64(1), "data": "{}"} | attributes
    arrays = {name: np.frombuffer(text, np.uint8) for name, text in ({"job": b"name: 'x'"} | arrays).items()}
    checkpoint_file.write(path_of(tmp_path, 3), attributes, arrays)
    found, (fault,) = newest(tmp_path)
    assert found is None and "step-00000003.h5: not a readable checkpoint (" in fault and "Use an older one" in fault


def test_what_the_machine_lacks_is_no_fault_of_the_file(tmp_path, monkeypatch):
    path = save(example(), path_of(tmp_path, 7))
    with few_files(), pytest.raises(CheckpointError, match=r"Too many open files.* Raise the limit: ulimit") as few:
        load(path)
    monkeypatch.setattr(checkpoint_file, "read", Mock(side_effect=MemoryError("Unable to allocate 3.55 PiB")))
    with pytest.raises(
        CheckpointError, match=r"step-00000007\.h5: .*Unable to allocate 3\.55 PiB.* more memory"
    ) as much:
        load(path)
    assert not any("older" in str(refused.value) for refused in (few, much))


def test_plain_h5py_reads_it(tmp_path):
    saved = example()
    with h5py.File(save(saved, tmp_path / "c.h5"), "r") as file:
        np.testing.assert_array_equal(file["parameters/w"][()], saved.parameters["w"])
        assert file.attrs["step"] == 7


def test_the_hash_is_of_names_types_shapes_and_values(tmp_path):
    """So that files of any writer with these contents load, and of the next version too."""
    text = b'name: "x"'
    arrays = {
        "carried/lstm/0": np.ones((2, 3), np.float32),
        "job": np.frombuffer(text, np.uint8),
        "parameters/a": np.float32(3),
        "parameters/w": np.arange(6, dtype=np.float32).reshape(2, 3),
        "updater/momentum/w": np.zeros((2, 3), np.float32),
    }
    attributes = {"format": "singa_dask checkpoint 1", "step": 4, "seed": 5, "data": "{}"}
    told = "".join(f"{key}={value}\n" for key, value in attributes.items()).encode()
    for name, array in arrays.items():
        told += f"{name} {array.dtype.str} {array.shape}\n".encode() + array.tobytes()
    with h5py.File(tmp_path / "c.h5", "w") as file:
        for name, array in arrays.items():
            file[name] = array
        file.attrs.update(attributes, sha256=hashlib.sha256(told).hexdigest())
    loaded = load(tmp_path / "c.h5")
    assert (loaded.step, loaded.seed, loaded.job.encode(), loaded.parameters["a"].shape) == (4, 5, text, ())
    np.testing.assert_array_equal(loaded.parameters["w"], arrays["parameters/w"])
    np.testing.assert_array_equal(loaded.carried["lstm"][0], np.ones((2, 3)))


def test_a_loaded_checkpoint_stays_readable_and_can_be_saved(tmp_path):
    saved = example()
    path = save(saved, tmp_path / "c.h5")
    loaded = load(path)
    path.unlink()
    np.testing.assert_array_equal(loaded.parameters["w"].flat[3:9], saved.parameters["w"].reshape(-1)[3:9])
    np.testing.assert_array_equal(load(save(loaded, path)).parameters["w"], saved.parameters["w"])
    assert np.asarray(loaded.parameters["w"], np.float64).dtype == np.float64


def test_saving_and_loading_take_a_few_blocks_of_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint_file, "BLOCK", 1000)
    source = load(save(Checkpoint(1, 0, "", {"w": np.ones((1000, 500), np.float32)}), tmp_path / "source.h5"))
    tracemalloc.start()
    try:
        copy = load(save(source, tmp_path / "c.h5"))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 400_000 < 2_000_000 == np.asarray(copy.parameters["w"]).nbytes


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


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda file: file.attrs.update(step=8), "match its hash"),
        (lambda file: file.attrs.update(format="other"), "reads 'singa_dask checkpoint 1'. Train again"),
        (
            lambda file: file.create_dataset("parameters/x", data=np.ones(100), chunks=(10,)),
            r"c\.h5: parameters/x is not stored in one piece",
        ),
    ],
    ids=["attribute", "format", "array-in-pieces"],
)
def test_a_file_that_was_changed_is_refused(tmp_path, change, says):
    path = save(example(), tmp_path / "c.h5")
    with h5py.File(path, "r+") as file:
        change(file)
    with pytest.raises(CheckpointError, match=says):
        load(path)


def test_a_file_that_is_missing_is_named(tmp_path):
    with pytest.raises(CheckpointError, match="checkpoint not found"):
        load(tmp_path / "missing.h5")


def test_the_newest_valid_one_is_found(tmp_path):
    assert newest(tmp_path) == (None, [])
    for step in (5, 10, 100):
        save(example(step), path_of(tmp_path, step))
    path_of(tmp_path, 100).write_bytes(b"half")
    found, faults = newest(tmp_path)
    assert (found.path, found.step, found.data) == (path_of(tmp_path, 10), 10, {"data": "abc"})
    assert len(faults) == 1 and "step-00000100.h5" in faults[0]


NO_SPACE = Mock(side_effect=OSError(28, "No space left on device"))


def test_a_full_disk_leaves_the_old_one(tmp_path, monkeypatch):
    path = save(example(), tmp_path / "c.h5")
    before = path.read_bytes()
    monkeypatch.setattr(checkpoints.os, "fsync", NO_SPACE)
    with pytest.raises(CheckpointError, match="No space left"):
        save(example(8), path)
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


def test_a_full_disk_is_named_with_what_is_needed(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint_file.os, "posix_fallocate", NO_SPACE)
    with pytest.raises(CheckpointError, match=r"c\.h5: needs 2\d\d kB, and the disk has .* free .*Free space"):
        save(example(), tmp_path / "c.h5")
    assert not list(tmp_path.iterdir())


def test_only_the_newest_are_kept_and_the_best(tmp_path):
    for path in (*(path_of(tmp_path, step) for step in (5, 40, 100, 100_000_000)), tmp_path / checkpoints.BEST):
        save(example(), path)
    checkpoints.keep_newest(tmp_path, 2, 100_000_000)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["best.h5", "step-00000100.h5", "step-100000000.h5"]


def test_a_damaged_one_of_more_steps_takes_the_place_of_none(tmp_path):
    for step in (300, 320):
        save(example(), path_of(tmp_path, step))
    path_of(tmp_path, 400).write_bytes(b"damaged")
    checkpoints.keep_newest(tmp_path, 1, 320)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-00000320.h5", "step-00000400.h5"]


def test_a_disk_that_fills_up_half_way_leaves_the_old_one(tmp_path):
    path = save(Checkpoint(1, 0, "", {"w": np.zeros(10, np.float32)}), tmp_path / "step-00000001.h5")
    for _ in range(2):
        with small_disk(100_000), pytest.raises(CheckpointError, match="could not be written: "):
            save(Checkpoint(2, 0, "", {"w": np.zeros(1_000_000, np.float32)}), path)
    assert newest(tmp_path)[0].step == 1 and list(tmp_path.iterdir()) == [path]


def test_a_rank_that_is_lost_during_a_save_leaves_the_old_one(tmp_path, monkeypatch):
    monkeypatch.setattr(sharded, "BLOCK", 10)
    path = save(example(), tmp_path / "c.h5")
    before = path.read_bytes()
    shard = ArrayShard((100, 4), axis=1, bounds=(0, 2, 4), rank=0)

    def member(comm):
        def held(first, last):
            if comm.rank and first >= 100:
                raise ClusterError("lost")
            return np.ones(last - first, np.float32)

        checkpoint = Checkpoint(8, 0, "", {"w": Gathered(comm, shard, shard.shape, np.float32, held)})
        save(checkpoint, path) if comm.rank == 0 else contribute(checkpoint)

    with pytest.raises(ClusterError, match="lost"):
        run_threads(2, member)
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


def test_kill_at_any_moment_of_a_save_leaves_a_valid_one(tmp_path):
    """A process that saves in a loop is killed at any moment, until some saves are whole: what is there loads."""
    program = textwrap.dedent(
        f"""
        import os, random, signal, time, numpy as np
        from pathlib import Path
        from singa_dask.training.checkpoint import Checkpoint, newest, path_of, save
        folder, draw, step = Path({str(tmp_path)!r}), random.Random(0), 0
        def saved(step):
            save(Checkpoint(step, 0, "", {{"w": np.full(50_000, step, np.float32)}}), path_of(folder, 1 + step % 2))
        saved(step)
        kills, longest = 0, 0.05
        while kills < 15 or step < 3:
            child, kills = os.fork(), kills + 1
            while child == 0:
                step += 1
                saved(step)
            time.sleep(draw.uniform(0.0, longest))
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            found, faults = newest(folder)
            assert found is not None and not faults, (step, found, faults)
            if found.step <= step:  # on a busy machine
                longest *= 1.5
            step = max(step, found.step)
        """
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100)
    assert ran.returncode == 0, ran.stderr


# Of three workers, the second of which has no slice.
LEDGERS = (
    Ledger.decode([[2, 0, [[0, [0, 50], [0, 50], []], [1, [0, 55], [0, 55], []]]]]),
    None,
    Ledger.decode([[2, 0, [[0, [0, 50], [0, 50], []], [1, [0, 58], [0, 58], [7, 8]]]]]),
)
JOINT = [[2, 0, [[0, [0, 50], [0, 50], []], [1, [0, 55], [0, 58], [7, 8]]]]]


@pytest.mark.parametrize("beside", [True, False])
def test_a_checkpoint_says_what_all_slices_contain_and_what_some_do(tmp_path, beside):
    path = path_of(tmp_path, 50)

    def member(comm):
        held = LEDGERS[comm.rank]
        servers = _Servers(SimpleNamespace(ledgers=[held or Ledger()]), None)
        ledgers = servers.gather_ledgers(comm)
        servers._ledgers += filter(None, [held])  # known once the parameters were read
        checkpoint = Checkpoint(50, 1, "", {"w": np.zeros(3, np.float32)}, ledgers=ledgers)
        checkpoint = checkpoint.taken() if beside else checkpoint
        return contribute(checkpoint) if comm.rank else save(checkpoint, path)

    run_threads(3, member)
    assert load(path).ledger.encode() == newest(tmp_path)[0].ledger.encode() == JOINT
    again = save(load(path), tmp_path / "again.h5")
    assert load(again).ledger.encode() == JOINT
    with h5py.File(path) as file:
        assert bytes(file["ledgers"][0]).decode().strip() == str(LEDGERS[0].encode())


def test_a_checkpoint_without_ledger_contains_nothing_that_is_known(tmp_path):
    assert load(save(Checkpoint(3, 1, "", {"w": np.zeros(3)}), tmp_path / "c.h5")).ledger == Ledger()


def test_a_ledger_beyond_its_room_is_an_error():
    many = Ledger.decode([[1, 0, [[0, list(range(4000)), list(range(4000)), []]]]])
    servers = _Servers(SimpleNamespace(ledgers=[]), None)
    servers._ledgers = [many]
    with pytest.raises(ValueError, match=r"the ledger has \d+ bytes, and the checkpoint has room for 4\d\d\d"):
        servers.gather_ledgers(SoloCommunicator()).taken()
