"""Optimizers must be built with learning rate 1, or else they are refused."""

import jax.numpy as jnp
import optax
import pytest

from hetjax import local, merge, unit_learning_rate
from hetjax.strategies.baselines import central

EMA = optax.chain(optax.ema(0.99, debias=False), optax.scale(-1.0))
WARMUP = optax.warmup_cosine_decay_schedule(0.0, 1.0, 100, 10_000)
HONEST = {
    "sgd": lambda eta: optax.sgd(eta),
    "momentum": lambda eta: optax.sgd(eta, momentum=0.9),
    "nesterov": lambda eta: optax.sgd(eta, momentum=0.9, nesterov=True),
    "adam": lambda eta: optax.adam(eta),
    "adamw": lambda eta: optax.adamw(eta, weight_decay=0.1),
    "rmsprop": lambda eta: optax.rmsprop(eta, decay=0.999),
    "adagrad": lambda eta: optax.adagrad(eta, initial_accumulator_value=0.0),
    "rprop": lambda eta: optax.rprop(eta),  # only its init has the learning rate
    "lion": lambda eta: optax.lion(eta),
    "lamb": lambda eta: optax.lamb(eta),
    "lars": lambda eta: optax.lars(eta),
    "clipped": lambda eta: optax.chain(
        optax.clip_by_global_norm(1e-3), optax.adam(eta)
    ),
    "decay": lambda eta: optax.chain(
        optax.add_decayed_weights(0.1), optax.sgd(eta, 0.9)
    ),
    "masked": lambda eta: optax.masked(optax.adam(eta), {"w": True}),
    "several steps": lambda eta: optax.MultiSteps(
        optax.adam(eta), 4
    ).gradient_transformation(),
    "schedule": lambda eta: optax.adam(lambda count: eta * WARMUP(count)),
    "prodigy": lambda eta: optax.contrib.prodigy(eta),
    "injected": lambda eta: optax.inject_hyperparams(optax.adam)(learning_rate=eta),
    "injected by position": lambda eta: optax.inject_hyperparams(optax.sgd)(eta, 0.9),
    "injected as an array": lambda eta: optax.inject_hyperparams(optax.sgd)(
        jnp.asarray(eta), momentum=0.9
    ),
    "injected, static": lambda eta: optax.inject_hyperparams(
        optax.adam, static_args="learning_rate"
    )(eta),
    "injected step size": lambda eta: optax.inject_hyperparams(optax.scale)(-eta),
    "injected in a chain": lambda eta: optax.chain(
        optax.clip(1.0), optax.chain(optax.inject_hyperparams(optax.adam)(eta))
    ),
    "injected under a mask": lambda eta: optax.masked(
        optax.inject_hyperparams(optax.adam)(eta), {"of the user": True}
    ),
    "injected, several steps": lambda eta: optax.MultiSteps(
        optax.inject_hyperparams(optax.adam)(eta), 4
    ).gradient_transformation(),
    "injected schedule": lambda eta: optax.inject_hyperparams(optax.adam)(
        lambda count: eta * WARMUP(count)
    ),
    "injected schedule in a chain": lambda eta: optax.chain(
        optax.clip(1.0),
        optax.inject_hyperparams(optax.sgd)(lambda count: eta * WARMUP(count), 0.9),
    ),
}
# Schedules with largest value eta, most of them between the powers of ten.
SCHEDULES = {
    "constant": lambda eta: optax.constant_schedule(eta),
    "number": lambda eta: lambda count: eta,
    "warm-up, cosine": lambda eta: optax.warmup_cosine_decay_schedule(
        0.0, eta, 500, 10_000
    ),
    "warm-up, linear": lambda eta: optax.join_schedules(
        [optax.linear_schedule(0.0, eta, 300), optax.linear_schedule(eta, 0.0, 600)],
        [300],
    ),
    "one cycle": lambda eta: optax.cosine_onecycle_schedule(1000, eta),
    "late peak": lambda eta: optax.join_schedules(
        [
            optax.linear_schedule(0.0, eta, 33_333),
            optax.linear_schedule(eta, 0.0, 10_000),
        ],
        [33_333],
    ),
    "NaN after the end": lambda eta: lambda count: eta * (1 - count / 1000) ** 0.9,
}
BOTH = {
    "ema": EMA,
    "MagmaDNN's": central(0.99, True, None),
    "centre with decay": central(0.9, True, None, 5e-4),
    "user-defined": optax.stateless(lambda g, p: optax.tree_utils.tree_scale(-1.0, g)),
}


