"""`make_run`: equal to `train`, and its gradients to finite differences."""

import dataclasses
import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from zoo import FORMS, soon

import hetjax as hj
from hetjax.report.schedule_table import SHOWN

# the attribute `make_run` of the package is the function
MODULE = importlib.import_module("hetjax.api.make_run")

MACHINE = hj.machine.preset("v100x3+k80")
SECONDS, EVALS = 0.1, 3
NAMES = [n for n in FORMS if n not in ("biased_local_sgd", "fed_acc")]
CORE = ("async_sgd", "local_sgd")


def network(dtype):
    """Two layers on inputs [3], which learn 2 numbers."""

    def init(key):
        a, b = jax.random.split(key)
        shapes = {"a": (a, (3, 4)), "b": (b, (4, 2))}
        return {n: 0.5 * jax.random.normal(*each, dtype) for n, each in shapes.items()}

    return init, lambda p, x: jnp.tanh(jnp.asarray(x, dtype) @ p["a"]) @ p["b"]


def make_problem(dtype):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(64, 3))
    y = np.tanh(x @ rng.normal(size=(3, 2))) + 0.1 * rng.normal(size=(64, 2))
    data = hj.data.from_arrays((x, y), (x[:16], y[:16]), targets="values")

    def squares(outputs, y):
        return ((outputs - jnp.asarray(y, dtype)) ** 2).mean(axis=-1)

    model = hj.from_functions(*network(dtype))
    metrics = {"half": lambda outputs, y: squares(outputs, y) / 2}
    return hj.task(model, squares, metrics, mode="min"), data


@pytest.fixture(scope="module")
def problem():
    return make_problem(jnp.float32)


def made(name, **settings):
    given = {"batch_size": 8, "learning_rate": 0.1, **soon(name)}
    if name == "hier_sgd":
        given |= {"levels": (2,), "local_steps": (2, 4)}
    if name in ("local_sgd", "elastic_sgd", "fed_nova"):
        given["local_steps"] = 4
    if name == "adaptive_sgd":
        given["mega_batch"] = 128
    return hj.STRATEGIES[name](**given | settings)


def made_run(problem, strategy, **options):
    task, data = problem
    options = {"seconds": SECONDS, "num_evals": EVALS} | options
    return hj.make_run(task, data, MACHINE, strategy, **options)


def trained(problem, strategy, seed=0, **options):
    task, data = problem
    given = {"seconds": SECONDS, "num_evals": EVALS} | options
    return hj.train(task, data, MACHINE, strategy, seed=seed, progress=False, **given)


def check_equal(found, history, metrics=("loss", "half")):
    evaluations, (params, model_state) = found
    for name in ("seconds", *metrics):
        expected = [e[name] for e in history.evals]
        np.testing.assert_allclose(evaluations[name], expected, rtol=1e-5, atol=1e-6)
    pairs = zip(
        jax.tree.leaves((history.params, history.model_state)),
        jax.tree.leaves((params, model_state)),
        strict=True,
    )
    for expected, value in pairs:
        np.testing.assert_allclose(value, expected, rtol=1e-6, atol=2e-6)


# -- equal to `train` ----------------------------------------------------------------


@pytest.mark.parametrize(
    "name", [n if n in CORE else pytest.param(n, marks=pytest.mark.full) for n in NAMES]
)
def test_a_run_equals_train(problem, name):
    strategy = made(name)
    run = made_run(problem, strategy)
    history = trained(problem, strategy)
    check_equal(run(), history)
    assert history.merges > 0
    begun = run.schedule.steps.sum()
    assert begun >= history.evals[-1]["updates"] > begun / 2


def test_the_seed_of_the_key_and_of_the_schedule_are_those_of_train(problem):
    strategy = made("async_sgd")
    history = trained(problem, strategy, seed=3)
    run = made_run(problem, strategy, seed=3)
    check_equal(run(jax.random.key(3)), history)
    check_equal(run(jax.random.PRNGKey(3)), history)
    check_equal(run(), history)
    other, _ = run(jax.random.key(4))
    assert abs(other["loss"][0] - history.evals[0]["loss"]) > 1e-3


@pytest.mark.full
def test_steps_get_the_same_random_keys_and_counters(problem):
    """Dropout, and a model state that averages, in a run as in `train`."""
    from flax import nnx

    class Net(nnx.Module):
        def __init__(self, rngs):
            self.first = nnx.Linear(3, 8, rngs=rngs)
            self.norm = nnx.BatchNorm(8, rngs=rngs)
            self.drop = nnx.Dropout(0.5, rngs=rngs)
            self.last = nnx.Linear(8, 2, rngs=rngs)

        def __call__(self, x):
            return self.last(self.drop(nnx.relu(self.norm(self.first(x)))))

    _, data = problem
    task = hj.regression(lambda features, k, rngs: Net(rngs), data)
    strategy = made("local_sgd")
    run = made_run((task, data), strategy, seed=3)
    history = trained((task, data), strategy, seed=3)
    check_equal(run(), history, metrics=("loss", "rmse"))


