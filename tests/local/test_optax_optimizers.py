"""Every optimizer of optax trains a worker as by hand, or is refused in one line."""

import inspect
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from optax import contrib
from quick import quick

import hetjax as hj
from hetjax import local, merge
from hetjax.data.batching import make_batch, make_buckets
from hetjax.data.dataset import Split
from hetjax.tree import copies

ROWS, COLUMNS, OUTPUTS, STEPS = 17, 4, 3, 4
RNG = np.random.default_rng(0)
X = RNG.normal(size=(ROWS, COLUMNS)).astype(np.float32)
Y = RNG.normal(size=(ROWS, OUTPUTS)).astype(np.float32)
PARAMS = {"w": jnp.asarray(X[:4, :3]), "b": jnp.ones(OUTPUTS)}
KEY = jax.random.key(0)


def losses_of(params, x, y):
    return jnp.mean((x @ params["w"] + params["b"][None] - y) ** 2, axis=-1)


TASK = hj.Task(
    lambda key: (PARAMS, ()),
    lambda params, state, batch, key: (losses_of(params, batch.x, batch.y), state),
    lambda params, state, batch: {"loss": losses_of(params, batch.x, batch.y)},
    "loss",
    mode="min",
)
SPLIT = Split(X, Y)
# padded, so that a mean over the batch's places is not that over its examples
BATCH = make_batch(SPLIT, np.arange(ROWS), make_buckets(SPLIT, 64))


def factories():
    """Every public factory of optax and its contrib that has a learning rate."""
    found = {}
    for module in (optax, contrib):
        for name in sorted(vars(module)):
            factory = getattr(module, name)
            if not inspect.isfunction(factory) or name.startswith(("scale_by", "_")):
                continue
            if "learning_rate" in inspect.signature(factory).parameters:
                found[name] = factory
    return found


GIVEN = {  # arguments without defaults, and what a test of few steps needs
    "dpsgd": {"l2_norm_clip": 1.0, "noise_multiplier": 0.1, "seed": 0},
    "galore": {"rank": 2},
    "lbfgs": {"learning_rate": None},
    "schedule_free": {"base_optimizer": optax.sgd(0.05)},
    "sophia": {"update_interval": 2},
}
RATE = 0.05
OTHERS = {  # those whose learning rate has another name, or none
    "polyak_sgd": lambda: optax.polyak_sgd(max_learning_rate=100.0),
    "backtracking": lambda: optax.chain(
        optax.sgd(1.0), optax.scale_by_backtracking_linesearch(10)
    ),
    "reduce_on_plateau": lambda: optax.chain(
        optax.adam(RATE), contrib.reduce_on_plateau(rtol=0.5, patience=1)
    ),
    "inject_hyperparams": lambda: optax.inject_hyperparams(optax.polyak_sgd)(RATE),
    "mechanize": lambda: contrib.mechanize(optax.sgd(RATE)),
    "cocob": contrib.cocob,
    "sam": lambda: contrib.sam(optax.sgd(RATE), optax.sgd(0.1)),
    "lookahead": lambda: optax.lookahead(optax.sgd(RATE), 2, 0.5),
}


def optimizer(name):
    if name in OTHERS:
        return OTHERS[name]()
    factory = factories()[name]
    return factory(**{"learning_rate": RATE} | GIVEN.get(name, {}))


REFUSED = {
    "cocob": "cocob computes the parameters from its own initial ones",
    "dpsgd": "needs the gradient of every example",
    "lookahead": "trains two sets of parameters",
    "mechanize": "mechanize computes the parameters from its own initial ones",
    "sam": "moves the parameters away from the model's and back",
}
TRAINED = sorted(({*factories(), *OTHERS}) - set(REFUSED))


def by_hand(tx):
    """The parameters to evaluate after a few steps of plain optax."""
    loss = lambda params: losses_of(params, X, Y).mean()  # noqa: E731
    extra = isinstance(tx, optax.GradientTransformationExtraArgs)

    @jax.jit
    def step(params, state):
        value, grad = jax.value_and_grad(loss)(params)
        about = {"value": value, "grad": grad, "value_fn": loss} if extra else {}
        if "hutchinson" in str(state).lower():
            about = {"obj_fn": loss}
        updates, state = tx.update(grad, state, params, **about)
        return optax.apply_updates(params, updates), state

    params, state = PARAMS, tx.init(PARAMS)
    for _ in range(STEPS):
        params, state = step(params, state)
    if isinstance(state, contrib.ScheduleFreeState):
        return contrib.schedule_free_eval_params(state, params)
    return params


