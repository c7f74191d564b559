"""Every method of DistOpt against a serial reference, on threads."""

from __future__ import annotations

import threading
from typing import ClassVar

import numpy as np
import pytest
from support.one_machine import run_on_one_machine
from support.patient import Patient
from support.started import STARTED, AtTheEnd
from support.user_layers import Same

from singa_dask.comm import SoloCommunicator, run_members, run_threads
from singa_dask.errors import CheckpointError, ClusterError, ConfigError, DataError, TrainingError
from singa_dask.exchange.ranks import Ranks
from singa_dask.inference.model import Model
from singa_dask.layers import (
    BatchNorm,
    BCELoss,
    Convolution,
    Dropout,
    HuberLoss,
    InnerProduct,
    MAELoss,
    MSELoss,
    Pooling,
    RecordInput,
    ReLU,
    SoftmaxLoss,
)
from singa_dask.loops.distopt import DistOpt, data_partition
from singa_dask.loops.distopt.stages import SumStages
from singa_dask.updaters import LAMB, SGD, Adam, Updater, schedules

ROWS, STEPS, SHARES = 21, 5, [0, 4, 11, 21]  # unequal on purpose
SMALL = 60  # elements: conv's fused, the inner product alone
METHODS = {
    "full": ("backward_and_update", {}),
    "half": ("backward_and_update_half", {}),
    "clipped": ("backward_and_update_half", {"clipping": True, "clip_Value": 0.05}),
    "partial": ("backward_and_partial_update", {}),
    "topk": ("backward_and_sparse_update", {"spars": 0.05, "topK": True}),
    "threshold": ("backward_and_sparse_update", {"spars": 0.01}),
    "uncorrected": ("backward_and_sparse_update", {"spars": 0.05, "topK": True, "corr": False}),
}


def layers(*more):
    return [
        RecordInput(shape=[1, 8, 8]),
        Convolution(num_filters=5, kernel=3, pad=1),
        *more,
        ReLU(),
        Pooling(kernel=2, stride=2),
        Dropout(dropout_ratio=0.3),
        InnerProduct(num_output=10),
        SoftmaxLoss(),
    ]


def batch(number):
    draw = np.random.default_rng(number)
    return draw.random((ROWS, 8, 8, 1), np.float32), draw.integers(0, 10, ROWS)


def make(comm, seed=3, more=(), updater=None, **options):
    model = Model(layers(*more), seed=seed, **options)
    return model, DistOpt(updater or SGD(lr=0.05, momentum=0.9, weight_decay=0.01), model, comm)


def advance(model, opt, first, last, method="full", threshold=SMALL):
    name, settings = METHODS[method]
    begin, end = (0, ROWS) if opt.world_size == 1 else SHARES[opt.rank_in_global : opt.rank_in_global + 2]
    for number in range(first, last):
        x, y = batch(number)
        getattr(opt, name)(model(x[begin:end], y[begin:end]), threshold, **settings)


def train(comm, method="full", threshold=SMALL, steps=STEPS, **options):
    model, opt = make(comm, **options)
    advance(model, opt, 0, steps, method, threshold)
    return model.net.flat.values.copy(), sum(comm.nbytes.values()), opt


@pytest.mark.parametrize("threshold", [1, SMALL, 2097152])
@pytest.mark.parametrize(
    "updater",
    [
        SGD(lr=0.05, momentum=0.9, weight_decay=0.01),
        Adam(lr=0.01),
        SGD(lr=0.5, momentum=0.9, clip_norm=0.1),
        LAMB(lr=0.01, weight_decay=0.1, clip_norm=0.1, group=[{"match": "*_bias", "wd_scale": 0}]),
    ],
    ids=["SGD", "Adam", "clip_norm", "LAMB"],
)
@pytest.mark.parametrize("run", [run_threads, run_on_one_machine])
def test_full_equals_serial_training_on_the_whole_batch(run, updater, threshold):
    serial, *_ = train(SoloCommunicator(), updater=updater, dtype=np.float64)
    for values, *_ in run(3, lambda comm: train(comm, "full", threshold, updater=updater, dtype=np.float64)):
        np.testing.assert_allclose(values, serial, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    "loss", [MSELoss(), MAELoss(reduction="SUM"), HuberLoss(delta=0.3), BCELoss(pos_weight=[1, 2, 0.5])], ids=repr
)
def test_losses_of_values_equal_serial_training_on_the_whole_batch(loss):
    def member(comm):
        net = [RecordInput(shape=[6], target_shape=[3]), InnerProduct(num_output=3), loss]
        model = Model(net, seed=3, dtype=np.float64)
        opt = DistOpt(SGD(lr=0.1), model, comm)
        begin, end = (0, ROWS) if comm.size == 1 else SHARES[comm.rank : comm.rank + 2]
        for number in range(3):
            draw = np.random.default_rng(number)
            x, t = draw.random((ROWS, 6)), draw.random((ROWS, 3))
            opt(model(x[begin:end], t[begin:end]))
        return model.net.flat.values.copy()

    serial = member(SoloCommunicator())
    for values in run_threads(3, member):
        np.testing.assert_allclose(values, serial, rtol=1e-9)


