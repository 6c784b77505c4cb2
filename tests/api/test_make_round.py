"""`make_round`: equal to `train`, round by round, and to rounds computed by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_make_run import make_problem, network

import hetjax as hj
from hetjax.data.batching import Batch

WORKERS, STEPS, SIZE, ROUNDS = 4, 3, 8, 3
RATE = 0.1


@pytest.fixture(scope="module")
def problem():
    return make_problem(jnp.float32)


def made(name, **settings):
    given = {"batch_size": SIZE, "learning_rate": RATE}
    if name != "sync_sgd":
        given["local_steps"] = STEPS
    return hj.STRATEGIES[name](**given | settings)


def drawn(data, steps=STEPS):
    """The batches of each round as `train` draws them: (x, y) [R, W, K, B, ...]."""
    infos = hj.machine.preset(f"uniform:{WORKERS}").worker_infos(0.0)
    sampler = hj.sampling.uniform()
    state = sampler.init(infos, len(data.train), 0)
    rows = np.zeros((ROUNDS, WORKERS, steps * SIZE), int)
    for r in range(ROUNDS):
        for k in range(WORKERS):
            state, rows[r, k] = sampler.draw(state, k, steps * SIZE)
    rows = rows.reshape(ROUNDS, WORKERS, steps, SIZE)
    return jnp.asarray(data.train.x)[rows], jnp.asarray(data.train.y)[rows]


@pytest.mark.parametrize(
    "name",
    [
        "local_sgd",
        *(
            pytest.param(name, marks=pytest.mark.full)
            for name in ("sync_sgd", "sma", "easgd_sync", "fed_nova", "elastic_sgd")
        ),
    ],
)
def test_rounds_equal_those_of_train(problem, name):
    task, data = problem
    strategy = made(name)
    machine = hj.machine.preset(f"uniform:{WORKERS}")
    steps = 1 if name == "sync_sgd" else STEPS

    def enough(point):
        return hj.STOP if point["merges"] >= ROUNDS else None

    history = hj.train(
        task,
        data,
        machine,
        strategy,
        seconds=10,
        num_evals=5000,
        on_eval=enough,
        progress=False,
    )
    assert history.merges == ROUNDS
    init, round, model = hj.make_round(task, strategy, workers=WORKERS)
    state, metrics = jax.lax.scan(round, init(jax.random.key(0)), drawn(data, steps))
    params, model_state = model(state)
    assert metrics["losses"].shape == (ROUNDS, WORKERS, steps)
    np.testing.assert_allclose(
        metrics["loss"], metrics["losses"].mean((1, 2)), rtol=1e-5
    )
    assert state.steps.tolist() == [ROUNDS * steps] * WORKERS
    for a, b in zip(
        jax.tree.leaves((history.params, history.model_state)),
        jax.tree.leaves((params, model_state)),
        strict=True,
    ):
        np.testing.assert_allclose(b, a, rtol=0, atol=2e-6)


def least_squares():
    """Losses |w - y|^2 / 2, so that a step is w <- w - rate (w - mean y)."""
    model = hj.from_functions(
        lambda key: jnp.zeros(2), lambda w, x: jnp.broadcast_to(w, x.shape)
    )
    return hj.task(model, lambda outputs, y: ((outputs - y) ** 2).sum(axis=-1) / 2)


def by_hand(y, steps, rates):
    """The mean of models that took their own numbers of steps; y [W, K, B, 2]."""
    models = []
    for own, n, rate in zip(y, steps, rates, strict=True):
        w = np.zeros(2)
        for k in range(n):
            w = w - rate * (w - own[k].mean(axis=0))
        models.append(w)
    here = np.array(steps) > 0
    return np.array(models)[here].mean(axis=0)


def test_workers_have_their_own_numbers_of_steps_and_rates():
    rng = np.random.default_rng(0)
    y = rng.normal(size=(3, 4, 5, 2))
    strategy = hj.local_sgd(batch_size=5, learning_rate=0.1, momentum=0.0)
    init, round, model = hj.make_round(least_squares(), strategy, workers=3)
    steps, rates = [4, 0, 2], np.array([0.1, 0.5, 0.3])
    state, metrics = jax.jit(round)(
        init(jax.random.key(0)), (y, y), steps=jnp.array(steps), learning_rate=rates
    )
    np.testing.assert_allclose(model(state)[0], by_hand(y, steps, rates), rtol=1e-5)
    assert state.steps.tolist() == steps
    np.testing.assert_array_equal(
        np.isnan(metrics["losses"]), np.arange(4) >= np.array(steps)[:, None]
    )
    taken = np.asarray(metrics["losses"])[[0, 0, 0, 0, 2, 2], [0, 1, 2, 3, 0, 1]]
    np.testing.assert_allclose(metrics["loss"], taken.mean(), rtol=1e-5)


def test_padded_examples_do_not_count():
    rng = np.random.default_rng(0)
    y = rng.normal(size=(2, 1, 4, 2))
    weight = np.ones((2, 1, 4), np.float32)
    weight[1, 0, 3] = 0
    count = weight.sum(axis=-1)
    strategy = hj.sync_sgd(batch_size=4, learning_rate=0.1)  # weights by examples
    init, round, model = hj.make_round(least_squares(), strategy, workers=2)
    state, _ = round(init(jax.random.key(0)), Batch(y, y, weight, count))
    expected = 0.1 * y.reshape(-1, 2)[:7].mean(axis=0)
    np.testing.assert_allclose(model(state)[0], expected, rtol=1e-5)


def test_a_merge_of_ones_own_takes_a_tuple_of_replicas():
    def apply(state, replicas, stats, op):
        middle = jnp.median(jnp.stack([r.params for r in replicas]), axis=0)
        return (middle, ()), tuple(r._replace(params=middle) for r in replicas)

    median = hj.merge.Merge(lambda *model: model, apply, model=lambda state: state)
    strategy = made("local_sgd", momentum=0.0)._replace(merge=median)
    y = np.random.default_rng(0).normal(size=(3, 1, 4, 2))
    init, round, model = hj.make_round(least_squares(), strategy, workers=3)
    state, _ = round(init(jax.random.key(0)), (y, y))
    expected = np.median(RATE * y.mean(axis=(1, 2)), axis=0)
    np.testing.assert_allclose(model(state)[0], expected, rtol=1e-5)
    assert state.replicas.params.shape == (3, 2)


def test_gradients_by_a_setting_go_through_rounds():
    """Two rounds of SMA in float64, and the slope by alpha and by the rate."""
    with jax.enable_x64(True):
        task, data = make_problem(jnp.float64)
        _, apply = network(jnp.float64)
        batches = jax.tree.map(lambda x: x[:2], drawn(data, 1))

        @jax.jit
        def loss(given):
            strategy = made("sma", local_steps=1, alpha=given["alpha"])
            init, round, model = hj.make_round(task, strategy, workers=WORKERS)

            def one(state, now):
                return round(state, now, learning_rate=given["rate"])

            state, _ = jax.lax.scan(one, init(jax.random.key(0)), batches)
            errors = apply(model(state)[0], data.test.x) - jnp.asarray(data.test.y)
            return (errors**2).mean()

        given = {"alpha": jnp.float64(0.2), "rate": jnp.float64(0.1)}
        slopes = jax.grad(loss)(given)
        for k, value in given.items():
            ends = [loss({**given, k: value + e}) for e in (1e-3, -1e-3)]
            np.testing.assert_allclose(slopes[k], (ends[0] - ends[1]) / 2e-3, rtol=2e-3)


def test_keys_are_mapped_and_params_are_taken(problem):
    task, data = problem
    init, round, model = hj.make_round(task, made("sma"), workers=WORKERS)
    batches = jax.tree.map(lambda x: x[0], drawn(data))
    keys = jax.random.split(jax.random.key(0), 2)
    of_key = lambda key: round(init(key), batches)[0]  # noqa: E731
    state = jax.jit(jax.vmap(of_key))(keys)
    own = jax.jit(of_key)(keys[1])
    np.testing.assert_allclose(
        state.merge.center["a"][1], own.merge.center["a"], atol=1e-6
    )
    params, _ = task.init(jax.random.key(7))
    np.testing.assert_array_equal(model(init(keys[0], params))[0]["a"], params["a"])


ONE = np.zeros((2, 1, 4, 2))


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        (
            hj.hier_sgd(batch_size=4, learning_rate=0.1, levels=(2,)),
            "merges at the nodes",
        ),
        (
            made("fed_acc"),
            "weighs workers by their metrics on held-out examples, which",
        ),
        (hj.ad_psgd(batch_size=4, learning_rate=0.1), "not merge all workers at once"),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_strategies_that_have_no_rounds(strategy, message):
    with pytest.raises(ValueError, match=message):
        hj.make_round(least_squares(), strategy, workers=2)


@pytest.mark.parametrize(
    ("batches", "options", "message"),
    [
        (
            (ONE[:1], ONE[:1]),
            {},
            r"have the shape \(1, 1, 4\); their first axes must",
        ),
        (ONE, {}, r"must be a pair \(x, y\) of arrays \[workers, steps"),
        (
            (ONE, ONE),
            {"learning_rate": np.ones(3)},
            r"has shape \(3,\); pass one number",
        ),
    ],
    ids=("workers", "no pair", "rates"),
)
def test_what_a_round_refuses(batches, options, message):
    strategy = hj.local_sgd(batch_size=4, learning_rate=0.1)
    init, round, _ = hj.make_round(least_squares(), strategy, workers=2)
    with pytest.raises(ValueError, match=message):
        round(init(jax.random.key(0)), batches, **options)


def test_a_round_has_workers():
    strategy = hj.local_sgd(batch_size=4, learning_rate=0.1)
    with pytest.raises(
        ValueError, match="workers=0: pass a whole number of at least 1"
    ):
        hj.make_round(least_squares(), strategy, workers=0)


def test_a_round_without_steps_changes_no_model():
    strategy = hj.local_sgd(batch_size=4, learning_rate=0.1)
    init, round, model = hj.make_round(least_squares(), strategy, workers=2)
    state = init(jax.random.key(0))
    none = np.zeros((2, 0, 4, 2))
    after, metrics = round(state, (none, none))
    assert metrics["losses"].shape == (2, 0)
    np.testing.assert_array_equal(model(after)[0], model(state)[0])


@pytest.mark.parametrize("dtype", [jnp.int32, jnp.complex64])
def test_parameters_that_cannot_be_trained(dtype):
    task = least_squares()._replace(init=lambda key: ({"w": jnp.ones(4, dtype)}, ()))
    strategy = hj.local_sgd(batch_size=4, learning_rate=0.1)
    with pytest.raises(ValueError, match=f"the parameter 'w' is {dtype.__name__}"):
        hj.make_round(task, strategy, workers=2)


def test_a_merge_or_an_update_of_ones_own_that_returns_the_wrong_things():
    strategy = hj.local_sgd(batch_size=4, learning_rate=0.1)
    merge = strategy.merge._replace(apply=lambda state, replicas, stats, op: state)
    with pytest.raises(ValueError, match="apply returned .* return a pair"):
        hj.make_round(least_squares(), strategy._replace(merge=merge), workers=2)
    update = strategy.local._replace(step=lambda replica, *given: replica)
    own = strategy._replace(local=update)
    init, round, _ = hj.make_round(least_squares(), own, workers=2)
    state, batches = init(jax.random.key(0)), (np.ones((2, 1, 4)), np.ones((2, 1, 4)))
    with pytest.raises(ValueError, match="step returned .* return a pair"):
        round(state, batches)


def test_a_schedule_of_rates_is_up_to_the_caller():
    strategy = hj.local_sgd(batch_size=4, learning_rate=lambda examples: 0.1)
    init, round, _ = hj.make_round(least_squares(), strategy, workers=2)
    with pytest.raises(ValueError, match="is a function of the examples; pass that of"):
        round(init(jax.random.key(0)), (ONE, ONE))
    round(init(jax.random.key(0)), (ONE, ONE), learning_rate=0.1)
