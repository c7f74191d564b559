"""A worker's side of the exchange, and a server that many threads call."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from support.servers import contained, ones, server_plan

from singa_dask.errors import ClusterError, CommTimeout
from singa_dask.ops import Ops
from singa_dask.server import LocalLink, Partition, Server, ServerTraffic, Stub, partition
from singa_dask.server import stub as stub_module
from singa_dask.server.kept import save_slices
from singa_dask.server.messages import (
    Coded,
    Done,
    Fresh,
    Get,
    Inspect,
    Leave,
    Origin,
    Put,
    Reply,
    Request,
    Update,
)


class Slow:
    """A link that answers with `replies`, and afterwards when, and in the order in which, the test says so."""

    local = False

    def __init__(self, server: Server | None = None, *replies: Reply) -> None:
        self.server, self.replies = server, list(replies)
        self.said: list[Request] = []
        self.asked: list[tuple[Request, Future[Reply]]] = []

    def send(self, request: Request, out: np.ndarray | None = None) -> Future[Reply]:
        self.said.append(request)
        self.asked.append((request, future := Future()))
        if self.replies:
            self.answer(reply=self.replies.pop(0))
        return future

    def answer(self, at: int = 0, reply: Reply | None = None) -> None:
        request, future = self.asked.pop(at)
        future.set_result(self.server.call(request).result(5) if reply is None else reply)


def servers(cut: Partition, n: int, **options) -> dict[int, Server]:
    return {i: Server(server_plan(cut, i, **options).protocol(Ops())) for i in range(n)}


def stubs_of(cut: Partition, links: dict, nworkers: int = 1, **options) -> list[Stub]:
    return [Stub(cut.of_worker(i), links, **options) for i in range(nworkers)]


@pytest.fixture
def one():
    """A server with one slice of zeros."""
    cut = partition(16, 1, 1, beside=False)
    server = servers(cut, 1)[0]
    server.call(Put(0, ones(0.0)))
    return cut, server


def test_a_worker_without_parameters_has_nothing_to_say():
    cut = partition(16, 2, 1, beside=False)
    stub = Stub(cut.of_worker(1), {0: Slow()})
    empty = np.empty(0, np.float32)
    stub.put(empty, {}, 0)
    assert stub.get(empty, 4) == 4
    stub.push(4, empty, empty)
    stub.pull(empty)
    stub.leave()
    assert stub.take_traffic().updates == 0


@pytest.mark.parametrize("behind", [0, 1])
def test_workers_exchange_with_several_servers_bucket_by_bucket(behind):
    cut = partition(96, 2, 2, beside=False, bounds=[0, 32, 96])
    stubs = stubs_of(cut, {i: LocalLink(server) for i, server in servers(cut, 2).items()}, 2, behind=behind)
    assert [[(s.start, s.stop) for s in stub.slices] for stub in stubs] == [[(0, 16), (32, 64)], [(16, 32), (64, 96)]]
    every, gradient = np.full(96, np.nan, np.float32), np.arange(96, dtype=np.float32)
    for stub in stubs:
        stub.put(gradient, {"velocity": np.zeros(96, np.float32)}, 0)
    for others, stub in zip((48, 0), stubs, strict=True):
        stub.begin(stub.get(every, 0))
        assert np.isnan(every).sum() == others, "slices of others stay as they are"
    for step in range(4):
        for within in (range(32, 96), range(32)):  # the last parameters are complete first
            for stub in stubs:
                stub.push(step, gradient, every, within)
        for stub in stubs:
            stub.pull(every)
            assert stub.take_traffic().updates == (step > 0 or not behind)
    for stub in stubs:
        stub.pull(every, everything=True)
        for i, part in enumerate(stub.slices):
            state = stub.inspect(i)
            np.testing.assert_array_equal(state.values, -3 * gradient[part.start : part.stop])
            assert state.version == 4 and state.state["velocity"].shape == (part.size,)
        stub.leave()
    np.testing.assert_array_equal(every, -3 * gradient)


def test_one_behind_computes_on_while_one_update_is_under_way(one):
    cut, server = one
    link = Slow(server)
    (stub,) = stubs_of(cut, {0: link}, behind=1)
    out, gradient, sums = ones(0.0), ones(), [0, 0, 1, 11, 111, 1111, 11111]
    for step in range(6):
        gradient[...] = 10.0**step
        stub.push(step, gradient, out)
        gradient[...] = np.nan
        under_way = [10.0**k for k in range(max(0, step - 1), step + 1)]
        assert [request.gradient[0] for request, _ in link.asked] == under_way
        if step:
            link.answer()
        assert (out == -sums[step]).all(), "the parameters are in use"
        stub.pull(out)
        assert (out == -sums[step + 1]).all() and len(link.asked) == 1
    link.answer()
    stub.pull(out, everything=True)
    assert (out == -111111).all()


def test_replies_that_come_out_of_order_end_with_the_newest_parameters():
    cut = partition(32, 1, 2, beside=False)
    parts = servers(cut, 2)
    links = {i: Slow(server) for i, server in parts.items()}
    for i, server in parts.items():
        server.call(Put(i, ones(0.0)))
    (stub,) = stubs_of(cut, links, behind=1)
    out = ones(0.0, 32)
    for step in range(2):
        stub.push(step, ones(1.0, 32), out)
    for i, link in links.items():
        requests, futures = zip(*link.asked, strict=True)
        # On server 0 the second update gets there first. The first one's reply comes last of all.
        replies = {request.step: parts[i].call(request) for request in requests[:: 1 if i else -1]}
        for step in (1, 0):
            futures[step].set_result(replies[step].result(5))
    stub.pull(out, everything=True)
    assert (out == -2).all()
    stub.push(2, ones(1.0, 32), out)
    assert [link.said[2].based_on for link in links.values()] == [2, 2]


def test_a_new_generation_begins_where_the_servers_are_with_one_clock():
    cut = partition(32, 1, 2, beside=False)
    links = {i: Slow(None, Fresh(ones(), 40 + i, 7 - i, clock=20 + i)) for i in range(2)}
    stub = Stub(cut.slices, links, group=3, generation=2)
    assert stub.get(ones(0.0, 32), 5) == 7 and stub.clock == 21
    assert links[0].said == [Get(0, Origin(3, 2, 5))]
    stub.begin(8)
    stub.push(8, ones(1.0, 32), ones(0.0, 32))
    updates = [link.said[1] for link in links.values()]
    assert [(u.origin, u.step, u.based_on) for u in updates] == [(Origin(3, 2, 8, 21), 8, 40 + i) for i in range(2)]
    stub.begin(8, clock=30)
    assert stub.clock == 30


@pytest.mark.parametrize("silent", [0, 1])
def test_parameters_are_put_and_a_group_has_left_when_every_server_has_answered(silent):
    cut = partition(32, 1, 2, beside=False)
    links = {i: Slow(None, *([Done()] * (i != silent) * 2)) for i in range(2)}
    stub = Stub(cut.slices, links, group=3, generation=2, patience_s=0.15)
    with pytest.raises(CommTimeout, match=r"group 3 waited 0\.15 s .*max_staleness"):
        stub.put(ones(3.0, 32), {}, 5)
    with pytest.raises(CommTimeout):
        stub.leave()
    for i, link in links.items():
        put, leave = link.said
        assert (put.slice, put.values.tolist(), put.version, put.step) == (i, [3.0] * 16, 5, 5)
        assert leave == Leave(i, Origin(3, 2))
        link.replies, link.asked = [Done()], []
    Stub(cut.slices, links).leave()
    assert links[0].said[-1] == Leave(0, Origin(0, 0)), "a group's first generation, unless one says so"


# Figures


class Clock:
    """Time that passes when the test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now

    monotonic = perf_counter

    def pass_once_wanted(self, seconds: float, link: Slow) -> None:
        """The oldest request is answered so much later than somebody begins to wait for it."""
        _, future = link.asked[0]
        result = future.result

        def wanted(timeout: float) -> Reply:
            self.now, future.result = self.now + seconds, result
            link.answer()
            return result(timeout)

        future.result = wanted


