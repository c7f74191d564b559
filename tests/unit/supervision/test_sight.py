"""Which workers see the files of a run, as they come and go."""

from dataclasses import replace
from socket import gethostname

import pytest
from support.views import Here, OtherMachine

from singa_dask.cluster.workers import WorkerInfo
from singa_dask.supervision.sight import Sight

FIRST, SECOND = (WorkerInfo(f"tcp://a:{i}", nanny=f"n{i}", pid=i) for i in (1, 2))


@pytest.fixture
def client():
    return Here()


def test_who_was_asked_is_known_by_the_nanny(client, tmp_path):
    sight = Sight(client, tmp_path / "run", [])
    sight.check([FIRST])
    fresh = replace(FIRST, address="tcp://a:9", pid=9)
    assert sight.seeing([fresh, SECOND]) == ([fresh, SECOND], "")
    assert sight.seeing([FIRST, SECOND]) == ([FIRST, SECOND], "")
    assert client.asked == [[FIRST.address], [SECOND.address]]


def test_a_newcomer_that_does_not_see_the_files_is_left_out_and_told_of_once(client, tmp_path):
    (tmp_path / "shards").touch()
    blind = OtherMachine(client, tmp_path / "shards")
    sight = Sight(blind, tmp_path / "run", [tmp_path / "shards"])
    busy = replace(SECOND, group="another run's")
    seen, told = sight.seeing([FIRST, busy])
    assert seen == [busy] and client.asked == [[FIRST.address]]
    assert told.startswith(
        f"left out: {tmp_path}/shards: the Dask workers on {gethostname()} (tcp://a:1) do not see it"
    )
    assert sight.seeing([FIRST, busy]) == ([busy], "") and len(client.asked) == 1


def test_a_newcomer_that_does_not_answer_is_asked_again(client, tmp_path):
    sight = Sight(client, tmp_path / "run", [])
    sight.check([SECOND])
    client.silent = True
    assert sight.seeing([FIRST, SECOND]) == ([SECOND], "")
    client.silent = False
    assert sight.seeing([FIRST, SECOND]) == ([FIRST, SECOND], "")
