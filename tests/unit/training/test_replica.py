"""Training by any number of workers equals training by one."""

import threading
import time
from contextlib import closing
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from google.protobuf import text_format
from support.one_machine import run_on_one_machine
from support.patient import Patient
from support.snapshots import snapshot
from support.started import STARTED, AtOnce

from singa_dask.comm import SoloCommunicator, run_members
from singa_dask.comm.threads import ThreadCommunicator, run_threads
from singa_dask.errors import CheckpointError, ClusterError, CommTimeout
from singa_dask.exchange import FullExchange, SharedExchange
from singa_dask.job import ClusterTopology
from singa_dask.job.job_pb2 import AlgProto, ClusterProto, JobProto, LayerType, Phase
from singa_dask.layers.context import Step
from singa_dask.layers.init import initial_value
from singa_dask.net import Batch
from singa_dask.net.flat import GroupLayout
from singa_dask.ops import get_ops
from singa_dask.server import LocalLink, Server
from singa_dask.server.messages import Coded
from singa_dask.training.placement import parameter_partition, server_plan
from singa_dask.training.replica import Replica

BATCH, STEPS = 22, 6
UPDATERS = {
    "SGD": "type: kSGD momentum: 0.9 weight_decay: 0.01",
    "Nesterov": "type: kNesterov momentum: 0.9 weight_decay: 0.01",
    "Adam": "type: kAdam weight_decay: 0.01",
    "AdamW": "type: kAdamW weight_decay: 0.01",
    "LAMB": "type: kLAMB weight_decay: 0.01",
}
CLOSE = {"rtol": 1e-5, "atol": 1e-7}
# Adam divides by a gradient's root mean square: where that is next to nothing, the rounding of it shows.
ROUNDED = {"rtol": 1e-5, "atol": 1e-6}
CLOSE_OF = dict.fromkeys(UPDATERS, CLOSE) | {"Adam": ROUNDED, "AdamW": ROUNDED, "LAMB": ROUNDED}
CODECS = {"kHalf": None, "kBFloat16": None, "kPartial": 0.25, "kTopK": 0.05}  # their sparsity
NET = """
name: "small" seed: 3
train_one_batch { alg: kBP }
cluster { nworkers_per_group: %(n)d nservers_per_group: %(slices)d }
updater { %(updater)s learning_rate { type: kStep base_lr: 0.05 step_conf { gamma: 0.5 change_freq: 4 } } }
neuralnet {
  layer { name: "data" type: kRecordInput store_conf { batchsize: 22 shape: 1 shape: 8 shape: 8 } }
  layer { name: "conv" type: kConvolution srclayers: "data" convolution_conf { num_filters: 5 kernel: 3 pad: 1 }
          param { lr_scale: 2 } param { wd_scale: 0 } }
  layer { name: "relu" type: kReLU srclayers: "conv" }
  layer { name: "pool" type: kPooling srclayers: "relu" pooling_conf { kernel: 2 stride: 2 } }
  layer { name: "drop" type: kDropout srclayers: "pool" dropout_conf { dropout_ratio: 0.3 } }
  layer { name: "ip" type: kInnerProduct srclayers: "drop" innerproduct_conf { num_output: 10 } }
  layer { name: "loss" type: kSoftmaxLoss srclayers: "ip" srclayers: "data" }
}
"""


def job_of(n, updater="SGD", slices=None, codec="", **cluster):
    job = text_format.Parse(NET % {"n": n, "slices": slices or n, "updater": UPDATERS[updater]}, JobProto())
    if codec:
        job.cluster.MergeFrom(ClusterProto(codec=codec, sparsity=CODECS[codec], bucket_size=150))
    job.cluster.MergeFrom(ClusterProto(**cluster))
    return job


def layer_of(job, name):
    return next(layer for layer in job.neuralnet.layer if layer.name == name)


def normalised(job, *params):
    """With batch normalisation in the place of the rectifier."""
    relu = layer_of(job, "relu")
    relu.ClearField("relu_conf")
    relu.type = LayerType.kBM
    for param in params:
        relu.param.add(**param)
    return job


def batch_of(number, rows=slice(None), scale=1):
    draw = np.random.default_rng(number)
    features, labels = draw.random((BATCH, 8, 8, 1), np.float32), draw.integers(0, 10, BATCH)
    return {"data": Batch(features[rows] * np.float32(scale), labels[rows])}


