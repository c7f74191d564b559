"""DistOpt with a model whose net is partitioned over the ranks, against the serial one, on threads."""

import numpy as np
import pytest
from support.one_machine import run_on_one_machine
from unit.loops.distopt.test_dist_opt import METHODS, layers

from singa_dask.comm import SoloCommunicator, run_threads
from singa_dask.errors import CheckpointError, CommTimeout, ConfigError
from singa_dask.inference.model import Model
from singa_dask.job.job_pb2 import NetProto
from singa_dask.layers import (
    Accuracy,
    BatchNorm,
    Convolution,
    Dropout,
    InnerProduct,
    Pooling,
    RecordInput,
    ReLU,
    SoftmaxLoss,
)
from singa_dask.loops.distopt import DistOpt
from singa_dask.net.flat import FlatParams
from singa_dask.ops.cpu.ops import CpuOps
from singa_dask.updaters import LAMB, SGD, Adam

ROWS, STEPS = 13, 4
BOUNDS = {1: [0, 13], 2: [0, 4, 13], 3: [0, 2, 7, 13]}  # unequal on purpose
MOMENTUM = SGD(lr=0.05, momentum=0.9, weight_decay=0.01)


def mlp(partition_dim=1, **options):
    net = [
        RecordInput(shape=[12]),
        InnerProduct(num_output=9),
        ReLU(),
        Dropout(dropout_ratio=0.3),
        InnerProduct(num_output=7),
        SoftmaxLoss(),
        Accuracy(topk=2),
    ]
    return Model(net, **{"partition_dim": partition_dim, "seed": 3, "dtype": np.float64, **options})


def cnn(partition_dim=1, **options):
    """The rows of the first layers are divided."""
    net = [
        RecordInput(shape=[1, 12]),
        Convolution(num_filters=5, kernel_x=3, kernel_y=1, pad_x=1, bias_term=False, partition_dim=0),
        BatchNorm(partition_dim=0),
        ReLU(),
        Convolution(num_filters=4, kernel_x=3, kernel_y=1, pad_x=1, bias_term=False),
        BatchNorm(),
        Pooling(kernel_x=2, kernel_y=1, stride_x=2, stride_y=1),
        InnerProduct(num_output=7),
        SoftmaxLoss(),
    ]
    return Model(net, **{"partition_dim": partition_dim, "seed": 3, "dtype": np.float64, **options})


def one_layer():
    """Even its loss is split."""
    net = [RecordInput(shape=[12]), InnerProduct(num_output=7), SoftmaxLoss()]
    return Model(net, partition_dim=1, seed=3, dtype=np.float64)


def batch(number, rows=ROWS):
    draw = np.random.default_rng(number)
    return draw.random((rows, 12)), draw.integers(0, 7, rows)


