"""Held-out examples of the training split, and a fixed subset of the test split."""

import numpy as np
import scipy.sparse as sp

from hetjax.data.dataset import Split

SHARE = 0.1  # of the training split
FEW = 1000  # examples: enough to weight models by accuracy
_STREAM = 10_007  # makes the draw independent of other uses of a seed


def num_held_out(num_examples: int, at_most: int | None = None) -> int:
    """The number of examples held out of `num_examples`, at most `at_most`."""
    n = max(1, int(SHARE * num_examples))
    return n if at_most is None else min(n, at_most)


def split_off(
    split: Split, seed: int, at_most: int | None = None
) -> tuple[Split, Split]:
    """(the other examples, the held-out examples), both in the order of the split."""
    rest, held = held_out_rows(len(split), seed, at_most)
    return split.take(rest), split.take(held)


def held_out_rows(
    number: int, seed: int, at_most: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """The two arrays of row numbers of `split_off`, for `number` examples."""
    order = np.random.default_rng((_STREAM, seed)).permutation(number)
    n = num_held_out(number, at_most)
    return np.sort(order[n:]), np.sort(order[:n])


def fixed_subset(split: Split, number: int | None) -> Split:
    """The same `number` examples on every call, in the order of the split; None: all.

    At least one has labels if any example has: a mean loss over none would be NaN.
    """
    if number is None or number >= len(split):
        return split
    order = np.random.default_rng(0).permutation(len(split))
    if sp.issparse(split.y):
        labeled = np.flatnonzero(np.diff(split.y.indptr)[order])
        if len(labeled) and labeled[0] >= number:
            order[number - 1] = order[labeled[0]]
    return split.take(np.sort(order[:number]))
