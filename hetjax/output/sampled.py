"""Sampled softmax: the true labels and a few negatives shared by the batch."""

from collections.abc import Callable
from typing import Annotated, Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np

from hetjax.arguments import Bounds, checked
from hetjax.output.candidates import Candidates, layer
from hetjax.output.layers import MakeLayer, OutputLayer
from hetjax.recipes import by_name

Distribution = Literal["uniform", "log_uniform", "frequency"]
DISTRIBUTIONS = get_args(Distribution)
_WHOLE = 2.0**32  # probabilities are multiples of 1 / _WHOLE


@by_name
@checked
def sampled(
    *,
    negatives: Annotated[int, Bounds(1, 2**24)] = 1024,
    distribution: Distribution = "log_uniform",
) -> MakeLayer:
    """Sampled softmax with m `negatives` per batch, drawn with replacement from q.

        loss = -sum_c t_c (z_c - log(sum_{c in Y} exp z_c
                                     + sum_{j not in Y} exp(z_j - log(m q_j))))

    with j over the negatives: an unbiased estimate of the softmax's denominator, and of
    the loss in the limit of many negatives. q is "uniform"; "log_uniform", where the
    label of rank r by frequency in the training data has q = log((r + 2) / (r + 1)) /
    log(C + 1), r = 0, 1, ...; or "frequency", q proportional to 1 + the number of
    training examples with the label. Source: Bengio and Senecal, 2003 (importance
    sampling); Jean et al., 2015 (negatives shared by a batch).
    """

    def make(counts: np.ndarray) -> OutputLayer:
        draw = _sampler(probabilities(distribution, counts))

        def choose(h: Any, w: Any, b: Any, state: Any, key: jax.Array) -> tuple:
            ids, log_q = draw(key, negatives)
            offsets = log_q + np.log(negatives).astype(np.float32)
            return Candidates(ids, offsets), state

        return layer("sampled", choose, negatives=negatives, distribution=distribution)

    return make


def probabilities(distribution: str, counts: np.ndarray) -> np.ndarray:
    """Return q [C] float64 of labels that occur `counts` [C] times."""
    num = len(counts)
    if distribution == "uniform":
        return np.full(num, 1.0 / num)
    if distribution == "frequency":
        return (counts + 1.0) / (counts + 1.0).sum()
    ranks = np.empty(num, np.int64)
    ranks[np.argsort(-np.asarray(counts), kind="stable")] = np.arange(num)
    return np.log((ranks + 2.0) / (ranks + 1.0)) / np.log(num + 1.0)


def _sampler(q: np.ndarray) -> Callable[[jax.Array, int], tuple]:
    """Return draw(key, n) -> (labels [n] int32, log q [n]); q as multiples of 2**-32.

    The sums of 670,091 probabilities need more digits than float32 has: label c is
    drawn if a random 32-bit integer lies below its bound and not below the previous
    bound.
    """
    bounds = np.round(np.cumsum(q) * _WHOLE)
    bounds[-1] = _WHOLE
    widths = np.diff(bounds, prepend=0.0)
    log_q = np.log(np.maximum(widths, 1.0) / _WHOLE).astype(np.float32)
    last = (bounds - 1).astype(np.uint32)  # the largest integer that draws label c

    def draw(key: jax.Array, n: int) -> tuple[jax.Array, jax.Array]:
        numbers = jax.random.bits(key, (n,), jnp.uint32)
        ids = jnp.searchsorted(jnp.asarray(last), numbers).astype(jnp.int32)
        return ids, jnp.asarray(log_q).at[ids].get(mode="clip")

    return draw
