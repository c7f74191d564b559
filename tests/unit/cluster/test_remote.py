"""Calls to a cluster that is not there."""

from __future__ import annotations

import asyncio
import gc
import warnings
from types import SimpleNamespace

import pytest
from distributed.utils import wait_for

from singa_dask.cluster.remote import alive, run_each


def _interrupted(function, *args, callback_timeout):
    """Client.sync, where Ctrl-C comes when the call is due and has not begun."""

    async def main():
        call = asyncio.ensure_future(wait_for(function(*args), callback_timeout))
        call.cancel()
        await asyncio.wait([call])

    asyncio.run(main())
    raise KeyboardInterrupt


@pytest.mark.parametrize("call", [lambda client: alive(client, []), lambda client: run_each(client, print, {}, 1.0)])
def test_a_call_that_is_given_up_before_it_begins_leaves_nothing_behind(call):
    client = SimpleNamespace(asynchronous=False, sync=_interrupted)
    with warnings.catch_warnings(record=True) as complaints:
        warnings.simplefilter("always")
        with pytest.raises(KeyboardInterrupt):
            call(client)
        gc.collect()
    assert not complaints
