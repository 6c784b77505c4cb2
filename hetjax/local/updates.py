"""Local updates: a worker's step on each batch.

A local update is built with learning rate 1 and scales its steps by the learning rate
that it is passed. The learning rate is data: a new one never recompiles. Factories
return the same object for the same settings, so that strategies with equal updates
share their compiled programs.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from hetjax import optimizer_needs, sparse
from hetjax.local.sparse_rows import dense_update, sparse_update
from hetjax.optimizer_needs import check_worker_optimizer, is_schedule_free
from hetjax.replica import Replica
from hetjax.traced_settings import is_given, memoized
from hetjax.tree import OptState, Params
from hetjax.unit_learning_rate import check_unit_rate


class LocalUpdate(NamedTuple):
    """A pair of pure functions.

    init(params) -> opt_state
    step(replica, batch, learning_rate, grad_fn) -> (replica, losses [B])

    grad_fn(params, model_state, batch) -> (losses, model_state, grads), where the
    gradients are of the mean loss over the batch's true examples, with a
    `sparse.RowSparseGrad` for each row weight that meets a sparse input. An update that
    `provides` a buffer leaves the step to a merge that requires it. An update may
    require the buffer "round_start", the parameters that the worker last took. For
    buffers see `hetjax.local.buffers`.
    """

    init: Callable[[Params], OptState]
    step: Callable[..., tuple[Replica, jax.Array]]
    provides: tuple[str, ...] = ()  # buffers of the replica's carry
    requires: tuple[str, ...] = ()


@memoized
def gradient() -> LocalUpdate:
    """Stores the gradient in the buffer "grad_sum" for the merge; params stay."""

    def step(
        replica: Replica, batch: Any, learning_rate: jax.Array, grad_fn: Callable
    ) -> tuple[Replica, jax.Array]:
        del learning_rate  # the merge applies it
        losses, state, grads = grad_fn(replica.params, replica.model_state, batch)
        carry = {**replica.carry, "grad_sum": sparse.dense(grads)}
        return replica._replace(model_state=state, carry=carry), losses

    return LocalUpdate(lambda params: (), step, provides=("grad_sum",))


def sgd(
    *,
    momentum: float = 0.0,
    nesterov: bool = False,
    weight_decay: float = 0.0,
    sparse_updates: bool = False,
) -> LocalUpdate:
    """Stochastic gradient descent, w <- w - eta (g + wd w), or with momentum

        v <- mu v + g + wd w;   w <- w - eta v      (v - look-ahead if `nesterov`)

    Plain SGD subtracts row gradients from their rows, exactly. Momentum and decay
    change every row at each step or, with `sparse_updates`, only the rows that the
    batch touches.
    """
    if nesterov and not is_given(momentum):
        raise ValueError(
            "nesterov=True looks ahead along the momentum: pass momentum as well"
        )
    if not is_given(momentum) and not is_given(weight_decay):
        return _plain_sgd()
    return _optax_sgd(momentum, nesterov, weight_decay, sparse_updates)


# Memoized functions take positional arguments, since lru_cache would distinguish
# sgd(momentum=0.9) from sgd(momentum=0.9, sparse_updates=False).


@memoized
def _optax_sgd(
    momentum: float, nesterov: bool, weight_decay: float, sparse_updates: bool
) -> LocalUpdate:
    buffer = momentum if is_given(momentum) else None
    tx = optax.sgd(1.0, momentum=buffer, nesterov=nesterov)
    decay = optax.add_decayed_weights(weight_decay)
    whole = optax.chain(decay, tx) if is_given(weight_decay) else tx
    return _of_optax(whole, sparse_updates)


@memoized
def _plain_sgd() -> LocalUpdate:
    def step(
        replica: Replica, batch: Any, learning_rate: jax.Array, grad_fn: Callable
    ) -> tuple[Replica, jax.Array]:
        losses, state, grads = grad_fn(replica.params, replica.model_state, batch)
        params = sparse.subtract(replica.params, grads, learning_rate)
        return replica._replace(params=params, model_state=state), losses

    return LocalUpdate(lambda params: (), step)


def from_optax(
    tx: optax.GradientTransformation,
    *,
    sparse_updates: bool = False,
    own_rate: bool = False,
) -> LocalUpdate:
    """A step of any optax optimizer built with learning rate 1: w <- w + eta update(g).

    eta is the strategy's learning rate. An optimizer built with a learning rate other
    than 1 raises a ValueError, since it would train at the product of both; with
    `own_rate` that is allowed. A row weight with a sparse input is updated as a whole,
    as in optax. With `sparse_updates`, only the rows that the batch touches are
    updated, in the weight and in every optimizer state of its shape; the other rows
    stay (their momentum does not decay meanwhile, but step counters advance for all
    rows).

    An optimizer that takes extra arguments gets the batch's mean loss as `value`, its
    gradient as `grad`, and the loss as a function of the parameters as `value_fn` and
    `obj_fn`: reduce_on_plateau, polyak_sgd, lbfgs. optax.contrib.schedule_free keeps
    its evaluation parameters x in the replica, so that they are merged, evaluated and
    checkpointed; eta scales the moves of z. Other requirements raise a ValueError that
    names them.
    """
    check_worker_optimizer(tx, "from_optax(tx)", sparse_updates=sparse_updates)
    if not own_rate:
        check_unit_rate(tx, "from_optax(tx)")
    return _from_optax(tx, sparse_updates)


def _of_optax(tx: optax.GradientTransformation, sparse_updates: bool) -> LocalUpdate:
    if is_schedule_free(tx):
        return LocalUpdate(tx.init, partial(_schedule_free_step, tx))
    update = sparse_update if sparse_updates else dense_update

    def step(
        replica: Replica, batch: Any, learning_rate: jax.Array, grad_fn: Callable
    ) -> tuple[Replica, jax.Array]:
        losses, state, grads = grad_fn(replica.params, replica.model_state, batch)
        extra_args = _loss_args(losses, replica, batch, grad_fn)
        params, opt = update(
            tx, grads, replica.opt_state, replica.params, learning_rate, extra_args
        )
        new = replica._replace(params=params, opt_state=opt, model_state=state)
        return new, losses

    return LocalUpdate(tx.init, step)


_from_optax = memoized(_of_optax)


def _loss_args(
    losses: jax.Array, replica: Replica, batch: Any, grad_fn: Callable
) -> dict[str, Any]:
    """The batch's mean loss as extra arguments: as a value and as a function."""

    def mean(losses: jax.Array) -> jax.Array:
        if not hasattr(batch, "weight"):  # a custom batch
            return jnp.mean(losses)
        return jnp.sum(losses * batch.weight) / batch.count

    look = getattr(grad_fn, "unwatched", grad_fn)

    def value_fn(params: Params) -> jax.Array:
        return mean(look(params, replica.model_state, batch)[0])

    return {"value": mean(losses), "value_fn": value_fn}


