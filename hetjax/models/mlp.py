"""Linear models and MLPs: the papers' sparse three-layer network, and a dense one."""

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx

from hetjax import sparse
from hetjax.arguments import Count, checked
from hetjax.output import OutputParam
from hetjax.recipes import by_name

Init = Literal["slide", "hetero"]


@by_name
@checked
def sparse_mlp(
    *, hidden: Count = 128, bias: bool = True, init: Init = "slide"
) -> Callable[..., nnx.Module]:
    """A builder of `SparseMLP` for `hetjax.classification`."""
    return partial(SparseMLP, hidden=hidden, bias=bias, init=init)


@by_name
@checked
def mlp(*, hidden: Count | tuple[Count, ...] = 128) -> Callable[..., nnx.Module]:
    """A builder of `MLP` for `hetjax.classification`, with one or more widths."""
    widths = (hidden,) if isinstance(hidden, int) else hidden
    return partial(MLP, hidden=widths)


@by_name
def linear() -> Callable[..., nnx.Module]:
    """A builder of `Linear` for `hetjax.classification` and `hetjax.regression`.

    A baseline for sparse data: with few examples it is often the most accurate model.
    """

    def build(features: int, classes: int, *, rngs: nnx.Rngs) -> nnx.Module:
        del rngs  # nothing is drawn
        return Linear(features, classes)

    return build


class Linear(nnx.Module):
    """One layer on a sparse or dense input: multinomial logistic regression.

    z = x W + b        W [F, C], b [C], initially zero
    """

    def __init__(self, features: int, classes: int):
        """F features, C classes."""
        self.kernel = sparse.RowParam(jnp.zeros((features, classes)))
        self.bias = nnx.Param(jnp.zeros(classes))

    def __call__(self, x: Any) -> jax.Array:
        """Logits [B, C]; dense inputs are flattened."""
        if isinstance(x, jax.Array):
            x = jnp.reshape(x, (x.shape[0], -1))
        return sparse.matmul(x, self.kernel[...]) + self.bias[...][None]


class SparseMLP(nnx.Module):
    """The model of SLIDE and Adaptive SGD: a sparse or dense input, one hidden layer.

        h = relu(x W_1 + b_1);   z = h W_2^T + b_2        W_1 [F, H], W_2 [C, H]

    Weights and biases are truncated normal with standard deviation
    2 / sqrt(fan_in + fan_out) (init="slide"), or normal with
    sqrt(2 t / (fan_in + fan_out)), t = floor(sqrt(F + H)) + 1, the formula of the
    authors' CPU-GPU-SGD code (init="hetero"); docs/algorithms A.6. Biases are optional.
    """

    def __init__(
        self,
        features: int,
        classes: int,
        *,
        hidden: int = 128,
        bias: bool = True,
        init: Init = "slide",
        rngs: nnx.Rngs,
    ):
        """F features, C classes, H hidden units."""
        steps = int((features + hidden) ** 0.5) + 1

        def draw(shape: tuple[int, ...], fans: int) -> jax.Array:
            if init == "hetero":
                return (2 * steps / fans) ** 0.5 * jax.random.normal(
                    rngs.params(), shape
                )
            unit = jax.random.truncated_normal(rngs.params(), -2.0, 2.0, shape)
            return 2 / fans**0.5 * unit

        fans = features + hidden, hidden + classes
        self.kernel_in = sparse.RowParam(draw((features, hidden), fans[0]))
        self.kernel_out = OutputParam(draw((classes, hidden), fans[1]))
        self.bias_in = nnx.Param(draw((hidden,), fans[0])) if bias else None
        self.bias_out = OutputParam(draw((classes,), fans[1])) if bias else None

    def __call__(self, x: Any) -> jax.Array:
        """Logits [B, C]."""
        h = sparse.matmul(x, self.kernel_in[...])
        if self.bias_in is not None:
            h = h + self.bias_in[...][None]
        z = jax.nn.relu(h) @ self.kernel_out[...].T
        return z if self.bias_out is None else z + self.bias_out[...][None]


class MLP(nnx.Module):
    """Dense layers with ReLU between them; inputs are flattened, He initialization."""

    def __init__(
        self, features: int, classes: int, *, hidden: tuple[int, ...], rngs: nnx.Rngs
    ):
        """`hidden` holds the widths of the layers between inputs and logits."""
        sizes = (features, *hidden, classes)
        he = nnx.initializers.he_normal()
        pairs = itertools.pairwise(sizes)
        self.layers = nnx.List(
            [nnx.Linear(a, b, kernel_init=he, rngs=rngs) for a, b in pairs]
        )

    def __call__(self, x: jax.Array) -> jax.Array:
        """Logits [B, C]."""
        h = jnp.reshape(x, (x.shape[0], -1))
        for layer in self.layers[:-1]:
            h = jax.nn.relu(layer(h))
        return self.layers[-1](h)
