"""Which Dask clients can be used."""

from __future__ import annotations

from typing import Any

from singa_dask.errors import ClusterError, ConfigError, Problem


def check_client(client: Any) -> None:
    """Raise ConfigError for what is not a client, ClusterError for one whose calls are coroutines."""
    if not hasattr(client, "subscribe_topic"):
        hint = "Write Client(ADDRESS or CLUSTER), of dask.distributed."
        raise ConfigError(Problem("client", "must be a Dask client", repr(client), hint))
    check_synchronous(client)


def check_synchronous(client: Any) -> None:
    """Raise ClusterError for a client whose calls are coroutines."""
    if getattr(client, "asynchronous", False):
        raise ClusterError("the Dask client is asynchronous; give a Client(..., asynchronous=False)")
