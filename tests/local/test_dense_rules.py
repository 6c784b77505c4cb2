"""Local rules on dense gradients, against NumPy and optax with a rate of its own."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from hetjax import local
from hetjax.replica import Replica

ETA = 0.1
STEPS = 5


def random_tree(seed, dtype=np.float32):
    rng = np.random.default_rng(seed)
    shapes = {"scalar": (), "layers": [(3,), (2, 3)]}
    return jax.tree.map(
        lambda shape: jnp.asarray(rng.normal(size=shape), dtype),
        shapes,
        is_leaf=lambda s: isinstance(s, tuple),
    )


def grad_fn(params, model_state, batch):
    """Of half the squared distance to the model `batch`; model state counts calls."""
    grads = jax.tree.map(jnp.subtract, params, batch)
    losses = jnp.stack([jnp.sum(g * g) / 2 for g in jax.tree.leaves(grads)])
    return losses, model_state + 1, grads


def train(rule, rates, dtype=np.float32, carry=None):
    """The replica after a step at each rate, by one compiled function."""
    chex.clear_trace_counter()

    def step(replica, batch, rate):
        return rule.step(replica, batch, rate, grad_fn)

    step = jax.jit(chex.assert_max_traces(step, n=1))  # a rate is never a recompilation
    params = random_tree(0, dtype)
    replica = Replica(params, jnp.int32(0), rule.init(params), carry or {})
    for k, rate in enumerate(rates):
        replica, losses = step(replica, random_tree(k + 1, dtype), jnp.float32(rate))
        assert losses.shape == (3,)
    assert replica.model_state == len(rates)
    return replica


def train_numpy(step, rates):
    """The same in float64, leaf by leaf; step: generator of moves, told (w, g, eta)."""

    def leaf(w, *targets):
        w, moves = np.asarray(w, np.float64), step()
        next(moves)
        for t, eta in zip(targets, rates, strict=True):
            w = w + moves.send((w, w - np.asarray(t, np.float64), eta))
            next(moves)
        return w

    targets = [random_tree(k + 1) for k in range(len(rates))]
    return jax.tree.map(leaf, random_tree(0), *targets)


def formula(mu=0.0, nesterov=False, decay=0.0):
    """v <- mu v + g + wd w;  w <- w - eta v, or with Nesterov's look-ahead."""

    def step():
        v = 0.0
        while True:
            w, g, eta = yield
            g = g + decay * w
            v = mu * v + g
            yield -eta * (g + mu * v if nesterov else v)

    return step


SGD = {
    "plain": {},
    "momentum": {"momentum": 0.9},
    "nesterov": {"momentum": 0.9, "nesterov": True},
    "decay": {"weight_decay": 0.1},
    "all": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
}


