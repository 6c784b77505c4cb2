"""Parts of the transformers `vit` and `distilbert`: attention and feed-forward layers.

Sequences are [B, T, D]: T positions with a vector of D numbers each.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx


class TransformerLayers:
    """Builder of a transformer's layers, which share initial weights and dtype.

    Weights are normal with standard deviation .02, truncated at two deviations if
    `truncate`; biases are 0.
    """

    def __init__(self, dtype: Any, rngs: nnx.Rngs, *, truncate: bool):
        """`dtype` is the compute dtype of the layers."""
        inits = nnx.initializers
        self.init = inits.truncated_normal(0.02) if truncate else inits.normal(0.02)
        self.dtype, self.rngs = dtype, rngs

    def dense(self, a: int, b: int, dtype: Any = None) -> nnx.Linear:
        """Return a dense layer, [..., a] to [..., b]."""
        return nnx.Linear(
            a, b, kernel_init=self.init, dtype=dtype or self.dtype, rngs=self.rngs
        )

    def norm(self, width: int, epsilon: float) -> nnx.LayerNorm:
        """Return a layer normalization of [..., width]; its sums are float32."""
        return nnx.LayerNorm(
            width,
            epsilon=epsilon,
            dtype=self.dtype,
            # E[x^2] - E[x]^2 loses digits where the mean is large
            use_fast_variance=False,
            rngs=self.rngs,
        )

    def drop(self, rate: float) -> nnx.Dropout:
        """Return dropout at this rate, active in training."""
        return nnx.Dropout(rate, rngs=self.rngs)


class Attention(nnx.Module):
    """Multi-head self-attention, softmax(q k^T / sqrt(D / heads)) v.

    Source: Vaswani et al., NIPS 2017. The weights of q, k and v are one matrix.
    """

    def __init__(
        self, width: int, heads: int, make: TransformerLayers, dropout: float = 0.0
    ):
        """`dropout` is the rate at which attention weights are dropped."""
        self.qkv, self.out = make.dense(width, 3 * width), make.dense(width, width)
        self.heads = heads
        self.drop = make.drop(dropout) if dropout else None

    def __call__(self, x: jax.Array, mask: jax.Array | None = None) -> jax.Array:
        """[B, T, D] to [B, T, D]; positions with a false `mask` [B, T] are ignored."""
        batch, length, width = x.shape
        split = (batch, length, 3, self.heads, width // self.heads)
        q, k, v = jnp.moveaxis(jnp.reshape(self.qkv(x), split), 2, 0)
        if mask is not None:
            mask = mask[:, None, None, :]
        if self.drop is None:
            mixed = jax.nn.dot_product_attention(q, k, v, mask=mask)
        else:
            mixed = _with_dropout(q, k, v, mask, self.drop)
        return self.out(jnp.reshape(mixed, x.shape))


def _with_dropout(q: Any, k: Any, v: Any, mask: Any, drop: nnx.Dropout) -> jax.Array:
    """Attention with dropout of its weights, which JAX's function does not support."""
    scale = 1 / math.sqrt(q.shape[-1])
    scores = jnp.einsum("bthd,bshd->bhts", q, k, preferred_element_type=jnp.float32)
    scores = scores * scale
    if mask is not None:
        scores = jnp.where(mask, scores, jnp.finfo(scores.dtype).min)
    weights = drop(jax.nn.softmax(scores, axis=-1)).astype(v.dtype)
    return jnp.einsum("bhts,bshd->bthd", weights, v)


class FeedForward(nnx.Module):
    """dense(GELU(dense(x))), with the exact GELU, x Phi(x)."""

    def __init__(self, width: int, hidden: int, make: TransformerLayers):
        """[..., width] to [..., width]."""
        self.first, self.second = make.dense(width, hidden), make.dense(hidden, width)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Apply the layers at each position separately."""
        return self.second(jax.nn.gelu(self.first(x), approximate=False))


def check_heads(width: int, heads: int) -> None:
    """Raise a ValueError unless each head has the same number of units."""
    if heads < 1 or width % heads:
        raise ValueError(f"heads={heads}: must divide the width {width}")
