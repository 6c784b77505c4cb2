"""Images as arrays: IDX files (MNIST and its relatives), CIFAR-10 and CIFAR-100.

An IDX file has two zero bytes, a byte for the type, and one for the number of axes;
then the length of each axis in four bytes; then the values. All numbers are big-endian,
and the last axis varies fastest. Source: yann.lecun.com/exdb/mnist.

A record of CIFAR's binary version is one label byte (in CIFAR-100 two, the coarse label
first), then 1,024 red, 1,024 green and 1,024 blue bytes, each color row by row.
Source: www.cs.toronto.edu/~kriz/cifar.html.
"""

import math
from os import PathLike
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hetjax.arguments import checked, shown
from hetjax.data.dataset import Dataset, Split
from hetjax.data.readers import DataError, reading
from hetjax.data.readers.text_files import find, opened
from hetjax.recipes import by_name

_DTYPES = {8: "u1", 9: "i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}
_MOST_CLASSES = 1 << 20  # more than any official set has images
_IMAGES, _LABELS = "{}-images-idx3-ubyte", "{}-labels-idx1-ubyte"
IDX_FILES = tuple(
    name.format(split) for split in ("train", "t10k") for name in (_IMAGES, _LABELS)
)


def read_idx(path: str | PathLike) -> np.ndarray:
    """The array in an IDX file, with the file's shape and dtype.

    A file that is not IDX, is truncated or has trailing bytes is a `DataError`.
    """
    path = Path(path)
    with opened(path) as file:
        content = file.read()
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in _DTYPES:
        begin = f"begins with 0x{content[:4].hex()}" if content else "is empty"
        raise DataError(
            f"{path}: not an IDX file: it {begin}, but should begin with 0x0000, a "
            "type of 08, 09 or 0b to 0e, and the number of axes; is it the right file?"
        )
    dtype, header = np.dtype(_DTYPES[content[2]]), 4 + 4 * content[3]
    if len(content) < header:
        raise DataError(
            f"{path}: truncated: {len(content)} bytes do not hold the lengths of its "
            f"{content[3]} axes; fetch the file again"
        )
    shape = tuple(np.frombuffer(content[4:header], ">u4").tolist())
    found = f"{shown(list(shape))} of {dtype.name}"
    promised = header + math.prod(shape) * dtype.itemsize
    if len(content) != promised:
        problem = "truncated" if len(content) < promised else "has trailing bytes"
        raise DataError(
            f"{path}: {problem}: {len(content)} bytes, but its header promises "
            f"{promised}, for {found}; fetch the file again"
        )
    try:
        array = np.frombuffer(content, dtype, offset=header).reshape(shape)
    except ValueError as error:  # too many axes, or an empty array with too long ones
        raise DataError(
            f"{path}: its header promises {found}, which cannot be an array ({error}); "
            "fetch the file again"
        ) from None
    return array.astype(dtype.newbyteorder("="))


@by_name
@checked
def read_idx_folder(folder: str | PathLike, *, name: str | None = None) -> Dataset:
    """Reads images and class ids from a folder with four files like those of MNIST.

    They are train-images-idx3-ubyte, train-labels-idx1-ubyte and, for the test split,
    the same with t10k. Each name may end in .gz, and have a dot before "idx". x:
    [N, H, W, 1] float32 in [0, 1], the bytes over 255; y: [N] int32. `name` defaults to
    the folder's name. Missing or inconsistent files raise a `DataError`.
    """
    folder = Path(folder)
    train, test = (_read_idx_split(folder, prefix) for prefix in ("train", "t10k"))
    shapes = [list(split.x.shape[1:3]) for split in (train, test)]
    if shapes[0] != shapes[1]:
        raise DataError(
            f"{folder}: images of train are {shapes[0]}, images of test {shapes[1]}; "
            "do both belong to the same data set?"
        )
    return Dataset(
        train=train,
        test=test,
        num_classes=1 + int(max(train.y.max(), test.y.max())),
        name=folder.resolve().name if name is None else name,
    )


def idx_spellings(file: str) -> tuple[str, str]:
    """The names that one of `IDX_FILES` may have, without the suffix of a packer."""
    return file, file.replace("-idx", ".idx")


def _read_idx_split(folder: Path, prefix: str) -> Split:
    """The images and labels of one split, checked separately and together."""
    paths = [
        find(folder, *idx_spellings(name.format(prefix))) for name in (_IMAGES, _LABELS)
    ]
    images, labels = (read_idx(path) for path in paths)
    wanted = {
        "images must be [N, H, W] of unsigned bytes": (
            images.ndim == 3 and images.dtype == np.uint8 and images.size
        ),
        "labels must be [N] integers": labels.ndim == 1 and labels.dtype.kind in "iu",
    }
    for path, array, (what, fits) in zip(
        paths, (images, labels), wanted.items(), strict=True
    ):
        if not fits:
            raise DataError(
                f"{path}: {what}, but it holds {list(array.shape)} of {array.dtype}; "
                "is it the right file?"
            )
    if len(images) != len(labels):
        raise DataError(
            f"{paths[1]}: {len(labels)} labels, but {len(images)} images in "
            f"{paths[0].name}; do both belong to the same data set?"
        )
    low, high = labels.min(), labels.max()
    if low < 0 or high >= _MOST_CLASSES:  # a model would have this many outputs
        raise DataError(
            f"{paths[1]}: label {low if low < 0 else high} is outside "
            f"0..{_MOST_CLASSES - 1}; damaged?"
        )
    x = np.divide(images, np.float32(255))[..., np.newaxis]
    return Split(x, labels.astype(np.int32))


class CifarVersion(NamedTuple):
    """One of the two data sets, as stored in its archive."""

    name: str
    folder: str  # in the archive
    train: tuple[str, ...]  # file names
    test: str
    labels: dict[str, int]  # the number of classes of each label byte

    @property
    def files(self) -> tuple[str, ...]:
        """The names of all files."""
        return *self.train, self.test


CIFAR10 = CifarVersion(
    name="cifar10",
    folder="cifar-10-batches-bin",
    train=tuple(f"data_batch_{i}.bin" for i in range(1, 6)),
    test="test_batch.bin",
    labels={"fine": 10},
)
CIFAR100 = CifarVersion(
    name="cifar100",
    folder="cifar-100-binary",
    train=("train.bin",),
    test="test.bin",
    labels={"coarse": 20, "fine": 100},
)
_CIFAR_PIXELS = 3 * 32 * 32  # [bytes] of an image
_CIFAR_SIZES = {"train": 50_000, "test": 10_000}  # official numbers of images
_BLOCK = 5000  # images converted to floats at a time: 15 MB in addition to the result


@by_name
@checked
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
    found = find_cifar(folder)
    if len(found) > 1:
        raise DataError(
            f"{folder}: holds both CIFAR-10 and CIFAR-100; put them into two folders"
        )
    if not found:
        problem = "no such folder"
        if folder.is_dir():
            names = [f"{v.train[0]} and others" for v in (CIFAR10, CIFAR100)]
            problem = f"looked for {' or '.join(names)}"
        raise DataError(
            f"{folder}: {problem}; unpack cifar-10-binary.tar.gz or "
            "cifar-100-binary.tar.gz there"
        )
    ((version, place),) = found
    return read_cifar_version(version, place, labels=labels, name=name)


def find_cifar(folder: Path) -> list[tuple[CifarVersion, Path]]:
    """The versions with a file in `folder`, or in the archive's folder in it."""
    found = []
    for version in (CIFAR10, CIFAR100):
        for place in (folder, folder / version.folder):
            if any((place / file).is_file() for file in version.files):
                found.append((version, place))
                break
    return found


def read_cifar_version(
    version: CifarVersion,
    folder: Path,
    *,
    labels: str = "fine",
    name: str | None = None,
) -> Dataset:
    """Reads this version's files; a DataError names those that are missing."""
    if labels not in version.labels:
        raise ValueError(
            f"labels is {labels!r}; {version.name} has {' and '.join(version.labels)}"
        )
    missing = [file for file in version.files if not (folder / file).is_file()]
    if missing:
        raise DataError(
            f"{folder}: {', '.join(missing)} missing; unpack all of the archive there"
        )
    splits = {
        part: _read_cifar_split(version, [folder / file for file in files], labels)
        for part, files in (("train", version.train), ("test", (version.test,)))
    }
    notes = [
        f"{part}: {len(splits[part])} images, the official files have {size}"
        for part, size in _CIFAR_SIZES.items()
        if len(splits[part]) != size
    ]
    return Dataset(
        **splits,
        num_classes=version.labels[labels],
        name=version.name if name is None else name,
        notes=tuple(notes),
    )


def _read_cifar_split(version: CifarVersion, paths: list[Path], labels: str) -> Split:
    """The images of all files, in order; the floats are written once, in place."""
    records = [_cifar_records(version, path) for path in paths]
    x = np.empty((sum(map(len, records)), 32, 32, 3), np.float32)
    column = list(version.labels).index(labels)
    row = 0
    for of_file in records:
        for first in range(0, len(of_file), _BLOCK):
            pixels = of_file[first : first + _BLOCK, -_CIFAR_PIXELS:]
            images = pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
            rows = slice(row, row := row + len(images))
            np.divide(images, np.float32(255), out=x[rows])
    y = np.concatenate([of_file[:, column] for of_file in records])
    return Split(x, y.astype(np.int32))


def _cifar_records(version: CifarVersion, path: Path) -> np.ndarray:
    """The records of a file [images, bytes] uint8, mapped, with valid labels."""
    size, record = path.stat().st_size, len(version.labels) + _CIFAR_PIXELS
    if not size or size % record:
        raise DataError(
            f"{path}: {size} bytes are not a whole number of images of {record} bytes; "
            "truncated, or not the binary version? unpack the archive again"
        )
    with reading(path):
        records = np.memmap(path, np.uint8, "r", shape=(size // record, record))
    for column, (kind, classes) in enumerate(version.labels.items()):
        wrong = np.flatnonzero(records[:, column] >= classes)
        if wrong.size:
            raise DataError(
                f"{path}: image {wrong[0]} has the {kind} label "
                f"{records[wrong[0], column]}, outside 0..{classes - 1}; damaged, or "
                f"not a file of {version.name}?"
            )
    return records