def test_a_clipped_gradient_has_the_norm_that_the_updater_allows():
    model, opt = make(SoloCommunicator(), updater=SGD(lr=1, clip_norm=0.1), dtype=np.float64)
    start = model.net.flat.values.copy()
    advance(model, opt, 0, 1)
    assert np.linalg.norm(model.net.flat.values - start) == pytest.approx(0.1)


@pytest.mark.parametrize("run", [run_threads, run_on_one_machine])
def test_a_model_can_have_its_moving_averages_for_a_while(run):
    def member(comm):
        model, opt = make(comm, updater=SGD(lr=0.5, ema_decay=0.5), dtype=np.float64)
        average, found = model.net.flat.values.copy(), []
        for number in range(3):
            with opt.averaged():
                found.append((model.net.flat.values.copy(), average))
            advance(model, opt, number, number + 1)
            average = (average + model.net.flat.values) / 2
        return found, opt.state_dict()["updater"]["ema"], model.net.flat.named(average)

    for found, state, average in run(3, member):
        for values, expected in found:
            np.testing.assert_allclose(values, expected, rtol=1e-12)
        for name, array in average.items():
            np.testing.assert_allclose(state[name], array, rtol=1e-12)
    _, opt = make(SoloCommunicator())
    with pytest.raises(ConfigError, match=r"updater.ema_decay: keeps no moving averages"), opt.averaged():
        pass


class InTurn(Updater):
    """w -= lr g, one rank after another; it writes to its gradients."""

    states = ()
    turn = threading.Lock()

    def apply(self, step, lr, weight_decay, w, g):
        with self.turn:
            g *= lr
            w -= g


@pytest.mark.parametrize("run", [run_threads, run_on_one_machine])
def test_an_updater_may_write_to_its_gradients(run):
    def member(comm):
        model, opt = make(comm, updater=InTurn(lr=0.5))
        start = model.net.flat.values.copy()
        advance(model, opt, 0, 1)
        return start - model.net.flat.values, model.net.flat.grads.copy()

    (change, grads), *others = run(3, member)
    np.testing.assert_allclose(change, grads, atol=1e-6)
    assert np.abs(grads).max() > 1e-3
    for other in others:
        np.testing.assert_array_equal(other, (change, grads))


def test_ranks_that_share_memory_have_the_same_bits_and_count_what_they_would_send():
    shared = run_on_one_machine(3, train)
    (start, before, _), *_ = run_on_one_machine(3, train, "full", SMALL, 0)
    (_, sent, _), *_ = run_threads(3, train)
    (_, sent_before, _), *_ = run_threads(3, train, "full", SMALL, 0)
    for values, *_ in shared:
        np.testing.assert_array_equal(values, shared[0][0])
    assert shared[0][1] - before == sent - sent_before
    assert not np.array_equal(shared[0][0], start)


@pytest.mark.parametrize("method", ["half", "topk", "partial"])
def test_what_is_coded_is_the_same_where_ranks_share_memory(method):
    for (values, *_), (expected, *_) in zip(
        run_on_one_machine(3, train, method), run_threads(3, train, method), strict=True
    ):
        np.testing.assert_array_equal(values, expected)