def own(comm, rows=ROWS):
    bounds = [bound * rows // ROWS for bound in BOUNDS[comm.size]]
    return slice(bounds[comm.rank], bounds[comm.rank + 1])


def advance(model, opt, first, last, method="full"):
    name, settings = METHODS[method]
    for number in range(first, last):
        x, y = batch(number)
        loss = model(x[own(opt.comm)], y[own(opt.comm)])
        getattr(opt, name)(loss, 30, **settings)


def trained(comm, build, method="full", updater=MOMENTUM, steps=STEPS):
    model = build()
    opt = DistOpt(updater, model, comm)
    advance(model, opt, 0, steps, method)
    return model.state_dict(), opt.state_dict(), opt


def assert_close(arrays, expected, rtol=1e-6, atol=1e-9):
    assert list(arrays) == list(expected)
    for name, array in expected.items():
        np.testing.assert_allclose(arrays[name], array, rtol=rtol, atol=atol, err_msg=name)


@pytest.mark.parametrize("updater", [MOMENTUM, Adam(lr=0.01), SGD(lr=0.5, momentum=0.9, clip_norm=0.1)])
@pytest.mark.parametrize("build", [mlp, cnn])
@pytest.mark.parametrize(("run", "size"), [(run_threads, 2), (run_threads, 3), (run_on_one_machine, 3)])
def test_full_equals_serial_training(run, size, build, updater):
    values, state, _ = trained(SoloCommunicator(), build, updater=updater)
    for rank, (partitioned, theirs, opt) in enumerate(run(size, trained, build, "full", updater)):
        assert opt.model.partitioned
        for param in opt.model.net.own.params:
            assert param.shape == param.shard.of(rank).local_shape != param.whole_shape
        assert_close(partitioned, values)
        for name, arrays in state["updater"].items():
            assert_close(theirs["updater"][name], arrays)


def test_a_rule_that_needs_whole_parameters_is_refused():
    def member(comm):
        with pytest.raises(ConfigError, match=r"updater.type: LAMB needs the norms of whole parameters"):
            DistOpt(LAMB(lr=0.1), mlp(), comm)

    run_threads(2, member)


class Elsewhere(CpuOps):
    """Arrays that communicators cannot work on in place, as those of a GPU."""

    def to_host(self, array):
        return np.array(array)


@pytest.mark.parametrize("method", METHODS)
def test_parameters_that_are_not_on_the_host_are_staged(method):
    def build():
        model = cnn()
        model.ops = Elsewhere(np.float64)
        return model

    for (values, state, _), (expected, others, _) in zip(
        run_threads(2, trained, build, method), run_threads(2, trained, cnn, method), strict=True
    ):
        assert_close(values, expected, rtol=0, atol=0)
        for name, arrays in others["updater"].items():
            assert_close(state["updater"][name], arrays, rtol=0, atol=0)


@pytest.mark.parametrize("build", [mlp, cnn])
@pytest.mark.parametrize("method", METHODS)
def test_every_method_learns_and_goes_on_where_it_stopped(method, build):
    def interrupted(comm):
        model = build()
        opt = DistOpt(MOMENTUM, model, comm)
        advance(model, opt, 0, 2, method)
        state = model.net.flat.values.copy(), model.state_dict(), opt.state_dict()
        model = build()
        opt = DistOpt(MOMENTUM, model, comm)
        model.load_state_dict(state[1])
        opt.load_state_dict(state[2])
        np.testing.assert_array_equal(model.net.flat.values, state[0])
        advance(model, opt, 2, STEPS, method)
        return model.state_dict(), opt.state_dict(), opt

    initial = build().state_dict()
    for (whole, *_), (resumed, *_) in zip(
        run_threads(3, trained, build, method), run_threads(3, interrupted), strict=True
    ):
        assert_close(resumed, whole, rtol=0, atol=0)
        assert all(np.abs(whole[name] - array).max() > 1e-6 for name, array in initial.items())


@pytest.mark.parametrize("method", METHODS)
def test_every_parameter_may_be_split(method):
    expected, *_ = trained(SoloCommunicator(), one_layer)
    for values, _, opt in run_on_one_machine(2, trained, one_layer, method):
        assert opt.model.net.flat.size == 0
        if method != "clipped":
            assert_close(values, expected)


def test_partial_applies_own_gradients_to_replicated_parameters():
    def step(comm, rows):
        net = [
            RecordInput(shape=[12]),
            InnerProduct(num_output=9, partition_dim=0),
            InnerProduct(num_output=7),
            SoftmaxLoss(),
        ]
        model = Model(net, partition_dim=1, dtype=np.float64)
        before = model.net.named_params["innerproduct1_weight"].value.copy()
        opt = DistOpt(SGD(lr=1.0), model, comm)
        x, y = batch(0)
        opt.backward_and_partial_update(model(x[rows], y[rows]))
        return (before - model.net.named_params["innerproduct1_weight"].value)[8:]  # what is not averaged yet

    for rank, change in enumerate(run_threads(2, lambda comm: step(comm, own(comm)))):
        expected = step(SoloCommunicator(), slice(*BOUNDS[2][rank : rank + 2]))
        np.testing.assert_allclose(change, expected, rtol=1e-9)


@pytest.mark.parametrize("build", [mlp, cnn])
def test_half_clips_the_gradients_of_everything(build):
    def step(comm, clip):
        model = build()
        opt = DistOpt(SGD(lr=1.0), model, comm)
        x, y = batch(0)
        opt.backward_and_update_half(model(x[own(comm)], y[own(comm)]), clipping=True, clip_Value=clip)
        return model.state_dict(), [entry.name for entry in model.net.own.entries]

    before, clip = build().state_dict(), 0.01
    ((values, _),) = run_threads(1, step, 100.0)
    gradients = {name: before[name] - values[name] for name in before}
    for values, split in run_threads(3, step, clip):
        changes = {name: before[name] - values[name] for name in before}
        largest = max(np.abs(changes[name]).max() for name in set(before) - set(split))
        assert largest <= 1.001 * clip and (build is mlp or largest > clip / 2)
        clipped = {name: np.clip(gradients[name], -clip, clip) for name in split}
        assert_close({name: changes[name] for name in split}, clipped)
        assert any((array == clip).any() for array in clipped.values())


def test_a_step_sends_replicated_parameters_only():
    def sent(comm):
        model = cnn()
        opt = DistOpt(MOMENTUM, model, comm)
        before = sum(comm.nbytes.values())
        advance(model, opt, 0, 1)
        told = 8 * (comm.size - 1)  # the rows of the other ranks
        return sum(comm.nbytes.values()) - before - told, model.net.flat.size, opt.group.comm.nbytes

    for nbytes, size, between_layers in run_threads(2, sent):
        assert nbytes == 2 * size // 2 * 8  # half of them out, and half of them back
        assert between_layers["all_gather"] > 0


@pytest.mark.parametrize("build", [mlp, cnn, one_layer])
@pytest.mark.parametrize("size", [2, 3])
def test_evaluate_and_predict_are_those_of_the_serial_model(build, size):
    rows = 26
    x, y = batch(1, rows)
    alone = build()
    opt = DistOpt(MOMENTUM, alone, SoloCommunicator())
    advance(alone, opt, 0, 1)
    expected, scores = alone.evaluate(x, y), alone.predict(x)

    def member(comm):
        model = build()
        opt = DistOpt(MOMENTUM, model, comm)
        advance(model, opt, 0, 1)
        mine = own(comm, rows)
        # Ranks have other numbers of mini-batches, and one of them none of the last rows.
        return model.evaluate(x[mine], y[mine], batchsize=4 + comm.rank), model.predict(x[mine], batchsize=3)

    results = run_threads(size, member)
    for measured, _ in results:
        assert measured == pytest.approx(expected, rel=1e-9)
    np.testing.assert_allclose(np.concatenate([likely for _, likely in results]), scores, rtol=1e-9)


def test_without_a_loss_the_output_of_the_last_layer_is_predicted():
    def build():
        net = [RecordInput(shape=[1, 12]), Convolution(num_filters=5, kernel_x=3, kernel_y=1)]
        return Model(net, partition_dim=1, dtype=np.float64)

    def member(comm):
        model = build()
        DistOpt(MOMENTUM, model, comm)
        return model.predict(x[own(comm)], batchsize=3)

    x, _ = batch(0)
    expected = build().predict(x)
    assert expected.shape == (ROWS, 1, 10, 5)
    np.testing.assert_allclose(np.concatenate(run_threads(3, member)), expected, rtol=1e-9)


@pytest.mark.parametrize(("first", "then"), [(1, 3), (3, 1), (2, 3)])
@pytest.mark.parametrize("build", [mlp, cnn])
def test_a_state_goes_from_any_number_of_ranks_to_any_other(build, first, then):
    values, state, _ = run_threads(first, trained, build, "full", MOMENTUM, 2)[0]
    expected, *_ = trained(SoloCommunicator(), build)

    def resumed(comm):
        model = build()
        opt = DistOpt(MOMENTUM, model, comm)
        model.load_state_dict(values)
        opt.load_state_dict(state)
        advance(model, opt, 2, STEPS)
        return model.state_dict()

    for result in run_threads(then, resumed):
        assert_close(result, expected)


@pytest.mark.parametrize(("first", "then"), [(0, 1), (1, 0)])
def test_residuals_survive_another_partition(first, then):
    """With a rate of zero, what was held back by then reaches the first step's gradients."""

    def member(comm):
        model = mlp(first)
        opt = DistOpt(SGD(lr=0.0), model, comm)
        advance(model, opt, 0, 1, "topk")
        state = opt.state_dict()
        model = mlp(then)
        opt = DistOpt(SGD(lr=1.0), model, comm)
        opt.load_state_dict(state)
        opt.load_state_dict(opt.state_dict())
        before = model.state_dict()
        x, y = batch(1)
        opt.backward_and_sparse_update(model(x[own(comm)], y[own(comm)]), 30, spars=1.0, topK=True)
        assert list(opt.state_dict()["residual"]) == [entry.name for entry in model.net.flat.entries]
        held_back = {name: state["residual"].get(name, 0) + state["owed"].get(name, 0) for name in before}
        return {name: before[name] - array for name, array in model.state_dict().items()}, held_back

    def alone(comm):
        model = mlp()
        opt = DistOpt(SGD(lr=1.0), model, comm)
        model.number = opt.step = 1
        before = model.state_dict()
        opt(model(*batch(1)))
        return {name: before[name] - array for name, array in model.state_dict().items()}

    (gradients,) = run_threads(1, alone)
    members = run_threads(2, member)
    late = {name: sum(held_back[name] for _, held_back in members) for name in gradients}
    assert any(np.abs(array).max() > 0.05 for array in late.values())
    for changes, _ in members:  # values travel in 16 bits
        assert_close(changes, {name: array + late[name] for name, array in gradients.items()}, atol=1e-3)


def test_no_rank_has_memory_for_what_others_own(monkeypatch):
    sizes, allocate = [], FlatParams.allocate

    def noted(flat, ops):
        sizes.append(flat.size)
        allocate(flat, ops)

    monkeypatch.setattr(FlatParams, "allocate", noted)
    run_threads(3, trained, mlp)
    partitioned, sizes[:] = max(sizes), []
    trained(SoloCommunicator(), mlp)
    assert 0 < partitioned < 0.5 * max(sizes)


@pytest.mark.parametrize("used", [0, 1])
def test_a_model_that_was_used_keeps_rank_0s_values(used):
    given = {name: array + 1 for name, array in cnn().state_dict().items()}

    def member(comm):
        model = cnn()
        if comm.rank == used:
            model.load_state_dict(given)
        DistOpt(MOMENTUM, model, comm)
        return model.state_dict()

    for values in run_threads(2, member):
        assert_close(values, given if used == 0 else cnn().state_dict(), rtol=0, atol=0)


def test_a_message_and_single_layers_say_how_to_partition():
    net = NetProto()
    net.CopyFrom(mlp(0)._proto)
    net.layer[1].partition_dim = 1

    def member(comm, options):
        model = Model(net, seed=3, dtype=np.float64, **options)
        opt = DistOpt(MOMENTUM, model, comm)
        advance(model, opt, 0, STEPS)
        return [entry.name for entry in model.net.own.entries], model.state_dict()

    expected, *_ = trained(SoloCommunicator(), mlp)
    for split, values in run_threads(2, member, {}):
        assert split == ["innerproduct1_weight", "innerproduct1_bias"]
        assert_close(values, expected)
    assert run_threads(2, member, {"partition_dim": 1})[0][0][-1] == "innerproduct2_weight"
    assert net.partition_dim == 0  # the caller's


@pytest.mark.parametrize(
    ("dim", "words"), [(2, r"must be 0 \(over the batch\) or 1 .* Received: 2"), ("features", "an integer")]
)
def test_a_partition_dim_that_is_none_is_refused(dim, words):
    with pytest.raises(ConfigError, match=f"partition_dim: .*{words}"):
        mlp(dim)


def relu_by_rows(dim):
    net = [RecordInput(shape=[12]), InnerProduct(num_output=7), ReLU(partition_dim=dim), SoftmaxLoss()]
    return Model(net, partition_dim=1)


@pytest.mark.parametrize(
    "build",
    [lambda rank: mlp(seed=rank), mlp, relu_by_rows, lambda rank: Model(layers(*[BatchNorm()] * rank))],
    ids=["seed", "partition", "layer", "parameters"],
)
def test_a_rank_with_another_model_is_named(build):
    with pytest.raises(ConfigError, match="rank 1 has a model of other parameters"):
        run_threads(2, lambda comm: DistOpt(MOMENTUM, build(comm.rank), comm))


def test_a_partitioned_model_is_that_of_its_ranks():
    def member(comm):
        model = mlp()
        DistOpt(MOMENTUM, model, comm)
        with pytest.raises(
            ConfigError, match=r"partitioned over 2 ranks already. Received: a DistOpt of 1.*state_dict"
        ):
            DistOpt(MOMENTUM, model, SoloCommunicator())
        with pytest.raises(CheckpointError, match=r"has shape \(12, 9\) in this net, but \(12, 8\)"):
            model.load_state_dict(model.state_dict() | {"innerproduct1_weight": np.zeros((12, 8))})
        DistOpt(Adam(lr=0.1), model, comm)  # another one of the same ranks
        if comm.rank == 0:
            model.evaluate(*batch(0))

    with pytest.raises(CommTimeout, match=r"partitioned: evaluate\(\) and predict\(\) are calls of all 2 ranks"):
        run_threads(2, member, timeout_s=0.5)
