"""Partitions of a training split among workers: IID or heterogeneous shards."""

from typing import Any

import numpy as np
import scipy.sparse as sp

from hetjax.arguments import Count, HostSeed, Positive, Whole, checked

_NONE = -1  # the class of a row without a label


@checked
def iid(
    num_examples: Whole, num_workers: Count, seed: HostSeed
) -> tuple[np.ndarray, ...]:
    """Shards of examples drawn at random, whose sizes differ by at most one.

    A shard is an array of rising int64 indices; every example is in exactly one shard.
    """
    _check_workers(num_examples, num_workers)
    order = np.random.default_rng(seed).permutation(num_examples)
    return tuple(np.sort(shard) for shard in np.array_split(order, num_workers))


@checked
def dirichlet(
    labels: Any, num_workers: Count, *, alpha: Positive, seed: HostSeed
) -> tuple[np.ndarray, ...]:
    """Shards with uneven mixtures of classes, more uneven for smaller `alpha`.

        p_c ~ Dirichlet(alpha, ..., alpha)  [num_workers], for each class c

    Worker k has the share p_ck of the examples of class c, rounded up or down. Shards
    differ in size, too. With alpha = 0.1 most workers have few classes; with a large
    alpha all have nearly the same mixture.

    `labels`: [N] class ids, or [N, C] CSR, where the first label of a row counts; rows
    without a label are distributed evenly. A shard is an array of rising int64 indices;
    every example is in exactly one shard. No shard is empty: a worker without examples
    gets one, drawn from the largest shard (redrawing everything, as some
    implementations do, may never end for a small alpha). Fewer examples than workers
    are a ValueError.

    Source: Yurochkin et al., ICML 2019; Li et al., ICDE 2022 (arXiv 2102.02079).
    """
    classes = _classes(labels)
    _check_workers(len(classes), num_workers)
    rng = np.random.default_rng(seed)
    owner = np.empty(len(classes), np.int64)
    by_class = np.argsort(classes, kind="stable")
    starts = np.flatnonzero(np.diff(classes[by_class])) + 1
    for members in np.split(by_class, starts):
        rng.shuffle(members)
        place = np.arange(len(members))
        if classes[members[0]] == _NONE:
            owner[members] = place % num_workers
            continue
        ends = np.cumsum(rng.dirichlet(np.full(num_workers, alpha))) * len(members)
        # Rounding all ends by the same random amount gives worker k exactly its share
        # on average; rounding down would give the last worker most of small classes.
        cuts = np.floor(ends[:-1] + rng.random())
        owner[members] = np.searchsorted(cuts, place, side="right")
    _fill_empty(rng, owner, num_workers)
    by_owner = np.argsort(owner, kind="stable")
    stops = np.cumsum(np.bincount(owner, minlength=num_workers))[:-1]
    return tuple(np.split(by_owner, stops))


def _classes(labels: Any) -> np.ndarray:
    """The class of each example [N] int64, or _NONE."""
    if sp.issparse(labels):
        matrix = sp.csr_array(labels)
        full = np.diff(matrix.indptr) > 0
        classes = np.full(len(full), _NONE, np.int64)
        classes[full] = matrix.indices[matrix.indptr[:-1][full]]
        return classes
    wanted = "labels must be [N] integers or [N, C] CSR"
    try:
        classes = np.asarray(labels)
    except ValueError as error:  # such as ragged rows
        raise ValueError(f"{wanted}: {error}") from None
    if classes.ndim != 1 or (classes.size and classes.dtype.kind not in "iu"):
        raise ValueError(f"{wanted}, not {list(classes.shape)} of {classes.dtype}")
    if classes.size and classes.min() < 0:
        raise ValueError(f"labels: class id {classes.min()} is negative")
    return classes.astype(np.int64)


def _check_workers(num_examples: int, num_workers: int) -> None:
    if num_examples < num_workers:
        raise ValueError(
            f"{num_examples} examples are too few for {num_workers} workers: each "
            "must get at least one; pass more data, or fewer workers"
        )


def _fill_empty(rng: np.random.Generator, owner: np.ndarray, num_workers: int) -> None:
    """Moves one example of the largest shard to each empty one, in place."""
    sizes = np.bincount(owner, minlength=num_workers)
    for worker in np.flatnonzero(sizes == 0):
        largest = int(np.argmax(sizes))
        owner[rng.choice(np.flatnonzero(owner == largest))] = worker
        sizes[largest] -= 1
        sizes[worker] = 1
