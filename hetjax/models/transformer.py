"""Parts of the transformers `vit` and `distilbert`: attention, the feed-forward part.

Sequences are [B, T, D]: T places, of a vector of D numbers each.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx


class Weights:
    """What the layers of one transformer share: initial weights and dtype.

    Weights are normal with deviation .02, cut off at two deviations if `cut`; biases
    are 0.
    """

    def __init__(self, dtype: Any, rngs: nnx.Rngs, *, cut: bool):
        """`dtype` is what the layers compute in."""
        inits = nnx.initializers
        self.init = inits.truncated_normal(0.02) if cut else inits.normal(0.02)
        self.dtype, self.rngs = dtype, rngs

    def dense(self, a: int, b: int, dtype: Any = None) -> nnx.Linear:
        """[..., a] to [..., b]."""
        return nnx.Linear(
            a, b, kernel_init=self.init, dtype=dtype or self.dtype, rngs=self.rngs
        )

    def norm(self, width: int, epsilon: float) -> nnx.LayerNorm:
        """The layer normalisation of [..., width]; its sums are float32."""
        return nnx.LayerNorm(
            width,
            epsilon=epsilon,
            dtype=self.dtype,
            # E[x^2] - E[x]^2 loses digits where the mean is large
            use_fast_variance=False,
            rngs=self.rngs,
        )

    def drop(self, rate: float) -> nnx.Dropout:
        """Dropout at this rate in training."""
        return nnx.Dropout(rate, rngs=self.rngs)


class Attention(nnx.Module):
    """Multi-head self-attention, softmax(q k^T / sqrt(D / heads)) v, of all places.

    Source: Vaswani et al., NIPS 2017. The weights of q, k and v are one matrix.
    """

    def __init__(self, width: int, heads: int, of: Weights, dropout: float = 0.0):
        """`dropout` is the rate of attention weights that are left out."""
        self.qkv, self.out = of.dense(width, 3 * width), of.dense(width, width)
        self.heads = heads
        self.drop = of.drop(dropout) if dropout else None

    def __call__(self, x: jax.Array, mask: jax.Array | None = None) -> jax.Array:
        """[B, T, D] to [B, T, D]; places where `mask` [B, T] is false are not seen."""
        batch, places, width = x.shape
        split = (batch, places, 3, self.heads, width // self.heads)
        q, k, v = jnp.moveaxis(jnp.reshape(self.qkv(x), split), 2, 0)
        if mask is not None:
            mask = mask[:, None, None, :]
        if self.drop is None:
            mixed = jax.nn.dot_product_attention(q, k, v, mask=mask)
        else:
            mixed = _with_dropout(q, k, v, mask, self.drop)
        return self.out(jnp.reshape(mixed, x.shape))


def _with_dropout(q: Any, k: Any, v: Any, mask: Any, drop: nnx.Dropout) -> jax.Array:
    """Attention whose weights are dropped, which JAX's own does not do."""
    scale = 1 / math.sqrt(q.shape[-1])
    scores = jnp.einsum("bthd,bshd->bhts", q, k, preferred_element_type=jnp.float32)
    scores = scores * scale
    if mask is not None:
        scores = jnp.where(mask, scores, jnp.finfo(scores.dtype).min)
    weights = drop(jax.nn.softmax(scores, axis=-1)).astype(v.dtype)
    return jnp.einsum("bhts,bshd->bthd", weights, v)


class FeedForward(nnx.Module):
    """dense(GELU(dense(x))), with the exact GELU, x Phi(x)."""

    def __init__(self, width: int, hidden: int, of: Weights):
        """[..., width] to [..., width]."""
        self.first, self.second = of.dense(width, hidden), of.dense(hidden, width)

    def __call__(self, x: jax.Array) -> jax.Array:
        """At each place by itself."""
        return self.second(jax.nn.gelu(self.first(x), approximate=False))


def check_heads(width: int, heads: int) -> None:
    """Raises a ValueError unless each head has the same number of units."""
    if heads < 1 or width % heads:
        raise ValueError(f"heads={heads}: the width {width} must be a multiple of it")