def test_figures_of_a_link_that_travels(one, monkeypatch):
    cut, server = one
    link, clock = Slow(server), Clock()
    monkeypatch.setattr(stub_module, "time", clock)
    (stub,) = stubs_of(cut, {0: link})
    out = ones(0.0)
    for step in range(2):
        stub.push(step, ones(), out)
        for made in range(2):
            server.call(Update(0, Origin(7), 2 * step + made, ones()))
        clock.now += 1
        clock.pass_once_wanted(3, link)
        stub.pull(out)
    stub.push(2, ones(), out)
    link.answer()
    clock.now += 100  # an update takes until its reply is here, and not until it is wanted
    stub.pull(out)
    assert stub.take_traffic() == ServerTraffic(3, 2 * 3, 2 * (1 + 3), 4, 2, 3 * 2 * 16 * 4)
    assert stub.take_traffic() == ServerTraffic()


def test_an_update_is_as_stale_as_its_stalest_slice():
    cut = partition(32, 1, 2, beside=False)
    (stub,) = stubs_of(cut, {i: Slow(None, Fresh(ones(), 1, 1, staleness=5 - 3 * i)) for i in range(2)})
    stub.push(0, ones(1.0, 32), ones(0.0, 32))
    stub.pull(ones(0.0, 32))
    assert (stub.exchanged.updates, stub.exchanged.staleness, stub.exchanged.staleness_max) == (1, 5, 5)


