"""Partitioned nets over time compute what the serial nets compute."""

from copy import deepcopy

import pytest
from support.nets_over_time import CELLS, LSTM, NETS, cell, embedding, text, texts
from support.partitioned import assert_equal_to_serial

from singa_dask.algorithms import BPTT

MIXED = {
    "only the recurrent layer": text(cell(LSTM, partition_dim=1)),
    "all but the recurrent layer": text(cell(LSTM, partition_dim=0), symbols=embedding()),
}
HOW = [(0, True, name) for name in [*NETS, "only the recurrent layer"]]
HOW += [(1, fold, name) for name in [*NETS, "all but the recurrent layer"] for fold in (True, False)]


@pytest.mark.parametrize(("dim", "fold", "name"), HOW)
def test_nets_over_time(dim, fold, name):
    net = deepcopy({**NETS, **MIXED}[name])
    net.partition_dim = dim
    results = assert_equal_to_serial(net, BPTT(), [{"data": (x, None)} for x in texts(3)], fold=fold)
    for result in results.values():
        assert bool(result["own"]) == (dim == 1 or name in MIXED)
        if name in CELLS and dim == 1:
            assert set(result["own"]) == set(result["values"])
