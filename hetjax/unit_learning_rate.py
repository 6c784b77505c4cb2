"""A check that optimizers are built with a learning rate of 1.

hetjax multiplies an optimizer's updates by the learning rate of the strategy, which may
change at every step. An optimizer with its own learning rate, such as
`optax.adam(1e-3)`, would silently train at a thousandth of the intended rate.
"""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from hetjax.optimizer_needs import OF_ONES, check_is_optimizer, first_update, parts_of

# Steps at which a schedule is evaluated: all up to 1000, then 100 per power of ten.
COUNTS = np.unique(
    np.concatenate([np.arange(1001), np.geomspace(1e3, 1e7, 401).astype(int)])
).astype(np.int32)
NAMES = ("step_size", "step_size_fn", "learning_rate")  # of learning rates in optax
CONSTANT = 1 + 1e-5  # how far a constant learning rate may be from 1, as a factor
PEAK = 1.1  # and the largest value of a schedule, whose peak may be between two COUNTS
# The first update of rmsprop(1.0) on ones is 3 to 32, that of MagmaDNN's ema 0.01.
FAR = 50.0


def check_unit_rate(optimizer: optax.GradientTransformation, where: str) -> None:
    """Raise a ValueError if an optimizer was built with a learning rate other than 1.

    `where` names the argument. The learning rate is read from the parts of the
    optimizer, those in `optax.inject_hyperparams` included. A constant must be 1 up to
    rounding; a schedule counts with its largest value up to step 10^7, which must be
    within 10 % of 1. The updates alone do not tell the learning rate: the first update
    of `lars(1.0)` is as small as that of `adam(1e-3)`, and `sgd(.1, .9)` is the same
    function as an average of gradients with decay .9. Only if no part has a learning
    rate, as in a custom transformation, the size of the first update on ones decides:
    it must be within a factor of 50 of 1. Nothing is checked where that depends on a
    traced value, as under `vmap` over settings.
    """
    check_is_optimizer(optimizer, where)
    try:
        rate, limit = _rate_and_limit(optimizer)
    except (jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError):
        return
    if not 1 / limit <= rate <= limit:
        built = f"was built with learning rate {rate:.6g}"
        found = f"has first updates of size {rate:.3g}" if limit == FAR else built
        raise ValueError(
            f"{where}: the optimizer {found}; build it with learning rate 1.0 and pass "
            "the learning rate to the strategy (learning_rate=...), which multiplies "
            "the updates by it"
        )


def _rate_and_limit(
    optimizer: optax.GradientTransformation,
) -> tuple[float, float]:
    """The learning rate, or the first update's size, and its allowed factor from 1."""
    rates = list(_rates((optimizer.init, optimizer.update), set()))
    if rates:
        # fmax skips NaN, such as of (1 - count / n)**0.9 after n steps
        rate = float(np.prod([np.fmax.reduce(values) for values in rates]))
        varies = any(not np.allclose(v, v[0], rtol=1e-5, atol=0.0) for v in rates)
        return rate, PEAK if varies else CONSTANT
    return _first_update(optimizer), FAR


def _rates(found: Any, seen: set[int]) -> Iterator[np.ndarray]:
    """Yield the learning rates in a function and in everything that it closes over.

    Each is an array of absolute values: one of a constant, one per count of a schedule.
    """
    if id(found) in seen:
        return
    seen.add(id(found))
    for part in parts_of(found):
        yield from _rates(part, seen)
    if callable(found):
        yield from _rates_of_closure(found, seen)


def _rates_of_closure(function: Callable, seen: set[int]) -> Iterator[np.ndarray]:
    code = getattr(function, "__code__", None)
    if code is None:
        return
    cells = zip(code.co_freevars, function.__closure__ or (), strict=True)
    maker = function.__qualname__.split(".")[0]
    for name, cell in cells:
        value = cell.cell_contents
        if maker == "schedule_free" and name == "learning_rate":
            # it only weighs averages: z moves at the base optimizer's rate
            continue
        if name in NAMES:
            # of scale and scale_by_schedule, and of optimizers in optax.contrib
            yield from _values(value)
        elif maker == "inject_hyperparams" and isinstance(value, dict):
            # Its numeric_hps (of init only), sched_hps or other_hps. The state would
            # have only a schedule's first value, and needs parameters that fit the
            # user's masks.
            yield from _hyperparameters(value, seen)
        elif maker not in ("scale", "scale_by_schedule"):
            yield from _rates(value, seen)


def _hyperparameters(values: dict[str, Any], seen: set[int]) -> Iterator[np.ndarray]:
    if id(values) in seen:  # init and update close over the same dictionary
        return
    seen.add(id(values))
    for name, value in values.items():
        yield from _values(value) if name in NAMES else _rates(value, seen)


def _values(rate: Any) -> Iterator[np.ndarray]:
    """Yield the absolute values of a constant or a schedule; nothing if unknown.

    They are unknown if there is no learning rate (None), or if it is a stateful
    schedule, which may depend on more than the count.
    """
    schedule = getattr(rate, "schedule_fn", rate)  # in inject_hyperparams
    if rate is None or hasattr(schedule, "init"):
        return
    values = jax.jit(jax.vmap(schedule))(COUNTS) if callable(schedule) else schedule
    yield np.abs(np.asarray(values, np.float64)).ravel()


def _first_update(optimizer: optax.GradientTransformation) -> float:
    """The largest entry of the first update, for gradients and parameters of ones."""
    updates = first_update(optimizer, **OF_ONES)
    return max(float(jnp.max(jnp.abs(u))) for u in jax.tree.leaves(updates))
