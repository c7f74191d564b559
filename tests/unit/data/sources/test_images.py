"""Image folders as a source."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.sources import read_all, write_file

from singa_dask.data.columns import Channels, Role
from singa_dask.data.convert import shard_files
from singa_dask.data.sources import images
from singa_dask.errors import DataError


def save_image(path: Path, value: int, mode: str = "RGB", size: tuple[int, int] = (4, 3)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, (value, 0, 0) if mode == "RGB" else value).save(path)


def test_image_folders_have_a_class_per_sub_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(images, "BLOCK_NBYTES", 3 * 36)
    for i in range(4):
        save_image(tmp_path / "ant" / f"{i}.png", i)
        save_image(tmp_path / "bee" / f"{i}.png", 100 + i)
    source = images.load(tmp_path)[""]
    assert (source.classes, source.roles) == ({"y": ("ant", "bee")}, {"y": Role.LABEL})
    assert source.channels == {"x": Channels.LAST}
    assert [len(block.paths) for block in source.blocks] == [3, 3, 2]
    found = read_all(source)
    assert found["x"].shape == (8, 3, 4, 3)
    assert found["x"][:, 2, 3, 0].tolist() == [0, 1, 2, 3, 100, 101, 102, 103]
    assert found["y"].tolist() == [0] * 4 + [1] * 4


def test_test_images_get_the_form_and_classes_of_the_training_images(tmp_path):
    for name in ("ant", "bee"):
        save_image(tmp_path / "train" / name / "1.png", 7, "L", (8, 8))
    save_image(tmp_path / "test" / "bee" / "1.png", 9, "RGB", (16, 12))
    made = images.load(tmp_path, resize="4x6")
    assert [read_all(made[split])["x"].shape for split in ("train", "test")] == [(2, 4, 6, 1), (1, 4, 6, 1)]
    assert made["test"].classes == {"y": ("ant", "bee")}
    assert read_all(made["test"])["y"].tolist() == [1]


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
    save_image(tmp_path / "ant" / "1.png", 7)
    found = read_all(images.load(tmp_path, resize=resize)[""])["x"]
    assert found.shape[1:] == shape
    assert (found[..., 0] == 7).all()


def test_new_images_need_no_classes_and_take_the_form_of_the_training_images(tmp_path):
    save_image(tmp_path / "new" / "1.png", 7, "L", (8, 8))
    save_image(tmp_path / "new" / "2.png", 9, "RGB", (5, 5))
    for source, rows in ((tmp_path / "new", 2), (tmp_path / "new" / "2.png", 1)):
        made = images.load(source, form=(4, 6, 3))[""]
        found = read_all(made)
        assert (made.y, found["x"].shape, list(found)) == ((), (rows, 4, 6, 3), ["x"])