def _schedule_free_step(
    tx: optax.GradientTransformation,
    replica: Replica,
    batch: Any,
    learning_rate: jax.Array,
    grad_fn: Callable,
) -> tuple[Replica, jax.Array]:
    """optax.contrib.schedule_free, whose parameters are y, on a replica of its x.

        y = b1 x + (1 - b1) z;   g at y
        z <- z + eta update(g);   x <- (1 - c) x + c z

    `tx` computes z at eta = 1, and c from its sum of weights.
    """
    x, old = replica.params, replica.opt_state
    y = jax.tree.map(
        lambda x, z: (old.b1 * x + (1 - old.b1) * z).astype(x.dtype), x, old.z
    )
    at_y = replica._replace(params=y)
    losses, state, grads = grad_fn(y, replica.model_state, batch)
    extra_args = _loss_args(losses, at_y, batch, grad_fn)
    _, new = optimizer_needs.update(tx, sparse.dense(grads), old, y, extra_args)
    total = new.weight_sum
    c = jnp.where(total > 0, (total - old.weight_sum) / total, 0.0)
    z = jax.tree.map(
        lambda a, b: (a + learning_rate * (b - a)).astype(a.dtype), old.z, new.z
    )
    x = jax.tree.map(lambda x, z: (x + c * (z - x)).astype(x.dtype), x, z)
    new = new._replace(z=z)
    return replica._replace(params=x, opt_state=new, model_state=state), losses