def test_a_task_finishes_its_means_in_a_run_or_says_that_it_cannot(problem):
    task, data = problem
    finish = lambda means: {"root": float(np.sqrt(means["loss"]))} | means  # noqa: E731
    run = made_run((task._replace(finish=finish), data), made("local_sgd"))
    with pytest.raises(ValueError, match="the task's finish converts .*use jax.numpy"):
        run()


@pytest.mark.full
def test_sparse_inputs_and_sets_of_labels():
    data = hj.data.synthetic_xmc()
    task = hj.classification(hj.models.sparse_mlp(hidden=4), data)
    strategy = made("adaptive_sgd", learning_rate=0.5, mega_batch=64)
    run = made_run((task, data), strategy, eval_examples=100)
    history = trained((task, data), strategy, eval_examples=100)
    check_equal(run(), history, metrics=("loss", "p@1"))


@pytest.mark.full
def test_learning_rates_are_as_scheduled(problem):
    strategy = made("sma", learning_rate=lambda examples: 0.1 / (1 + examples / 100))
    run = made_run(problem, strategy)
    check_equal(run(), trained(problem, strategy))
    with pytest.raises(
        ValueError,
        match="a function of the examples and cannot be set.*make the",
    ):
        run(learning_rate=0.1)


@pytest.mark.full
@pytest.mark.parametrize("workers", [4, 9], ids=("a tuple", "a stack"))
def test_members_are_weighted_by_their_metrics_on_held_out_examples(workers):
    data = hj.data.digits()
    task = hj.classification(hj.models.mlp(hidden=4), data)
    machine = hj.machine.preset(f"uniform:{workers}")
    strategy = made("fed_acc", local_steps=4, power=2.0)
    options = {"seconds": 1.0, "num_evals": 2}
    history = hj.train(task, data, machine, strategy, progress=False, **options)
    assert history.merges > 1
    run = hj.make_run(task, data, machine, strategy, **options)
    check_equal(run(), history, metrics=("loss", "accuracy"))


def test_params_begin_a_run(problem):
    run = made_run(problem, made("local_sgd"))
    _, (params, _) = run()
    again, _ = run(params=params)
    other, _ = run(params=(params, ()))
    first, _ = run()
    assert again["loss"][0] == other["loss"][0]
    np.testing.assert_allclose(again["loss"][0], first["loss"][-1], rtol=1e-6)


# -- settings ------------------------------------------------------------------------

SETTINGS = [
    ("sma", {"alpha": 0.2, "merge_momentum": 0.5}),
    ("easgd", {"beta": 0.5}),
    ("local_sgd", {"momentum": 0.5, "weight_decay": 0.01}),
    ("async_sgd", {"server_momentum": 0.5, "weight_decay": 0.1}),
    ("eamsgd", {"momentum": 0.5, "lr_decay": 0.1}),
    ("fed_nova", {"proximal": 0.1}),
    ("hier_sgd", {"gammas": (0.3, 0.2)}),
    ("downpour", {"server_learning_rate": 0.05}),
    ("magma_async_sgd", {"server_momentum": 0.8}),
    (
        "adaptive_sgd",
        {"delta": 0.05, "merge_momentum": 0.5, "perturbation_threshold": 0.2},
    ),
]


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        SETTINGS[0],
        *(pytest.param(*each, marks=pytest.mark.full) for each in SETTINGS[1:]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_run_with_settings_equals_one_of_such_a_strategy(problem, name, settings):
    strategy = made(name)
    run = made_run(problem, strategy)
    with jax.checking_leaks():
        found = run(learning_rate=0.05, **settings)
    check_equal(found, trained(problem, made(name, learning_rate=0.05, **settings)))


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("adaptive_sgd", {"beta": 0.1}, "beta would change the schedule"),
        ("local_sgd", {"batch_size": 4}, "batch_size.*pass a whole number"),
        (
            "sma",
            {"nothing": 1.0},
            "nothing as a setting of a run: .*there is no argument",
        ),
        (
            "adaptive_sgd",
            {"time_decay": 0.1},
            "branches on the value of time_decay",
        ),
        (
            "sma",
            {"learning_rate": np.ones(2)},
            r"has shape \(2,\); pass a number; use jax.vm",
        ),
        ("sma", {"params": {"a": 1.0}}, "not the parameters of this task"),
        ("sma", {"center": "mean"}, "center='mean': settings of a run must be numbers"),
        (
            "sma",
            {"reset_momentum": False},
            "reset_momentum=False: settings of a run must be",
        ),
        ("sma", {"key": 3}, "key=3: pass a key, such as jax.random.key"),
    ],
)
def test_what_a_run_refuses(problem, name, settings, message):
    run = made_run(problem, made(name))
    with pytest.raises(ValueError, match=message):
        run(**settings)


