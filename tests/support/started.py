"""Threads whose operations, once started, are carried out as early as they can be, or as late."""

from __future__ import annotations

from functools import partial

from singa_dask.comm import ThreadCommunicator


class AtOnce(ThreadCommunicator):
    """What is started has arrived before anything else happens."""

    goes_on = True


class AtTheEnd(ThreadCommunicator):
    """What is started is sent and arrives when it is waited for."""

    goes_on = True

    def start_reduce_scatter(self, *arrays):
        return partial(self.reduce_scatter, *arrays)

    def start_all_gather(self, *arrays):
        return partial(self.all_gather, *arrays)

    def start_all_to_all(self, *arrays):
        return partial(self.all_to_all, *arrays)


STARTED = [AtOnce, AtTheEnd]
