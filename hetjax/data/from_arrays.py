"""Data sets from arrays: NumPy, memory maps, scipy sparse matrices, BCOO, or trees.

Arrays in memory are copied, checked and converted to one of hetjax's formats. Memory
maps are not copied; rows are read when a batch needs them.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal

import jax
import numpy as np
import scipy.sparse as sp
from jax.experimental.sparse import BCOO

from hetjax.arguments import Count, checked
from hetjax.data.columns import LARGEST, is_mapped, leaves_of
from hetjax.data.dataset import Dataset, Split
from hetjax.data.sources import ROWS_PER_READ, Field, holds_numbers

Targets = Literal["auto", "classes", "labels", "values"]
_MOST_CLASSES = 2**24  # unless `num_classes` is given


@checked
def from_arrays(
    train: Any,
    test: Any,
    *,
    num_classes: Count | None = None,
    targets: Targets = "auto",
    name: str = "arrays",
) -> Dataset:
    """A data set of `train` and `test`, each a pair (x, y).

    x: [N, ...] numbers, a memory map of them, [N, F] scipy sparse or BCOO, or a
    dictionary (or tuple) of these, such as tokens and a mask. `targets` is the kind of
    y:

    - "classes": [N] integer class ids
    - "labels": sets of labels, [N, C] zeros and ones, dense, scipy sparse or BCOO
    - "values": numbers [N, ...], or a dictionary (or tuple) of arrays: for regression,
      tokens, and custom tasks
    - "auto": the first of these that fits the arrays

    `num_classes` defaults to the largest class id plus one, or to C. Floats become
    float32; integers and memory maps keep their dtypes. Invalid arrays are a
    ValueError.
    """
    splits = _split("train", train, targets), _split("test", test, targets)
    _check_alike("x", *(split.x for split in splits))
    of_classes = [_of_classes(split.y, targets) for split in splits]
    if of_classes[0] != of_classes[1]:
        raise ValueError("y of train and test must both hold classes, or both not")
    if of_classes[0]:
        num_classes = _num_classes(splits[0].y, splits[1].y, num_classes)
    else:
        _check_alike("y", *(split.y for split in splits))
        if num_classes is not None:
            raise ValueError(f"num_classes is {num_classes}, but y holds no classes")
    return Dataset(*splits, num_classes=num_classes or 0, name=name)


def _check_alike(what: str, train: Any, test: Any) -> None:
    """Raises a ValueError unless both columns have rows of the same structure."""
    structures = [jax.tree.structure(column) for column in (train, test)]
    if structures[0] != structures[1]:
        raise ValueError(
            f"{what} of train and test must have the same fields, not {structures[0]} "
            f"and {structures[1]}"
        )
    for one, other in zip(leaves_of(train), leaves_of(test), strict=True):
        if sp.issparse(one) != sp.issparse(other):
            raise ValueError(
                f"{what} of train and test must both be sparse or both dense"
            )
        if one.shape[1:] != other.shape[1:]:
            raise ValueError(
                f"features differ: {what} of train {one.shape}, of test {other.shape}"
            )


def _of_classes(y: Any, targets: str) -> bool:
    """Whether these (checked) targets are class ids or sets of labels."""
    if targets == "values" or not hasattr(y, "shape"):
        return False
    return sp.issparse(y) or (len(y.shape) == 1 and y.dtype.kind in "iu")


def _num_classes(train: Any, test: Any, wanted: int | None) -> int:
    """The number of classes; a ValueError if y and `num_classes` disagree."""
    if train.ndim != test.ndim:
        raise ValueError("y of train and test must both be class ids or both [N, C]")
    if train.ndim == 2:
        widths = int(train.shape[1]), int(test.shape[1])
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
            "model each: number the classes from 0, or pass num_classes"
        )
    if wanted is not None and wanted <= largest:
        raise ValueError(f"class id {largest} is out of range: num_classes is {wanted}")
    return wanted or largest + 1


def _split(part: str, pair: Any, targets: str) -> Split:
    """The split of one pair (x, y), checked by itself."""
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise ValueError(f"{part} must be a pair (x, y)")
    x = _column(f"{part} x", pair[0], _inputs)
    y = _column(f"{part} y", pair[1], lambda what, y: _targets(what, y, targets))
    rows = [("x", leaf.shape[0]) for leaf in leaves_of(x)]
    rows += [("y", leaf.shape[0]) for leaf in leaves_of(y)]
    if len({n for _, n in rows}) > 1:
        counts = ", but ".join(f"{name} has {n} rows" for name, n in rows)
        raise ValueError(f"{part}: {counts}")
    if not rows[0][1]:
        raise ValueError(f"{part} has no rows")
    return Split(x, y)


def _column(what: str, given: Any, alone: Callable[[str, Any], Any]) -> Any:
    """A column of checked leaves; `alone` checks a column that is a single array."""
    if not _is_tree(given):
        return alone(what, given)
    if not given:
        raise ValueError(f"{what} has no fields")
    if isinstance(given, Mapping):
        return {str(k): _column(f"{what}[{k!r}]", v, _leaf) for k, v in given.items()}
    return tuple(_column(f"{what}[{k}]", v, _leaf) for k, v in enumerate(given))


def _is_tree(value: Any) -> bool:
    """Whether it is a dictionary or a tuple of arrays, not a nested sequence."""
    if isinstance(value, Mapping):
        return True
    return isinstance(value, tuple) and all(
        hasattr(v, "shape") or _is_tree(v) for v in value
    )


def _inputs(what: str, x: Any) -> Any:
    """x without a tree: [N, ...] dense or [N, F] CSR."""
    x = _leaf(what, x)
    if x.ndim < 2:
        raise ValueError(f"{what} must be [N, ...], not {x.shape}; x.reshape(-1, 1)?")
    if not np.prod(x.shape[1:]):
        raise ValueError(f"{what} has no features: {x.shape}")
    return x


def _targets(what: str, y: Any, targets: str) -> Any:
    """y without a tree: [N] int32 class ids, [N, C] CSR of label sets, or values."""
    if _is_sparse(y):
        if targets not in ("auto", "labels"):
            raise ValueError(f"{what} is sparse: pass dense {targets}")
        y = _csr(what, y)
        return _label_sets(what, y, zeros_and_ones=bool(np.isin(y.data, (0, 1)).all()))
    if targets == "values":
        return _leaf(what, y)
    if not isinstance(y, Field):
        y = _as_array(what, y)
    binary = y.ndim == 2 and _zeros_and_ones(what, y)
    if targets == "auto" and (y.dtype.kind == "f" or y.ndim > 1) and not binary:
        return _leaf(what, y)
    y = y[:] if isinstance(y, Field) else y  # read once
    if y.ndim == 1 and targets != "labels":
        return _class_ids(what, y)
    if targets == "auto" and y.shape[1:] == (1,):
        raise ValueError(
            f"{what} is {y.shape} of zeros and ones: pass class ids as y[:, 0], or "
            'targets="labels" or "values"'
        )
    if y.ndim != 2 or targets == "classes":
        wanted = {"classes": "[N]", "labels": "[N, C]"}.get(targets, "[N] or [N, C]")
        raise ValueError(f"{what} must be {wanted}, not {y.shape}")
    return _label_sets(what, sp.csr_array(_float32(what, y)), zeros_and_ones=binary)


def _zeros_and_ones(what: str, y: Any) -> bool:
    """Whether all numbers are 0 or 1; reads blocks, up to the first other number."""
    _check_numbers(what, y)
    starts = range(0, len(y), ROWS_PER_READ)
    return all(np.isin(y[i : i + ROWS_PER_READ], (0, 1)).all() for i in starts)


def _label_sets(what: str, y: sp.csr_array, *, zeros_and_ones: bool) -> sp.csr_array:
    if not zeros_and_ones:
        raise ValueError(f"{what} {y.shape} must hold zeros and ones")
    y.eliminate_zeros()
    return y


def _class_ids(what: str, y: np.ndarray) -> np.ndarray:
    if not np.issubdtype(y.dtype, np.integer):
        hint = "; y.astype(int)?" if y.dtype == bool else ""
        if y.dtype.kind in "US":
            hint = "; np.unique(y, return_inverse=True)[1]?"
        raise ValueError(f"{what}: class ids must be integers, not {y.dtype}{hint}")
    if y.size and y.min() < 0:
        raise ValueError(f"{what}: class id {y.min()} is negative")
    if y.size and y.max() >= LARGEST:
        raise ValueError(f"{what}: class id {y.max()} is too large")
    return y.astype(np.int32)


def _leaf(what: str, array: Any) -> Any:
    """The array as a leaf: float32 CSR, or [N, ...] of any numbers.

    Memory maps and fields of a source are only checked.
    """
    if _is_sparse(array):
        return _csr(what, array)
    elsewhere = isinstance(array, Field) or is_mapped(array)
    found: Any = array if elsewhere else _as_array(what, array)
    _check_numbers(what, found)
    if not found.ndim:
        raise ValueError(f"{what} is a number: pass an array [N, ...]")
    if elsewhere and not found.dtype.isnative:
        raise ValueError(
            f"{what} is stored in another byte order, {found.dtype.str}: write it to a "
            "new file in this machine's byte order"
        )
    if elsewhere:
        return found
    if found.dtype.kind not in "iub":
        return _float32(what, found)
    if found.size and not -LARGEST <= int(found.min()) <= int(found.max()) <= LARGEST:
        raise ValueError(f"{what} has integers beyond 32 bits")
    return np.array(found)


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
        data = _float32(what, np.asarray(matrix.data))[inside]
        matrix = sp.coo_array((data, (rows, columns)), shape=matrix.shape)
    _check_numbers(what, matrix)
    with np.errstate(over="ignore"):
        result = sp.csr_array(matrix, dtype=np.float32, copy=True)
    result.sum_duplicates()
    result.data = _float32(what, result.data)
    return result


def _as_array(what: str, array: Any) -> np.ndarray:
    """The array as NumPy has it; a ValueError for missing values and ragged rows."""
    if isinstance(array, np.ma.MaskedArray) and array.mask.any():
        raise ValueError(f"{what} is masked: pass numbers for missing values")
    try:
        return np.asarray(array)
    except ValueError as error:  # such as ragged rows
        raise ValueError(f"{what} cannot be an array: {error}") from None


def _check_numbers(what: str, array: Any) -> None:
    if not holds_numbers(array):
        raise ValueError(f"{what} must hold real numbers, not {array.dtype}")


def _float32(what: str, array: np.ndarray) -> np.ndarray:
    """A float32 copy of finite real numbers."""
    _check_numbers(what, array)
    with np.errstate(over="ignore"):
        values = array.astype(np.float32)
    bad = int(np.count_nonzero(~np.isfinite(values)))
    if bad:
        raise ValueError(f"{what} has {bad} values that are NaN or infinite in float32")
    return values
