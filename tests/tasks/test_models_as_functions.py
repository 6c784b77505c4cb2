"""Any model as pure functions: flax.nnx, flax.linen, plain functions."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen, nnx

from hetjax import local, sparse
from hetjax.data.batching import make_batch, make_buckets
from hetjax.data.dataset import Dataset, Split
from hetjax.replica import Replica
from hetjax.tasks import classification, from_functions
from hetjax.tasks.model import as_model
from hetjax.tasks.types import make_grad_fn

FEATURES, CLASSES, EXAMPLES = 6, 3, 8
MOMENTUM = 0.9  # of the running statistics


class NnxNet(nnx.Module):
    """Batch normalization of the inputs, then dropout twice, then logits."""

    def __init__(self, features, classes, *, rngs):
        self.norm = nnx.BatchNorm(features, momentum=MOMENTUM, rngs=rngs)
        self.drops = nnx.List([nnx.Dropout(0.3, rngs=rngs) for _ in range(2)])
        self.out = nnx.Linear(features, classes, rngs=rngs)

    def __call__(self, x):
        x = self.norm(x)
        for drop in self.drops:
            x = drop(x)
        return self.out(x)


class LinenNet(linen.Module):
    """The same model in Linen, with the argument `train`."""

    @linen.compact
    def __call__(self, x, train: bool):
        x = linen.BatchNorm(use_running_average=not train, momentum=MOMENTUM)(x)
        for _ in range(2):
            x = linen.Dropout(0.3, deterministic=not train)(x)
        return linen.Dense(CLASSES)(x)


class LinenOther(linen.Module):
    """The same model with flags of other names."""

    @linen.compact
    def __call__(self, x, deterministic: bool, use_running_average: bool):
        norm = linen.BatchNorm(momentum=MOMENTUM)
        x = norm(x, use_running_average=use_running_average)
        x = linen.Dropout(0.3)(x, deterministic=deterministic)
        return linen.Dense(CLASSES)(x)


class LinenPlain(linen.Module):
    """A model without state and flags."""

    @linen.compact
    def __call__(self, x):
        return linen.Dense(CLASSES)(x)


def random_data():
    rng = np.random.default_rng(0)
    x = (2 + rng.normal(size=(EXAMPLES, FEATURES))).astype(np.float32)
    split = Split(x, rng.integers(CLASSES, size=EXAMPLES).astype(np.int32))
    return Dataset(split, split, CLASSES)


DATA = random_data()
BATCH = make_batch(DATA.train, np.arange(EXAMPLES), make_buckets(DATA.train, EXAMPLES))
KEYS = jax.random.split(jax.random.key(7), 2)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(NnxNet, id="nnx"),
        pytest.param(LinenNet(), id="linen"),
        pytest.param(LinenOther(), id="linen other", marks=pytest.mark.full),
    ],
)
def task(request):
    """A task with compiled functions, for a model with statistics and dropout."""
    task = classification(request.param, DATA)
    return task._replace(
        init=jax.jit(task.init), loss=jax.jit(task.loss), metrics=jax.jit(task.metrics)
    )


def leaves_named(tree, name):
    flat, _ = jax.tree_util.tree_flatten_with_path(tree)
    return [x for path, x in flat if name in jax.tree_util.keystr(path)]


def test_statistics_are_model_state_and_are_returned(task):
    params, state = task.init(KEYS[0])
    _, after = task.loss(params, state, BATCH, KEYS[0])
    jax.tree.map(lambda a, b: np.testing.assert_equal(a.shape, b.shape), state, after)
    (old,), (new,) = leaves_named(state, "mean"), leaves_named(after, "mean")
    np.testing.assert_array_equal(old, 0)
    np.testing.assert_allclose(new, (1 - MOMENTUM) * BATCH.x.mean(0), rtol=1e-5)
    assert not leaves_named(params, "mean")


def test_evaluation_uses_the_statistics(task):
    params, state = task.init(KEYS[0])
    _, after = task.loss(params, state, BATCH, KEYS[0])
    before = task.metrics(params, state, BATCH)["loss"]
    assert (task.metrics(params, after, BATCH)["loss"] != before).all()


def test_dropout_differs_by_key_and_is_off_in_evaluation(task):
    params, state = task.init(KEYS[0])
    first, again, other = (
        task.loss(params, state, BATCH, k)[0] for k in (KEYS[0], KEYS[0], KEYS[1])
    )
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
    # in evaluation the same example has the same loss in every place
    same = BATCH._replace(x=BATCH.x[[0] * EXAMPLES], y=BATCH.y[[0] * EXAMPLES])
    assert len(set(task.metrics(params, state, same)["loss"].tolist())) == 1


def test_seeds_start_from_different_parameters(task):
    first, again, other = (task.init(k)[0] for k in (KEYS[0], KEYS[0], KEYS[1]))
    jax.tree.map(np.testing.assert_array_equal, first, again)
    kernels = [leaves_named(p, "kernel")[0] for p in (first, other)]
    assert (kernels[0] != kernels[1]).all()


def test_parameters_and_state_are_plain_dictionaries(task):
    def check(tree):
        assert isinstance(tree, dict | jax.Array)
        for child in tree.values() if isinstance(tree, dict) else ():
            check(child)

    params, state = task.init(KEYS[0])
    check(params)
    check(state)
    check(task.loss(params, state, BATCH, KEYS[0])[1])


def test_a_model_trains_and_the_restored_one_predicts_the_same(task):
    params, state = task.init(KEYS[0])
    rule = local.from_optax(optax.adam(1.0))
    replica = Replica(params, state, jax.jit(rule.init)(params))
    step = jax.jit(
        lambda r, key: rule.step(r, BATCH, jnp.float32(0.05), make_grad_fn(task, key))
    )
    before = task.metrics(params, state, BATCH)["loss"].mean()
    for key in jax.random.split(KEYS[0], 40):
        replica, _ = step(replica, key)
    trained = replica.params, replica.model_state
    after = task.metrics(*trained, BATCH)
    assert after["loss"].mean() < before
    model = task.restore(*trained)
    arguments = {
        LinenNet: {"train": False},
        LinenOther: {"deterministic": True, "use_running_average": True},
    }.get(type(model), {})
    logits = np.asarray(jax.jit(lambda x: model(x, **arguments))(BATCH.x))
    hits = np.argmax(logits, 1) == BATCH.y
    np.testing.assert_array_equal(hits, after["accuracy"])
    shifted = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    np.testing.assert_allclose(
        -shifted[np.arange(EXAMPLES), BATCH.y], after["loss"], rtol=1e-5, atol=1e-6
    )


# --- flax.nnx ---------------------------------------------------------------------


def test_an_instance_starts_every_seed_from_its_own_parameters():
    model = NnxNet(FEATURES, CLASSES, rngs=nnx.Rngs(3))
    task = classification(model, DATA)
    for key in KEYS:
        params, _ = task.init(key)
        np.testing.assert_array_equal(params["out"]["kernel"], model.out.kernel[...])


def test_an_instance_is_left_alone():
    """Also if its parameters are donated, and in training mode or not."""
    model = NnxNet(FEATURES, CLASSES, rngs=nnx.Rngs(3))
    model.train()
    copy = nnx.clone(model)
    task = classification(model, DATA)
    params, state = jax.jit(task.init)(KEYS[0])
    train = jax.jit(
        lambda p, s: (jax.tree.map(jnp.negative, p), task.loss(p, s, BATCH, KEYS[0])),
        donate_argnums=(0, 1),
    )
    params, (_, state) = train(params, state)
    restored = task.restore(params, state)
    restored.out.kernel[...] = jnp.zeros((FEATURES, CLASSES))
    jax.tree.map(
        np.testing.assert_array_equal,
        nnx.to_pure_dict(nnx.state(model, nnx.Not(nnx.RngState))),
        nnx.to_pure_dict(nnx.state(copy, nnx.Not(nnx.RngState))),
    )
    assert not model.drops[0].deterministic
    assert restored.drops[0].deterministic


def test_each_dropout_has_its_own_stream():
    class Drops(nnx.Module):
        def __init__(self, features, classes, *, rngs):
            self.first = nnx.Dropout(0.5, rngs=rngs)
            self.second = nnx.Dropout(0.5, rngs=rngs)
            self.scale = nnx.Param(jnp.ones(()))

        def __call__(self, x):
            ones = self.scale[...] * jnp.ones((1, 64))
            return jnp.concatenate([self.first(ones), self.second(ones)])

    model = as_model(Drops, DATA)
    masks, _ = model.apply(*model.init(KEYS[0]), None, KEYS[0], True)
    assert (masks[0] != masks[1]).any()


def test_row_params_are_found_wherever_they_are():
    class Tower(nnx.Module):
        def __init__(self, features, classes, *, rngs):
            self.parts = nnx.List(
                [sparse.RowParam(jnp.ones((features, classes))) for _ in range(2)]
            )
            self.bias = nnx.Param(jnp.ones(classes))

        def __call__(self, x):
            return sum(sparse.matmul(x, w[...]) for w in self.parts)

    task = classification(Tower, DATA)
    assert task.row_params == ("parts/0", "parts/1")
    names = jax.tree_util.tree_flatten_with_path(task.init(KEYS[0])[0])[0]
    assert {"parts/0", "parts/1"} < {sparse.path_name(path) for path, _ in names}


# --- flax.linen and plain functions -----------------------------------------------


def test_a_linen_model_without_state_or_flags():
    task = classification(LinenPlain(), DATA, row_params=("Dense_0/kernel",))
    assert task.row_params == ("Dense_0/kernel",)
    params, state = task.init(KEYS[0])
    losses, after = task.loss(params, state, BATCH, KEYS[0])
    assert state == after == {}
    np.testing.assert_array_equal(losses, task.metrics(params, state, BATCH)["loss"])


def test_a_name_of_two_parameters_is_refused():
    model = from_functions(
        lambda key: {"a/b": jnp.ones((FEATURES, CLASSES)), "a": {"b": jnp.ones(2)}},
        lambda params, x: x @ params["a/b"],
    )
    classification(model, DATA)  # nothing is named
    with pytest.raises(ValueError, match="has 2 parameters with the path 'a/b'"):
        classification(model, DATA, row_params=("a/b",))


def test_plain_functions():
    model = from_functions(
        lambda key: {"w": jax.random.normal(key, (FEATURES, CLASSES))},
        lambda params, x: x @ params["w"],
        row_params=("w",),
    )
    with pytest.raises(ValueError, match="no parameter 'v'; it has w"):
        classification(model, DATA, row_params=("v",))
    task = classification(model, DATA)
    params, state = task.init(KEYS[0])
    losses, after = task.loss(params, state, BATCH, KEYS[0])
    assert state == after == ()
    logits = task.restore(params, state)(BATCH.x)
    expected = optax.softmax_cross_entropy_with_integer_labels(logits, BATCH.y)
    np.testing.assert_allclose(losses, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("model", [None, "mlp", 3, (len, len)])
def test_an_object_that_is_not_a_model_is_an_error(model):
    name = type(model).__name__
    with pytest.raises(ValueError, match=f"{name}: pass a flax.nnx .*from_functions"):
        classification(model, DATA)
