"""Profiles in the cache."""

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
    sample = LayerSample(Work("InnerProduct", 8, 4, 2, params=10), 1.0, 2.0, crowd=2)
    kept = replace(MACHINES, layers=[sample], curves={"barrier machine 2": curve(1e-5)})
    path = store.save(store.key_of(kept), kept)
    assert store.load(store.key_of(MACHINES)) == kept
    assert [file.name for file in path.parent.iterdir()] == [path.name], "a temporary file is left"


def test_saving_replaces_what_was_measured_again_and_keeps_the_rest():
    key = store.key_of(MACHINES)
    store.save(key, replace(MACHINES, curves={"sum 1": curve(1.0), "sum 2": curve(2.0)}))
    store.save(key, replace(MACHINES, curves={"sum 2": curve(3.0)}))
    assert store.load(key).curves == {"sum 1": curve(1.0), "sum 2": curve(3.0)}


@pytest.mark.parametrize("other", [{"cpu": "Xeon"}, {"cores": 4}, {"hosts": 1}, {"versions": {"numpy": "2.5"}}])
def test_other_machines_and_versions_have_profiles_of_their_own(other):
    store.save(store.key_of(MACHINES), MACHINES)
    assert store.load(store.key_of(replace(MACHINES, **other))) is None


def test_hosts_of_one_kind_share_a_profile():
    assert store.key_of(replace(MACHINES, host="b")) == store.key_of(MACHINES)


@pytest.mark.parametrize("text", ["{", '{"format": 1}', "[]", '"profile"'])
def test_a_damaged_file_is_named_with_the_way_out(text):
    key = store.key_of(MACHINES)
    path = store.save(key, MACHINES)
    path.write_text(text)
    for call in (lambda: store.load(key), lambda: store.save(key, MACHINES)):
        with pytest.raises(ConfigError, match=r"Delete it, then run `singa-dask profile` again") as caught:
            call()
        assert str(path) in str(caught.value)


def test_a_cache_that_cannot_be_written_is_named(cache):
    (cache / "profiles").write_text("a file where the folder should be")
    with pytest.raises(ConfigError, match="Set SINGA_DASK_CACHE to a folder that can be written"):
        store.save(store.key_of(MACHINES), MACHINES)
