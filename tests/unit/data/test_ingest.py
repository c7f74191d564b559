"""From sources to shards: every sample arrives once, whatever the blocks, and nothing half-written stays."""

from __future__ import annotations

import errno
import itertools
import logging
import os
import re
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.blocks import stored, write_rows

from singa_dask.data import Manifest
from singa_dask.data.columns import DTYPES
from singa_dask.data.ingest import assemble, run, stage, write
from singa_dask.data.ingest.facts import Part
from singa_dask.data.ingest.layout import Layout
from singa_dask.data.ingest.shuffle import permutation
from singa_dask.data.ingest.splits import share_rows
from singa_dask.data.schema import Schema
from singa_dask.errors import ConfigError, DataError
from singa_dask.temporary import in_use

SHAPES = [(), (3,), (4, 6), (3, 2, 2)]


@pytest.fixture(autouse=True)
def _parts_in_files(request):
    with pytest.MonkeyPatch.context() as patch:  # another one than the tests', which they undo
        patch.setattr(write, "HELD_NBYTES", 0)
        yield


@pytest.mark.parametrize("shuffle", [True, False])
def test_shards_are_the_same_where_parts_stay_in_memory(tmp_path, monkeypatch, shuffle):
    rng = np.random.default_rng(0)
    columns = {"x": rng.random((90, 4, 2), np.float32)[:, ::-1], "y": rng.integers(5, 9, 90), "w": rng.random(90)}
    columns["x"][7, 1, 1] = np.nan
    table = {"a": rng.choice(["red", "blue"], 90), "b": rng.random(90), "c": np.full(90, np.nan)}
    table["c"][3] = 1
    settings = [(columns, {"y": ("y",), "weight": "w"}), (table, {"x": ("a", "b", "c"), "table": True})]
    for each, options in settings:
        options |= {"missing": "mean", "validation": 0.2, "nshards": 2, "cuts": (20, 50), "shuffle": shuffle}
        digests = []
        for nbytes in (0, 1500, 1 << 20):  # the second one is room for a part
            monkeypatch.setattr(write, "HELD_NBYTES", nbytes)
            made = write_rows(tmp_path / f"{min(each)}-{nbytes}", each, **options)
            digests.append([(manifest.digest, Manifest.load(manifest.folder).digest) for manifest in made.values()])
            assert len(made) == 2 and all(a == b for a, b in digests[-1])
        assert digests[0] == digests[1] == digests[2]


