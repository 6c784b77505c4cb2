"""A data set from those of other libraries: torch, Hugging Face, grain, one's own."""

from collections.abc import Callable, Mapping
from typing import Any

from hetjax.data.dataset import Dataset
from hetjax.data.from_arrays import from_arrays
from hetjax.data.sources import Source, reader_of

Part = str | int | Callable[[Any], Any] | None


def from_source(
    train: Any,
    test: Any,
    *,
    x: Part = None,
    y: Part = None,
    num_classes: int | None = None,
    targets: str = "auto",
    name: str = "source",
) -> Dataset:
    """A data set that reads its rows from others as a run needs them.

    `train` and `test` have a length and rows: a `torch.utils.data.Dataset`, a Hugging
    Face `datasets.Dataset`, a `grain` source, or any object with `__len__` and
    `__getitem__(number)`. Their packages are not needed by hetjax. Row i is what
    train[i] gives, with the data set's own transform if it has one: a pair (x, y), or
    `x` and `y` say what of a row they are: a key, a place, or a function of the row. A
    row's arrays must have the same shapes in every row; the same number must
    give the same row, or runs cannot be repeated. One thread reads at a time. Labels
    are read once, at the start; the other arguments are those of `from_arrays`.

    Errors: a ValueError for a stream, which has no row numbers: write it to a file once
    and give that as a memory map.
    """
    splits = [
        _columns(part, source, x, y)
        for part, source in (("train", train), ("test", test))
    ]
    return from_arrays(
        splits[0], splits[1], num_classes=num_classes, targets=targets, name=name
    )


def _columns(part: str, data: Any, x: Part, y: Part) -> tuple[Any, Any]:
    """(x, y) of a split, each a tree of fields."""
    read = reader_of(part, data, [] if x is None or y is None else [x, y])
    try:
        (row,) = read([0])
    except (KeyError, IndexError, TypeError) as error:
        raise ValueError(
            f"{part}: row 0 cannot be read ({type(error).__name__}: {error})"
        ) from error
    _check_row(part, row, x, y)
    parts = 0 if x is None else x, 1 if y is None else y
    for chosen in parts:
        _check_chosen(part, row, chosen)

    def choose(row: Any) -> tuple[Any, ...]:
        return tuple(_chosen(row, chosen) for chosen in parts)

    return Source(part, read, len(data), choose).fields()


def _check_row(part: str, row: Any, x: Part, y: Part) -> None:
    """A ValueError unless it is known what of a row is x, and what is y."""
    if isinstance(row, Mapping) and (x is None or y is None):
        raise ValueError(
            f"{part} has rows with {', '.join(map(str, row))}: say with x= and y= "
            "which of them are the inputs and the targets"
        )
    pair = isinstance(row, tuple | list) and len(row) == 2
    if not isinstance(row, Mapping) and x is None and y is None and not pair:
        raise ValueError(
            f"{part} has rows of {type(row).__name__}: they must be pairs (x, y), or "
            "give x= and y=, functions of a row"
        )


def _chosen(row: Any, chosen: Any) -> Any:
    return chosen(row) if callable(chosen) else row[chosen]


def _check_chosen(part: str, row: Any, chosen: Any) -> None:
    if callable(chosen):  # its own errors are its own
        return
    try:
        row[chosen]
    except (KeyError, IndexError, TypeError) as error:
        known = f"; they have {', '.join(map(str, row))}" * isinstance(row, Mapping)
        raise ValueError(
            f"{part} has rows without {chosen!r} ({type(error).__name__}: {error})"
            f"{known}"
        ) from error
