"""Layouts of image files: one folder per class, Tiny ImageNet, Oxford Flowers102."""

import os
from collections.abc import Iterable
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import scipy.io

from hetjax.arguments import Count, checked
from hetjax.data.dataset import Dataset, note
from hetjax.data.readers import DataError, reading
from hetjax.data.readers.images import (
    ImageFiles,
    ImageSplit,
    Side,
    raise_if_missing,
    read_images,
)
from hetjax.recipes import by_name

ENDINGS = (".jpg", ".jpeg", ".png")  # of names in any case


@by_name
@checked
def read_image_folder(
    folder: str | PathLike,
    *,
    size: Side = 256,
    train: str = "train",
    test: str = "val",
    cache: str | PathLike | None = None,
    workers: Count | None = None,
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
    folder = Path(folder)
    splits = {part: _classes(folder / part) for part in (train, test)}
    numbers = {name: number for number, name in enumerate(splits[train])}
    unknown = [name for name in splits[test] if name not in numbers]
    if unknown:
        raise DataError(
            f"{folder / test / unknown[0]}: {folder / train} has no class of that name"
            f" (of {len(unknown)} such); both splits need the same class folders"
        )
    notes: list[str] = []
    listed = [_listing(part, splits[part], numbers, notes) for part in (train, test)]
    for part in (train, test):
        loose = [entry for entry in (folder / part).iterdir() if entry.is_file()]
        outside = sum(_is_image(entry.name) for entry in loose)
        notes.append(note(part, outside, "image", "in no class's folder ignored"))
    found = ImageFiles(
        root=folder,
        train=listed[0],
        test=listed[1],
        num_classes=len(numbers),
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


def _classes(place: Path) -> dict[str, Path]:
    """The class folders of a split, in the order of their names."""
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
    shown = [entry for entry in place.iterdir() if not entry.name.startswith(".")]
    return sorted(entry for entry in shown if entry.is_dir())


def _is_image(name: str) -> bool:
    return name.lower().endswith(ENDINGS) and not name.startswith(".")


def _listing(
    part: str, folders: dict[str, Path], numbers: dict[str, int], notes: list[str]
) -> ImageSplit:
    """The images in folders by class name; a remark is appended to `notes`."""
    paths, labels, ignored = [], [], 0
    for name, folder in folders.items():
        files = _files(folder)
        images = [path for path in files if _is_image(path.name)]
        if not images:
            raise DataError(
                f"{folder}: looked for {', '.join(ENDINGS)} files and found none; "
                "put the images of this class there, or remove the folder"
            )
        paths += images
        labels += [numbers[name]] * len(images)
        ignored += len(files) - len(images)
    notes.append(note(part, ignored, "file", "without an image's ending ignored"))
    return ImageSplit(paths, np.array(labels, np.int32))


def _files(folder: Path) -> list[Path]:
    """The files at any depth in the order of their paths, without hidden ones."""
    found = []
    for place, folders, files in os.walk(folder, followlinks=True):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [Path(place, name) for name in files if not name.startswith(".")]
    return sorted(found)


def _unofficial(sizes: Iterable[tuple[str, int, int]]) -> list[str]:
    """Remarks on (what, size, official size) that differ."""
    return [
        f"{size} {what}, the official files have {official}"
        for what, size, official in sizes
        if size != official
    ]


# Tiny ImageNet: wnids.txt has one WordNet id per line, train/ID/images/ the training
# images, and val/images/ the validation images, whose ids are in
# val/val_annotations.txt: file name, id and a box in each line, separated by tabs.
IDS, ANNOTATIONS = "wnids.txt", "val/val_annotations.txt"
_UNZIP = "unpack tiny-imagenet-200.zip again"


def find_tiny_imagenet(folder: Path) -> ImageFiles:
    """The images in this folder, by class, and then in the order of their names."""
    ids = sorted({line.strip() for _, line in _lines(folder / IDS)})
    numbers = {name: number for number, name in enumerate(ids)}
    notes: list[str] = []
    images = {name: folder / "train" / name / "images" for name in ids}
    train = _listing("train", images, numbers, notes)
    test = _validation(folder, numbers)
    sizes = [
        ("classes", len(ids), 200),
        ("training images", len(train.paths), 100_000),
        ("test images", len(test.paths), 10_000),
    ]
    return ImageFiles(
        root=folder,
        train=train,
        test=test,
        num_classes=len(ids),
        name="tiny_imagenet",
        notes=tuple(filter(None, [*_unofficial(sizes), *notes])),
        others=(folder / IDS, folder / ANNOTATIONS),
    )


def _validation(folder: Path, numbers: dict[str, int]) -> ImageSplit:
    """The validation images, in the order of their annotations."""
    labels: dict[str, int] = {}
    for where, line in _lines(folder / ANNOTATIONS):
        name, *rest = line.split("\t")
        if not rest or "/" in name:
            raise DataError(
                f"{where}: looked for a file name, a tab and an id in {line[:60]!r}; "
                f"{_UNZIP}"
            )
        if rest[0] not in numbers:
            raise DataError(f"{where}: {rest[0][:40]!r} is not in {IDS}; {_UNZIP}")
        labels[name] = numbers[rest[0]]
    paths = [folder / "val" / "images" / name for name in labels]
    raise_if_missing(folder, paths, _UNZIP)
    return ImageSplit(paths, np.array(list(labels.values()), np.int32))


def _lines(path: Path) -> list[tuple[str, str]]:
    """(file and line number, line) for each line that is not blank."""
    with reading(path, _UNZIP):
        lines = path.read_text(encoding="utf-8").splitlines()
    found = [(f"{path}:{k}", line) for k, line in enumerate(lines, 1) if line.strip()]
    if not found:
        raise DataError(f"{path}: no lines, the file is empty; {_UNZIP}")
    return found


# Oxford Flowers102: jpg/ has the images, image_00001.jpg and so on; imagelabels.mat has
# the class of each, counted from one; setid.mat the image numbers of the three splits.
FLOWER_FOLDER, FLOWER_LABELS, FLOWER_SPLITS = "jpg", "imagelabels.mat", "setid.mat"
_FLOWERS = 102
_OFFICIAL = {"trnid": 1020, "valid": 1020, "tstid": 6149}  # numbers of images
# the splits in setid.mat for training, and for testing
_USE = {
    "swapped": (("tstid",), ("trnid", "valid")),
    "official": (("trnid", "valid"), ("tstid",)),
}


def find_flowers(folder: Path, split: str) -> ImageFiles:
    """The images in this folder, in the order of setid.mat."""
    (labels,) = _variables(folder / FLOWER_LABELS, ["labels"], "label", _FLOWERS)
    ids = _variables(folder / FLOWER_SPLITS, list(_OFFICIAL), "image", len(labels))
    numbers, counts = np.unique(np.concatenate(ids), return_counts=True)
    if (counts > 1).any():  # the test split would have been seen in training
        raise DataError(
            f"{folder / FLOWER_SPLITS}: the image {numbers[counts > 1][0]} occurs "
            "twice, in one split or two; fetch the file again"
        )
    in_split = dict(zip(_OFFICIAL, ids, strict=True))
    place = folder / FLOWER_FOLDER
    if not place.is_dir():
        raise DataError(f"{place}: no such folder; unpack 102flowers.tgz")
    parts = []
    for names in _USE[split]:
        rows = np.concatenate([in_split[name] for name in names])
        paths = [place / f"image_{row:05}.jpg" for row in rows.tolist()]
        parts.append(ImageSplit(paths, (labels[rows - 1] - 1).astype(np.int32)))
    train, test = parts
    raise_if_missing(folder, [*train.paths, *test.paths], "unpack 102flowers.tgz again")
    sizes = [
        (f"images of {name}", len(rows), _OFFICIAL[name])
        for name, rows in in_split.items()
    ]
    others = folder / FLOWER_SPLITS, folder / FLOWER_LABELS
    return ImageFiles(
        folder, train, test, _FLOWERS, "flowers102", tuple(_unofficial(sizes)), others
    )


def _variables(path: Path, keys: list[str], what: str, most: int) -> list[np.ndarray]:
    """These variables of a MATLAB file: integers [n] from 1 to `most`."""
    if not path.is_file():
        raise DataError(f"{path}: no such file; download it to this folder, too")
    try:
        content: dict[str, Any] = scipy.io.loadmat(path)
    except Exception as error:  # of many types, for damaged files
        raise DataError(
            f"{path}: cannot be read as a MATLAB file ({error}); fetch it again"
        ) from error
    found = []
    for key in keys:
        if key not in content:
            there = ", ".join(name for name in content if not name.startswith("__"))
            raise DataError(f"{path}: looked for {key}; it holds {there or 'nothing'}")
        values = np.asarray(content[key]).reshape(-1)
        whole = values.size and values.dtype.kind in "iuf" and not (values % 1).any()
        if not whole or not np.isfinite(values).all():
            raise DataError(
                f"{path}: {key} must be whole numbers, not {list(values.shape)} of "
                f"{values.dtype}; fetch the file again"
            )
        wrong = np.flatnonzero((values < 1) | (values > most))
        if wrong.size:
            raise DataError(
                f"{path}: {key} has the {what} {values[wrong[0]]:g} at place "
                f"{wrong[0] + 1}, outside 1..{most}; do both .mat files belong "
                "together? fetch them again"
            )
        found.append(values.astype(np.int64))
    return found