class Remote:
    """A link whose gradients travel: the server decodes them."""

    local = False

    def __init__(self, server: Server) -> None:
        self.server = server

    def send(self, request: Request, out: np.ndarray | None = None) -> Future[Reply]:
        if isinstance(request, Update) and isinstance(request.gradient, Coded):
            request = replace(request, gradient=request.gradient.decoded())
        return self.server.call(request)


@pytest.mark.parametrize(
    ("name", "sparsity", "nbytes"),
    [("kHalf", None, 200), ("kPartial", 0.25, 104), ("kTopK", 0.05, 21), ("kFull", None, 400)],
)
def test_gradients_that_travel_are_coded_and_nothing_is_lost(name, sparsity, nbytes):
    cut = partition(112, 1, 1, beside=False)
    server = servers(cut, 1)[0]
    stub = Stub(cut.slices, {0: Remote(server)}, codec={"name": name, "sparsity": sparsity})
    values, draw, total = np.zeros(112, np.float32), np.random.default_rng(0), np.zeros(112)
    stub.put(values, {}, 0)
    stub.begin(stub.get(values, 0))
    for step in range(5):
        gradient = draw.normal(size=112).astype(np.float32)
        total += gradient
        stub.push(step, gradient, values)
        stub.pull(values)
    kept = stub.residual.get(0, np.zeros(112))
    np.testing.assert_allclose(kept - values, total, rtol=1e-5, atol=1e-5)
    assert kept.any() == (name != "kFull")
    per_step = stub.take_traffic().nbytes / 5
    assert per_step - 448 == pytest.approx(nbytes * 1.12, rel=0.1)  # besides the reply
    other = Stub(cut.slices, {0: Remote(server)}, codec={"name": name, "sparsity": sparsity})
    if name != "kFull":
        assert not other.take_over(stub.residual)
        np.testing.assert_array_equal(other.residual[0], kept)


@pytest.mark.parametrize("step", [0, 1, 3])
def test_a_code_of_one_part_per_step_sends_that_of_the_step(step):
    link = Slow()
    stub = Stub(partition(64, 1, 1, beside=False).slices, {0: link}, codec={"name": "kPartial", "sparsity": 0.25})
    stub.push(step, ones(size=64), ones(0.0, 64))
    (update,) = (request for request, _ in link.asked)
    assert np.flatnonzero(update.gradient.decoded()).tolist() == list(range(16 * step, 16 * step + 16))


def test_what_was_kept_back_of_a_slice_that_is_not_coded_any_more_comes_back():
    cut = partition(112, 1, 2, beside=False)
    links = {i: Remote(server) for i, server in servers(cut, 2).items()}
    stub = Stub(cut.slices, links, codec={"name": "kTopK", "sparsity": 0.01}, exactly={0})
    kept = {i: np.full(s.size, i + 1, np.float32) for i, s in enumerate(cut.slices)}
    rest = stub.take_over(kept)
    assert list(rest) == [0] and (rest[0] == 1).all()
    assert list(stub.residual) == [1] and (stub.residual[1] == 2).all()
    assert list(Stub(cut.slices, links).take_over(kept)) == [0, 1]


def test_nothing_is_coded_for_a_server_in_the_same_process_and_nothing_travels(one):
    cut, server = one
    (stub,) = stubs_of(cut, {0: LocalLink(server)}, codec={"name": "kTopK", "sparsity": 0.01})
    out = ones(0.0)
    stub.push(0, ones(), out)
    stub.pull(out)
    assert (out == -1).all() and not stub.residual and stub.take_traffic().nbytes == 0


# What goes wrong


def test_an_aborted_group_does_not_go_on_waiting(one):
    cut, server = one
    reasons = iter(["", "rank 2 was lost"])
    (stub,) = stubs_of(cut, {0: Slow(server)}, aborted=lambda: next(reasons))
    stub.push(0, ones(), ones(0.0))
    with pytest.raises(ClusterError, match="rank 2 was lost"):
        stub.pull(ones(0.0))


def test_a_refusal_is_an_error_that_says_why(one):
    cut, server = one
    server.call(Get(0, Origin(4, 2)))
    stub = Stub(cut.slices, {0: LocalLink(server)}, group=4, generation=1)
    with pytest.raises(ClusterError, match=r"group 4: .*generation 2"):
        stub.get(ones(0.0), 0)


