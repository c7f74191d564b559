"""Training by any number of workers equals training by one."""

import threading
import time
from dataclasses import replace

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
from singa_dask.job.job_pb2 import ClusterProto, JobProto, LayerType, Phase
from singa_dask.layers.context import Step
from singa_dask.net import Batch
from singa_dask.net.flat import GroupLayout
from singa_dask.net.init import initial_value
from singa_dask.ops import get_ops
from singa_dask.server import LocalLink, Server
from singa_dask.server.messages import Coded, Inspect
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


def job_of(n, updater, slices=None):
    return text_format.Parse(NET % {"n": n, "slices": slices or n, "updater": UPDATERS[updater]}, JobProto())


def batch_of(number):
    draw = np.random.default_rng(number)
    return draw.random((BATCH, 8, 8, 1), np.float32), draw.integers(0, 10, BATCH)


def advance(replica, comm, first, last):
    bounds = np.linspace(0, BATCH, comm.size + 1).astype(int)
    low, high = bounds[comm.rank], bounds[comm.rank + 1]
    for number in range(first, last):
        features, labels = batch_of(number)
        feed = {"data": Batch(features[low:high], labels[low:high])}
        replica.train_step(feed, Step(Phase.kTrain, number, replica.job.seed, low, BATCH))


def train(comm, job, precision=np.float32):
    replica = Replica.form(job, comm, get_ops("cpu", precision))
    replica.group_state.initialise()
    advance(replica, comm, 0, STEPS)
    return replica.net.flat.values


@pytest.mark.parametrize("updater", UPDATERS)
@pytest.mark.parametrize("n", [2, 3, 4])
def test_n_workers_equal_one(n, updater):
    serial = train(SoloCommunicator(), job_of(1, updater))
    for values in run_threads(n, train, job_of(n, updater)):
        np.testing.assert_allclose(values, serial, **CLOSE_OF[updater])


@pytest.mark.parametrize("updater", ["Adam", "LAMB"])
@pytest.mark.parametrize("slices", [1, 2])
def test_fewer_servers_than_workers_equal_one(slices, updater):
    serial = train(SoloCommunicator(), job_of(1, updater))
    for values in run_threads(3, train, job_of(3, updater, slices)):
        np.testing.assert_allclose(values, serial, **CLOSE_OF[updater])


@pytest.mark.parametrize(("normalised", "updater"), [(False, "Adam"), (True, "Adam"), (False, "LAMB")])
@pytest.mark.parametrize("size", [1, 100])
def test_buckets_of_any_size_give_the_same_bits(size, normalised, updater):
    job = job_of(3, updater, 2)
    if normalised:  # its sums over the group come between the buckets of the backward pass
        relu = next(layer for layer in job.neuralnet.layer if layer.name == "relu")
        relu.ClearField("relu_conf")
        relu.type = LayerType.kBM
    whole = run_threads(3, train, job)
    job.cluster.bucket_size = size
    assert len(Replica.form(job, ThreadCommunicator.create(3)[0], get_ops("cpu")).exchange.buckets) > 1
    for values, expected in zip(run_threads(3, train, job), whole, strict=True):
        np.testing.assert_array_equal(values, expected)


def test_buckets_travel_while_the_backward_pass_goes_on():
    job = job_of(2, "SGD")
    job.cluster.bucket_size = 16
    patient = Patient("patient", "data").proto
    job.neuralnet.layer.append(patient)
    next(layer for layer in job.neuralnet.layer if layer.name == "conv").srclayers[:] = ["patient"]
    Patient.done = {0: threading.Event(), 11: threading.Event()}

    def member(comm):
        replica = Replica.form(job, comm, get_ops("cpu"))
        replica.group_state.initialise()
        gather, event = replica.stages.gather, Patient.done[11 * comm.rank]

        def noted(bucket):
            gather(bucket)
            if bucket == 1:  # the last above the patient layer
                event.set()

        replica.stages.gather = noted
        advance(replica, comm, 0, 1)
        replica.close()
        return len(replica.exchange.buckets)

    assert run_threads(2, member) == [5, 5]


CODECS = {
    "kHalf": (None, 0.5, 2e-3),
    "kBFloat16": (None, 0.5, 2e-2),
    "kPartial": (0.25, 0.3, 1.0),
    "kTopK": (0.05, 0.11, 1.0),
}


