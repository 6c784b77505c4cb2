"""Synthetic extreme classification: sparse rows whose features predict their labels.

Labels and background features follow a shifted Zipf law of exponent one; the number of
non-zeros per row is lognormal. Each label has a few prototype features; some features
of a row come from the prototypes of its labels, the others from the background.
"""

from typing import Annotated, NamedTuple

import numpy as np
import scipy.sparse as sp

from hetjax.arguments import Bounds, Count, HostSeed, as_kind, checked
from hetjax.data.dataset import Dataset, Split
from hetjax.data.readers.sparse_text import csr_of
from hetjax.recipes import by_name

# sizes of public data sets, to measure speed at scale: synthetic_xmc(**SHAPES[...])
SHAPES = {
    "amazon-670k": {
        "rows": 490_449,
        "test_rows": 153_025,
        "features": 135_909,
        "labels": 670_091,
        "nonzeros": 76.0,
        "labels_per_row": 5.0,
    },
    "delicious-200k": {
        "rows": 196_606,
        "test_rows": 100_095,
        "features": 782_585,
        "labels": 205_443,
        "nonzeros": 302.0,
        "labels_per_row": 75.0,
    },
}

MOST_NUMBERS = 1_000_000_000  # 8 GB: a value and its column for each non-zero
_BLOCK = 500_000  # non-zeros drawn at a time; the data depend on it
_SPREAD = 0.6  # standard deviation of the logarithm of non-zeros per row
_SIGNAL = 0.2  # share of draws from the row's labels: a centroid rule has P@1 of 0.7
_SPARE = 1.25  # draws per wanted distinct value, before uniform draws fill up


class _World(NamedTuple):
    """The parameters that both splits share."""

    nonzeros: float  # mean per row
    labels_per_row: float  # mean
    feature_of_rank: np.ndarray  # [F], a permutation: popularity is unrelated to ids
    label_of_rank: np.ndarray  # [C], likewise
    prototypes: np.ndarray  # [C, P] int32 features


@by_name
@checked
def synthetic_xmc(
    *,
    rows: Count = 4096,
    test_rows: Count = 1024,
    features: Count = 2000,
    labels: Count = 200,
    nonzeros: float = 70.0,
    labels_per_row: float = 3.0,
    seed: HostSeed = 0,
) -> Dataset:
    """Learnable sparse multi-label data; the same seed gives the same data.

    `nonzeros` and `labels_per_row` are means per row, at most half of all features and
    labels. Every row has at least one label and one non-zero, and unit L2 norm.
    Popularity falls with the rank as in `_zipf`. Data of more than MOST_NUMBERS are a
    ValueError.
    """
    for name, mean, most in (
        ("nonzeros", nonzeros, features),
        ("labels_per_row", labels_per_row, labels),
    ):
        as_kind(name, mean, Annotated[float, Bounds(low=1, high=max(1, most / 2))])
    per_label = max(4, round(nonzeros / labels_per_row))
    per_row = nonzeros + labels_per_row
    needed = {
        "rows": int(rows * per_row),
        "test_rows": int(test_rows * per_row),
        "features": features,
        "labels": labels * (1 + per_label),
    }
    if (total := sum(needed.values())) > MOST_NUMBERS:
        raise ValueError(
            f"{max(needed, key=needed.__getitem__)} is too large: the data would be "
            f"{total:.2g} numbers, about {8e-9 * total:.0f} GB; at most "
            f"{MOST_NUMBERS:.2g} numbers are allowed"
        )
    rng = np.random.default_rng(seed)
    world = _World(
        nonzeros=nonzeros,
        labels_per_row=labels_per_row,
        feature_of_rank=rng.permutation(features),
        label_of_rank=rng.permutation(labels),
        prototypes=rng.integers(features, size=(labels, per_label), dtype=np.int32),
    )
    return Dataset(
        train=_split(rng, world, rows),
        test=_split(rng, world, test_rows),
        num_classes=labels,
        name="synthetic",
    )


def _split(rng: np.random.Generator, world: _World, rows: int) -> Split:
    """A split with `rows` rows, drawn block by block."""
    block = max(1, int(_BLOCK / max(world.nonzeros, world.labels_per_row)))
    starts = range(0, rows, block)
    drawn = [_draw(rng, world, min(block, rows - start)) for start in starts]
    return Split(*(sp.csr_array(sp.vstack(m, "csr")) for m in zip(*drawn, strict=True)))


