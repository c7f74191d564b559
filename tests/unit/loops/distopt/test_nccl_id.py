"""The handshake of processes of multiprocessing: nobody who is silent makes others wait for ever."""

import os
import socket

import pytest

from singa_dask.cluster.pmi_server import PmiEndpoint
from singa_dask.errors import ClusterError
from singa_dask.loops.distopt import NcclIdHolder


def test_processes_are_told_the_same_place_if_they_name_the_same_number():
    holder = NcclIdHolder()
    first = holder.endpoint(3)
    assert isinstance(first, PmiEndpoint) and holder.endpoint(3) == first
    with pytest.raises(ClusterError, match="gpu_per_node is 2 in one process and 3 in another"):
        holder.endpoint(2)


def test_a_holder_that_is_stopped_is_named_after_its_time():
    """The kernel takes connections for a stopped process too."""
    holder = NcclIdHolder()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        holder._address = silent.getsockname()
        with pytest.raises(
            ClusterError, match=rf"process {os.getpid()}, .* within 0.2 s: it may be stopped.*join them"
        ):
            holder.endpoint(2, timeout_s=0.2)
    with pytest.raises(ClusterError, match=rf"process {os.getpid()}, which made the NcclIdHolder, has ended"):
        holder.endpoint(2)


def test_a_process_that_is_stopped_during_its_handshake_stops_no_other():
    holder = NcclIdHolder()
    with socket.create_connection(holder._address):
        assert isinstance(holder.endpoint(2), PmiEndpoint)


def test_nobody_without_the_key_is_told_anything():
    holder, other = NcclIdHolder(), NcclIdHolder()
    other._address = holder._address
    with pytest.raises(ClusterError, match="has ended"):
        other.endpoint(2)
    assert isinstance(holder.endpoint(2), PmiEndpoint)
