"""Which Dask workers a run takes for its groups, with answers that the test gives."""

from types import SimpleNamespace

import pytest

from singa_dask.cluster import WorkerInfo
from singa_dask.supervision import launch
from singa_dask.supervision.launch import FormRequest, Gang, GangLauncher, NoReplacement


class Broken:
    """A group whose rank on "far" did not react when it was told to leave."""

    def __init__(self):
        self.replaced = {}

    def abort(self, reason):
        self.replaced["far"] = 1

    def close(self):
        pass


def test_a_process_that_is_being_replaced_is_not_taken_when_it_answers_once_more(monkeypatch):
    answers, asked = {"near": 7, "far": 1}, []
    monkeypatch.setattr(launch, "kill_processes", lambda client, pids: asked.append(dict(pids)))
    monkeypatch.setattr(
        launch, "answering", lambda client, timeout_s: ([WorkerInfo(a, pid=p) for a, p in answers.items()], "")
    )
    settings = {"topic": "", "steps": {}, "newest": lambda: None, "rewound": None, "patience_s": 0.2}
    former = GangLauncher(None, SimpleNamespace(topology=None), None, **settings)
    former.crews = [Gang((0,), ["near", "far"], (0,), group=Broken())]
    assert former.lost() == set()
    with pytest.raises(NoReplacement, match=r"1 Dask workers were lost \(far\)"):
        former.bring_up(FormRequest(former.crews, []))
    assert former.lost() == {"far"} and asked[-1] == {"far": 1}
    answers["far"] = 2  # a fresh process where the old one was
    before = len(asked)
    assert former.lost() == set() and len(asked) == before
