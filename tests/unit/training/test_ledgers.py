"""The ledgers of workers' slices in a checkpoint."""

import h5py
import numpy as np
import pytest

from singa_dask.comm import SoloCommunicator, run_threads
from singa_dask.server.ledger import Ledger
from singa_dask.training.checkpoint import Checkpoint, contribute, load, newest, path_of, save
from singa_dask.training.ledgers import gather_ledgers, share_ledger

# Of three workers, the second of which has no slice.
LEDGERS = (
    Ledger.decode([[2, 0, [[0, [0, 50], [0, 50], []], [1, [0, 55], [0, 55], []]]]]),
    None,
    Ledger.decode([[2, 0, [[0, [0, 50], [0, 50], []], [1, [0, 58], [0, 58], [7, 8]]]]]),
)
JOINT = [[2, 0, [[0, [0, 50], [0, 50], []], [1, [0, 55], [0, 58], [7, 8]]]]]


@pytest.mark.parametrize("beside", [True, False])
def test_a_checkpoint_says_what_all_slices_contain_and_what_some_do(tmp_path, beside):
    path = path_of(tmp_path, 50)

    def member(comm):
        held = LEDGERS[comm.rank]
        now = [Ledger()]
        ledgers = gather_ledgers(comm, held or Ledger(), lambda: now[0])
        now[0] = held  # known once the parameters were read
        checkpoint = Checkpoint(50, 1, "", {"w": np.zeros(3, np.float32)}, ledgers=ledgers)
        checkpoint = checkpoint.taken() if beside else checkpoint
        return contribute(checkpoint) if comm.rank else save(checkpoint, path)

    run_threads(3, member)
    assert load(path).ledger.encode() == newest(tmp_path)[0].ledger.encode() == JOINT
    again = save(load(path), tmp_path / "again.h5")
    assert load(again).ledger.encode() == JOINT
    with h5py.File(path) as file:
        assert bytes(file["ledgers"][0]).decode().strip() == str(LEDGERS[0].encode())


def test_a_checkpoint_without_ledger_contains_nothing_that_is_known(tmp_path):
    assert load(save(Checkpoint(3, 1, "", {"w": np.zeros(3)}), tmp_path / "c.h5")).ledger == Ledger()


def test_a_ledger_beyond_its_room_is_an_error():
    many = Ledger.decode([[1, 0, [[0, list(range(4000)), list(range(4000)), []]]]])
    with pytest.raises(ValueError, match=r"the ledger has \d+ bytes, and the checkpoint has room for 4\d\d\d"):
        gather_ledgers(SoloCommunicator(), Ledger(), lambda: many).taken()


def test_every_worker_gets_the_first_ones():
    given = Ledger.decode(JOINT)
    assert run_threads(3, lambda comm: share_ledger(comm, given if comm.rank == 0 else Ledger())) == [given] * 3
