"""Dask workers and the tasks of ranks on them as a test plays them, by its own clock, without Dask."""

from types import SimpleNamespace

from simulation.client import Task

from singa_dask.cluster import remote
from singa_dask.cluster.rank import abort_rank, keep_rank
from singa_dask.errors import ClusterError


class Future(Task):
    released = False

    def release(self):
        self.released = True


class PlayedWorkers:
    """A Dask client, and what stands in `modules` for singa_dask.cluster.remote.

    there: what each worker answers, by address; mute: those that do not answer; stubborn: those whose rank does not
    leave; left: those whose rank has; stopped: the nannies whose worker is. held: what workers hold for others;
    threads: what has all of theirs. at: what happens, by time. futures: of ranks, by address. calls: what workers were
    asked, as (function, address, arguments); killed: whom nannies were to kill; given_back: those that were to take
    tasks again.
    """

    def __init__(self, monkeypatch, modules, there, mute=(), stubborn=()):
        self.there, self.mute, self.stubborn, self.now = dict(there), set(mute), stubborn, 1000.0
        self.held, self.threads, self.at = {}, {}, {}
        self.left, self.stopped, self.seen, self.futures = set(), set(), dict.fromkeys(there, 1.0), {}
        self.calls, self.killed, self.cancelled, self.submitted, self.given_back = [], [], [], [], []
        played = {
            "time": SimpleNamespace(monotonic=lambda: self.now, sleep=self.sleep),
            "last_seen": lambda client: dict(self.seen),
            "ending_of": lambda client, nanny, pid, address: f"ended as {nanny} says of {pid}",
            "without_a_thread": lambda client, all_: "; ".join(self.threads[a] for a in all_ if a in self.threads),
            "without_tasks_and_data": lambda client, addresses: (set(addresses) - self.held.keys(), str(self.held)),
            "take_tasks": lambda client, addresses: self.given_back.extend(addresses),
            "stopped_processes": lambda client, pids: self.stopped & pids.keys(),
            **{name: getattr(self, name) for name in ("alive", "run_each", "kill_processes")},
        }
        monkeypatch.setattr(remote, "time", played["time"])
        monkeypatch.setattr(remote, "stopped_processes", played["stopped_processes"])
        for module in modules:
            for name in played.keys() & vars(module).keys():
                monkeypatch.setattr(module, name, played[name])

    def sleep(self, seconds):
        self.now += seconds
        for due in [at for at in self.at if at <= self.now]:
            self.at.pop(due)()

    def alive(self, client, addresses=None):
        return self.there.keys() & set(self.there if addresses is None else addresses)

    def run_each(self, client, function, args, timeout_s):
        self.calls += [(function, address, given) for address, given in args.items()]
        lost = self.mute | (args.keys() - self.there.keys())
        return {a: TimeoutError("no answer") if a in lost else self.answer(function, a, *args[a]) for a in args}

    def answer(self, function, address, *given):
        if function is abort_rank and address not in self.stubborn:
            self.left.add(address)
            self.futures[address].settle("error", error=ClusterError(given[1]))
        return address not in self.left if function is keep_rank else self.there[address]

    def kill_processes(self, client, pids):
        self.killed.append(dict(pids))
        for address in pids:
            self.there.pop(address, None)

    def submit(self, function, plan, fn, args, **options):
        (address,) = options["workers"]
        self.submitted.append((function, plan, fn, args, options))
        return self.futures.setdefault(address, Future(options["key"]))

    def cancel(self, futures, force):
        self.cancelled.append((len(futures), force))

    def called(self, function):
        """Who was asked for this, and with which arguments."""
        return [(address, given) for name, address, given in self.calls if name is function]

    def asked(self, function):
        """Who was asked for this, in order."""
        return sorted(address for address, _ in self.called(function))
