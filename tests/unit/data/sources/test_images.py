"""Image folders and SINGA's kvfiles as sources."""

from __future__ import annotations

import re
import struct
import zlib
from base64 import b64decode
from io import BytesIO

import numpy as np
import PIL.Image
import pytest
from support.blocks import stored
from support.sources import field, read_all, record_proto, varint, write_file, write_kvfile

from singa_dask.data.columns import Channels, Role
from singa_dask.data.sharding import shard_files
from singa_dask.data.sources import images, kvfile
from singa_dask.errors import DataError


def flat(value: int, shape: tuple[int, ...] = (3, 4, 3)) -> np.ndarray:
    return np.full(shape, value, np.uint8)


def test_image_folders_have_a_class_per_sub_folder(tmp_path):
    content = {f"{name}/{i}.png": flat(first + i) for name, first in (("ant", 0), ("bee", 100)) for i in range(4)}
    source = write_file("images", tmp_path / "f", content)
    manifest = shard_files("images", tmp_path / "out", source=source, shuffle=False)[""]
    assert (manifest.targets.role, manifest.targets.classes) == (Role.LABEL, ("ant", "bee"))
    assert (manifest.features.channels, manifest.features.shape) == (Channels.LAST, (3, 4, 3))
    found = stored(manifest)
    assert found["x"][:, 2, 3, 0].tolist() == [0, 1, 2, 3, 100, 101, 102, 103]
    assert found["y"].tolist() == [0] * 4 + [1] * 4


def test_test_images_get_the_form_and_classes_of_the_training_images(tmp_path):
    content = {f"train/{name}/1.png": flat(7, (8, 8)) for name in ("ant", "bee")}
    source = write_file("images", tmp_path / "f", content | {"test/bee/1.png": flat(9, (12, 16, 3))})
    made = shard_files("images", tmp_path / "out", source=source, resize="4x6")
    assert [(made[split].total, made[split].features.shape) for split in made] == [(2, (4, 6, 1)), (1, (4, 6, 1))]
    assert made["test"].targets.classes == ("ant", "bee") and stored(made["test"])["y"].tolist() == [1]


GREY, LARGE, FLOATS = np.zeros((3, 4), np.uint8), np.zeros((3, 5), np.uint8), np.zeros((3, 4), np.float32)
ANTS = {"ant/1.png": GREY, "bee/1.png": GREY}


@pytest.mark.parametrize(
    ("content", "resize", "fault"),
    [
        (ANTS | {"bee/2.png": LARGE}, None, "3 x 5 pixels .* --resize"),
        (ANTS | {"ant/2.png": b"no image"}, None, r"ant/2\.png: cannot be read .*Is it an image"),
        (ANTS | {"cat/.hidden": b""}, None, "cat: holds no images"),
        (ANTS | {"ant/2.tiff": FLOATS}, None, "mode F"),
        ({"1.png": GREY}, None, "has no subfolders"),
        ({"train/ant/1.png": GREY, "test/cat/1.png": GREY}, None, "test: has the class 'cat', which the training"),
        *((ANTS, resize, "resize: must be HEIGHTxWIDTH") for resize in ("0x3", "big", "1x2x3", -4, "")),
    ],
)
def test_faults_of_image_folders_name_the_file(tmp_path, content, resize, fault):
    source = write_file("images", tmp_path / "f", content)
    with pytest.raises(DataError, match=fault):
        shard_files("images", tmp_path / "out", source=source, resize=resize)


@pytest.mark.parametrize(
    ("resize", "shape"), [(5, (5, 5, 3)), ("5", (5, 5, 3)), ("6x2", (6, 2, 3)), ((6, 2), (6, 2, 3))]
)
def test_images_are_scaled(tmp_path, resize, shape):
    source = write_file("images", tmp_path / "f", {"ant/1.png": flat(7)})
    found = read_all(images.FORMAT.load(source, resize=resize)[""])["x"]
    assert found.shape[1:] == shape and (found == 7).all()


@pytest.mark.parametrize(("source", "rows"), [("new", 2), ("new/2.png", 1)])
def test_new_images_need_no_classes_and_take_the_form_of_the_training_images(tmp_path, source, rows):
    write_file("images", tmp_path, {"new/1.png": flat(7, (8, 8)), "new/2.png": flat(9, (5, 5, 3))})
    made = images.FORMAT.load(tmp_path / source, form=(4, 6, 3), resized=True)[""]
    found = read_all(made)
    assert (made.y, found["x"].shape, list(found)) == ((), (rows, 4, 6, 3), ["x"])


TREE = ("ant/1.png", "bee/1.png")
SPLIT = ("train/ant/1.png", "test/ant/1.png")


