"""Sparse products and row gradients: against scipy, and against dense autodiff."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp
from flax import nnx
from jax.experimental.sparse import BCOO
from jax.extend.core import jaxprs_in_params

from hetjax import local, sparse
from hetjax.data.batching import Batch
from hetjax.replica import Replica
from hetjax.tasks.types import Task, make_grad_fn

B, F, H = 6, 9, 3  # examples, features, hidden units


def random_matrix(seed, density=0.3):
    """CSR [B, F] with an empty row, and its BCOO with some padding at the end."""
    rng = np.random.default_rng(seed)
    matrix = sp.random_array((B, F), density=density, rng=rng, dtype=np.float32)
    whole = matrix.toarray()
    whole[2] = 0.0
    csr = sp.csr_array(whole)
    rows, columns = csr.nonzero()
    indices = np.stack([rows, columns], 1)
    padding = np.array([[B, F], [B, F], [B, F]])
    return csr, BCOO(
        (
            jnp.asarray(np.r_[csr.data, np.zeros(3, np.float32)]),
            jnp.asarray(np.r_[indices, padding]),
        ),
        shape=(B, F),
        indices_sorted=True,
    )


def random_array(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def assert_close(actual, expected):
    """To the float32 rounding of sums of a few terms of size one."""
    jax.tree.map(
        lambda a, e: np.testing.assert_allclose(a, e, rtol=2e-6, atol=2e-6),
        actual,
        expected,
    )


@pytest.mark.parametrize("shape", [(F, H), (F,)], ids=["matrix", "vector"])
@pytest.mark.parametrize("seed", [0, 1])
def test_products_equal_those_of_scipy(seed, shape):
    csr, x = random_matrix(seed)
    w = random_array(seed, *shape)
    for product in (
        sparse.matmul(x, w),
        jax.jit(sparse.matmul)(x, w),
        sparse.matmul(jnp.asarray(csr.toarray()), w),
    ):
        assert product.shape == (B, *shape[1:])
        assert_close(product, csr @ np.asarray(w))


def test_products_of_a_view_equal_those_of_the_weight():
    _, x = random_matrix(0)
    w = random_array(0, F, H)
    view, aligned = sparse.row_view({"w": w}, x, ("w",))
    assert aligned.shape == (B, x.nse)
    assert view["w"].shape == (x.nse, H)
    product = sparse.matmul(aligned, view["w"])
    np.testing.assert_array_equal(product, sparse.matmul(x, w))


def test_padding_is_ignored_whatever_its_value_and_weight():
    csr, x = random_matrix(0)
    w = random_array(0, F + 1, H).at[F].set(np.nan)  # where a clipped index would land
    garbage = x.data.at[-3:].set(7.0)
    x = BCOO(
        (garbage, x.indices.at[-3:, 1].set(F + 1)),
        shape=(B, F + 1),
        indices_sorted=True,
    )
    assert_close(sparse.matmul(x, w), csr @ np.asarray(w[:F]))


# --- row gradients ----------------------------------------------------------------


def random_gradient(seed=0):
    """Ids 1 and 4 occur several times; ids from F on are padding with garbage."""
    ids = jnp.array([4, 1, F, 1, 0, 4, 4, F + 2])
    return sparse.RowSparseGrad(ids, random_array(seed, 8, H), F)


def whole(gradient):
    total = np.zeros((F, H))
    for i, row in zip(gradient.ids, np.asarray(gradient.rows, np.float64), strict=True):
        if i < F:
            total[i] += row
    return total


def test_dense_adds_up_duplicates_and_drops_padding():
    g = random_gradient()
    tree = sparse.dense({"rows": g, "other": g.rows})
    assert_close(tree["rows"], whole(g))
    assert tree["other"] is g.rows


@pytest.mark.parametrize("variant", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_unique_adds_up_duplicates_and_keeps_padding_out_of_range(variant):
    g = random_gradient()
    u = variant(sparse.unique)(g)
    np.testing.assert_array_equal(u.ids, [0, 1, 4, F, F, F, F, F])
    assert u.num_rows == F
    assert_close(u.rows[:3], whole(g)[[0, 1, 4]])
    assert_close(sparse.dense(u), whole(g))


def test_subtract_is_a_step_of_gradient_descent():
    g, w = random_gradient(), random_array(1, F, H)
    step = {"rows": w, "other": w}
    step = sparse.subtract(step, {"rows": g, "other": w}, 0.5)
    assert_close(step, {"rows": w - 0.5 * whole(g), "other": 0.5 * w})
    half = sparse.subtract(w.astype(jnp.bfloat16), g, jnp.float32(0.5))
    assert half.dtype == jnp.bfloat16


# --- the row view of a model ------------------------------------------------------

PATHS = ("tower/rows", "gate")


def random_params():
    """Two row weights, one of them a vector, and other weights of any shape."""
    return {
        "tower": {"rows": random_array(0, F, H), "out": random_array(1, H, 2)},
        "gate": random_array(2, F),
        "same_shape": random_array(3, F, H),
    }


def loss(params, model_state, batch, key):
    """The loss of a two-layer model with a gate for each example."""
    hidden = jnp.tanh(sparse.matmul(batch.x, params["tower"]["rows"]))
    gate = jax.nn.sigmoid(sparse.matmul(batch.x, params["gate"]))
    outputs = gate[:, None] * (hidden @ params["tower"]["out"])
    size = jnp.mean(params["same_shape"] ** 2)
    return jnp.sum((outputs - batch.y) ** 2, -1) + size, model_state


TASK = Task(None, loss, None, "loss", row_params=PATHS)


def random_batch(x, examples=B):
    return Batch(x, random_array(4, B, 2), jnp.ones(B), jnp.float32(examples))


def test_row_gradients_equal_dense_autodiff_for_two_flagged_weights():
    csr, x = random_matrix(0)
    params, grad_fn = random_params(), make_grad_fn(TASK, jax.random.key(0))
    losses, _, grads = jax.jit(grad_fn)(params, (), random_batch(x))
    flagged = grads["tower"]["rows"], grads["gate"]
    assert all(map(sparse.is_row_sparse, flagged))
    assert [g.rows.shape for g in flagged] == [(x.nse, H), (x.nse,)]
    expected = jax.value_and_grad(
        lambda p: jnp.mean(loss(p, (), random_batch(csr.toarray()), None)[0])
    )(params)
    assert_close((jnp.mean(losses), sparse.dense(grads)), expected)


def test_dense_inputs_and_tasks_without_row_weights_have_no_view():
    csr, x = random_matrix(0)
    params = random_params()
    for inputs, paths in ((jnp.asarray(csr.toarray()), PATHS), (x, ())):
        view, seen = sparse.row_view(params, inputs, paths)
        assert view is params
        assert seen is inputs
        assert sparse.row_sparse_grads(params, params, inputs, paths) is params


def test_path_names():
    paths, _ = jax.tree_util.tree_flatten_with_path({"a": [0, {"b": 1}], "c": 2})
    assert [sparse.path_name(p) for p, _ in paths] == ["a/0", "a/1/b", "c"]


def test_a_row_param_is_a_param():
    weight = sparse.RowParam(jnp.ones((F, H)))
    assert isinstance(weight, nnx.Param)


# --- what a step costs ------------------------------------------------------------


CALLS = ("jit", "pjit", "custom_jvp_call", "custom_vjp_call")


def equations(jaxpr):
    """All equations at any depth, except those that only call others."""
    for equation in jaxpr.eqns:
        if equation.primitive.name not in CALLS:
            yield equation
        for inner in jaxprs_in_params(equation.params):
            yield from equations(inner)


def whole_outputs(rule, params, batch):
    """Names of the primitives of a training step that make an array [F, H] or [F]."""
    replica = Replica(params, (), rule.init(params))
    grad_fn = make_grad_fn(TASK, jax.random.key(0))
    jaxpr = jax.make_jaxpr(lambda r, b: rule.step(r, b, 0.1, grad_fn))(replica, batch)
    return [
        equation.primitive.name
        for equation in equations(jaxpr.jaxpr)
        for out in equation.outvars
        if out.aval.shape[:1] == (F,)
    ]


def without_others(params):
    return params | {"same_shape": jnp.ones(())}


def test_a_plain_step_makes_no_whole_array_except_its_weights():
    params = without_others(random_params())
    batch = random_batch(random_matrix(0)[1])
    made = whole_outputs(local.sgd(), params, batch)
    assert made == ["scatter-add"] * len(PATHS)


def test_a_dense_step_makes_whole_arrays():
    """This shows that the test above can detect them."""
    params = without_others(random_params())
    dense = random_batch(jnp.asarray(random_matrix(0)[0].toarray()))
    assert {"dot_general", "mul"} <= set(whole_outputs(local.sgd(), params, dense))
    batch = random_batch(random_matrix(0)[1])
    made = whole_outputs(local.sgd(momentum=0.9), params, batch)
    assert len(made) > len(PATHS)


def test_a_plain_step_works_inside_the_donated_weights():
    """The compiled program needs less memory than another copy of a weight."""
    features = 4096
    params = random_params() | {
        "tower": {"rows": jnp.ones((features, H)), "out": jnp.ones((H, 2))},
        "gate": jnp.ones(features),
    }
    x = random_matrix(0)[1]
    x = BCOO((x.data, x.indices), shape=(B, features), indices_sorted=True)
    replica, rule = Replica(params), local.sgd()
    grad_fn = make_grad_fn(TASK, jax.random.key(0))
    step = jax.jit(lambda r, b: rule.step(r, b, 0.1, grad_fn), donate_argnums=0)
    memory = step.lower(replica, random_batch(x)).compile().memory_analysis()
    size = features * (H + 1) * 4
    assert memory.alias_size_in_bytes >= size
    assert memory.temp_size_in_bytes < size / 4
