"""Optimizers must be built with learning rate 1, or else they are refused."""

import jax.numpy as jnp
import optax
import pytest

from hetjax import local, merge
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
    injected = optax.inject_hyperparams(optax.adam)(learning_rate=size)
    with pytest.raises(ValueError, match="first updates of size"):
        local.from_optax(injected)
