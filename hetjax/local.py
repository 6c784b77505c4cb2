"""Local rules: what a worker does with a batch between two reports (device world).

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
from hetjax.replica import Replica

ROWS = ("dense", "lazy")


class LocalRule(NamedTuple):
    """A pair of pure functions.

    init(params) -> opt_state
    step(replica, batch, rate, grad_fn) -> (replica, losses [B])

    grad_fn(params, model_state, batch) -> (losses, model_state, grads), where the
    gradients are of the mean loss over the batch's true examples, with a
    `sparse.RowGradient` for each row weight that meets a sparse input. A rule that
    `fills` a slot leaves the step to a merge that needs it.
    """

    init: Callable[[Any], Any]
    step: Callable[..., tuple[Replica, jax.Array]]
    fills: tuple[str, ...] = ()  # slots of the replica's carry


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
    _check_rows(rows)
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
    _check_rows(rows)
    return _optimizer(tx, rows)


def _check_rows(rows: str) -> None:
    if rows not in ROWS:
        raise ValueError(f"rows={rows!r}: choose one of {ROWS}")


@lru_cache
def _optimizer(tx: optax.GradientTransformation, rows: str) -> LocalRule:
    update = _lazy_update if rows == "lazy" else _dense_update

    def step(
        replica: Replica, batch: Any, rate: jax.Array, grad_fn: Callable
    ) -> tuple[Replica, jax.Array]:
        losses, state, grads = grad_fn(replica.params, replica.model_state, batch)
        params, opt = update(tx, grads, replica.opt_state, replica.params, rate)
        new = replica._replace(params=params, opt_state=opt, model_state=state)
        return new, losses

    return LocalRule(tx.init, step)


def _dense_update(tx: Any, grads: Any, opt: Any, params: Any, rate: jax.Array) -> Any:
    updates, opt = tx.update(sparse.dense(grads), opt, params)
    return jax.tree.map(
        lambda w, d: (w + rate * d).astype(w.dtype), params, updates
    ), opt


def _lazy_update(tx: Any, grads: Any, opt: Any, params: Any, rate: jax.Array) -> Any:
    """A dense update of the unique touched rows, written back into the whole."""
    grads = _map_gradients(sparse.unique, lambda g: g, grads)
    ids = _map_gradients(lambda g: g.ids, lambda g: _WHOLE, grads)
    rows = _map_gradients(lambda g: g.rows, lambda g: g, grads)
    view = jax.tree.map(_take, params, ids)
    opt_view = optax.tree_utils.tree_map_params(tx, _take, opt, ids)
    updates, opt_view = tx.update(rows, opt_view, view)
    view = jax.tree.map(lambda w, d: (w + rate * d).astype(w.dtype), view, updates)
    params = jax.tree.map(_put, params, view, ids)
    # non-params (step counters) come whole from the updated state
    return params, _put_state(tx, opt, opt_view, ids)


_WHOLE = "whole"  # stands among the ids for a leaf that has no rows


def _map_gradients(of_rows: Callable, of_others: Callable, grads: Any) -> Any:
    """One function of every `RowGradient`, another one of every other gradient."""
    return jax.tree.map(
        lambda g: of_rows(g) if sparse.is_row_gradient(g) else of_others(g),
        grads,
        is_leaf=sparse.is_row_gradient,
    )


def _take(leaf: jax.Array, ids: Any) -> jax.Array:
    return leaf if ids is _WHOLE else leaf.at[ids].get(mode="clip")


def _put(leaf: jax.Array, rows: jax.Array, ids: Any) -> jax.Array:
    return rows if ids is _WHOLE else leaf.at[ids].set(rows, mode="drop")


def _put_state(tx: Any, opt: Any, opt_view: Any, ids: Any) -> Any:
    """The whole optimizer state with the touched rows of `opt_view` written in."""
    places = optax.tree_utils.tree_map_params(
        tx, lambda _, i: i, opt, ids, transform_non_params=lambda _: _WHOLE
    )
    return jax.tree.map(_put, opt, opt_view, places)


def check_slots(rule: LocalRule, needs: tuple[str, ...]) -> None:
    """A ValueError if a merge and a rule do not fit each other."""
    missing = set(needs) - {"before", *rule.fills}
    if missing:
        raise ValueError(
            f"the merge needs {', '.join(sorted(missing))} of a replica, which the "
            "local rule does not fill (local.gradient() fills gradients)"
        )
    unused = set(rule.fills) - set(needs)
    if unused:
        raise ValueError(
            f"the local rule only fills {', '.join(sorted(unused))}, which the merge "
            "does not use: nothing would ever be learned; take local.sgd(), or "
            "merge.gradient_aggregation()"
        )


def with_slots(rule: LocalRule, needs: tuple[str, ...]) -> LocalRule:
    """The rule that also keeps the slot "before": params before this step."""
    if "before" not in needs:
        return rule

    def step(
        replica: Replica, batch: Any, rate: jax.Array, grad_fn: Callable
    ) -> tuple[Replica, jax.Array]:
        before = replica.params
        replica, losses = rule.step(replica, batch, rate, grad_fn)
        return replica._replace(carry={**replica.carry, "before": before}), losses

    return LocalRule(rule.init, step, rule.fills)


def empty_slots(params: Any, needs: tuple[str, ...]) -> dict[str, Any]:
    """The carry of a replica that has not stepped yet: zeros, own buffers."""
    return {name: jax.tree.map(jnp.zeros_like, params) for name in needs}