def _draw(
    rng: np.random.Generator, world: _World, rows: int
) -> tuple[sp.csr_array, sp.csr_array]:
    """A block of rows: features and labels."""
    num_labels, num_features = len(world.label_of_rank), len(world.feature_of_rank)
    wanted = 1 + rng.poisson(world.labels_per_row - 1, rows)
    row, spare = _candidates(wanted, num_labels)
    drawn = world.label_of_rank[_zipf(rng, num_labels, len(row), world.labels_per_row)]
    drawn[spare] = rng.integers(num_labels, size=np.count_nonzero(spare))
    y = _distinct(row, drawn, wanted, num_labels)
    y.data[:] = 1

    log_mean = np.log(world.nonzeros) - _SPREAD**2 / 2
    wanted = np.rint(rng.lognormal(log_mean, _SPREAD, rows)).astype(np.int64)
    row, spare = _candidates(wanted, num_features)
    drawn = world.feature_of_rank[_zipf(rng, num_features, len(row), world.nonzeros)]
    signal = np.flatnonzero(~spare & (rng.random(len(row)) < _SIGNAL))
    drawn[signal] = _prototypes(rng, world, y, row[signal])
    drawn[spare] = rng.integers(num_features, size=np.count_nonzero(spare))
    x = _distinct(row, drawn, wanted, num_features)
    x.data[:] = rng.lognormal(0, 0.5, x.nnz)
    norms = np.sqrt(np.add.reduceat(x.data**2, x.indptr[:-1]))  # no row is empty
    x.data /= np.repeat(norms, np.diff(x.indptr))
    return x, y


def _zipf(
    rng: np.random.Generator, ranks: int, size: int, per_row: float
) -> np.ndarray:
    """Random ranks [size] in 0..ranks-1, for rows with a mean of `per_row` values.

        P(k) = log((k + q + 1) / (k + q)) / log((ranks + q) / q), about 1 / (k + q)

    These are the integers below a log-uniform number: no table, no search. The shift
    q grows with `per_row`, so that no value is in nearly every row.
    """
    q = max(1.0, per_row / 4)
    drawn = np.floor(q * ((ranks + q) / q) ** rng.random(size) - q).astype(np.int64)
    return np.clip(drawn, 0, ranks - 1)  # the power is rounded


def _prototypes(
    rng: np.random.Generator, world: _World, y: sp.csr_array, row: np.ndarray
) -> np.ndarray:
    """A prototype feature of a random label of each of these rows [n]."""
    counts = np.diff(y.indptr)[row]
    labels = y.indices[y.indptr[row] + (rng.random(len(row)) * counts).astype(np.int64)]
    return world.prototypes[
        labels, rng.integers(world.prototypes.shape[1], size=len(row))
    ]


def _candidates(wanted: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """The row of each draw, and whether the draw is a spare one, which is uniform.

    Clips `wanted` [rows] to 1..most in place. A row has more than 2 `wanted` draws,
    since popular values repeat; the spare draws then fill the gap.
    """
    np.clip(wanted, 1, most, out=wanted)
    draws = 2 * wanted + 8
    row = np.repeat(np.arange(len(wanted)), draws)
    position = np.arange(len(row)) - np.repeat(np.cumsum(draws) - draws, draws)
    return row, position >= np.repeat(np.ceil(_SPARE * wanted), draws)


def _distinct(
    row: np.ndarray, drawn: np.ndarray, wanted: np.ndarray, columns: int
) -> sp.csr_array:
    """The first `wanted` [rows] distinct values of each row's draws, as a pattern."""
    keys, first = np.unique(row * columns + drawn, return_index=True)
    fresh = np.zeros(len(row), np.int64)  # whether a draw is the first of its value
    fresh[first] = 1
    so_far = np.cumsum(fresh)
    starts = np.flatnonzero(np.diff(row, prepend=-1))
    rank = so_far - (so_far - fresh)[starts][row]  # among the row's distinct, from one
    keys = keys[(rank <= wanted[row])[first]]
    counts = np.bincount(keys // columns, minlength=len(wanted))
    ones = np.ones(len(keys), np.float32)
    return csr_of(counts, keys % columns, ones, columns)
