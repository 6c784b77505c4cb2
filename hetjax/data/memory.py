"""A data set from arrays in memory: NumPy, any scipy sparse matrix, or BCOO.

Everything is copied, checked and converted to one of hetjax's two formats.
"""

from typing import Any

import numpy as np
import scipy.sparse as sp
from jax.experimental.sparse import BCOO

from hetjax.data.checks import check_whole
from hetjax.data.dataset import Dataset, Split

_LARGEST = 2**31 - 1  # of an int32
_MOST_CLASSES = 2**24  # if only class ids imply their number


def from_arrays(
    train: tuple[Any, Any],
    test: tuple[Any, Any],
    *,
    num_classes: int | None = None,
    name: str = "arrays",
) -> Dataset:
    """A data set of `train` and `test`, each a pair (x, y).

    x: [N, ...] numbers, or [N, F] scipy sparse or BCOO. y: [N] integer class ids, or
    [N, C] zeros and ones, dense, scipy sparse or BCOO, where rows have several labels.
    `num_classes` defaults to the largest class id plus one, or to C. Invalid arrays are
    a ValueError.
    """
    if num_classes is not None:
        check_whole("num_classes", num_classes, 1, _LARGEST)
    splits = _split("train", train), _split("test", test)
    x_train, x_test = (split.x for split in splits)
    if sp.issparse(x_train) != sp.issparse(x_test):
        raise ValueError("x of train and test must both be sparse or both dense")
    shapes = _shape(x_train), _shape(x_test)
    if shapes[0][1:] != shapes[1][1:]:
        raise ValueError(
            f"features differ: x of train {shapes[0]}, of test {shapes[1]}"
        )
    return Dataset(
        train=splits[0],
        test=splits[1],
        num_classes=_classes(splits[0].y, splits[1].y, num_classes),
        name=name,
    )


def _split(part: str, pair: tuple[Any, Any]) -> Split:
    """One (x, y), checked by itself."""
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise ValueError(f"{part} must be a pair (x, y)")
    x, y = _inputs(f"{part} x", pair[0]), _labels(f"{part} y", pair[1])
    rows = _shape(x)[0], _shape(y)[0]
    if rows[0] != rows[1]:
        raise ValueError(f"{part}: x has {rows[0]} rows, but y has {rows[1]}")
    if not rows[0]:
        raise ValueError(f"{part} has no rows")
    return Split(x, y)


def _shape(array: Any) -> tuple[int, ...]:
    """The shape, which scipy's type annotations leave open."""
    return array.shape


def _inputs(what: str, x: Any) -> np.ndarray | sp.csr_array:
    """x as float32, [N, ...] dense or [N, F] CSR."""
    if _is_sparse(x):
        x = _csr(what, x)
        _check_finite(what, x.data)
        return x
    x = _numbers(what, x)
    if x.ndim < 2:
        raise ValueError(f"{what} must be [N, ...], not {x.shape}; x.reshape(-1, 1)?")
    if not np.prod(x.shape[1:]):
        raise ValueError(f"{what} has no features: {x.shape}")
    _check_finite(what, x)
    return x


def _labels(what: str, y: Any) -> np.ndarray | sp.csr_array:
    """y as [N] int32 class ids, or [N, C] CSR with 1.0 at every true label."""
    if _is_sparse(y):
        y = _csr(what, y)
    else:
        y = _array(what, y)
        if y.ndim == 1:
            return _class_ids(what, y)
        if y.ndim != 2:
            raise ValueError(f"{what} must be [N] or [N, C], not {y.shape}")
        y = sp.csr_array(_numbers(what, y))
    if not np.isin(y.data, (0, 1)).all():
        raise ValueError(
            f"{what} {y.shape} must hold zeros and ones; class ids are [N]"
        )
    y.eliminate_zeros()
    return y


def _class_ids(what: str, y: np.ndarray) -> np.ndarray:
    if not np.issubdtype(y.dtype, np.integer):
        raise ValueError(
            f"{what}: class ids must be integers, not {y.dtype}; y.astype(int)?"
        )
    if y.size and y.min() < 0:
        raise ValueError(f"{what}: class id {y.min()} is negative")
    if y.size and y.max() >= _LARGEST:
        raise ValueError(f"{what}: class id {y.max()} is too large")
    return y.astype(np.int32)


def _classes(
    train: np.ndarray | sp.csr_array,
    test: np.ndarray | sp.csr_array,
    wanted: int | None,
) -> int:
    """The number of classes; a ValueError if y and `num_classes` disagree."""
    if train.ndim != test.ndim:
        raise ValueError("y of train and test must both be class ids or both [N, C]")
    if train.ndim == 2:
        widths = _shape(train)[1], _shape(test)[1]
        if widths[0] != widths[1]:
            raise ValueError(
                f"classes differ: y of train has {widths[0]} columns, "
                f"y of test {widths[1]}"
            )
        if wanted not in (None, widths[0]):
            raise ValueError(f"num_classes is {wanted}, but y has {widths[0]} columns")
        return widths[0]
    largest = int(max(train.max(), test.max()))
    if largest >= _MOST_CLASSES and wanted is None:
        raise ValueError(
            f"class id {largest} would make {largest + 1} classes, one output of the "
            "model each: number the classes from 0, or give num_classes"
        )
    if wanted is not None and wanted <= largest:
        raise ValueError(f"class id {largest} is out of range: num_classes is {wanted}")
    return largest + 1 if wanted is None else wanted


def _is_sparse(array: Any) -> bool:
    return sp.issparse(array) or isinstance(array, BCOO)


def _csr(what: str, matrix: Any) -> sp.csr_array:
    """A float32 copy with sorted indices; duplicate entries are summed."""
    if len(matrix.shape) != 2:
        raise ValueError(f"{what} must be [N, columns] if sparse, not {matrix.shape}")
    if not matrix.shape[1]:
        raise ValueError(f"{what} has no columns: {matrix.shape}")
    if isinstance(matrix, BCOO):
        if matrix.n_batch or matrix.n_dense:
            raise ValueError(f"{what}: BCOO must have no batch and no dense axes")
        indices = np.asarray(matrix.indices)
        if indices.size and indices.min() < 0:
            raise ValueError(f"{what}: BCOO with a negative index")
        inside = (indices < matrix.shape).all(axis=1)  # JAX pads with indices outside
        rows, columns = indices[inside].T
        data = _numbers(what, matrix.data)[inside]
        matrix = sp.coo_array((data, (rows, columns)), shape=matrix.shape)
    result = sp.csr_array(matrix, copy=True)
    result.data = _numbers(what, result.data)
    result.sum_duplicates()
    return result


def _array(what: str, array: Any) -> np.ndarray:
    if isinstance(array, np.ma.MaskedArray) and array.mask.any():
        raise ValueError(f"{what} is masked: give numbers for missing values")
    try:
        return np.asarray(array)
    except ValueError as error:  # such as rows of several lengths
        raise ValueError(f"{what} cannot be an array: {error}") from None


def _numbers(what: str, array: Any) -> np.ndarray:
    """A float32 copy of real numbers."""
    array = _array(what, array)
    # JAX's bfloat16 is of kind V in NumPy
    if array.dtype.kind not in "biuf" and array.dtype.name != "bfloat16":
        raise ValueError(f"{what} must hold real numbers, not {array.dtype}")
    with np.errstate(over="ignore"):  # overflow is reported as not finite
        return array.astype(np.float32)


def _check_finite(what: str, values: np.ndarray) -> None:
    bad = int(np.count_nonzero(~np.isfinite(values)))
    if bad:
        raise ValueError(f"{what} has {bad} values that are NaN or infinite in float32")