def heavy_ball(*, momentum: float, weight_decay: float = 0.0) -> LocalUpdate:
    """SGD with momentum in Polyak's original form, as in CROSSBOW's learners.

        v <- mu v - eta (g + wd w);   w <- w + v

    Gradients in v keep the learning rate of their own step, so this equals `sgd` until
    the learning rate changes. Source: docs/algorithms C.1, K.1.
    """
    return _heavy_ball(momentum, weight_decay)


@memoized
def _heavy_ball(momentum: float, weight_decay: float) -> LocalUpdate:
    def step(
        replica: Replica, batch: Any, learning_rate: jax.Array, grad_fn: Callable
    ) -> tuple[Replica, jax.Array]:
        losses, state, grads = grad_fn(replica.params, replica.model_state, batch)
        v = jax.tree.map(
            lambda v, g, w: (
                momentum * v - learning_rate * (g + weight_decay * w)
            ).astype(v.dtype),
            replica.opt_state,
            sparse.dense(grads),
            replica.params,
        )
        params = jax.tree.map(jnp.add, replica.params, v)
        new = replica._replace(params=params, opt_state=v, model_state=state)
        return new, losses

    return LocalUpdate(lambda params: jax.tree.map(jnp.zeros_like, params), step)


def eamsgd_nesterov(*, momentum: float, weight_decay: float = 0.0) -> LocalUpdate:
    """Nesterov's step in the form of EAMSGD, with decay at the look-ahead point.

        v <- delta v;   x <- x + v;   g at x (+ wd x)
        x <- x - eta g;   v <- v - eta g            delta is `momentum`

    This equals v <- delta v - eta g(x + delta v); x <- x + v. Source:
    docs/algorithms G.3.
    """
    return _eamsgd_nesterov(momentum, weight_decay)


@memoized
def _eamsgd_nesterov(momentum: float, weight_decay: float) -> LocalUpdate:
    def step(
        replica: Replica, batch: Any, learning_rate: jax.Array, grad_fn: Callable
    ) -> tuple[Replica, jax.Array]:
        v = jax.tree.map(lambda v: momentum * v, replica.opt_state)
        x = jax.tree.map(jnp.add, replica.params, v)
        losses, state, grads = grad_fn(x, replica.model_state, batch)
        g = sparse.dense(grads)
        g = jax.tree.map(lambda g, x: learning_rate * (g + weight_decay * x), g, x)
        params, v = (
            jax.tree.map(lambda a, g: (a - g).astype(a.dtype), tree, g)
            for tree in (x, v)
        )
        new = replica._replace(params=params, opt_state=v, model_state=state)
        return new, losses

    return LocalUpdate(lambda params: jax.tree.map(jnp.zeros_like, params), step)


@memoized
def proximal(*, proximal: float) -> LocalUpdate:
    """SGD with a proximal term that pulls params back to the round's start (FedProx).

        w <- w - eta (g + mu (w - w_start))

    mu is `proximal`. Source: docs/algorithms I.1 (the proximal form of FedNova).
    """

    def step(
        replica: Replica, batch: Any, learning_rate: jax.Array, grad_fn: Callable
    ) -> tuple[Replica, jax.Array]:
        losses, state, grads = grad_fn(replica.params, replica.model_state, batch)
        pull, start = proximal, replica.carry["round_start"]
        params = jax.tree.map(
            lambda w, g, s: (w - learning_rate * (g + pull * (w - s))).astype(w.dtype),
            replica.params,
            sparse.dense(grads),
            start,
        )
        return replica._replace(params=params, model_state=state), losses

    return LocalUpdate(lambda params: (), step, requires=("round_start",))