@settings(max_examples=16)
@given(st.data())
def test_shards_hold_every_sample_once(data):
    total = data.draw(st.integers(1, 60))
    cuts = sorted(data.draw(st.lists(st.integers(0, total), max_size=6)))
    dtype = data.draw(st.sampled_from([*DTYPES, "bool", "uint16", "int8"]))
    shape, shuffle = data.draw(st.sampled_from(SHAPES)), data.draw(st.booleans())
    shares = data.draw(st.sampled_from([(0.0, 0.0), (0.3, 0.0), (0.25, 0.25)]))
    x = np.arange(total * int(np.prod(shape))).reshape(total, *shape).astype(dtype)
    options = {"shuffle": shuffle, "validation": shares[0], "test": shares[1], "seed": data.draw(st.integers(0, 9))}
    options |= {"nshards": data.draw(st.integers(1, max(1, total // 2))), "window": data.draw(st.integers(1, 9))}
    options |= {"y": ("number",), "channels": {"x": "none"}}
    with tempfile.TemporaryDirectory() as folder:
        try:
            manifests = write_rows(
                Path(folder) / "out", {"x": x, "number": np.arange(total, dtype="f4")}, cuts, **options
            )
        except ConfigError:  # too few samples for these shares and shards
            assume(total >= 8 * max(1, options["nshards"]))
            raise
        parts = [stored(manifest) for manifest in manifests.values()]
        assert os.listdir(folder) == ["out"]
    for manifest in manifests.values():
        sizes = [shard.samples for shard in manifest.shards]
        assert max(sizes) - min(sizes) <= 1
    rows = np.concatenate([part["y"] for part in parts]).astype(int)
    np.testing.assert_array_equal(np.sort(rows), np.arange(total))
    np.testing.assert_array_equal(np.concatenate([part["x"] for part in parts]), x[rows])
    if not shuffle:
        assert all((np.diff(part["y"]) > 0).all() for part in parts)


@settings(max_examples=60)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=8), st.integers(1, 12), st.booleans())
def test_shards_take_each_row_of_each_part_once(rows, count, shuffle):
    parts = tuple(Part("", (own, 2, 0), 0, {}, {}) for own in rows)
    layout = Layout(parts, Schema(()), {}, {}, (), 1, (count, 1, 0), shuffle, 0, ())
    taken = [[] for _ in rows]
    sizes = []
    for shard in range(count):
        first, counts = layout.shard_rows(0, shard)
        sizes.append(counts.sum())
        for part, (start, number) in enumerate(zip(first, counts, strict=True)):
            taken[part] += range(start, start + number)
    assert taken == [list(range(own)) for own in rows]
    assert max(sizes) - min(sizes) <= 1
    assert layout.shard_rows(1, 0)[0].tolist() == rows


def test_seed_and_blocks_decide_the_order(tmp_path):
    columns = {"x": np.arange(300, dtype=np.float32)}
    digests = {}
    for name, seed, cuts in (("a", 0, (100, 200)), ("b", 0, (100, 200)), ("c", 1, (100, 200)), ("d", 0, (150,))):
        manifest = write_rows(tmp_path / name, columns, cuts, seed=seed, nshards=2)[""]
        digests[name] = (manifest.digest, manifest.order)
    assert digests["a"] == digests["b"]
    assert len({order for _, order in digests.values()}) == 3
    mixed = stored(Manifest.load(tmp_path / "a"))["x"]
    # Neighbours come from all blocks, and every part of a shard does.
    assert all({int(value) // 100 for value in mixed[start : start + 30]} == {0, 1, 2} for start in (0, 100, 200))


def test_random_orders_are_the_same_everywhere():
    assert permutation((7, 1, 0), 8).tolist() == [1, 4, 5, 0, 7, 3, 6, 2]
    counts = np.array([share_rows((seed,), 7, (0.25, 0.1)) for seed in range(2000)])
    np.testing.assert_allclose(counts.mean(0), [1.75, 0.7], atol=0.05)
    assert {tuple(row) for row in counts} == {(1, 0), (1, 1), (2, 0), (2, 1)}
    assert all(share_rows((seed,), 30, (0.1, 0.2)) == (3, 6) for seed in range(50))


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("point", [(stage, "_write"), (assemble, "write_shard"), (assemble, "_note"),
                                   (assemble, "finish"), (write, "put_folder")])  # fmt: skip
def test_a_crash_leaves_nothing_and_the_next_call_goes_on(tmp_path, monkeypatch, point, shuffle):
    columns = {"x": np.arange(600.0).reshape(200, 3), "y": np.arange(200) % 3}
    options = {"cuts": (50, 100, 150), "y": ("y",), "nshards": 3, "validation": 0.25, "shuffle": shuffle}
    expected = write_rows(tmp_path / "expected", columns, **options)
    module, name = point
    real, passed = getattr(module, name), itertools.count()

    def fails(*args, **kwargs):
        if next(passed) or name in ("put_folder", "finish"):
            raise KeyboardInterrupt
        return real(*args, **kwargs)

    log = tmp_path / "log"
    monkeypatch.setattr(run, "threads", lambda: 1)
    monkeypatch.setattr(module, name, fails)
    with pytest.raises(KeyboardInterrupt):
        write_rows(tmp_path / "out", columns, log=log, **options)
    monkeypatch.undo()
    assert not (tmp_path / "out").exists()
    before = log.read_text().split()
    manifests = write_rows(tmp_path / "out", columns, log=log, **options)
    again = log.read_text().split()[len(before) :]
    assert {*again} == ({"50-100", "100-150", "150-200"} if name == "_write" else set())
    assert {key: value.digest for key, value in manifests.items()} == {k: v.digest for k, v in expected.items()}
    assert sorted(os.listdir(tmp_path)) == ["expected", "log", "out"]


FORTY = {"x": np.arange(40.0)}


def interrupt(*args):
    raise KeyboardInterrupt


def interrupted(monkeypatch, out: Path) -> Path:
    """What is left of an attempt with the seed 0 that ends after both blocks were read."""
    monkeypatch.setattr(write, "make_layout", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_rows(out, FORTY, (20,), seed=0)
    monkeypatch.undo()
    (kept,) = out.parent.glob(".out.parts-*")
    return kept


def test_what_is_kept_is_used_again_unless_it_is_damaged_or_of_other_options(tmp_path, monkeypatch, caplog):
    out, log = tmp_path / "out", tmp_path / "log"
    assert interrupted(monkeypatch, out) == interrupted(monkeypatch, out)
    assert "goes on where it was: 2 of 2" in caplog.text
    (interrupted(monkeypatch, out) / "000000.part").write_bytes(b"short")
    write_rows(out, FORTY, (20,), seed=0, log=log)
    assert log.read_text().split() == ["0-20"]
    (tmp_path / ".out.parts-0123").mkdir()
    write_rows(out, FORTY, (20,), seed=2, log=log, overwrite=True)
    assert sorted(log.read_text().split()[1:]) == ["0-20", "20-40"]
    assert ".out.parts-0123: left by an attempt that was interrupted" in caplog.text


@pytest.mark.parametrize("name", [".out.parts-0123456789abcdef", ".out.part-4k2jd8_x"])
def test_what_a_killed_attempt_has_left_is_removed(tmp_path, caplog, name):
    (tmp_path / name).mkdir()
    (tmp_path / name / "000000.part").write_bytes(b"left")
    (tmp_path / ".outer.parts-0123456789abcdef").mkdir()  # of another target
    write_rows(tmp_path / "out", {"x": np.arange(9.0)})
    assert sorted(os.listdir(tmp_path)) == [".outer.parts-0123456789abcdef", "out"]
    assert f"{name}: left by an attempt that was interrupted. It is removed." in caplog.text


def test_an_attempt_that_still_runs_keeps_its_folder(tmp_path, monkeypatch, caplog):
    kept = interrupted(monkeypatch, tmp_path / "out")
    with in_use(kept):
        with pytest.raises(DataError, match=r"another process is writing it"):
            write_rows(tmp_path / "out", FORTY, (20,), seed=0)
        write_rows(tmp_path / "out", FORTY, (20,), seed=1)
    assert f"{kept}: another attempt is writing it" in caplog.text
    assert len(list(kept.glob("*.part"))) == 2


def test_shards_that_were_moved_aside_when_their_writer_was_killed_are_put_back(tmp_path):
    write_rows(tmp_path / "out", {"x": np.arange(9.0)})
    (tmp_path / ".out.old-4k2jd8_x").mkdir()
    (tmp_path / "out").rename(tmp_path / ".out.old-4k2jd8_x" / "out")
    with pytest.raises(DataError, match="out: exists already"):
        write_rows(tmp_path / "out", {"x": np.arange(5.0)})
    assert os.listdir(tmp_path) == ["out"] and Manifest.load(tmp_path / "out").total == 9


def test_a_full_disk_is_said_and_leaves_nothing(tmp_path, monkeypatch):
    def full(*args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(stage.os, "replace", full)
    with pytest.raises(DataError, match=r"its disk is full .*Sharding can need room for the samples twice"):
        write_rows(tmp_path / "out", {"x": np.arange(9.0)})
    assert os.listdir(tmp_path) == []


def test_an_existing_folder_is_refused_before_anything_is_read(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").touch()
    log = tmp_path / "log"
    with pytest.raises(DataError, match="exists already"):
        write_rows(tmp_path / "out", {"x": np.arange(9.0)}, log=log)
    assert not log.exists()


def test_masked_targets_may_be_missing(tmp_path):
    rng = np.random.default_rng(0)
    y = rng.random((40, 3))
    mask = rng.random((40, 3)) > 0.3
    weight = rng.random(40)
    columns = {"x": np.arange(40.0), "y": np.where(mask, y, np.nan), "m": mask, "w": weight}
    settings = {"y": ("y",), "mask": "m", "weight": "w", "nshards": 2}
    (manifest,) = write_rows(tmp_path / "out", columns, (15,), **settings).values()
    assert [(column.name, column.role) for column in manifest.columns] == [
        ("x", "feature"), ("y", "target"), ("weight", "weight"), ("mask", "mask"), ("row", "row"),
    ]  # fmt: skip
    got = stored(manifest)
    rows = got["x"].astype(int)
    np.testing.assert_array_equal(got["y"], np.where(mask, y, 0)[rows])
    np.testing.assert_array_equal(got["mask"], mask[rows])
    np.testing.assert_array_equal(got["weight"], weight[rows])


def test_constant_features_are_named(tmp_path, caplog):
    x = np.random.default_rng(0).random((30, 4))
    x[:, [1, 3]] = 7
    (manifest,) = write_rows(tmp_path / "out", {"x": x}).values()
    note = "column 'x' is constant in the training samples: 2 of 4 values (1, 3)"
    assert manifest.notes == (note,) and note in caplog.text
    caplog.clear()
    (manifest,) = write_rows(tmp_path / "field", {"x": x.reshape(15, 8)[:, :, None]}).values()
    assert manifest.notes == () and not caplog.records


def test_blocks_may_differ_in_type(tmp_path):
    blocks = [{"x": np.ones((10, 3))}, {"x": np.full((10, 3), 2, np.int16)}]
    (manifest,) = write_rows(tmp_path / "out", blocks).values()
    assert manifest.features.dtype == "float64" and stored(manifest)["x"].sum() == 90


def test_the_bar_counts_samples_and_speed(tmp_path, capsys):
    write_rows(tmp_path / "quiet", {"x": np.arange(900.0)}, (300,))
    assert capsys.readouterr().err == ""
    write_rows(tmp_path / "out", {"x": np.arange(900.0)}, (300,), progress=True)
    assert re.search("writing.*900 samples", capsys.readouterr().err, re.DOTALL)


@pytest.fixture(autouse=True)
def _quiet(caplog):
    caplog.set_level(logging.WARNING)
