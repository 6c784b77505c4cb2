"""The `Dataset` type: two splits of examples with labels, on the host.

Dense inputs are NumPy arrays, sparse ones are scipy CSR arrays. Batches for the device
are made from them in `hetjax.data.batching`.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.sparse as sp


@dataclass(frozen=True)
class Split:
    """Examples and their labels.

    x: [N, ...] float32 array, or [N, D] float32 `scipy.sparse.csr_array`.
    y: [N] int32 class ids, or [N, C] `csr_array` with 1.0 at every true label.
    """

    x: Any
    y: Any

    def __len__(self) -> int:
        return self.x.shape[0]

    @property
    def sparse(self) -> bool:
        """Are the inputs, or the labels, sparse?"""
        return sp.issparse(self.x) or sp.issparse(self.y)

    def take(self, rows: np.ndarray) -> "Split":
        """The split of these rows, in this order."""
        return Split(self.x[rows], self.y[rows])


@dataclass(frozen=True)
class Dataset:
    """A training and a test split over the same features and classes."""

    train: Split
    test: Split
    num_classes: int
    name: str = "data"
    notes: tuple[str, ...] = field(default=())  # remarks of the reader

    @property
    def sparse(self) -> bool:
        """Are the inputs sparse?"""
        return sp.issparse(self.train.x)

    @property
    def multilabel(self) -> bool:
        """May an example have several labels, or none?"""
        return sp.issparse(self.train.y)

    @property
    def num_features(self) -> int:
        """The number of input features per example (all axes but the first)."""
        return int(np.prod(self.train.x.shape[1:]))


def note(split: str, found: int | np.ndarray, thing: str, what: str) -> str:
    """A note such as 'train: 2 duplicate features summed'; empty for a count of zero.

    `found` is the count, or an array of flags to count.
    """
    count = int(np.sum(found))
    return f"{split}: {count} {thing}{'' if count == 1 else 's'} {what}" * (count > 0)
