"""Nannies without Dask."""

import asyncio
import pickle
import threading
from itertools import count
from types import SimpleNamespace

from singa_dask.cluster.nanny_store import NannyStore, left_behind


def room(nbytes):
    return True


class Nannies:
    """Nannies by address, which a thread acts for, as Dask's in each of them. No two tests have one in common."""

    numbers = count()

    def __init__(self):
        self.there, self.loop = {}, asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()

    def start(self):
        """Start one; its address."""
        address = f"nanny{next(self.numbers):06}"
        self.there[address] = SimpleNamespace(address=address, handlers={})
        return address

    def store(self, own, owner, version, orphan_s=60.0, room=room):
        """Of a process whose nanny this is."""
        worker = SimpleNamespace(rpc=self.rpc, nanny=own, loop=SimpleNamespace(asyncio_loop=self.loop))
        return NannyStore(worker, owner, version, orphan_s, room=room)

    def rpc(self, address):
        """How a worker reaches a nanny."""

        async def run(function, args):
            try:
                result = pickle.loads(function)(*pickle.loads(args), dask_worker=self.there[address])
                return {"status": "OK", "result": result}
            except ValueError as error:
                return {"status": "error", "exception": error}

        async def singa_dask_saved(message):
            return self.there[address].handlers["singa_dask_saved"](pickle.loads(pickle.dumps(message.data)))

        return SimpleNamespace(run=run, singa_dask_saved=singa_dask_saved)

    def ask(self, client, function, args, timeout_s):
        """As cluster.remote.ask_nannies."""
        return {address: function(*given, dask_worker=self.there[address]) for address, given in args.items()}

    def found(self, run, *nannies, **options):
        """What the driver of a run finds."""
        return left_behind(None, nannies or self.there, run, **options)

    def run(self, coroutine):
        """What a coroutine returns in the thread of Dask."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(20)

    def close(self):
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(5)
        self.loop.close()


def no_room(nbytes):
    return False


def broken_room(nbytes):
    raise ValueError("no memory information")
