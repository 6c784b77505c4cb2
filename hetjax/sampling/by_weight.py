"""Sampling by weight: batches of light examples and of heavy ones, for measurements."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hetjax.machine.types import WorkerInfo
from hetjax.sampling.types import Sampler


class ByWeightState(NamedTuple):
    """How many draws there were."""

    seed: int
    draws: int


def by_weight(weights: Sequence[float]) -> Sampler:
    """Every draw is of the lighter half of the examples, or of the heavier half.

    `weights` [N] are an example's, such as its non-zeros. Which half is random, and so
    are the examples, which may repeat.
    """
    halves = np.array_split(np.argsort(weights, kind="stable"), 2)

    def init(
        workers: tuple[WorkerInfo, ...], num_examples: int, seed: int
    ) -> ByWeightState:
        del workers
        if num_examples != len(weights) or num_examples < 2:
            raise ValueError(f"{len(weights)} weights for {num_examples} examples")
        return ByWeightState(seed, 0)

    def draw(
        state: ByWeightState, worker: int, n: int
    ) -> tuple[ByWeightState, np.ndarray]:
        del worker
        rng = np.random.default_rng((state.seed, state.draws))
        half = halves[rng.integers(2)]
        return state._replace(draws=state.draws + 1), rng.choice(half, n)

    return Sampler(init, draw)