def coded(job, name, size=150):
    job.cluster.codec = ClusterProto.Codec.Value(name)
    if CODECS[name][0] is not None:
        job.cluster.sparsity = CODECS[name][0]
    job.cluster.bucket_size = size
    return job


@pytest.mark.parametrize("kind", STARTED)
@pytest.mark.parametrize("name", ["kFull", *CODECS])
def test_buckets_that_travel_while_others_are_updated_give_the_same_bits(name, kind):
    job = job_of(3, "SGD")
    job.cluster.bucket_size = 16
    if name != "kFull":
        coded(job, name, 16)
    expected = run_threads(3, train, job)
    comms = kind.create(3)
    for values, one_by_one in zip(run_members(comms, train, job), expected, strict=True):
        np.testing.assert_array_equal(values, one_by_one)
    assert kind is AtOnce or [(comm.most, comm.under_way) for comm in comms] == [(3, 0)] * 3


def measured(comm, job, steps=STEPS):
    """Values after training, and the bytes of the exchange of one step."""
    replica = Replica.form(job, comm, get_ops("cpu"))
    replica.group_state.initialise()
    advance(replica, comm, 0, steps - 1)
    before = sum(comm.nbytes.values())
    advance(replica, comm, steps - 1, steps)
    return replica.net.flat.values.copy(), sum(comm.nbytes.values()) - before


@pytest.mark.parametrize("slices", [1, 2, 3])
@pytest.mark.parametrize("size", [1, 150, 1000])
@pytest.mark.parametrize("name", CODECS)
def test_a_codec_suits_every_layout(name, size, slices):
    """Workers without a run, and buckets smaller than a worker each."""
    received = run_threads(3, train, coded(job_of(3, "SGD", slices), name, size))
    for values in received:
        np.testing.assert_array_equal(values, received[0])
        assert np.isfinite(values).all()


def test_running_statistics_are_as_exact_as_ever():
    def normalised(job):
        relu = next(layer for layer in job.neuralnet.layer if layer.name == "relu")
        relu.ClearField("relu_conf")
        relu.type = LayerType.kBM
        for _ in range(2):  # neither scale nor bias learns, nor what is below
            relu.param.add(lr_scale=0, wd_scale=0)
        conv = next(layer for layer in job.neuralnet.layer if layer.name == "conv")
        for param in conv.param:
            param.lr_scale = param.wd_scale = 0
        return job

    def statistics(comm, job):
        replica = Replica.form(job, comm, get_ops("cpu"))
        replica.group_state.initialise()
        advance(replica, comm, 0, 30)
        named = replica.net.named_params
        return np.concatenate([named[f"relu_{role}"].value for role in ("mean", "var")])

    full = run_threads(3, statistics, normalised(job_of(3, "SGD")))
    for values, expected in zip(
        run_threads(3, statistics, coded(normalised(job_of(3, "SGD")), "kTopK")), full, strict=True
    ):
        np.testing.assert_allclose(values, expected, **CLOSE)


def test_the_residuals_of_eleven_workers_find_their_way_back():
    job = coded(job_of(11, "SGD"), "kTopK")

    def member(comm):
        one = Replica.form(job, comm, get_ops("cpu"))
        one.group_state.initialise()
        advance(one, comm, 0, 2)
        saved = snapshot(one, 2)
        other = Replica.form(job, comm, get_ops("cpu"))
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
    job = coded(job_of(2, "SGD"), "kTopK")
    cut = _cut_of(job)
    plans = [server_plan(job, _entries(), cut.of_server(i)) for i in range(2)]
    links = {i: LocalLink(Server(plan.protocol(get_ops("cpu")))) for i, plan in enumerate(plans)}

    def member(comm):
        one = Replica.form(job, comm, get_ops("cpu"), links)
        one.group_state.initialise()
        one.group_state.fetch()
        advance(one, comm, 0, 2)
        saved = snapshot(one, 2)
        advance(one, comm, 2, 4)
        other = Replica.form(job, comm, get_ops("cpu"), links, generation=1)
        other.group_state.restore(saved, carry=carry)  # too late: the servers are at step 4
        assert other.group_state.fetch() == 4
        return [(s, one.stub.inspect(i).values) for i, s in enumerate(one.stub.slices)], other

    found = run_threads(2, member)
    exact = np.empty(_size(), np.float32)
    for held, _ in found:
        for s, values in held:
            exact[s.start : s.stop] = values
    for _, other in found:
        assert not other.exchange.residual.any()
        np.testing.assert_array_equal(other.net.flat.values, exact)


