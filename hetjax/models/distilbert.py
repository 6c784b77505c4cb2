"""DistilBERT with a classification head (docs/algorithms J: Biased's text model)."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from hetjax.arguments import Count, Whole, checked
from hetjax.models.blocks import Block, Rates, compute_dtype
from hetjax.models.transformer import (
    Attention,
    FeedForward,
    TransformerLayers,
    check_heads,
)
from hetjax.recipes import by_name

EPSILON = 1e-12  # of the layer norms


class Layer(Block):
    """x -> LN(y + drop(FFN(y))) with y = LN(x + attention(x))."""

    def __init__(
        self,
        width: int,
        heads: int,
        hidden: int,
        dropout: tuple[float, float],
        remat: bool,
        make: TransformerLayers,
    ):
        """`dropout`: the rates after the feed-forward part and of attention weights."""
        super().__init__(remat=remat)
        self.attention = Attention(width, heads, make, dropout[1])
        self.norm1 = make.norm(width, EPSILON)
        self.mlp, self.drop = FeedForward(width, hidden, make), make.drop(dropout[0])
        self.norm2 = make.norm(width, EPSILON)

    def output(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        """[B, T, D] to [B, T, D]; `mask` [B, T] is false at padding."""
        x = self.norm1(x + self.attention(x, mask))
        return self.norm2(x + self.drop(self.mlp(x)))


class DistilBert(nnx.Module):
    """The encoder and its head; its factory is `distilbert`."""

    def __init__(
        self,
        make: TransformerLayers,
        classes: int,
        sizes: tuple[int, int, int],
        layers: int,
        vocabulary: int,
        positions: int,
        dropout: Rates,
        pad: int,
        remat: bool,
    ):
        """`sizes`: width, heads, hidden; see `distilbert`."""
        width = sizes[0]
        embed = partial(
            nnx.Embed, embedding_init=make.init, dtype=make.dtype, rngs=make.rngs
        )
        self.words, self.positions = embed(vocabulary, width), embed(positions, width)
        self.norm, self.drop = make.norm(width, EPSILON), make.drop(dropout[0])
        self.layers = nnx.List(
            [Layer(*sizes, dropout[:2], remat, make) for _ in range(layers)]
        )
        self.before_head = make.dense(width, width)
        self.head_drop = make.drop(dropout[2])
        self.head = make.dense(width, classes, jnp.float32)
        self.pad, self.longest = pad, positions

    def __call__(self, x: jax.Array) -> jax.Array:
        """Tokens [B, T], padded with `pad`, to logits [B, classes]."""
        if x.ndim != 2 or not jnp.issubdtype(x.dtype, jnp.integer):
            raise ValueError(
                f"inputs are {list(x.shape)} of {x.dtype}: pass tokens, integers [B, T]"
            )
        check_length(x.shape[1], self.longest)
        mask = x != self.pad
        indices = jnp.arange(x.shape[1])[None]
        h = self.words(x.astype(jnp.int32)) + self.positions(indices)
        h = self.drop(self.norm(h))
        for layer in self.layers:
            h = layer(h, mask)
        first = jax.nn.relu(self.before_head(h[:, 0]))
        return self.head(self.head_drop(first))


@by_name
@checked
def distilbert(
    *,
    layers: Count = 6,
    width: Count = 768,
    heads: Count = 12,
    hidden: Count = 3072,
    vocabulary: Count = 30_522,
    positions: Count = 512,
    dropout: Rates = (0.1, 0.1, 0.2),
    pad: Whole = 0,
    dtype: Any = jnp.float32,
    remat: bool = False,
) -> Callable[..., nnx.Module]:
    """DistilBERT for classification; 66,955,010 parameters for 2 classes.

        tokens [T]  embeddings of tokens + positions, LN     [T, D]
                    layers                                   [T, D]
                    the first position, dense D, ReLU, dense C
        layer:      x -> LN(y + FFN(y)) with y = LN(x + attention(x))

    66,362,880 of the parameters are the encoder's. Inputs are tokens, integers [B, T]
    with T up to `positions`, as returned by `hetjax.data.ag_news`: the first one is
    [CLS], and positions with the token `pad` are masked in attention. FFNs have the
    exact GELU; layer norms have epsilon 1e-12. Weights are normal with standard
    deviation .02; biases are 0.
    - dropout: the rates after embeddings and FFNs, of attention weights, and in the
      head.
    - dtype, remat: as in `resnet50`.

    Source: Sanh et al., 2019, and the published distilbert-base-uncased.
    """
    check_heads(width, heads)
    found = compute_dtype(dtype)

    def build(features: int, classes: int, *, rngs: nnx.Rngs) -> nnx.Module:
        check_length(features, positions)
        make = TransformerLayers(found, rngs, truncate=False)
        return DistilBert(
            make,
            classes,
            (width, heads, hidden),
            layers,
            vocabulary,
            positions,
            dropout,
            pad,
            remat,
        )

    return build


def check_length(length: int, positions: int) -> None:
    """Raise a ValueError if sequences are longer than the model's positions."""
    if length > positions:
        raise ValueError(
            f"the data has sequences of {length} tokens, but the model has "
            f"{positions} positions: raise `positions`, or shorten the sequences"
        )
