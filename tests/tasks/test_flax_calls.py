"""Random streams of flax modules, and values that their calls sow."""

import zlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

import hetjax as hj
from hetjax.data import from_arrays
from hetjax.data.batching import make_batch, make_buckets
from hetjax.tasks.model import as_model, from_linen
from hetjax.tasks.task_checks import check_task

N, WIDTH, LAYERS = 6, 64, 3
ONES = jnp.ones((2, WIDTH))
KEY, OTHER = jax.random.split(jax.random.key(7))


def values_data():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(N, WIDTH)), rng.normal(size=(N, 1))
    x, y = x.astype(np.float32), y.astype(np.float32)
    return from_arrays((x, y), (x, y), targets="values")


DATA = values_data()
BATCH = make_batch(DATA.train, np.arange(N), make_buckets(DATA.train, N))


# Random streams


class Drop(nnx.Module):
    """Dropout with a weight, so that there is something to stack."""

    def __init__(self, rngs):
        self.drop = nnx.Dropout(0.5, rngs=rngs)
        self.scale = nnx.Param(jnp.ones(()))

    def __call__(self, x):
        return self.scale[...] * self.drop(x)


def stacked(rngs):
    return nnx.split_rngs(splits=LAYERS)(nnx.vmap(Drop))(rngs)


class Ensemble(nnx.Module):
    def __init__(self, *, rngs):
        self.members = stacked(rngs)

    def __call__(self, x):
        return nnx.vmap(lambda m, x: m(x), in_axes=(0, None))(self.members, x)


class Layers(Ensemble):
    """The output of every layer, whose inputs are the same."""

    def __call__(self, x):
        def layer(m, x):
            return x, m(x)

        return nnx.scan(layer, in_axes=(0, nnx.Carry), out_axes=(nnx.Carry, 0))(
            self.members, x
        )[1]


@pytest.mark.parametrize("build", [Ensemble, Layers])
def test_stacked_modules_have_a_stream_each(build):
    model = as_model(build, None, sizes=())
    variables = model.init(KEY)
    masks, again, other = (
        model.apply(*variables, ONES, key, True)[0] for key in (KEY, KEY, OTHER)
    )
    assert masks.shape == (LAYERS, *ONES.shape)
    assert set(np.unique(masks)) == {0, 2}
    assert len(np.unique(masks.reshape(LAYERS, -1), axis=0)) == LAYERS
    np.testing.assert_array_equal(masks, again)
    assert (masks != other).any()
    evaluated, _ = model.apply(*variables, ONES, KEY, False)
    np.testing.assert_array_equal(evaluated, np.ones(masks.shape))


class Noisy(linen.Module):
    """The draws of two streams; `rng_collection` is Dropout's."""

    always: bool = False

    @linen.compact
    def __call__(self, x, train: bool = False):
        if not (train or self.always):
            return x, x
        drop = linen.Dropout(0.5, rng_collection="latent", deterministic=False)
        return x + jax.random.normal(self.make_rng("noise"), x.shape), drop(x)


def stream(name):
    return jax.random.fold_in(KEY, zlib.crc32(name.encode()))


@pytest.mark.parametrize("always", [False, True])
def test_linen_streams_of_any_name_are_drawn(always):
    """The noise of a VAE, such as what is drawn in evaluation, too."""
    module = Noisy(always)
    model = from_linen(module, ONES)
    variables = model.init(KEY)
    for train in (True, always):
        found, _ = model.apply(*variables, ONES, KEY, train)
        rngs = {name: stream(name) for name in ("noise", "latent")}
        expected = module.apply({}, ONES, train=train, rngs=rngs)
        jax.tree.map(np.testing.assert_array_equal, found, expected)
    noise, _ = model.restore(*variables)(ONES)
    assert (noise != ONES).any() == always


def test_dropout_has_the_step_s_key():
    module = linen.Dropout(0.5)
    found, _ = from_linen(module, ONES).apply({}, {}, ONES, KEY, True)
    expected = module.apply({}, ONES, deterministic=False, rngs={"dropout": KEY})
    np.testing.assert_array_equal(found, expected)


class Draw(linen.Module):
    @linen.compact
    def __call__(self, x):
        return x + jax.random.normal(self.make_rng("noise"), x.shape)


@pytest.mark.parametrize(
    "splits", [{"noise": True}, {"params": False, "noise": True}, {"params": True}]
)
def test_lifted_linen_modules_split_their_streams(splits):
    """A common stream in place of "noise" would give layers the same noise."""

    class Lifted(linen.Module):
        @linen.compact
        def __call__(self, x):
            lifted = linen.vmap(Draw, split_rngs=splits)
            return lifted()(jnp.stack([x] * LAYERS))

    found, _ = from_linen(Lifted(), ONES).apply({}, {}, ONES, KEY, True)
    assert len(np.unique(found.reshape(LAYERS, -1), axis=0)) == LAYERS


