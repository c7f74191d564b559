"""What a worker needs, what it has, and what it says if that is too little."""

import numpy as np
import pytest

from singa_dask.comm import run_threads
from singa_dask.errors import ConfigError
from singa_dask.job import Job
from singa_dask.job.job_pb2 import Phase
from singa_dask.net import Net
from singa_dask.ops import Ops
from singa_dask.training import memory
from singa_dask.training.memory import UNLIMITED, Free, check_memory, control_group, divided, free_here, need_of

JOB = """
name: "x"
updater { type: %s learning_rate { type: kFixed base_lr: 0.1 } }
neuralnet {
  layer { name: "data" type: kRecordInput store_conf { path: "none" batchsize: 10 shape: 6 } }
  layer { name: "ip" type: kInnerProduct srclayers: "data" innerproduct_conf { num_output: 8 } }
  layer { name: "relu" type: kReLU srclayers: "ip" }
}
"""


def job(updater="kAdam", *overrides):
    return Job.from_text(JOB % updater, overrides=overrides).proto


def need(job, size, rank=0, *, in_process_servers=True, shares=False, resumes=False):
    nets = {Phase.kTrain: Net(job.neuralnet, Phase.kTrain, Ops(), rank=rank, size=size, allocate=False)}
    settings = {"in_process_servers": in_process_servers, "shares": shares, "resumes": resumes}
    return need_of(nets, job, size, **settings)


def test_a_worker_on_its_own_needs_values_gradients_states_and_activations():
    found = need(job(), 1)
    assert (found.parameters, found.gradients, found.updater_state, found.exchange) == (224, 224, 448, 0)
    assert found.activations == 4 * 10 * (6 + 2 * 8 + 2 * 8)  # outputs and gradients, of the data outputs only
    assert found.total == 224 * 4 + found.activations


@pytest.mark.parametrize(
    ("settings", "size", "options", "expected"),
    [
        (["kSGD"], 1, {}, {"updater_state": 224, "averages": 0}),
        (["kAdam"], 1, {"in_process_servers": False}, {"updater_state": 0}),
        (["kSGD", "updater.ema_decay=0.9"], 1, {}, {"updater_state": 448, "averages": 448}),
        (["kAdam", "cluster.nworkers_per_group=2", "cluster.codec=kHalf"], 2, {}, {"exchange": 2 * 224}),
    ],
    ids=["SGD", "servers elsewhere", "moving averages", "codec"],
)
def test_what_settings_add(settings, size, options, expected):
    """Moving averages are state, and are evaluated beside the parameters; a codec keeps two arrays."""
    found = need(job(*settings), size, **options)
    assert {name: getattr(found, name) for name in expected} == expected
    assert ("averages 0.4 kB" in str(found)) == bool(found.averages)


def test_workers_divide_what_is_replicated_only_in_the_exchange_and_what_is_split_everywhere():
    found = need(job(), 4)
    assert (found.parameters, found.gradients, found.updater_state, found.exchange) == (224, 224, 112, 112)
    assert found.activations == 4 * 3 * (6 + 16 + 16)
    shared = need(job(), 4, shares=True)
    assert (shared.parameters, shared.gradients, shared.exchange) == (56, 224, 0)
    assert shared.total + shared.reserved >= found.total  # they may not get shared memory

    split = need(job("kAdam", "neuralnet.partition_dim=1"), 4)
    assert (split.parameters, split.gradients, split.updater_state, split.exchange) == (56, 56, 112, 0)
    rows, columns = 4 * 3 * 6, 4 * 10 * (2 * 6 + 2 * 2 + 2 * 2)  # the data of its rows; all rows of its columns
    assert split.activations == rows + columns


def test_a_checkpoint_takes_address_space():
    assert need(job(), 1, resumes=True).reserved - need(job(), 1).reserved == 448


