"""The PMI server over real sockets, with ranks that are played by the test."""

from __future__ import annotations

import socket
import threading
import time

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
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline
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


def test_two_ranks_form_a_world(server):
    peers = [_Peer(server, rank) for rank in range(2)]
    assert [peer.hear() for peer in peers] == ["cmd=go"] * 2
    for peer in peers:
        peer.say("cmd=barrier_in")
    assert [peer.hear() for peer in peers] == ["cmd=barrier_out rc=0"] * 2
    for peer in peers:
        peer.say("cmd=ready")
    until(lambda: server.state.formed)
    for peer in peers:
        peer.close()


def test_a_wrong_token_is_dropped_and_the_world_forms_all_the_same(server):
    stranger = _Peer(server, 0, token="0" * 64)
    assert stranger.hear() == ""
    stranger.close()
    peers = [_Peer(server, rank) for rank in range(2)]
    assert [peer.hear() for peer in peers] == ["cmd=go"] * 2 and not server.state.failure
    for peer in peers:
        peer.close()


def test_who_says_nothing_is_dropped(monkeypatch):
    monkeypatch.setattr(pmi_server, "AUTHENTICATION_S", 0.1)
    with PmiServer(["node"] * 2) as server:
        stranger = _Peer(server)
        start = time.monotonic()
        assert stranger.hear() == "" and time.monotonic() - start < 3.0
        stranger.close()


def test_a_line_without_end_is_dropped(server):
    stranger = _Peer(server)
    stranger.sock.sendall(b"x" * 10_000)
    assert stranger.hear() == "" and not server.state.failure
    stranger.close()


def test_strangers_cannot_keep_the_ranks_out(server):
    """Twenty connections are kept for two ranks; the oldest of those that have not said who they are give way."""
    first = _Peer(server, 0)
    strangers = [_Peer(server) for _ in range(40)]
    until(lambda: len(server._connections) == 20 and _closed(strangers[20]))
    assert [_closed(stranger) for stranger in strangers] == [True] * 21 + [False] * 19
    peers = [first, _Peer(server, 1)]
    assert [peer.hear() for peer in peers] == ["cmd=go"] * 2
    for peer in (*strangers, *peers):
        peer.close()


def test_a_lost_rank_ends_the_others_at_once(server):
    peers = [_Peer(server, rank) for rank in range(2)]
    assert [peer.hear() for peer in peers] == ["cmd=go"] * 2
    peers[0].close()
    assert peers[1].hear() == ""
    until(lambda: "rank 0 was lost" in server.state.failure)
    assert not server.state.formed
    peers[1].close()


def test_a_rank_that_never_comes_is_named(server):
    peer = _Peer(server, 1)
    until(lambda: server.missing() == {0: "never connected"})
    assert not server.state.failure and not server.state.formed
    peer.close()


def test_closing_ends_the_thread_and_the_connections():
    others = set(threading.enumerate())
    server = PmiServer(["node"] * 2)
    (thread,) = (t for t in threading.enumerate() if t not in others and t.name == "singa-pmi")
    peer = _Peer(server, 0)
    server.fail("not today")
    assert not thread.is_alive(), "nobody else needs to close it"
    server.close()
    assert peer.hear() == "" and server.state.failure == "not today"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((server.endpoint.host, server.endpoint.port), timeout=1)
    peer.close()


def test_the_secret_is_not_shown_and_names_are_unique():
    with PmiServer(["a"]) as one, PmiServer(["a"]) as other:
        assert one.endpoint.token not in repr(one.endpoint)
        assert one.endpoint.token != other.endpoint.token and one.endpoint.kvsname != other.endpoint.kvsname
        assert one.endpoint.host == "127.0.0.1"


def test_a_line_of_the_largest_size_is_read(server):
    peers = [_Peer(server, rank) for rank in range(2)]
    assert [peer.hear() for peer in peers] == ["cmd=go"] * 2
    peers[0].say("cmd=" + "x" * (MAX_LINE - 4))
    assert peers[0].hear().startswith("cmd=xxx") and not server.state.failure
    peers[0].say("cmd=" + "x" * (MAX_LINE - 3))
    assert peers[0].hear() == "" and peers[1].hear() == "" and "rank 0 was lost" in server.state.failure
    for peer in peers:
        peer.close()


def test_lines_may_come_in_pieces_and_together(server):
    peers = [_Peer(server, rank) for rank in range(2)]
    assert [peer.hear() for peer in peers] == ["cmd=go"] * 2
    peers[0].file.write("cmd=get_app")
    peers[0].file.flush()
    time.sleep(0.01)
    peers[0].say("num\ncmd=get_universe_size")
    assert [peers[0].hear() for _ in range(2)] == ["cmd=appnum rc=0 appnum=0", "cmd=universe_size rc=0 size=2"]
    for peer in peers:
        peer.close()
