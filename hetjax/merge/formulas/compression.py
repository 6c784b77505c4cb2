"""What a compressed message holds of an array: its largest entries, in few bits.

Everything is by tensor: an array, whose entries are in row-major order.
"""

from typing import Any, Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax

from hetjax import tree
from hetjax.tree import PyTree

Bits: TypeAlias = Literal["bf16", 8, 4, 2]
CLASSES = 4  # of 2 bits


class Message(NamedTuple):
    """A message as its receiver decodes it, and the entries that it holds."""

    decoded: PyTree  # float32; entries that were not sent are zero
    sent: PyTree  # bool


def compressed_message(
    values: PyTree,
    *,
    top_k: int | None = None,
    chunk: int = 4096,
    bits: Bits | None = None,
) -> Message:
    """The entries of largest size in each tensor of a tree, quantized: Q(top(x)).

    See `top_entries` (`top_k` None: all entries) and `quantized` (`bits` None: exact).
    """

    def one(x: jax.Array) -> Message:
        x = tree.wide(x)
        sent = top_entries(x, chunk if top_k is None else top_k, chunk)
        return Message(quantized(x, sent, bits), sent)

    leaves, structure = jax.tree.flatten(values)
    found = [
        one(x) if tree.is_float(x) else Message(x, jnp.ones(jnp.shape(x), bool))
        for x in leaves
    ]
    decoded, sent = ([m[i] for m in found] for i in (0, 1))
    return Message(
        jax.tree.unflatten(structure, decoded), jax.tree.unflatten(structure, sent)
    )


def top_entries(x: jax.Array, top_k: int, chunk: int) -> jax.Array:
    """Whether each entry is among the `top_k` of largest |x| in its chunk (bool).

    A chunk is `chunk` entries in a row; the last one may be shorter. The earlier of two
    equal entries counts as larger.

    >>> top_entries(jnp.array([0.5, -2.0, 1.0, 0.0, 3.0]), 1, 2).tolist()
    [False, True, True, False, True]
    """
    chunk = min(chunk, x.size)
    if top_k >= chunk:
        return jnp.ones(x.shape, bool)
    missing = -x.size % chunk
    sizes = jnp.pad(jnp.abs(x.ravel()), (0, missing), constant_values=-1.0)
    sizes = sizes.reshape(-1, chunk)
    _, places = lax.top_k(sizes, top_k)  # the lower index first
    rows = jnp.arange(sizes.shape[0])[:, None]
    chosen = jnp.zeros(sizes.shape, bool).at[rows, places].set(True)
    return chosen.ravel()[: x.size].reshape(x.shape)


def quantized(x: jax.Array, sent: jax.Array, bits: Any) -> jax.Array:
    """The sent entries x in few bits, decoded; zero in place of the others.

    "bf16"     rounded to bfloat16, to the nearest even
    8, 4       integers times max|x| / 127 or max|x| / 7 (1 if all are zero), rounded to
               the nearest even
    2          "stat2", experimental: four classes, each the mean of its entries:
               clip(round((x - mean) / s + 2), 0, 3), s = 6 std / 4, std with n - 1
    None       x

    max, mean and std are over the sent entries of the tensor. Source: docs/algorithms
    L.11.
    """
    if bits == "bf16":  # not a pair of casts, which XLA may leave out
        x = lax.reduce_precision(x, exponent_bits=8, mantissa_bits=7)
    elif bits in (8, 4):
        scale = jnp.max(jnp.where(sent, jnp.abs(x), 0.0), initial=0.0)
        scale = scale / (2 ** (bits - 1) - 1)
        scale = jnp.where(scale == 0, 1.0, scale)  # NaN stays
        x = jnp.round(x / scale) * scale
    elif bits == 2:
        x = _class_means(x, sent)
    return jnp.where(sent, x, 0.0)


def _class_means(x: jax.Array, sent: jax.Array) -> jax.Array:
    """Each entry replaced by the mean of its class of similar entries."""
    number = jnp.sum(sent)
    mean = _mean(x, sent)
    squares = jnp.sum(jnp.where(sent, (x - mean) ** 2, 0.0))
    std = jnp.sqrt(squares / jnp.maximum(number - 1, 1))
    step = jnp.where(std == 0, 1.0, 6 * std / CLASSES)
    place = jnp.round((x - mean) / step + CLASSES / 2)
    place = jnp.clip(place, 0, CLASSES - 1)
    result = x  # NaN stays
    for k in range(CLASSES):
        own = place == k
        result = jnp.where(own, _mean(x, own & sent), result)
    return result


def _mean(x: jax.Array, where: jax.Array) -> jax.Array:
    return jnp.sum(jnp.where(where, x, 0.0)) / jnp.maximum(jnp.sum(where), 1)
