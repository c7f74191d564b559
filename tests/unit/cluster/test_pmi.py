"""The PMI-1 protocol without sockets, and its server over real ones, with ranks that are played by the test."""

import socket
import threading
import time
from contextlib import ExitStack, closing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from singa_dask.cluster import pmi_server
from singa_dask.cluster.pmi import MAX_LINE, MAX_VALUE, Drop, PmiState, Send, process_mapping
from singa_dask.cluster.pmi_server import PmiServer

TOKEN = "s3cret"


def _state(size=3):
    return PmiState(size, TOKEN, "kvs_1", process_mapping(["node"] * size))


def _hello(state, connection, rank, size=None, token=TOKEN):
    return state.handle(connection, f"cmd=hello token={token} rank={rank} size={size or state.size}")


def _joined(size=3):
    """A state in which rank r has said hello on connection 10 + r."""
    state = _state(size)
    for rank in range(size):
        _hello(state, 10 + rank, rank)
    return state


def test_every_rank_goes_when_the_last_has_said_hello():
    state = _state()
    assert _hello(state, 12, 2) == [] and _hello(state, 10, 0) == []
    assert state.missing() == {1: "never connected"}
    assert sorted(_hello(state, 11, 1), key=lambda s: s.connection) == [Send(c, "cmd=go") for c in (10, 11, 12)]


@pytest.mark.parametrize(
    "line",
    [
        "",
        "cmd=init pmi_version=1",
        "cmd=hello",
        "cmd=hello token= rank=0 size=3",
        f"cmd=hallo token={TOKEN} rank=0 size=3",
    ],
)
def test_what_does_not_authenticate_first_is_dropped_and_changes_nothing(line):
    state = _state()
    assert state.handle(1, line) == [Drop(1, "not authenticated")]
    assert state.missing() == dict.fromkeys(range(3), "never connected") and not state.failure


@pytest.mark.parametrize(
    ("rank", "size"),
    [*((rank, 3) for rank in ("0", "3", "-1", "x", "", "1e0", "99999999999999999999")), ("1", 4)],
)
def test_a_rank_that_is_not_awaited_is_refused(rank, size):
    state = _state()
    _hello(state, 1, 0)
    assert [type(action) for action in _hello(state, 2, rank, size)] == [Send, Drop] and list(state.ranks) == [0]


def test_values_reach_the_others_and_cannot_be_replaced():
    state = _joined()
    put = "cmd=put kvsname=kvs_1 key=addr-1 value=a=b c"
    assert state.handle(11, put) == [Send(11, "cmd=put_result rc=0 msg=success")]
    assert "rc=-1" in state.handle(12, put.replace("a=b c", "evil"))[0].line
    assert state.handle(10, "cmd=get kvsname=kvs_1 key=addr-1")[0].line.endswith("value=a=b c")
    assert "rc=-1" in state.handle(10, "cmd=get kvsname=kvs_1 key=addr-2")[0].line
    assert "rc=-1" in state.handle(10, "cmd=get kvsname=other key=addr-1")[0].line
    assert state.handle(10, "cmd=get kvsname=kvs_1 key=PMI_process_mapping")[0].line.endswith("(vector,(0,1,3))")


@pytest.mark.parametrize(
    ("key", "value", "answer"),
    [
        ("k" * 64, "v" * MAX_VALUE, "rc=0"),
        ("k" * 65, "v", "rc=-1"),
        ("k", "v" * (MAX_VALUE + 1), "rc=-1"),
        ("", "v", "rc=-1"),
    ],
)
def test_values_have_limits(key, value, answer):
    assert answer in _joined().handle(10, f"cmd=put kvsname=kvs_1 key={key} value={value}")[0].line


def test_so_many_values_are_kept():
    state = _joined()
    answers = [state.handle(10, f"cmd=put kvsname=kvs_1 key=k{i} value=v")[0].line for i in range(3 * 256 + 1)]
    assert all("rc=0" in answer for answer in answers[:-1]) and "full" in answers[-1]


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        ("init pmi_version=1", "cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1"),
        ("get_maxes", "cmd=maxes rc=0 kvsname_max=64 keylen_max=64 vallen_max=1024"),
        ("get_my_kvsname", "cmd=my_kvsname rc=0 kvsname=kvs_1"),
        ("get_universe_size", "cmd=universe_size rc=0 size=3"),
        ("finalize", "cmd=finalize_ack rc=0"),
    ],
)
def test_what_mpich_asks_is_answered(command, answer):
    assert _joined().handle(11, f"cmd={command}") == [Send(11, answer)]


