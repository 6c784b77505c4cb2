"""Writes small IDX files and MNIST-like folders."""

import gzip
import struct

import numpy as np

CODES = {"uint8": 8, "int8": 9, "int16": 11, "int32": 12, "float32": 13, "float64": 14}
NAMES = [
    f"{split}-{part}-ubyte"
    for split in ("train", "t10k")
    for part in ("images-idx3", "labels-idx1")
]


def idx_bytes(array):
    """The array as IDX; packed by `struct`, as the oracle of a NumPy reader."""
    lengths = struct.pack(f">{array.ndim}I", *array.shape)
    big = array.astype(array.dtype.newbyteorder(">"))
    return bytes([0, 0, CODES[array.dtype.name], array.ndim]) + lengths + big.tobytes()


def write_folder(folder, *, zipped=True, dotted=False, **changed):
    """Four files of 5 + 3 images of 4 x 6; returns their arrays by file name.

    `changed` replaces arrays by name, such as train_images=...
    """
    rng = np.random.default_rng(0)
    arrays = {
        "train_images": rng.integers(256, size=(5, 4, 6), dtype=np.uint8),
        "train_labels": np.array([3, 0, 2, 1, 1], np.uint8),
        "t10k_images": rng.integers(256, size=(3, 4, 6), dtype=np.uint8),
        "t10k_labels": np.array([4, 0, 1], np.uint8),
    } | changed
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in zip(NAMES, arrays.values(), strict=True):
        content = idx_bytes(array)
        spelling = name.replace("-idx", ".idx") if dotted else name
        file = folder / (spelling + ".gz" * zipped)
        file.write_bytes(gzip.compress(content) if zipped else content)
    return arrays
