"""What names a kind of machine."""

from types import SimpleNamespace

from singa_dask.cluster.workers import WorkerInfo
from singa_dask.profiling import facts
from singa_dask.profiling.store import key_of


def test_the_key_is_the_same_before_and_after_mpi_was_loaded(monkeypatch):
    keys = set()
    for loaded, installed in (("", "MPICH Version:      5.0.2\n"), ("MPICH Version: 5.0.2", "")):
        monkeypatch.setattr(facts, "mpi_report", lambda library=loaded: SimpleNamespace(library=library))
        monkeypatch.setattr(facts, "mpi_library", lambda text=installed: text)
        keys.add(key_of(facts.facts_here()))
    assert len(keys) == 1


def test_networks_of_hosts_of_one_kind_have_profiles_of_their_own():
    def of(*hosts):
        workers = [WorkerInfo(f"tcp://{host}:1", host=host, cores=4) for host in hosts]
        return facts.facts_of(facts.facts_here(), workers)

    here, there = of("10.0.0.1", "10.0.0.2"), of("10.1.0.1", "10.1.0.2")
    assert key_of(here) != key_of(there)
    assert key_of(of("10.0.0.1")) == key_of(of("10.1.0.1"))
    assert (here.hosts, here.cores) == (2, 4)
