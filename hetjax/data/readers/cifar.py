"""CIFAR-10 and CIFAR-100 in their official binary versions.

A record is one label byte (in CIFAR-100 two, the coarse label first), then 1,024 red,
1,024 green and 1,024 blue bytes, each color row by row.
Source: www.cs.toronto.edu/~kriz/cifar.html.
"""

from os import PathLike
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hetjax.data.dataset import Dataset, Split
from hetjax.data.readers import DataError
from hetjax.recipes import by_name

_PIXELS = 3 * 32 * 32  # [bytes] of an image
_BLOCK = 5000  # images converted to floats at a time: 15 MB in addition to the result


class Version(NamedTuple):
    """One of the two data sets, as stored in its archive."""

    name: str
    folder: str  # in the archive
    train: tuple[str, ...]  # file names
    test: str
    labels: tuple[tuple[str, int], ...]  # name and number of classes per label byte
    sizes: tuple[int, int]  # official numbers of images, train and test

    @property
    def files(self) -> tuple[str, ...]:
        """The names of all files."""
        return *self.train, self.test


CIFAR10 = Version(
    name="cifar10",
    folder="cifar-10-batches-bin",
    train=tuple(f"data_batch_{i}.bin" for i in range(1, 6)),
    test="test_batch.bin",
    labels=(("fine", 10),),
    sizes=(50_000, 10_000),
)
CIFAR100 = Version(
    name="cifar100",
    folder="cifar-100-binary",
    train=("train.bin",),
    test="test.bin",
    labels=(("coarse", 20), ("fine", 100)),
    sizes=(50_000, 10_000),
)


@by_name
def read_cifar(
    folder: str | PathLike, *, labels: str = "fine", name: str | None = None
) -> Dataset:
    """Reads CIFAR-10 or CIFAR-100 from a folder, or from the archive's folder in it.

    x: [N, 32, 32, 3] float32 in [0, 1], the bytes over 255; y: [N] int32. CIFAR-100
    has labels "fine" (100 classes) and "coarse" (20). `name` defaults to cifar10 or
    cifar100. `Dataset.notes` mentions a number of images that is not the official one.
    Missing or inconsistent files are a `DataError`.
    """
    folder = Path(folder)
    found = [
        (v, place)
        for v in (CIFAR10, CIFAR100)
        if (place := find(folder, v)) is not None
    ]
    if len(found) > 1:
        raise DataError(
            f"{folder}: holds both CIFAR-10 and CIFAR-100; put them into two folders"
        )
    if not found:
        looked_for = " or ".join(
            f"{v.train[0]} and others" for v in (CIFAR10, CIFAR100)
        )
        problem = f"looked for {looked_for}" if folder.is_dir() else "no such folder"
        raise DataError(
            f"{folder}: {problem}; unpack cifar-10-binary.tar.gz or "
            "cifar-100-binary.tar.gz there"
        )
    version, place = found[0]
    return read_version(version, place, labels=labels, name=name)


def find(folder: Path, version: Version) -> Path | None:
    """The folder with any of a version's files: `folder`, or the archive's in it."""
    for place in (folder, folder / version.folder):
        if any((place / file).is_file() for file in version.files):
            return place
    return None


def read_version(
    version: Version, folder: Path, *, labels: str = "fine", name: str | None = None
) -> Dataset:
    """Reads this version's files; a DataError names those that are missing."""
    known = dict(version.labels)
    if labels not in known:
        raise ValueError(
            f"labels is {labels!r}; {version.name} has {' and '.join(known)}"
        )
    missing = [file for file in version.files if not (folder / file).is_file()]
    if missing:
        raise DataError(
            f"{folder}: {', '.join(missing)} missing; unpack all of the archive there"
        )
    train = _read_split(version, [folder / file for file in version.train], labels)
    test = _read_split(version, [folder / version.test], labels)
    notes = [
        f"{part}: {len(split)} images, the official files have {size}"
        for part, split, size in zip(
            ("train", "test"), (train, test), version.sizes, strict=True
        )
        if len(split) != size
    ]
    return Dataset(
        train=train,
        test=test,
        num_classes=known[labels],
        name=version.name if name is None else name,
        notes=tuple(notes),
    )


def _read_split(version: Version, paths: list[Path], labels: str) -> Split:
    """The images of all files, in order; the floats are written once, in place."""
    record = len(version.labels) + _PIXELS
    counts = [_count(path, record) for path in paths]
    x = np.empty((sum(counts), 32, 32, 3), np.float32)
    y = np.empty(len(x), np.int32)
    column = [kind for kind, _ in version.labels].index(labels)
    row = 0
    for path, count in zip(paths, counts, strict=True):
        for first in range(0, count, _BLOCK):
            records = _records(path, first, min(_BLOCK, count - first), record)
            _check_labels(version, path, first, records)
            images = records[:, -_PIXELS:].reshape(-1, 3, 32, 32)
            rows = slice(row, row := row + len(records))
            np.divide(images.transpose(0, 2, 3, 1), np.float32(255), out=x[rows])
            y[rows] = records[:, column]
    return Split(x, y)


def _count(path: Path, record: int) -> int:
    """The number of records in a file."""
    size = path.stat().st_size
    if not size or size % record:
        raise DataError(
            f"{path}: {size} bytes are not a whole number of images of {record} bytes; "
            "truncated, or not the binary version? unpack the archive again"
        )
    return size // record


def _records(path: Path, first: int, count: int, record: int) -> np.ndarray:
    """Records [count, record] uint8, starting with number `first`."""
    try:
        content = np.fromfile(path, np.uint8, count * record, offset=first * record)
    except OSError as error:
        reason = error.strerror or error
        raise DataError(f"{path}: cannot be read ({reason})") from error
    if len(content) != count * record:
        raise DataError(f"{path}: it changed during reading; read it again")
    return content.reshape(count, record)


def _check_labels(
    version: Version, path: Path, first: int, records: np.ndarray
) -> None:
    """Raises a DataError unless every label byte is a class of this version."""
    for column, (kind, classes) in enumerate(version.labels):
        wrong = np.flatnonzero(records[:, column] >= classes)
        if wrong.size:
            raise DataError(
                f"{path}: image {first + wrong[0]} has the {kind} label "
                f"{records[wrong[0], column]}, outside 0..{classes - 1}; damaged, or "
                f"not a file of {version.name}?"
            )
