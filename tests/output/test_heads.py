"""Tasks with an output layer: gradients, metrics, updates, and what is refused."""

import functools
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen, nnx
from quick import quick, quick_if

import hetjax as hj
from hetjax import local, output, sparse
from hetjax.data.batching import Batch, make_batch, make_buckets
from hetjax.replica import Replica
from hetjax.tasks.heads import MANY_LABELS
from hetjax.tasks.types import make_grad_fn

DATA = hj.data.synthetic_xmc(
    rows=40, test_rows=20, features=30, labels=12, nonzeros=6.0, labels_per_row=2.0
)
KEY = jax.random.key(2)
LAYERS = {
    "full": "full",
    "chunked": output.chunked(chunk=5),
    "sampled": output.sampled(negatives=6),
    "slide": output.slide(codes=1, tables=3, active=4),
}
OTHERS = tuple(name for name in LAYERS if name != "full")


class OwnModel(nnx.Module):
    """Two hidden layers, batch statistics, and no bias at the end."""

    def __init__(self, features, classes, *, rngs):
        self.first = nnx.Linear(features, 7, rngs=rngs)
        self.norm = nnx.BatchNorm(7, rngs=rngs)
        self.last = output.OutputParam(jax.random.normal(rngs.params(), (classes, 7)))

    def __call__(self, x):
        return jnp.tanh(self.norm(self.first(x))) @ self.last[...].T


def dense(data):
    splits = (data.train, data.test)
    pairs = [(split.x.toarray(), split.y) for split in splits]
    return hj.data.from_arrays(*pairs)


DENSE = dense(DATA)


def class_ids():
    """One class for each example, instead of a set of labels."""
    pairs = [
        (split.x, np.asarray(split.y.argmax(1)).reshape(-1))
        for split in (DATA.train, DATA.test)
    ]
    return hj.data.from_arrays(*pairs, num_classes=DATA.num_classes)


def own_functions():
    def init(key):
        draws = [
            jax.random.normal(k, (s, 5))
            for k, s in zip(jax.random.split(key), (30, 12), strict=True)
        ]
        return {"in": draws[0], "out": (draws[1], jnp.ones(12))}

    def apply(params, x):
        w, b = params["out"]
        return jnp.tanh(sparse.matmul(x, params["in"])) @ w.T + b[None]

    return hj.from_functions(
        init, apply, row_params=("in",), output_params=("out/0", "out/1")
    )


CASES = {
    "sparse_mlp": (hj.models.sparse_mlp(hidden=4), DATA),
    "no bias": (hj.models.sparse_mlp(hidden=4, bias=False), DATA),
    "own": (OwnModel, DENSE),
    "functions": (own_functions(), DATA),
    "class ids": (hj.models.sparse_mlp(hidden=4), class_ids()),
}


class Prepared(NamedTuple):
    """A task with its initial model, and a batch."""

    task: hj.Task
    batch: Batch
    params: Any
    state: Any

    def grads(self, params, task=None):
        """(losses, state after, dense gradients)."""
        grad_fn = make_grad_fn(task or self.task, KEY)
        losses, after, grads = grad_fn(params, self.state, self.batch)
        return losses, after, sparse.dense(grads)


@functools.cache
def prepared(case, layer):
    model, data = CASES[case]
    task = hj.classification(model, data, output=LAYERS[layer])
    batch = make_batch(data.train, np.arange(9), make_buckets(data.train, 12))
    return Prepared(task, batch, *jax.jit(task.init)(KEY))


@functools.cache
def gradients(case, layer):
    """(losses, state after, dense gradients) of the initial model."""
    one = prepared(case, layer)
    return jax.jit(one.grads)(one.params)


@functools.cache
def metrics_of(case, layer):
    """The metrics on the batch, of (parameters, state); compiled."""
    one = prepared(case, layer)
    return jax.jit(lambda params, state: one.task.metrics(params, state, one.batch))


def assert_close(found, expected, tolerance=2e-6):
    chex.assert_trees_all_close(found, expected, rtol=0, atol=tolerance)


PAIRS = [(case, layer) for case in CASES for layer in OTHERS]


@pytest.mark.parametrize(
    ("case", "layer"),
    quick(PAIRS, ("own", "chunked"), ("functions", "sampled")),
)
def test_gradients_are_those_of_the_loss(case, layer):
    task, batch, params, state = prepared(case, layer)

    @jax.jit
    def expected(params):
        def objective(params):
            losses, after = task.loss(params, state, batch, KEY)
            return jnp.sum(losses * batch.weight) / batch.count, (losses, after)

        grads, (losses, after) = jax.grad(objective, has_aux=True)(params)
        return losses, after, grads

    assert_close(gradients(case, layer), expected(params))


