"""The handwritten digits of scikit-learn: real data without a download."""

from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Annotated

import numpy as np

from hetjax.arguments import Bounds, HostSeed, checked
from hetjax.data.dataset import Dataset, Split
from hetjax.recipes import by_name

_SIDE = 8  # pixels
_FILE = "sklearn/datasets/data/digits.csv.gz"


@by_name
@checked
def digits(
    *,
    test_share: float = 0.2,
    seed: HostSeed = 0,
    shift: Annotated[int, Bounds(low=0, high=_SIDE - 1)] = 0,
) -> Dataset:
    """1,797 images of digits: x [N, 64] float32 in [0, 1], y [N] int32 of 10 classes.

    The test split is a share of all images, drawn with `seed`. With `shift` [pixels]
    both splits hold every image at all (2 shift + 1)^2 positions, padded with zeros:
    nine times the examples with shift=1. All copies of an image are in the same split.
    """
    pixels, classes = _pixels_and_classes()
    x = (pixels / 16).astype(np.float32)  # pixels are 0..16
    y = classes.astype(np.int32)
    num_test = round(test_share * len(x))
    if not 0 < num_test < len(x):
        raise ValueError(f"test_share={test_share} leaves a split without images")
    order = np.random.default_rng(seed).permutation(len(x))
    everything = Split(x, y)
    return Dataset(
        train=_shifted(everything.take(order[num_test:]), shift),
        test=_shifted(everything.take(order[:num_test]), shift),
        num_classes=10,
        name="shifted digits" if shift else "digits",
    )


def _pixels_and_classes() -> tuple[np.ndarray, np.ndarray]:
    """Pixels [1797, 64] and classes [1797], from scikit-learn's file.

    Importing scikit-learn takes a second, and is needed only if the file has moved.
    """
    try:
        file = Path(str(distribution("scikit-learn").locate_file(_FILE)))
        table = np.loadtxt(file, delimiter=",")
    except (PackageNotFoundError, FileNotFoundError):
        from sklearn.datasets import load_digits

        pixels, classes = load_digits(return_X_y=True)
        return np.asarray(pixels), np.asarray(classes)
    return table[:, :-1], table[:, -1]


def _shifted(split: Split, shift: int) -> Split:
    """All images at the first position, then all at the next one, and so on."""
    images = split.x.reshape(-1, _SIDE, _SIDE)
    frame = np.pad(images, ((0, 0), (shift, shift), (shift, shift)))
    offsets = range(2 * shift + 1)
    moved = [
        frame[:, row : row + _SIDE, column : column + _SIDE]
        for row in offsets
        for column in offsets
    ]
    return Split(
        np.concatenate(moved).reshape(-1, _SIDE**2), np.tile(split.y, len(moved))
    )
