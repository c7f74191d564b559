"""The PMI server over real sockets, with ranks that are played by the test."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import ExitStack, closing

import pytest

from singa_dask.cluster import pmi_server
from singa_dask.cluster.pmi import MAX_LINE
from singa_dask.cluster.pmi_server import PmiServer


class _Peer:
    def __init__(self, server, rank=None, token=None, size=2):
        self.sock = socket.create_connection((server.endpoint.host, server.endpoint.port), timeout=5)
        self.file = self.sock.makefile("rw", newline="\n")
        if rank is not None:
            self.say(f"cmd=hello token={token or server.endpoint.token} rank={rank} size={size}")

    def say(self, line):
        self.file.write(line + "\n")
        self.file.flush()

    def hear(self):
        try:
            return self.file.readline().strip()
        except ConnectionResetError:
            return ""

    def close(self):
        self.file.close()
        self.sock.close()


def until(condition):
    while not condition():
        time.sleep(0.001)


def _closed(peer):
    """Whether the server has closed this connection, on which it says nothing."""
    peer.sock.setblocking(False)
    try:
        return peer.sock.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


@pytest.fixture
def server():
    with PmiServer(["node"] * 2) as server:
        yield server


@pytest.fixture
def connect(server):
    """Connect to the server; says hello as a rank, if there is one."""
    with ExitStack() as peers:
        yield lambda *args, **options: peers.enter_context(closing(_Peer(server, *args, **options)))


@pytest.fixture
def ranks(connect):
    """The two ranks, which have met."""
    ranks = [connect(rank) for rank in range(2)]
    assert [peer.hear() for peer in ranks] == ["cmd=go"] * 2
    return ranks


def test_two_ranks_form_a_world(server, ranks):
    for peer in ranks:
        peer.say("cmd=barrier_in")
    assert [peer.hear() for peer in ranks] == ["cmd=barrier_out rc=0"] * 2
    for peer in ranks:
        peer.say("cmd=ready")
    until(lambda: server.state.formed)


def test_a_wrong_token_and_a_line_without_end_are_dropped_and_the_world_forms_all_the_same(server, connect):
    assert connect(0, token="0" * 64).hear() == ""
    endless = connect()
    endless.sock.sendall(b"x" * 10_000)
    assert endless.hear() == ""
    assert [peer.hear() for peer in (connect(0), connect(1))] == ["cmd=go"] * 2 and not server.state.failure


def test_who_says_nothing_is_dropped(server, connect, monkeypatch):
    monkeypatch.setattr(pmi_server, "AUTHENTICATION_S", 0.1)
    assert connect().hear() == ""


def test_strangers_cannot_keep_the_ranks_out(server, connect):
    """Twenty connections are kept for two ranks; the oldest of those that have not said who they are give way."""
    first, *strangers = connect(0), *(connect() for _ in range(40))
    until(lambda: len(server._connections) == 20 and _closed(strangers[20]))
    assert [_closed(stranger) for stranger in strangers] == [True] * 21 + [False] * 19
    assert [peer.hear() for peer in (connect(1), first)] == ["cmd=go"] * 2


def test_a_lost_rank_ends_the_others_at_once(server, ranks):
    ranks[0].close()
    assert ranks[1].hear() == ""
    until(lambda: "rank 0 was lost" in server.state.failure)
    assert not server.state.formed


def test_a_rank_that_never_comes_is_named(server, connect):
    connect(1)
    until(lambda: server.missing() == {0: "never connected"})
    assert not server.state.failure and not server.state.formed


def test_closing_ends_the_thread_and_the_connections():
    others = set(threading.enumerate())
    server = PmiServer(["node"] * 2)
    (thread,) = (t for t in threading.enumerate() if t not in others and t.name == "singa-pmi")
    with closing(_Peer(server, 0)) as peer:
        server.fail("not today")
        assert not thread.is_alive(), "nobody else needs to close it"
        server.close()
        assert peer.hear() == "" and server.state.failure == "not today"
        with pytest.raises(ConnectionRefusedError):
            _Peer(server)


def test_the_secret_is_not_shown_and_names_are_unique():
    with PmiServer(["a"]) as one, PmiServer(["a"]) as other:
        assert one.endpoint.token not in repr(one.endpoint)
        assert one.endpoint.token != other.endpoint.token and one.endpoint.kvsname != other.endpoint.kvsname
        assert one.endpoint.host == "127.0.0.1"


def test_a_line_of_the_largest_size_is_read(server, ranks):
    ranks[0].say("cmd=" + "x" * (MAX_LINE - 4))
    assert ranks[0].hear().startswith("cmd=xxx") and not server.state.failure
    ranks[0].say("cmd=" + "x" * (MAX_LINE - 3))
    assert ranks[0].hear() == "" and ranks[1].hear() == "" and "rank 0 was lost" in server.state.failure


def test_lines_may_come_in_pieces_and_together(ranks):
    ranks[0].file.write("cmd=get_app")
    ranks[0].file.flush()
    time.sleep(0.01)
    ranks[0].say("num\ncmd=get_universe_size")
    assert [ranks[0].hear() for _ in range(2)] == ["cmd=appnum rc=0 appnum=0", "cmd=universe_size rc=0 size=2"]
