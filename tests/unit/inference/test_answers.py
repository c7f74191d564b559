"""Labels and targets that a model is evaluated with, and what predictions must not overwrite."""

import re

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from singa_dask import Model, shard
from singa_dask.errors import ConfigError, DataError
from singa_dask.inference.run import predict_blocks
from singa_dask.inference.sources import blocks_of
from singa_dask.layers import InnerProduct, MSELoss, RecordInput, SoftmaxLoss

DRAW = np.random.default_rng(0)
X = DRAW.normal(size=(40, 3)).astype(np.float32)


def classifier(folder, labels):
    model = Model([RecordInput("data", shape=[3]), InnerProduct(num_output=2), SoftmaxLoss()], seed=0)
    model.described = {"data": shard(X, labels, folder)[""].description}
    return model


@pytest.mark.parametrize(
    ("first", "second"), [(1, 2), (0, 5), ("a", "b"), (False, True)], ids=["numbers", "zero", "texts", "truth"]
)
@pytest.mark.parametrize("held", [np.asarray, list, pd.Series, pa.array], ids=["NumPy", "list", "pandas", "pyarrow"])
def test_labels_are_those_of_the_training_data(tmp_path, first, second, held):
    codes = (X[:, 0] > 0).astype(int)
    labels = np.array([first, second])[codes]
    model = classifier(tmp_path / "shards", labels)
    plain = Model([RecordInput("data", shape=[3]), InnerProduct(num_output=2), SoftmaxLoss()], seed=0)
    assert model.evaluate(X, held(labels)) == plain.evaluate(X, codes)


def test_a_part_of_the_classes_is_not_renumbered(tmp_path):
    labels = np.arange(40) % 2 + 1
    model = classifier(tmp_path / "shards", labels)
    both = model.evaluate(X, labels)["accuracy"]
    parts = [model.evaluate(X[labels == each], labels[labels == each])["accuracy"] for each in (1, 2)]
    assert np.mean(parts) == pytest.approx(both)
    with pytest.raises(DataError, match="y: '3' is not one of the classes 1, 2"):
        model.evaluate(X, labels + 1)


@pytest.mark.parametrize("y", [np.ma.masked_array(X[:, 0], X[:, 1] > 1), np.where(X[:, 1] > 1, np.nan, X[:, 0])])
def test_missing_targets_are_refused(y):
    model = Model([RecordInput("data", shape=[3], target_shape=[1]), InnerProduct(num_output=1), MSELoss()], seed=0)
    first = int(np.argmax(X[:, 1] > 1))
    with pytest.raises(DataError, match=re.escape(f"y: a value is missing, the first in sample {first}.")):
        model.evaluate(X, y, metrics=["r2"])
    assert np.isfinite(model.evaluate(X, X[:, 0], metrics=["r2"])["r2"])


def test_a_dask_table_is_not_evaluated():
    model = Model([RecordInput("data", shape=[3]), InnerProduct(num_output=2), SoftmaxLoss()], seed=0)
    with pytest.raises(ConfigError, match="x: is a Dask DataFrame, and tables are evaluated in memory"):
        model.evaluate(dd.from_pandas(pd.DataFrame(X), npartitions=2), X[:, 0] > 0)


def test_predictions_do_not_overwrite_what_is_predicted(tmp_path):
    model = classifier(tmp_path / "shards", X[:, 0] > 0)
    for name in ("a", "b", "c"):
        pd.DataFrame(X).to_csv(tmp_path / f"{name}.csv", index=False)
    (tmp_path / "link.csv").symlink_to(tmp_path / "b.csv")
    before = (tmp_path / "b.csv").read_text()
    for out in ("b.csv", "../" + tmp_path.name + "/b.csv", "link.csv"):
        with pytest.raises(ConfigError, match="--out: is a file that is predicted"):
            predict_blocks(model, blocks_of(model, str(tmp_path / "?.csv")), tmp_path / out)
    assert (tmp_path / "b.csv").read_text() == before
