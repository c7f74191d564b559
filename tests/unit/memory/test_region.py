"""Images that outlive their process."""

import numpy as np
import pytest

from singa_dask.comm.shared_memory import Memory
from singa_dask.memory.region import VALUES, ImageLayout, Regions, RegionsAddress, Superseded

FIRST, SECOND = (0, ""), (3, "left")  # with other arrays, of another type
ARRAYS = {FIRST: (VALUES, "v", "h"), SECOND: ("sums",)}
LAYOUTS = [ImageLayout(FIRST, 0, 32, ARRAYS[FIRST]), ImageLayout(SECOND, 32, 49, ARRAYS[SECOND], "float64")]


def regions_of(layouts=LAYOUTS):
    made = Regions.create(layouts)
    assert made is not None
    return made


def save(regions, key, version, note=b""):
    arrays = {name: np.full(32 if key == FIRST else 17, version + i / 4) for i, name in enumerate(ARRAYS[key])}
    regions[key].save(version, arrays, note)


def holds(image, version, key=FIRST):
    assert tuple(image.arrays) == ARRAYS[key]
    return all((image.arrays[name] == version + i / 4).all() for i, name in enumerate(ARRAYS[key]))


def test_the_last_two_versions_are_here_in_their_order_if_they_are_whole():
    regions = regions_of()
    region = regions[FIRST]
    assert region.newest is None and region.at(0) is None and region.images == []
    for version in range(7, 12):
        save(regions, FIRST, version, b"note %d" % version)
        assert holds(region.newest, version) and region.newest.note == b"note %d" % version
        versions = [version - 1, version][version == 7 :]
        assert [image.version for image in region.images] == versions
        assert all(holds(region.at(each), each) for each in versions) and region.at(versions[0] - 1) is None
    region.images[0].head[0] = 0  # its process died while it wrote
    assert [image.version for image in region.images] == [11]


def test_of_two_images_of_one_version_the_later_one_counts():
    """A slice that went back a step makes it again."""
    regions = regions_of()
    for note in (b"before", b"after", b"again"):
        save(regions, FIRST, 7, note)
        assert regions[FIRST].at(7).note == note


def test_others_see_it_where_its_memory_is_held():
    regions = regions_of()
    save(regions, FIRST, 1)
    save(regions, SECOND, 1, b"x" * 65528)
    held = Memory.open(regions.memories[0].address, mapped=False)
    moved = RegionsAddress(held.address, regions.address.layouts)
    del regions
    again = Regions.open(moved)
    assert list(again) == [FIRST, SECOND] and holds(again[FIRST].newest, 1)
    assert holds(again[SECOND].newest, 1, SECOND) and again[SECOND].newest.note == b"x" * 65528
    del held
    assert Regions.open(moved) is None and Regions.open(regions_of().address, moved) is None


class Torn(Exception):
    """The process is killed."""


@pytest.mark.parametrize("saved", [1, 2, 3])
def test_a_process_that_is_killed_while_it_saves_leaves_the_version_before(saved):
    regions = regions_of()
    for version in range(saved):
        save(regions, FIRST, version)

    class Arrays(dict):
        def items(self):
            yield VALUES, np.full(32, -1)
            yield "v", np.zeros(32)
            raise Torn

    with pytest.raises(Torn):
        regions[FIRST].save(saved, Arrays())
    assert regions[FIRST].at(saved) is None and regions[FIRST].newest.version == saved - 1
    assert all(holds(image, image.version) for image in regions[FIRST].images)
    save(regions, FIRST, saved)
    assert holds(regions[FIRST].newest, saved)


def test_images_may_be_made_less_often():
    regions = regions_of()
    for version in range(10):
        if version == 4:
            regions.pace.every = 3
        save(regions, FIRST, version)
        save(regions, SECOND, version)
    assert (
        all(region.newest.version == 9 for region in regions.values())
        and holds(regions[FIRST].at(6), 6)
        and regions[FIRST].at(8) is None
    )
    assert regions.pace.seconds > 0


def test_a_note_has_a_limit():
    with pytest.raises(ValueError, match=r"at most 65528 bytes\. Received: 65529"):
        save(regions_of(), FIRST, 0, b"x" * 65529)


def test_a_process_that_is_superseded_notices_it_when_it_saves():
    regions = regions_of()
    save(regions, FIRST, 3)
    Regions.open(regions.address)[FIRST].fence()
    with pytest.raises(Superseded, match="a successor of this process"):
        save(regions, FIRST, 4)
    save(regions, SECOND, 4)


def test_there_are_no_regions_without_room():
    asked = []
    assert Regions.create(LAYOUTS, asked.append) is None
    assert asked == [2 * sum(layout.nbytes for layout in LAYOUTS)]
    assert LAYOUTS[1].nbytes == 64 + 65536 + 192, "whole cache lines"
