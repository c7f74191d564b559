"""One set of tests over every communicator but NCCL's, which tests/gpu has."""

import sys

import cloudpickle
import numpy as np
import pytest
from support import collectives

from singa_dask.cluster import form_group
from singa_dask.comm import SoloCommunicator, run_threads
from singa_dask.comm.shared_memory import form_shared_memory

cloudpickle.register_pickle_by_value(sys.modules[__name__])
cloudpickle.register_pickle_by_value(collectives)


@pytest.fixture(params=["solo", "threads", "mpi"])
def run(request):
    """Runs fn(comm, *args) on every rank of a group, and returns what each returned."""
    if request.param == "solo":
        return lambda fn, *args: [fn(SoloCommunicator(), *args)]
    if request.param == "threads":
        return lambda fn, *args: run_threads(3, fn, *args)
    client, ranks = request.getfixturevalue("cluster3"), request.getfixturevalue("ranks3")

    def in_processes(fn, *args):
        with form_group(client, ranks, fn, *args) as group:
            return group.results()

    return in_processes


@pytest.mark.parametrize("name", collectives.CASES)
def test_collectives(name, run):
    collectives.CASES[name](run)


def test_which_groups_are_on_one_machine(run, request):
    known = "mpi" in request.node.name
    assert set(run(lambda comm: comm.one_machine())) == {known}


def _share(comm):
    arrays = form_shared_memory(comm, 1000, np.float32)
    arrays[comm.rank][:] = 2.0**comm.rank
    comm.barrier()
    return [float(array.sum()) for array in arrays]


def test_ranks_of_one_machine_can_form_shared_memory(run):
    found = run(_share)
    assert found == [[1000 * 2.0**rank for rank in range(len(found))]] * len(found)
