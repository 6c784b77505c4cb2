"""Data with the shapes of public data sets, which take no memory: for plans of runs.

All examples are the same, so nothing can be learned from them.
"""

from typing import Any, NamedTuple

import numpy as np

import hetjax as hj


class Shape(NamedTuple):
    """Sizes of a data set, and the type of its inputs."""

    train: int
    test: int
    x: tuple[int, ...]  # of one example
    dtype: type
    classes: int


SHAPES = {
    "mnist": Shape(60_000, 10_000, (28, 28, 1), np.float32, 10),
    "fashion_mnist": Shape(60_000, 10_000, (28, 28, 1), np.float32, 10),
    "cifar10": Shape(50_000, 10_000, (32, 32, 3), np.float32, 10),
    "cifar100": Shape(50_000, 10_000, (32, 32, 3), np.float32, 100),
    "flowers102": Shape(6_149, 2_040, (256, 256, 3), np.uint8, 102),
    "tiny_imagenet": Shape(100_000, 10_000, (64, 64, 3), np.uint8, 200),
    "imagenet": Shape(1_281_167, 50_000, (256, 256, 3), np.uint8, 1000),
    "ag_news": Shape(120_000, 7_600, (256,), np.uint16, 4),
}


class Repeated:
    """An array [N, ...] of equal rows, each created when it is read."""

    def __init__(self, row: np.ndarray, number: int):
        """`n` times this row."""
        self._row = row
        self.shape, self.dtype = (number, *row.shape), row.dtype
        self.ndim = len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> np.ndarray:
        rows = np.arange(len(self))[index]
        return np.broadcast_to(self._row, (*rows.shape, *self._row.shape)).copy()


def like(name: str) -> hj.data.Dataset:
    """A data set of these sizes; tokens are 1, so that none is padding."""
    shape = SHAPES[name]
    row = np.ones(shape.x, shape.dtype)

    def split(number: int) -> hj.data.Split:
        x = Repeated(row, number)
        return hj.data.Split(x, np.arange(number, dtype=np.int32) % shape.classes)

    return hj.data.Dataset(
        split(shape.train), split(shape.test), shape.classes, f"like {name}"
    )
