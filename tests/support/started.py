"""Threads whose operations, once started, are carried out as early as they can be, or as late."""

from singa_dask.comm import ThreadCommunicator
from singa_dask.comm.communicator import Request


class AtOnce(ThreadCommunicator):
    """What is started has arrived before anything else happens."""

    goes_on = True


class AtTheEnd(ThreadCommunicator):
    """What is started is sent and arrives when it is waited for. most: operations that were under way at once."""

    goes_on = True
    under_way = most = 0

    def start_reduce_scatter(self, *arrays):
        return self._start(self.reduce_scatter, arrays)

    def start_all_gather(self, *arrays):
        return self._start(self.all_gather, arrays)

    def start_all_to_all(self, *arrays):
        return self._start(self.all_to_all, arrays)

    def _start(self, operation, arrays):
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        return _Late(self, operation, arrays)


class _Late(Request):
    def __init__(self, comm, operation, arrays):
        self.comm, self.operation, self.arrays = comm, operation, arrays

    def wait(self):
        self.operation(*self.arrays)
        self.comm.under_way -= 1


STARTED = [AtOnce, AtTheEnd]
