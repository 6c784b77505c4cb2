"""One run: invalid arguments are refused at once, and the model is returned."""

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx
from tiny_runs import (
    averaging,
    counting_data,
    counting_task,
    machine,
    nothing_compiled,
    train,
)

import hetjax as hj
from hetjax.data import from_arrays


def empty(split):
    return split.take(np.empty(0, np.int64))


FULL = counting_data()
WRONG = [
    ({"seconds": 0.0}, "seconds=0.0: pass a number above 0"),
    ({"seconds": -1.0}, "seconds=-1.0"),
    ({"seconds": float("nan")}, "seconds=nan"),
    ({"seconds": float("inf")}, "seconds=inf"),
    ({"num_evals": 0}, "num_evals=0: pass a whole number from 1"),
    ({"seed": -1}, "seed=-1: pass a whole number"),
    ({"seed": 2**32}, "seed=4294967296"),
    ({"seed": 0.5}, "seed=0.5"),
    (
        {"learning_rate": 0.0},
        "averaging: learning_rate=0.0: pass a finite number above 0",
    ),
    ({"learning_rate": float("nan")}, "learning_rate=nan"),
    ({"batch_size": 25}, "averaging: a batch of 25 is larger than the 24 examples"),
    ({"data": replace(FULL, train=empty(FULL.train))}, "the training split of arrays"),
    ({"data": replace(FULL, test=empty(FULL.test))}, "test split of arrays has no"),
]


@pytest.mark.parametrize(("change", "message"), WRONG, ids=[m for _, m in WRONG])
def test_invalid_arguments_are_refused_before_anything_is_compiled(change, message):
    own = {k: v for k, v in change.items() if k in ("learning_rate", "batch_size")}
    options = {k: v for k, v in change.items() if k not in own}
    data, seconds = options.pop("data", FULL), options.pop("seconds", 1.0)
    task, strategy = counting_task(), averaging(**own)
    with nothing_compiled(), pytest.raises(ValueError, match=message):
        hj.train(task, data, machine(1.0), strategy, seconds=seconds, **options)


@pytest.mark.parametrize("seed", [2**32 - 1, np.int64(3)])
def test_unusual_seeds(seed):
    history = train(machine(1.0), averaging(), 1.0, seed=seed)
    assert history.seed == seed


# The model.


def three_classes(n=60):
    rng = np.random.default_rng(0)
    y = rng.integers(3, size=n)
    x = (rng.normal(size=(3, 5))[y] + rng.normal(size=(n, 5))).astype(np.float32)
    return from_arrays((x, y), (x[:20] * 0.9, y[:20]), num_classes=3)


@cache
def trained(model, seed=0):
    """A short run on two workers, and its data."""
    data = three_classes()
    strategy = hj.elastic_sgd(batch_size=6, learning_rate=0.1, local_steps=2)
    task = hj.classification(model, data)
    options = {"seconds": 9.0, "num_evals": 3, "seed": seed, "progress": False}
    return hj.train(task, data, machine(1.0, 1.5), strategy, **options), data


def measured(logits, y):
    """Mean cross-entropy and accuracy, in NumPy."""
    logits = np.asarray(logits, np.float64)
    z = logits - logits.max(-1, keepdims=True)
    log_p = z - np.log(np.exp(z).sum(-1, keepdims=True))
    return -log_p[np.arange(len(y)), y].mean(), np.mean(logits.argmax(-1) == y)


def check_predicts_as_evaluated(history, data):
    loss, accuracy = measured(history.model(data.test.x), data.test.y)
    last = history.evals[-1]
    assert last["loss"] == pytest.approx(loss, rel=1e-5)  # float32
    assert last["accuracy"] == pytest.approx(accuracy)
    assert last["loss"] != history.evals[0]["loss"]