@pytest.mark.parametrize("staleness", [None, 0])
def test_who_owns_no_slice_waits_as_long_as_a_server_may_hold_the_owner_back(staleness):
    job = job_of(2, "SGD", slices=1)
    job.cluster.nworker_groups = 2
    if staleness is not None:
        job.cluster.max_staleness = staleness
    cut = _cut_of(job)
    links = {0: LocalLink(Server(server_plan(job, _entries(), cut.of_server(0)).protocol(get_ops("cpu"))))}

    def member(comm):
        replica = Replica.form(job, comm, get_ops("cpu"), links)
        replica.group_state.initialise()
        replica.group_state.fetch()
        advance(replica, comm, 0, 1)  # what there is to compile is compiled
        if replica.stub.slices:  # another group is late
            pull = replica.stub.pull
            replica.stub.pull = lambda *args, **options: (time.sleep(0.9), pull(*args, **options))
        comm.timeout_s = 0.4
        advance(replica, comm, 1, 2)
        return bool(replica.stub.slices)

    if staleness is None:
        with pytest.raises(CommTimeout):
            run_threads(2, member)
    else:
        assert sorted(run_threads(2, member)) == [False, True]


def _flat():
    return Replica.form(job_of(1, "SGD"), SoloCommunicator(), get_ops("cpu")).net.flat


def _cut_of(job):
    layout = GroupLayout(_entries(), _size())
    return parameter_partition(ClusterTopology.from_proto(job.cluster), layout, job.updater)


def _entries():
    return tuple(_flat().entries)


def _size():
    return _flat().size


@pytest.mark.parametrize("name", CODECS)
def test_a_codec_saves_bytes_and_all_workers_have_the_same_values(name):
    full = run_threads(3, measured, job_of(3, "SGD"))
    _, share, tolerance = CODECS[name]
    received = run_threads(3, measured, coded(job_of(3, "SGD"), name))
    for (values, nbytes), (_, of_full) in zip(received, full, strict=True):
        np.testing.assert_array_equal(values, received[0][0])
        assert nbytes <= share * of_full
        scale = np.abs(full[0][0]).max()
        assert np.abs(values - full[0][0]).max() <= tolerance * scale


@pytest.mark.parametrize("beside", [True, False])
@pytest.mark.parametrize("name", CODECS)
def test_with_a_codec_stop_and_go_on_is_bit_identical(name, beside):
    job = coded(job_of(3, "SGD"), name)

    def links():
        if beside:
            return [None] * 3
        cut = parameter_partition(ClusterTopology.from_proto(job.cluster), GroupLayout(entries, size), job.updater)
        held = {i: Server(server_plan(job, entries, cut.of_server(i)).protocol(get_ops("cpu"))) for i in range(3)}
        return [{i: LocalLink(server) for i, server in held.items()}] * 3

    flat = Replica.form(job_of(1, "SGD"), SoloCommunicator(), get_ops("cpu")).net.flat
    entries, size = tuple(flat.entries), flat.size

    def interrupted(comm, first, second):
        one = Replica.form(job, comm, get_ops("cpu"), first[comm.rank])
        one.group_state.initialise()
        one.group_state.fetch()
        advance(one, comm, 0, 3)
        saved = snapshot(one, 3)
        other = Replica.form(job, comm, get_ops("cpu"), second[comm.rank])
        other.group_state.restore(saved)
        assert other.group_state.fetch() == 3
        advance(other, comm, 3, STEPS)
        return other.net.flat.values

    def whole(comm, first):
        replica = Replica.form(job, comm, get_ops("cpu"), first[comm.rank])
        replica.group_state.initialise()
        replica.group_state.fetch()
        advance(replica, comm, 0, STEPS)
        return replica.net.flat.values

    expected = run_threads(3, whole, links())
    for values, wanted in zip(run_threads(3, interrupted, links(), links()), expected, strict=True):
        np.testing.assert_array_equal(values, wanted)


