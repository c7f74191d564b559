"""The PMI-1 protocol without sockets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from singa_dask.cluster.pmi import MAX_VALUE, Drop, PmiState, Send, process_mapping

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
        max_size=60,
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