def test_a_merge_with_a_buffer_of_its_own_may_have_settings(problem):
    def strategy(pull):
        sma = made("sma", restart="never")
        own = hj.merge.Buffer("visits", lambda params: jnp.zeros(()))
        merge = hj.merge.sma(alpha=pull)
        return sma._replace(merge=merge._replace(requires=(*merge.requires, own)))

    run = made_run(problem, strategy, settings={"pull": 0.1})
    check_equal(run(pull=0.3), trained(problem, strategy(0.3)))


def test_settings_of_a_strategy_that_no_factory_made(problem):
    strategy = made("sma")._replace(factory=None)
    run = made_run(problem, strategy)
    with pytest.raises(ValueError, match=r"settings \(alpha\) need a factory.*pass"):
        run(alpha=0.1)


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        (made("biased_local_sgd"), "its sampler observes losses"),
        (
            made("sma", restart="on_plateau"),
            "the policy reads the metrics of evaluations",
        ),
        ("sma", "sma"),
    ],
    ids=("sampler", "policy", "no strategy"),
)
def test_what_make_run_refuses(problem, strategy, message):
    with pytest.raises(ValueError, match=message):
        made_run(problem, strategy)


def test_a_real_machine_is_refused(problem):
    task, data = problem
    with pytest.raises(
        ValueError, match="machine=<a LocalMachine>: pass a Machine, such as"
    ):
        hj.make_run(task, data, hj.local_machine(), made("sma"), seconds=1)


def with_faults(machine, *faults):
    """The machine with events (seconds, kind, number of the worker)."""
    names = [w.name for w in machine.workers]
    each = [hj.machine.ScriptedFault(t, what, names[k]) for t, what, k in faults]
    return dataclasses.replace(machine, faults=tuple(each))


def test_a_run_whose_last_worker_is_lost_is_refused(problem):
    task, data = problem
    lost = with_faults(hj.machine.preset("v100x1"), (0.05, "kill", 0))
    with pytest.raises(
        ValueError, match=r"the run ends at 0\.05 s.*pass fewer seconds"
    ):
        hj.make_run(task, data, lost, made("sma"), seconds=SECONDS)


@pytest.mark.full
@pytest.mark.parametrize(("name", "lanes"), [("local_sgd", 3), ("ad_psgd", 4)])
def test_rounds_side_by_side_equal_those_in_turn(problem, name, lanes, monkeypatch):
    """As on an accelerator."""

    def with_slope():
        run = made_run(problem, made(name))
        slope = jax.grad(lambda rate: run(learning_rate=rate)[0]["loss"][-1])
        return run(), slope(0.1)

    monkeypatch.setattr(MODULE, "num_lanes", lambda *about: lanes)
    found, slope = with_slope()
    check_equal(found, trained(problem, made(name)))
    monkeypatch.undo()
    np.testing.assert_allclose(slope, with_slope()[1], rtol=1e-4)


@pytest.mark.full
@pytest.mark.parametrize("name", ["async_sgd", "local_sgd", "easgd"])
def test_workers_are_lost_and_come_back(problem, name):
    task, data = problem
    machine = with_faults(MACHINE, (0.02, "kill", 0), (0.05, "join", 0))
    options = {"seconds": SECONDS, "num_evals": EVALS}
    run = hj.make_run(task, data, machine, made(name), **options)
    history = hj.train(task, data, machine, made(name), progress=False, **options)
    assert {"lost", "joined"} <= {e.what for e in history.events}
    check_equal(run(), history)


# -- transformations -----------------------------------------------------------------


def test_rates_and_keys_are_mapped(problem):
    run = made_run(problem, made("async_sgd"))
    rates, keys = jnp.array([0.05, 0.2]), jax.random.split(jax.random.key(1), 2)
    both = jax.jit(jax.vmap(lambda key, rate: run(key, learning_rate=rate)))
    evaluations, (params, _) = both(keys, rates)
    assert evaluations["seconds"].shape == (2, EVALS + 1)
    for i in range(2):
        one, (own, _) = run(keys[i], learning_rate=rates[i])
        np.testing.assert_allclose(evaluations["loss"][i], one["loss"], rtol=1e-5)
        np.testing.assert_allclose(params["a"][i], own["a"], atol=1e-6)


