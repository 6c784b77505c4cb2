"""What a worker does with a batch between two reports: the local rules.

A rule is built with rate 1 and scales its updates by the rate it is given, so that a
rate is data and never a recompilation. Factories return the same object for the same
settings: strategies with equal rules share their compiled programs.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from hetjax import sparse
from hetjax.local.rows import check_rows, dense_update, lazy_update
from hetjax.replica import Replica


class LocalRule(NamedTuple):
    """A pair of pure functions.

    init(params) -> opt_state
    step(replica, batch, rate, grad_fn) -> (replica, losses [B])

    grad_fn(params, model_state, batch) -> (losses, model_state, grads), where the
    gradients are of the mean loss over the batch's true examples, with a
    `sparse.RowGradient` for each row weight that meets a sparse input. A rule that
    `fills` a slot leaves the step to a merge that needs it; what it `needs` (only
    "start") a merge must keep for it. Slots: see `hetjax.local.slots`.
    """

    init: Callable[[Any], Any]
    step: Callable[..., tuple[Replica, jax.Array]]
    fills: tuple[str, ...] = ()  # slots of the replica's carry
    needs: tuple[str, ...] = ()


@lru_cache
def gradient() -> LocalRule:
    """One gradient, kept in the slot "gradients" for the merge; params stay."""

    def step(
        replica: Replica, batch: Any, rate: jax.Array, grad_fn: Callable
    ) -> tuple[Replica, jax.Array]:
        del rate  # the merge applies it
        losses, state, grads = grad_fn(replica.params, replica.model_state, batch)
        carry = {**replica.carry, "gradients": sparse.dense(grads)}
        return replica._replace(model_state=state, carry=carry), losses

    return LocalRule(lambda params: (), step, fills=("gradients",))


def sgd(
    *,
    momentum: float = 0.0,
    nesterov: bool = False,
    weight_decay: float = 0.0,
    rows: str = "dense",
) -> LocalRule:
    """Stochastic gradient descent, w <- w - eta (g + wd w), or with momentum

        v <- mu v + g + wd w;   w <- w - eta v      (v - look-ahead if `nesterov`)

    Plain SGD adds row gradients into their rows, exactly; momentum and decay move
    every row each step ("dense") or, with rows="lazy", the batch's rows only.
    """
    check_rows(rows)
    if nesterov and not momentum:
        raise ValueError("nesterov=True looks ahead along the momentum: give one")
    if not momentum and not weight_decay:
        return _plain_sgd()
    return _optax_sgd(momentum, nesterov, weight_decay, rows)


# The cached functions take positions: lru_cache tells sgd(momentum=0.9) from
# sgd(momentum=0.9, rows="dense").


@lru_cache
def _optax_sgd(
    momentum: float, nesterov: bool, weight_decay: float, rows: str
) -> LocalRule:
    tx = optax.sgd(1.0, momentum=momentum or None, nesterov=nesterov)
    decay = optax.add_decayed_weights(weight_decay)
    return _optimizer(optax.chain(decay, tx) if weight_decay else tx, rows)


@lru_cache
def _plain_sgd() -> LocalRule:
    def step(
        replica: Replica, batch: Any, rate: jax.Array, grad_fn: Callable
    ) -> tuple[Replica, jax.Array]:
        losses, state, grads = grad_fn(replica.params, replica.model_state, batch)
        params = sparse.subtract(replica.params, grads, rate)
        return replica._replace(params=params, model_state=state), losses

    return LocalRule(lambda params: (), step)


def optimizer(tx: optax.GradientTransformation, *, rows: str = "dense") -> LocalRule:
    """A step of any optax optimizer built with rate 1: w <- w + eta update(g).

    `rows` says what happens to a row weight under a sparse input: "dense" updates all
    of it, as optax would; "lazy" takes the rows that the batch touches, of the weight
    and of every optimizer state shaped like it, and leaves the others alone (their
    momentum does not decay meanwhile; counters of steps go on for all).
    """
    check_rows(rows)
    return _optimizer(tx, rows)


@lru_cache
def _optimizer(tx: optax.GradientTransformation, rows: str) -> LocalRule:
    update = lazy_update if rows == "lazy" else dense_update

    def step(
        replica: Replica, batch: Any, rate: jax.Array, grad_fn: Callable
    ) -> tuple[Replica, jax.Array]:
        losses, state, grads = grad_fn(replica.params, replica.model_state, batch)
        params, opt = update(tx, grads, replica.opt_state, replica.params, rate)
        new = replica._replace(params=params, opt_state=opt, model_state=state)
        return new, losses

    return LocalRule(tx.init, step)


def polyak(*, momentum: float, weight_decay: float = 0.0) -> LocalRule:
    """SGD with momentum in Polyak's own form, that of CROSSBOW's learners.

        v <- mu v - eta (g + wd w);   w <- w + v

    What is in v keeps the rate that it was made at: the same as `sgd` until the rate
    changes. Source: ALGORITHMS C.1, K.1.
    """
    return _polyak(momentum, weight_decay)


@lru_cache
def _polyak(momentum: float, weight_decay: float) -> LocalRule:
    def step(
        replica: Replica, batch: Any, rate: jax.Array, grad_fn: Callable
    ) -> tuple[Replica, jax.Array]:
        losses, state, grads = grad_fn(replica.params, replica.model_state, batch)
        v = jax.tree.map(
            lambda v, g, w: (momentum * v - rate * (g + weight_decay * w)).astype(
                v.dtype
            ),
            replica.opt_state,
            sparse.dense(grads),
            replica.params,
        )
        params = jax.tree.map(jnp.add, replica.params, v)
        new = replica._replace(params=params, opt_state=v, model_state=state)
        return new, losses

    return LocalRule(lambda params: jax.tree.map(jnp.zeros_like, params), step)


def look_ahead(*, momentum: float, weight_decay: float = 0.0) -> LocalRule:
    """Nesterov's step in the form of EAMSGD, with decay at the look-ahead point.

        v <- delta v;   x <- x + v;   g at x (+ wd x)
        x <- x - eta g;   v <- v - eta g            delta is `momentum`

    The same as v <- delta v - eta g(x + delta v); x <- x + v. Source: ALGORITHMS G.3.
    """
    return _look_ahead(momentum, weight_decay)


@lru_cache
def _look_ahead(momentum: float, weight_decay: float) -> LocalRule:
    def step(
        replica: Replica, batch: Any, rate: jax.Array, grad_fn: Callable
    ) -> tuple[Replica, jax.Array]:
        v = jax.tree.map(lambda v: momentum * v, replica.opt_state)
        x = jax.tree.map(jnp.add, replica.params, v)
        losses, state, grads = grad_fn(x, replica.model_state, batch)
        g = sparse.dense(grads)
        g = jax.tree.map(lambda g, x: rate * (g + weight_decay * x), g, x)
        params, v = (
            jax.tree.map(lambda a, g: (a - g).astype(a.dtype), tree, g)
            for tree in (x, v)
        )
        new = replica._replace(params=params, opt_state=v, model_state=state)
        return new, losses

    return LocalRule(lambda params: jax.tree.map(jnp.zeros_like, params), step)


@lru_cache
def proximal(*, mu: float) -> LocalRule:
    """SGD that is held back to where the round began (FedProx).

        w <- w - eta (g + mu (w - w_start))

    Source: ALGORITHMS I (the proximal form of FedNova).
    """

    def step(
        replica: Replica, batch: Any, rate: jax.Array, grad_fn: Callable
    ) -> tuple[Replica, jax.Array]:
        losses, state, grads = grad_fn(replica.params, replica.model_state, batch)
        params = jax.tree.map(
            lambda w, g, s: (w - rate * (g + mu * (w - s))).astype(w.dtype),
            replica.params,
            sparse.dense(grads),
            replica.carry["start"],
        )
        return replica._replace(params=params, model_state=state), losses

    return LocalRule(lambda params: (), step, needs=("start",))
