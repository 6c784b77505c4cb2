"""Checks of data sets, and of arguments to the functions that make them."""

import math
import numbers
from typing import Any

import scipy.sparse as sp

from hetjax.data.dataset import Dataset, Split


def is_whole(value: Any) -> bool:
    """Is it an integer, and not a bool?"""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def is_real(value: Any) -> bool:
    """Is it a real number, and not a bool?"""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def check_whole(name: str, value: Any, low: int, high: int | None = None) -> None:
    """Raises a ValueError unless `value` is a whole number from `low` to `high`."""
    if (
        not is_whole(value)
        or int(value) < low
        or (high is not None and int(value) > high)
    ):
        bounds = f"of {low} or more" if high is None else f"from {low} to {high}"
        raise ValueError(f"{name} is {value!r}; it must be a whole number {bounds}")


def check_real(name: str, value: Any) -> None:
    """Raises a ValueError unless `value` is a finite number."""
    if not is_real(value) or not math.isfinite(value):
        raise ValueError(f"{name} is {value!r}; it must be a finite number")


def check_dataset(data: Dataset) -> None:
    """Raises a ValueError unless the splits are valid and fit each other.

    The readers and `from_arrays` only make valid data sets: this is for those built by
    hand.
    """
    if not isinstance(data.num_classes, numbers.Integral) or data.num_classes < 1:
        raise ValueError(
            f"data: num_classes={data.num_classes}: give a whole number, at least 1"
        )
    for name, split in (("training", data.train), ("test", data.test)):
        _check_split(f"the {name} split of {data.name}", split, int(data.num_classes))
    shapes = [list(split.x.shape) for split in (data.train, data.test)]
    if shapes[0][1:] != shapes[1][1:]:
        raise ValueError(
            f"x of the training split of {data.name} is {shapes[0]}, x of the test "
            f"split is {shapes[1]}: all axes but the first must agree"
        )


def _check_split(what: str, split: Split, num_classes: int) -> None:
    for name, array in (("x", split.x), ("y", split.y)):
        is_csr = getattr(array, "format", None) == "csr"
        if not (is_csr if sp.issparse(array) else hasattr(array, "shape")):
            raise ValueError(
                f"{name} of {what} is a {type(array).__name__}: give a NumPy array or "
                "a scipy CSR array, as hetjax.data.from_arrays makes them"
            )
    if split.x.shape[0] != split.y.shape[0]:
        raise ValueError(
            f"x of {what} has {split.x.shape[0]} rows, but y has {split.y.shape[0]}: "
            "give one label for each example"
        )
    if not len(split):
        raise ValueError(f"{what} has no examples")
    if sp.issparse(split.y):
        if not split.y.nnz:
            raise ValueError(f"no row of {what} has a label")
        if split.y.shape[1] != num_classes:
            raise ValueError(
                f"y of {what} has {split.y.shape[1]} columns, but num_classes is "
                f"{num_classes}"
            )
    elif split.y.ndim == 1 and split.y.dtype.kind in "iu":
        low, high = int(split.y.min()), int(split.y.max())
        if low < 0 or high >= num_classes:
            wrong = low if low < 0 else high
            raise ValueError(
                f"y of {what} has the class id {wrong}, outside 0..{num_classes - 1}"
            )
