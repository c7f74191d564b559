"""Which Dask clients can be used, and when their workers can."""

from __future__ import annotations

import asyncio
import logging
import os
import pkgutil
from collections.abc import Sequence
from typing import Any

from singa_dask.errors import ClusterError, ConfigError, Problem

logger = logging.getLogger(__name__)

# For Client.run: workers import the package in a thread, so that their event loops react meanwhile. It takes seconds,
# and from the file system of a large machine minutes.
IMPORTING = (asyncio.to_thread, pkgutil.resolve_name, "singa_dask.training.dask_task:__name__")
IMPORT_S = 600.0
_UNMENTIONED_S = 3.0


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


def import_on_workers(client: Any, workers: Sequence[str] | None, answer_s: float) -> None:
    """Have Dask workers, by default all, import this package.

    Raises TimeoutError when one does not react within `answer_s` seconds, or has not imported it within `IMPORT_S`.
    """
    options = {"workers": workers, "on_error": "return"}
    client.run(os.getpid, callback_timeout=answer_s, **options)
    try:
        client.run(*IMPORTING, callback_timeout=_UNMENTIONED_S, **options)
    except TimeoutError:
        logger.warning("the Dask workers are importing singa_dask; waiting up to %g s", IMPORT_S)
        try:
            client.run(*IMPORTING, callback_timeout=IMPORT_S, **options)
        except TimeoutError:
            raise TimeoutError(f"they have not imported singa_dask within {IMPORT_S:g} s") from None
