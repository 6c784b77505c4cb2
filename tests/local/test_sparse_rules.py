"""Local updates on row gradients: plain, dense and lazy, against optax on the rows."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.experimental.sparse import BCOO

from hetjax import local, sparse
from hetjax.data.batching import Batch
from hetjax.replica import Replica
from hetjax.tasks.types import Task, make_grad_fn

F, H = 7, 2  # features and hidden units
ETA = 0.1
# Ids of four non-zeros: some twice in a batch, some never (2 and 6); F and larger ids
# are padding.
IDS = ([1, 1, 4, F], [0, 4, 4, 1], [F, F + 3, 5, 5], [3, 0, 1, 4])
EVERY = ([1, 1, 4, 0, 2, 3, 5, 6], [6, 5, 4, 3, 2, 1, 0, 0])
OPTIMIZERS = {
    "momentum": lambda eta: optax.sgd(eta, 0.9, nesterov=True),
    "adam": optax.adam,
    "adamw": lambda eta: optax.adamw(eta, weight_decay=0.1),
    "decay and momentum": lambda eta: optax.chain(
        optax.add_decayed_weights(0.1), optax.sgd(eta, 0.9)
    ),
}


def random_params():
    rng = np.random.default_rng(0)
    shapes = {"rows": (F, H), "same_shape": (F, H), "bias": (H,)}
    return {k: jnp.asarray(rng.normal(size=s), jnp.float32) for k, s in shapes.items()}


def grad_fn(params, model_state, ids):
    """Pull all leaves towards zero, "rows" by a row gradient; padding is garbage."""
    pulled = (
        params["rows"].at[ids].get(mode="clip") * (1 + jnp.arange(ids.size))[:, None]
    )
    rows = jnp.where((ids < F)[:, None], pulled, 99.0)
    return (
        jnp.zeros(1),
        model_state,
        params | {"rows": sparse.RowSparseGrad(ids, rows, F)},
    )


def train(local_update, batches):
    """The replicas after each step."""
    chex.clear_trace_counter()

    def step(replica, ids, learning_rate):
        return local_update.step(replica, ids, learning_rate, grad_fn)[0]

    step = jax.jit(chex.assert_max_traces(step, n=1))
    params = random_params()
    replicas = [Replica(params, (), local_update.init(params))]
    for ids in batches:
        replicas.append(step(replicas[-1], jnp.array(ids), jnp.float32(ETA)))
    return replicas


def dense_gradient(params, ids):
    """The gradient of `grad_fn` with its rows added up in a whole matrix."""
    whole = np.zeros((F, H), np.float32)
    for j, i in enumerate(ids):
        if i < F:
            whole[i] += (1 + j) * np.asarray(params["rows"])[i]
    return params | {"rows": jnp.asarray(whole)}


def train_optax(tx, batches):
    """Dense steps of an optimizer with its own learning rate: (params, state)."""
    params = random_params()
    state = tx.init(params)
    for ids in batches:
        updates, state = tx.update(dense_gradient(params, ids), state, params)
        params = optax.apply_updates(params, updates)
    return params, state


def assert_close(actual, expected):
    """To the float32 rounding of a few steps of size one."""
    chex.assert_trees_all_close(actual, expected, rtol=5e-6, atol=5e-6)


def test_plain_sgd_adds_rows_as_if_dense():
    params = random_params()
    for ids in IDS:
        grads = dense_gradient(params, ids)
        params = jax.tree.map(lambda w, g: w - ETA * g, params, grads)
    replica = train(local.sgd(), IDS)[-1]
    assert_close(replica.params, params)
    never = np.array([2, 6])
    untouched = replica.params["rows"][never], random_params()["rows"][never]
    chex.assert_trees_all_equal(*untouched)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_dense_rows_equal_the_dense_optimizer(name):
    replica = train(local.from_optax(OPTIMIZERS[name](1.0)), IDS)[-1]
    assert_close(
        (replica.params, replica.opt_state), train_optax(OPTIMIZERS[name](ETA), IDS)
    )


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_lazy_rows_equal_the_dense_optimizer_where_all_are_touched(name):
    local_update = local.from_optax(OPTIMIZERS[name](1.0), sparse_updates=True)
    replica = train(local_update, EVERY)[-1]
    assert_close(
        (replica.params, replica.opt_state), train_optax(OPTIMIZERS[name](ETA), EVERY)
    )


def row_leaves(params, opt_state):
    """ "rows" of the parameters and of all state leaves of the same structure."""
    paths, _ = jax.tree_util.tree_flatten_with_path((params, opt_state))
    found = [x for path, x in paths if "'rows'" in jax.tree_util.keystr(path)]
    assert len(found) > 1
    return found


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_lazy_rows_are_the_optimizer_on_the_touched_rows(name):
    replicas = train(local.from_optax(OPTIMIZERS[name](1.0), sparse_updates=True), IDS)
    tx = OPTIMIZERS[name](ETA)
    for ids, before, after in zip(IDS, replicas[:-1], replicas[1:], strict=True):
        touched = np.unique([i for i in ids if i < F])
        rest = np.setdiff1d(np.arange(F), touched)

        def some(tree, keep=touched):
            """The tree with only these of the rows."""
            return jax.tree_util.tree_map_with_path(
                lambda p, x: x[keep] if "'rows'" in jax.tree_util.keystr(p) else x, tree
            )

        params, state = some(before.params), some(before.opt_state)
        grads = some(dense_gradient(before.params, ids))
        updates, state = tx.update(grads, state, params)
        params = optax.apply_updates(params, updates)
        # other leaves, also of the same shape, are updated whole
        assert_close((some(after.params), some(after.opt_state)), (params, state))
        for old, new in zip(
            row_leaves(before.params, before.opt_state),
            row_leaves(after.params, after.opt_state),
            strict=True,
        ):
            chex.assert_trees_all_equal(new[rest], old[rest])  # bit for bit
            assert (new[touched] != old[touched]).all()


def test_step_counters_go_on_for_all_rows():
    replicas = train(local.from_optax(optax.adam(1.0), sparse_updates=True), IDS)
    assert [int(r.opt_state[0].count) for r in replicas] == [0, 1, 2, 3, 4]


# --- with a model and BCOO batches ------------------------------------------------


def predict(params, x):
    hidden = jnp.tanh(sparse.matmul(x, params["rows"]) + params["bias"][None])
    return jnp.sum(hidden * params["same_shape"][:1], -1)


def loss(params, model_state, batch, key):
    return (predict(params, batch.x) - batch.y) ** 2, model_state


TASK = Task(None, loss, None, "loss", row_params=("rows",))


def sparse_batch(seed):
    """Four examples, the last one padding, of ten non-zeros, the last three padding."""
    rng = np.random.default_rng(seed)
    rows = np.array([0, 0, 0, 1, 1, 2, 2, 4, 4, 4])
    columns = np.array([1, 1, 3, 1, 4, 4, 5, F, F, F])  # 1 twice in a row, 4 in two
    values = np.where(rows < 4, rng.normal(size=10), 0.0)
    x = BCOO(
        (jnp.asarray(values, jnp.float32), jnp.asarray(np.stack([rows, columns], 1))),
        shape=(4, F),
        indices_sorted=True,
    )
    weight = jnp.array([1.0, 1.0, 1.0, 0.0])
    return Batch(x, jnp.asarray(rng.normal(size=4), jnp.float32), weight, 3.0)


def dense_batch(seed):
    batch = sparse_batch(seed)
    x = np.zeros((4, F), np.float32)
    inside = np.asarray(batch.x.indices[:, 0]) < 4
    rows, columns = np.asarray(batch.x.indices)[inside].T
    np.add.at(x, (rows, columns), np.asarray(batch.x.data)[inside])
    return batch._replace(x=jnp.asarray(x))


@pytest.mark.parametrize(
    "local_update",
    [local.sgd(), local.sgd(momentum=0.9), local.from_optax(optax.adam(1.0))],
    ids=["plain", "momentum", "adam"],
)
def test_a_model_trains_the_same_on_sparse_and_dense_inputs(local_update):
    gradient = make_grad_fn(TASK, jax.random.key(0))
    step = jax.jit(
        lambda replica, batch: local_update.step(replica, batch, ETA, gradient)
    )
    params = random_params()
    results = []
    for make in (sparse_batch, dense_batch):
        replica, losses = Replica(params, (), local_update.init(params)), []
        for seed in range(4):
            replica, values = step(replica, make(seed))
            losses.append(values)
        results.append((replica, losses))
    assert_close(*results)


def test_the_gradient_update_fills_its_buffer_densely():
    gradient = make_grad_fn(TASK, jax.random.key(0))
    replica = Replica(random_params())
    buffers = [
        local.gradient().step(replica, make(0), ETA, gradient)[0].carry["grad_sum"]
        for make in (sparse_batch, dense_batch)
    ]
    assert buffers[0]["rows"].shape == (F, H)
    assert_close(*buffers)
