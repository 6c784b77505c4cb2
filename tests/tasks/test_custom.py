"""Regression, next tokens and custom losses, against NumPy; whole runs of each."""

import flax.linen as linen
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from quick import quick

import hetjax as hj
from hetjax.data.batching import make_batch, make_buckets
from hetjax.data.columns import num_rows
from hetjax.engine.programs.evaluation_batches import (
    evaluation_batches,
    mean_metrics,
    numbers_per_example,
)
from hetjax.engine.programs.task_programs import Programs
from hetjax.tasks.task_checks import check_task

N = 23
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, 4)).astype(np.float32)
VALUES = X @ RNG.normal(size=(4, 2)).astype(np.float32) + 0.5
KEY = jax.random.key(0)


def data_of(y, x=X, **given):
    return hj.data.from_arrays((x, y), (x, y), **given)


def batch_of(data, size=N):
    rows = np.arange(num_rows(data.train.x))[:size]
    return make_batch(data.train, rows, make_buckets(data.train, size + 2)[-1:])


def evaluated(task, data, most=8):
    """The metrics of the initial model, in several batches."""
    model = jax.jit(task.init)(KEY)
    programs = Programs(task)
    batches = evaluation_batches(data.test, 2**26 // most)
    assert len(batches) > 1
    return mean_metrics(programs, model, batches), model


def trained(task, data, strategy=None, seconds=0.05, **given):
    strategy = strategy or hj.elastic_sgd(
        batch_size=8, learning_rate=0.1, local_steps=2, merge_momentum=0.0
    )
    machine = hj.machine.preset("v100x2")
    given = {"num_evals": 5, "progress": False, **given}
    return hj.train(task, data, machine, strategy, seconds=seconds, **given)


LINEAR = hj.from_functions(
    lambda key: {"w": 0.1 * jax.random.normal(key, (4, 2)), "b": jnp.zeros(2)},
    lambda params, x: x @ params["w"] + params["b"][None],
)


# Regression


@pytest.mark.parametrize("columns", [None, 1, 2])
def test_regression_metrics_are_those_of_numpy(columns):
    y = VALUES[:, 0] if columns is None else VALUES[:, :columns]

    def build(features, k, *, rngs):
        assert (features, k) == (4, columns or 1)
        return nnx.Linear(features, k, rngs=rngs)

    data = data_of(y, targets="values")
    task = hj.regression(build, data)
    check_task(task, data, 8)
    found, (params, _) = evaluated(task, data)
    e = (X @ np.asarray(params["kernel"]) + np.asarray(params["bias"])) - y.reshape(
        N, -1
    )
    assert found["rmse"] == pytest.approx(np.sqrt(np.mean(e**2)), rel=1e-5)
    assert found["mae"] == pytest.approx(np.mean(np.abs(e)), rel=1e-5)
    assert found["loss"] == pytest.approx(np.mean(e**2), rel=1e-5)


def test_regression_learns_and_its_best_is_its_smallest():
    data = data_of(VALUES)
    history = trained(hj.regression(LINEAR, data), data, seconds=0.2)
    errors = [point["rmse"] for point in history.evals]
    assert (history.metric, history.mode) == ("rmse", "min")
    assert history.best() == min(errors) < 0.2 * errors[0]
    assert history.seconds_to(errors[0]) == 0.0
    assert history.seconds_to(0.0) == np.inf


def test_a_small_metric_stops_at_its_target():
    data = data_of(VALUES)
    first = trained(hj.regression(LINEAR, data), data).evals[0]["rmse"]
    history = trained(hj.regression(LINEAR, data), data, target=first)
    assert len(history.evals) == 1
    assert "rmse has reached" in history.stopped


# Next tokens


V, T = 7, 3
TOKENS = RNG.integers(0, V, (N, T))
EMBEDDED = hj.from_functions(
    lambda key: jax.random.normal(key, (V, V)), lambda table, x: table[x]
)


@pytest.mark.parametrize("masked", [False, True])
def test_next_token_metrics_are_those_of_numpy(masked):
    """The mean over tokens, not over sequences, of which some have fewer."""
    targets = RNG.integers(0, V, (N, T))
    mask = RNG.random((N, T)) < 0.6 if masked else np.ones((N, T), bool)
    y = {"targets": targets, "mask": mask} if masked else targets
    data = data_of(y, TOKENS, targets="values")
    task = hj.next_token(EMBEDDED, data)
    check_task(task, data, 8)
    found, (table, _) = evaluated(task, data)
    z = np.asarray(table, np.float64)[TOKENS]
    z = z - np.log(np.exp(z).sum(-1, keepdims=True))
    losses = -np.take_along_axis(z, targets[..., None], -1)[..., 0]
    assert found["loss"] == pytest.approx(losses[mask].mean(), rel=1e-5)
    assert found["perplexity"] == pytest.approx(np.exp(losses[mask].mean()), rel=1e-5)
    hits = (z.argmax(-1) == targets)[mask]
    assert found["accuracy"] == pytest.approx(hits.mean(), rel=1e-5)
    losses_i, _ = jax.jit(task.loss)(table, (), batch_of(data), KEY)  # of sequences
    with np.errstate(invalid="ignore"):
        each = (losses * mask).sum(1) / np.maximum(mask.sum(1), 1)
    np.testing.assert_allclose(losses_i[:N], each, rtol=1e-5, atol=1e-6)


class Transformer(nnx.Module):
    """A block of a small language model."""

    def __init__(self, vocabulary, *, rngs, width=8):
        self.embed = nnx.Embed(vocabulary, width, rngs=rngs)
        self.attend = nnx.MultiHeadAttention(2, width, decode=False, rngs=rngs)
        self.norm = nnx.LayerNorm(width, rngs=rngs)
        self.drop = nnx.Dropout(0.1, rngs=rngs)
        self.out = nnx.Linear(width, vocabulary, rngs=rngs)

    def __call__(self, x):
        h = self.embed(x)
        h = h + self.drop(self.attend(self.norm(h), mask=nnx.make_causal_mask(x)))
        return self.out(h)


def test_bytes_are_tokens():
    text = np.frombuffer(b"abracadabra " * 9, np.uint8)
    data = hj.data.from_tokens(text, text, length=4)
    task = hj.next_token(Transformer, data)
    assert data.train.x.dtype == np.uint8
    found, _ = evaluated(task, data)
    assert np.isfinite(found["loss"])


@pytest.mark.parametrize("wrong", [-100, V])
def test_targets_that_are_no_tokens_are_named(wrong):
    targets = RNG.integers(0, V, (N, T))
    targets[3, 1] = wrong
    data = data_of(targets, TOKENS, targets="values")
    with pytest.raises(ValueError, match=f"has the token {wrong}, outside 0..6: pass"):
        hj.next_token(EMBEDDED, data, vocabulary=V)
    mask = targets != wrong
    data = data_of({"targets": targets, "mask": mask}, TOKENS)
    found, _ = evaluated(hj.next_token(EMBEDDED, data, vocabulary=V), data)
    assert np.isfinite(found["loss"])


def test_metrics_are_summed_in_float32():
    def half(outputs, y):
        return jnp.full(len(y), 100.0, jnp.float16)

    data = data_of(np.zeros(2000), np.zeros((2000, 4)))
    task = hj.task(LINEAR, half)
    model = jax.jit(task.init)(KEY)
    found = mean_metrics(Programs(task), model, evaluation_batches(data.test, 1))
    assert found["loss"] == 100.0


def test_weights_do_not_count_as_numbers_of_an_example():
    model = hj.from_functions(
        lambda key: jnp.zeros((4, 300)),
        lambda w, x: x @ w.astype(jnp.bfloat16).astype(jnp.float32),
    )
    data = data_of(np.zeros((N, 300)), targets="values")
    programs = Programs(hj.regression(model, data))
    assert numbers_per_example(programs, data.test) == 300


@pytest.mark.full  # a whole run of a transformer
def test_a_small_transformer_learns_a_text():
    text = np.tile(np.arange(V), 40)  # what follows each token is certain
    data = hj.data.from_tokens(text, text[:80], length=5)
    strategy = hj.local_sgd(
        batch_size=8, local_steps=2, optimizer=optax.adam(optax.constant_schedule(0.05))
    )
    history = trained(hj.next_token(Transformer, data), data, strategy, seconds=0.1)
    first, last = history.evals[0], history.evals[-1]
    assert last["perplexity"] < 0.5 * first["perplexity"]
    assert history.model(jnp.asarray(data.test.x[:2])).shape == (2, 5, V)


# Losses of one's own


def squares(outputs, y):
    return jnp.mean((outputs - y) ** 2, axis=-1)


def squares_of(model, x, y, key):
    return squares(model(x), y)


class Norms(nnx.Module):
    """Batch statistics and dropout."""

    def __init__(self, *, rngs):
        self.norm = nnx.BatchNorm(4, rngs=rngs)
        self.drop = nnx.Dropout(0.5, rngs=rngs)
        self.out = nnx.Linear(4, 2, rngs=rngs)

    def __call__(self, x):
        return self.out(self.drop(self.norm(x)))


class LinenNorms(linen.Module):
    @linen.compact
    def __call__(self, x, train: bool):
        x = linen.BatchNorm(use_running_average=not train)(x)
        return linen.Dense(2)(linen.Dropout(0.5, deterministic=not train)(x))


def linen_squares(model, x, y, key, train):
    return squares(model(x, train=train), y)


@pytest.mark.parametrize("loss", [squares, squares_of])
def test_a_loss_of_ones_own_is_that_of_regression(loss):
    data = data_of(VALUES)
    own = hj.task(LINEAR, loss, {"near": lambda z, y: squares(z, y) < 1.0}, mode="max")
    usual = hj.regression(LINEAR, data)
    assert (own.metric, own.mode) == ("near", "max")
    losses = [column(trained(task, data), "loss") for task in (own, usual)]
    np.testing.assert_allclose(*losses, rtol=1e-5)


def column(history, name):
    return [point[name] for point in history.evals]


MODELS = {
    "nnx, outputs": (Norms, squares),
    "nnx, model": (Norms, squares_of),
    "linen, outputs": (LinenNorms(), squares),
    "linen, model": (LinenNorms(), linen_squares),
}


@pytest.mark.parametrize("name", quick(MODELS, "nnx, outputs", "linen, model"))
def test_statistics_and_dropout_are_those_of_the_mode(name):
    """In training they move and are drawn; in evaluation both stand still."""
    model, loss = MODELS[name]
    data = data_of(VALUES)
    task = hj.task(model, loss, data=data)
    assert (task.metric, task.mode) == ("loss", "min")
    params, state = jax.jit(task.init)(KEY)
    batch, keys = batch_of(data), jax.random.split(KEY)
    loss, metrics = jax.jit(task.loss), jax.jit(task.metrics)
    (one, after), (two, _) = (loss(params, state, batch, k) for k in keys)
    assert not np.allclose(one, two)
    moved = [
        not np.allclose(a, b)
        for a, b in zip(jax.tree.leaves(after), jax.tree.leaves(state), strict=True)
    ]
    assert any(moved)
    looks = [metrics(params, state, batch)["loss"] for _ in range(2)]
    np.testing.assert_array_equal(*looks)


def of_trees():
    """(task, data): tokens and features in, two heads out."""
    x = {"tokens": TOKENS, "features": X}
    y = {"values": VALUES, "next": TOKENS[:, 0]}
    data = data_of(y, x)

    class Two(nnx.Module):
        def __init__(self, *, rngs):
            self.embed = nnx.Embed(V, 4, rngs=rngs)
            self.values = nnx.Linear(8, 2, rngs=rngs)
            self.next = nnx.Linear(8, V, rngs=rngs)

        def __call__(self, x):
            h = self.embed(x["tokens"]).mean(axis=1)
            h = jnp.concatenate([h, x["features"]], axis=-1)
            return {"values": self.values(h), "next": self.next(h)}

    def loss(out, y):
        cross = optax.softmax_cross_entropy_with_integer_labels(out["next"], y["next"])
        return squares(out["values"], y["values"]) + cross

    def hits(out, y):
        return out["next"].argmax(-1) == y["next"]

    return hj.task(Two, loss, {"hits": hits}, mode="max"), data


def test_trees_as_inputs_and_targets():
    task, data = of_trees()
    history = trained(task, data, seconds=0.1)
    assert column(history, "loss")[-1] < column(history, "loss")[0]
    assert 0 <= history.best() <= 1


@pytest.mark.full  # a comparison, its files and its report
def test_results_of_trees(tmp_path):
    task, data = of_trees()
    strategy = hj.sync_sgd(batch_size=8, learning_rate=0.1)
    machine = hj.machine.preset("v100x2")
    given = {"seconds": 0.01, "num_evals": 2, "progress": False}
    runs = hj.compare(task, data, machine, {"sync": strategy}, **given)
    runs.to_json(tmp_path / "results.json")
    again = hj.Comparison.from_json(tmp_path / "results.json")
    assert str(again.table()) == str(runs.table())
    again.report(tmp_path / "report.html")
    assert "7 features" in (tmp_path / "report.html").read_text()


WRONG = [
    (
        {"metrics": {"mae": squares}},
        "mode is missing: pass mode=\"max\" if larger values of 'mae'",
    ),
    ({"loss": lambda z: z}, r"loss takes \(z\): pass a function \(outputs, y\) or"),
    ({"loss": "mse"}, "loss='mse': pass a function"),
    ({"metrics": {"loss": squares}}, "metrics has the name 'loss'"),
    ({"metric": "other"}, "metric='other': choose one of loss"),
    ({"mode": "least"}, "mode='least': choose one of"),
    ({"mode": "max"}, 'mode="max": the main metric is the loss'),
    (
        {"metrics": {"a": lambda: 0}, "mode": "min"},
        r"metrics\['a'\] takes \(\): pass a function",
    ),
    ({"model": LinenNorms()}, "a flax.linen module takes its shapes from an example"),
]


@pytest.mark.parametrize(("given", "message"), WRONG)
def test_tasks_that_cannot_be_meant(given, message):
    with pytest.raises(ValueError, match=message):
        hj.task(**{"model": LINEAR, "loss": squares, **given})


CLASSES = data_of(np.arange(N) % 3)
WRONG_DATA = [
    (lambda: hj.regression(LINEAR, CLASSES), "are classes: use hetjax.classification"),
    (
        lambda: hj.regression(LINEAR, data_of(VALUES[:, :1])),
        r"return \[B, 1\], as y",
    ),
    (lambda: hj.regression(LINEAR, data_of(VALUES[None].repeat(N, 0))), r"\[N, k\]"),
    (lambda: hj.next_token(EMBEDDED, CLASSES), r"is \[23\] of int32: pass integers"),
    (
        lambda: hj.next_token(EMBEDDED, data_of(TOKENS + 1, TOKENS, targets="values")),
        r"returns \[2, 3, 7\] of float32 .* return logits \[B, 3, V\], V at least 8",
    ),
    (
        lambda: hj.classification(LINEAR, data_of(TOKENS, targets="values")),
        "for tokens use hetjax.next_token",
    ),
    (
        lambda: hj.classification(LINEAR, data_of({"a": VALUES})),
        "y of arrays is several arrays",
    ),
]


@pytest.mark.parametrize(("make", "message"), WRONG_DATA)
def test_data_of_another_task(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_weights_by_a_metric_that_is_to_be_small_are_refused():
    data = data_of(VALUES)
    strategy = hj.fed_acc(batch_size=4, learning_rate=0.1)
    with pytest.raises(
        ValueError, match="fed_acc weights models by their rmse, for which"
    ):
        trained(hj.regression(LINEAR, data), data, strategy)


# Comparisons


def test_a_comparison_follows_the_direction():
    """Tuning takes the rate with the smallest error; targets are 3 % above the best."""
    data = data_of(VALUES)
    strategies = {
        name: hj.elastic_sgd(batch_size=8, learning_rate=1.0, local_steps=k)
        for name, k in (("one", 1), ("four", 4))
    }
    runs = hj.compare(
        hj.regression(LINEAR, data),
        data,
        hj.machine.preset("v100x2"),
        strategies,
        seconds=0.05,
        num_evals=5,
        learning_rates=(1e-4, 0.03),
        progress=False,
    )
    assert runs.tuning["chosen"] == {"one": 0.03, "four": 0.03}
    for scores in runs.tuning["scores"].values():
        assert 0 < scores["0.03"] < scores["0.0001"]
    best = min(column(h, "rmse")[-1] for h in runs.histories)
    assert runs.target == pytest.approx(1.03 * best, rel=5e-3)
    assert "103 % of the best final median" in str(runs.table())
    assert any(row["seconds_to_target"] is not None for row in runs.summary())


def test_a_rate_inside_an_optimizer_cannot_be_chosen():
    data = data_of(VALUES)
    strategy = hj.elastic_sgd(batch_size=8, optimizer=optax.adam(0.1))
    with pytest.raises(ValueError, match="adam has its learning rate in its optimizer"):
        hj.compare(
            hj.regression(LINEAR, data),
            data,
            hj.machine.preset("v100x2"),
            {"adam": strategy},
            seconds=0.05,
            learning_rates=(0.1, 1.0),
        )
