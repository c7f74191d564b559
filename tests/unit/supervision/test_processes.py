"""What the driver knows of nannies."""

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