@pytest.mark.parametrize("name", [*HONEST, *BOTH])
def test_learning_rate_one_is_accepted(name):
    tx = BOTH[name] if name in BOTH else HONEST[name](1.0)
    local.from_optax(tx)
    merge.gradient_aggregation(tx)
    merge.downpour(tx)


@pytest.mark.parametrize("eta", [1e-3, 0.1, 30.0])
@pytest.mark.parametrize("name", HONEST)
def test_another_learning_rate_is_refused(name, eta):
    tx = HONEST[name](eta)
    for make, where in (
        (local.from_optax, r"from_optax\(tx\)"),
        (merge.gradient_aggregation, r"gradient_aggregation\(optimizer\)"),
        (merge.downpour, r"downpour\(server\)"),
    ):
        with pytest.raises(ValueError, match=where + ".*learning rate 1.0"):
            make(tx)


@pytest.mark.parametrize("size", [1e-3, 1e3])
def test_an_unknown_transformation_is_tried_on_ones(size):
    tx = optax.GradientTransformation(
        lambda params: (),
        lambda g, s, p=None: ({"w": jnp.full_like(g["w"], -size)}, s),
    )
    with pytest.raises(ValueError, match="first updates of size"):
        local.from_optax(tx)


def _scheduled(kind, schedule):
    if kind == "plain":
        return optax.adam(schedule)
    injected = optax.inject_hyperparams(optax.sgd)(schedule, momentum=0.9)
    return injected if kind == "injected" else optax.chain(optax.clip(1.0), injected)


@pytest.mark.parametrize("kind", ["plain", "injected", "injected in a chain"])
@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_counts_with_its_largest_value(name, kind):
    local.from_optax(_scheduled(kind, SCHEDULES[name](1.0)))
    for eta in (0.05, 0.8, 1.2):
        with pytest.raises(ValueError, match="was built with learning rate"):
            local.from_optax(_scheduled(kind, SCHEDULES[name](eta)))


@pytest.mark.parametrize("eta", [0.95, 0.9995, 1.0005, 1.05])
def test_a_constant_must_be_one_up_to_rounding(eta):
    for tx in (
        optax.sgd(eta),
        optax.sgd(optax.constant_schedule(eta)),
        optax.inject_hyperparams(optax.sgd)(eta),
        optax.inject_hyperparams(optax.sgd)(optax.constant_schedule(eta)),
    ):
        with pytest.raises(ValueError, match=f"was built with learning rate {eta}"):
            local.from_optax(tx)
    local.from_optax(optax.sgd(0.1 * 3 / 0.3))  # 1 + 2e-16
    local.from_optax(optax.sgd(jnp.float32(1) + jnp.finfo(jnp.float32).eps))


def test_an_injected_learning_rate_is_named_in_the_error():
    for tx, rate in (
        (optax.inject_hyperparams(optax.adam)(learning_rate=0.05), 0.05),
        (optax.inject_hyperparams(optax.sgd)(learning_rate=0.1, momentum=0.9), 0.1),
    ):
        with pytest.raises(ValueError, match=f"was built with learning rate {rate};"):
            local.from_optax(tx)


def test_the_injected_rate_is_that_of_the_state():
    """The rate is read from optax's closures, which must agree with the state."""
    tx = optax.inject_hyperparams(optax.adam)(learning_rate=0.05, b1=0.5)
    state = tx.init({"w": jnp.ones(2)})
    rates = [
        float(v[0]) for v in unit_learning_rate._rates((tx.init, tx.update), set())
    ]
    assert rates == pytest.approx([float(state.hyperparams["learning_rate"])])


def test_an_optimizer_without_a_rate_of_its_own_may_be_injected():
    tx = optax.inject_hyperparams(optax.scale_by_adam)(b1=WARMUP, b2=0.99)
    local.from_optax(optax.chain(tx, optax.scale(-1.0)))
    local.from_optax(optax.inject_hyperparams(optax.adafactor)(learning_rate=None))


def test_what_is_no_optimizer_is_named():
    for thing in (optax.adam, "adam"):
        with pytest.raises(
            ValueError, match="mine: .*adam.* is not an optax optimizer"
        ):
            unit_learning_rate.check_unit_rate(thing, "mine")
