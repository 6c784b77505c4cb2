"""Checks of data sets and their values, and of arguments of functions for data."""

import numbers
from typing import Any

import jax
import numpy as np
import scipy.sparse as sp

from hetjax.data.columns import gather_rows, leaves_of
from hetjax.data.dataset import Dataset, Split


def is_whole(value: Any) -> bool:
    """Whether it is an integer, and not a bool."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def is_real(value: Any) -> bool:
    """Whether it is a real number, and not a bool."""
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


def check_dataset(data: Dataset) -> None:
    """Raises a ValueError unless the splits are valid and fit each other.

    Readers and `from_arrays` return valid data sets only; this is for a `Dataset` that
    a user constructs.
    """
    if not isinstance(data.num_classes, numbers.Integral) or data.num_classes < 0:
        raise ValueError(
            f"data: num_classes={data.num_classes}: pass a whole number, at least 1, "
            "or 0 if y holds no classes"
        )
    for name, split in (("training", data.train), ("test", data.test)):
        what = f"the {name} split of {data.name}"
        _check_arrays(what, split)
        if data.num_classes:
            _check_classes(what, split.y, int(data.num_classes))
    for name in ("x", "y") if not data.num_classes else ("x",):
        train, test = (
            jax.tree.map(lambda leaf: list(leaf.shape[1:]), getattr(split, name))
            for split in (data.train, data.test)
        )
        if train != test:
            raise ValueError(
                f"{name} of the training split of {data.name} is {train} for each "
                f"example, {name} of the test split is {test}: they must agree"
            )


def _check_arrays(what: str, split: Split) -> None:
    """Raises a ValueError unless x and y are arrays with the same number of rows."""
    leaves = [
        (f"{name}{jax.tree_util.keystr(path)}", leaf)
        for name, column in (("x", split.x), ("y", split.y))
        for path, leaf in jax.tree_util.tree_leaves_with_path(
            column, is_leaf=lambda leaf: isinstance(leaf, list)
        )
    ]
    if not leaves:
        raise ValueError(f"{what} has no arrays")
    for name, array in leaves:
        is_csr = getattr(array, "format", None) == "csr"
        if not (is_csr if sp.issparse(array) else hasattr(array, "shape")):
            raise ValueError(
                f"{name} of {what} is a {type(array).__name__}: pass a NumPy array or "
                "a scipy CSR array, as hetjax.data.from_arrays makes them"
            )
        rows = leaves[0][1].shape[0]
        if array.shape[0] != rows:
            raise ValueError(
                f"{leaves[0][0]} of {what} has {rows} rows, but {name} has "
                f"{array.shape[0]}: pass one target for each example"
            )
        if not rows:
            raise ValueError(f"{what} has no examples")


def _check_classes(what: str, y: Any, num_classes: int) -> None:
    """Raises a ValueError unless y holds class ids, or sets of labels, in range."""
    if not hasattr(y, "shape"):
        raise ValueError(f"y of {what} has several arrays: num_classes must be 0")
    if sp.issparse(y):
        if not y.nnz:
            raise ValueError(f"no row of {what} has a label")
        if y.shape[1] != num_classes:
            raise ValueError(
                f"y of {what} has {y.shape[1]} columns, but num_classes is "
                f"{num_classes}"
            )
    elif y.ndim == 1 and y.dtype.kind in "iu":
        low, high = int(y.min()), int(y.max())
        if low < 0 or high >= num_classes:
            raise ValueError(
                f"y of {what} has the class id {low if low < 0 else high}, outside "
                f"0..{num_classes - 1}"
            )


_ROWS_PER_READ = 1024
_NAMED = 5  # rows in a message, at most


def rows_not_finite(split: Split, rows: np.ndarray | None = None) -> np.ndarray:
    """The numbers of the rows whose inputs or targets hold NaN or infinity.

    Checks all of `rows`; by default every row of the split, in blocks of 1024, up to
    the first block with such a row.
    """
    if rows is not None:
        return rows[_bad(split, rows)]
    for start in range(0, len(split), _ROWS_PER_READ):
        block = np.arange(start, min(start + _ROWS_PER_READ, len(split)))
        if (bad := _bad(split, block)).any():
            return block[bad]
    return np.zeros(0, np.int64)


def not_finite_advice(rows: np.ndarray, of: str) -> str:
    """A message about these rows of a split: "rows 3, 5 and 7 more of the ..."."""
    shown = ", ".join(str(int(row)) for row in rows[:_NAMED])
    more = f" and {len(rows) - _NAMED} more" * (len(rows) > _NAMED)
    return (
        f"row{'s' * (len(rows) > 1)} {shown}{more} of the {of} hold"
        f"{'s' * (len(rows) == 1)} NaN or infinity: correct or remove such rows"
    )


def _bad(split: Split, rows: np.ndarray) -> np.ndarray:
    """[rows] bool: whether each of these rows holds NaN or infinity."""
    leaves = leaves_of((split.x, split.y))
    floats = [leaf for leaf in leaves if np.dtype(leaf.dtype).kind not in "biu"]
    bad = np.zeros(len(rows), bool)
    for matrix in filter(sp.issparse, floats):
        values = matrix[rows]
        row_of = np.repeat(np.arange(len(rows)), np.diff(values.indptr))
        bad[row_of[~np.isfinite(values.data)]] = True
    dense = [leaf for leaf in floats if not sp.issparse(leaf)]
    for values in gather_rows(dense, rows):
        bad |= ~np.isfinite(values).reshape(len(rows), -1).all(axis=1)
    return bad