@pytest.mark.parametrize("version", [1, 2])
def test_the_tightest_control_group_counts_and_cached_files_are_free(tmp_path, version):
    membership, root = tmp_path / "membership", tmp_path / ("memory" if version == 1 else "")
    names = (
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        if version == 1
        else ("memory.max", "memory.current", "inactive_file")
    )
    membership.write_text("3:cpu:/\n5:memory:/a/b\n" if version == 1 else "0::/a/b\n")
    for folder, limit in (("a", 1000), ("a/b", 5000)):
        (root / folder).mkdir(parents=True)
        (root / folder / names[0]).write_text(f"{limit}\n")
        (root / folder / names[1]).write_text("400\n")
        (root / folder / "memory.stat").write_text(f"anon 300\n{names[2]} 100\n")
    assert control_group(membership, tmp_path) == ((root / "a").stat().st_ino, 700)
    membership.write_text(membership.read_text().replace("/a/b", "/elsewhere"))  # as in a container
    assert control_group(membership, tmp_path) == (0, UNLIMITED)
    if version == 2:
        (root / "a" / "memory.max").write_text("max\n")
        membership.write_text("0::/a\n")
        assert control_group(membership, tmp_path) == (0, UNLIMITED)


def test_workers_with_the_same_owner_divide_its_memory():
    #                   own, group, its owner, machine, its owner
    table = np.array([[900, 800, 1, 600, 7], [900, 800, 1, 600, 7], [100, 800, 2, 900, 8]])
    assert divided(table).tolist() == [300, 300, 100]


def test_a_limit_of_dask_bounds_the_memory_of_the_process():
    assert 0 < free_here(10**15).memory < 10**15 and free_here(1).memory == 0
    assert free_here().memory == UNLIMITED


@pytest.mark.parametrize(
    ("free", "said"),
    [
        (
            Free(UNLIMITED, 150_000_000),
            r"^neuralnet: needs 178.0 MB per worker \(parameters 28.0 MB, gradients 28.0 MB, up",
        ),
        (Free(UNLIMITED, 150_000_000), "rank 0 has 150.0 MB free: 28.0 MB are missing."),
        (Free(UNLIMITED, 150_000_000), "With batchsize 6 at most, each worker needs 146.0 MB."),
        (Free(UNLIMITED, 150_000_000), "partition_dim: 1, each of 2 workers needs 122.0 MB."),
        (
            Free(UNLIMITED, 70_000_000),
            "1, each of 4 workers needs 61.0 MB, if no more of them share a machine than now.",
        ),
        (Free(UNLIMITED, 100), "are missing. Use workers with more memory.$"),
        (Free(200_000_000, UNLIMITED), "MB of address space besides; rank 0 has 200.0 MB free"),
    ],
    ids=["needs", "lacks", "a batch", "two suffice", "four suffice", "none suffices", "address space"],
)
def test_every_worker_says_what_is_missing_and_how_many_workers_suffice(monkeypatch, free, said):
    monkeypatch.setattr(memory, "free_here", lambda dask_limit: free)
    wide = job("kSGD", "neuralnet.layer[ip].innerproduct_conf.num_output=1000000", "cluster.nworkers_per_group=2")

    def member(comm):
        with pytest.raises(ConfigError, match=said) as refused:
            check_memory(wide, comm, Ops(), in_process_servers=True)
        return str(refused.value)

    assert len(set(run_threads(2, member))) == 1


def test_what_fits_is_let_through(monkeypatch):
    asked = []
    monkeypatch.setattr(memory, "free_here", lambda dask_limit: asked.append(dask_limit) or Free(10**9, 10**9))
    run_threads(2, lambda comm: check_memory(job(), comm, Ops(), in_process_servers=True, dask_limit=5))
    assert asked == [5, 5]


HUGE = 2**31 - 1
ABSURD_OUTPUTS = f"neuralnet.layer[ip].innerproduct_conf.num_output={HUGE}"


@pytest.mark.parametrize(
    "overrides",
    [
        (f"neuralnet.layer[data].store_conf.batchsize={HUGE}",),
        (ABSURD_OUTPUTS,),
        (f"neuralnet.layer[data].store_conf.shape=[{HUGE}, {HUGE}]", ABSURD_OUTPUTS),
    ],
)
def test_absurd_sizes_are_refused_by_the_memory_that_they_need(overrides):
    with pytest.raises(ConfigError, match=r"neuralnet: needs [\d.e+]+ GB per worker .* are missing"):
        run_threads(1, lambda comm: check_memory(job("kAdam", *overrides), comm, Ops(), in_process_servers=True))
