"""Communicators, which move flat arrays and never see a net, and codecs. A function named `form` or `form_*` is
collective: every rank calls it."""

from singa_dask.comm.communicator import Communicator
from singa_dask.comm.mpi import MpiCommunicator
from singa_dask.comm.nccl import NcclCommunicator, form_nccl
from singa_dask.comm.solo import SoloCommunicator
from singa_dask.comm.threads import ThreadCommunicator, run_members, run_threads

__all__ = [
    "Communicator",
    "MpiCommunicator",
    "NcclCommunicator",
    "SoloCommunicator",
    "ThreadCommunicator",
    "form_nccl",
    "run_members",
    "run_threads",
]
