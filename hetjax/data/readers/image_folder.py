"""Folders of images, one per class, as ImageNet is distributed."""

import os
from os import PathLike
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hetjax.data.dataset import Dataset, note
from hetjax.data.readers import DataError
from hetjax.data.readers.images import (
    ImageFiles,
    ImageSplit,
    check_arguments,
    read_images,
)
from hetjax.recipes import by_name

ENDINGS = (".jpg", ".jpeg", ".png")  # of names in any case


@by_name
def read_image_folder(
    folder: str | PathLike,
    *,
    size: int = 256,
    train: str = "train",
    test: str = "val",
    cache: str | PathLike | None = None,
    workers: int | None = None,
    verify: bool | None = None,
    name: str | None = None,
) -> Dataset:
    """Reads images in FOLDER/train/CLASS/ and FOLDER/val/CLASS/, as for ImageNet.

    x: [N, size, size, 3] uint8 RGB, mapped and read-only; y: [N] int32. The classes are
    the folders of the training split in the order of their names. Images are .jpg,
    .jpeg and .png files at any depth, in the order of their paths; names that begin
    with a dot are ignored. `Dataset.notes` counts other files, and images outside the
    class folders. The test split may lack classes.

    The first call decodes all images with `workers` threads (default: one per core):
    their shorter side is resized to `size` pixels (bicubic), and a square is cropped at
    the center. The result is cached in the folder `cache`, or the user's cache folder:
    3 size² bytes per image, which is 250 GB for ImageNet and size=256. It is made again
    if a name, size or time of an image changes, or if it is damaged. Up to 4 GB, all of
    it is compared with its checksums, beyond that a sample; `verify` True compares
    all, False only sizes and the arrays' headers. Every call reads the name, size and
    time of each image: a second for 100,000 on a local disk, minutes for all of
    ImageNet on a slow network. `name` defaults to the folder's.

    Errors: a `DataError` names images that cannot be decoded, empty folders, classes
    without training images, and a cache folder that cannot be written.
    """
    check_arguments(size, workers)
    folder = Path(folder)
    splits = {part: _classes(folder, part) for part in (train, test)}
    names = list(splits[train])
    unknown = [name for name in splits[test] if name not in splits[train]]
    if unknown:
        raise DataError(
            f"{folder / test / unknown[0]}: {folder / train} has no class of that name"
            f"{_and_others(unknown)}; both splits need the same class folders"
        )
    numbers = {name: number for number, name in enumerate(names)}
    listed = [listing(splits[part], numbers) for part in (train, test)]
    notes = [
        note(part, found.ignored, "file", "without an image's ending ignored")
        for part, found in zip((train, test), listed, strict=True)
    ]
    notes += [
        note(part, _outside(folder / part), "image", "in no class's folder ignored")
        for part in (train, test)
    ]
    found = ImageFiles(
        root=folder,
        train=listed[0].images,
        test=listed[1].images,
        num_classes=len(names),
        name=folder.resolve().name if name is None else name,
        notes=tuple(filter(None, notes)),
    )
    what = f"folders {train}, {test}"
    return read_images(
        found, what, size=size, cache=cache, workers=workers, verify=verify
    )


def has_image_folders(folder: Path, train: str = "train", test: str = "val") -> bool:
    """Whether it contains class folders for both splits."""
    parts = [folder / part for part in (train, test)]
    return all(part.is_dir() and any(_folders(part)) for part in parts)


class Listing(NamedTuple):
    """The files in class folders."""

    images: ImageSplit
    ignored: int  # number of files with other suffixes


def listing(folders: dict[str, Path], numbers: dict[str, int]) -> Listing:
    """The images in folders by class name, with class numbers as labels."""
    paths, labels, ignored = [], [], 0
    for name, folder in folders.items():
        images, others = _files(folder)
        if not images:
            raise DataError(
                f"{folder}: looked for {', '.join(ENDINGS)} files and found none; "
                "put the images of this class there, or remove the folder"
            )
        paths += images
        labels += [numbers[name]] * len(images)
        ignored += others
    return Listing(ImageSplit(paths, np.array(labels, np.int32)), ignored)


def _classes(folder: Path, part: str) -> dict[str, Path]:
    """The class folders of a split, in the order of their names."""
    place = folder / part
    if not place.is_dir():
        raise DataError(
            f"{place}: no such folder; looked for one folder of images per class in it"
        )
    found = _folders(place)
    if not found:
        raise DataError(
            f"{place}: looked for one folder of images per class, and it holds none"
        )
    return {entry.name: entry for entry in found}


def _folders(place: Path) -> list[Path]:
    return sorted(
        entry
        for entry in place.iterdir()
        if not entry.name.startswith(".") and entry.is_dir()
    )


def _outside(place: Path) -> int:
    """The number of images next to the class folders."""
    names = [entry.name for entry in place.iterdir() if entry.is_file()]
    return sum(_is_image(name) and not name.startswith(".") for name in names)


def _is_image(name: str) -> bool:
    return name.lower().endswith(ENDINGS)


def images_in(folder: Path) -> list[Path]:
    """The images at any depth, in the order of their paths."""
    return _files(folder)[0]


def _files(folder: Path) -> tuple[list[Path], int]:
    """The images at any depth, in the order of their paths; the number of others."""
    images, others = [], 0
    for place, folders, files in os.walk(folder, followlinks=True):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in files:
            if name.startswith("."):
                continue
            if _is_image(name):
                images.append(Path(place, name))
            else:
                others += 1
    return sorted(images), others


def _and_others(names: list[str]) -> str:
    more = len(names) - 1
    return f" (nor of {more} other{'s' * (more > 1)})" if more else ""
