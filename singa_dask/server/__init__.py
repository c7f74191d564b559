"""Servers: slices of the parameters, the protocol between workers and servers, and the Dask actors."""

from singa_dask.server.actor import ServerActor
from singa_dask.server.kept import Keeping, MemoryLost, ServerAddress
from singa_dask.server.link import Address, Link, LocalLink, link_to
from singa_dask.server.server import Server, ServerPlan
from singa_dask.server.shadow import Shadow, ShadowAddress, SliceShadow
from singa_dask.server.slices import Partition, Slice, partition
from singa_dask.server.stub import ServerTraffic, Stub

__all__ = [
    "Address",
    "Keeping",
    "Link",
    "LocalLink",
    "MemoryLost",
    "Partition",
    "Server",
    "ServerActor",
    "ServerAddress",
    "ServerPlan",
    "ServerTraffic",
    "Shadow",
    "ShadowAddress",
    "Slice",
    "SliceShadow",
    "Stub",
    "link_to",
    "partition",
]