def test_residuals_of_another_number_of_workers_are_not_lost():
    job = coded(job_of(3, "SGD"), "kTopK")

    def half(comm):
        replica = Replica.form(job, comm, get_ops("cpu"))
        replica.group_state.initialise()
        advance(replica, comm, 0, 3)
        residual = replica.exchange.residual
        return residual, snapshot(replica, 3)

    found = run_threads(3, half)
    total, saved = sum(residual for residual, _ in found), found[0][1]

    def restored(comm):
        replica = Replica.form(coded(job_of(2, "SGD"), "kTopK"), comm, get_ops("cpu"))
        replica.group_state.restore(saved if comm.rank == 0 else None)
        replica.group_state.fetch()
        return replica.exchange.residual + (0 if replica.stages.owed is None else replica.stages.owed)

    first, second = run_threads(2, restored)
    np.testing.assert_allclose(first, total, rtol=1e-6, atol=1e-9)
    assert not second.any()

    alone = Replica.form(job_of(1, "SGD"), SoloCommunicator(), get_ops("cpu"))
    alone.group_state.restore(saved)
    alone.group_state.fetch()
    np.testing.assert_allclose(alone.stages.owed, total, rtol=1e-6, atol=1e-9)
    other = Replica.form(job_of(1, "SGD"), SoloCommunicator(), get_ops("cpu"))
    other.group_state.restore(replace(saved, residuals={}))
    other.group_state.fetch()
    for replica in (alone, other):
        advance(replica, SoloCommunicator(), 3, 4)
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


def far_links(job, groups=(0,)):
    cut = _cut_of(job)
    servers = range(job.cluster.nservers_per_group)
    plans = [server_plan(job, _entries(), cut.of_server(i), groups=groups) for i in servers]
    return {i: FarLink(Server(plan.protocol(get_ops("cpu")))) for i, plan in enumerate(plans)}


@pytest.mark.parametrize("far", [False, True])
def test_what_pushes_to_servers_kept_back_is_paid_as_part_of_the_next_gradient(far):
    """Where nothing is coded any more all of it, with its own sign; where pushes still are, they keep it."""
    job = coded(job_of(2, "SGD"), "kTopK")

    def half(comm, links):
        replica = Replica.form(job, comm, get_ops("cpu"), links)
        replica.group_state.initialise()
        replica.group_state.fetch()
        advance(replica, comm, 0, 3)
        pushes = np.zeros(_size(), np.float32)
        for i, part in replica.stub.residual.items():
            s = replica.stub.slices[i]
            pushes[s.start : s.stop] = part
        return replica.exchange.residual.copy(), pushes, snapshot(replica, 3)

    found = run_threads(2, half, far_links(job))
    residual, pushes = (sum(one[i] for one in found) for i in (0, 1))
    saved = found[0][2]
    assert residual.any() and pushes.any()

    def owed(comm, links):
        other = Replica.form(job if far else job_of(2, "SGD"), comm, get_ops("cpu"), links)
        other.group_state.restore(saved if comm.rank == 0 else None)
        other.group_state.fetch()
        kept = np.zeros(_size(), np.float32)
        for i, part in other.stub.residual.items():
            s = other.stub.slices[i]
            kept[s.start : s.stop] = part
        return 0 if other.stages.owed is None else other.stages.owed, kept

    found = run_threads(2, owed, far_links(job) if far else None)
    np.testing.assert_array_equal(sum(kept for _, kept in found), pushes if far else 0)
    expected = 0 if far else residual + pushes
    np.testing.assert_allclose(sum(owed for owed, _ in found), expected, rtol=1e-6, atol=1e-9)


def test_values_that_a_codec_cannot_hold_are_counted_on_both_ways():
    job = coded(job_of(2, "SGD"), "kHalf")
    job.updater.learning_rate.base_lr = 1e-12

    def member(comm, links):
        replica = Replica.form(job, comm, get_ops("cpu"), links)
        replica.group_state.initialise()
        replica.group_state.fetch()
        before = replica.overflows
        features, labels = batch_of(0)
        rows = slice(11 * comm.rank, 11 * comm.rank + 11)
        feed = {"data": Batch(features[rows] * np.float32(1e9), labels[rows])}
        replica.train_step(feed, Step(Phase.kTrain, 0, job.seed, rows.start, BATCH))
        return before, replica.exchange.overflows, replica.stub.overflows, replica.overflows

    for before, inside, to_servers, both in run_threads(2, member, far_links(job)):
        assert before == 0 < inside and to_servers > 0 and both == inside + to_servers


