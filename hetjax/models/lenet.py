"""LeNet, as CROSSBOW trains it on MNIST (docs/algorithms J)."""

from collections.abc import Callable

import jax
from flax import nnx

from hetjax.models.blocks import (
    Image,
    Layer,
    check_rates,
    check_widths,
    flatten,
    image_model,
    max_pool,
    num_positions,
)
from hetjax.recipes import by_name


@by_name
def lenet(
    *,
    image: Image = (28, 28, 1),
    widths: tuple[int, int] = (32, 64),
    hidden: int = 1024,
    dropout: float = 0.4,
) -> Callable[..., nnx.Module]:
    """CROSSBOW's LeNet: two convolutions, two dense layers; 1,111,946 parameters.

        [28, 28, 1]  conv 5x5 32, ReLU, max pool 2   [12, 12, 32]
                     conv 5x5 64, ReLU, max pool 2   [4, 4, 64]
                     dense 1024, ReLU, dropout .4, dense C

    Convolutions are unpadded. Weights are normal with standard deviation .1, truncated
    at two deviations; biases are 0 in the first convolution, .1 elsewhere. The LeNet of
    the TensorFlow benchmarks (padded, 512 hidden units) is a different network.

    Source: Koliousis et al., CROSSBOW, VLDB 2019, and its LeNet.java.
    """
    check_rates(dropout)
    check_widths(*widths, hidden)
    positions = num_positions(image, lambda n: ((n - 4) // 2 - 4) // 2)
    weights = nnx.initializers.truncated_normal(0.1)  # at +-2 deviations

    def layers(classes: int, rngs: nnx.Rngs) -> list[Layer]:
        def conv(a: int, b: int, bias: float) -> nnx.Conv:
            return nnx.Conv(
                a,
                b,
                (5, 5),
                padding="VALID",
                kernel_init=weights,
                bias_init=nnx.initializers.constant(bias),
                rngs=rngs,
            )

        def dense(a: int, b: int) -> nnx.Linear:
            tenth = nnx.initializers.constant(0.1)
            return nnx.Linear(a, b, kernel_init=weights, bias_init=tenth, rngs=rngs)

        return [
            conv(image[2], widths[0], 0.0),
            jax.nn.relu,
            max_pool,
            conv(*widths, 0.1),
            jax.nn.relu,
            max_pool,
            flatten,
            dense(positions * widths[1], hidden),
            jax.nn.relu,
            nnx.Dropout(dropout, rngs=rngs),
            dense(hidden, classes),
        ]

    return image_model(image, layers)
