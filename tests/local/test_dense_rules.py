"""Local updates on dense gradients, against NumPy and optax with a learning rate."""

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
    """Gradient of half the squared distance to `batch`; model state counts calls."""
    grads = jax.tree.map(jnp.subtract, params, batch)
    losses = jnp.stack([jnp.sum(g * g) / 2 for g in jax.tree.leaves(grads)])
    return losses, model_state + 1, grads


def train(local_update, learning_rates, dtype=np.float32, carry=None):
    """The replica after one step per learning rate, by one compiled function."""
    chex.clear_trace_counter()

    def step(replica, batch, learning_rate):
        return local_update.step(replica, batch, learning_rate, grad_fn)

    step = jax.jit(chex.assert_max_traces(step, n=1))  # one compilation for all rates
    params = random_tree(0, dtype)
    replica = Replica(params, jnp.int32(0), local_update.init(params), carry or {})
    for k, learning_rate in enumerate(learning_rates):
        replica, losses = step(
            replica, random_tree(k + 1, dtype), jnp.float32(learning_rate)
        )
        assert losses.shape == (3,)
    assert replica.model_state == len(learning_rates)
    return replica


def train_numpy(step, learning_rates):
    """The same in float64, leaf by leaf; `step` is a generator, sent (w, g, eta)."""

    def leaf(w, *targets):
        w, moves = np.asarray(w, np.float64), step()
        next(moves)
        for t, eta in zip(targets, learning_rates, strict=True):
            w = w + moves.send((w, w - np.asarray(t, np.float64), eta))
            next(moves)
        return w

    targets = [random_tree(k + 1) for k in range(len(learning_rates))]
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
    """At changing learning rates; to float32 rounding of a few steps of size one."""
    learning_rates = np.geomspace(0.3, 0.01, STEPS)
    settings = SGD[name]
    mu, decay = settings.get("momentum", 0.0), settings.get("weight_decay", 0.0)
    expected = train_numpy(formula(mu, "nesterov" in settings, decay), learning_rates)
    replica = train(local.sgd(**settings), learning_rates)
    chex.assert_trees_all_close(replica.params, expected, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_heavy_ball_keeps_the_learning_rate_of_each_gradient(decay):
    """v <- mu v - eta (g + wd w);   w <- w + v"""

    def step():
        v = 0.0
        while True:
            w, g, eta = yield
            v = 0.9 * v - eta * (g + decay * w)
            yield v

    learning_rates = np.geomspace(0.3, 0.01, STEPS)
    local_update = local.heavy_ball(momentum=0.9, weight_decay=decay)
    replica = train(local_update, learning_rates)
    expected = train_numpy(step, learning_rates)
    chex.assert_trees_all_close(replica.params, expected, rtol=2e-6, atol=2e-6)
    same = train(local.sgd(momentum=0.9, weight_decay=decay), [0.1] * STEPS)
    steady = train(local_update, [0.1] * STEPS)
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


@pytest.mark.parametrize("sparse_updates", [False, True])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_of_rate_one_equals_one_built_with_the_rate(name, sparse_updates):
    local_update = local.from_optax(
        OPTIMIZERS[name](1.0), sparse_updates=sparse_updates
    )
    tx, params = OPTIMIZERS[name](ETA), random_tree(0)
    state = tx.init(params)
    for k in range(STEPS):
        _, _, grads = grad_fn(params, 0, random_tree(k + 1))
        updates, state = tx.update(grads, state, params)
        params = optax.apply_updates(params, updates)
    replica = train(local_update, [ETA] * STEPS)
    # the rate is multiplied elsewhere: one more rounding per step
    chex.assert_trees_all_close(replica.params, params, rtol=2e-6, atol=2e-6)
    chex.assert_trees_all_close(replica.opt_state, state, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize(
    "local_update",
    [local.sgd(), local.sgd(momentum=0.9), local.from_optax(optax.adam(1.0))],
    ids=["plain", "momentum", "adam"],
)
def test_bfloat16_parameters_stay_bfloat16(local_update):
    replica = train(local_update, [ETA, ETA], jnp.bfloat16)
    chex.assert_trees_all_equal_dtypes(replica.params, random_tree(0, jnp.bfloat16))
    expected = train(local_update, [ETA, ETA]).params
    # two roundings to 8 bits of numbers of size one
    half = jax.tree.map(lambda x: x.astype(np.float32), replica.params)
    chex.assert_trees_all_close(half, expected, rtol=0.02, atol=0.02)


def test_gradient_keeps_the_params_and_fills_its_buffer():
    local_update = local.gradient()
    params, batch = random_tree(0), random_tree(1)
    replica = Replica(params, 0, local_update.init(params), {"other": 1})
    after, _ = local_update.step(replica, batch, ETA, grad_fn)
    assert after.params is params
    assert after.model_state == 1
    assert after.carry["other"] == 1
    expected = jax.tree.map(jnp.subtract, params, batch)
    chex.assert_trees_all_equal(after.carry["grad_sum"], expected)


@pytest.mark.parametrize("local_update", [local.sgd(), local.sgd(momentum=0.9)])
def test_prev_params_are_those_before_the_last_step(local_update):
    slotted = local.with_buffers(local_update, ("prev_params", "other"))
    carry = local.empty_buffers(random_tree(0), ("prev_params",)) | {
        "other": jnp.ones(())
    }
    two = train(slotted, [ETA, ETA], carry=carry)
    chex.assert_trees_all_equal(two.params, train(local_update, [ETA, ETA]).params)
    chex.assert_trees_all_equal(
        two.carry["prev_params"], train(local_update, [ETA]).params
    )
    assert two.carry["other"] == 1


def test_other_requirements_do_not_change_a_local_update():
    assert local.with_buffers(local.sgd(), ()) is local.sgd()
    assert local.with_buffers(local.gradient(), ("grad_sum",)) is local.gradient()


def test_initial_buffers_are_in_separate_memory():
    params = random_tree(0)
    buffers = local.empty_buffers(params, ("prev_params", "grad_sum"))
    zeros = jax.tree.map(jnp.zeros_like, params)
    chex.assert_trees_all_equal(buffers, {"prev_params": params, "grad_sum": zeros})
    leaves = jax.tree.leaves((params, buffers))
    assert len({x.unsafe_buffer_pointer() for x in leaves}) == len(leaves)


def test_equal_settings_give_the_same_local_update():
    adam = optax.adam(1.0)
    assert local.gradient() is local.gradient()
    assert local.sgd() is local.sgd(
        momentum=0.0, weight_decay=0.0, sparse_updates=False
    )
    assert local.sgd(momentum=0.9) is local.sgd(sparse_updates=False, momentum=0.9)
    assert local.from_optax(adam) is local.from_optax(adam, sparse_updates=False)
    for local_update in (local.heavy_ball, local.eamsgd_nesterov):
        assert local_update(momentum=0.9) is local_update(
            weight_decay=0.0, momentum=0.9
        )
    different = [
        local.sgd(),
        local.sgd(momentum=0.9),
        local.sgd(momentum=0.9, nesterov=True),
        local.sgd(momentum=0.9, sparse_updates=True),
        local.sgd(weight_decay=0.9),
        local.heavy_ball(momentum=0.9),
        local.eamsgd_nesterov(momentum=0.9),
        local.from_optax(adam),
        local.from_optax(adam, sparse_updates=True),
    ]
    assert len(set(different)) == len(different)
