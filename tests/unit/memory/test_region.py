"""Images that outlive their process."""

from contextlib import nullcontext

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from singa_dask.comm.shared_memory import Memory
from singa_dask.memory.region import VALUES, ImageLayout, Regions, RegionsAddress, Superseded

FIRST, SECOND = (0, ""), (3, "left")  # with other arrays, of another type
LAYOUTS = [ImageLayout(FIRST, 0, 32, (VALUES, "v", "h")), ImageLayout(SECOND, 32, 49, ("sums", "t"), "float64")]


def arrays_of(layout, value):
    return {name: np.full(layout.size, value + i / 4) for i, name in enumerate(layout.arrays)}


def seen(image):
    return image and (image.version, image.note, [(name, {*array}) for name, array in image.arrays.items()])


OF_ONE = st.tuples(st.sampled_from(LAYOUTS), st.integers(0, 6), st.sampled_from([1, 1, 1, 3]), st.booleans())


@given(st.lists(OF_ONE, max_size=12))
def test_the_last_two_images_that_were_not_torn_are_here(saved):
    """The process may be killed while it writes; a slice that went back a step makes it again."""
    regions, here = Regions.create(LAYOUTS), {FIRST: [], SECOND: []}
    for number, (layout, version, regions.pace.every, killed) in enumerate(saved):
        arrays, region, due = arrays_of(layout, number), regions[layout.key], version % regions.pace.every == 0
        expected = here[layout.key]
        if due:
            whole = version, b"%d" % number, [(name, {*array}) for name, array in arrays.items()]
            expected[:] = expected[-1:] if killed else [*expected[-1:], whole]
        with pytest.raises(ValueError, match="broadcast") if killed and due else nullcontext():
            region.save(version, arrays | ({layout.arrays[-1]: np.ones((2, 2))} if killed else {}), b"%d" % number)
        assert [*map(seen, region.images)] == expected and seen(region.newest) == (expected or [None])[-1]
        for each in range(7):
            assert seen(region.at(each)) == next((of for of in reversed(expected) if of[0] == each), None)


def test_others_see_them_where_their_memory_is_held_and_supersede_their_process():
    regions = Regions.create(LAYOUTS)
    for layout, note in zip(LAYOUTS, (b"", b"x" * 65528), strict=True):
        regions[layout.key].save(1, arrays_of(layout, 1), note)
    held = Memory.open(regions.memories[0].address, mapped=False)
    moved = RegionsAddress(held.address, regions.address.layouts)
    again = Regions.open(moved)
    assert [(key, seen(region.newest)) for key, region in again.items()] == [
        (FIRST, (1, b"", [(VALUES, {1}), ("v", {1.25}), ("h", {1.5})])),
        (SECOND, (1, b"x" * 65528, [("sums", {1}), ("t", {1.25})])),
    ]
    assert regions.pace.seconds > 0
    again[FIRST].fence()
    with pytest.raises(Superseded, match="a successor of this process"):
        regions[FIRST].save(2, {})
    with pytest.raises(ValueError, match=r"at most 65528 bytes\. Received: 65529"):
        regions[SECOND].save(2, {}, b"x" * 65529)
    del regions, held
    assert Regions.open(moved) is None and Regions.open(Regions.create(LAYOUTS).address, moved) is None


def test_there_are_no_regions_without_room():
    asked = []
    assert Regions.create(LAYOUTS, asked.append) is None
    assert asked == [2 * sum(layout.nbytes for layout in LAYOUTS)]
    assert LAYOUTS[1].nbytes == 64 + 65536 + 2 * 192, "whole cache lines"