@pytest.mark.parametrize("error", [ClusterError("the server is lost"), TimeoutError("of the link itself")])
def test_what_the_link_raises_is_raised_at_once(one, error):
    cut, _ = one
    link = Slow()
    (stub,) = stubs_of(cut, {0: link}, patience_s=1)
    stub.push(0, ones(), ones(0.0))
    link.asked[0][1].set_exception(error)
    with pytest.raises(type(error), match=str(error)):
        stub.pull(ones(0.0))


# A server and many threads


@pytest.mark.parametrize("bound", [None, 2])
def test_a_server_that_many_threads_call_loses_nothing(bound):
    ngroups, steps, woken = 4, 100, []
    cut = partition(64, 2, 1, beside=False)
    server = servers(cut, 1, groups=range(ngroups), max_staleness=bound)[0]
    server.on_update = lambda: woken.append(1)
    start = threading.Barrier(2 * ngroups)

    def run(member: int) -> None:
        group, worker = divmod(member, 2)
        stub = Stub(cut.of_worker(worker), {0: LocalLink(server)}, group, behind=group % 2, patience_s=30)
        every = ones(0.0, 64)
        out = every[32 * worker : 32 * worker + 32]
        start.wait(10)
        stub.put(every, {}, 0)
        stub.begin(stub.get(every, 0))
        for step in range(steps):
            stub.push(step, ones(float(group + 1), 64), every)
            stub.pull(every)
            # Copies are whole: never half of another group's update.
            assert (out == out[0]).all() and out[0] <= -(group + 1) * (step + 1 - stub.behind)
        stub.pull(every, everything=True)
        stub.leave()

    with ThreadPoolExecutor(2 * ngroups) as pool:
        list(pool.map(run, range(2 * ngroups), timeout=40))
    for index in range(2):
        state = server.call(Inspect(index)).result(1)
        assert (state.values == -steps * 10).all() and state.version == ngroups * steps
    assert len(woken) == 2 * ngroups * steps


def test_a_live_server_replies_with_the_very_arrays():
    cut = partition(16, 1, 1, beside=False)
    values = ones(0.0)
    server = Server(server_plan(cut).protocol(Ops(), copy=False), live=True)
    server.call(Put(0, values))
    assert server.call(Get(0, Origin(0))).result(1).values is values


def test_a_call_that_was_given_up_or_withdrawn_does_not_disturb_the_others():
    cut = partition(16, 1, 1, beside=False)
    server = servers(cut, 1, groups=(0, 1), max_staleness=0)[0]
    server.call(Put(0, ones(0.0)))
    gone, held, waiting = (server.call(Update(0, Origin(0), 0, ones())) for _ in range(3))
    assert gone.cancel()
    assert [server.withdraw(held, 0) for _ in range(2)] == [True, False]
    assert server.call(Update(0, Origin(1), 0, ones())).result(1).version == waiting.result(1).version == 2
    assert not server.withdraw(waiting, 0)
    server.retire()
    assert not held.done(), "it is forgotten"


# A step that some slices have, and others have not


@pytest.mark.parametrize("kept", [True, False], ids=["with copies", "without"])
def test_a_group_begins_with_the_step_that_all_slices_have(kept):
    """Slices that are ahead go back, if there is a copy; else the repeated step adds nothing to them."""
    cut = partition(64, 1, 2, beside=False)
    made = servers(cut, 2)
    shadows = [save_slices(server.protocol, (), lambda nbytes: True) for server in (made.values() if kept else ())]
    assert None not in shadows
    links = {i: LocalLink(server) for i, server in made.items()}
    lost, values = Stub(cut.slices, links), np.zeros(64, np.float32)
    lost.put(values, {}, 0)
    lost.begin(lost.get(values, 0))
    for step, within in ((0, None), (1, None), (2, range(32))):
        lost.push(step, np.full(64, -1, np.float32), values, within)
        lost.pull(values, everything=True)
    stub = Stub(cut.slices, links, generation=1)
    assert stub.get(values, 0) == 3 and stub.steps == [3, 2] and values.sum() == 32 * (3 + 2)
    stub.go_back(values, 2)
    assert stub.steps == ([2, 2] if kept else [3, 2]) and (values[:32] == (2 if kept else 3)).all()
    stub.begin(2)
    for step in (2, 3):
        stub.push(step, np.full(64, -1, np.float32), values)
        stub.pull(values)
    assert (values == 4).all(), "each step once"
    assert all(contained(ledger, 0) == {0, 1, 2, 3} for ledger in stub.ledgers)