def test_a_rank_that_comes_too_late_is_dropped():
    state = _state()
    assert state.fail("the driver gave up") == [] and state.fail("again") == []
    assert _hello(state, 10, 0) == [Drop(10, "the driver gave up")] and not state.ranks


def test_a_barrier_lets_all_go_together_and_again():
    state = _joined()
    for _ in range(2):
        assert state.handle(10, "cmd=barrier_in") == [] and state.handle(12, "cmd=barrier_in") == []
        assert state.missing() == {1: "connected, but did not come out of MPI_Init"}
        out = state.handle(11, "cmd=barrier_in")
        assert {send.connection for send in out} == {10, 11, 12} and {send.line for send in out} == {
            "cmd=barrier_out rc=0"
        }


def test_the_world_has_formed_when_every_rank_is_ready():
    state = _joined()
    for rank in range(3):
        assert not state.formed
        state.handle(10 + rank, "cmd=ready")
    assert state.formed and state.missing() == {}
    assert state.lost(11) == [] and not state.failure


@pytest.mark.parametrize(
    ("lose", "failure"),
    [
        (lambda state: state.lost(11), "rank 1 was lost while the group formed"),
        (lambda state: state.handle(12, "cmd=abort exitcode=1"), "rank 2"),
    ],
    ids=["lost", "aborted"],
)
def test_a_rank_that_does_not_get_through_drops_every_other(lose, failure):
    state = _joined()
    state.handle(10, "cmd=barrier_in")
    assert {drop.connection for drop in lose(state)} == {10, 11, 12} and failure in state.failure
    assert isinstance(state.handle(10, "cmd=barrier_in")[0], Drop)


def test_losing_a_stranger_or_a_finalized_rank_has_no_consequence():
    state = _joined()
    state.handle(11, "cmd=finalize")
    assert state.lost(99) == [] and state.lost(11) == [] and not state.failure


def test_unknown_commands_are_answered_so_that_nobody_waits():
    assert "rc=-1" in _joined().handle(10, "cmd=spawn nprocs=2")[0].line


@pytest.mark.parametrize(
    ("nodes", "mapping"),
    [
        (["a"], "(vector,(0,1,1))"),
        (["a", "a", "b", "b"], "(vector,(0,1,2),(1,1,2))"),
        (["a", "b", "a"], "(vector,(0,1,1),(1,1,1),(0,1,1))"),
    ],
)
def test_process_mapping(nodes, mapping):
    assert process_mapping(nodes) == mapping


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 5),
            st.one_of(
                st.text(max_size=40),
                st.builds(
                    "cmd={} token={} rank={} size=3 kvsname=kvs_1 key=k value=v".format,
                    st.sampled_from(
                        ["hello", "put", "get", "barrier_in", "init", "finalize", "abort", "ready", "mcmd"]
                    ),
                    st.sampled_from([TOKEN, "wrong", ""]),
                    st.integers(-1, 4),
                ),
                st.none(),
            ),
        ),
        max_size=30,
    )
)
def test_no_sequence_of_lines_breaks_the_rules(events):
    """Only the token makes a rank; a rank stays with its connection; strangers are told nothing and harm nothing."""
    state = _state()
    for connection, line in events:
        known = {rank: entry.connection for rank, entry in state.ranks.items()}
        failed = bool(state.failure)
        actions = state.lost(connection) if line is None else state.handle(connection, line)
        now = {rank: entry.connection for rank, entry in state.ranks.items()}
        assert now.items() >= known.items() and set(now) <= {0, 1, 2} and len(set(now.values())) == len(now)
        if set(now) - set(known):
            assert line is not None and f"token={TOKEN} " in line
        if connection not in now.values():
            assert bool(state.failure) == failed
            assert {action.connection for action in actions} <= {connection}
            assert all("value" not in action.line for action in actions if isinstance(action, Send))
        assert state.ready <= set(now)


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
