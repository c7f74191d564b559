"""Image folders: one subfolder per class, in any format that Pillow reads."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from singa_dask.data.converters.split import Split
from singa_dask.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image

SPLITS = ("train", "test")
_GREY = ("1", "L", "LA")
_COLOUR = ("RGB", "RGBA", "RGBX", "P", "PA", "CMYK", "YCbCr", "LAB", "HSV")


def load(source: Path, resize: tuple[int, int] | int | str | None = None) -> dict[str, Split]:
    """Folders of images as (N, height, width, channels) uint8, with one channel if all images are greyscale.

    source: a folder with one folder per class, or with folders train/ and test/ of such folders.
    resize: the (height, width) of every image, also as text, "48x64"; one number means a square. By default all images
        must have the size of the first one.
    Images are decoded while the shards are written, so they need not fit into memory.
    Raises DataError that names the file.
    """
    try:
        import PIL.Image  # noqa: F401
    except ImportError as error:
        raise DataError(
            "images: Pillow is not installed. Run `pip install '.[datasets]'` in a clone of singa_dask."
        ) from error
    if not source.is_dir():
        raise DataError(f"{source}: is not a folder.")
    size = None if resize is None else _size(resize)
    if all((source / split).is_dir() for split in SPLITS):
        train = _load_split(source / "train", None, size)
        # The test images take shape and classes from the training images.
        return {"train": train, "test": _load_split(source / "test", train, size)}
    return {"": _load_split(source, None, size)}


def _size(resize: tuple[int, int] | int | str) -> tuple[int, int]:
    try:
        given = resize.lower().split("x") if isinstance(resize, str) else np.atleast_1d(resize).tolist()
        numbers = [int(number) for number in given]
    except ValueError:
        numbers = []
    if len(numbers) not in (1, 2) or min(numbers) < 1:
        raise DataError(f"resize: must be HEIGHTxWIDTH, or one number for squares. Received: {resize}.")
    return numbers[0], numbers[-1]


def _load_split(folder: Path, like: Split | None, size: tuple[int, int] | None) -> Split:
    classes = sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    if not classes:
        raise DataError(f"{folder}: has no subfolders. Put the images of each class in a separate folder.")
    names = list(like.classes) if like is not None and not isinstance(like.classes, int | None) else classes
    unknown = [name for name in classes if name not in names]
    if unknown:
        raise DataError(f"{folder}: has the class {unknown[0]!r}, which the training images lack.")
    paths, labels = [], []
    for name in classes:
        found = sorted(path for path in (folder / name).iterdir() if path.is_file() and not path.name.startswith("."))
        if not found:
            raise DataError(f"{folder / name}: holds no images. Remove the folder, or fill it.")
        paths += found
        labels += [names.index(name)] * len(found)
    if like is not None and isinstance(like.features, ImageFiles):
        height, width, channels = like.features.shape[1:]
    else:
        height, width, channels = _common_form(paths, size)
    features = ImageFiles(paths, height, width, channels, resize=size is not None)
    return Split(features, np.array(labels, dtype=np.int64), names)


class ImageFiles:
    """Images that are decoded on demand: `images[rows]` is (len(rows), height, width, channels).

    resize: scale images of another size; otherwise they are an error.
    """

    def __init__(self, paths: list[Path], height: int, width: int, channels: int, resize: bool):
        self.paths = paths
        self.shape = (len(paths), height, width, channels)
        self.dtype = np.dtype(np.uint8)
        self.resize = resize

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        return np.stack([self._decode(self.paths[row]) for row in rows])

    def _decode(self, path: Path) -> np.ndarray:
        _, height, width, channels = self.shape
        with _opened(path) as file:
            if file.size != (width, height) and not self.resize:
                raise DataError(
                    f"{path}: is {file.height} x {file.width} pixels (height x width), but the first image is "
                    f"{height} x {width}. Resize all images with --resize."
                )
            try:
                image = file.convert("L" if channels == 1 else "RGB")
                if image.size != (width, height):
                    image = image.resize((width, height))
                return np.asarray(image, dtype=np.uint8).reshape(height, width, channels)
            except (OSError, SyntaxError, ValueError) as error:
                raise DataError(f"{path}: is damaged ({error}). Remove or replace it.") from error


def _common_form(paths: list[Path], size: tuple[int, int] | None) -> tuple[int, int, int]:
    """(height, width, channels) of all images, from their headers alone."""
    channels = 1
    for path in paths:
        with _opened(path) as image:
            if image.mode not in _GREY:
                channels = 3
            size = size or (image.height, image.width)
    if size is None:
        raise DataError("images: no images found.")
    return (*size, channels)


def _opened(path: Path) -> Image:
    import PIL.Image

    try:
        image = PIL.Image.open(path)
    except (OSError, SyntaxError, ValueError, PIL.Image.DecompressionBombError) as error:
        raise DataError(f"{path}: is not an image that Pillow can read ({error}). Remove it.") from error
    if image.mode not in _GREY + _COLOUR:
        image.close()
        raise DataError(
            f"{path}: has pixels of mode {image.mode}; only 8 bits per channel are supported. Convert it first."
        )
    return image
