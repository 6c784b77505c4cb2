"""Optimizers that are given a learning rate as data must be built with rate 1.

hetjax multiplies an optimizer's updates by the learning rate of the strategy, which may
change at every step. An optimizer that has a rate of its own, `optax.adam(1e-3)`, would
then train at a thousandth of what was meant, and nothing would say so.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax

COUNTS = tuple(10**k for k in range(7))  # steps at which a schedule is looked at
FAR = 50.0  # the first update of rmsprop(1.0) on ones is 3 to 32, MagmaDNN's ema .01


def check_unit_rate(optimizer: optax.GradientTransformation, where: str) -> None:
    """A ValueError if an optax optimizer was built with another learning rate than 1.

    `where` names the argument. The rate is read from the optimizer's parts; a schedule
    counts with its largest value. It cannot be told from the updates alone: the first
    one of `lars(1.0)` is as small as that of `adam(1e-3)`, and `sgd(.1, .9)` is the
    same function as an average of gradients with decay .9. Only where no part has a
    rate (somebody's own transformation) the size of a first update on ones decides,
    and must be within a factor of 50 of 1.
    """
    rates = list(_rates(optimizer.update, set()))
    rate = float(np.prod(np.abs(rates))) if rates else _first_update(optimizer)
    limit = 1.001 if rates else FAR
    if not 1 / limit <= rate <= limit:
        found = f"rate {rate:.3g}" if rates else f"first updates of size {rate:.3g}"
        raise ValueError(
            f"{where}: the optimizer was built with {found}; build it with "
            "learning_rate 1.0 and give the rate to the strategy (learning_rate=...), "
            "which multiplies the updates"
        )


def _rates(found: Any, seen: set[int]) -> Iterator[float]:
    """The learning rates in a function and all that it closes over."""
    if id(found) in seen:
        return
    seen.add(id(found))
    if isinstance(found, (tuple, list)):
        for part in found:
            yield from _rates(part, seen)
    elif isinstance(found, dict):
        yield from _rates(list(found.values()), seen)
    elif isinstance(found, partial):
        yield from _rates((found.func, found.args, found.keywords), seen)
    elif callable(found):
        maker = getattr(found, "__self__", None)  # of a method, as of MultiSteps
        if type(maker).__module__.startswith("optax"):
            yield from _rates(vars(maker), seen)
        yield from _rates_of_closure(found, seen)


def _rates_of_closure(function: Callable, seen: set[int]) -> Iterator[float]:
    code = getattr(function, "__code__", None)
    if code is None:
        return
    cells = zip(code.co_freevars, function.__closure__ or (), strict=True)
    maker = function.__qualname__.split(".")[0]
    for name, cell in cells:
        value = cell.cell_contents
        if name in ("step_size", "step_size_fn", "learning_rate"):
            # scale, scale_by_schedule; `contrib` has rates of its own
            yield _largest(value)
        elif maker not in ("scale", "scale_by_schedule"):
            yield from _rates(value, seen)


def _largest(rate: Any) -> float:
    """The size of a rate, or of a schedule over many counts."""
    if not callable(rate):
        return float(abs(rate))
    schedule = cast(optax.Schedule, rate)
    return max(float(jnp.abs(jnp.asarray(schedule(k)))) for k in (0, *COUNTS))


def _first_update(optimizer: optax.GradientTransformation) -> float:
    """The largest number of a first update, of ones on parameters that are one."""
    ones = {"w": jnp.ones(2)}
    updates, _ = optimizer.update(ones, optimizer.init(ones), ones)
    return max(float(jnp.max(jnp.abs(u))) for u in jax.tree.leaves(updates))
