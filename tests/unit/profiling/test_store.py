"""Profiles in the cache."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from singa_dask.errors import ConfigError
from singa_dask.planning.profile import Curve, LayerSample, Point, Profile
from singa_dask.planning.work import Work
from singa_dask.profiling import store

MACHINES = Profile(host="a", cpu="AMD EPYC 7B13", cores=8, hosts=2, versions={"numpy": "2.4"})


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("SINGA_DASK_CACHE", str(tmp_path))
    return tmp_path


def curve(seconds):
    return Curve((Point(0, seconds),))


def test_a_kept_profile_is_loaded():
    sample = LayerSample(Work("InnerProduct", 8, 4, 2, params=10), 1.0, 2.0, concurrency=2)
    kept = replace(MACHINES, layers=[sample], curves={"barrier machine 2": curve(1e-5)})
    path = store.save(store.key_of(kept), kept)
    assert store.load(store.key_of(MACHINES)) == kept
    assert [file.name for file in path.parent.iterdir()] == [path.name], "a temporary file is left"


def test_saving_replaces_what_was_measured_again_and_keeps_the_rest():
    key = store.key_of(MACHINES)
    store.save(key, replace(MACHINES, curves={"sum 1": curve(1.0), "sum 2": curve(2.0)}))
    store.save(key, replace(MACHINES, curves={"sum 2": curve(3.0)}))
    assert store.load(key).curves == {"sum 1": curve(1.0), "sum 2": curve(3.0)}


@pytest.mark.parametrize(
    "other", [{"cpu": "Xeon"}, {"cores": 4}, {"hosts": 1}, {"versions": {"numpy": "2.5"}}, {"notes": {"hosts": ["a"]}}]
)
def test_other_machines_networks_and_versions_have_profiles_of_their_own(other):
    store.save(store.key_of(MACHINES), MACHINES)
    assert store.load(store.key_of(replace(MACHINES, **other))) is None
    assert store.load(store.key_of(replace(MACHINES, host="b"))) == MACHINES, "another host of the same kind"


@pytest.mark.parametrize("damage", [b"{", b'{"format": 1}', b"[]", b'"profile"', b"\xff\xfe"])
def test_a_damaged_file_is_named_with_the_way_out_and_replaced(damage):
    key = store.key_of(MACHINES)
    path = store.save(key, MACHINES)
    path.write_bytes(damage)
    with pytest.raises(ConfigError, match=r"Run `singa-dask profile`, which replaces it") as caught:
        store.load(key)
    assert str(path) in str(caught.value)
    store.save(key, MACHINES)
    assert store.load(key) == MACHINES


def test_one_at_a_time_measures(monkeypatch):
    key, said = store.key_of(MACHINES), []
    monkeypatch.setattr(store, "_LOOK_EVERY_S", 0.01)
    entered, leave = threading.Event(), threading.Event()

    def first():
        with store.locked(key, said.append):
            entered.set()
            leave.wait(10)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(first)
        entered.wait(10)
        with store.locked(key, said.append, patience_s=0.05):
            pass
        assert len(said) == 2 and said[0].startswith("waiting") and said[1].endswith("going on beside it")
        leave.set()
    with store.locked(key, said.append):
        assert len(said) == 2, "the lock is still held"


def test_a_cache_that_cannot_be_written_is_named_and_has_no_lock(cache):
    (cache / "profiles").write_text("a file where the folder should be")
    with pytest.raises(ConfigError, match="Set SINGA_DASK_CACHE to a folder that can be written"):
        store.save(store.key_of(MACHINES), MACHINES)
    with store.locked(store.key_of(MACHINES), print):
        pass
