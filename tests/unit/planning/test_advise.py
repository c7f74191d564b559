"""What is recommended, and how it is explained."""

import pytest
from support.planned import MB, predicted

from singa_dask.errors import ConfigError
from singa_dask.job import ClusterTopology
from singa_dask.planning.advise import FreeMemory, advise, needs
from singa_dask.planning.prediction import Machines

HOST, NETWORK = Machines(cores=2), Machines(cores=4, hosts=None, workers_per_host=1, bandwidth=1e9)
ONE = predicted(ClusterTopology(), 1000.0)
TWO = predicted(ClusterTopology.allreduce(2), 1500.0)
SPLIT = predicted(ClusterTopology.allreduce(2), 1800.0, partition="dim 1")
STALE = predicted(ClusterTopology.hogwild(2), 2000.0)
CODED = predicted(ClusterTopology(nworkers_per_group=2, nservers_per_group=2, codec="kHalf"), 1900.0)
EVERY = [STALE, CODED, TWO, ONE, SPLIT]


@pytest.mark.parametrize(
    ("allow", "chosen"),
    [((), SPLIT), (("codec",), CODED), (("asynchronous",), STALE), (("codec", "asynchronous"), STALE)],
)
def test_only_what_computes_the_same_is_recommended_unless_more_is_allowed(allow, chosen):
    advice = advise(EVERY, HOST, allow=allow)
    assert advice.recommended is chosen and advice.base is ONE
    assert list(advice.predictions) == [ONE, STALE, CODED, SPLIT, TWO]


def test_the_simpler_of_equals_is_recommended():
    servers = predicted(ClusterTopology.sandblaster(2, 1), 1509.0)
    assert advise([ONE, servers, TWO], HOST).recommended is TWO
    fast = predicted(ClusterTopology.sandblaster(2, 1), 1600.0)
    assert advise([ONE, fast, TWO], HOST).recommended is fast


FOUR = predicted(ClusterTopology.allreduce(4), 2400.0)
SERVERS = predicted(ClusterTopology.sandblaster(4, 2), 2000.0)
LACKS = "profile: has no all_gather of several workers (machine). Run `singa-dask profile`."
# Candidates, what could not be predicted, and what is said.
REASONS = {
    "two sentences": (
        EVERY,
        (),
        "Of all candidates that compute what one worker computes, AllReduce with 2 workers (partition dim 1) is the "
        "fastest: 1,800 samples/s, 20 % more than AllReduce with 2 workers (partition dim 0), the next one. That is "
        "1.8 times as many as one worker; Hogwild with 2 workers would train 11 % more than the recommendation (2,000 "
        "samples/s), but its gradients would be of copies that differ (--allow asynchronous).",
    ),
    "times as many": (
        [ONE, predicted(ClusterTopology.allreduce(2), 2500.0)],
        (),
        "2,500 samples/s, 2.5 times as many as AllReduce with 1 worker, the next one.",
    ),
    "what is not allowed": ([ONE, TWO, STALE], (), "the next one. Hogwild with 2 workers would train 33 % more"),
    "no gain": ([ONE, predicted(ClusterTopology.allreduce(2), 800)], (), "More workers would not be faster"),
    "more workers of the strategy": (
        [ONE, TWO, SPLIT, SERVERS, FOUR],
        (),
        "That is 2.4 times as many as one worker and 33 % more than with 2 workers.",
    ),
    "fewer workers are next": (
        [ONE, TWO, SPLIT, FOUR],
        (),
        "33 % more than AllReduce with 2 workers (partition dim 1), the next one. That is 2.4 times as many as one "
        "worker.",
    ),
    "not predicted": (
        [ONE],
        (LACKS,),
        f"no other candidate could be predicted ({LACKS[:-1]}). What more workers would gain is not known",
    ),
    "not asked for": ([ONE], (), "no other candidate is asked for. What more"),
    "equals are not less simple": (
        [ONE, SPLIT, predicted(ClusterTopology.allreduce(2), 1795.0, partition="auto")],
        (),
        "(partition auto) is as fast. That",
    ),
}


@pytest.mark.parametrize("name", REASONS)
def test_the_reason(name):
    candidates, unpredicted, said = REASONS[name]
    assert said in advise(candidates, HOST, unpredicted=unpredicted).reason


def test_what_does_not_fit_the_memory_is_not_recommended():
    large = predicted(ClusterTopology.allreduce(2), 1800.0, memory=200 * MB)
    advice = advise([ONE, TWO, large], HOST, memory=FreeMemory(250 * MB))
    assert advice.recommended is TWO and [advice.fits(each) for each in (ONE, TWO, large)] == [True, True, False]
    assert "1 candidate does not fit" in advice.reason
    assert advise([ONE, large], NETWORK, memory=FreeMemory(250 * MB)).recommended is large, "a host each"
    with pytest.raises(ConfigError, match=r"the smallest, AllReduce with 1 worker, needs 100 MB .* 50 MB\. Plan"):
        advise([ONE, TWO], HOST, memory=FreeMemory(50 * MB))


@pytest.mark.parametrize(
    ("topology", "machines", "host", "process"),
    [
        (ClusterTopology.hogwild(2), HOST, 2 * 100 + 2 * 30, 130),  # each worker has a server of its own
        (ClusterTopology.sandblaster(2, 2), HOST, 2 * 100 + 2 * 30, 100),
        (ClusterTopology.sandblaster(2, 1), NETWORK, 100, 100),  # the server has a host of its own
        (ClusterTopology.downpour(2, 1, 1), Machines(4, None, 3), 2 * 100 + 30, 100),
    ],
)
def test_servers_need_memory_where_they_lie(topology, machines, host, process):
    made = predicted(topology, 1500.0, server_memory=30 * MB)
    assert needs(made, machines) == (host * MB, process * MB)
    assert advise([ONE, made], machines, memory=FreeMemory(host * MB, process * MB)).fits(made)
    assert not advise(
        [predicted(ClusterTopology(), 1.0, memory=1), made], machines, memory=FreeMemory(host * MB - 1)
    ).fits(made)
    with pytest.raises(ConfigError, match=r"needs 100 MB in a process\. Received: 99 MB"):
        advise([ONE, made], machines, memory=FreeMemory(host * MB, 99 * MB))