@pytest.mark.parametrize("form", [None, (3, 4, 1)], ids=["shard", "predict"])
@pytest.mark.parametrize(
    ("paths", "said"),
    [
        (TREE, ""),
        ((*TREE, "ant/.2.png", ".trash/3.png", "ant/.old/4.png"), ""),
        ((*TREE, "notes.txt"), ""),
        ((*TREE, "0.png", "9.JPG"), r"2 of 4 images are left out \(0\.png, 9\.JPG\): .*of a class, here ant, bee\."),
        ((*TREE, "ant/old/2.png"), r"1 of 3 images are left out \(ant/old/2\.png\)"),
        ((*TREE, *(f"bee/more/{i}.png" for i in range(6))), r"6 of 8 .*bee/more/3\.png, \.\.\.\)"),
        ((*SPLIT, "bee/5.png", "val.png"), r"2 of 4 .*\(bee/5\.png, val\.png\): .* class in train/, test/\."),
        ((*SPLIT, "train/2.png", "test/ant/x/3.png"), r"2 of 4 .*\(test/ant/x/3\.png, train/2\.png\)"),
    ],
)
def test_images_that_are_left_out_are_named(tmp_path, caplog, form, paths, said):
    write_file("images", tmp_path / "f", {path: b"text" if path.endswith("txt") else GREY for path in paths})
    found = images.read(tmp_path / "f", form=form)
    assert sum(len(source.blocks[0].paths) for source in found.values()) == 2
    assert len(caplog.records) == bool(said) and (not said or re.search(said, caplog.text))


@pytest.mark.parametrize(
    ("names", "splits"),
    [
        (("train", "val"), ["train", "validation"]),
        (("Train", "Test"), ["train", "test"]),
        (("TRAIN", "valid", "testing"), ["train", "validation", "test"]),
        (("test", "bus"), [""]),
    ],
)
def test_folders_of_splits_may_have_other_spellings(tmp_path, names, splits):
    content = {f"{name}/{kind}.png": GREY for name in names for kind in (("a/1", "b/1") if splits != [""] else ("1",))}
    found = images.read(write_file("images", tmp_path / "f", content))
    assert list(found) == splits
    assert all(source.classes["y"] == (("a", "b") if splits != [""] else ("bus", "test")) for source in found.values())


def test_a_class_may_have_the_name_of_a_split(tmp_path):
    content = {f"{name}/1.png": GREY for name in ("bus", "Train", "val")}
    assert images.read(write_file("images", tmp_path / "f", content))[""].classes["y"] == ("Train", "bus", "val")


def deep_png(kind: int, channels: int) -> bytes:
    """A PNG of 16 bits per channel, whose low bytes count."""
    rows = b"".join(b"\0" + row.tobytes() for row in np.arange(12 * channels).reshape(3, -1).astype(">u2"))
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", 4, 3, 16, kind, 0, 0, 0)),
        (b"IDAT", zlib.compress(rows)),
        (b"IEND", b""),
    )
    made = (struct.pack(">I", len(of)) + name + of + struct.pack(">I", zlib.crc32(name + of)) for name, of in chunks)
    return b"\x89PNG\r\n\x1a\n" + b"".join(made)


def deep_tiff(channels: int, tag_order: str = "<") -> bytes:
    """A TIFF of 16 bits per channel."""
    values, ends = np.arange(12 * channels).astype(f"{tag_order}u2").tobytes(), {"<": b"II*\0", ">": b"MM\0*"}
    start = 10 + 12 * 9 + 4
    tags = {
        256: 4,
        257: 3,
        258: start,
        259: 1,
        262: 2,
        273: start + 2 * channels,
        277: channels,
        278: 3,
        279: len(values),
    }
    entries = (struct.pack(f"{tag_order}HHII", tag, 4, 1, of) for tag, of in tags.items() if tag != 258)
    bits = struct.pack(f"{tag_order}HHII", 258, 3, channels, start)
    head = ends[tag_order] + struct.pack(f"{tag_order}IH", 8, 9)
    return (
        head
        + b"".join(sorted([*entries, bits]))
        + bytes(4)
        + struct.pack(f"{tag_order}{channels}H", *[16] * channels)
        + values
    )


def encoded(suffix: str, mode: str = "RGB") -> bytes:
    PIL.Image.fromarray(flat(200)).convert(mode).save(file := BytesIO(), PIL.Image.registered_extensions()[suffix])
    return file.getvalue()


def deep_jpeg2000(suffix: str, bits: tuple[int, ...]) -> bytes:
    """The header says so many bits for each channel, and not 8."""
    head, siz, rest = encoded(suffix).partition(b"\xff\x4f\xff\x51")
    return head + siz + rest[:38] + b"".join(bytes([each - 1, 1, 1]) for each in bits) + rest[38 + 3 * len(bits) :]


