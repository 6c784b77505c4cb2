"""Local updates: a worker's step on each batch.

Factories return the same object for the same settings, so that strategies with equal
updates share their compiled programs.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from hetjax import sparse
from hetjax.arguments import Fraction, NotNegative, checked
from hetjax.local.optimizer_steps import optimizer_step, schedule_free_step, sparse_step
from hetjax.optimizers import (
    Optimizer,
    built,
    check_worker_optimizer,
    is_schedule_free,
)
from hetjax.replica import Replica
from hetjax.traced_settings import is_given, memoized
from hetjax.tree import OptState, Params, PyTree


class LocalUpdate(NamedTuple):
    """A pair of pure functions.

    init(params) -> opt_state
    step(replica, batch, learning_rate, grad_fn) -> (replica, losses [B])

    grad_fn(params, model_state, batch) -> (losses, model_state, grads), where the
    gradients are of the mean loss over the batch's true examples, with a
    `sparse.RowSparseGrad` for each row weight that meets a sparse input. The learning
    rate is data: a new one never recompiles. An update that `provides` a buffer leaves
    the step to a merge that requires it; one may require the buffer "round_start"
    (`hetjax.local.buffers`).
    """

    init: Callable[[Params], OptState]
    step: Callable[..., tuple[Replica, jax.Array]]
    provides: tuple[str, ...] = ()  # buffers of the replica's carry
    requires: tuple[str, ...] = ()


@memoized
def gradient() -> LocalUpdate:
    """Stores the gradient in the buffer "grad_sum" for the merge; params stay."""

    def step(replica, batch, learning_rate, grad_fn):
        del learning_rate  # the merge applies it
        losses, state, grads = grad_fn(replica.params, replica.model_state, batch)
        carry = {**replica.carry, "grad_sum": sparse.dense(grads)}
        return replica._replace(model_state=state, carry=carry), losses

    return LocalUpdate(_no_state, step, provides=("grad_sum",))


def _no_state(params: Params) -> OptState:
    del params
    return ()


@checked
def sgd(
    *,
    momentum: Fraction = 0.0,
    nesterov: bool = False,
    weight_decay: NotNegative = 0.0,
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
    def step(replica, batch, learning_rate, grad_fn):
        losses, state, grads = grad_fn(replica.params, replica.model_state, batch)
        params = sparse.subtract(replica.params, grads, learning_rate)
        return replica._replace(params=params, model_state=state), losses

    return LocalUpdate(_no_state, step)


def from_optax(optimizer: Optimizer, *, sparse_updates: bool = False) -> LocalUpdate:
    """A step of any optax optimizer: w <- w + eta update(g).

    eta is the strategy's learning rate. `optimizer` is a function of the learning rate
    such as `optax.adam`, which is called with 1. An optimizer with a learning rate of
    its own, such as `optax.adam(1e-3)`, trains at that rate with eta = 1, and at the
    product of both otherwise.

    A row weight with a sparse input is updated as a whole, as in optax. With
    `sparse_updates`, only the rows that the batch touches are updated, in the weight
    and in every optimizer state of its shape; the other rows stay (their momentum does
    not decay meanwhile, but step counters advance for all rows).

    An optimizer that takes extra arguments gets the batch's mean loss as `value`, its
    gradient as `grad`, and the loss as a function of the parameters as `value_fn` and
    `obj_fn`: reduce_on_plateau, polyak_sgd, lbfgs. optax.contrib.schedule_free keeps
    its evaluation parameters x in the replica, so that they are merged, evaluated and
    checkpointed; eta scales the moves of z. Other requirements raise a ValueError that
    names them.
    """
    tx = built(optimizer, "optimizer=")
    check_worker_optimizer(tx, "optimizer=", sparse_updates=sparse_updates)
    return _from_optax(tx, sparse_updates)


def _of_optax(tx: optax.GradientTransformation, sparse_updates: bool) -> LocalUpdate:
    def step(replica, batch, learning_rate, grad_fn):
        one_step = sparse_step if sparse_updates else optimizer_step
        if is_schedule_free(replica.opt_state):
            one_step = schedule_free_step
        return one_step(tx, replica, batch, learning_rate, grad_fn)

    return LocalUpdate(tx.init, step)


_from_optax = memoized(_of_optax)


@checked
def heavy_ball(*, momentum: Fraction, weight_decay: NotNegative = 0.0) -> LocalUpdate:
    """SGD with momentum in Polyak's original form, as in CROSSBOW's learners.

        v <- mu v - eta (g + wd w);   w <- w + v

    Gradients in v keep the learning rate of their own step, so this equals `sgd` until
    the learning rate changes. Source: docs/algorithms C.1, K.1.
    """
    return _heavy_ball(momentum, weight_decay)


@memoized
def _heavy_ball(momentum: float, weight_decay: float) -> LocalUpdate:
    def step(replica, batch, learning_rate, grad_fn):
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

    return LocalUpdate(_zeros, step)


def _zeros(params: Params) -> PyTree:
    return jax.tree.map(jnp.zeros_like, params)


@checked
def eamsgd_nesterov(
    *, momentum: Fraction, weight_decay: NotNegative = 0.0
) -> LocalUpdate:
    """Nesterov's step in the form of EAMSGD, with decay at the look-ahead point.

        v <- delta v;   x <- x + v;   g at x (+ wd x)
        x <- x - eta g;   v <- v - eta g            delta is `momentum`

    This equals v <- delta v - eta g(x + delta v); x <- x + v. Source:
    docs/algorithms G.3.
    """
    return _eamsgd_nesterov(momentum, weight_decay)


@memoized
def _eamsgd_nesterov(momentum: float, weight_decay: float) -> LocalUpdate:
    def step(replica, batch, learning_rate, grad_fn):
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

    return LocalUpdate(_zeros, step)


@checked
@memoized
def proximal(*, proximal: NotNegative) -> LocalUpdate:
    """SGD with a proximal term that pulls params back to the round's start (FedProx).

        w <- w - eta (g + mu (w - w_start))

    mu is `proximal`. Source: FedProx (Li et al. 2020); docs/algorithms L.12; also the
    proximal form of FedNova, I.1.
    """

    def step(replica, batch, learning_rate, grad_fn):
        losses, state, grads = grad_fn(replica.params, replica.model_state, batch)
        params = jax.tree.map(
            lambda w, g, s: (w - learning_rate * (g + proximal * (w - s))).astype(
                w.dtype
            ),
            replica.params,
            sparse.dense(grads),
            replica.carry["round_start"],
        )
        return replica._replace(params=params, model_state=state), losses

    return LocalUpdate(_no_state, step, requires=("round_start",))


@memoized
def scaffold() -> LocalUpdate:
    """SGD whose gradients are corrected by control variates (SCAFFOLD).

        y <- y - eta (grad - c_i + c)

    c - c_i is the buffer "shift", which `merge.scaffold` sets: zero at first, and the
    same for a whole round. Source: SCAFFOLD (Karimireddy et al. 2020); docs/algorithms
    L.12.
    """

    def step(replica, batch, learning_rate, grad_fn):
        losses, state, grads = grad_fn(replica.params, replica.model_state, batch)
        params = jax.tree.map(
            lambda y, g, s: (y - learning_rate * (g + s)).astype(y.dtype),
            replica.params,
            sparse.dense(grads),
            replica.carry["shift"],
        )
        return replica._replace(params=params, model_state=state), losses

    return LocalUpdate(_no_state, step, requires=("shift",))


class DecayState(NamedTuple):
    """The steps of one worker, and the state of the local update that decays."""

    step: jax.Array  # int32 []
    inner: OptState


@checked
@memoized
def with_lr_decay(
    local_update: LocalUpdate, decay: NotNegative, power: NotNegative = 1.0
) -> LocalUpdate:
    """The local update with the learning rate eta_t = eta / (1 + t decay) ** power.

    t counts the steps of this worker only; a schedule counts those of all workers.
    """

    def init(params):
        return DecayState(jnp.zeros((), jnp.int32), local_update.init(params))

    def step(replica, batch, learning_rate, grad_fn):
        t, inner = replica.opt_state
        eta_t = learning_rate / (1 + decay * t) ** power
        replica = replica._replace(opt_state=inner)
        replica, losses = local_update.step(replica, batch, eta_t, grad_fn)
        return replica._replace(opt_state=DecayState(t + 1, replica.opt_state)), losses

    return local_update._replace(init=init, step=step)
