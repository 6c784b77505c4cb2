"""Vision transformers (docs/algorithms J: Biased's ViT)."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from hetjax.arguments import Count, Fraction, Positive, checked
from hetjax.models.blocks import (
    Block,
    Image,
    check_features,
    compute_dtype,
    identity,
)
from hetjax.models.transformer import (
    Attention,
    FeedForward,
    TransformerLayers,
    check_heads,
)
from hetjax.recipes import by_name

Grid = tuple[int, int]  # patches down and across


class Size(NamedTuple):
    """The sizes of a transformer's layers."""

    depth: int  # blocks
    width: int
    heads: int
    hidden: int  # units of a block's feed-forward part


SIZES = {
    "tiny": Size(12, 192, 3, 768),
    "small": Size(12, 384, 6, 1536),
    "base": Size(12, 768, 12, 3072),
}


class EncoderBlock(Block):
    """x -> y + MLP(LN(y)) with y = x + attention(LN(x))."""

    def __init__(
        self,
        size: Size,
        epsilon: float,
        dropout: float,
        remat: bool,
        make: TransformerLayers,
    ):
        """On [B, T, D], D = size.width."""
        super().__init__(remat=remat)
        self.norm1 = make.norm(size.width, epsilon)
        self.attention = Attention(size.width, size.heads, make)
        self.norm2 = make.norm(size.width, epsilon)
        self.mlp = FeedForward(size.width, size.hidden, make)
        self.drop: Any = make.drop(dropout) if dropout else identity

    def output(self, x: jax.Array) -> jax.Array:
        """[B, T, D] to [B, T, D]."""
        x = x + self.drop(self.attention(self.norm1(x)))
        return x + self.drop(self.mlp(self.norm2(x)))


class ViT(nnx.Module):
    """The network; its factory is `vit`."""

    def __init__(
        self,
        image: Image,
        classes: int,
        patch: int,
        size: Size,
        dropout: float,
        epsilon: float,
        remat: bool,
        make: TransformerLayers,
    ):
        """For images of this shape, or other ones, [B, H, W, C]."""
        self.image, self.patch = tuple(image), patch
        self.grid: Grid = (image[0] // patch, image[1] // patch)
        self.patches = nnx.Conv(
            image[2],
            size.width,
            (patch, patch),
            patch,
            padding="VALID",
            kernel_init=make.init,
            dtype=make.dtype,
            rngs=make.rngs,
        )
        length = 1 + self.grid[0] * self.grid[1]
        self.cls = nnx.Param(jnp.zeros((1, 1, size.width)))
        self.positions = nnx.Param(
            make.init(make.rngs.params(), (1, length, size.width))
        )
        self.drop: Any = make.drop(dropout) if dropout else identity
        self.blocks = nnx.List(
            [
                EncoderBlock(size, epsilon, dropout, remat, make)
                for _ in range(size.depth)
            ]
        )
        self.norm = make.norm(size.width, epsilon)
        self.head = make.dense(size.width, classes, jnp.float32)

    def __call__(self, x: jax.Array) -> jax.Array:
        """[B, H, W, C] or flat images to logits [B, classes]."""
        x = self.patches(self._images(x))
        batch, height, width, channels = x.shape
        x = jnp.reshape(x, (batch, height * width, channels))
        first = jnp.broadcast_to(self.cls[...], (batch, 1, channels)).astype(x.dtype)
        x = jnp.concatenate([first, x], axis=1)
        positions = interpolate_positions(
            self.positions[...], self.grid, (height, width)
        )
        x = self.drop(x + positions.astype(x.dtype))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x[:, 0]))

    def _images(self, x: jax.Array) -> jax.Array:
        """[B, H, W, C], of whole patches."""
        gray = self.image[2] == 1 and x.ndim == 3
        if x.ndim == 2 or gray and x.shape[1:] == self.image[:2]:
            x = jnp.reshape(x, (x.shape[0], *self.image))
        whole = x.ndim == 4 and not (x.shape[1] % self.patch or x.shape[2] % self.patch)
        if not whole or x.shape[3] != self.image[2]:
            raise ValueError(
                f"inputs of shape {x.shape[1:]} are neither images of {self.image} nor "
                f"of other sizes that are multiples of the patch, {self.patch} pixels"
            )
        return x


def interpolate_positions(positions: jax.Array, old: Grid, new: Grid) -> jax.Array:
    """Return the positions [1, 1 + h w, D] of a grid (h, w), for another grid.

    The class token's position is unchanged; the others are interpolated bicubically
    (Keys' cubic with a = -.5), like an image with D channels.
    """
    if old == new:
        return positions
    width = positions.shape[-1]
    picture = jnp.reshape(positions[:, 1:], (1, *old, width))
    resized = jax.image.resize(picture, (1, *new, width), "cubic")
    flat = jnp.reshape(resized, (1, new[0] * new[1], width))
    return jnp.concatenate([positions[:, :1], flat], axis=1)


@by_name
@checked
def vit(
    *,
    size: Literal["tiny", "small", "base"] | tuple[Count, Count, Count, Count] = "base",
    patch: Count = 16,
    image: Image = (224, 224, 3),
    dropout: Fraction = 0.0,
    epsilon: Positive = 1e-6,
    dtype: Any = jnp.float32,
    remat: bool = False,
) -> Callable[..., nnx.Module]:
    """A vision transformer: ViT-Ti, ViT-S, ViT-B, or one of a custom size.

        [H, W, C]  patches p x p, dense D           [H W / p^2, D]
                   class token, + positions         [1 + H W / p^2, D]
                   blocks, layer norm
                   the class token's position, dense C
        block:     x -> y + MLP(LN(y)) with y = x + attention(LN(x))

                  blocks   D  heads  hidden   parameters (224 pixels, C = 1000)
        "tiny"        12  192      3     768    5,717,416
        "small"       12  384      6    1536   22,050,664
        "base"        12  768     12    3072   86,567,656

    `size` is one of these names or (blocks, D, heads, hidden). MLPs have the exact
    GELU; layer norms have `epsilon`. Weights are normal with standard deviation .02,
    truncated at two deviations; biases and the class token are 0. Height and width of
    `image` must be multiples of `patch`. Images of other sizes, [B, H, W, C], are
    accepted, too: the positions are then interpolated.
    - dropout: the rate after the positions, and after each branch of a block.
    - dtype, remat: as in `resnet50`.

    Sources: Dosovitskiy et al., ICLR 2021; Touvron et al., DeiT, ICML 2021 (Ti, S).
    """
    found = SIZES[size] if isinstance(size, str) else Size(*size)
    check_heads(found.width, found.heads)
    if image[0] % patch or image[1] % patch:
        raise ValueError(
            f"image={image}: must be multiples of the patch, {patch} pixels"
        )
    layers = compute_dtype(dtype)

    def build(features: int, classes: int, *, rngs: nnx.Rngs) -> nnx.Module:
        check_features(features, image)
        make = TransformerLayers(layers, rngs, truncate=True)
        return ViT(image, classes, patch, found, dropout, epsilon, remat, make)

    return build