def test_batch_normalisation_is_over_the_rows_of_all_ranks():
    serial, *_ = train(SoloCommunicator(), more=[BatchNorm()], dtype=np.float64)
    for values, *_ in run_threads(3, lambda comm: train(comm, more=[BatchNorm()], dtype=np.float64)):
        np.testing.assert_allclose(values, serial, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("method", ["topk", "threshold", "uncorrected"])
def test_running_statistics_are_not_held_back(method):
    """With a rate of zero only they move."""

    def statistics(comm, method):
        options = {"more": [BatchNorm()], "updater": SGD(lr=0.0), "dtype": np.float64}
        *_, opt = train(comm, method, steps=5, **options)
        named = opt.model.net.named_params
        return np.concatenate([named[f"batchnorm1_{role}"].value for role in ("mean", "var")])

    for values, expected in zip(run_threads(3, statistics, method), run_threads(3, statistics, "full"), strict=True):
        np.testing.assert_allclose(values, expected, rtol=1e-9)


@pytest.mark.parametrize("method", METHODS)
def test_all_ranks_have_the_same_bits_and_two_runs_too(method):
    once, again = (run_threads(3, train, method) for _ in range(2))
    for (first, *_), (second, *_) in zip(once, again, strict=True):
        np.testing.assert_array_equal(first, second)
        assert method == "partial" or np.array_equal(first, once[0][0])


@pytest.mark.parametrize("kind", STARTED)
@pytest.mark.parametrize("method", METHODS)
def test_buckets_that_travel_while_others_are_summed_give_the_same_bits(method, kind):
    expected = run_threads(3, train, method)
    comms = kind.create(3)
    for (values, *_), (one_by_one, *_) in zip(run_members(comms, train, method), expected, strict=True):
        np.testing.assert_array_equal(values, one_by_one)
    if kind is AtTheEnd and method != "partial":
        assert [(comm.most, comm.under_way) for comm in comms] == [(2, 0)] * 3


def test_half_is_close_to_full_in_half_the_bytes():
    (full, of_full, _), *_ = run_threads(3, train)
    (half, of_half, _), *_ = run_threads(3, train, "half")
    (start, before, _), *_ = run_threads(3, train, "full", SMALL, 0)
    told = STEPS * 2 * 8  # the rows of the other ranks
    assert of_half - before - told == (of_full - before - told) / 2
    assert 0 < np.abs(half - full).max() <= 2e-3 * np.abs(full - start).max() + 1e-4


@pytest.mark.parametrize(("method", "most"), [("topk", 0.11), ("partial", 0.34)])
def test_what_sends_less(method, most):
    (_, before, _), *_ = run_threads(3, train, "full", 2097152, 0)
    nbytes = {name: run_threads(3, train, name, 2097152)[0][1] - before - STEPS * 2 * 8 for name in ("full", method)}
    assert 0 < nbytes[method] <= most * nbytes["full"]


def test_values_that_float16_cannot_hold_are_counted():
    def member(comm):
        model, opt = make(comm, updater=SGD(lr=1e-9))
        x, y = batch(0)
        before = opt.overflows
        opt.backward_and_update_half(model(x * 1e7, y))
        assert np.isfinite(model.net.flat.values).all()
        return before, opt.overflows

    assert all(before == 0 < after for before, after in run_threads(2, member))


class Below(Ranks):
    """A rank alone, behind so many rows of another."""

    def __init__(self, rows):
        super().__init__()
        self.rows, self.rank = rows, 1

    def numbers(self, own):
        return self.rows, own


def test_partial_applies_own_gradients_and_averages_one_chunk_after_another():
    def partial(comm):
        model, opt = make(comm)
        seen = []
        for number in range(3):
            advance(model, opt, number, number + 1, "partial")
            seen.append(model.net.flat.values.copy())
        return seen

    def alone(comm):
        """The first step of this rank on its own."""
        model, opt = make(SoloCommunicator())
        begin, end = SHARES[comm.rank : comm.rank + 2]
        model.ranks = Below(begin)  # the same dropout
        x, y = batch(0)
        opt.backward_and_partial_update(model(x[begin:end], y[begin:end]))
        return model.net.flat.values

    ranks, own = run_threads(3, partial), run_threads(3, alone)
    size = own[0].size
    chunks = max(3, -(-size // SMALL))
    first = slice(0, size // chunks)
    for seen, values in zip(ranks, own, strict=True):
        np.testing.assert_allclose(seen[0][first], np.mean([o[first] for o in own], axis=0), rtol=1e-6, atol=1e-7)
        np.testing.assert_array_equal(seen[0][first.stop :], values[first.stop :])
    for step in range(3):  # the chunk of the step is the same everywhere, others are not
        chunk = slice(size * step // chunks, size * (step + 1) // chunks)
        equal = [np.array_equal(seen[step][chunk], ranks[0][step][chunk]) for seen in ranks]
        assert all(equal)
        assert not np.array_equal(ranks[0][step], ranks[1][step])


def test_residuals_go_by_parameter_name_and_survive_another_threshold():
    def member(comm):
        model, opt = make(comm)
        advance(model, opt, 0, 2, "topk")
        state = opt.state_dict()
        before = {name: state["residual"][name] + state["owed"][name] for name in model.state_dict()}
        opt._state.residuals((0, 1, 2))  # as another threshold does
        after = opt.state_dict()
        return before, after

    for before, after in run_threads(3, member):
        assert any(array.any() for array in before.values())
        for name, array in before.items():
            np.testing.assert_array_equal(after["residual"][name], array)
            assert not after["owed"][name].any()


def test_buckets_travel_while_the_backward_pass_goes_on(monkeypatch):
    Patient.done = {first: threading.Event() for first in SHARES[:3]}
    gather, sent = SumStages.gather, [[], [], []]

    def noted(stages, bucket):
        gather(stages, bucket)
        rank = stages.exchange.comm.rank
        sent[rank].append(bucket)
        if len(sent[rank]) == 4:  # all above the patient layer
            Patient.done[SHARES[rank]].set()

    monkeypatch.setattr(SumStages, "gather", noted)

    def member(comm):
        model = Model([RecordInput(shape=[1, 8, 8]), Patient(), *layers()[1:]])
        opt = DistOpt(SGD(lr=0.1), model, comm)
        advance(model, opt, 0, 1, threshold=16)

    run_threads(3, member)
    assert sent == [[4, 3, 2, 1, 0]] * 3


def test_predictions_are_those_that_evaluate_measures():
    model, (x, y) = Model(layers(), seed=3), batch(1)
    likely = model.predict(x, batchsize=4)
    np.testing.assert_allclose(likely.sum(axis=1), 1, rtol=1e-5)
    np.testing.assert_allclose(likely, model.predict(x.reshape(ROWS, -1)), rtol=1e-5)
    measured = model.evaluate(x, y)
    assert np.mean(likely.argmax(axis=1) == y) == pytest.approx(measured["accuracy"])
    assert -np.log(likely[np.arange(ROWS), y]).mean() == pytest.approx(measured["loss"], rel=1e-5)


def test_a_group_of_one_trains_without_a_thread_and_reports_what_it_measures():
    warm, _ = make(SoloCommunicator())
    warm(*batch(0))  # the kernels' own threads
    threads = set(threading.enumerate())
    model, opt = make(SoloCommunicator(), updater=SGD(lr=0.1, momentum=0.9))
    assert (opt.world_size, opt.rank_in_global, opt.rank_in_local) == (1, 0, 0) == (1, opt.global_rank, opt.local_rank)
    x, y = batch(0)
    first = float(model(x, y))
    for _ in range(40):
        loss = model(x.reshape(ROWS, -1), y)  # flat images
        opt(loss)
    assert not [thread.name for thread in set(threading.enumerate()) - threads]
    assert float(loss) < first and 0 <= loss.accuracy <= 1
    measured = model.evaluate(x, y, batchsize=4)
    assert measured == pytest.approx(model.evaluate(x, y), rel=1e-5)
    assert set(measured) == {"loss", "accuracy"}


def test_local_ranks_count_within_the_machine():
    assert [opt.rank_in_local for *_, opt in run_threads(3, train, "full", SMALL, 0)] == [0, 1, 2]


def test_all_reduce_sums_in_place_and_synch_gives_rank_0s_parameters():
    def member(comm):
        model, opt = make(comm, seed=comm.rank)
        mine = np.array([comm.rank, 1.0])
        total = opt.all_reduce(mine)
        model.net.flat.values += comm.rank
        opt.synch(model)
        return total, mine, model.net.flat.values

    expected = Model(layers(), seed=0).net.flat.values
    for total, mine, values in run_threads(3, member):
        assert total is mine and mine.tolist() == [3.0, 3.0]
        np.testing.assert_array_equal(values, expected)


class Broken(Same):
    """y = x; its backward call fails in the worker whose rows begin at `at`."""

    at: ClassVar[int] = 0

    def setup(self, *src):
        self.factor = self.declare("factor", (16,), 1, 1, value=1)
        return src[0]

    def backward(self, ctx, dy):
        if ctx.step.first_row == self.at:
            raise ArithmeticError("of this layer")
        return dy


@pytest.mark.parametrize("bad", [0, 1])
def test_a_failing_backward_pass_ends_the_step_of_all_ranks(bad):
    """At once: the others wait for buckets that never come."""
    Broken.at = SHARES[bad]

    def member(comm):
        model = Model([RecordInput(shape=[1, 8, 8]), Broken(), *layers()[1:]])
        opt = DistOpt(SGD(lr=0.1), model, comm)
        try:
            advance(model, opt, 0, 1, threshold=16)
        except Exception as error:
            return error

    errors = run_threads(2, member)
    assert type(errors[bad]) is TrainingError and "of this layer" in str(errors[bad])
    assert type(errors[1 - bad]) is ClusterError and f"rank {bad} failed in its backward pass" in str(errors[1 - bad])


def test_data_is_cut_into_equal_runs():
    x, y = np.arange(11), np.arange(11) * 2
    parts = [data_partition(x, y, rank, 3) for rank in range(3)]
    assert [part[0].tolist() for part in parts] == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert all((part[1] == 2 * part[0]).all() for part in parts)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda opt, loss: opt(loss, threshold=0), ConfigError, r"threshold: must be at least 1 element. Received: 0"),
        (lambda opt, loss: opt.backward_and_update_half(loss, clipping=True, clip_Value=0), ConfigError, "clip_Value"),
        (lambda opt, loss: opt.synch(Model(layers())), ConfigError, "trains another one"),
        (lambda opt, loss: DistOpt(SGD(lr=0.1), comm=opt.comm)(loss), ConfigError, "this DistOpt has none"),
        (lambda opt, loss: DistOpt("SGD", opt.model, opt.comm), ConfigError, "must be an updater"),
        (lambda opt, loss: opt.backward_and_sparse_update(loss, spars=2.0, topK=True), ConfigError, "share of the"),
        (lambda opt, loss: opt.load_state_dict({"step": 1}), CheckpointError, "must have updater"),
        (lambda opt, loss: opt.model(batch(0)[0], np.zeros(3, int)), DataError, "Received: 21 in x, 3 in y"),
        (lambda opt, loss: opt.model.predict({"other": batch(0)[0]}), DataError, "input layers"),
        (lambda opt, loss: [opt(each) for each in (loss, loss)], TrainingError, "gone already"),
        (lambda opt, loss: opt.model(*batch(0)) and opt(loss), TrainingError, "called again since"),
        (lambda opt, loss: loss.recall, AttributeError, "It measures: loss, accuracy"),
        (
            lambda opt, loss: DistOpt(SGD(learning_rate=schedules.ReduceOnPlateau(base_lr=0.1)), comm=opt.comm),
            ConfigError,
            r"updater.learning_rate: follows the evaluations of a job.*another schedule",
        ),
        (lambda opt, loss: data_partition(np.ones(2), None, 0, 3), DataError, "too few for 3 ranks"),
        (lambda opt, loss: data_partition(np.ones(9), np.ones(5), 0, 3), DataError, "as many samples"),
        (lambda opt, loss: data_partition(np.ones(9), None, 3, 3), ConfigError, "from 0 to 2"),
    ],
)
def test_wrong_use_is_refused(call, error, words):
    model, opt = make(SoloCommunicator())
    with pytest.raises(error, match=words):
        call(opt, model(*batch(0)))
