"""Which rows of a split hold NaN or infinity: looked for when a loss is not finite."""

from typing import Any

import numpy as np
import scipy.sparse as sp

from hetjax.data.columns import gathered, leaves_of
from hetjax.data.dataset import Split

_PIECE = 1024  # rows that are read at once
_NAMED = 5  # rows in a message, at most


def rows_not_finite(split: Split, rows: np.ndarray | None = None) -> np.ndarray:
    """The numbers of the rows whose inputs or targets hold NaN or infinity.

    `rows`: those to look at, all of them; by default every row, up to the first 1024
    with one that does.
    """
    if rows is not None:
        return rows[_bad(split, rows)]
    for start in range(0, len(split), _PIECE):
        piece = np.arange(start, min(start + _PIECE, len(split)))
        if (bad := _bad(split, piece)).any():
            return piece[bad]
    return np.zeros(0, np.int64)


def advice(rows: np.ndarray, of: str) -> str:
    """What to do about these rows of a split: "rows 3, 5 and 7 more of the ..."."""
    shown = ", ".join(str(int(row)) for row in rows[:_NAMED])
    more = f" and {len(rows) - _NAMED} more" * (len(rows) > _NAMED)
    return (
        f"row{'s' * (len(rows) > 1)} {shown}{more} of the {of} hold"
        f"{'s' * (len(rows) == 1)} NaN or infinity: correct or remove such rows"
    )


def _bad(split: Split, rows: np.ndarray) -> np.ndarray:
    """[rows] bool: which of these rows are not finite."""
    leaves = [leaf for leaf in leaves_of((split.x, split.y)) if _has_floats(leaf)]
    found = [leaf[rows] for leaf in leaves if sp.issparse(leaf)]
    found += gathered([leaf for leaf in leaves if not sp.issparse(leaf)], rows)
    bad = np.zeros(len(rows), bool)
    for values in found:
        bad |= _per_row(values)
    return bad


def _has_floats(leaf: Any) -> bool:
    return np.dtype(leaf.dtype).kind not in "biu"


def _per_row(values: Any) -> np.ndarray:
    if not sp.issparse(values):
        return ~np.isfinite(values).reshape(len(values), -1).all(axis=1)
    bad = np.zeros(values.shape[0], bool)
    row_of = np.repeat(np.arange(len(bad)), np.diff(values.indptr))
    bad[row_of[~np.isfinite(values.data)]] = True
    return bad
