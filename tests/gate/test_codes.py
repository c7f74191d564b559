"""Labels whose classes have numbers as names: what was given in training says whether labels are names or places."""

import numpy as np
import pandas as pd
import pytest

from singa_dask import Job, layers, load, load_model, shard, train, updaters
from singa_dask.errors import DataError

X = np.random.default_rng(2).normal(size=(60, 3)).astype("float32")
PLACES = np.digitize(X @ [1.0, 2, -1], [-1, 1])  # 0, 1, 2
STARS = ["1", "2", "3"]
# What training is given, and what later calls are given for the same classes.
GIVEN = {"places": PLACES, "names": PLACES + 1, "texts": np.array(STARS)[PLACES]}


@pytest.fixture(scope="module", params=["places", "names"])
def trained(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    shard(X, GIVEN[request.param], folder / "s", classes=STARS)
    net = [layers.RecordInput(path=str(folder / "s"), batchsize=20), layers.InnerProduct(num_output=3)]
    job = Job(name="j", layers=[*net, layers.SoftmaxLoss()], updater=updaters.Adam(lr=0.05), train_steps=60, seed=1)
    run = train(job, processes=False, workspace=folder / "run", curves=False).workspace
    return request.param, folder, load_model(run)


SOME = {"all": np.ones(60, bool), "no first": PLACES > 0, "no last": PLACES < 2}


@pytest.mark.parametrize("some", SOME)
def test_an_evaluation_reads_them_as_training(trained, some):
    kind, _, model = trained
    x, y, places = X[SOME[some]], GIVEN[kind][SOME[some]], PLACES[SOME[some]]
    right = np.mean(model.predict(x).argmax(axis=1) == places)
    assert model.evaluate(x, y)["accuracy"] == pytest.approx(right) and right > 0.6
    assert model.evaluate(x, GIVEN["texts"][SOME[some]])["accuracy"] == pytest.approx(right)


@pytest.mark.parametrize("some", SOME)
@pytest.mark.parametrize("container", [np.asarray, pd.Series])
def test_shards_like_those_of_training_read_them_so(trained, tmp_path, some, container):
    kind, folder, _ = trained
    shard(X[SOME[some]], container(GIVEN[kind][SOME[some]]), tmp_path / "v", like=folder / "s", shuffle=False)
    assert load(tmp_path / "v")[1].tolist() == PLACES[SOME[some]].tolist()


def test_a_label_of_the_other_reading_is_refused(trained, tmp_path):
    kind, folder, model = trained
    wrong = PLACES + (kind == "places")
    with pytest.raises(DataError, match=r"the label '0'|labels must be 0 to 2 for 3 classes"):
        shard(X, wrong, tmp_path / "v", like=folder / "s")
    with pytest.raises(DataError, match=r"'0' is not one of the classes 1, 2, 3|labels must lie in \[0, 3\)"):
        model.evaluate(X, wrong)
