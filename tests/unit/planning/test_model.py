"""The cost model on a profile whose numbers are easy to add up."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import planned

from singa_dask.cluster.workers import WorkerInfo, place
from singa_dask.errors import ConfigError
from singa_dask.job import ClusterTopology
from singa_dask.layers import InnerProduct, RecordInput, SoftmaxLoss, STanh
from singa_dask.planning.model import predict
from singa_dask.planning.prediction import Candidate, Machines
from singa_dask.planning.profile import Curve, LayerSample, Point, Profile
from singa_dask.planning.rates import passes_work
from singa_dask.planning.work import Collective, worker_step

BATCH = 60
FORWARD, BACKWARD = 1e-3, 2e-3  # of every layer
PASSES, LOOP, MEETING = 5e-4, 3e-4, 1e-4
UPDATE = 1e-9  # seconds of an element
PER_HOST = Machines(cores=1, hosts=None, workers_per_host=1)
COLLECTIVES = "reduce_scatter", "all_gather", "all_reduce", "all_to_all"


def job_of(topology, dim=0, **fields):
    layers = [
        RecordInput("data", shape=[100], batchsize=BATCH),
        InnerProduct("fc1", num_output=800),
        STanh("tanh1"),
        InnerProduct("fc2", num_output=400),
        STanh("tanh2"),
        InnerProduct("fc3", num_output=10),
        SoftmaxLoss("loss"),
    ]
    job = planned.job_of(layers, topology, dim)
    for name, value in fields.items():
        setattr(job.cluster, name, value)
    return job


def flat(seconds, cpu=0.0):
    return Curve((Point(0, seconds, cpu),))


def per(unit, latency=0.0, cpu=0.0):
    """Seconds per byte or element, above a latency."""
    return Curve.of([Point(0, latency), Point(1e6, latency + 1e6 * unit, cpu)])


def profile_for(job, *, bandwidth=1e9, cores=1):
    work = worker_step(job)
    layers = [LayerSample(call.work, FORWARD, BACKWARD) for call in work.calls]
    layers.append(LayerSample(passes_work(job, work), PASSES, 0.0))
    curves = {
        "update kSGD 1": per(UPDATE),
        "sum 1": per(1e-10),
        "load 1": per(0.0),
        "loop 1": flat(LOOP),
        "encode kHalf - 1": per(1e-10),
        "decode kHalf - 1": per(1e-10),
    }
    for ranks in (2, 3, 4):
        curves[f"barrier shared {ranks}"] = curves[f"barrier machine {ranks}"] = flat(MEETING)
        for where in ("machine", "network"):
            for name in COLLECTIVES:
                sent = Collective(name, 1.0).sent(ranks)
                curves[f"{name} {where} {ranks}"] = per(sent / bandwidth, 1e-4)
    for where in ("machine", "network"):
        curves[f"round_trip {where} 1"] = per(2 / bandwidth, 1e-3)
        curves[f"serve {where} 1"] = per(0.0, 0.0)
    return Profile(cores=cores, layers=layers, curves=curves)


def predicted(topology, machines, dim=0, bandwidth=1e9, **fields):
    job = job_of(topology, dim, **fields)
    return predict(Candidate(job), profile_for(job, bandwidth=bandwidth), machines)


def layers_s(job):
    work = worker_step(job)
    return len(work.forward) * FORWARD + len(work.backward) * BACKWARD + PASSES


def test_a_worker_on_its_own():
    job = job_of(ClusterTopology.allreduce(1))
    found = predict(Candidate(job), profile_for(job), Machines(cores=1))
    elements = worker_step(job).replicated
    assert found.step_s == pytest.approx(layers_s(job) + LOOP + UPDATE * elements)
    assert found.samples_per_s == pytest.approx(BATCH / found.step_s)
    assert (found.sent, found.staleness, found.extrapolated) == (0, 0, 0)


def test_workers_that_share_memory_meet_twice_and_add():
    job = job_of(ClusterTopology.allreduce(2))
    found = predict(Candidate(job), profile_for(job, cores=2), Machines(cores=2))
    part = worker_step(job).whole.buckets[0].size / 2
    told = 1e-4 + Collective("all_reduce", 40 + 2 * 72).sent(2) / 1e9
    expected = layers_s(job) + LOOP + told + 2 * MEETING + 1e-10 * 4 * part + UPDATE * part
    assert found.step_s == pytest.approx(expected)
    assert not found.overlaps


@pytest.mark.parametrize("machines", [Machines(cores=2), PER_HOST])
def test_a_clipped_norm_costs_an_all_reduce_and_a_pass_over_the_gradients(machines):
    plain, clipped = job_of(ClusterTopology.allreduce(2)), job_of(ClusterTopology.allreduce(2))
    clipped.updater.clip_norm = 1
    profile = profile_for(plain, cores=2)
    one, other = (predict(Candidate(job), profile, machines) for job in (plain, clipped))
    part = worker_step(plain).whole.buckets[0].size / 2
    assert other.step_s - one.step_s >= 1e-4 + 0.99e-10 * 4 * part
    assert not other.hidden_s > one.hidden_s


def test_workers_that_share_a_core_take_turns():
    job = job_of(ClusterTopology.allreduce(2))
    profile = profile_for(job)
    one, two = (predict(Candidate(job), profile, Machines(cores=cores)) for cores in (1, 2))
    assert one.parts["layers"] == pytest.approx(2 * two.parts["layers"])


def test_overlap_hides_the_exchange_where_that_is_faster():
    plain = predicted(ClusterTopology.allreduce(2), PER_HOST, bandwidth=1e8, bucket_size=1_000_000)
    cut = predicted(ClusterTopology.allreduce(2), PER_HOST, bandwidth=1e8, bucket_size=50_000)
    assert (plain.overlaps, cut.overlaps) == (False, True)
    assert cut.step_s < plain.step_s
    assert cut.hidden_s > 0


def test_what_is_sent_is_activations_and_gradients():
    rows, split = (predicted(ClusterTopology.allreduce(2), PER_HOST, dim=dim) for dim in (0, 1))
    assert (rows.activations, rows.shares, split.shares) == (0.0, False, False)
    sums = worker_step(split.candidate.job)
    moved = sum(c.sent(2) for call in sums.calls for c in call.collectives)
    assert 0 < split.activations == moved <= split.sent < rows.sent
    assert predicted(ClusterTopology.allreduce(2), Machines(cores=2)).shares
    assert not predicted(ClusterTopology.allreduce(2), Machines(cores=2), codec=1).shares


def test_a_codec_halves_what_is_sent():
    full = predicted(ClusterTopology.allreduce(4), PER_HOST)
    half = predicted(ClusterTopology.allreduce(4), PER_HOST, codec=1)
    assert half.sent == pytest.approx(full.sent / 2, rel=0.01)
    assert half.parts["codec"] > 0
    slow = [predicted(ClusterTopology.allreduce(4), PER_HOST, bandwidth=1e7, codec=codec).step_s for codec in (0, 1)]
    assert slow[1] < 0.6 * slow[0]


def test_a_split_net_sends_activations_in_place_of_gradients():
    rows, features = (predicted(ClusterTopology.allreduce(4), PER_HOST, dim, bandwidth=1e7) for dim in (0, 1))
    assert "transitions" not in rows.parts
    assert features.parts["transitions"] > 0
    assert features.sent < rows.sent
    assert features.memory < rows.memory


def test_servers_elsewhere_are_waited_for_unless_groups_run_one_behind():
    servers = predicted(ClusterTopology.sandblaster(2, 1), PER_HOST)
    beside = predicted(ClusterTopology.allreduce(2), PER_HOST)
    assert servers.step_s > beside.step_s
    downpour = ClusterTopology.downpour(2, 1, 1)
    waits, behind = (predicted(downpour, PER_HOST, bandwidth=1e8, one_behind=flag) for flag in (False, True))
    assert behind.step_s < waits.step_s
    assert (waits.staleness, behind.staleness) == (1, 2)


def test_groups_share_the_cores_of_a_machine():
    job = job_of(ClusterTopology.hogwild(4, sync_freq=1000))
    profile = profile_for(job)
    steps = [predict(Candidate(job), profile, Machines(cores=cores)).step_s for cores in (1, 2, 4)]
    assert steps[0] == pytest.approx(2 * steps[1], rel=0.05)
    assert steps[1] == pytest.approx(2 * steps[2], rel=0.05)


def test_one_server_bounds_the_rate_of_many_groups():
    few, many = (predicted(ClusterTopology.downpour(groups, 1, 1), PER_HOST) for groups in (2, 512))
    assert many.server_load == pytest.approx(1.0)
    assert few.server_load < 0.5
    assert many.samples_per_s < 256 * few.samples_per_s


TOPOLOGIES = [
    ClusterTopology.allreduce(2),
    ClusterTopology.allreduce(4),
    ClusterTopology.sandblaster(3, 2),
    ClusterTopology.downpour(2, 2, 2),
    ClusterTopology.hogwild(3),
    ClusterTopology.hybrid(2, 2, 2, 2),
]


@settings(max_examples=40)
@given(
    st.sampled_from(TOPOLOGIES),
    st.sampled_from([0, 1]),
    st.sampled_from([Machines(cores=2), PER_HOST, Machines(cores=4, hosts=None, workers_per_host=2)]),
    st.floats(1e6, 1e10),
)
def test_parts_add_up_and_a_faster_network_is_never_slower(topology, dim, machines, bandwidth):
    slow, fast = (predicted(topology, machines, dim, bandwidth=b) for b in (bandwidth, 2 * bandwidth))
    for found in (slow, fast):
        assert sum(found.parts.values()) == pytest.approx(found.step_s)
        assert min(found.parts.values()) > 0
    if topology.nserver_groups == 1:  # neighbours exchange more often where they can
        assert fast.step_s <= slow.step_s * (1 + 1e-9)


def test_a_profile_without_servers_says_so():
    job = job_of(ClusterTopology.sandblaster(2, 1))
    profile = profile_for(job)
    for name in [name for name in profile.curves if name.startswith("round_trip")]:
        del profile.curves[name]
    with pytest.raises(ConfigError, match="singa-dask profile"):
        predict(Candidate(job), profile, Machines(cores=2))


def test_all_messages_to_servers_share_the_workers_network():
    network = Machines(cores=1, hosts=None, workers_per_host=1, bandwidth=1e8)
    for n in (2, 4, 8):
        found = predicted(ClusterTopology.downpour(n, 1, n), network, bandwidth=1e12)
        job = job_of(ClusterTopology.downpour(n, 1, n))
        both_ways = 2 * 8 * 4 * worker_step(job).replicated / 1e8
        assert found.parts["servers"] >= both_ways


@pytest.mark.parametrize(
    ("topology", "room", "workers", "processes"),
    [
        (ClusterTopology.sandblaster(4, 2), 4, 4, 4),
        (ClusterTopology.sandblaster(2, 1), 4, 2, 3),
        (ClusterTopology.hybrid(2, 4, 2, 4), 4, 4, 4),
        (ClusterTopology.hybrid(4, 2, 4, 2), 4, 4, 4),
        (ClusterTopology.allreduce(8), 4, 4, 4),
    ],
)
def test_groups_lie_on_one_host_where_they_fit_as_they_are_placed(topology, room, workers, processes):
    machines = Machines(cores=room, hosts=2, workers_per_host=room)
    assert (machines.packed(topology), machines.beside(topology)) == (workers, processes)
    infos = [
        WorkerInfo(f"tcp://10.0.0.{host}:{i}", host=f"10.0.0.{host}", cores=room)
        for host in (1, 2)
        for i in range(room)
    ]
    placed = place(topology, infos)
    hosts = Counter(address.rpartition(":")[0] for group in placed.workers for address in group)
    assert max(hosts.values()) == workers
    assert min(placed.cores.values()) == max(1, room // processes)


def test_a_group_beside_its_server_does_not_wait_for_the_network():
    """Downpour of two groups: the server is in the process of the first one, or in one of its own."""
    beside = ClusterTopology(nworker_groups=2)
    apart = ClusterTopology.downpour(2, 1, 1)
    near, far = (predicted(topology, PER_HOST, bandwidth=1e7) for topology in (beside, apart))
    alone = predicted(ClusterTopology.allreduce(1), PER_HOST)
    assert near.samples_per_s == pytest.approx(far.samples_per_s / 2 + alone.samples_per_s, rel=0.05)


def test_a_servers_network_card_bounds_the_groups_that_push_to_it():
    """Both directions at once: an update comes while the reply to another one leaves."""
    job = job_of(ClusterTopology.downpour(3, 1, 1))
    found = predicted(ClusterTopology.downpour(3, 1, 1), PER_HOST, bandwidth=1e7)
    per_update = (1e-3 + 2 * 4 * worker_step(job).replicated / 1e7) / 2
    assert found.step_s == pytest.approx(3 * per_update, rel=0.05)
    assert found.server_load == pytest.approx(1, rel=0.05)


def test_exchanges_of_servers_take_their_share_of_a_network_card():
    """Two groups of two workers, each of which exchanges half of the parameters with its neighbour after a step."""
    often, seldom = (
        predicted(ClusterTopology.hybrid(2, 2, 2, 2), PER_HOST, bandwidth=1e7, sync_freq=every) for every in (1, 1000)
    )
    elements = worker_step(job_of(ClusterTopology.hybrid(2, 2, 2, 2))).replicated
    assert often.step_s == pytest.approx(seldom.parts["exchange"] + 4 * elements / 2 / 1e7, rel=0.01)


def test_a_server_takes_the_time_of_the_worker_beside_it():
    """Downpour of two groups on a host each: the first one computes while its process serves the other one."""
    job = job_of(ClusterTopology(nworker_groups=2))
    profile, serving = profile_for(job, bandwidth=1e7), 0.05
    profile.curves["serve network 1"] = flat(serving, serving)
    found = predict(Candidate(job), profile, PER_HOST)
    alone = predicted(ClusterTopology.allreduce(1), PER_HOST).step_s
    remote = predicted(ClusterTopology.sandblaster(1, 1), PER_HOST, bandwidth=1e7).step_s
    beside = alone / (1 - serving / remote)
    assert found.samples_per_s == pytest.approx(BATCH / remote + BATCH / beside, rel=0.05)