def trained(local_update, learning_rate=1.0):
    replica = local.new_replica(local_update, PARAMS)
    step = local.step_fn(local_update, TASK)
    for _ in range(STEPS):
        replica, _ = step(replica, BATCH, jnp.float32(learning_rate), KEY)
    return replica.params


@pytest.mark.parametrize(
    "name", quick(TRAINED, "backtracking", "momo", "polyak_sgd", "schedule_free")
)
def test_an_optimizer_trains_a_worker_as_by_hand(name):
    """With its learning rate inside."""
    tx = optimizer(name)
    found, expected = trained(local.from_optax(tx)), by_hand(tx)
    chex.assert_trees_all_close(found, expected, rtol=2e-5, atol=2e-6)
    moved = jax.tree.map(lambda a, b: jnp.abs(a - b).max(), found, PARAMS)
    assert min(jax.tree.leaves(moved)) > 0


@pytest.mark.parametrize("name", REFUSED)
def test_an_optimizer_that_cannot_train_a_worker_is_refused(name):
    with pytest.raises(ValueError, match=f"^optimizer=: optax's .*{REFUSED[name]}"):
        hj.local_sgd(batch_size=8, local_steps=2, optimizer=optimizer(name))


def test_a_mask_hides_no_optimizer_that_cannot_train_a_worker():
    """It only fits the task's parameters, so that this is known at the first step."""
    hidden = optax.masked(optimizer("sam"), jax.tree.map(lambda x: True, PARAMS))
    update = local.from_optax(hidden)
    with pytest.raises(ValueError, match="^optimizer=: optax's sam moves"):
        trained(update)


def test_an_argument_that_nobody_has_is_named():
    def update(updates: Any, state: Any, params: Any = None, **others: Any) -> Any:
        return needing(updates, state, **others)

    def needing(updates, state, *, curvature, **others):
        return updates, state

    tx = optax.GradientTransformationExtraArgs(lambda params: (), update)
    with pytest.raises(ValueError, match="argument that hetjax .*'curvature'.*value"):
        local.from_optax(tx)


@pytest.mark.parametrize("name", ["lbfgs", "schedule_free"])
def test_sparse_updates_refuse_what_needs_all_parameters(name):
    with pytest.raises(ValueError, match="needs all parameters at every step"):
        local.from_optax(optimizer(name), sparse_updates=True)


@pytest.mark.parametrize("name", ["lbfgs", "polyak_sgd", "momo", "inject_hyperparams"])
def test_a_center_has_no_loss(name):
    with pytest.raises(ValueError, match="needs the loss of a batch .* at the workers"):
        merge.gradient_aggregation(optimizer(name))


def test_a_center_has_no_evaluation_parameters():
    tx = contrib.schedule_free_sgd(1.0)
    with pytest.raises(ValueError, match=r"^downpour\(server\): schedule_free is for"):
        merge.downpour(tx)
    with pytest.raises(ValueError, match="put the others into its base_optimizer"):
        local.from_optax(optax.chain(optax.clip(1.0), tx))


def test_the_learning_rate_of_schedule_free_is_the_strategy_s():
    found = trained(local.from_optax(contrib.schedule_free_sgd(1.0)), RATE)
    expected = by_hand(contrib.schedule_free_sgd(RATE))
    chex.assert_trees_all_close(found, expected, rtol=2e-5, atol=2e-6)


def test_a_line_search_leaves_the_buffers_of_merges_alone():
    """The sum of gradients is that at the steps' own parameters."""
    local_update, requires = (
        local.from_optax(optax.lbfgs()),
        ("grad_sum",),
    )
    replica = local.new_replica(local_update, PARAMS, requires=requires)
    step = local.step_fn(local_update, TASK, requires=requires)
    expected = jax.tree.map(jnp.zeros_like, PARAMS)
    for _ in range(2):
        grad = jax.grad(lambda p: losses_of(p, X, Y).mean())(replica.params)
        expected = jax.tree.map(jnp.add, expected, copies(grad))
        replica, _ = step(replica, BATCH, jnp.float32(1.0), KEY)
    chex.assert_trees_all_close(replica.carry["grad_sum"], expected, rtol=1e-5)
