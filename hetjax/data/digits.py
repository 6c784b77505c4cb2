"""The handwritten digits that come with scikit-learn: real data without a download."""

import numpy as np

from hetjax.data.checks import check_real, check_whole
from hetjax.data.dataset import Dataset, Split
from hetjax.recipes import by_name


@by_name
def digits(*, test_share: float = 0.2, seed: int = 0) -> Dataset:
    """1,797 images of digits: x [N, 64] float32 in [0, 1], y [N] int32 of 10 classes.

    The test split is a share of all images, drawn with `seed`. A ValueError names an
    invalid argument.
    """
    check_real("test_share", test_share)
    check_whole("seed", seed, 0)
    from sklearn.datasets import load_digits  # here, as it takes a second to import

    pixels, classes = load_digits(return_X_y=True)
    x = (np.asarray(pixels) / 16).astype(np.float32)  # pixels are 0..16
    y = np.asarray(classes).astype(np.int32)
    num_test = round(test_share * len(x))
    if not 0 < num_test < len(x):
        raise ValueError(f"test_share={test_share} leaves a split without images")
    order = np.random.default_rng(seed).permutation(len(x))
    everything = Split(x, y)
    return Dataset(
        train=everything.take(order[num_test:]),
        test=everything.take(order[:num_test]),
        num_classes=10,
        name="digits",
    )
