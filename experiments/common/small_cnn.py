"""A small CNN whose convolutions are products, and the cut of CIFAR-10 that it learns.

On a CPU XLA's convolutions are slow inside a loop, so that a run with them is not
compiled as a whole. Products of shifted images give the same numbers, and are fast.
"""

from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from hetjax.arguments import Count, checked
from hetjax.data import Dataset, Split
from hetjax.recipes import by_name

KERNEL = 3


class SmallCNN(nnx.Module):
    """Two convolutions and one dense layer on images [B, S, S, C].

        conv 3x3 w_1, ReLU, max pool 2;  conv 3x3 w_2, ReLU, max pool 2;  dense

    Convolutions are padded. Initial weights are He's.
    """

    def __init__(self, classes: int, *, shape: tuple, widths: tuple, rngs: nnx.Rngs):
        """`shape` is that of an image, `widths` those of the convolutions."""
        self.shape = shape

        def matrix(a: int, b: int) -> nnx.Param:
            drawn = jax.random.normal(rngs.params(), (a, b))
            return nnx.Param((2 / a) ** 0.5 * drawn)

        channels = (shape[2], *widths)
        self.kernels = nnx.List(
            [
                matrix(KERNEL**2 * a, b)
                for a, b in zip(channels, channels[1:], strict=False)
            ]
        )
        self.biases = nnx.List([nnx.Param(jnp.zeros(b)) for b in widths])
        side = shape[0] // 2 ** len(widths)
        self.out = matrix(side * side * widths[-1], classes)
        self.out_bias = nnx.Param(jnp.zeros(classes))

    def __call__(self, x: jax.Array) -> jax.Array:
        """Images to logits [B, classes]."""
        h = jnp.reshape(x, (x.shape[0], *self.shape))
        for kernel, bias in zip(self.kernels, self.biases, strict=True):
            h = _patches(h) @ kernel[...] + bias[...][None, None, None]
            h = jax.nn.relu(h)
            rows, columns = h.shape[1] // 2, h.shape[2] // 2
            h = jnp.reshape(h, (h.shape[0], rows, 2, columns, 2, h.shape[3]))
            h = h.max(axis=(2, 4))
        h = jnp.reshape(h, (h.shape[0], -1))
        return h @ self.out[...] + self.out_bias[...][None]


def _patches(h: jax.Array) -> jax.Array:
    """Each pixel's neighbors [B, S, S, 9 C], with zeros around the image."""
    rows, columns = h.shape[1:3]
    framed = jnp.pad(h, ((0, 0), (1, 1), (1, 1), (0, 0)))
    shifted = [
        framed[:, i : i + rows, j : j + columns]
        for i in range(KERNEL)
        for j in range(KERNEL)
    ]
    return jnp.concatenate(shifted, axis=-1)


@by_name
@checked
def small_cnn(
    *,
    image: tuple[Count, Count, Count] = (16, 16, 3),
    widths: tuple[Count, ...] = (8, 16),
) -> Callable[..., nnx.Module]:
    """A builder of `SmallCNN` for `hetjax.classification`."""

    def build(features: int, classes: int, *, rngs: nnx.Rngs) -> nnx.Module:
        del features  # those of `image`
        return SmallCNN(classes, shape=image, widths=widths, rngs=rngs)

    return build


def cut(data: Dataset, *, train: int, test: int) -> Dataset:
    """Images from all over each split, at half the resolution, with zero mean.

    Pixels are divided by 255 unless they are floats; each becomes the mean of four.
    """

    def smaller(split: Split, number: int) -> Split:
        rows = np.linspace(0, len(split) - 1, min(number, len(split)))
        few = split.take(rows.astype(np.int64))
        x = few.x / 255 if few.x.dtype == np.uint8 else few.x
        n, rows, columns, channels = x.shape
        pairs = x.reshape(n, rows // 2, 2, columns // 2, 2, channels)
        return Split((pairs.mean((2, 4)) * 4 - 2).astype(np.float32), few.y)

    small = {"train": smaller(data.train, train), "test": smaller(data.test, test)}
    return replace(data, **small, name=f"{data.name} (cut)")
