"""A run on a local cluster fills the page of its scheduler, which opens with the first look."""

import json
import logging
import re
from urllib.request import urlopen

import numpy as np
import pytest

pytest.importorskip("bokeh", reason="the dashboard needs bokeh")

from bokeh.client import pull_session
from bokeh.util.token import get_session_id

from singa_dask import ClusterTopology, Job, layers, train, updaters
from singa_dask.cluster import local_cluster
from singa_dask.monitor.progress import Display

X = np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32)


class Said(Display):
    def __init__(self):
        self.lines = []
        self.say = self.lines.append


def test_a_run_fills_the_page(tmp_path, no_leaks, caplog):
    caplog.set_level(logging.WARNING, "distributed")
    net = [layers.RecordInput(batchsize=32), layers.InnerProduct(num_output=1), layers.EuclideanLoss()]
    job = Job(name="line", layers=net, updater=updaters.Adam(lr=0.02), train_steps=8, disp_freq=2)
    said = Said()
    with local_cluster(1, worker_ttl_s=60) as client:
        run = {"data": (X, X[:, 0]), "workspace": tmp_path / "run", "display": said, "curves": False}
        train(job, client, cluster=ClusterTopology.allreduce(1), **run)
        (line,) = (line for line in said.lines if line.startswith("watch the run: "))
        address = line.removeprefix("watch the run: ")
        with urlopen(address, timeout=60) as page:
            html = page.read().decode()
            assert page.status == 200 and '<a href="training">Training</a>' in html
        looker = get_session_id(re.search(r'"token":"([^"]+)"', html)[1])
        with pull_session(looker, url=address) as session:
            (head,) = (root for root in session.document.roots if root.tags)
            told = json.loads(head.tags[0].data["told"][-1])
    assert told["runs"][0][:4] == ["line", "allreduce", "completed", "8/8"]
    assert told["titles"]["loss"] == "loss" and told["rows"][0][4] > 0 and len(told["times"]) == 1
    assert [mark[1] for mark in told["marks"]] == ["checkpoint", "end"]
    assert [record.message for record in caplog.records if record.name.startswith("distributed")] == []