def advance(replica, first, last, scale=1):
    comm = replica.comm
    bounds = np.linspace(0, BATCH, comm.size + 1).astype(int)
    rows = slice(*bounds[comm.rank :][:2])
    for number in range(first, last):
        step = Step(Phase.kTrain, number, replica.job.seed, rows.start, BATCH)
        replica.train_step(batch_of(number, rows, scale), step)


def form(job, comm, links=None, precision=np.float32, **options):
    return Replica.form(job, comm, get_ops("cpu", precision), links, **options)


def begun(job, comm, steps, links=None, **options):
    replica = form(job, comm, links, **options)
    replica.group_state.initialise()
    replica.group_state.fetch()
    advance(replica, 0, steps)
    return replica


def restored(job, comm, saved, links=None, step=3, carry=True, **options):
    replica = form(job, comm, links, **options)
    replica.group_state.restore(saved, carry=carry)
    assert replica.group_state.fetch() == step
    return replica


def train(comm, job, links=None, precision=np.float32):
    return begun(job, comm, STEPS, links, precision=precision).net.flat.values.copy()


@cache
def serial(updater="SGD"):
    return train(SoloCommunicator(), job_of(1, updater))


@cache
def layout():
    flat = form(job_of(1), SoloCommunicator()).net.flat
    return GroupLayout(tuple(flat.entries), flat.size)


def links_of(job, link=LocalLink, groups=(0,)):
    """Links to servers elsewhere."""
    cut = parameter_partition(ClusterTopology.from_proto(job.cluster), layout(), job.updater)
    plans = [
        server_plan(job, layout().entries, cut.of_server(i), groups=groups)
        for i in range(job.cluster.nservers_per_group)
    ]
    return {i: link(Server(plan.protocol(get_ops("cpu")))) for i, plan in enumerate(plans)}


def placed(slices, parts):
    """All parameters, with these parts of these slices, by number."""
    whole = np.zeros(layout().total, np.float32)
    for i, part in parts.items():
        whole[slices[i].start : slices[i].stop] = part
    return whole


@pytest.mark.parametrize(
    ("run", "n", "slices"),
    [
        (run_threads, 2, 2),
        (run_threads, 3, 1),
        (run_threads, 3, 2),
        (run_threads, 4, 4),
        (run_on_one_machine, 2, 2),
        (run_on_one_machine, 3, 3),
    ],
)
@pytest.mark.parametrize("updater", UPDATERS)
def test_n_workers_equal_one(run, n, slices, updater):
    found = run(n, train, job_of(n, updater, slices))
    np.testing.assert_allclose(found[0], serial(updater), **CLOSE_OF[updater])
    for values in found:
        np.testing.assert_array_equal(values, found[0])
    if run is run_on_one_machine and n == 2:  # with more the sums run in another order
        np.testing.assert_array_equal(found[0], run_threads(2, train, job_of(2, updater))[0])