# An AVIF of 10 bits per channel.
DEEP_AVIF = b64decode(
    "AAAAIGZ0eXBhdmlmAAAAAGF2aWZtaWYxbWlhZk1BMUEAAADrbWV0YQAAAAAAAAAhaGRscgAAAAAAAAAAcGljdAAAAAAAAAAAAAAA"
    "AAAAAAAOcGl0bQAAAAAAAQAAAB5pbG9jAAAAAEQAAAEAAQAAAAEAAAETAAAAIgAAAChpaW5mAAAAAAABAAAAGmluZmUCAAAAAAEA"
    "AGF2MDFDb2xvcgAAAABqaXBycAAAAEtpcGNvAAAAFGlzcGUAAAAAAAAABAAAAAMAAAAQcGl4aQAAAAADCgoKAAAADGF2MUOBIEAA"
    "AAAAE2NvbHJuY2x4AAIAAgAAgAAAABdpcG1hAAAAAAAAAAEAAQQBAoMEAAAAKm1kYXQSAAoIOAR7nAgIAkAyFBAAAAAP+I385wy5"
    "YpJ/3oOeTwBp"
)
PPM = b"P6 4 3 %d\n"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("1.png", deep_png(2, 3)),
        ("1.png", deep_png(6, 4)),
        ("1.png", deep_png(4, 2)),
        ("1.png", deep_png(0, 1)),
        ("1.tif", deep_tiff(3)),
        ("1.tiff", deep_tiff(3, ">")),
        ("1.ppm", PPM % 65535 + bytes(72)),
        ("1.ppm", PPM % 4095 + bytes(72)),
        ("1.ppm", b"P3 4 3 4095 " + b"9 " * 36),
        ("1.jp2", deep_jpeg2000(".jp2", (16, 16, 16))),
        ("1.j2k", deep_jpeg2000(".j2k", (8, 12, 8))),
        ("1.avif", DEEP_AVIF),
    ],
)
@pytest.mark.parametrize("form", [None, (3, 4, 3)], ids=["shard", "predict"])
def test_images_of_16_bits_per_channel_are_refused(tmp_path, form, name, content):
    source = write_file("images", tmp_path / "f", {f"ant/{name}": content})
    with pytest.raises(DataError, match=rf"{name}: has pixels of mode .* only 8 bits per channel are supported"):
        read_all(images.read(source, form=form)[""])


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "RGBA", "CMYK"])
@pytest.mark.parametrize("suffix", ["png", "tif", "bmp", "ppm", "jp2", "avif"])
def test_images_of_8_bits_and_less_are_read(tmp_path, mode, suffix):
    image = PIL.Image.fromarray(flat(200)).convert(mode)
    if suffix == "tif" or mode not in ("P", "RGBA", "CMYK", *(["1"] if suffix == "jp2" else [])):
        (tmp_path / "ant").mkdir()
        image.save(tmp_path / "ant" / f"1.{suffix}")
        assert read_all(images.read(tmp_path)[""])["x"].mean() > 190


def test_a_bitmap_of_16_bits_per_pixel_is_read(tmp_path):
    head = struct.pack("<2sIHHIIiiHHIIiiII", b"BM", 78, 0, 0, 54, 40, 4, 3, 1, 16, 0, 24, 0, 0, 0, 0)
    source = write_file("images", tmp_path / "f", {"ant/1.bmp": head + b"\xff\x7f" * 12})
    assert (read_all(images.read(source)[""])["x"] == 255).all()


# kvfiles


IMAGES = np.random.default_rng(0).integers(0, 256, (20, 3, 4, 5), dtype=np.uint8)
LABELS = np.arange(20) % 6 - 1


def records(values: np.ndarray = IMAGES) -> list[bytes]:
    return [record_proto(image, int(label)) for image, label in zip(values, LABELS, strict=False)]


@pytest.mark.parametrize("values", [IMAGES, IMAGES.astype("f4") / 7, IMAGES[:, 0], IMAGES[:, 0, 0]])
def test_images_and_labels_are_read(tmp_path, values):
    source = kvfile.FORMAT.load(write_kvfile(tmp_path / "train.bin", records(values)))[""]
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
        found = read_all(kvfile.FORMAT.load(write_kvfile(tmp_path / "a.bin", [record]))[""])
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
    assert {s: len(read_all(source)["x"]) for s, source in kvfile.FORMAT.load(tmp_path).items()} == splits


GOOD = record_proto(IMAGES[0], 1)


@pytest.mark.parametrize(
    ("others", "fault"),
    [
        ([record_proto(IMAGES[0, :2], 1)], r"record 1 has the shape \(2, 4, 5\) of uint8, and a label; the first"),
        ([record_proto(IMAGES[0], None)], "record 1 has .* no label; the first record has .* a label"),
        ([record_proto(IMAGES[0].astype("f4"), 1)], "record 1 has .* float32"),
        ([GOOD, record_proto(IMAGES[0], 1, (7,))], r"record 2 is not a record .*60 values, but the shape \(7,\)"),
        ([field(2, 1)], "record 1 .*neither pixels nor data"),
        ([field(4, b"abc")], "record 1 .*Error parsing message"),
        ([field(9, b"abc")], "record 1 .*field 9"),
        ([GOOD[:-1]], "record 1 .*Error parsing message"),
        ([b""], "record 1 .*neither pixels nor data"),
        ([b"\xff" * 12], "record 1 .*Error parsing message"),
        ([b"\x0b"], "record 1 .*Error parsing message"),
        ([b"\x08"], "record 1 is not a record"),
    ],
)
def test_damaged_records_are_named(tmp_path, others, fault):
    source = kvfile.FORMAT.load(write_kvfile(tmp_path / "a.bin", [GOOD, *others]))[""]
    with pytest.raises(DataError, match=rf"a\.bin: {fault}"):
        read_all(source)
