"""Uniform sampling without replacement: one shuffled pass after the other."""

from typing import NamedTuple

import numpy as np

from hetjax.machine.types import WorkerInfo
from hetjax.sampling.types import Sampler


class PassState(NamedTuple):
    """Where a run is in its passes over the data."""

    seed: int
    epoch: int
    order: np.ndarray  # [N] this pass's permutation
    position: int  # of the next example in it


def uniform() -> Sampler:
    """Every pass is a new permutation, handed out in order to whoever asks.

    For one seed the order is the same under every strategy. A draw that is longer than
    the rest of the pass takes the rest and goes on with the next pass: no example is
    dropped, none is seen twice in a pass.
    """

    def init(
        workers: tuple[WorkerInfo, ...], num_examples: int, seed: int
    ) -> PassState:
        del workers
        if num_examples < 1:  # a draw would look for an example for ever
            raise ValueError(f"there are {num_examples} examples to draw from")
        return PassState(seed, 0, _permutation(seed, 0, num_examples), 0)

    def draw(state: PassState, worker: int, n: int) -> tuple[PassState, np.ndarray]:
        del worker
        pieces = []
        while n > 0:
            piece = state.order[state.position : state.position + n]
            pieces.append(piece)
            n -= len(piece)
            state = _advanced(state, len(piece))
        return state, np.concatenate(pieces) if pieces else np.empty(0, np.int64)

    return Sampler(init, draw)


def _advanced(state: PassState, n: int) -> PassState:
    position, total = state.position + n, len(state.order)
    if position < total:
        return state._replace(position=position)
    epoch = state.epoch + 1
    order = _permutation(state.seed, epoch, total)
    return PassState(state.seed, epoch, order, 0)


def _permutation(seed: int, epoch: int, n: int) -> np.ndarray:
    return np.random.default_rng((seed, epoch)).permutation(n)