def test_after_draining_parameters_are_the_servers_and_nothing_is_under_way():
    job = job_of(2, "SGD")
    job.cluster.nworker_groups, job.cluster.one_behind = 2, True
    links = far_links(job, groups=(0, 1))

    def member(comm):
        replica = Replica.form(job, comm, get_ops("cpu"), links)
        replica.group_state.initialise()
        replica.group_state.fetch()
        advance(replica, comm, 0, 3)
        behind = replica.net.flat.values.copy()
        replica.drain()
        under_way = len(replica.stub._under_way)
        held = np.empty(_size(), np.float32)
        for link in links.values():
            for index in link._server.protocol.slices:
                state = link.send(Inspect(index)).result(1)
                s = next(s for s in cut.slices if s.index == index)
                held[s.start : s.stop] = state.values
        comm.barrier()
        return behind, replica.net.flat.values, held, under_way

    cut = _cut_of(job)
    for behind, drained, held, under_way in run_threads(2, member):
        assert under_way == 0 and not np.array_equal(behind, drained)
        np.testing.assert_array_equal(drained, held)


def test_an_error_in_the_exchange_ends_the_step_on_all_ranks():
    job = job_of(3, "SGD")
    job.cluster.bucket_size = 16

    def member(comm):
        replica = Replica.form(job, comm, get_ops("cpu"))
        replica.group_state.initialise()
        update = replica.stages.update

        def failing(bucket):
            if comm.rank == 1 and bucket == 2:
                raise MemoryError("of the exchange")
            update(bucket)

        replica.stages.update = failing
        try:
            advance(replica, comm, 0, 1)
        except BaseException as error:
            return type(error), str(error)
        finally:
            replica.close()

    found = run_threads(3, member)
    assert found[1] == (MemoryError, "of the exchange")
    for kind, message in (found[0], found[2]):
        assert kind is ClusterError
        assert "MemoryError: of the exchange" in message


@pytest.mark.parametrize("updater", UPDATERS)
@pytest.mark.parametrize("n", [2, 3])
def test_workers_that_share_memory_equal_one(n, updater):
    serial = train(SoloCommunicator(), job_of(1, updater))
    found = run_on_one_machine(n, train, job_of(n, updater))
    np.testing.assert_allclose(found[0], serial, **CLOSE_OF[updater])
    for values in found:
        np.testing.assert_array_equal(values, found[0])
    if n == 2:  # with more the sums run in another order
        np.testing.assert_array_equal(found[0], run_threads(2, train, job_of(2, updater))[0])


def test_workers_that_share_memory_have_one_bucket_and_count_what_they_would_send():
    job = job_of(2, "SGD")
    job.cluster.bucket_size = 16

    def member(comm):
        replica = Replica.form(job, comm, get_ops("cpu"))
        replica.group_state.initialise()
        advance(replica, comm, 0, STEPS)
        return len(replica.exchange.buckets), {name: done["bytes"] for name, done in replica.operations.items()}

    for (buckets, shared), (several, sent) in zip(run_on_one_machine(2, member), run_threads(2, member), strict=True):
        assert buckets == 1 < several
        assert shared["reduce_scatter"] == pytest.approx(sent["reduce_scatter"], rel=0.05)  # cut elsewhere
        assert shared["all_gather"] == pytest.approx(sent["all_gather"], rel=0.05)


def test_an_algorithm_of_ones_own_computes_on_copies():
    job = job_of(2, "SGD")
    shared = run_on_one_machine(2, lambda comm: type(Replica.form(job, comm, get_ops("cpu")).exchange))
    job.train_one_batch.alg = job.train_one_batch.kUserAlg
    job.train_one_batch.user_alg = "singa_dask.algorithms.bp:BP"
    copies = run_on_one_machine(2, lambda comm: type(Replica.form(job, comm, get_ops("cpu")).exchange))
    assert (shared, copies) == ([SharedExchange] * 2, [FullExchange] * 2)


