"""Restriction of a data set to its commonest labels."""

import dataclasses
from typing import Annotated, Any

import numpy as np
import scipy.sparse as sp

from hetjax.arguments import Bounds, as_kind
from hetjax.data.dataset import Dataset, Split, note
from hetjax.recipes import by_name


@by_name
def commonest_labels(data: Dataset, number: int) -> Dataset:
    """The data set with only the `number` labels that most training examples have.

    Ties go to the smaller label. Labels are renumbered in their order. Examples without
    any of these labels are removed from both splits; a note counts them. Features do
    not change. A ValueError if labels are class ids, not sets of labels.
    """
    if not data.multilabel:
        raise ValueError(
            f"{data.name}: commonest_labels needs sets of labels [N, C], not class ids"
        )
    bounds = Bounds(low=1, high=data.num_classes)
    number = as_kind("number", number, Annotated[int, bounds])
    counts = np.bincount(data.train.y.indices, minlength=data.num_classes)
    chosen = np.sort(np.argsort(-counts, kind="stable")[:number])
    splits, notes = {}, list(data.notes)
    for name in ("train", "test"):
        split: Split = getattr(data, name)
        y: Any = sp.csr_array(split.y[:, chosen])
        labeled = np.diff(y.indptr) > 0
        if not labeled.any():
            raise ValueError(
                f"{data.name}: no {name} example has one of the {number} commonest "
                "labels: choose more labels"
            )
        rows = np.flatnonzero(labeled)
        splits[name] = Split(split.take(rows).x, y[rows])
        notes.append(
            note(name, ~labeled, "row", f"without the {number} commonest labels")
        )
    return dataclasses.replace(
        data,
        **splits,
        num_classes=number,
        name=f"{data.name}, {number} labels",
        notes=tuple(filter(None, notes)),
    )
