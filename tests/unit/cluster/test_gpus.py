"""Which Dask worker gets which GPU: reports in, GPUs by address out."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from singa_dask.cluster.gpus import GpuReport, assign, assigned, chosen, in_words, lacking, unused
from singa_dask.cluster.workers import WorkerInfo, place
from singa_dask.errors import ClusterError
from singa_dask.job.topology import ClusterTopology
from singa_dask.ops.gpu.visible import Gpu


def seen(host, devices):
    """What a process sees of a machine's GPUs, as CUDA_VISIBLE_DEVICES orders them."""
    return tuple(Gpu(number, f"{host}/{device}", "H100") for number, device in enumerate(devices))


def worker(host, number, devices, **more):
    report = GpuReport(seen(host, devices), **{k: v for k, v in more.items() if k in ("cupy", "resource", "used")})
    rest = {k: v for k, v in more.items() if k in ("group", "nanny")}
    return WorkerInfo(f"tcp://{host}:{number}", host=host, node=f"{host}/1", gpus=report, **rest)


def machine(host, count, devices, **more):
    return [worker(host, number, devices, **more) for number in range(1, count + 1)]


def found(workers, *given, **more):
    """The identity of each worker's GPU, without the machine; None for none."""
    gpus = assign(workers, *given, **more)
    return [gpus[w.address].identity.rpartition("/")[2] if w.address in gpus else None for w in workers]


@pytest.mark.parametrize(
    ("workers", "expected"),
    [
        (machine("a", 3, "0123"), ["0", "1", "2"]),  # all see all: by rank on the machine
        (machine("a", 2, "01") + machine("b", 2, "01"), ["0", "1", "0", "1"]),  # not by rank in the cluster
        ([worker("a", i + 1, "0123"[i:] + "0123"[:i]) for i in range(4)], list("0123")),  # dask-cuda
        ([worker("a", i + 1, str(i)) for i in range(3)], list("012")),  # srun --gpus-per-task=1
        ([worker("a", 1, "01"), worker("a", 2, "0")], ["1", "0"]),  # one gives way
        (machine("a", 3, "01"), ["0", "1", None]),
        (machine("a", 2, ""), [None, None]),
        (machine("a", 1, "0", cupy=False), [None]),
        ([worker("a", 1, "01"), worker("a", 2, "01", resource=1)], [None, "0"]),  # Dask resources
        (machine("a", 1, "0", resource=0), [None]),
        ([worker("a", 1, "01"), worker("a", 2, "01", used="a/0")], ["1", "0"]),
        ([worker("a", 1, "0", nanny="n2"), worker("a", 2, "01", nanny="n1")], ["0", "1"]),
    ],
)
def test_each_gpu_is_given_to_one_worker_of_its_machine(workers, expected):
    assert found(workers) == expected


@pytest.mark.parametrize(
    ("listed", "expected"),
    [([2, 0], ["2", "0", None]), ([0, 0], ["0", "0", None]), ([0, 1, 0], ["0", "1", "0"]), ([1], ["1", None, None])],
)
def test_a_gpu_has_as_many_workers_as_it_is_listed_times(listed, expected):
    assert found(machine("a", 3, "012"), listed) == expected


def test_device_numbers_are_those_of_each_process():
    gpus = assign([worker("a", 1, "20"), worker("a", 2, "1")])
    assert {address: (gpu.number, gpu.identity) for address, gpu in gpus.items()} == {
        "tcp://a:1": (0, "a/2"),
        "tcp://a:2": (0, "a/1"),
    }


def test_what_is_listed_and_not_there_is_left_to_the_rank_to_say():
    assert [gpu.number for gpu in assign(machine("a", 3, "", cupy=False), [0]).values()] == [0, 0, 0]
    (gpu,) = assign(machine("a", 1, "01"), [99]).values()
    assert gpu.number == 99
    assert [*assign(machine("a", 1, "") + machine("b", 1, "0"), [0])] == ["tcp://b:1"]


def test_workers_keep_the_gpus_that_they_have():
    workers = machine("a", 3, "012")
    assert found(workers, held={"tcp://a:3": "a/0"}) == ["1", "2", "0"]
    assert found(workers[:2], held={"tcp://a:3": "a/0"}) == ["0", "1"], "a lost one has none"


def test_a_job_is_on_gpus_where_there_are_any_unless_it_says_no():
    assert chosen([], machine("a", 2, "0")) == () and chosen([1], machine("a", 2, "")) == (1,)
    assert chosen([-1], machine("a", 2, "0")) is chosen([], machine("a", 2, "")) is None
    assert [info.gpu for info in assigned(machine("a", 2, "0"), None)] == [None, None]


