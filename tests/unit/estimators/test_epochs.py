"""An epoch is one reading of the samples of training, whatever is held out."""

import copy
import pickle

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


@pytest.mark.parametrize("random_state", [0, np.random.RandomState(3)], ids=["a number", "a state"])
def test_calls_of_partial_fit_have_orders_and_draws_of_their_own(tmp_path, random_state):
    def noted(batch, rng):
        with open(tmp_path / "seen", "ab") as file:
            file.write(np.column_stack([batch["x"][:, 0], rng.random()]).tobytes())
        return batch

    def seen(calls, between=lambda net: net):
        net = Regressor([layers.InnerProduct(num_output=1)], batch_size=50, random_state=copy.deepcopy(random_state))
        found = []
        for _ in range(calls):
            net = between(net).set_params(transform=noted).partial_fit(X, Y)
            rows = np.fromfile(tmp_path / "seen").reshape(-1, 2)[50:250]  # the first mini-batch warms the net up
            (tmp_path / "seen").unlink()
            np.testing.assert_array_equal(np.sort(rows[:, 0]), np.sort(X[:, 0]))
            found.append(rows)
        return found

    first = seen(3)
    for column in (0, 1):
        assert len({each[:, column].tobytes() for each in first}) == 3
    stored = seen(3, lambda net: pickle.loads(pickle.dumps(net.set_params(transform=None))))
    np.testing.assert_array_equal(stored, first)