def test_in_double_precision_the_difference_is_rounding():
    alone, *_ = run_threads(1, train, job_of(1), None, np.float64)
    for values in run_threads(4, train, job_of(4), None, np.float64):
        np.testing.assert_allclose(values, alone, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(("among", "updater"), [("", "Adam"), ("normalised", "Adam"), ("", "LAMB")])
@pytest.mark.parametrize("size", [1, 100])
def test_buckets_of_any_size_give_the_same_bits(size, among, updater):
    job = job_of(3, updater, 2)
    if among == "normalised":  # its sums over the group come between the buckets of the backward pass
        normalised(job)
    whole = run_threads(3, train, job)
    job.cluster.bucket_size = size
    assert len(form(job, ThreadCommunicator.create(3)[0]).exchange.buckets) > 1
    for values, expected in zip(run_threads(3, train, job), whole, strict=True):
        np.testing.assert_array_equal(values, expected)


def test_buckets_travel_while_the_backward_pass_goes_on():
    job = job_of(2, bucket_size=16)
    job.neuralnet.layer.append(Patient("patient", "data").proto)
    layer_of(job, "conv").srclayers[:] = ["patient"]
    Patient.done = {0: threading.Event(), 11: threading.Event()}

    def member(comm):
        replica = begun(job, comm, 0)
        gather, event = replica.stages.gather, Patient.done[11 * comm.rank]

        def noted(bucket):
            gather(bucket)
            if bucket == 1:  # the last above the patient layer
                event.set()

        replica.stages.gather = noted
        advance(replica, 0, 1)
        replica.close()
        return len(replica.exchange.buckets)

    assert run_threads(2, member) == [5, 5]


@pytest.mark.parametrize("kind", STARTED)
@pytest.mark.parametrize("codec", ["", *CODECS])
def test_buckets_that_travel_while_others_are_updated_give_the_same_bits(codec, kind):
    job = job_of(3, codec=codec, bucket_size=16)
    expected = run_threads(3, train, job)
    comms = kind.create(3)
    for values, one_by_one in zip(run_members(comms, train, job), expected, strict=True):
        np.testing.assert_array_equal(values, one_by_one)
    assert kind is AtOnce or [(comm.most, comm.under_way) for comm in comms] == [(3, 0)] * 3


@pytest.mark.parametrize("slices", [1, 2, 3])
@pytest.mark.parametrize("size", [1, 150, 1000])
@pytest.mark.parametrize("codec", CODECS)
def test_a_codec_suits_every_layout(codec, size, slices):
    """Workers without a run, and buckets smaller than a worker each."""
    received = run_threads(3, train, job_of(3, slices=slices, codec=codec, bucket_size=size))
    for values in received:
        np.testing.assert_array_equal(values, received[0])
        assert np.isfinite(values).all()


def test_running_statistics_are_as_exact_as_ever():
    frozen = {"lr_scale": 0, "wd_scale": 0}  # neither scale nor bias learns, nor what is below

    def statistics(comm, codec):
        job = normalised(job_of(3, codec=codec), frozen, frozen)
        for param in layer_of(job, "conv").param:
            param.lr_scale = param.wd_scale = 0
        named = begun(job, comm, 30).net.named_params
        return np.concatenate([named[f"relu_{role}"].value for role in ("mean", "var")])

    full, found = (run_threads(3, statistics, codec) for codec in ("", "kTopK"))
    np.testing.assert_allclose(found, full, **CLOSE)


def test_the_residuals_of_eleven_workers_find_their_way_back():
    job = job_of(11, codec="kTopK")

    def member(comm):
        one = begun(job, comm, 2)
        saved, other = snapshot(one, 2), form(job, comm)
        broadcast = comm.nbytes["broadcast"]
        other.group_state.restore(saved)
        broadcast = comm.nbytes["broadcast"] - broadcast
        other.group_state.fetch()
        return one.exchange.residual, other.exchange.residual, broadcast

    for before, after, broadcast in run_threads(11, member):
        assert before.any()
        np.testing.assert_array_equal(after, before)
        assert broadcast < 5 * before.nbytes  # each gets its own, not everybody's


@pytest.mark.parametrize("carry", [True, False])
def test_what_was_kept_back_is_the_first_groups_as_long_as_the_servers_wait_for_it(carry):
    job = job_of(2, codec="kTopK")
    links = links_of(job)

    def member(comm):
        one = begun(job, comm, 2, links)
        saved = snapshot(one, 2)
        advance(one, 2, 4)  # the checkpoint comes too late
        other = restored(job, comm, saved, links, step=4, carry=carry, generation=1)
        return placed(one.stub.slices, {i: one.stub.inspect(i).values for i in range(len(one.stub.slices))}), other

    found = run_threads(2, member)
    for _, other in found:
        assert not other.exchange.residual.any()
        np.testing.assert_array_equal(other.net.flat.values, sum(exact for exact, _ in found))


@pytest.mark.parametrize("staleness", [None, 0])
def test_who_owns_no_slice_waits_as_long_as_a_server_may_hold_the_owner_back(staleness):
    job = job_of(2, slices=1, nworker_groups=2, max_staleness=staleness)
    links = links_of(job)

    def member(comm):
        replica = begun(job, comm, 1, links)  # what there is to compile is compiled
        if replica.stub.slices:  # another group is late
            pull = replica.stub.pull
            replica.stub.pull = lambda *args, **options: (time.sleep(0.9), pull(*args, **options))
        comm.timeout_s = 0.4
        advance(replica, 1, 2)
        return bool(replica.stub.slices)

    if staleness is None:
        with pytest.raises(CommTimeout):
            run_threads(2, member)
    else:
        assert sorted(run_threads(2, member)) == [False, True]


@pytest.mark.parametrize(
    ("run", "beside", "job"),
    [
        *((run_threads, True, job_of(3, updater)) for updater in UPDATERS),
        *((run_threads, beside, job_of(3, codec=codec)) for codec in CODECS for beside in (True, False)),
        *((run_on_one_machine, beside, job_of(3, bucket_size=300)) for beside in (True, False)),
    ],
)
def test_stop_and_go_on_is_bit_identical(run, beside, job):
    def interrupted(comm, first, second):
        saved = snapshot(begun(job, comm, 3, first), 3)
        replica = restored(job, comm, saved, second)
        advance(replica, 3, STEPS)
        return replica.net.flat.values.copy()

    links = [None if beside else links_of(job) for _ in range(3)]
    for values, whole in zip(run(3, interrupted, *links[:2]), run(3, train, job, links[2]), strict=True):
        np.testing.assert_array_equal(values, whole)


def test_a_snapshot_of_three_workers_goes_on_with_one_that_has_the_same_updater():
    saved = run_threads(3, lambda comm: snapshot(begun(job_of(3, "Adam"), comm, 3), 3))[0]
    replica = restored(job_of(1, "Adam"), SoloCommunicator(), saved)
    advance(replica, 3, STEPS)
    np.testing.assert_allclose(replica.net.flat.values, serial("Adam"), **CLOSE_OF["Adam"])
    with pytest.raises(CheckpointError, match="updater"):
        restored(job_of(1), SoloCommunicator(), saved)


def test_residuals_of_another_number_of_workers_are_paid():
    def half(comm):
        replica = begun(job_of(3, codec="kTopK"), comm, 3)
        return replica.exchange.residual, snapshot(replica, 3)

    found = run_threads(3, half)
    total, saved = sum(residual for residual, _ in found), found[0][1]
    solo, job = SoloCommunicator(), job_of(1)
    alone, other = restored(job, solo, saved), restored(job, solo, replace(saved, residuals={}))
    np.testing.assert_allclose(alone.stages.owed, total, rtol=1e-6, atol=1e-9)
    for replica in (alone, other):
        advance(replica, 3, 4)
    # One step of SGD with momentum .9 at rate .05: what was owed has been paid.
    weights = alone.net.flat.entries[-2]
    where, rate = slice(weights.start, weights.stop), 0.05
    paid = (other.net.flat.values - alone.net.flat.values)[where]
    np.testing.assert_allclose(paid, rate * total[where], rtol=1e-3, atol=1e-6)
    assert alone.stages.owed is None


class FarLink:
    """To a server that is elsewhere, as far as the worker knows: it decodes what has travelled."""

    local = False

    def __init__(self, server):
        self._server = server

    def send(self, request, out=None):
        gradient = getattr(request, "gradient", None)
        if isinstance(gradient, Coded):
            request = replace(request, gradient=gradient.decoded())
        return self._server.call(request, out)


@pytest.mark.parametrize("far", [False, True])
def test_what_pushes_to_servers_kept_back_is_paid_as_part_of_the_next_gradient(far):
    """Where nothing is coded any more all of it, with its own sign; where pushes still are, they keep it."""
    job = job_of(2, codec="kTopK")

    def half(comm, links):
        replica = begun(job, comm, 3, links)
        pushes = placed(replica.stub.slices, replica.stub.residual)
        return replica.exchange.residual.copy(), pushes, snapshot(replica, 3)

    found = run_threads(2, half, links_of(job, FarLink))
    residual, pushes = (sum(one[i] for one in found) for i in (0, 1))
    assert residual.any() and pushes.any()

    def owed(comm, links):
        other = restored(job if far else job_of(2), comm, None if comm.rank else found[0][2], links)
        kept = placed(other.stub.slices, other.stub.residual)
        return 0 if other.stages.owed is None else other.stages.owed, kept

    owing = run_threads(2, owed, links_of(job, FarLink) if far else None)
    np.testing.assert_array_equal(sum(kept for _, kept in owing), pushes if far else 0)
    expected = 0 if far else residual + pushes
    np.testing.assert_allclose(sum(owed for owed, _ in owing), expected, rtol=1e-6, atol=1e-9)


def test_values_that_a_codec_cannot_hold_are_counted_on_both_ways():
    job = job_of(2, codec="kHalf")
    job.updater.learning_rate.base_lr = 1e-12

    def member(comm, links):
        replica = begun(job, comm, 0, links)
        before = replica.overflows
        advance(replica, 0, 1, scale=1e9)
        return before, replica.exchange.overflows, replica.stub.overflows, replica.overflows

    for before, inside, to_servers, both in run_threads(2, member, links_of(job, FarLink)):
        assert before == 0 < inside and to_servers > 0 and both == inside + to_servers


def test_after_draining_parameters_are_the_servers_and_nothing_is_under_way():
    job = job_of(2, nworker_groups=2, one_behind=True)
    links = links_of(job, FarLink, groups=(0, 1))

    def member(comm):
        replica = begun(job, comm, 3, links)
        behind = replica.net.flat.values.copy()
        replica.drain()
        held = {i: replica.stub.inspect(i).values for i in range(len(replica.stub.slices))}
        return behind, replica.net.flat.values, placed(replica.stub.slices, held), len(replica.stub._under_way)

    found = run_threads(2, member)
    for behind, drained, _, under_way in found:
        assert under_way == 0 and not np.array_equal(behind, drained)
        np.testing.assert_array_equal(drained, sum(held for _, _, held, _ in found))


def test_an_error_in_the_exchange_ends_the_step_on_all_ranks():
    def member(comm):
        replica = begun(job_of(3, bucket_size=16), comm, 0)
        update = replica.stages.update

        def failing(bucket):
            if comm.rank == 1 and bucket == 2:
                raise MemoryError("of the exchange")
            update(bucket)

        replica.stages.update = failing
        with closing(replica), pytest.raises(Exception, match="of the exchange") as caught:
            advance(replica, 0, 1)
        return caught.type

    assert run_threads(3, member) == [ClusterError, MemoryError, ClusterError]


def test_workers_that_share_memory_have_one_bucket_and_count_what_they_would_send():
    def member(comm):
        replica = begun(job_of(2, bucket_size=16), comm, STEPS)
        return len(replica.exchange.buckets), {name: done["bytes"] for name, done in replica.operations.items()}

    for (buckets, shared), (several, sent) in zip(run_on_one_machine(2, member), run_threads(2, member), strict=True):
        assert buckets == 1 < several
        for name in ("reduce_scatter", "all_gather"):
            assert shared[name] == pytest.approx(sent[name], rel=0.05)  # cut elsewhere


def test_an_algorithm_of_ones_own_computes_on_copies():
    job = job_of(2)
    for exchange, alg in (
        (SharedExchange, {}),
        (FullExchange, {"alg": "kUserAlg", "user_alg": "singa_dask.algorithms.bp:BP"}),
    ):
        job.train_one_batch.MergeFrom(AlgProto(**alg))
        assert run_on_one_machine(2, lambda comm: type(form(job, comm).exchange)) == [exchange] * 2


def test_the_first_workers_given_parameters_reach_all_that_share_memory():
    def member(comm):
        replica = form(job_of(3), comm)
        given = {param.name: initial_value(param, 5) + 7 for param in replica.net.params}
        replica.group_state.initialise(given if comm.rank == 0 else None)
        return replica.net.flat.flattened(given), replica.net.flat.values.copy()

    for given, values in run_on_one_machine(3, member):
        np.testing.assert_array_equal(values, given)


def test_buckets_go_in_one_order_in_whatever_order_they_are_told():
    def member(comm):
        replica = begun(job_of(2, bucket_size=16), comm, 0)
        inner = replica.algorithm.train_one_batch

        def shuffled(net, feed, step, on_gradient):
            metrics = inner(net, feed, step)
            for param in net.params[:: 1 if comm.rank else -1] if on_gradient else ():
                on_gradient(param)
            return metrics

        replica.algorithm.train_one_batch = shuffled
        advance(replica, 0, STEPS)
        return replica.net.flat.values

    for values, wanted in zip(run_threads(2, member), run_threads(2, train, job_of(2)), strict=True):
        np.testing.assert_array_equal(values, wanted)