REPORTS = st.lists(
    st.builds(
        worker,
        st.sampled_from("ab"),
        st.integers(1, 9),
        st.lists(st.sampled_from("0123"), unique=True).map("".join),
        used=st.sampled_from(["", "", "", "a/0", "b/1"]),
        resource=st.sampled_from([None, None, 1, 0]),
    ),
    max_size=8,
    unique_by=lambda info: info.address,
)


@given(REPORTS, st.lists(st.integers(0, 4), max_size=5), st.randoms(use_true_random=False))
def test_the_assignment_is_fair(workers, listed, rng):
    gpus = assign(workers, listed)
    by_address = {info.address: info for info in workers}
    most = max(Counter(listed).values(), default=1)
    free = Counter(gpu.identity for address, gpu in gpus.items() if not by_address[address].gpus.used)
    assert all(count <= most for count in free.values())
    for address, gpu in gpus.items():
        info = by_address[address]
        if info.gpus.seen and gpu.number < len(info.gpus.seen):
            assert gpu == info.gpus.seen[gpu.number], "the worker sees it under this number"
        assert not listed or gpu.number in listed
        assert info.gpus.resource != 0 or info.gpus.used
    assert assign(rng.sample(workers, len(workers)), listed) == gpus, "in whatever order they answer"
    held = {address: gpu.identity for address, gpu in gpus.items()}
    assert assign(workers, listed, held).keys() == gpus.keys() and not (set(held) - {info.address for info in workers})


@given(st.lists(st.sets(st.integers(0, 4)).map(sorted), max_size=4))
def test_as_many_workers_get_a_gpu_as_can(sets):
    workers = [worker("a", i + 1, "".join(map(str, devices))) for i, devices in enumerate(sets)]

    def most(rest, taken):
        if not rest:
            return 0
        gains = [1 + most(rest[1:], taken | {device}) for device in rest[0] if device not in taken]
        return max([most(rest[1:], taken), *gains])

    assert len(assign(workers)) == most(sets, frozenset())


def placed(topology, workers, listed=()):
    return place(topology, assigned(workers, listed), on_gpus=True)


def test_workers_are_on_gpus_and_servers_apart_from_them():
    cluster = machine("a", 2, "") + machine("b", 3, "01")
    placement = placed(ClusterTopology.sandblaster(nworkers=2, nservers=2), cluster)
    assert placement.workers == (("tcp://b:1", "tcp://b:2"),)
    assert placement.servers == (("tcp://a:1", "tcp://a:2"),)


def test_a_rank_has_the_gpu_of_its_number_on_the_machine():
    cluster = [worker("a", i + 1, "012", nanny=f"n{9 - i}") for i in range(3)]  # nannies in another order
    gpus = {info.address: info.gpu.number for info in assigned(cluster, ())}
    assert [gpus[address] for address in placed(ClusterTopology.allreduce(3), cluster).workers[0]] == [0, 1, 2]


def test_too_few_gpus_are_told_with_the_workers_the_gpus_and_the_ways_out():
    with pytest.raises(ClusterError) as caught:
        placed(ClusterTopology.allreduce(3), machine("a", 3, "0"))
    assert str(caught.value).endswith(
        "3 workers need a GPU each, and 1 can have one: tcp://a:1 has GPU 0 of a (H100). Without a GPU: tcp://a:2, "
        "tcp://a:3. Use more GPUs, train with 1 worker, let workers share by naming a GPU once for each "
        "(gpu=[0,0,0]), or compute on CPUs (gpu=[])."
    )
    assert len(placed(ClusterTopology.allreduce(3), machine("a", 3, "0"), [0, 0, 0]).workers[0]) == 3


def test_a_run_waits_for_gpus_that_others_use_and_not_for_those_that_are_not_there():
    free, busy = machine("a", 2, "01"), worker("a", 3, "01", used="a/1", group="train-x")
    assert lacking(2, [], [*free, busy]) == 1
    assert lacking(1, [], [*free, busy]) == lacking(3, [], [*free, busy]) == lacking(2, [-1], [*free, busy]) == 0


def test_the_gpus_of_a_run_in_words():
    cluster = machine("a", 3, "012") + [worker("b", i + 1, str(i)) for i in range(2)]
    cluster[3] = replace(cluster[3], gpus=GpuReport((Gpu(0, "b/3a4d5e6f"),)))
    assert in_words(assigned(cluster, ())) == (
        "3 workers on GPUs 0, 1 and 2 of a (H100); "
        "2 workers on GPUs 0 (uuid ...4d5e6f) and 0 (uuid ...b/1) of b (H100)"
    )
    assert in_words(cluster) == unused(cluster) == ""
    assert unused(machine("a", 1, "01", cupy=False)).startswith("computing on CPUs: a has 2 GPUs and no CuPy; `pip ")