@pytest.mark.parametrize("case", quick_if(lambda case: case != "no bias", CASES))
def test_chunked_is_full(case):
    """Losses, gradients and metrics."""
    full, chunked = (prepared(case, layer) for layer in ("full", "chunked"))
    chex.assert_trees_all_equal(
        (full.params, full.state), (chunked.params, chunked.state)
    )
    assert_close(gradients(case, "chunked"), gradients(case, "full"))
    expected = metrics_of(case, "full")(full.params, full.state)
    assert_close(metrics_of(case, "chunked")(chunked.params, chunked.state), expected)


@pytest.mark.parametrize("layer", ["sampled", "slide"])
def test_metrics_are_those_of_all_labels(layer):
    full, other = (prepared("sparse_mlp", name) for name in ("full", layer))
    expected = metrics_of("sparse_mlp", "full")(other.params, full.state)
    found = metrics_of("sparse_mlp", layer)(other.params, other.state)
    assert_close(found, expected)
    model = other.task.restore(other.params, other.state)
    assert model(other.batch.x).shape == (len(other.batch.weight), 12)


UPDATES = {
    "sgd": local.sgd(),
    "momentum": local.sgd(momentum=0.9),
    "sparse momentum": local.sgd(momentum=0.9, sparse_updates=True),
    "adam": local.from_optax(optax.adam(1.0)),
    "eamsgd": local.eamsgd_nesterov(momentum=0.5),
}


@pytest.mark.parametrize("update", quick(UPDATES, "sgd", "sparse momentum", "adam"))
def test_every_local_update_on_the_chunked_layer_is_that_on_the_full_one(update):
    rule, replicas = UPDATES[update], []
    for layer in ("full", "chunked"):
        task, batch, params, state = prepared("sparse_mlp", layer)
        replica = Replica(params, state, jax.jit(rule.init)(params), {})
        grad_fn = make_grad_fn(task, KEY)
        step = jax.jit(
            lambda r, rule=rule, batch=batch, grad_fn=grad_fn: rule.step(
                r, batch, jnp.float32(0.1), grad_fn
            )[0]
        )
        replicas.append(step(step(replica)).params)
    # Adam divides by the gradient's size: rounding of tiny gradients counts
    assert_close(*replicas, 2e-4 if update == "adam" else 2e-6)


@pytest.mark.parametrize("layer", OTHERS)
def test_another_loss_is_trained(layer):
    """Not that of the output layer, which a task had before."""
    one = prepared("sparse_mlp", layer)
    constant = one.task._replace(loss=lambda p, s, batch, key: (0.0 * batch.weight, s))
    _, _, grads = jax.jit(lambda params: one.grads(params, constant))(one.params)
    zeros = jax.tree.map(np.zeros_like, one.params)
    chex.assert_trees_all_equal(grads, zeros)


SPARSE = [(r, c) for r in ("sgd", "sparse momentum") for c in ("sampled", "slide")]


@pytest.mark.parametrize(
    ("update", "layer"),
    quick(SPARSE, ("sgd", "slide"), ("sparse momentum", "sampled")),
)
def test_a_step_writes_only_the_rows_of_its_labels(update, layer):
    task, batch, params, state = prepared("sparse_mlp", layer)
    rule, grad_fn = UPDATES[update], make_grad_fn(task, KEY)

    @jax.jit
    def step(params, state):
        replica, seen = Replica(params, state, rule.init(params), {}), []

        def spy(*given):
            *values, grads = grad_fn(*given)
            seen.append(grads["kernel_out"].ids)
            return *values, grads

        after, _ = rule.step(replica, batch, jnp.float32(0.1), spy)
        (ids,) = seen
        return after.params["kernel_out"], ids

    after, ids = step(params, state)
    changed = (np.asarray(after) != np.asarray(params["kernel_out"])).any(1)
    assert changed.any()
    assert set(np.flatnonzero(changed)) <= set(np.asarray(ids))


def test_auto_is_chunked_for_many_labels_where_the_layer_is_known():
    model = hj.models.sparse_mlp(hidden=2)
    for labels, expected in ((MANY_LABELS, False), (MANY_LABELS + 1, True)):
        x, y = np.ones((2, 3), np.float32), np.array([0, 1])
        data = hj.data.from_arrays((x, y), (x, y), num_classes=labels)
        task = hj.classification(model, data)
        assert (task.head is not None) == expected
        assert hj.classification(model, data, output="full").head is None
        assert hj.classification(hj.models.mlp(hidden=2), data).head is None


