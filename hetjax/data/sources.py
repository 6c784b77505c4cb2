"""Sources: data sets of other libraries, read by row numbers during a run.

A source is anything with a length and rows: a `torch.utils.data.Dataset`, a Hugging
Face `datasets.Dataset`, a `grain` source, or a custom object with `__len__` and
`__getitem__`. Their packages are not imported: methods, not types, decide.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

Read = Callable[[list[int]], Sequence[Any]]
"""row numbers -> rows"""

ROWS_PER_READ = 1024  # of long reads, which are divided


class Source:
    """Reads the chosen parts of rows of another library's data set.

    One thread reads at a time, since a data set may share one open file.
    """

    def __init__(self, what: str, read: Read, number: int, choose: Callable):
        """`what` is its name in errors; choose(row) -> a tree of arrays and numbers.

        Reads the first row, for shapes and dtypes.
        """
        self._what, self._read, self._choose = what, read, choose
        self._number, self._lock = number, threading.Lock()
        (first,) = self._rows([0])
        self._example, self._structure = jax.tree.flatten(first)

    def __getstate__(self) -> dict[str, Any]:
        """The state without the lock, for another process."""
        return {k: v for k, v in self.__dict__.items() if k != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())

    def fields(self) -> Any:
        """The tree of the chosen parts, with a field for each leaf."""
        found = [
            Field(self, k, self._number, example)
            for k, example in enumerate(self._example)
        ]
        return jax.tree.unflatten(self._structure, found)

    def read(self, rows: np.ndarray) -> list[np.ndarray]:
        """The leaves of these rows, each an array [*rows.shape, ...]."""
        numbers = np.ravel(rows).tolist()
        found = [jax.tree.flatten(row) for row in self._rows(numbers)]
        try:
            if any(structure != self._structure for _, structure in found):
                raise ValueError("they have other fields than the first row")
            leaves = [np.stack(x) for x in zip(*(r for r, _ in found), strict=True)]
        except ValueError as error:
            raise ValueError(
                f"{self._what}: rows {numbers[:8]} do not stack ({error}): all rows "
                "must have the same fields, of the same shapes"
            ) from error
        return [x.reshape(*rows.shape, *x.shape[1:]) for x in leaves]

    def _rows(self, numbers: list[int]) -> list[Any]:
        with self._lock:
            found = self._read(numbers)
        return [
            jax.tree.map(self._array, self._choose(row), is_leaf=_is_list)
            for row in found
        ]

    def _array(self, leaf: Any) -> np.ndarray:
        """A tensor, a number or a list as an array."""
        found = np.asarray(leaf)
        if not holds_numbers(found):
            raise ValueError(
                f"{self._what} has rows with a {type(leaf).__name__}: convert them to "
                "numbers and arrays, in the data set's own transform"
            )
        return found


class Field:
    """One array of a source's rows: [N, ...], not held in memory."""

    def __init__(self, source: Source, leaf: int, number: int, example: np.ndarray):
        """`leaf` is its index among the arrays of a row, `example` that of row 0."""
        self.source, self.leaf = source, leaf
        self.shape = (number, *example.shape)
        self.dtype, self.ndim = example.dtype, example.ndim + 1

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> np.ndarray:
        rows = np.atleast_1d(np.arange(len(self))[index])
        if not len(rows):
            return np.empty((0, *self.shape[1:]), self.dtype)
        # in blocks, since the other fields of all rows may not fit in memory
        starts = range(0, len(rows), ROWS_PER_READ)
        return np.concatenate(
            [self.source.read(rows[i : i + ROWS_PER_READ])[self.leaf] for i in starts]
        )


def reader_of(what: str, data: Any, keys: Sequence[Any] = ()) -> Read:
    """The function that reads rows of a data set.

    `keys`: the needed fields of a row; by default all. Errors: a ValueError that names
    `what`, for a stream or a data set without rows.
    """
    kind = f"{what} is a {type(data).__name__}"
    if isinstance(data, type):
        raise ValueError(f"{what} is the class {data.__name__}: pass an instance")
    if hasattr(data, "dataset") and not hasattr(data, "__getitem__"):
        raise ValueError(
            f"{kind}, which makes batches itself: pass its data set, its .dataset"
        )
    if not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
        raise ValueError(
            f"{kind}, which has no length, or no access by row numbers: write the "
            "stream to a file once (numpy.lib.format.open_memmap makes one row by "
            "row), and pass that as a memory map"
        )
    if isinstance(data, Mapping):
        raise ValueError(
            f"{what} is a dictionary: pass dictionaries of arrays to "
            "hetjax.data.from_arrays"
        )
    if not len(data):
        raise ValueError(f"{what} has no rows")
    if not _changes_values(data):
        if _reads_as_items(data, "with_format") and hasattr(data, "features"):
            return _hugging_face_reader(data, keys)
        for several in ("__getitems__", "_getitems"):  # torch's, and grain's
            if _reads_as_items(data, several):
                return getattr(data, several)
    return lambda rows: [data[row] for row in rows]


def _hugging_face_reader(data: Any, keys: Sequence[Any]) -> Read:
    """Reads NumPy arrays of several rows at once, of the needed columns."""
    if keys and all(isinstance(key, str) and key in data.features for key in keys):
        data = data.select_columns(list(dict.fromkeys(keys)))
    plain = data.with_format("numpy")

    def read(rows: list[int]) -> list[dict[str, Any]]:
        columns = plain[rows]
        return [{k: v[i] for k, v in columns.items()} for i in range(len(rows))]

    return read


def _changes_values(data: Any) -> bool:
    """Whether a Hugging Face data set has a format with a transform, or a dtype.

    A transform may depend on the rows that are read together, as padding does.
    """
    about = getattr(data, "format", None)
    settings = about.get("format_kwargs") if isinstance(about, Mapping) else None
    return any(name != "device" for name in settings or ())


def _reads_as_items(data: Any, method: str) -> bool:
    """Whether a method returns the same rows as data[row].

    A class that inherits or delegates the method may override `__getitem__` so that its
    rows differ.
    """
    for each in type(data).__mro__:
        if method in vars(each):
            return True
        if "__getitem__" in vars(each):
            return False
    return False


def holds_numbers(array: Any) -> bool:
    """Whether they are real numbers; JAX's bfloat16 is of kind V in NumPy."""
    return array.dtype.kind in "biuf" or array.dtype.name == "bfloat16"


def _is_list(leaf: Any) -> bool:
    return isinstance(leaf, list)
