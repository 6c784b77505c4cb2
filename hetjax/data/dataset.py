"""The `Dataset` type: two splits of examples with targets, on the host.

A split consists of columns (`hetjax.data.columns`). `hetjax.data.batching` makes
batches for the device.
"""

from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
import scipy.sparse as sp

from hetjax.data import columns
from hetjax.summaries import html_of, two_lines


@dataclass(frozen=True)
class Split:
    """Examples and their targets: two columns (`hetjax.data.columns`) of N rows each.

    x: [N, ...] array, [N, D] float32 `scipy.sparse.csr_array`, or a tree of them.
    y: [N] int32 class ids; [N, C] `csr_array` with 1.0 at every true label; or, for
    tasks other than classification, any array or tree of arrays.
    """

    x: Any
    y: Any

    def __len__(self) -> int:
        return columns.num_rows(self.x)

    @property
    def sparse(self) -> bool:
        """Whether there are sparse arrays among the inputs or targets."""
        return bool(columns.sparse_leaves((self.x, self.y)))

    def take(self, rows: np.ndarray) -> "Split":
        """The split of these rows, in this order; only leaves in memory are copied."""
        return Split(*columns.take_rows((self.x, self.y), rows))


@dataclass(frozen=True, repr=False)
class Dataset:
    """A training and a test split over the same features and classes.

    `num_classes` is 0 if y does not hold classes: regression targets, tokens, trees.
    """

    train: Split
    test: Split
    num_classes: int = 0
    name: str = "data"
    notes: tuple[str, ...] = field(default=())  # remarks of the reader

    _example = "hetjax.data.digits()"
    _repr_html_ = html_of

    def __repr__(self) -> str:
        of = f"{self.num_classes:,} classes" if self.num_classes else "no classes"
        sizes = f"{len(self.train):,} training and {len(self.test):,} test examples"
        columns_of = (("x", self.train.x), ("y", self.train.y))
        parts = [columns.describe(name, column) for name, column in columns_of]
        return two_lines(f"Dataset {self.name}: {sizes}, {of}", (*parts, *self.notes))

    @property
    def sparse(self) -> bool:
        """Whether there are sparse arrays among the inputs."""
        return bool(columns.sparse_leaves(self.train.x))

    @property
    def multilabel(self) -> bool:
        """Whether an example may have several labels, or none."""
        return sp.issparse(self.train.y)

    @property
    def num_features(self) -> Any:
        """The number of input features per example (all axes but the first).

        For a tree of arrays, the tree of these numbers.
        """
        return jax.tree.map(lambda leaf: int(np.prod(leaf.shape[1:])), self.train.x)


def note(split: str, found: int | np.ndarray, thing: str, what: str) -> str:
    """A note such as 'train: 2 duplicate features summed'; empty for a count of zero.

    `found` is the count, or an array of flags to be counted.
    """
    count = int(np.sum(found))
    return f"{split}: {count} {thing}{'' if count == 1 else 's'} {what}" * (count > 0)
