"""Sampling by weight: batches of light or heavy examples, for measurements."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hetjax.sampling.types import Sampler


class ByWeightState(NamedTuple):
    """The seed, and the number of draws so far."""

    seed: int
    draws: int


def by_weight(weights: Sequence[float] | np.ndarray) -> Sampler:
    """Draws each batch from either the lighter or the heavier half of the examples.

    `weights` [N] is a number for each example, such as its count of non-zeros. Both the
    half and the examples in it are chosen at random; examples may repeat.
    """
    halves = np.array_split(np.argsort(weights, kind="stable"), 2)

    def init(workers, num_examples, seed):
        if num_examples != len(weights) or num_examples < 2:
            raise ValueError(
                f"by_weight: {len(weights)} weights for {num_examples} examples: pass "
                "one weight per example"
            )
        return ByWeightState(seed, 0)

    def draw(state, worker, n):
        rng = np.random.default_rng((state.seed, state.draws))
        half = halves[rng.integers(2)]
        return state._replace(draws=state.draws + 1), rng.choice(half, n)

    return Sampler(init, draw)
