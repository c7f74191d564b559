"""Image folders: one subfolder per class, in any format that Pillow reads."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from singa_dask.data.columns import Channels, Role
from singa_dask.data.schema import Reading
from singa_dask.data.sources.datasets import SPLITS
from singa_dask.data.sources.files import BLOCK_NBYTES, Block, check_sample, only_files, reading, stamp_of
from singa_dask.data.sources.source import Format, Source
from singa_dask.errors import DataError
from singa_dask.files import FOLDER, kind_of

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageFile import ImageFile

logger = logging.getLogger(__name__)

SUFFIXES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".gif", ".webp")
SHOWN = 4
_BITS_PER_SAMPLE = 258
_DEEP = re.compile(";16[BLN]")  # "BGR;16" has 16 bits per pixel
_GREY = ("1", "L", "LA")
_ALPHA, OPAQUE = ("LA", "RGBA", "PA"), 255
_COLOUR = ("RGB", "RGBA", "RGBX", "P", "PA", "CMYK", "YCbCr", "LAB", "HSV")


def read(
    source: str | Path,
    resize: tuple[int, int] | int | str | None = None,
    *,
    form: tuple[int, int, int] | None = None,
    resized: bool = False,
) -> dict[str, Source]:
    """Folders of images as x (N, height, width, channels) uint8, with one channel if all images are greyscale, and y.
    They are upright, as EXIF says.

    source: a folder with one folder per class, or with folders train/ and test/ or validation/ (val/) of such folders.
    resize: the (height, width) of every image, also as text, "48x64"; one number means a square. By default all images
        must have the size of the first one.
    form: the (height, width, channels) of every image. `source` may then be a folder of images without classes, or one
        image: new images to predict. resized: whether those of another size are resized to it.
    Images elsewhere in the folder are left out, with a warning. Raises DataError that names the file, also for several
    pages or frames, and for transparent pixels.
    """
    folder = Path(source).expanduser().absolute()
    if form is not None and (folder.is_file() or not _folders(folder)):
        paths = [folder] if folder.is_file() else _images(folder)
        return {"": _source(folder, paths, (), (), form, resized)}
    if (kind := kind_of(folder)) != FOLDER:
        raise DataError(f"{folder}: is {kind}, not a folder." if kind else f"{folder}: is not a folder.")
    size = None if resize is None else _size(resize)
    if len(splits := _splits(folder)) < 2:
        classes, paths, labels = _members(folder, None)
        _warn_of_others(folder, paths, f"directly in the folder of a class, here {', '.join(classes[:SHOWN])}")
        return {"": _source(folder, paths, labels, classes, form or _common_form(paths, size), bool(resized or size))}
    # The other splits take shape and classes from the training images.
    found, read = {}, list[Path]()
    classes, paths, _ = _members(splits["train"], None)
    all_of = form or _common_form(paths, size)
    for split, of_split in splits.items():
        _, paths, labels = _members(of_split, classes)
        found[split] = _source(of_split, paths, labels, classes, all_of, bool(resized or size))
        read += paths
    inside = ", ".join(f"{of_split.name}/" for of_split in splits.values())
    _warn_of_others(folder, read, f"directly in the folder of a class in {inside}")
    return found


FORMAT = Format("images", (), SUFFIXES, read, extra="datasets", modules=("PIL.Image",))


@dataclass(frozen=True)
class ImageBlock(Block):
    """Image files with their labels. form: (height, width, channels) of all of them."""

    paths: tuple[Path, ...]
    labels: tuple[int, ...]
    form: tuple[int, int, int]
    resize: bool
    stamps: tuple[str, ...] = ()

    @property
    def files(self) -> tuple[Path, ...]:
        return self.paths[0], self.paths[-1]

    @property
    def spans(self) -> list[tuple[Path, int]]:
        return [(path, 1) for path in self.paths]

    @property
    def key(self) -> str:
        return f"{[str(path) for path in self.paths]}{self.stamps}{self.labels}{self.form}{self.resize}"

    def read(self) -> dict[str, np.ndarray]:
        """x (rows, height, width, channels) uint8, and y (rows,) if they have labels. Raises DataError."""
        x = np.empty((len(self.paths), *self.form), np.uint8)
        for row, path in enumerate(self.paths):
            self._decode(path, x[row])
        return {"x": x, "y": np.array(self.labels, np.int64)} if self.labels else {"x": x}

    def _decode(self, path: Path, out: np.ndarray) -> None:
        height, width, channels = self.form
        with _opened(path) as file, reading(path, "The image is damaged: remove or replace it."):
            image = _upright(file)
            if image.size != (width, height) and not self.resize:
                raise DataError(
                    f"{path}: is {image.height} x {image.width} pixels (height x width), but the first image of "
                    f"training is {height} x {width}. Resize all images with --resize when you shard for training; "
                    "new ones are then resized too."
                )
            _check_opaque(path, image)
            image = image.convert("L" if channels == 1 else "RGB")
            if image.size != (width, height):
                image = image.resize((width, height))
            out[...] = np.asarray(image, dtype=np.uint8).reshape(self.form)


def _upright(image: Image) -> Image:
    from PIL import ImageOps

    return ImageOps.exif_transpose(image)


def _check_opaque(path: Path, image: Image) -> None:
    """Raise DataError for transparent pixels, whose colour depends on what lies behind."""
    if image.mode in _ALPHA or "transparency" in image.info:
        least = int(np.asarray(image.convert("RGBA"))[..., 3].min())
        if least < OPAQUE:
            raise DataError(
                f"{path}: has transparent pixels (alpha {least} of {OPAQUE}), and samples have no alpha. Put a "
                "background behind: PIL.Image.alpha_composite."
            )


def _source(
    folder: Path,
    paths: Sequence[Path],
    labels: Sequence[int],
    classes: Sequence[str],
    form: tuple[int, int, int],
    resize: bool,
) -> Source:
    nbytes = form[0] * form[1] * form[2]
    check_sample(folder, "x", nbytes, "Use a smaller --resize.")
    step = max(1, BLOCK_NBYTES // nbytes)
    blocks = [
        ImageBlock(
            tuple(some := paths[start : start + step]),
            tuple(labels[start : start + step]),
            form,
            resize,
            tuple(map(stamp_of, some)),
        )
        for start in range(0, len(paths), step)
    ]
    return Source(
        str(folder),
        blocks,
        ("x",),
        ("y",) if labels else (),
        roles={"y": Role.LABEL} if labels else {},
        channels={"x": Channels.LAST},
        classes={"y": tuple(classes)} if labels else {},
        nbytes=len(paths) * nbytes,
        reading=Reading("images", resized=resize),
    )


def _size(resize: tuple[int, int] | int | str) -> tuple[int, int]:
    try:
        given = resize.lower().split("x") if isinstance(resize, str) else np.atleast_1d(resize).tolist()
        numbers = [int(number) for number in given]
    except ValueError:
        numbers = []
    if len(numbers) not in (1, 2) or min(numbers) < 1:
        raise DataError(f"resize: must be HEIGHTxWIDTH, or one number for squares. Received: {resize}.")
    return numbers[0], numbers[-1]


def _splits(folder: Path) -> dict[str, Path]:
    """The folders of training, validation and test, by split; none without one of training. A folder with another
    spelling of a split is a class, unless it holds folders."""
    found: dict[str, Path] = {}
    for entry in _folders(folder):
        split = SPLITS.get(entry.name.lower(), "")
        if entry.name == split or (split and split not in found and _folders(entry)):
            found[split] = entry
    return {split: found[split] for split in ("train", "validation", "test") if split in found and "train" in found}


def _warn_of_others(folder: Path, read: Sequence[Path], where: str) -> None:
    """Name the images in the folder that are not read."""
    others = {path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES}.difference(read)
    names = sorted(str(path.relative_to(folder)) for path in others)
    names = [name for name in names if not any(part.startswith(".") for part in Path(name).parts)]
    if names:
        shown = ", ".join(names[:SHOWN]) + ", ..." * (len(names) > SHOWN)
        logger.warning(
            "%s: %s of %s images are left out (%s): samples are images %s. Move them there, or out of the folder.",
            *(folder, f"{len(names):,}", f"{len(names) + len(read):,}", shown, where),
        )


def _members(folder: Path, known: Sequence[str] | None) -> tuple[list[str], list[Path], list[int]]:
    """The classes, and path and label of each image. known: the classes of the training images."""
    classes = [entry.name for entry in _folders(folder)]
    if not classes:
        raise DataError(f"{folder}: has no subfolders. Put the images of each class in a separate folder.")
    names = classes if known is None else [*known]
    unknown = [name for name in classes if name not in names]
    if unknown:
        raise DataError(f"{folder}: has the class {unknown[0]!r}, which the training images lack.")
    paths, labels = [], []
    for name in classes:
        found = _images(folder / name)
        paths += found
        labels += [names.index(name)] * len(found)
    return names, paths, labels


def _entries(folder: Path) -> list[Path]:
    with reading(folder, "Check the path and its rights."):
        return [*folder.iterdir()]


def _folders(folder: Path) -> list[Path]:
    """The folders inside, but for hidden ones."""
    return sorted(entry for entry in _entries(folder) if entry.is_dir() and not entry.name.startswith("."))


def _images(folder: Path) -> list[Path]:
    found = only_files(path for path in _entries(folder) if not path.name.startswith("."))
    if not found:
        raise DataError(f"{folder}: holds no images. Remove the folder, or fill it.")
    return found


def _common_form(paths: Sequence[Path], size: tuple[int, int] | None) -> tuple[int, int, int]:
    """(height, width, channels) of all images, from their headers alone."""
    channels = 1
    for path in paths:
        with _opened(path) as image:
            if image.mode not in _GREY:
                channels = 3
            size = size or _upright(image).size[::-1]
    assert size is not None
    return (*size, channels)


def _opened(path: Path) -> Image:
    import PIL.Image

    with reading(path, "Is it an image that Pillow can read? Remove it otherwise."):
        image = PIL.Image.open(path)
        pages = getattr(image, "n_frames", 1) if image.format != "MPO" else 1  # its further ones are previews
    if pages > 1:
        image.close()
        raise DataError(
            f"{path}: has {pages:,} pages or frames, and a sample is one image. Write each to its own file."
        )
    if image.mode not in _GREY + _COLOUR or _deep(image):
        image.close()
        mode = f"{image.mode} with more than 8 bits per channel" if image.mode in _GREY + _COLOUR else image.mode
        raise DataError(f"{path}: has pixels of mode {mode}; only 8 bits per channel are supported. Convert it first.")
    return image


def _deep(image: ImageFile) -> bool:
    """Whether the file has more than 8 bits per channel, of which Pillow would read the highest 8. TIFF has a tag,
    JPEG 2000 and AVIF have headers, and other decoders are told, such as "RGB;16B", or the greatest value of PPM."""
    bits = getattr(image, "tag_v2", {}).get(_BITS_PER_SAMPLE, 8)
    if image.format in _HEADERS:
        bits = _HEADERS[image.format](Path(os.fsdecode(image.filename)).read_bytes())
    decoders: list[Any] = image.tile
    deep = (_DEEP.search(str(told)) or (name.startswith("ppm") and told[-1] > 255) for name, _, _, told in decoders)
    return bool(np.max(bits) > 8 or any(deep))


def _bits_of_jpeg2000(data: bytes) -> int:
    """Of the channel with most, by the marker SIZ (ISO/IEC 15444-1, A.5.1): 40 bytes, the number of channels, and 3
    bytes for each."""
    start = data.find(b"\xff\x4f\xff\x51") + 40
    count = int.from_bytes(data[start : start + 2], "big")
    return max((size & 127) + 1 for size in data[start + 2 : start + 2 + 3 * count : 3])


def _bits_of_avif(data: bytes) -> int:
    """By the boxes av1C among the properties of the images, whose third byte has the flags high_bitdepth and
    twelve_bit (AV1 Codec ISO Media File Format Binding, 2.3.3)."""
    start = data.find(b"ipco") - 4
    properties = data[start : start + int.from_bytes(data[start : start + 4], "big")]
    flags = [properties[found.end() + 2] for found in re.finditer(b"av1C", properties)]
    return max((12 if each & 32 else 10) if each & 64 else 8 for each in flags)


_HEADERS = {"JPEG2000": _bits_of_jpeg2000, "AVIF": _bits_of_avif}