@pytest.mark.parametrize("beside", [True, False])
def test_workers_that_share_memory_stop_and_go_on_with_the_same_bits(beside):
    job = job_of(3, "SGD")
    job.cluster.bucket_size = 300

    def links():
        if beside:
            return None
        cut = parameter_partition(
            ClusterTopology.from_proto(job.cluster), GroupLayout(_entries(), _size()), job.updater
        )
        plans = [server_plan(job, _entries(), cut.of_server(i)) for i in range(3)]
        return {i: LocalLink(Server(plan.protocol(get_ops("cpu")))) for i, plan in enumerate(plans)}

    def whole(comm, first):
        replica = Replica.form(job, comm, get_ops("cpu"), first)
        replica.group_state.initialise()
        replica.group_state.fetch()
        advance(replica, comm, 0, STEPS)
        return replica.net.flat.values.copy()

    def interrupted(comm, first, second):
        one = Replica.form(job, comm, get_ops("cpu"), first)
        one.group_state.initialise()
        one.group_state.fetch()
        advance(one, comm, 0, 3)
        saved = snapshot(one, 3)
        other = Replica.form(job, comm, get_ops("cpu"), second)
        other.group_state.restore(saved)
        assert other.group_state.fetch() == 3
        advance(other, comm, 3, STEPS)
        return other.net.flat.values.copy()

    expected = run_on_one_machine(3, whole, links())
    for values in run_on_one_machine(3, interrupted, links(), links()):
        np.testing.assert_array_equal(values, expected[0])


def test_the_first_workers_given_parameters_reach_all_that_share_memory():
    def member(comm):
        replica = Replica.form(job_of(3, "SGD"), comm, get_ops("cpu"))
        given = {param.name: initial_value(param, 5) + 7 for param in replica.net.params}
        replica.group_state.initialise(given if comm.rank == 0 else None)
        return replica.net.flat.flattened(given), replica.net.flat.values.copy()

    for given, values in run_on_one_machine(3, member):
        np.testing.assert_array_equal(values, given)


def test_buckets_go_in_one_order_in_whatever_order_they_are_told():
    job = job_of(2, "SGD")
    expected = run_threads(2, train, job)
    job.cluster.bucket_size = 16

    def member(comm):
        replica = Replica.form(job, comm, get_ops("cpu"))
        replica.group_state.initialise()
        inner = replica.algorithm.train_one_batch

        def shuffled(net, feed, step, on_gradient):
            metrics = inner(net, feed, step)
            if on_gradient is not None:
                for param in net.params[:: 1 if comm.rank else -1]:
                    on_gradient(param)
            return metrics

        replica.algorithm.train_one_batch = shuffled
        advance(replica, comm, 0, STEPS)
        return replica.net.flat.values

    for values, wanted in zip(run_threads(2, member), expected, strict=True):
        np.testing.assert_array_equal(values, wanted)


def test_in_double_precision_the_difference_is_rounding():
    serial = train(SoloCommunicator(), job_of(1, "SGD"), np.float64)
    for values in run_threads(4, train, job_of(4, "SGD"), np.float64):
        np.testing.assert_allclose(values, serial, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("updater", UPDATERS)
def test_stop_and_go_on_is_bit_identical(updater):
    def interrupted(comm, job):
        first = Replica.form(job, comm, get_ops("cpu"))
        first.group_state.initialise()
        advance(first, comm, 0, 3)
        saved = snapshot(first, 3)
        second = Replica.form(job, comm, get_ops("cpu"))
        second.group_state.restore(saved)
        advance(second, comm, 3, STEPS)
        return second.net.flat.values

    job = job_of(3, updater)
    for values, whole in zip(run_threads(3, interrupted, job), run_threads(3, train, job), strict=True):
        np.testing.assert_array_equal(values, whole)


def test_a_snapshot_of_three_workers_goes_on_with_one():
    def half(comm):
        replica = Replica.form(job_of(3, "Adam"), comm, get_ops("cpu"))
        replica.group_state.initialise()
        advance(replica, comm, 0, 3)
        return snapshot(replica, 3)

    saved = run_threads(3, half)[0]
    solo = SoloCommunicator()
    replica = Replica.form(job_of(1, "Adam"), solo, get_ops("cpu"))
    replica.group_state.restore(saved)
    advance(replica, solo, 3, STEPS)
    np.testing.assert_allclose(replica.net.flat.values, train(solo, job_of(1, "Adam")), **CLOSE_OF["Adam"])


def test_another_updater_cannot_go_on():
    solo = SoloCommunicator()
    replica = Replica.form(job_of(1, "Adam"), solo, get_ops("cpu"))
    replica.group_state.initialise()
    saved = snapshot(replica, 0)
    with pytest.raises(CheckpointError, match="updater"):
        Replica.form(job_of(1, "SGD"), solo, get_ops("cpu")).group_state.restore(saved)
