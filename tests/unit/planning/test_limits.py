"""What a step spends its time on, and what is sent, in words."""

import pytest
from support.planned import MB, mlp, predicted

from singa_dask.job import ClusterTopology
from singa_dask.planning.candidates import with_cluster
from singa_dask.planning.limits import layers_of, limit
from singa_dask.planning.prediction import Candidate, Machines

HOST, NETWORK = Machines(cores=2), Machines(cores=4, hosts=None, workers_per_host=1, bandwidth=1e9)
ONE = predicted(ClusterTopology(), 1000.0)


def allreduce(n, rate=100.0, **parts):
    return predicted(ClusterTopology.allreduce(n), rate, **parts)


COMPUTING = predicted(
    ClusterTopology(),
    100.0,
    parts={"layers": 0.32},
    layers={"fc1": (0.05, 0.11), "fc1:replicated": (0.2, 0.0)},
    sent=0.0,
)
SENDING = {"layers": 0.15, "transitions": 0.09, "exchange": 0.075, "loop": 0.005}
SPLIT = {"layers": 0.2, "transitions": 0.09, "exchange": 0.03}
WOULD = "Workers share memory; without it, a worker would send"
# A prediction, that of one worker, machines, and what is said.
SAID = {
    "the exchange": (
        allreduce(2, parts={"exchange": 0.2, "layers": 0.12}, hidden_s=0.05),
        ONE,
        NETWORK,
        "A step takes 320 ms. It is limited by what its workers send each other: 62 % is the exchange of gradients "
        "and parameters and 38 % is computing in the layers. A worker sends 2 MB per step: 16 ms by bandwidth alone. "
        "A further 50 ms of the exchange (20 %) run beside computing.",
    ),
    "computing": (
        COMPUTING,
        COMPUTING,
        HOST,
        "A step takes 320 ms. It is limited by computing: 100 % is computing in the layers (50 % in 'fc1' alone).",
    ),
    "activations and gradients": (
        allreduce(2, parts=SENDING, sent=0.0),
        ONE,
        HOST,
        "A step takes 320 ms. It is limited by what its workers send each other, 52 % of it: 28 % is sending "
        "activations between split layers, 23 % is the exchange of gradients and parameters, 47 % is computing in the "
        "layers and 2 % is the rest.",
    ),
    "servers": (
        predicted(ClusterTopology.downpour(2, 1, 1), 100.0, parts={"servers": 0.5}, server_load=0.9),
        ONE,
        HOST,
        "78 % is waiting for the servers (the busiest one works 90 % of the time)",
    ),
    "what is sent": (
        allreduce(2, parts=SPLIT, activations=0.5 * MB, hidden_s=0.05),
        ONE,
        NETWORK,
        "sends 2 MB per step: 16 ms by bandwidth alone (500 kB of activations, 1.5 MB of gradients). "
        "A further 50 ms of the exchange (62 %) run beside computing.",
    ),
    "shared memory": (
        allreduce(2, 1500.0, shares=True),
        ONE,
        HOST,
        f"of gradients and parameters. {WOULD} 2 MB of gradients per step.",
    ),
    "activations through shared memory": (
        allreduce(2, 1500.0, shares=True, activations=0.5 * MB),
        ONE,
        HOST,
        f"sends 500 kB of activations per step. {WOULD} 1.5 MB of gradients per step.",
    ),
}


@pytest.mark.parametrize("name", SAID)
def test_the_limit_names_what_takes_longest_and_what_is_sent(name):
    prediction, base, machines, said = SAID[name]
    assert said in limit(prediction, base, machines)


BASE = predicted(ClusterTopology(), 100.0, parts={"layers": 0.2, "loop": 0.12})


@pytest.mark.parametrize(
    ("machines", "times"),
    [
        (NETWORK, "2.4"),  # 0.12 s instead of 0.2 s / 4
        (Machines(6, 2), "1.2"),  # 3 of 6 cores each: 0.12 s instead of 0.1 s
        (Machines(6, 1), None),  # 1 of 6 cores each: less than 0.2 s * 6 / 4
    ],
)
def test_the_limit_says_how_much_longer_the_layers_take_than_with_one_worker(machines, times):
    said = limit(allreduce(4, 250.0, parts={"layers": 0.12, "exchange": 0.008}), BASE, machines)
    longer = f"computes 8 samples; per sample and core, the layers take {times} times as long as with one worker."
    assert longer in said if times else "Each worker" not in said
    assert "Each worker" not in limit(BASE, BASE, NETWORK)


def test_each_layer_says_what_it_sends_if_it_is_split_and_if_not():
    n, batch = 4, 32
    job = with_cluster(mlp(batch), ClusterTopology.allreduce(n).to_proto())
    job.neuralnet.layer[1].partition_dim = 1
    first, second = layers_of(Candidate(job))
    share = 2 * (n - 1) / n * 4
    assert (first.layer, first.partition, first.split) == ("fc1", "features", True)
    assert (first.gradients, first.activations) == (share * (8 * 64 + 64), share * batch * 8)
    assert (second.split, second.gradients, second.activations) == (False, share * (64 * 5 + 5), share * batch * 64)
    assert list(layers_of(Candidate(with_cluster(job, ClusterTopology.hogwild(2).to_proto())))) == []
