"""What of an MPI job can be tested without mpiexec: how many ranks it needs, what ranks tell each other."""

from __future__ import annotations

import pytest

from singa_dask.cluster.mpi_world import _fault, _packed, _unpacked, check_size
from singa_dask.errors import ConfigError


def test_a_rank_more_than_workers_is_enough():
    check_size(4, 3, "MPICH", {"PMI_SIZE": "4"})


@pytest.mark.parametrize(("size", "workers"), [(3, 3), (1, 1), (1, 3)])
def test_too_few_ranks_name_the_number_to_use(size, workers):
    with pytest.raises(ConfigError, match=rf"Received: {size}\. .*mpiexec -n {workers + 1} singa-dask"):
        check_size(size, workers, "MPICH", {"PMI_SIZE": str(size)})


@pytest.mark.parametrize("variable", ["PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "PALS_NRANKS"])
def test_a_launcher_of_another_mpi_is_told_from_too_few_ranks(variable):
    with pytest.raises(ConfigError, match=r"4 processes were started, and each is alone .* loads, Open MPI 5\."):
        check_size(1, 3, "Open MPI 5", {variable: "4", "SLURM_JOB_ID": "7"})


def test_records_survive_their_packing():
    assert _unpacked(_packed("tcp://10.0.0.7:4321")) == "tcp://10.0.0.7:4321"
    assert _unpacked(_packed("")) == ""
    assert _unpacked(_packed("x" * 5000)) == "x" * 2048


def test_an_unknown_interface_is_a_fault_of_this_machine():
    assert _fault(None) == _fault("lo") == ""
    assert "'nosuch0' is not a valid network interface" in _fault("nosuch0")
