"""SINGA's kvfiles as a source."""

from __future__ import annotations

import numpy as np
import pytest
from support.sources import field, read_all, record_proto, varint, write_kvfile

from singa_dask.data.columns import Channels, Role
from singa_dask.data.sources import kvfile
from singa_dask.errors import DataError

IMAGES = np.random.default_rng(0).integers(0, 256, (20, 3, 4, 5), dtype=np.uint8)
LABELS = np.arange(20) % 6 - 1


def records(values: np.ndarray = IMAGES) -> list[bytes]:
    return [record_proto(image, int(label)) for image, label in zip(values, LABELS, strict=False)]


@pytest.mark.parametrize("values", [IMAGES, IMAGES.astype("f4") / 7, IMAGES[:, 0], IMAGES[:, 0, 0]])
def test_images_and_labels_are_read(tmp_path, monkeypatch, values):
    monkeypatch.setattr(kvfile, "BLOCK_NBYTES", 3 * len(records(values)[0]))
    source = kvfile.load(write_kvfile(tmp_path / "train.bin", records(values)))[""]
    found = read_all(source)
    np.testing.assert_array_equal(found["x"], values)
    assert found["x"].dtype == values.dtype
    assert found["y"].tolist() == LABELS.tolist()
    assert source.roles == {"y": Role.LABEL}
    assert source.channels == {"x": Channels.FIRST if values.ndim == 4 else Channels.NONE}


def test_records_may_be_flat_unpacked_wrapped_and_without_label(tmp_path):
    flat = record_proto(IMAGES[0], None, ())
    floats = b"".join(varint(4 << 3 | 5) + np.float32(v).tobytes() for v in (0.5, -2))
    packed_shape = field(1, varint(2) + varint(1)) + floats
    wrapped = field(1, 0) + field(2, b"user") + field(5, record_proto(IMAGES[0], 3))
    for record, values in ((flat, IMAGES[0].ravel()), (packed_shape, [[0.5], [-2]]), (wrapped, IMAGES[0])):
        found = read_all(kvfile.load(write_kvfile(tmp_path / "a.bin", [record]))[""])
        np.testing.assert_array_equal(found["x"][0], values)
        assert ("y" in found) == (record is wrapped)


@pytest.mark.parametrize(
    ("names", "splits"),
    [
        (["train_data.bin", "test_data.bin", "image_mean.bin"], {"train": 20, "test": 20}),
        (["shard.dat", "other.bin"], {"": 20}),
        (["a.bin", "b.bin"], {"": 40}),
    ],
)
def test_folders_are_read_as_singa_writes_them(tmp_path, names, splits):
    for name in names:
        write_kvfile(tmp_path / name, records())
    assert {s: len(read_all(source)["x"]) for s, source in kvfile.load(tmp_path).items()} == splits


GOOD = record_proto(IMAGES[0], 1)


@pytest.mark.parametrize(
    ("others", "fault"),
    [
        ([record_proto(IMAGES[0, :2], 1)], r"record 1 has the shape \(2, 4, 5\) of uint8, and a label; the first"),
        ([record_proto(IMAGES[0], None)], "record 1 has .* no label; the first record has .* a label"),
        ([record_proto(IMAGES[0].astype("f4"), 1)], "record 1 has .* float32"),
        ([GOOD, record_proto(IMAGES[0], 1, (7,))], r"record 2 is not a record .*60 values, but the shape \(7,\)"),
        ([field(2, 1)], "record 1 .*neither pixels nor data"),
        ([field(4, b"abc")], "record 1 .*floats are cut"),
        ([field(9, b"abc")], "record 1 .*field 9"),
        ([GOOD[:-1]], "record 1 .*field 3 is cut"),
        ([b""], "record 1 .*neither pixels nor data"),
        ([b"\xff" * 12], "record 1 .*does not end"),
        ([b"\x0b"], "record 1 .*wire type 3"),
        ([b"\x08"], "record 1 is not a record"),
    ],
)
def test_damaged_records_are_named(tmp_path, others, fault):
    source = kvfile.load(write_kvfile(tmp_path / "a.bin", [GOOD, *others]))[""]
    with pytest.raises(DataError, match=rf"a\.bin: {fault}"):
        read_all(source)
