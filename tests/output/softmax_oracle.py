"""Softmax over many labels in NumPy and float64: the oracles of the output layers."""

import jax.numpy as jnp
import numpy as np

from hetjax.output.softmax import Targets


class Problem:
    """A batch of B examples in front of an output layer with C labels."""

    def __init__(self, seed=0, size=6, hidden=5, labels=11, kind="several"):
        rng = np.random.default_rng(seed)
        self.size, self.num = size, labels
        self.h = rng.normal(size=(size, hidden)).astype(np.float32)
        self.w = rng.normal(size=(labels, hidden)).astype(np.float32)
        self.b = rng.normal(size=labels).astype(np.float32)
        self.scale = rng.uniform(0.5, 1.5, size).astype(np.float32) / size
        self.t = SHARES[kind](rng, size, labels)  # [B, C] float64

    @property
    def targets(self):
        """The entries in the order of rows, and some padding at the end.

        As many in all for every kind of targets, so that they share programs.
        """
        rows, columns = np.nonzero(self.t)
        more = self.t.size + 3 - len(rows)
        padding = np.full(more, self.size), np.full(more, self.num)
        return Targets(
            jnp.asarray(np.r_[rows, padding[0]], jnp.int32),
            jnp.asarray(np.r_[columns, padding[1]], jnp.int32),
            jnp.asarray(np.r_[self.t[rows, columns], np.zeros(more)], jnp.float32),
        )

    @property
    def repeated_targets(self):
        """The same targets; every label of an example is there twice, by halves."""
        rows, columns = (np.repeat(x, 2) for x in np.nonzero(self.t))
        shares = self.t[rows, columns] / 2
        return Targets(*map(jnp.asarray, (rows, columns, shares.astype(np.float32))))

    @property
    def arrays(self):
        return tuple(map(jnp.asarray, (self.h, self.w, self.b)))

    def scores(self):
        h, w, b = (x.astype(np.float64) for x in (self.h, self.w, self.b))
        return h @ w.T + b

    def expected(self, offsets=None):
        """(losses, dh, dW, db) of the softmax whose denominator is

            sum_c exp(z_c - offset_c)

        with an offset [B, C] of +inf where a label does not count.
        """
        z = self.scores()
        shifted = z - (np.zeros_like(z) if offsets is None else offsets)
        highest = shifted.max(1, keepdims=True)
        e = np.exp(shifted - highest)
        normalizer = highest + np.log(e.sum(1, keepdims=True))
        losses = -(self.t * (z - normalizer)).sum(1)
        p = e / e.sum(1, keepdims=True)
        d = self.scale[:, None] * (self.t.sum(1, keepdims=True) * p - self.t)
        d = d.astype(np.float64)
        h, w = self.h.astype(np.float64), self.w.astype(np.float64)
        return losses, d @ w, d.T @ h, d.sum(0)


def _one(rng, size, labels):
    return np.eye(labels)[rng.integers(labels, size=size)]


def _several(rng, size, labels):
    """Rows with none to all of the labels, some of which several rows share."""
    has = rng.random((size, labels)) < 0.3
    has[0], has[1 % size] = False, True
    return has / np.maximum(has.sum(1, keepdims=True), 1)


def _none(rng, size, labels):
    del rng
    return np.zeros((size, labels))


def _all(rng, size, labels):
    del rng
    return np.full((size, labels), 1 / labels)


SHARES = {"one": _one, "several": _several, "none": _none, "all": _all}


def close(found, expected, tolerance=1e-6):
    """Equal up to `tolerance` of the largest number."""
    expected = np.asarray(expected)
    limit = tolerance * max(1.0, np.abs(expected).max(initial=0.0))
    np.testing.assert_allclose(found, expected, rtol=0, atol=limit)
