"""Estimators on the workers of a Dask cluster."""

from concurrent.futures import ThreadPoolExecutor

import dask.array as da
import numpy as np
from sklearn.base import clone
from sklearn.datasets import load_digits

from singa_dask import Classifier, ClusterTopology

X, Y = load_digits(return_X_y=True)


def test_arrays_and_collections_train_on_the_workers(cluster3):
    settings = {"epochs": 5, "client": cluster3, "cluster": ClusterTopology.allreduce(2), "random_state": 0}
    arrays = Classifier(**settings).fit(X, Y)
    assert arrays.result_.summary["topology"]["nworkers_per_group"] == 2
    assert arrays.score(X, Y) > 0.9
    alone = Classifier(epochs=5, random_state=0).fit(X, Y)
    for name, value in alone.model_.state_dict().items():
        np.testing.assert_allclose(arrays.model_.state_dict()[name], value, atol=0.02)
    lazy = da.from_array(X, chunks=(500, 64))
    collections = clone(arrays).fit(lazy, da.from_array(Y, chunks=500))
    assert collections.client is cluster3
    assert (collections.predict(lazy) == Y).mean().compute() > 0.9


def test_fits_from_threads_wait_for_each_other_s_workers(cluster3):
    """Each takes two of the three workers."""
    settings = {"epochs": 2, "client": cluster3, "cluster": ClusterTopology.allreduce(2), "random_state": 0}
    with ThreadPoolExecutor(4) as threads:
        fitted = [*threads.map(lambda rate: Classifier(learning_rate=rate, **settings).fit(X, Y), [0.001, 0.003] * 2)]
    assert [classifier.result_.summary["status"] for classifier in fitted] == ["completed"] * 4
    scores = [classifier.score(X, Y) for classifier in fitted]
    assert scores[0] == scores[2] < scores[1] == scores[3]
