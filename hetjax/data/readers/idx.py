"""IDX files, the format of MNIST and its relatives, plain or gzip.

A file has two zero bytes, a byte for the type, and one for the number of axes; then the
length of each axis in four bytes; then the values. All numbers are big-endian, and the
last axis varies fastest.
Source: yann.lecun.com/exdb/mnist.
"""

import math
from os import PathLike
from pathlib import Path
from typing import IO

import numpy as np

from hetjax.data.dataset import Dataset, Split
from hetjax.data.readers import DataError
from hetjax.data.readers.text_files import opened
from hetjax.recipes import by_name

_DTYPES = {8: "u1", 9: "i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}
_MOST_AXES = 64  # that a NumPy array can have
_BLOCK = 1 << 24  # [bytes] read at a time
_MOST_CLASSES = 1 << 20  # more than any official set has images
_PARTS = {"images": "idx3", "labels": "idx1"}
_SPLITS = {"train": "train", "test": "t10k"}  # as the official files call them

FILES = tuple(
    f"{split}-{part}-{axes}-ubyte"
    for split in _SPLITS.values()
    for part, axes in _PARTS.items()
)


def read_idx(path: str | PathLike) -> np.ndarray:
    """The array in an IDX file, with the file's shape and dtype.

    A file that is not IDX, is truncated or has trailing bytes is a `DataError`.
    """
    path = Path(path)
    with opened(path) as file:
        header = file.read(4)
        header += file.read(4 * header[3]) if len(header) == 4 else b""
        dtype, shape = _header(path, header)
        promised = len(header) + math.prod(shape) * dtype.itemsize
        values, rest = _at_most(file, promised - len(header))
    length = len(header) + len(values) + rest
    if length != promised:
        problem = "truncated" if length < promised else "has trailing bytes"
        raise DataError(
            f"{path}: {problem}: {length} bytes, but its header promises "
            f"{promised}, for {list(shape)} of {dtype.name}; fetch the file again"
        )
    try:
        array = np.frombuffer(values, dtype).reshape(shape)
    except ValueError as error:  # an empty array with too long axes
        raise DataError(
            f"{path}: its header promises {list(shape)} of {dtype.name}, which cannot "
            f"be an array ({error}); fetch the file again"
        ) from None
    return array.astype(dtype.newbyteorder("="))


def _at_most(file: IO[bytes], size: int) -> tuple[bytes, int]:
    """(the next `size` bytes, or fewer at the file's end; the number of bytes left).

    Reads in blocks, since a damaged header may promise more than fits in memory, and a
    damaged gzip file may contain more. Reads to the end, where gzip has its checksum.
    """
    blocks, missing, rest = [], size, 0
    while block := file.read(_BLOCK):
        blocks.append(block[:missing])
        missing -= len(blocks[-1])
        rest += len(block) - len(blocks[-1])
    return b"".join(blocks), rest


def _header(path: Path, content: bytes) -> tuple[np.dtype, tuple[int, ...]]:
    """The dtype and shape of the values, from the header of the file."""
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in _DTYPES:
        begin = f"begins with 0x{content[:4].hex()}" if content else "is empty"
        raise DataError(
            f"{path}: not an IDX file: it {begin}, but should begin with 0x0000, a "
            "type of 08, 09 or 0b to 0e, and the number of axes; is it the right file?"
        )
    axes = content[3]
    if axes > _MOST_AXES:
        raise DataError(
            f"{path}: its header promises {axes} axes, more than the {_MOST_AXES} that "
            "an array can have; is it the right file?"
        )
    if len(content) < 4 + 4 * axes:
        raise DataError(
            f"{path}: truncated: {len(content)} bytes do not hold the lengths of its "
            f"{axes} axes; fetch the file again"
        )
    lengths = np.frombuffer(content, ">u4", count=axes, offset=4)
    return np.dtype(_DTYPES[content[2]]), tuple(lengths.tolist())


@by_name
def read_idx_folder(folder: str | PathLike, *, name: str | None = None) -> Dataset:
    """Reads images and class ids from a folder with four files like those of MNIST.

    They are train-images-idx3-ubyte, train-labels-idx1-ubyte and, for the test split,
    the same with t10k. Each name may end in .gz, and have a dot before "idx". x:
    [N, H, W, 1] float32 in [0, 1], the bytes over 255; y: [N] int32. `name` defaults to
    the folder's name. Missing or inconsistent files raise a `DataError`.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder")
    splits = [_read_split(folder, prefix) for prefix in _SPLITS.values()]
    shapes = [list(split.x.shape[1:3]) for split in splits]
    if shapes[0] != shapes[1]:
        raise DataError(
            f"{folder}: images of train are {shapes[0]}, images of test {shapes[1]}; "
            "do both belong to the same data set?"
        )
    return Dataset(
        train=splits[0],
        test=splits[1],
        num_classes=1 + int(max(split.y.max() for split in splits)),
        name=folder.resolve().name if name is None else name,
    )


def spellings(file: str) -> tuple[str, ...]:
    """The file names that are tried for one of `FILES`, in order of preference."""
    dotted = file.replace("-idx", ".idx")
    return file, f"{file}.gz", dotted, f"{dotted}.gz"


def _read_split(folder: Path, prefix: str) -> Split:
    """The images and labels of one split, checked separately and together."""
    paths = [_found(folder, f"{prefix}-{part}-{_PARTS[part]}-ubyte") for part in _PARTS]
    images, labels = (read_idx(path) for path in paths)
    if images.ndim != 3 or images.dtype != np.uint8 or not images.size:
        raise DataError(
            f"{paths[0]}: images must be [N, H, W] of unsigned bytes, but it holds "
            f"{list(images.shape)} of {images.dtype}; is it the right file?"
        )
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise DataError(
            f"{paths[1]}: labels must be [N] integers, but it holds "
            f"{list(labels.shape)} of {labels.dtype}; is it the right file?"
        )
    if len(images) != len(labels):
        raise DataError(
            f"{paths[1]}: {len(labels)} labels, but {len(images)} images in "
            f"{paths[0].name}; do both belong to the same data set?"
        )
    if labels.min() < 0:
        raise DataError(f"{paths[1]}: label {labels.min()} is negative; damaged?")
    if labels.max() >= _MOST_CLASSES:  # a model would have this many outputs
        raise DataError(
            f"{paths[1]}: label {labels.max()} is above {_MOST_CLASSES - 1}; damaged?"
        )
    return Split(
        np.divide(images, np.float32(255))[..., np.newaxis], labels.astype(np.int32)
    )


def _found(folder: Path, file: str) -> Path:
    for spelling in spellings(file):
        if (folder / spelling).is_file():
            return folder / spelling
    names = sorted(entry.name for entry in folder.iterdir())
    content = ", ".join(names[:20] + ["..."] * (len(names) > 20)) or "nothing"
    raise DataError(f"{folder}: looked for {file} or {file}.gz; it holds {content}")