@pytest.mark.parametrize("name", SGD)
def test_sgd_is_its_formula(name):
    """At changing rates; to the float32 rounding of a few steps of size one."""
    rates = np.geomspace(0.3, 0.01, STEPS)
    settings = SGD[name]
    mu, decay = settings.get("momentum", 0.0), settings.get("weight_decay", 0.0)
    expected = train_numpy(formula(mu, "nesterov" in settings, decay), rates)
    replica = train(local.sgd(**settings), rates)
    chex.assert_trees_all_close(replica.params, expected, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_polyak_keeps_the_rate_of_each_gradient(decay):
    """v <- mu v - eta (g + wd w);   w <- w + v"""

    def step():
        v = 0.0
        while True:
            w, g, eta = yield
            v = 0.9 * v - eta * (g + decay * w)
            yield v

    rates = np.geomspace(0.3, 0.01, STEPS)
    rule = local.polyak(momentum=0.9, weight_decay=decay)
    replica = train(rule, rates)
    expected = train_numpy(step, rates)
    chex.assert_trees_all_close(replica.params, expected, rtol=2e-6, atol=2e-6)
    same = train(local.sgd(momentum=0.9, weight_decay=decay), [0.1] * STEPS)
    steady = train(rule, [0.1] * STEPS)
    chex.assert_trees_all_close(steady.params, same.params, rtol=2e-6, atol=2e-6)


OPTIMIZERS = {
    "sgd": optax.sgd,
    "momentum": lambda eta: optax.sgd(eta, 0.9),
    "adam": optax.adam,
    "adamw": lambda eta: optax.adamw(eta, weight_decay=0.1),
    "rmsprop": optax.rmsprop,
    "lamb": optax.lamb,
    "clipped adam": lambda eta: optax.chain(
        optax.clip_by_global_norm(0.5), optax.adam(eta)
    ),
}


@pytest.mark.parametrize("rows", local.ROWS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_of_rate_one_equals_one_built_with_the_rate(name, rows):
    rule = local.optimizer(OPTIMIZERS[name](1.0), rows=rows)
    tx, params = OPTIMIZERS[name](ETA), random_tree(0)
    state = tx.init(params)
    for k in range(STEPS):
        _, _, grads = grad_fn(params, 0, random_tree(k + 1))
        updates, state = tx.update(grads, state, params)
        params = optax.apply_updates(params, updates)
    replica = train(rule, [ETA] * STEPS)
    # the rate is multiplied in another place: a rounding more per step
    chex.assert_trees_all_close(replica.params, params, rtol=2e-6, atol=2e-6)
    chex.assert_trees_all_close(replica.opt_state, state, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize(
    "rule",
    [local.sgd(), local.sgd(momentum=0.9), local.optimizer(optax.adam(1.0))],
    ids=["plain", "momentum", "adam"],
)
def test_bfloat16_parameters_stay_bfloat16(rule):
    replica = train(rule, [ETA, ETA], jnp.bfloat16)
    chex.assert_trees_all_equal_dtypes(replica.params, random_tree(0, jnp.bfloat16))
    expected = train(rule, [ETA, ETA]).params
    # two roundings to 8 bits of numbers of size one
    half = jax.tree.map(lambda x: x.astype(np.float32), replica.params)
    chex.assert_trees_all_close(half, expected, rtol=0.02, atol=0.02)


def test_gradient_keeps_the_params_and_fills_its_slot():
    rule = local.gradient()
    params, batch = random_tree(0), random_tree(1)
    replica = Replica(params, 0, rule.init(params), {"other": 1})
    after, _ = rule.step(replica, batch, ETA, grad_fn)
    assert after.params is params
    assert after.model_state == 1
    assert after.carry["other"] == 1
    expected = jax.tree.map(jnp.subtract, params, batch)
    chex.assert_trees_all_equal(after.carry["gradients"], expected)


@pytest.mark.parametrize("rule", [local.sgd(), local.sgd(momentum=0.9)])
def test_slot_before_holds_the_params_before_the_last_step(rule):
    slotted = local.with_slots(rule, ("before", "other"))
    carry = local.empty_slots(random_tree(0), ("before",)) | {"other": jnp.ones(())}
    two = train(slotted, [ETA, ETA], carry=carry)
    chex.assert_trees_all_equal(two.params, train(rule, [ETA, ETA]).params)
    chex.assert_trees_all_equal(two.carry["before"], train(rule, [ETA]).params)
    assert two.carry["other"] == 1


def test_other_needs_leave_a_rule_as_it_is():
    assert local.with_slots(local.sgd(), ()) is local.sgd()
    assert local.with_slots(local.gradient(), ("gradients",)) is local.gradient()


def test_empty_slots_are_zeros_in_buffers_of_their_own():
    params = random_tree(0)
    slots = local.empty_slots(params, ("before", "gradients"))
    zeros = jax.tree.map(jnp.zeros_like, params)
    chex.assert_trees_all_equal(slots, {"before": zeros, "gradients": zeros})
    leaves = jax.tree.leaves(slots)
    assert len({x.unsafe_buffer_pointer() for x in leaves}) == len(leaves)


def test_equal_settings_give_the_same_rule():
    adam = optax.adam(1.0)
    assert local.gradient() is local.gradient()
    assert local.sgd() is local.sgd(momentum=0.0, weight_decay=0.0, rows="dense")
    assert local.sgd(momentum=0.9) is local.sgd(rows="dense", momentum=0.9)
    assert local.optimizer(adam) is local.optimizer(adam, rows="dense")
    for rule in (local.polyak, local.look_ahead):
        assert rule(momentum=0.9) is rule(weight_decay=0.0, momentum=0.9)
    different = [
        local.sgd(),
        local.sgd(momentum=0.9),
        local.sgd(momentum=0.9, nesterov=True),
        local.sgd(momentum=0.9, rows="lazy"),
        local.sgd(weight_decay=0.9),
        local.polyak(momentum=0.9),
        local.look_ahead(momentum=0.9),
        local.optimizer(adam),
        local.optimizer(adam, rows="lazy"),
    ]
    assert len(set(different)) == len(different)


@pytest.mark.parametrize(
    "make",
    [
        lambda rows: local.sgd(rows=rows),
        lambda rows: local.sgd(momentum=0.9, rows=rows),
        lambda rows: local.optimizer(optax.adam(1.0), rows=rows),
    ],
)
def test_unknown_rows_are_an_error_that_lists_the_known(make):
    with pytest.raises(ValueError, match="'sparse'.*dense.*lazy"):
        make("sparse")
