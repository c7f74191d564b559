"""Copies of slices that outlive their process."""

import numpy as np
import pytest

from singa_dask.comm.shared_memory import Memory
from singa_dask.server import Shadow, Slice
from singa_dask.server.shadow import Superseded

SLICES = [Slice(0, 0, 32, 0, 0), Slice(3, 32, 48, 0, 0)]


def shadow_of(slices=SLICES, states=("v", "h")):
    made = Shadow.create(slices, states, np.float32)
    assert made is not None
    return made


def save(shadow, index, version, note=b""):
    size = next(stop - start for i, start, stop in shadow.address.slices if i == index)
    states = {"v": np.full(size, version + 0.25, np.float32), "h": np.full(size, version + 0.5, np.float32)}
    shadow.slices[index].save(version, np.full(size, version, np.float32), states, note)


def holds(copy, version):
    return (
        (copy.values == version).all()
        and (copy.states["v"] == version + 0.25).all()
        and (copy.states["h"] == version + 0.5).all()
    )


def test_the_last_two_versions_are_here_in_their_order_if_they_are_whole():
    shadow = shadow_of()
    of_slice = shadow.slices[0]
    assert shadow.version is None and of_slice.newest is None and of_slice.at(0) is None and of_slice.copies == []
    for version in range(7, 12):
        save(shadow, 0, version, b"note %d" % version)
        assert holds(of_slice.newest, version) and of_slice.newest.note == b"note %d" % version
        versions = [version - 1, version][version == 7 :]
        assert [copy.version for copy in of_slice.copies] == versions
        assert all(holds(of_slice.at(each), each) for each in versions) and of_slice.at(versions[0] - 1) is None
    of_slice.copies[0].head[0] = -1  # its process died while it wrote
    assert [copy.version for copy in of_slice.copies] == [11]


def test_a_process_knows_the_version_that_all_its_slices_have():
    shadow = shadow_of()
    save(shadow, 0, 5)
    assert shadow.version is None
    save(shadow, 3, 4)
    assert shadow.version == 4
    save(shadow, 3, 5)
    assert shadow.version == 5


def test_others_see_it_where_its_memory_is_held():
    shadow = shadow_of()
    save(shadow, 0, 1)
    save(shadow, 3, 1, b"x" * 65528)
    held = Memory.open(shadow.memory.address, mapped=False)
    address = shadow.address
    moved = type(address)(held.address, address.slices, address.states, address.dtype)
    del shadow
    again = Shadow.open(moved)
    assert again.version == 1 and holds(again.slices[3].newest, 1) and again.slices[3].newest.note == b"x" * 65528
    del held
    assert Shadow.open(moved) is None


class Torn(Exception):
    """The process is killed."""


@pytest.mark.parametrize("saved", [1, 2, 3])
def test_a_process_that_is_killed_while_it_saves_leaves_the_version_before(saved):
    shadow = shadow_of()
    for version in range(saved):
        save(shadow, 0, version)
    slice_shadow = shadow.slices[0]

    class States(dict):
        def items(self):
            yield "v", np.zeros(32, np.float32)
            raise Torn

    with pytest.raises(Torn):
        slice_shadow.save(saved, np.full(32, -1, np.float32), States())
    assert slice_shadow.at(saved) is None and holds(slice_shadow.newest, saved - 1)
    save(shadow, 0, saved)
    assert holds(slice_shadow.newest, saved)


def test_copies_may_be_made_less_often():
    shadow = shadow_of()
    for version in range(10):
        if version == 4:
            shadow.pace.every = 3
        save(shadow, 0, version)
        save(shadow, 3, version)
    assert shadow.version == 9 and holds(shadow.slices[0].at(6), 6) and shadow.slices[0].at(8) is None
    assert shadow.pace.seconds > 0


def test_a_note_has_a_limit():
    with pytest.raises(ValueError, match=r"at most 65528 bytes\. Received: 65529"):
        save(shadow_of(), 0, 0, b"x" * 65529)


def test_a_process_that_is_superseded_notices_it_when_it_saves():
    shadow = shadow_of()
    save(shadow, 0, 3)
    Shadow.open(shadow.address).slices[0].fence()
    with pytest.raises(Superseded, match="a successor of this process"):
        save(shadow, 0, 4)
    save(shadow, 3, 4)
