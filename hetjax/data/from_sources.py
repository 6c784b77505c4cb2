"""Data sets from other libraries (torch, Hugging Face, grain) or custom objects."""

from collections.abc import Callable, Mapping
from typing import Any

from hetjax.data.dataset import Dataset
from hetjax.data.from_arrays import Targets, from_arrays
from hetjax.data.sources import Source, reader_of

Part = str | int | Callable[[Any], Any] | None


def from_source(
    train: Any,
    test: Any,
    *,
    x: Part = None,
    y: Part = None,
    num_classes: int | None = None,
    targets: Targets = "auto",
    name: str = "source",
) -> Dataset:
    """A data set that reads its rows from other data sets during a run.

    `train` and `test` have a length and rows: a `torch.utils.data.Dataset`, a Hugging
    Face `datasets.Dataset`, a `grain` source, or any object with `__len__` and
    `__getitem__(number)`. hetjax does not import their packages. Row i is train[i],
    with the data set's own transform if it has one. It must be a pair (x, y), unless
    `x` and `y` select them from the row by a key, an index, or a function of the row.
    Arrays must have the same shapes in every row, and train[i] must always return the
    same values, or runs are not reproducible. One thread reads at a time. Labels are
    read once, at the start. The other arguments are those of `from_arrays`.

    Errors: a ValueError for a stream, which has no row numbers: write it to a file once
    and pass that as a memory map.
    """
    splits = [_columns("train", train, x, y), _columns("test", test, x, y)]
    return from_arrays(*splits, num_classes=num_classes, targets=targets, name=name)


def _columns(part: str, data: Any, x: Part, y: Part) -> tuple[Any, Any]:
    """(x, y) of a split, each a tree of fields."""
    read = reader_of(part, data, [] if x is None or y is None else [x, y])
    try:
        row: Any = read([0])[0]
    except (KeyError, IndexError, TypeError) as error:
        raise ValueError(
            f"{part}: row 0 cannot be read ({type(error).__name__}: {error})"
        ) from error
    known = ", ".join(map(str, row)) if isinstance(row, Mapping) else ""
    if known and (x is None or y is None):
        raise ValueError(
            f"{part} has rows with {known}: choose the inputs and the targets with x= "
            "and y="
        )
    pair = isinstance(row, tuple | list) and len(row) == 2
    if not known and x is None and y is None and not pair:
        raise ValueError(
            f"{part} has rows of {type(row).__name__}: make them pairs (x, y), or "
            "pass x= and y=, functions of a row"
        )
    parts = 0 if x is None else x, 1 if y is None else y
    for chosen in parts:
        if callable(chosen):  # its errors are left as they are
            continue
        try:
            _chosen(row, chosen)
        except (KeyError, IndexError, TypeError) as error:
            raise ValueError(
                f"{part} has rows without {chosen!r} ({type(error).__name__}: {error})"
                + f"; they have {known}" * bool(known)
            ) from error

    def choose(row: Any) -> tuple[Any, ...]:
        return tuple(_chosen(row, chosen) for chosen in parts)

    return Source(part, read, len(data), choose).fields()


def _chosen(row: Any, chosen: Any) -> Any:
    return chosen(row) if callable(chosen) else row[chosen]
