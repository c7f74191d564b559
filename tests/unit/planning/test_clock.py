"""The clock of a step."""

from hypothesis import given
from hypothesis import strategies as st

from singa_dask.planning.clock import Clock

SECONDS = st.floats(0.0, 5.0)


def exchange(clock, number, cpu, wire, part="exchange"):
    with clock.beside(part):
        clock.compute(cpu, "exchange")
        clock.send(("network", "sum", number), busy=wire)
        clock.arrive(("network", "sum", number))


def test_the_network_carries_one_message_after_another():
    clock = Clock(0.5)
    clock.send(("network", "a", 0), busy=1.0)
    clock.send(("network", "b", 0), busy=2.0)
    clock.arrive(("network", "b", 0))
    assert clock.now == clock.parts["exchange"] == 3.0


def test_servers_answer_at_the_earliest_when_they_are_done_with_what_came_before():
    clock = Clock(0.5)
    for name in "ab":
        clock.send(("servers", name, 0), busy=2.0, seconds=3.0)
    for name in "ab":
        clock.arrive(("servers", name, 0))
    assert clock.now == clock.parts["servers"] == 4.0


def test_two_threads_on_one_core_share_it():
    shared, each = Clock(0.5), Clock(1.0)
    for clock in (shared, each):
        exchange(clock, 0, 1.0, 0.0)
        clock.compute(2.0, "layers")
        clock.wait("exchange")
    assert (shared.now, shared.parts["exchange"]) == (3.0, 1.0)
    assert (each.now, each.parts["exchange"]) == (2.0, 0.0)
    assert shared.cpu == each.cpu == 3.0


def test_what_is_sent_beside_the_computing_is_hidden():
    clock, later = Clock(0.5), Clock(0.5)
    exchange(later, 1, 0.0, 3.0, "transitions")
    for each in (clock, later):
        exchange(each, 0, 0.0, 3.0)
        each.compute(4.0, "layers")
        each.wait("exchange")
    assert (clock.now, clock.hidden) == (4.0, 3.0)
    assert later.hidden == 1.0, "activations are none of the exchange"


@given(st.lists(st.tuples(SECONDS, SECONDS, SECONDS), max_size=6), st.floats(0.5, 1.0))
def test_overlap_takes_no_longer_than_one_after_the_other_and_no_less_than_either(layers, contention):
    overlapped, plain = Clock(contention), Clock(contention)
    for i, (seconds, cpu, wire) in enumerate(layers):
        overlapped.compute(seconds, "layers")
        exchange(overlapped, i, cpu, wire)
        plain.compute(seconds, "layers")
    for i, (_, cpu, wire) in enumerate(layers):
        exchange(plain, i, cpu, wire)
    for clock in (overlapped, plain):
        clock.wait("exchange")
    computing = sum(s for s, _, _ in layers)
    tolerance = 1e-9
    assert overlapped.now <= plain.now + tolerance
    assert overlapped.now >= max(computing, sum(cpu + wire for _, cpu, wire in layers)) - tolerance
    for clock in (overlapped, plain):
        assert abs(sum(clock.parts.values()) - clock.now) < tolerance
        assert abs(clock.cpu - computing - sum(cpu for _, cpu, _ in layers)) < tolerance