class Normed(nnx.Module):
    """Batch normalisation and dropout: both behave differently in training."""

    def __init__(self, features, classes, *, rngs):
        self.first = nnx.Linear(features, 8, rngs=rngs)
        self.norm = nnx.BatchNorm(8, momentum=0.5, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.last = nnx.Linear(8, classes, rngs=rngs)

    def __call__(self, x):
        return self.last(self.dropout(nnx.relu(self.norm(self.first(x)))))


class LinenNormed(linen.Module):
    """The same model in Flax Linen."""

    @linen.compact
    def __call__(self, x, train=False):
        x = linen.BatchNorm(use_running_average=not train, momentum=0.5)(
            linen.Dense(8)(x)
        )
        return linen.Dense(3)(linen.relu(x))


def linear():
    return hj.from_functions(
        lambda key: {"w": jax.random.normal(key, (5, 3))},
        lambda params, x: jnp.asarray(x) @ params["w"],
    )


MODELS = {
    "nnx": hj.models.mlp(hidden=8),
    "nnx with statistics": Normed,
    "linen with statistics": LinenNormed(),
    "functions": linear(),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_model_predicts_as_it_was_evaluated(name):
    history, data = trained(MODELS[name])
    check_predicts_as_evaluated(history, data)


@pytest.mark.parametrize("name", ["nnx with statistics", "linen with statistics"])
def test_batch_statistics_are_returned(name):
    history, data = trained(MODELS[name])
    _, start = hj.classification(MODELS[name], data).init(jax.random.key(0))
    before, after = map(jax.tree.leaves, (start, history.model_state))
    assert [x.shape for x in after] == [x.shape for x in before]
    means = [x for x in after if x.shape == (8,)]
    assert len(means) == 2
    assert all(np.isfinite(x).all() and np.abs(x).max() > 0.01 for x in means)
    changed = [np.abs(x - y).max() for x, y in zip(before, after, strict=True)]
    assert sum(c > 0.01 for c in changed) == 2  # a mean and a variance


def test_the_restored_module_is_a_module_of_the_users_class():
    history, _ = trained(Normed)
    assert isinstance(history.model, Normed)
    assert jax.tree.all(
        jax.tree.map(
            lambda x, y: bool(jnp.all(x == y)),
            nnx.to_pure_dict(nnx.state(history.model, nnx.Param)),
            history.params,
        )
    )


def test_a_module_starts_from_its_own_parameters_and_keeps_them():
    module = Normed(5, 3, rngs=nnx.Rngs(7))
    before = jax.tree.map(np.array, nnx.to_pure_dict(nnx.state(module, nnx.Param)))
    history, data = trained(module)
    module.eval()
    loss, _ = measured(module(jnp.asarray(data.test.x)), data.test.y)
    assert history.evals[0]["loss"] == pytest.approx(loss, rel=1e-5)
    after = nnx.to_pure_dict(nnx.state(module, nnx.Param))
    jax.tree.map(np.testing.assert_array_equal, after, before)


def test_settings_and_seed_are_recorded():
    history, _ = trained(MODELS["functions"], seed=3)
    assert (history.strategy, history.seed, history.metric) == (
        "elastic_sgd",
        3,
        "accuracy",
    )
    assert history.settings == {
        "batch_size": 6,
        "learning_rate": 0.1,
        "local_steps": 2,
        "mega_batch": None,
        "merge_momentum": 0.9,
        "optimizer": None,
    }


def test_a_learning_rate_may_be_a_schedule_over_examples():
    """Steps of 2 examples: learning rate 1 for the first three, then 1/4.

    A step's learning rate is that of the examples that had arrived when it began.
    """
    learning_rate = lambda examples: 1.0 if examples < 6 else 0.25  # noqa: E731
    strategy = hj.sequential_sgd(batch_size=2, learning_rate=learning_rate)
    history = train(machine(1.0), strategy, 5.0, num_evals=5)
    assert [p["w"] for p in history.evals] == [0, 1, 2, 3, 3.25, 3.5]
