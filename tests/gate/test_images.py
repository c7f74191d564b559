"""Image files are what a viewer shows: a table of what a file says beside its pixels, and of ways in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from singa_dask import Job, layers, load, load_model, train, updaters
from singa_dask.data.sharding import shard_files
from singa_dask.errors import DataError
from singa_dask.inference.sources import blocks_of
from singa_dask.monitor.progress import Display

Image = pytest.importorskip("PIL.Image")
DRAW = np.random.default_rng(0)
PIXELS = DRAW.integers(0, 255, (6, 8, 3)).astype("u1")
UPRIGHT = 0x0112
# How a camera stores the picture, by the value of its tag.
STORED = {
    1: PIXELS,
    2: PIXELS[:, ::-1],
    3: PIXELS[::-1, ::-1],
    4: PIXELS[::-1],
    5: PIXELS.transpose(1, 0, 2),
    6: np.rot90(PIXELS),
    7: PIXELS[::-1, ::-1].transpose(1, 0, 2),
    8: np.rot90(PIXELS, -1),
}


def by_camera(tag: int, suffix: str = "png") -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        image = Image.fromarray(np.ascontiguousarray(STORED[tag]))
        exif = image.getexif()
        exif[UPRIGHT] = tag
        image.save(folder / f"a.{suffix}", exif=exif)

    return write


def with_alpha(least: int) -> Callable[[Path], None]:
    alpha = np.full((6, 8, 1), 255, "u1")
    alpha[2, 3] = least
    return lambda folder: Image.fromarray(np.concatenate([PIXELS, alpha], -1)).save(folder / "a.png")


def with_pages(suffix: str) -> Callable[[Path], None]:
    pages = [Image.fromarray(PIXELS // (1 + page)) for page in range(3)]
    return lambda folder: pages[0].save(folder / f"a.{suffix}", save_all=True, append_images=pages[1:])


def with_a_clear_colour(folder: Path) -> None:
    image = Image.fromarray(PIXELS).quantize(8)
    image.info["transparency"] = image.getpixel((0, 0))
    image.save(folder / "a.png", transparency=image.info["transparency"])


SAME: Mapping[str, Callable[[Path], None]] = {
    **{f"EXIF {tag}": by_camera(tag) for tag in STORED},
    "EXIF 6 in TIFF": by_camera(6, "tif"),
    "opaque alpha": with_alpha(255),
}
REFUSED: Mapping[str, tuple[Callable[[Path], None], str]] = {
    "TIFF of pages": (with_pages("tif"), r"a.tif: has 3 pages or frames.*own file"),
    "GIF of frames": (with_pages("gif"), r"a.gif: has 3 pages or frames.*own file"),
    "transparent pixels": (with_alpha(7), r"a.png: has transparent pixels \(alpha 7 of 255\).*background"),
    "a transparent colour": (with_a_clear_colour, r"transparent pixels \(alpha 0 of 255\)"),
}
OTHER_SIZE = r"a.png: is 5 x 8 pixels .* 6 x 8. Resize all images with --resize"


def other_size(folder: Path) -> None:
    Image.fromarray(PIXELS[:5]).save(folder / "a.png")


def in_shards(write: Callable[[Path], None], folder: Path) -> np.ndarray:
    (folder / "new" / "one").mkdir(parents=True)
    write(folder / "new" / "one")
    shard_files("images", folder / "shards", source=folder / "new", shuffle=False)
    return load(folder / "shards", ["x"])[0][0]


def model_of(folder: Path, **options: Any) -> Any:
    for name in ("one", "two"):
        (folder / name).mkdir(parents=True)
        Image.fromarray(PIXELS).save(folder / name / "a.png")
    shard_files("images", folder / "known", source=folder, **options)
    read = layers.RecordInput(path=str(folder / "known"), batchsize=2)
    job = Job(
        name="i",
        layers=[read, layers.InnerProduct(num_output=2), layers.SoftmaxLoss()],
        updater=updaters.SGD(lr=0.01),
        train_steps=1,
    )
    run = train(job, processes=False, workspace=folder / "run", curves=False, display=Display())
    return load_model(run.checkpoint)


@pytest.fixture(scope="module")
def model(tmp_path_factory: Any) -> Any:
    return model_of(tmp_path_factory.mktemp("as-they-are"))


def to_predict(model: Any, write: Callable[[Path], None], folder: Path) -> np.ndarray:
    (folder / "predicted").mkdir()
    write(folder / "predicted")
    (block,) = blocks_of(model, str(folder / "predicted"))
    (values,) = block.read(model).values.values()
    return np.asarray(values[0])


@pytest.mark.parametrize("kind", SAME)
def test_images_are_upright_in_shards_and_to_predict(kind: str, model: Any, tmp_path: Path) -> None:
    np.testing.assert_array_equal(in_shards(SAME[kind], tmp_path), PIXELS)
    np.testing.assert_array_equal(to_predict(model, SAME[kind], tmp_path), PIXELS)


@pytest.mark.parametrize("kind", REFUSED)
def test_what_a_sample_would_lose_is_refused(kind: str, model: Any, tmp_path: Path) -> None:
    write, told = REFUSED[kind]
    for call in (lambda: in_shards(write, tmp_path), lambda: to_predict(model, write, tmp_path)):
        with pytest.raises(DataError, match=told):
            call()


def test_images_of_another_size_are_resized_if_those_of_training_were(model: Any, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=OTHER_SIZE):
        to_predict(model, other_size, tmp_path)
    (tmp_path / "resized").mkdir()
    resizing = model_of(tmp_path / "resized" / "images", resize="6x8")
    found = to_predict(resizing, other_size, tmp_path / "resized")
    np.testing.assert_array_equal(found, np.asarray(Image.fromarray(PIXELS[:5]).resize((8, 6))))
