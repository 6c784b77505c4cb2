"""Shards: each worker draws from its own part of the data (host world)."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from hetjax.sampling.types import Sampler
from hetjax.sampling.uniform import PassState, uniform

Partition = Callable[[int, int], Sequence[np.ndarray]]
_PASSES = uniform()


class ShardedState(NamedTuple):
    """One entry per worker."""

    shards: tuple[np.ndarray, ...]  # row numbers
    passes: tuple[PassState, ...]


def sharded(partition: Partition | Sequence[np.ndarray]) -> Sampler:
    """Each worker makes shuffled passes over its own rows.

    `partition` is a sequence of each worker's rows, or a function
    (num_workers, seed) -> rows such as
    `lambda n, seed: data.dirichlet(labels, n, alpha=0.3, seed=seed)`. A worker's share
    of the data is its share of the rows.
    """

    def init(workers, num_examples, seed):
        n = len(workers)
        given = partition(n, seed) if callable(partition) else partition
        shards = tuple(np.asarray(rows, np.int64) for rows in given)
        if len(shards) != n:
            raise ValueError(
                f"sharded: {len(shards)} shards for {n} workers: pass one per worker"
            )
        for worker, rows in enumerate(shards):
            if not len(rows):
                raise ValueError(f"sharded: worker {worker} has no rows")
            if rows.min() < 0 or rows.max() >= num_examples:
                raise ValueError(
                    f"sharded: worker {worker} has rows outside the {num_examples} "
                    "training examples (a merge that measures accuracy holds some "
                    "examples out)"
                )
        # a separate random stream for each worker: (seed, worker) as one number
        passes = tuple(
            _PASSES.init((), len(rows), seed * n + k) for k, rows in enumerate(shards)
        )
        return ShardedState(shards, passes)

    def draw(state, worker, n):
        mine, places = _PASSES.draw(state.passes[worker], worker, n)
        passes = (*state.passes[:worker], mine, *state.passes[worker + 1 :])
        return state._replace(passes=passes), state.shards[worker][places]

    def share(state):
        sizes = np.array([len(rows) for rows in state.shards], float)
        return sizes / sizes.sum()

    def rows(state, worker):
        return state.shards[worker]

    return Sampler(init, draw, share=share, rows=rows)
