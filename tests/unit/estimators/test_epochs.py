"""An epoch is one reading of the samples of training, whatever is held out."""

import numpy as np
import pytest

from singa_dask import Job, Regressor, layers, updaters

X = np.random.default_rng(0).normal(size=(200, 3)).astype("float32")
Y = X.sum(axis=1)
JOB = Job(
    name="own",
    layers=[layers.RecordInput(batchsize=10), layers.InnerProduct(num_output=1), layers.MSELoss()],
    updater=updaters.SGD(lr=0),
    train_steps=1,
)


@pytest.mark.parametrize("net", [None, JOB], ids=["layers", "a job"])
@pytest.mark.parametrize(("validation", "left"), [(None, 200), (0.5, 100), (0.9, 20), ((X[:40], Y[:40]), 200)])
def test_each_sample_of_training_is_read_so_often(tmp_path, net, validation, left):
    def noted(batch, rng):
        with open(tmp_path / "rows", "ab") as file:
            file.write(np.ascontiguousarray(batch["x"][:, 0]).tobytes())
        return batch

    net = net or [layers.InnerProduct(num_output=1)]
    how = {"batch_size": 10} | ({} if isinstance(net, Job) else {"updater": updaters.SGD(lr=0)})
    regressor = Regressor(net, epochs=4, validation=validation, transform=noted, normalise=False, **how).fit(X, Y)
    rows, times = np.unique(np.fromfile(tmp_path / "rows", np.float32), return_counts=True)
    assert regressor.n_iter_ == 4 and len(rows) == left
    # A mini-batch may begin the next epoch, and one is read ahead.
    assert times.min() == 4 and times.sum() <= 4 * len(rows) + 20
    assert regressor.result_.summary["step"] == -(-4 * len(rows) // 10)
