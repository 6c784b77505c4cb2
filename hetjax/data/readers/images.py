"""Image files as one mapped array: decoded by a first pass in several threads.

An image becomes RGB, its shorter side is resized to `size` by Pillow's bicubic filter
(antialiased), and a square is cropped at the center, as by torchvision's `Resize` and
`CenterCrop`, with the same rounding. Transparency is dropped. The orientation in EXIF
data is not applied, as in torchvision.
"""

import io
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from PIL import Image, UnidentifiedImageError
from tqdm import tqdm

from hetjax.arguments import Bounds
from hetjax.data.dataset import Dataset, Split
from hetjax.data.readers import DataError, copies

NAMED = 10  # files that an error names
LARGE = 2000  # images that take a noticeable time to decode
Side = Annotated[int, Bounds(low=1, high=4096)]  # [pixels]
# more than 8 bits per color, which a conversion to RGB would truncate
_DEEP_MODES = ("I", "F", "I;16", "I;16B", "I;16L", "I;16N")


class ImageSplit(NamedTuple):
    """The files of a split, in the order of its rows."""

    paths: list[Path]  # N
    labels: np.ndarray  # [N] int32


class ImageFiles(NamedTuple):
    """A data set of image files, before any is read."""

    root: Path
    train: ImageSplit
    test: ImageSplit
    num_classes: int
    name: str
    notes: tuple[str, ...] = ()
    others: tuple[Path, ...] = ()  # further files that the data depend on


def read_images(
    found: ImageFiles,
    what: str,
    *,
    size: int,
    cache: str | PathLike | None,
    workers: int | None,
    verify: bool | None = None,
) -> Dataset:
    """The data set: x mapped [N, size, size, 3] uint8, y [N] int32 in memory.

    `what` distinguishes these files from others in the same folder.
    """
    splits = {"train": found.train, "test": found.test}
    every = [*found.train.paths, *found.test.paths]

    def write(folder: Path) -> dict[str, Any]:
        copies.check_space(folder, len(every) * 3 * size * size)
        hidden = True if len(every) < LARGE else None  # None: unless a terminal
        failures: list[str] = []
        with tqdm(
            desc=f"decoding {found.name}", total=len(every), disable=hidden
        ) as bar:
            for name, split in splits.items():
                parts = _blocks(split.paths, size, workers, bar, failures)
                shape = len(split.paths), size, size, 3
                copies.write_array(folder / f"{name}_x.npy", shape, np.uint8, parts)
        if failures:
            raise DataError(
                f"{found.root}: {len(failures):,} of {len(every):,} images cannot be "
                f"used: {_first(failures)}. Fetch them again, or remove them"
            )
        return {}

    place = copies.copy_folder(found.root, [what, size], cache)
    sources = [*found.others, *every]
    arrays = copies.load_or_write(place, sources, write, verify=verify).arrays
    return Dataset(
        train=Split(arrays["train_x"], found.train.labels),
        test=Split(arrays["test_x"], found.test.labels),
        num_classes=found.num_classes,
        name=found.name,
        notes=found.notes,
    )


def raise_if_missing(root: Path, paths: list[Path], remedy: str) -> None:
    """Raises a DataError with the number of missing files and the first names."""
    missing = [str(path.relative_to(root)) for path in paths if not path.is_file()]
    if missing:
        raise DataError(
            f"{root}: {len(missing):,} of {len(paths):,} images are missing: "
            f"{_first(missing)}; {remedy}"
        )


def _first(names: list[str]) -> str:
    """The first names, and the number of the others."""
    more = len(names) - NAMED
    return "; ".join([*names[:NAMED], *([f"and {more:,} more"] if more > 0 else [])])


def _blocks(
    paths: list[Path],
    size: int,
    workers: int | None,
    bar: tqdm,
    failures: list[str],
) -> Iterator[np.ndarray]:
    """Blocks of images [n, size, size, 3] uint8; none after the first failure.

    The remaining images are still decoded, so that all failures are appended.
    """
    threads = workers or os.cpu_count() or 1
    rows = max(4 * threads, copies.BLOCK // (3 * size * size))
    with ThreadPoolExecutor(threads) as pool:
        for start in range(0, len(paths), rows):
            some = paths[start : start + rows]
            images = list(pool.map(decoded, some, [size] * len(some)))
            failures += [image for image in images if isinstance(image, str)]
            bar.update(len(images))
            if not failures:
                yield np.stack(images)


def decoded(path: Path, size: int) -> np.ndarray | str:
    """The image [size, size, 3] uint8, or the text of an error."""
    try:
        content = path.read_bytes()
        if not content:
            return f"{path} is empty"
        with Image.open(io.BytesIO(content)) as image:
            if image.mode in _DEEP_MODES:
                return f"{path} has more than 8 bits per color (mode {image.mode})"
            rgb = image if image.mode == "RGB" else image.convert("RGB")
            return np.asarray(_fitted(rgb, size))
    except MemoryError:
        raise
    except UnidentifiedImageError:
        return f"{path} is not an image, or its first bytes are damaged"
    except FileNotFoundError:
        return f"{path} is missing"
    except Exception as error:  # decoders raise errors of many types
        return f"{path} cannot be decoded ({error})"


def _fitted(image: Image.Image, size: int) -> Image.Image:
    """The center of the image, whose shorter side becomes `size` pixels."""
    width, height = image.size
    if min(width, height) != size:
        short = min(width, height)
        # the longer side is rounded down, as torchvision does
        width, height = (size * side // short for side in (width, height))
        image = image.resize((width, height), Image.Resampling.BICUBIC)
    left, top = (round((side - size) / 2) for side in (width, height))
    return image.crop((left, top, left + size, top + size))
