"""The clock of a step."""

from hypothesis import given
from hypothesis import strategies as st

from singa_dask.planning.timeline import Arrive, Ask, Compute, Send, Submit, Task, Timeline, Wait

SECONDS = st.floats(0.0, 5.0)


def sent(key, cpu, wire):
    return Task((Compute(cpu, "exchange"), Send(key, wire), Arrive(key)))


def test_the_network_carries_one_message_after_another():
    two = [Submit(Task((Send("a", 1.0), Send("b", 2.0), Arrive("b")))), Wait("exchange")]
    assert Timeline(0.5).run(two).seconds == 3.0


def test_servers_answer_at_the_earliest_when_they_are_done_with_what_came_before():
    asked = [Submit(Task((Ask("a", 3.0, 2.0), Ask("b", 3.0, 2.0), Arrive("a"), Arrive("b")))), Wait("servers")]
    assert Timeline(0.5).run(asked).seconds == 4.0


def test_two_threads_on_one_core_share_it():
    step = [Submit(sent("a", 1.0, 0.0)), Compute(2.0, "layers"), Wait("exchange")]
    shared, each = Timeline(0.5).run(step), Timeline(1.0).run(step)
    assert (shared.seconds, shared.parts["exchange"]) == (3.0, 1.0)
    assert (each.seconds, each.parts["exchange"]) == (2.0, 0.0)
    assert shared.cpu == each.cpu == 3.0


def test_what_is_sent_beside_the_computing_is_hidden():
    step = [Submit(sent("a", 0.0, 3.0)), Compute(4.0, "layers"), Wait("exchange")]
    outcome = Timeline(0.5).run(step)
    assert (outcome.seconds, outcome.hidden) == (4.0, 3.0)
    moved = Task((Send("a", 3.0), Arrive("a")), "transitions")
    assert Timeline(0.5).run([Submit(moved), *step]).hidden == 1.0, "activations are none of the exchange"


@given(st.lists(st.tuples(SECONDS, SECONDS, SECONDS), max_size=6), st.floats(0.5, 1.0))
def test_overlap_takes_no_longer_than_one_after_the_other_and_no_less_than_either(layers, contention):
    tasks = [sent(str(i), cpu, wire) for i, (_, cpu, wire) in enumerate(layers)]
    beside = [
        act for (s, _, _), task in zip(layers, tasks, strict=True) for act in (Compute(s, "layers"), Submit(task))
    ]
    after = [Compute(s, "layers") for s, _, _ in layers] + [Submit(task) for task in tasks]
    overlapped, plain = (Timeline(contention).run([*script, Wait("exchange")]) for script in (beside, after))
    computing = sum(s for s, _, _ in layers)
    tolerance = 1e-9
    assert overlapped.seconds <= plain.seconds + tolerance
    assert overlapped.seconds >= max(computing, sum(cpu + wire for _, cpu, wire in layers)) - tolerance
    for outcome in (overlapped, plain):
        assert abs(sum(outcome.parts.values()) - outcome.seconds) < tolerance
        assert abs(outcome.cpu - computing - sum(cpu for _, cpu, _ in layers)) < tolerance