def weighted(weights):
    mean = hj.merge.average(weights=lambda stats: weights)
    return made("local_sgd")._replace(merge=mean)


GRADIENTS = [
    ("async_sgd", {}),
    ("async_sgd", {"server_momentum": 0.5}),
    ("sma", {"alpha": 0.2, "merge_momentum": 0.7}),
    ("easgd", {"alpha": 0.2}),
    ("local_sgd", {"momentum": 0.5}),
    ("hier_sgd", {}),
    ("downpour", {"server_learning_rate": 0.05}),
    ("ad_psgd", {}),
    ("fed_nova", {"server_momentum": 0.3}),
    (weighted, {"weights": np.array([1.0, 2.0, 3.0, 4.0])}),
]


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        GRADIENTS[0],
        *(pytest.param(*each, marks=pytest.mark.full) for each in GRADIENTS[1:]),
    ],
    ids=lambda value: getattr(value, "__name__", value) if value else "",
)
def test_gradients_are_finite_differences(name, settings):
    """Of the final loss by the learning rate and the settings, in float64."""
    with jax.enable_x64(True):
        task, data = make_problem(jnp.float64)
        if callable(name):
            run = made_run((task, data), name, settings=settings)
        else:
            run = made_run((task, data), made(name))
        _, apply = network(jnp.float64)

        @jax.jit
        def loss(given):
            _, (params, _) = run(**given)
            errors = apply(params, data.test.x) - jnp.asarray(data.test.y)
            return (errors**2).mean()

        given = {"learning_rate": 0.1, **settings}
        given = {k: jnp.asarray(v, jnp.float64) for k, v in given.items()}
        slopes = jax.jit(jax.grad(loss))(given)
        for k, value in given.items():
            along = jnp.zeros(value.shape).at[(0,) * value.ndim].set(1e-3)
            ends = [loss({**given, k: value + sign * along}) for sign in (1, -1)]
            slope = float((slopes[k] * along).sum()) / 1e-3
            assert abs(slope) > 1e-5
            # the curvature of the loss: a step of 1e-3 for alpha, which is float32
            np.testing.assert_allclose(slope, (ends[0] - ends[1]) / 2e-3, rtol=2e-3)


@pytest.mark.full
def test_the_memory_of_a_gradient_grows_like_the_root_of_the_number_of_events():
    task, data = make_problem(jnp.float32)
    wide = hj.from_functions(
        lambda key: {"w": jnp.zeros((3, 2, 512))},
        lambda p, x: jnp.einsum("bi,ijk->bj", x, p["w"]),
    )
    task = hj.task(wide, lambda outputs, y: ((outputs - y) ** 2).mean(axis=-1))

    def num_bytes(seconds):
        run = made_run((task, data), made("async_sgd"), seconds=seconds, num_evals=1)
        slope = jax.jit(jax.grad(lambda r: run(learning_rate=r)[0]["loss"][-1]))
        memory = slope.lower(0.1).compile().memory_analysis()
        return memory.temp_size_in_bytes, len(run.schedule)

    (few, short), (many, long) = num_bytes(0.03), num_bytes(0.48)
    assert long > 12 * short
    assert many < 6 * few


# -- the schedule --------------------------------------------------------------------


def test_the_schedule_says_what_happens(problem):
    schedule = made_run(problem, made("local_sgd")).schedule
    names = [w.name for w in MACHINE.workers]
    assert list(schedule.what[:5]) == ["steps"] * 4 + ["evaluation"]
    assert [str(w) for w in schedule.worker if w][:4] == names
    assert set(schedule.steps[schedule.what == "steps"]) == {4}
    assert set(schedule.batch_size[schedule.what == "steps"]) == {8}
    assert all(m == tuple(names) for m in schedule.members[schedule.what == "merge"])
    seconds = schedule.seconds[schedule.what == "evaluation"]
    np.testing.assert_allclose(seconds, np.linspace(0, SECONDS, EVALS + 1))


def test_the_schedule_prints_its_ends(problem):
    run = made_run(problem, made("async_sgd"))
    schedule = run.schedule
    assert len(schedule) > SHOWN
    text = str(schedule.table())
    assert text.splitlines()[0].split()[:3] == ["what", "seconds", "worker"]
    assert f"the first and the last of {len(schedule):,} lines" in text
    assert MACHINE.workers[0].name in text
    merges = sum(bool(members) for members in schedule.members)
    assert f"{merges} merges and fetches" in text
    assert repr(run).startswith("Run of async_sgd\n")
    assert schedule._repr_html_().count("<tr>") == SHOWN + 1
