"""Buffers between local updates and merges, and local updates of two methods."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_dense_rules import ETA, STEPS, grad_fn, random_tree, train

from hetjax import local
from hetjax.replica import Replica

RATES = np.geomspace(0.3, 0.01, STEPS)
CLOSE = {"rtol": 2e-6, "atol": 2e-6}  # float32 rounding of a few steps of size one


# EAMSGD's look-ahead: v <- delta v - eta g(x + delta v); x <- x + v


@pytest.mark.parametrize(("delta", "decay"), [(0.9, 0.0), (0.5, 0.2), (0.0, 0.0)])
def test_eamsgd_nesterov_equals_its_equivalent_form(delta, decay):
    local_update = local.eamsgd_nesterov(momentum=delta, weight_decay=decay)
    replica = train(local_update, RATES)

    def leaf(x, *targets):
        x, v = np.asarray(x, np.float64), 0.0
        for target, eta in zip(targets, RATES, strict=True):
            ahead = x + delta * v
            v = delta * v - eta * (ahead - np.asarray(target) + decay * ahead)
            x = x + v
        return x

    targets = [random_tree(k + 1) for k in range(STEPS)]
    expected = jax.tree.map(leaf, random_tree(0), *targets)
    chex.assert_trees_all_close(replica.params, expected, **CLOSE)


def test_eamsgd_nesterov_without_momentum_is_sgd():
    plain = train(local.sgd(), RATES).params
    chex.assert_trees_all_close(
        train(local.eamsgd_nesterov(momentum=0.0), RATES).params, plain, **CLOSE
    )


def test_proximal_is_pulled_to_the_start():
    """w <- w - eta (g + mu (w - start)), with a fixed start."""
    start, mu = random_tree(7), 0.8
    replica = train(local.proximal(proximal=mu), RATES, carry={"round_start": start})
    chex.assert_trees_all_equal(replica.carry["round_start"], start)

    def leaf(w, s, *targets):
        w, s = np.asarray(w, np.float64), np.asarray(s, np.float64)
        for target, eta in zip(targets, RATES, strict=True):
            w = w - eta * (w - np.asarray(target) + mu * (w - s))
        return w

    targets = [random_tree(k + 1) for k in range(STEPS)]
    expected = jax.tree.map(leaf, random_tree(0), start, *targets)
    chex.assert_trees_all_close(replica.params, expected, **CLOSE)


@pytest.mark.parametrize(
    "local_update", [local.eamsgd_nesterov(momentum=0.9), local.proximal(proximal=0.5)]
)
def test_bfloat16_stays_bfloat16(local_update):
    carry = {"round_start": random_tree(0, jnp.bfloat16)}
    replica = train(local_update, [ETA, ETA], jnp.bfloat16, carry)
    chex.assert_trees_all_equal_dtypes(replica.params, random_tree(0, jnp.bfloat16))
    chex.assert_trees_all_equal_dtypes(
        replica.opt_state, local_update.init(random_tree(0, jnp.bfloat16))
    )


# Buffers


@pytest.mark.parametrize(
    "local_update", [local.sgd(), local.eamsgd_nesterov(momentum=0.9)]
)
def test_gradients_are_summed(local_update):
    """The gradients that the update used; parameters are as without the buffer."""
    carry = local.empty_buffers(random_tree(0), ("grad_sum",))
    slotted = local.with_buffers(local_update, ("grad_sum",))
    replica = train(slotted, [ETA] * STEPS, carry=carry)
    chex.assert_trees_all_equal(
        replica.params, train(local_update, [ETA] * STEPS).params
    )
    seen = []

    def watching(params, model_state, batch):
        found = grad_fn(params, model_state, batch)
        seen.append(found[2])
        return found

    again = Replica(random_tree(0), 0, local_update.init(random_tree(0)))
    for k in range(STEPS):
        again, _ = local_update.step(again, random_tree(k + 1), ETA, watching)
    total = jax.tree.map(lambda *g: sum(g), *seen)
    chex.assert_trees_all_close(replica.carry["grad_sum"], total, **CLOSE)


def test_the_sum_of_gradients_of_plain_sgd_is_its_move():
    carry = local.empty_buffers(random_tree(0), ("grad_sum",))
    slotted = local.with_buffers(local.sgd(), ("grad_sum",))
    replica = train(slotted, [ETA] * STEPS, carry=carry)
    moved = jax.tree.map(
        lambda w, g: w - ETA * g, random_tree(0), replica.carry["grad_sum"]
    )
    chex.assert_trees_all_close(replica.params, moved, **CLOSE)


@pytest.mark.parametrize("local_update", [local.sgd(), local.sgd(momentum=0.9)])
def test_a_delayed_update_is_applied_after_the_next_step(local_update):
    pending = random_tree(9)
    carry = {"delayed_update": pending}
    slotted = local.with_buffers(local_update, ("delayed_update",))
    one = train(slotted, [ETA], carry=carry)
    plain = train(local_update, [ETA])
    expected = jax.tree.map(jnp.add, plain.params, pending)
    chex.assert_trees_all_close(one.params, expected, **CLOSE)
    chex.assert_trees_all_equal(one.opt_state, plain.opt_state)
    zeros = jax.tree.map(jnp.zeros_like, pending)
    chex.assert_trees_all_equal(one.carry["delayed_update"], zeros)


def test_prev_params_do_not_include_the_delayed_update():
    buffers = ("prev_params", "delayed_update")
    carry = {"prev_params": random_tree(5), "delayed_update": random_tree(9)}
    replica = train(local.with_buffers(local.sgd(), buffers), [ETA], carry=carry)
    chex.assert_trees_all_equal(replica.carry["prev_params"], random_tree(0))


def test_buffers_begin_at_zero_except_the_round_start():
    params = random_tree(0)
    buffers = local.empty_buffers(
        params, ("round_start", "mailbox", "last_pushed_grad", "angle")
    )
    zeros = jax.tree.map(jnp.zeros_like, params)
    chex.assert_trees_all_equal(
        buffers,
        {
            "round_start": params,
            "mailbox": zeros,
            "last_pushed_grad": zeros,
            "angle": jnp.zeros(2),
        },
    )
    own = {x.unsafe_buffer_pointer() for x in jax.tree.leaves(buffers["round_start"])}
    assert own.isdisjoint(x.unsafe_buffer_pointer() for x in jax.tree.leaves(params))


@pytest.mark.parametrize(
    "requires", [("round_start",), ("mailbox", "angle"), ("last_pushed_grad",)]
)
def test_a_merge_s_own_buffers_are_not_touched(requires):
    assert local.with_buffers(local.sgd(), requires) is local.sgd()
    assert local.step_buffers(local.sgd(), requires) == ()


def test_the_sum_is_of_the_last_gradient_of_a_step():
    """Sharpness-aware steps look at a second point; the first gradient is not taken."""

    def step(replica, batch, learning_rate, grad_fn):
        _, state, first = grad_fn(replica.params, replica.model_state, batch)
        away = jax.tree.map(jnp.add, replica.params, first)
        losses, _, grads = grad_fn(away, replica.model_state, batch)
        params = jax.tree.map(lambda w, g: w - learning_rate * g, replica.params, grads)
        return replica._replace(params=params, model_state=state), losses

    update = local.LocalUpdate(lambda params: (), step)
    before = random_tree(0)
    carry = {"grad_sum": jax.tree.map(jnp.zeros_like, before)}
    replica = train(local.with_buffers(update, ("grad_sum",)), [ETA], carry=carry)
    moved = jax.tree.map(lambda w, x: (w - x) / ETA, before, replica.params)
    chex.assert_trees_all_close(replica.carry["grad_sum"], moved, **CLOSE)
