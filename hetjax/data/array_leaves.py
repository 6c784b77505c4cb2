"""Checks and conversions of the arrays that become the leaves of a column."""

from typing import Any

import numpy as np
import scipy.sparse as sp
from jax.experimental.sparse import BCOO

from hetjax.data.columns import LARGEST, is_mapped
from hetjax.data.sources import Field, holds_numbers


def as_leaf(what: str, array: Any) -> Any:
    """The array as a leaf: float32 CSR, or [N, ...] of any numbers."""
    if is_sparse(array):
        array = csr(what, array)
        _check_finite(what, array.data)
        return array
    if isinstance(array, Field) or is_mapped(array):
        return _mapped(what, array)
    array = as_array(what, array)
    check_numbers(what, array)
    if not array.ndim:
        raise ValueError(f"{what} is a number: pass an array [N, ...]")
    if array.dtype.kind in "iub":
        if (
            array.size
            and not -LARGEST <= int(array.min()) <= int(array.max()) <= LARGEST
        ):
            raise ValueError(f"{what} has integers beyond 32 bits")
        return np.array(array)
    array = float32(what, array)
    _check_finite(what, array)
    return array


def _mapped(what: str, array: Any) -> Any:
    """A memory map, or a field of a source, checked and returned unchanged."""
    check_numbers(what, array)
    if not array.dtype.isnative:
        raise ValueError(
            f"{what} is stored in another byte order, {array.dtype.str}: write it to a "
            "new file in this machine's byte order"
        )
    if not array.ndim:
        raise ValueError(f"{what} is a number: pass an array [N, ...]")
    return array


def is_sparse(array: Any) -> bool:
    """Whether it is a scipy sparse matrix or a BCOO."""
    return sp.issparse(array) or isinstance(array, BCOO)


def csr(what: str, matrix: Any) -> sp.csr_array:
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
        data = float32(what, matrix.data)[inside]
        matrix = sp.coo_array((data, (rows, columns)), shape=matrix.shape)
    result = sp.csr_array(matrix, copy=True)
    result.data = float32(what, result.data)
    result.sum_duplicates()
    return result


def as_array(what: str, array: Any) -> np.ndarray:
    """The array as NumPy has it; a ValueError for missing values and ragged rows."""
    if isinstance(array, np.ma.MaskedArray) and array.mask.any():
        raise ValueError(f"{what} is masked: pass numbers for missing values")
    try:
        return np.asarray(array)
    except ValueError as error:  # such as ragged rows
        raise ValueError(f"{what} cannot be an array: {error}") from None


def check_numbers(what: str, array: Any) -> None:
    """Raises a ValueError unless the array holds real numbers."""
    if not holds_numbers(array):
        raise ValueError(f"{what} must hold real numbers, not {array.dtype}")


def float32(what: str, array: Any) -> np.ndarray:
    """A float32 copy of real numbers."""
    array = as_array(what, array)
    check_numbers(what, array)
    with np.errstate(over="ignore"):  # `_check_finite` reports an overflow
        return array.astype(np.float32)


def _check_finite(what: str, values: np.ndarray) -> None:
    bad = int(np.count_nonzero(~np.isfinite(values)))
    if bad:
        raise ValueError(f"{what} has {bad} values that are NaN or infinite in float32")
