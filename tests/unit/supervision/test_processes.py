"""What the driver knows of nannies."""

import pytest

from singa_dask.cluster import WorkerInfo
from singa_dask.supervision.processes import Processes


def processes(*machines):
    """Worker w<i> of nanny n<i> on each of these machines."""
    made = Processes()
    made.there(WorkerInfo(f"w{i}", node=node, pid=i, nanny=f"n{i}") for i, node in enumerate(machines))
    return made


def test_another_nanny_of_the_machine_is_one_of_the_run_and_they_take_turns():
    made = processes("a", "a", "b", "a", "a")
    used = {"w0", "w1", "w2", "w4"}
    assert [made.also(f"w{i}", used) for i in (0, 1, 4)] == ["n1", "n4", "n0"]
    assert made.also("w2", used) == "", "it is alone on its machine"
    assert made.also("unknown", used) == ""


def test_processes_are_found_by_their_nannies():
    made = processes("a", "b")
    made.there([WorkerInfo("w9", pid=9)])
    assert made.by_nanny(["w1", "w9", "unknown"]) == {"n1": ("w1", 1)}


@pytest.mark.parametrize(
    ("machines", "used", "address", "wanted", "nannies"),
    [
        ("aabbb", {"w0", "w1", "w2", "w3"}, "w0", None, ["n2", "n3", "n2"]),  # those of the run take turns
        ("aabbb", {"w0", "w1", "w2", "w3"}, "w2", None, ["n0"]),
        ("aabbb", {"w0", "w1", "w2", "w3"}, "w0", 0, [""]),
        ("aabbb", {"w0", "w1", "w2", "w3"}, "unknown", 1, [""]),  # it keeps no shadow
        ("aab", {"w0", "w1"}, "w0", None, [""]),  # no process of the run is elsewhere
        ("aab", {"w0", "w1"}, "w0", 1, ["n2"]),
        ("aa", {"w0", "w1"}, "w0", 1, ["n1"]),
        ("a", {"w0", "w1"}, "w0", 1, [""]),
    ],
)
def test_replicas_are_on_other_machines_or_elsewhere_if_they_are_wanted(machines, used, address, wanted, nannies):
    made = processes(*machines)
    assert [made.keeps_replica(address, used, n, wanted=wanted) for n in range(len(nannies))] == nannies


def test_a_replica_is_where_a_worker_has_answered_lately():
    made = processes("a", "b", "c")
    made.there([WorkerInfo("w0", node="a", nanny="n0"), WorkerInfo("w2", node="c", nanny="n2")])
    assert {made.keeps_replica("w0", ["w1", "w2"], number, wanted=None) for number in range(3)} == {"n2"}


def test_a_checkpoint_is_kept_by_the_own_nanny_then_by_those_of_the_run():
    made = processes("a", "b", "a", "c")
    kept = made.keeps_checkpoint("w2", ["w0", "w1", "w2"])
    assert kept == (("a", "n2"), ("a", "n0"), ("b", "n1"))
    assert made.keeps_checkpoint("unknown", ["w1"]) == ()


def test_each_missing_process_is_replaced_by_one_of_its_nanny_else_of_its_machine():
    made = processes("a", "a", "b", "b")
    again = [WorkerInfo("v1", node="a", nanny="n1"), WorkerInfo("v0", node="a", nanny="n0")]
    assert made.nearest(["w0", "w1"], again) == {"w0": "v0", "w1": "v1"}
    booted = [WorkerInfo("x", node="c", nanny="n9"), WorkerInfo("y", node="b", nanny="n8"), *again]
    assert made.nearest(["w2", "w1"], booted) == {"w2": "y", "w1": "v1"}
    assert made.nearest(["w3", "unknown"], booted[:2]) == {"w3": "y", "unknown": "x"}
    assert made.nearest(["w0", "w1"], booted[:1]) == {"w0": "x"}


@pytest.mark.parametrize(("again", "stuck"), [(True, {"w0": 0, "w1": 1}), (False, {"w1": 1})])
def test_what_does_not_answer_is_replaced_once_unless_it_is_asked_for_again(again, stuck):
    made = processes("a", "a")
    made.replaced.add(("w0", 0))
    assert made.stuck(["w0", "w1", "unknown"], again=again) == stuck
