"""Uniform sampling: by default one shuffled pass after another."""

from typing import Literal, NamedTuple

import numpy as np

from hetjax.arguments import checked
from hetjax.sampling.types import Sampler

Order = Literal["shuffled", "sequential", "with_replacement"]


class PassState(NamedTuple):
    """The current pass over the data, and the position in it."""

    seed: int
    epoch: int
    order: np.ndarray  # [N] the examples of this pass
    position: int  # of the next example in `order`


@checked
def uniform(order: Order = "shuffled") -> Sampler:
    """All workers draw in turn from one pass; each pass is a new permutation.

    The permutations depend only on the seed, so all strategies see the same ones. A
    draw that is longer than the rest of the pass takes the rest and continues with the
    next pass: no example is dropped, and none is seen twice in a pass.
    `order="sequential"` takes the examples in the order of the data, pass after pass,
    as HeteroGPU's code does (which also drops the end of a pass; hetjax does not).
    `order="with_replacement"` draws each example independently, as the analysis of
    Hogwild! assumes.
    """

    def init(workers, num_examples, seed):
        if num_examples < 1:  # a draw would never end
            raise ValueError(f"there are {num_examples} examples to draw from")
        return PassState(seed, 0, _make_pass(order, seed, 0, num_examples), 0)

    def draw(state, worker, n):
        piece = state.order[state.position : state.position + n]
        if len(piece) == n:  # the most frequent case
            return advance(state, n), piece.copy()
        pieces = []
        while n > 0:
            piece = state.order[state.position : state.position + n]
            pieces.append(piece)
            n -= len(piece)
            state = advance(state, len(piece))
        return state, np.concatenate(pieces) if pieces else np.empty(0, np.int64)

    def advance(state, n):
        position, total = state.position + n, len(state.order)
        if position < total:
            return state._replace(position=position)
        epoch = state.epoch + 1
        return PassState(
            state.seed, epoch, _make_pass(order, state.seed, epoch, total), 0
        )

    return Sampler(init, draw, for_workers=lambda state, workers: state)


def _make_pass(order: str, seed: int, epoch: int, n: int) -> np.ndarray:
    if order == "sequential":
        return np.arange(n)
    rng = np.random.default_rng((seed, epoch))
    return rng.permutation(n) if order == "shuffled" else rng.integers(n, size=n)
