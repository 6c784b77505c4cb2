"""A server's steps on its workers' models or gradients, as functions on pytrees.

Arguments and promises are as in `hetjax.merge.formulas.moves`.
"""

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from hetjax import tree
from hetjax.merge.formulas.moves import Trees, plain_mean, weighted_move
from hetjax.merge.formulas.weights import Numbers, floats, presence_mask
from hetjax.merge.group import as_group
from hetjax.tree import PyTree


def nova_step(
    center: PyTree,
    buffer: PyTree,
    trees: Trees,
    weights: Numbers,
    *,
    learning_rate: ArrayLike,
    server_momentum: ArrayLike,
    present: ArrayLike | None = None,
) -> tuple[PyTree, PyTree]:
    """(x, buf): FedNova's step with server momentum gmf, at learning rate eta.

        x' = x + sum_i alpha_i (x^i - x)            alpha_i: `nova_weights`
        buf <- gmf buf + (x - x') / eta;   x <- x - eta buf

    Without server momentum the step is `moved`. With no member present, the buffer
    stays. Source: docs/algorithms I.1.
    """
    weights = floats(weights)
    move = weighted_move(center, trees, weights)
    merges = jnp.any(presence_mask(weights, present))
    buffer = tree.map_floats(
        lambda b, m: jnp.where(
            merges,
            server_momentum * b - m / jnp.where(merges, learning_rate, 1.0),
            b,
        ),
        buffer,
        move,
    )
    center = tree.map_floats(lambda x, b: x - learning_rate * b, center, buffer)
    return center, buffer


def gradient_sum_step(
    center: PyTree,
    grads: Trees,
    learning_rate: ArrayLike,
    *,
    present: ArrayLike | None = None,
) -> tuple[PyTree, PyTree]:
    """(x, G): one step on the sum of all gradients, and that sum.

        G = sum_n G_n;   x <- x - gamma G

    gamma is `learning_rate`: gamma_1 / n for an average over n learners. Source:
    HierSGD, Algorithms 1 and 2.
    """
    group = as_group(grads)
    ones = jnp.where(presence_mask(jnp.ones(group.size), present), 1.0, 0.0)
    total = group.total(lambda g: g, ones)
    stepped = tree.map_floats(lambda x, g: x - learning_rate * g, center, total)
    return stepped, total


def optimizer_step(
    optimizer: optax.GradientTransformation,
    center: PyTree,
    opt_state: PyTree,
    grads: PyTree,
    learning_rate: ArrayLike,
) -> tuple[PyTree, PyTree]:
    """(p, opt_state): a server's step on the gradients that workers pushed.

        p <- p + gamma update(g)          gamma is `learning_rate`

    An optimizer with another learning rate than 1 steps at the product. Source:
    Downpour SGD (Dean et al. 2012); synchronous SGD, where g is the mean gradient.
    """
    updates, opt_state = optimizer.update(grads, opt_state, center)
    center = jax.tree.map(lambda p, u: p + learning_rate * u, center, updates)
    return center, opt_state


def magma_steps(
    center: PyTree,
    velocity: PyTree,
    grad_sum: PyTree,
    *,
    num_steps: ArrayLike,
    num_slaves: ArrayLike,
    learning_rate: ArrayLike,
    momentum: ArrayLike = 0.99,
) -> tuple[PyTree, PyTree]:
    """(w, z) after n steps of MagmaDNN's master at once, on a constant gradient.

        z <- beta z + (1 - beta) g^;   w <- w - alpha z           g^ = g / num_slaves

    n such steps with q = beta (1 - beta^n) / (1 - beta) are

        w <- w - alpha (q z + (n - q) g^);   z <- beta^n z + (1 - beta^n) g^

    g is the sum of the slaves' gradients, beta is `momentum`. Source: MagmaDNN,
    Algorithms 2 and 3; docs/algorithms F.3.
    """
    n, beta = num_steps, momentum
    decay = beta**n
    q = beta * (1 - decay) / (1 - beta)
    center = jax.tree.map(
        lambda w, z, g: w - learning_rate * (q * z + (n - q) * g / num_slaves),
        center,
        velocity,
        grad_sum,
    )
    velocity = jax.tree.map(
        lambda z, g: decay * z + (1 - decay) * g / num_slaves, velocity, grad_sum
    )
    return center, velocity


def pair_average(
    params: PyTree,
    partner: PyTree,
    grads: PyTree | None = None,
    learning_rate: ArrayLike = 0.0,
) -> tuple[PyTree, PyTree]:
    """(x_i, x_j): two partners' models become their mean, then i takes its step.

        x_i, x_j <- (x_i + x_j) / 2;   x_i <- x_i - gamma g_i

    The mean is exact where the models are equal. Source: AD-PSGD (Lian et al. 2018).
    """
    mean = plain_mean((params, partner))
    stepped = mean if grads is None else descent(mean, grads, learning_rate)
    return tree.cast_like(stepped, params), tree.cast_like(mean, partner)


def descent(params: PyTree, grads: PyTree, learning_rate: ArrayLike) -> PyTree:
    """x - gamma g."""
    return tree.map_floats(lambda x, g: x - learning_rate * g, params, grads)
