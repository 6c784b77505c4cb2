"""Writes small files in CIFAR's binary format."""

import numpy as np

FILES_10 = [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]
FILES_100 = ["train.bin", "test.bin"]


def write_10(folder, counts=(2, 1, 3, 1, 2, 4)):
    """Records [N, 3073] per file: a label, then 3 x 32 x 32 pixels."""
    return _write(folder, FILES_10, counts, (10,))


def write_100(folder, counts=(7, 3)):
    """Records [N, 3074] per file: a coarse label, a fine one, then the pixels."""
    return _write(folder, FILES_100, counts, (20, 100))


def _write(folder, files, counts, classes):
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for file, count in zip(files, counts, strict=True):
        labels = [rng.integers(c, size=(count, 1), dtype=np.uint8) for c in classes]
        pixels = rng.integers(256, size=(count, 3072), dtype=np.uint8)
        written.append(np.concatenate([*labels, pixels], axis=1))
        written[-1].tofile(folder / file)
    return written