class Wrong(nnx.Module):
    def __init__(self, features, classes, *, rngs, shape=None, after=None):
        self.first = nnx.Linear(features, 4, rngs=rngs)
        weight = jax.random.normal(rngs.params(), shape or (classes, 4))
        self.last = output.OutputParam(weight)
        self.after = after or (lambda z: z)

    def __call__(self, x):
        h, w = self.first(x), self.last[...]
        return self.after(h @ (w.T if w.shape[1] == 4 else w))


def wrong(**settings):
    return lambda features, classes, *, rngs: Wrong(
        features, classes, rngs=rngs, **settings
    )


def wrong_in_training(features, classes, *, rngs):
    """Dropout of outputs, which only training has."""
    return wrong(after=nnx.Dropout(0.5, rngs=rngs))(features, classes, rngs=rngs)


class Gate(nnx.Module):
    """z + g tanh z with a g that starts at zero."""

    def __init__(self):
        self.gate = nnx.Param(jnp.zeros(()))

    def __call__(self, z):
        return z + self.gate[...] * jnp.tanh(z)


def gated(features, classes, *, rngs):
    return wrong(after=Gate())(features, classes, rngs=rngs)


class Linen(linen.Module):
    @linen.compact
    def __call__(self, x):
        w = self.param("w", linen.initializers.normal(), (12, 30))
        return x @ w.T


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (hj.models.mlp(), {"output": "chunked"}, "mark its weights"),
        (hj.models.mlp(), {"output": "many"}, "output='many': choose one of"),
        (wrong(shape=(4, 12)), {"output": "chunked"}, r"last \[4, 12\].*first axis"),
        (wrong(after=jax.nn.softmax), {"output": "chunked"}, "outputs unchanged"),
        (
            wrong(after=lambda z: z.reshape(-1, 12)),
            {"output": "sampled"},
            "another number of labels",
        ),
        (wrong(after=jax.nn.relu), {"output": "chunked"}, "outputs unchanged"),
        (
            wrong(after=lambda z: 30 * jnp.tanh(z / 30)),
            {"output": "chunked"},
            "outputs unchanged",
        ),
        (
            wrong(after=lambda z: jnp.clip(z, -5, 5)),
            {"output": "sampled"},
            "outputs unchanged",
        ),
        (
            wrong(after=lambda z: z + 0.03 * jnp.abs(z)),
            {"output": "chunked"},
            "outputs unchanged",
        ),
        (gated, {"output": "chunked"}, "outputs unchanged"),
        (wrong_in_training, {"output": "chunked"}, "outputs unchanged"),
        (hj.models.sparse_mlp(), {"output": None}, "output=None: choose one of"),
        (
            hj.models.sparse_mlp(),
            {"output": output.sampled},
            r"result of hetjax.output.chunked\(\), sampled",
        ),
        (hj.models.sparse_mlp(), {"output": hj.slide()}, "choose one of"),
        (
            Linen(),
            {"output": "chunked", "output_params": ("w",)},
            "flax.linen modules check",
        ),
        (
            Linen(),
            {"output": "chunked", "output_params": ("v",)},
            "output_params: the model has no parameter 'v'; it has w",
        ),
        (Linen(), {"output_params": "w"}, "output_params='w': pass a sequence of str"),
        (
            hj.models.sparse_mlp(),
            {"output": "chunked", "output_params": ("kernel_in",)},
            "name a matrix",
        ),
    ],
    ids=[
        "unknown layer",
        "unknown name",
        "transposed",
        "softmax after it",
        "rectified",
        "soft bound",
        "bound",
        "a little more",
        "no effect yet",
        "only in training",
        "no layer",
        "no brackets",
        "the strategy",
        "fixed shape",
        "linen",
        "no such parameter",
        "not a tuple",
        "two matrices",
    ],
)
def test_models_that_do_not_fit(model, options, message):
    with pytest.raises(ValueError, match=message):
        hj.classification(model, DENSE, **options)


def test_chunks_of_nothing():
    with pytest.raises(ValueError, match="chunk=0"):
        output.chunked(chunk=0)
    with pytest.raises(ValueError, match=r"chunk=5\.5: pass a whole number"):
        output.chunked(chunk=5.5)  # pyright: ignore
