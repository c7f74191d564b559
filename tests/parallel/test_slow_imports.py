"""Workers that import the package from a slow file system."""

import logging

import pytest
from distributed import Client, LocalCluster

from singa_dask.cluster import wait_workers, workers
from singa_dask.data.shared_files import SharedFiles, other_views

pytestmark = pytest.mark.timeout(120)
SLOW = """
import importlib.abc, sys, time

class Slow(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "singa_dask":
            sys.meta_path.remove(self)
            time.sleep(5)

sys.meta_path.insert(0, Slow())
"""


@pytest.mark.parametrize("asked", ["files", "workers"])
def test_a_worker_that_imports_for_longer_than_it_may_take_to_answer_is_waited_for(
    asked, tmp_path, monkeypatch, caplog
):
    (tmp_path / "slow.py").write_text(SLOW)
    monkeypatch.setattr(workers, "_ANSWER_S", 1.0)
    options = {"dashboard_address": None, "silence_logs": logging.WARNING, "preload": [str(tmp_path / "slow.py")]}
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, host="127.0.0.1", memory_limit=0, **options) as cluster,
        Client(cluster) as client,
    ):
        if asked == "files":
            assert other_views(client, SharedFiles(folder=tmp_path)) == {}
        else:
            assert len(wait_workers(client, 1, timeout_s=3.0)) == 1
    assert "workers are importing singa_dask; waiting up to 600 s" in caplog.text
