"""Servers: slices of the parameters, the protocol between workers and servers, and the Dask actors."""

from singa_dask.server.actor import ServerActor
from singa_dask.server.kept import Keeper
from singa_dask.server.link import ActorLink, Address, Link, LocalLink
from singa_dask.server.server import Server, ServerPlan
from singa_dask.server.slices import ParameterSlice, Partition, partition
from singa_dask.server.stub import ServerTraffic, Stub

__all__ = [
    "ActorLink",
    "Address",
    "Keeper",
    "Link",
    "LocalLink",
    "ParameterSlice",
    "Partition",
    "Server",
    "ServerActor",
    "ServerPlan",
    "ServerTraffic",
    "Stub",
    "partition",
]
