"""Which Dask clients `train`, `shard` and `predict` take."""

from types import SimpleNamespace

import numpy as np
import pytest

from singa_dask import Job, layers, shard, train, updaters
from singa_dask.errors import ClusterError, ConfigError
from singa_dask.inference.run import predict_blocks

X = np.zeros((20, 2), np.float32)


def job():
    net = [layers.RecordInput(batchsize=5), layers.InnerProduct(num_output=1), layers.EuclideanLoss()]
    return Job(name="t", layers=net, updater=updaters.SGD(lr=0.1), train_steps=5)


CALLS = {
    "train": lambda client, folder: train(job(), client, data=(X, X[:, 0]), workspace=folder),
    "shard": lambda client, folder: shard(X, X[:, 0], folder, client=client),
    "predict": lambda client, folder: predict_blocks(SimpleNamespace(outputs=()), [], folder, client),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_client_whose_calls_are_coroutines_is_refused(tmp_path, call):
    client = SimpleNamespace(asynchronous=True, subscribe_topic=None)
    with pytest.raises(ClusterError, match=r"client is asynchronous; give a Client\(\.\.\., asynchronous=False\)"):
        CALLS[call](client, tmp_path / "out")
    with pytest.raises(ConfigError, match=r"client: must be a Dask client. Received: 7. Write Client\("):
        CALLS[call](7, tmp_path / "out")
    assert not (tmp_path / "out").exists()