# Sown values


class Balance(nnx.Variable):
    """A kind of variable defined by a user."""


class Sowing(nnx.Module):
    """A linear model that sows the size of its outputs, and counts its calls."""

    kind = nnx.Intermediate

    def __init__(self, *, rngs):
        self.out = nnx.Linear(WIDTH, 1, rngs=rngs)
        self.calls = nnx.BatchStat(jnp.zeros(()))

    def __call__(self, x):
        z = self.out(x)
        self.sow(self.kind, "size", jnp.abs(z[:, 0]))
        self.calls[...] += 1
        return z


class SowingBalance(Sowing):
    kind = Balance


class LinenSowing(linen.Module):
    collection: str = "losses"
    total: bool = False  # whether the values of several calls are added

    @linen.compact
    def __call__(self, x):
        z = linen.Dense(1)(x)
        calls = self.variable("stats", "calls", jnp.zeros, ())
        how = {"init_fn": lambda: 0.0, "reduce_fn": jnp.add} if self.total else {}
        self.sow(self.collection, "size", jnp.abs(z[:, 0]), **how)
        if not self.is_initializing() and self.is_mutable_collection("stats"):
            calls.value += 1
        return z


def size_of(model: Any):
    if not isinstance(model, linen.Module):
        return model.size.get_value()[0]
    size: Any = model.variables[model.collection]["size"]
    return size if model.total else size[0]


def squares_and_size(model, x, y, key):
    return (model(x)[:, 0] - y[:, 0]) ** 2 + 0.1 * size_of(model)


def called() -> Any:
    """An instance whose call has sown something before."""
    model = Sowing(rngs=nnx.Rngs(0))
    model(ONES)
    return model


SOWING = {
    "nnx": Sowing,
    "nnx, own kind": SowingBalance,
    "nnx, called": called,
    "linen": LinenSowing(),
    "linen, sums": LinenSowing(total=True),
    "linen, intermediates": LinenSowing("intermediates"),
}


@pytest.mark.filterwarnings("ignore:Using 'Module.sow")
@pytest.mark.parametrize("name", SOWING)
def test_an_own_loss_reads_what_is_sown_and_no_step_keeps_it(name):
    model = SOWING[name]() if name == "nnx, called" else SOWING[name]
    task = hj.task(model, squares_and_size, data=DATA)
    check_task(task, DATA, N)
    params, state = task.init(KEY)
    (weights,) = (x for x in jax.tree.leaves(params) if x.ndim == 2)
    z = np.asarray(BATCH.x) @ np.asarray(weights)
    expected = (z - BATCH.y)[:, 0] ** 2 + 0.1 * np.abs(z[:, 0])
    for k in (1, 2, 3):
        losses, state = task.loss(params, state, BATCH, KEY)
        np.testing.assert_allclose(losses, expected, rtol=1e-4)
        (calls,) = jax.tree.leaves(state)  # and nothing else
        assert calls == k + (name == "nnx, called")
    metrics = task.metrics(params, state, BATCH)
    np.testing.assert_allclose(metrics["loss"], expected, rtol=1e-4)
    assert task.restore(params, state)(ONES).shape == (2, 1)


@pytest.mark.filterwarnings("ignore:Using 'Module.sow")
def test_an_instance_keeps_what_it_has_sown():
    model = called()
    hj.regression(model, DATA)
    (size,) = model.size.get_value()
    assert size.shape == (2,)


class Late(nnx.Module):
    def __init__(self, *, rngs):
        self.out = nnx.Linear(WIDTH, 1, rngs=rngs)

    def __call__(self, x):
        self.mean = nnx.BatchStat(x.mean(0))
        return self.out(x)


def test_state_that_a_call_makes_is_refused_by_its_name():
    with pytest.raises(
        ValueError, match="variable mean of kind BatchStat: create it in"
    ):
        hj.regression(lambda *sizes, rngs: Late(rngs=rngs), DATA)


class Growing(linen.Module):
    @linen.compact
    def __call__(self, x):
        seen = self.variable("memory", "seen", tuple)
        if self.is_mutable_collection("memory"):
            seen.value += (x.mean(),)
        return linen.Dense(1)(x)


def test_state_that_changes_its_form_is_refused_by_its_name():
    task = hj.regression(Growing(), DATA)
    message = r"state 'memory/seen/1' is missing before a .* \[\] of float32 after"
    with pytest.raises(ValueError, match=message):
        check_task(task, DATA, N)
